//! Journeys of ARCHITECTURE.md: numbered steps that name a file and the symbols to look for in it.

use std::{ffi::OsStr, fs, path::Path};

use anyhow::{Context, Result, ensure};

/// Words before the name of an item that they define.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// Steps of the section "Journeys" that name no file, a missing file, or a symbol that the file named
/// before it does not define.
///
/// # Errors
///
/// ARCHITECTURE.md cannot be read or has no such section.
pub(crate) fn broken_steps(workspace: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let section = text.split("\n## ").find_map(|section| section.strip_prefix("Journeys\n"));
    let section = section.context("ARCHITECTURE.md has no section \"Journeys\"")?;
    let steps: Vec<&str> =
        section.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).collect();
    ensure!(!steps.is_empty(), "no journey in ARCHITECTURE.md has a step");
    Ok(steps.into_iter().flat_map(|step| problems(workspace, step)).collect())
}

/// Problems of one step: `N. `path` `symbol` ..., `path` `symbol` ...: text`.
fn problems(workspace: &Path, step: &str) -> Vec<String> {
    let broken = |problem: String| format!("ARCHITECTURE.md: {problem}: {step}");
    let (names, _) = step.split_once("`:").unwrap_or((step, ""));
    let mut file: Option<(&str, String)> = None;
    let mut problems = Vec::new();
    let mut symbols = 0;
    for name in names.split('`').skip(1).step_by(2) {
        if name.contains('/') {
            match fs::read_to_string(workspace.join(name)) {
                Ok(text) => file = Some((name, text)),
                Err(error) => problems.push(broken(format!("{name}: {error}"))),
            }
        } else {
            symbols += 1;
            if !file.as_ref().is_some_and(|(path, text)| defines(path, text, name)) {
                let path = file.as_ref().map_or("no file", |(path, _)| path);
                problems.push(broken(format!("{path} does not define {name}")));
            }
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
        let problems = |step| problems(workspace, step).len();
        assert_eq!(problems("1. `src/journeys.rs` `broken_steps`, `src/main.rs` `main`: text with `another` name"), 0);
        assert_eq!(problems("1. `src/main.rs` `no_such_symbol`: text"), 1);
        assert_eq!(problems("1. `src/missing.rs` `main`: text"), 2);
        assert_eq!(problems("1. `src/main.rs`: text"), 1);
        assert_eq!(problems("1. `src/main.rs` `broken_steps`: a call is no definition"), 1);
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
