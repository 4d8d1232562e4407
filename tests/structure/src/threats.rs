//! Tests that the rows of docs/threat-model.md name.
//!
//! The last cell of an attack's row names files, each with names of it in parentheses:
//! `` `path/of/file.rs` (`name`, `another`) ``. At least one name of a row is that of a test.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::test_names::{END_TO_END, listed, with_attribute};

/// The document with the tables.
const DOCUMENT: &str = "docs/threat-model.md";

/// List of the attacks that run against a daemon.
const ATTACKS: &str = "tests/hostile/src/attacks.rs";

/// Kind of a name that a row gives in parentheses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Named {
    Test,
    Symbol,
    Missing,
}

/// Rows of attack tables that name no test, or a test, file or symbol that does not exist.
///
/// # Errors
///
/// The document cannot be read or has no table of attacks.
pub(crate) fn untested_rows(workspace: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join(DOCUMENT)).context(DOCUMENT)?;
    let rows: Vec<(usize, &str)> = attack_rows(&text).collect();
    ensure!(!rows.is_empty(), "{DOCUMENT} has no table of attacks");
    let broken = rows.into_iter().filter_map(|(number, row)| {
        let problem = problem(workspace, row)?;
        let attack: String = row.chars().skip(2).take(60).collect();
        Some(format!("{DOCUMENT}:{number}: {problem}: {attack}"))
    });
    Ok(broken.collect())
}

/// Rows, each with its line number, of the tables with a first column "attack".
fn attack_rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_attacks = false;
    let numbered = text.lines().enumerate();
    numbered.filter_map(move |(at, line)| {
        if !line.starts_with('|') {
            is_attacks = false;
            return None;
        }
        if line.starts_with("| attack ") {
            is_attacks = true;
            return None;
        }
        (is_attacks && !line.starts_with("|---")).then_some((at + 1, line))
    })
}

/// The first fault of a row's last cell.
fn problem(workspace: &Path, row: &str) -> Option<String> {
    let cell = row.trim().trim_end_matches('|').rsplit(" | ").next().unwrap_or("");
    let mut tests = 0;
    for (path, names) in named(cell).filter(|(path, _)| is_file_of(path, "rs") || is_file_of(path, "patch")) {
        let Ok(text) = fs::read_to_string(workspace.join(path)) else {
            return Some(format!("there is no file {path}"));
        };
        for name in names {
            match kind(workspace, path, &text, name) {
                Named::Test => tests += 1,
                Named::Symbol => {}
                Named::Missing => return Some(format!("{path} has no {name}")),
            }
        }
    }
    (tests == 0).then(|| "no test is named".to_owned())
}

/// Files of a cell that have names in parentheses behind them, with these names.
fn named(cell: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    cell.match_indices("` (`").filter_map(|(at, _)| {
        let path = cell[..at].rsplit('`').next()?;
        let (names, _) = cell[at + 3..].split_once(')')?;
        Some((path, names.split('`').skip(1).step_by(2).collect()))
    })
}

/// Kind of `name` in the file at `path`.
fn kind(workspace: &Path, path: &str, text: &str, name: &str) -> Named {
    let is_test = if path == ATTACKS {
        text.contains(&format!("name: \"{name}\""))
    } else if is_file_of(path, "patch") {
        let first = text.lines().next().unwrap_or("");
        first.split_once(": ").is_some_and(|(_, found_by)| found_by == name)
    } else if let Some(file) = path.strip_prefix(END_TO_END) {
        let list = fs::read_to_string(workspace.join(END_TO_END).join("main.rs")).unwrap_or_default();
        listed(&list).contains(&(file.trim_end_matches(".rs"), name))
    } else {
        with_attribute(text).contains(name)
    };
    if is_test {
        Named::Test
    } else if text.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}<")) {
        Named::Symbol
    } else {
        Named::Missing
    }
}

fn is_file_of(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_attack_tables_are_found() {
        let text = "| attack | where |\n|---|---|\n| a | b |\n\n| bits | time |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(attack_rows(text).collect::<Vec<_>>(), [(3, "| a | b |")]);
    }

    #[test]
    fn a_row_names_a_test_that_exists() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        let problem = |cell: &str| problem(workspace, &format!("| attack (`x`) | defense | {cell} |"));
        assert_eq!(problem("`src/other.rs`, `src/threats.rs` (`kind`, `a_row_names_a_test_that_exists`)"), None);
        for cell in ["`src/threats.rs`", "`src/threats.rs` (`kind`)"] {
            assert_eq!(problem(cell).as_deref(), Some("no test is named"));
        }
        assert_eq!(problem("`src/threats.rs` (`gone`)").as_deref(), Some("src/threats.rs has no gone"));
        assert_eq!(problem("`src/gone.rs` (`gone`)").as_deref(), Some("there is no file src/gone.rs"));
    }
}
