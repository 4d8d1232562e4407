//! Journeys of ARCHITECTURE.md: numbered steps that name a file and the symbols to look for in it.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// Steps of the section "Journeys" that name no file, a missing file, or a symbol that is not in
/// the file named before it.
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
            let is_there = file.as_ref().is_some_and(|(_, text)| words(text).any(|word| word == name));
            if !is_there {
                problems.push(broken(format!("no {name} in {}", file.as_ref().map_or("any file", |(path, _)| path))));
            }
        }
    }
    if problems.is_empty() && symbols == 0 {
        problems.push(broken("a step names a file and a symbol".into()));
    }
    problems
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
    }
}
