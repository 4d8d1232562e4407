//! Journeys of ARCHITECTURE.md: numbered steps that name a file and the symbols to look for in it.
//!
//! A step goes on in lines with an indentation. Symbols behind a path are definitions of that file;
//! others in the text are definitions of any.

use std::{ffi::OsStr, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::definitions::{Definitions, ITEMS, paths, section};

/// Steps of the section "Journeys" that name no file, a missing file, or a symbol that the file
/// named before it does not define.
///
/// # Errors
///
/// ARCHITECTURE.md cannot be read or has no such section.
pub(crate) fn broken_steps(workspace: &Path, definitions: &Definitions) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let steps = steps(section(&text, "Journeys")?);
    ensure!(!steps.is_empty(), "no journey in ARCHITECTURE.md has a step");
    Ok(steps.iter().flat_map(|step| problems(workspace, definitions, step)).collect())
}

/// Numbered steps, each in one line.
fn steps(section: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    let mut is_within = false;
    for line in section.lines() {
        let is_first = line.starts_with(|first: char| first.is_ascii_digit());
        is_within = is_first || is_within && line.starts_with(' ');
        match steps.last_mut() {
            Some(step) if is_within && !is_first => *step += &format!(" {}", line.trim()),
            _ if is_first => steps.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// Problems of one step: `N. `path` `symbol` ..., `path` `symbol` ...: text`.
fn problems(workspace: &Path, definitions: &Definitions, step: &str) -> Vec<String> {
    let broken = |problem: String| format!("ARCHITECTURE.md: {problem}: {step}");
    let mut file: Option<(&str, String)> = None;
    let mut problems = Vec::new();
    let mut symbols = 0;
    // Whether the last name was a path, or a symbol of one; whether it is before the first colon.
    let (mut is_bound, mut is_head) = (false, true);
    let pieces: Vec<&str> = step.split('`').collect();
    for pair in pieces.chunks_exact(2) {
        let [before, name] = pair else { continue };
        is_head &= !before.starts_with(':');
        is_bound = is_head || is_bound && before.trim().is_empty();
        let is_mentioned = !is_head && before.ends_with('(');
        if name.contains('/') && !is_mentioned {
            match fs::read_to_string(workspace.join(name)) {
                Ok(text) => file = Some((name, text)),
                Err(error) => problems.push(broken(format!("{name}: {error}"))),
            }
            is_bound = true;
        } else if is_bound {
            symbols += 1;
            if !file.as_ref().is_some_and(|(path, text)| defines(path, text, name)) {
                let path = file.as_ref().map_or("no file", |(path, _)| path);
                problems.push(broken(format!("{path} does not define {name}")));
            }
        } else {
            let undefined = paths(name).into_iter().filter(|path| !definitions.has(path));
            problems.extend(undefined.map(|path| broken(format!("nothing defines {}", path.join("::")))));
        }
    }
    if problems.is_empty() && symbols == 0 {
        problems.push(broken("a step names a file and a symbol".into()));
    }
    problems
}

/// Whether a source file defines an item `name`, or a config has a key of that name.
fn defines(path: &str, text: &str, name: &str) -> bool {
    let extension = Path::new(path).extension().and_then(OsStr::to_str).unwrap_or("");
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    match extension {
        "rs" => lines.any(|line| {
            let words: Vec<&str> = words(line).filter(|word| !word.is_empty()).collect();
            words.windows(2).any(|pair| ITEMS.contains(&pair[0]) && pair[1] == name)
        }),
        // The head of a function begins its line and has no semicolon.
        "c" => lines.any(|line| {
            let is_head = line.starts_with(char::is_alphabetic) && !line.ends_with(';');
            is_head && line.split_once('(').is_some_and(|(head, _)| words(head).last() == Some(name))
        }),
        "toml" => lines.any(|line| {
            line.trim_start_matches('#').strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='))
        }),
        _ => false,
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_names_a_symbol_of_an_existing_file() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        let definitions = Definitions::default();
        let problems = |step| problems(workspace, &definitions, step).len();
        assert_eq!(problems("1. `src/journeys.rs` `broken_steps`, `src/main.rs` `main`: text with `a.rs` name"), 0);
        assert_eq!(problems("1. `src/main.rs` `no_such_symbol`: text"), 1);
        assert_eq!(problems("1. `src/missing.rs` `main`: text"), 2);
        assert_eq!(problems("1. `src/main.rs`: text"), 1);
        assert_eq!(problems("1. `src/main.rs` `broken_steps`: a call is no definition"), 1);
    }

    #[test]
    fn names_behind_the_first_colon_are_checked() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        let definitions = Definitions::default();
        let problems =
            |text: &str| problems(workspace, &definitions, &format!("1. `src/main.rs` `main`: {text}")).len();
        assert_eq!(
            problems("text; after it `src/journeys.rs` `problems` `steps`: text (`src/gone.rs`) `[[worker]]`"),
            0
        );
        assert_eq!(problems("text; after it `src/journeys.rs` `no_such_symbol`: text"), 1);
        assert_eq!(problems("text; after it `src/gone.rs`"), 1);
        assert_eq!(problems("text of `no_such_symbol`"), 1);
    }

    #[test]
    fn a_step_goes_on_in_lines_with_an_indentation() {
        let section = "### A\n1. `a`: b\n   `c`\n\n  d\n2. e\nf\n  g\n";
        assert_eq!(steps(section), ["1. `a`: b `c`", "2. e"]);
    }

    #[test]
    fn definitions_are_told_from_uses() {
        let rust =
            "// fn comment()\npub const fn made(x: u8) { used(x); }\nmacro_rules! choices { () => {} }\nenum Kind {}\n";
        let is_defined = |names: [&str; 3]| names.map(|name| defines("a.rs", rust, name));
        assert_eq!(is_defined(["made", "choices", "Kind"]), [true; 3]);
        assert_eq!(is_defined(["used", "comment", "x"]), [false; 3]);
        let c = "int declared(void);\nSEC(\"xdp\")\nint program(struct xdp_md *ctx)\n{\n\tused(ctx);\n}\n";
        let is_defined = ["program", "declared", "used", "ctx"].map(|name| defines("a.c", c, name));
        assert_eq!(is_defined, [true, false, false, false]);
        let toml = "# said of other_key = 1\n#optional = 2\nkey = 3\n";
        assert_eq!(
            ["key", "optional", "other_key", "ke"].map(|name| defines("a.toml", toml, name)),
            [true, true, false, false]
        );
    }
}
