//! Sizes of source files and of functions: below limits, so that a reader can learn one purpose at
//! a time.

use std::path::Path;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::{
    NOT_SHIPPED,
    crates::{self, Member},
    files::Sources,
};

/// Most lines of a source file.
const LINES_OF_FILE: usize = 640;

/// Most lines of a function below the `src` of a shipped crate.
const LINES_OF_SHIPPED: usize = 80;

/// Most lines of a function elsewhere: in tests, benches, examples and programs that do not ship.
const LINES_OF_OTHER: usize = 119;

/// A function with its lines, from `fn` to its closing brace.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    first_line: usize,
    lines: usize,
}

/// Source files and functions with too many lines.
///
/// # Errors
///
/// A file has no tokens of Rust.
pub(crate) fn too_large(sources: &Sources, members: &[Member]) -> Result<Vec<String>> {
    let shipped: Vec<String> = members.iter().filter_map(shipped_source).collect();
    let mut broken = Vec::new();
    for (file, text) in sources {
        let name = file.display();
        let lines = text.lines().count();
        if lines > LINES_OF_FILE {
            broken.push(format!("{name}: {lines} lines, a file has at most {LINES_OF_FILE}: split it by purpose"));
        }
        let is_shipped = shipped.iter().any(|folder| file.starts_with(folder));
        let limit = if is_shipped { LINES_OF_SHIPPED } else { LINES_OF_OTHER };
        let tokens = text.parse().map_err(|error| anyhow!("{name}: {error}"))?;
        let mut functions = Vec::new();
        find_functions(tokens, &mut functions);
        let above = functions.into_iter().filter(|function| function.lines > limit);
        broken.extend(above.map(|Function { name: function, first_line, lines }| {
            format!("{name}:{first_line}: `{function}` has {lines} lines, a function here has at most {limit}")
        }));
    }
    Ok(broken)
}

/// The `src` of a crate that ships.
fn shipped_source(member: &Member) -> Option<String> {
    let folder = Path::new(&member.folder);
    let is_other = folder.starts_with(crates::GROUP) || NOT_SHIPPED.iter().any(|other| folder.starts_with(other));
    (!is_other).then(|| format!("{}/src", member.folder))
}

/// Functions with a body, those of macros included.
fn find_functions(tokens: TokenStream, found: &mut Vec<Function>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => find_functions(group.stream(), found),
            TokenTree::Ident(word) if word == "fn" => {
                let Some((name, body)) = name_and_body(&tokens[at + 1..]) else { continue };
                let first_line = word.span().start().line;
                let lines = body.span_close().end().line + 1 - first_line;
                found.push(Function { name, first_line, lines });
            }
            _ => {}
        }
    }
}

/// Name and body of a function by the tokens behind its `fn`; the name may be `$name`. None for the
/// type of a function, and for one without a body.
fn name_and_body(tokens: &[TokenTree]) -> Option<(String, &Group)> {
    let name = tokens.iter().map_while(|token| match token {
        TokenTree::Ident(_) | TokenTree::Punct(_) => Some(token.to_string()),
        _ => None,
    });
    let name = name.take_while(|part| part != "<").collect::<String>();
    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ';');
    let mut signature = tokens.iter().take_while(|token| !is_end(token));
    let body = signature.find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        _ => None,
    });
    body.filter(|_| !name.is_empty()).map(|body| (name, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(folder: &str) -> Member {
        Member { folder: folder.into(), manifest: toml::Table::new() }
    }

    fn faults_of(file: &str, text: String) -> Vec<String> {
        let members = ["a", "bench", "bench/b", "tests/c"].map(member);
        too_large(&[(file.into(), text)].into(), &members).expect("valid")
    }

    #[test]
    fn a_file_has_at_most_so_many_lines() {
        let text = |lines| "//\n".repeat(lines);
        assert_eq!(faults_of("a/src/b.rs", text(640)), [""; 0]);
        for file in ["a/src/b.rs", "a/tests/b.rs", "tests/c/src/d/e.rs", "tests/e.rs"] {
            let broken = format!("{file}: 641 lines, a file has at most 640: split it by purpose");
            assert_eq!(faults_of(file, text(641)), [broken]);
        }
    }

    #[test]
    fn a_function_that_ships_has_fewer_lines_than_others() {
        let text = |lines: usize| format!("//\n#[inline]\nfn f() {{\n{}}}\n", "\n".repeat(lines - 2));
        let shipped = "a/src/b.rs";
        let others = ["a/tests/b.rs", "a/benches/b.rs", "bench/src/b.rs", "bench/b/src/c.rs", "tests/c/src/d.rs"];
        assert_eq!(faults_of(shipped, text(80)), [""; 0]);
        assert_eq!(
            faults_of(shipped, text(81)),
            [format!("{shipped}:3: `f` has 81 lines, a function here has at most 80")]
        );
        for file in others {
            let broken = format!("{file}:3: `f` has 120 lines, a function here has at most 119");
            assert_eq!(faults_of(file, text(119)), [""; 0]);
            assert_eq!(faults_of(file, text(120)), [broken]);
        }
    }

    #[test]
    fn functions_are_found_at_every_place() {
        let text = "trait A { fn a(); fn b() -> [u8; { 1 }] {} }
            impl A { const fn c<const N: usize>(f: fn(u8) -> u8) where B: C {
                unsafe extern \"C\" fn d() {
                }
            } }
            proptest! { #[test] fn e(x in 0..9u8) {
            } }
            macro_rules! m { ($name:ident) => { fn $name() { \"fn x() {
            \" } } }
            struct S { f: fn(), g: u8 }";
        let mut found = Vec::new();
        find_functions(text.parse().expect("tokens"), &mut found);
        let function = |name: &str, first_line, lines| Function { name: name.into(), first_line, lines };
        let expected = [("b", 1, 1), ("c", 2, 4), ("d", 3, 2), ("e", 6, 2), ("$name", 8, 2)];
        assert_eq!(found, expected.map(|(name, first_line, lines)| function(name, first_line, lines)));
    }
}
