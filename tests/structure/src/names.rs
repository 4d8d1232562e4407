//! Names: types that share one, functions with names that the prose rules forbid.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Item, Macro, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::{
    files::{Sources, files_below},
    imports::is_test_only,
    prose::{CLAUSE, PEOPLE},
    source::Crate,
};

/// Names that their module makes clear, and pairs that are one idea on two sides of an interface,
/// each with the number of its types: one more needs a reason.
const IDIOMATIC: [(&str, usize); 20] = [
    ("Ah", 2),               // the struct of the verbs header, and the object that has it
    ("Command", 2),          // of a command line, and of the control thread to a worker
    ("Context", 3),          // of a queue pair's roles, the struct of the verbs header, and the verbs object
    ("Cq", 2),               // as of Ah
    ("Device", 3),           // the client's, the struct of the verbs header, and the verbs object
    ("DeviceAttributes", 2), // in a control message, and the client's
    ("GidEntry", 3),         // as above, and the struct of the verbs header
    ("PortAttributes", 2),   // as DeviceAttributes
    ("Inbox", 2),            // the one of commands is an alias
    ("Mailbox", 2),          // as above
    ("Mr", 3),               // the transport's, the struct of the verbs header, and the verbs object
    ("Mw", 2),               // as of Ah
    ("Pd", 2),               // as of Ah
    ("Qp", 3),               // as of Mr
    ("Sge", 2),              // an entry of work, and the struct of the verbs header
    ("Srq", 3),              // as of Mr
    ("Td", 2),               // as of Ah
    ("Result", 2),           // of a crate
    ("RoceVersion", 2),      // the kernel's view and the client's
    ("ServiceType", 2),      // the transport's and the client's
];

/// Macros that define types: names outside of groups, such as `Name { ... }` and `Name, "text"`.
const DEFINING: [&str; 6] = ["bodies", "c_struct", "calls", "choices", "named_counters", "number"];

/// Words before the name of a type.
const TYPES: [&str; 4] = ["enum", "struct", "trait", "union"];

/// Types of one name in several places, with these places. `sources` has the build scripts.
///
/// # Errors
///
/// A build script is not valid Rust.
pub(crate) fn repeated_types<'a>(crates: impl Iterator<Item = &'a Crate>, sources: &Sources) -> Result<Vec<String>> {
    repeated(crates, sources, &IDIOMATIC)
}

fn repeated<'a>(
    crates: impl Iterator<Item = &'a Crate>,
    sources: &Sources,
    accepted: &[(&str, usize)],
) -> Result<Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut broken = Vec::new();
    for source in crates {
        let script = format!("{}/build.rs", source.folder);
        let parsed = sources.get(Path::new(&script)).map(|text| syn::parse_file(text)).transpose();
        let parsed = parsed.with_context(|| script.clone())?;
        let files =
            source.files.iter().map(|file| (format!("{}/src/{}", source.folder, file.path.display()), &file.syntax));
        for (place, syntax) in files.chain(parsed.iter().map(|syntax| (script.clone(), syntax))) {
            let mut types = Types::default();
            types.visit_file(syntax);
            let unknown = types.macros.into_iter().filter(|name| !DEFINING.contains(&name.as_str()));
            let list = "DEFINING of tests/structure/src/names.rs";
            broken.extend(unknown.map(|name| format!("{place}: {name}! defines types, and is not in {list}")));
            for name in types.names {
                places.entry(name).or_default().push(place.clone());
            }
        }
    }
    let accepted_of = |name: &str| accepted.iter().find(|(it, _)| *it == name).map_or(1, |(_, count)| *count);
    for (name, at) in &places {
        let (count, most) = (at.len(), accepted_of(name));
        if count > most {
            broken.push(format!("{name} names {count} types, {most} may: {}", at.join(", ")));
        }
    }
    let count = |name: &str| places.get(name).map_or(0, Vec::len);
    let fewer = accepted.iter().filter(|(name, most)| count(name) < *most);
    broken.extend(fewer.map(|(name, most)| format!("{name} names {} types, and {most} are accepted", count(name))));
    Ok(broken)
}

/// Functions with a word for persons or a free relative in their name, tests included.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn functions_with_banned_words(workspace: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files_below(workspace)?.iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let text = fs::read_to_string(workspace.join(file))?;
        found.extend(banned_functions(&text).map(|name| format!("{}: the name of fn {name}", file.display())));
    }
    Ok(found)
}

fn banned_functions(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("fn ").map(|(at, word)| &text[at + word.len()..]);
    let names = starts.filter_map(|rest| rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next());
    names.filter(|name| name.split('_').any(|word| PEOPLE.contains(&word) || CLAUSE.contains(&word)))
}

/// The types that a file defines, those of inline modules, functions and macros included, but for
/// those that only tests have.
#[derive(Default)]
struct Types {
    names: Vec<String>,
    /// Macros of the file that define types of other names.
    macros: Vec<String>,
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(it) => self.names.push(it.ident.to_string()),
            Item::Enum(it) => self.names.push(it.ident.to_string()),
            Item::Union(it) => self.names.push(it.ident.to_string()),
            Item::Trait(it) => self.names.push(it.ident.to_string()),
            Item::Type(it) => self.names.push(it.ident.to_string()),
            Item::Use(it) if !matches!(it.vis, Visibility::Inherited) => self.add_renamed(&it.tree),
            Item::Mod(it) if it.attrs.iter().any(is_test_only) => return,
            Item::Fn(it) if it.attrs.iter().any(|attribute| attribute.path().is_ident("test")) => return,
            Item::Macro(it) => {
                let text = it.mac.tokens.to_string();
                let words: Vec<&str> = text.split_whitespace().collect();
                let is_defining = |pair: &[&str]| TYPES.contains(&pair[0]) && pair[1].starts_with('$');
                if words.windows(2).any(is_defining) {
                    self.macros.extend(it.ident.iter().map(ToString::to_string));
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last().map(|name| name.ident.to_string());
        if name.is_some_and(|name| DEFINING.contains(&name.as_str())) {
            self.names.extend(types_of_macro(called.tokens.clone()));
        }
        self.add_tokens(called.tokens.clone());
    }
}

impl Types {
    /// Types that a `pub use` gives another name.
    fn add_renamed(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.add_renamed(&path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_renamed(item)),
            UseTree::Rename(rename) => {
                let name = rename.rename.to_string();
                let is_type =
                    name.starts_with(char::is_uppercase) && (name.len() == 1 || name.contains(char::is_lowercase));
                self.names.extend(is_type.then_some(name));
            }
            UseTree::Name(_) | UseTree::Glob(_) => {}
        }
    }

    /// Types in the tokens of a macro: `struct Name`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match (token, tokens.get(at + 1)) {
                (TokenTree::Group(group), _) => self.add_tokens(group.stream()),
                (TokenTree::Ident(kind), Some(TokenTree::Ident(name))) if TYPES.contains(&&*kind.to_string()) => {
                    self.names.push(name.to_string());
                }
                _ => {}
            }
        }
    }
}

/// The types that a macro of [`DEFINING`] defines: names that are no types of something.
fn types_of_macro(tokens: TokenStream) -> Vec<String> {
    let mut names = Vec::new();
    let mut before = None;
    for token in tokens {
        if let TokenTree::Ident(name) = &token {
            let name = name.to_string();
            let is_type = name.starts_with(char::is_uppercase) && !name.contains('_');
            if is_type && !matches!(before, Some('<' | '>' | ':')) {
                names.push(name);
            }
        }
        before = if let TokenTree::Punct(mark) = token { Some(mark.as_char()) } else { None };
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFile;

    #[test]
    fn words_of_function_names_count() {
        // In two pieces, so that this file passes.
        let text = concat!("fn somewhat_good() {} fn ", "nobody_waits() {} // fn of what\nfn sends() {}");
        assert_eq!(banned_functions(text).collect::<Vec<_>>(), [concat!("nobody", "_waits")]);
    }

    fn types(text: &str) -> Types {
        let mut types = Types::default();
        types.visit_file(&syn::parse_file(text).expect("valid Rust"));
        types
    }

    #[test]
    fn an_accepted_name_has_its_number_of_types() {
        let source = |text: &str| {
            let files = vec![SourceFile::new("lib.rs".as_ref(), true, syn::parse_str(text).expect("valid"))];
            Crate { folder: "a".into(), name: "a".into(), files }
        };
        let crates =
            [source("struct Pd; struct Own; struct Two; struct Gone;"), source("struct Pd; mod x { struct Two; }")];
        let repeated = |count: usize, sources: &Sources, accepted: &[(&str, usize)]| {
            repeated(crates.iter().take(count), sources, accepted).expect("valid")
        };
        let none = Sources::new();
        assert_eq!(repeated(1, &none, &[]), [""; 0]);
        let scripts = [("a/build.rs".into(), "struct Own;".to_owned()), ("b/build.rs".into(), "struct Pd;".to_owned())];
        assert_eq!(repeated(1, &scripts.into(), &[]), ["Own names 2 types, 1 may: a/src/lib.rs, a/build.rs"]);
        let broken = [
            "Pd names 2 types, 1 may: a/src/lib.rs, a/src/lib.rs",
            "Gone names 1 types, and 2 are accepted",
            "Td names 0 types, and 2 are accepted",
        ];
        assert_eq!(repeated(2, &none, &[("Two", 2), ("Gone", 2), ("Td", 2)]), broken);
    }

    #[test]
    fn types_of_functions_and_macros_count() {
        let text =
            "fn f() { struct A; if x { enum B {} } } impl X { fn g() { trait C {} } } #[test] fn t() { struct D; }
            thread_local! { struct E { a: u8 } } fn h() { m! { { union F { } } } }
            calls! { 1 G(Request) -> Reply; SYS_x; } number!(/** text */ H, \"h{}\"); named_counters! { I, J { K \"k\" } }
            c_struct! { L = \"l\" { field: Type, } }";
        assert_eq!(types(text).names, ["A", "B", "C", "E", "F", "G", "H", "I", "J", "L"]);
        let text =
            "macro_rules! bodies { ($name:ident) => { pub struct $name; } } macro_rules! m { () => { struct M; } }
            macro_rules! other { ($name:ident) => { const _: () = { enum $name {} }; } }";
        let found = types(text);
        assert_eq!((found.names, found.macros), (vec!["M".to_owned()], vec!["bodies".into(), "other".into()]));
    }

    #[test]
    fn names_that_a_public_import_gives_count() {
        let text = "pub use a::{b::B as C, D, e as f, X as _, G as MOST}; pub(crate) use H as I; use J as K;";
        assert_eq!(types(text).names, ["C", "I"]);
    }

    #[test]
    fn types_of_inline_modules_count_and_those_of_tests_do_not() {
        let text = "struct A; mod b { enum C {} } #[cfg(test)] mod tests { struct D; } mod tests { struct I; } impl E for A { type Err = (); } type F = A;
            choices! { G { First = \"first\", } H { Second = \"second\", } } other! { J {} }
            crate::config::choices! { K { First = \"first\", } }";
        assert_eq!(types(text).names, ["A", "C", "I", "F", "G", "H", "K"]);
    }
}
