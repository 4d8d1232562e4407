//! Tests that the rows of docs/threat-model.md name.
//!
//! The last cell of an attack's row names files, some with tests of theirs in parentheses:
//! `` `path/of/file.rs` (`name`, `another`) ``. A row names one test at least. A function that is
//! no test stands without parentheses: `` `path/of/file.rs`: `name` ``.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    compiled::Compiled,
    test_names::{END_TO_END, listed},
};

/// The document with the tables.
const DOCUMENT: &str = "docs/threat-model.md";

/// List of the attacks that run against a daemon.
const ATTACKS: &str = "tests/hostile/src/attacks.rs";

/// Rows of attack tables that name no test, or a test, file or symbol that does not exist.
///
/// # Errors
///
/// The document cannot be read or has no table of attacks.
pub(crate) fn untested_rows(workspace: &Path, compiled: &Compiled) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join(DOCUMENT)).context(DOCUMENT)?;
    let rows: Vec<(usize, &str)> = attack_rows(&text).collect();
    ensure!(!rows.is_empty(), "{DOCUMENT} has no table of attacks");
    let broken = rows.into_iter().filter_map(|(number, row)| {
        let problem = problem(workspace, compiled, row)?;
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
fn problem(workspace: &Path, compiled: &Compiled, row: &str) -> Option<String> {
    let cell = row.trim().trim_end_matches('|').rsplit(" | ").next().unwrap_or("");
    let read = |path| fs::read_to_string(workspace.join(path)).map_err(|_| format!("there is no file {path}"));
    let mut tests = 0;
    for (path, names) in
        named(cell, "` (`", ")").filter(|(path, _)| is_file_of(path, "rs") || is_file_of(path, "patch"))
    {
        let text = match read(path) {
            Ok(text) => text,
            Err(problem) => return Some(problem),
        };
        for name in names {
            if !is_test(workspace, compiled, path, &text, name) {
                return Some(format!("{name} of {path} is no test that runs"));
            }
            tests += 1;
        }
    }
    for (path, names) in named(cell, "`: `", ",") {
        let text = match read(path) {
            Ok(text) => text,
            Err(problem) => return Some(problem),
        };
        let is_missing = |name: &&&str| !["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")));
        if let Some(name) = names.iter().find(is_missing) {
            return Some(format!("{path} has no function {name}"));
        }
    }
    (tests == 0).then(|| "no test is named".to_owned())
}

/// Files of a cell that have names behind them, which begin with `start` and end with `end`, with
/// these names.
fn named<'a>(cell: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = (&'a str, Vec<&'a str>)> {
    cell.match_indices(start).filter_map(move |(at, _)| {
        let path = cell[..at].rsplit('`').next()?;
        let names = &cell[at + start.len() - 1..];
        let names = names.split_once(end).map_or(names, |(names, _)| names);
        Some((path, names.split('`').skip(1).step_by(2).collect()))
    })
}

/// Whether `name` of the file at `path` is a test that runs.
fn is_test(workspace: &Path, compiled: &Compiled, path: &str, text: &str, name: &str) -> bool {
    if path == ATTACKS {
        let lines = text.lines().map(str::trim).map(|line| line.strip_prefix("Attack { ").unwrap_or(line));
        lines.filter_map(|line| line.strip_prefix("name: \"")?.split_once("\",")).any(|(attack, _)| attack == name)
    } else if is_file_of(path, "patch") {
        let first = text.lines().next().unwrap_or("");
        first.split_once(": ").is_some_and(|(_, found_by)| found_by == name)
    } else if let Some(file) = path.strip_prefix(END_TO_END) {
        let list = fs::read_to_string(workspace.join(END_TO_END).join("main.rs")).unwrap_or_default();
        listed(&list).contains(&(file.trim_end_matches(".rs"), name))
    } else {
        compiled.has_test(path, name)
    }
}

fn is_file_of(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == extension)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crates::Member;

    #[test]
    fn rows_of_attack_tables_are_found() {
        let text = "| attack | where |\n|---|---|\n| a | b |\n\n| bits | time |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(attack_rows(text).collect::<Vec<_>>(), [(3, "| a | b |")]);
    }

    #[test]
    fn every_name_in_parentheses_is_a_test_that_exists() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(workspace.join("src/threats.rs")).expect("this file");
        let sources = [("src/lib.rs".into(), "mod threats;".to_owned()), ("src/threats.rs".into(), text)].into();
        let member = Member { folder: String::new(), manifest: toml::Table::new() };
        let compiled = Compiled::read(&sources, &[member]).expect("valid Rust");
        let problem = |cell: &str| problem(workspace, &compiled, &format!("| attack (`x`) | defense | {cell} |"));
        let own = "every_name_in_parentheses_is_a_test_that_exists";
        assert_eq!(problem(&format!("`src/other.rs`, `src/main.rs`: `main`, `src/threats.rs` (`{own}`)")), None);
        assert_eq!(problem("`src/threats.rs`: `problem`").as_deref(), Some("no test is named"));
        let no_test = |name| Some(format!("{name} of src/threats.rs is no test that runs"));
        assert_eq!(problem(&format!("`src/threats.rs` (`{own}`, `is_test`)")), no_test("is_test"));
        assert_eq!(problem("`src/threats.rs` (`gone`)"), no_test("gone"));
        assert_eq!(problem("`src/gone.rs` (`gone`)").as_deref(), Some("there is no file src/gone.rs"));
        let gone = format!("`src/threats.rs` (`{own}`), `src/main.rs`: `gone`");
        assert_eq!(problem(&gone).as_deref(), Some("src/main.rs has no function gone"));
    }
}
