//! Files and tests that the tables of docs/conformance.md name.
//!
//! A row: `| clause | requirement | files | tests |`; a requirement without a test says so.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    compiled::Compiled,
    test_names::{END_TO_END, listed},
};

/// The document with the tables.
const DOCUMENT: &str = "docs/conformance.md";

/// Rows that name no file, a missing one, or a test that is none.
///
/// # Errors
///
/// A file cannot be read, or the document has few rows.
pub(crate) fn faulty_rows(workspace: &Path, compiled: &Compiled) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join(DOCUMENT)).context(DOCUMENT)?;
    let list = fs::read_to_string(workspace.join(END_TO_END).join("main.rs")).context(END_TO_END)?;
    let mut tests = compiled.tests();
    tests.extend(listed(&list).into_iter().map(|(_, name)| name));
    let rows: Vec<(usize, &str)> =
        text.lines().enumerate().filter(|(_, line)| line.starts_with("| ") && line.contains(".rs`")).collect();
    ensure!(rows.len() > 30, "{DOCUMENT} has few rows");
    let is_file = |path: &str| workspace.join(path).is_file();
    let faults = rows.into_iter().flat_map(|(at, row)| {
        faults(row, is_file, &tests).into_iter().map(move |fault| format!("{DOCUMENT}:{}: {fault}", at + 1))
    });
    Ok(faults.collect())
}

fn faults(row: &str, is_file: impl Fn(&str) -> bool, tests: &BTreeSet<&str>) -> Vec<String> {
    let cells: Vec<&str> = row.split('|').collect();
    let [_, _, _, files, named, _] = cells[..] else { return vec!["a row has four cells".into()] };
    let missing = quoted(files).filter(|file| !is_file(file)).map(|file| format!("there is no {file}"));
    let wrong = quoted(named).filter(|test| !tests.contains(test)).map(|test| format!("{test} is no test"));
    let silent =
        (!named.contains('`') && !named.contains("no test")).then(|| "neither a test nor \"no test\"".to_owned());
    missing.chain(wrong).chain(silent).collect()
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_files_and_tests() {
        let tests = BTreeSet::from(["a_test"]);
        let faults = |row| faults(row, |path| path == "a.rs", &tests);
        assert_eq!(faults("| 9.2 | text | `a.rs` | `a_test` |"), [""; 0]);
        assert_eq!(faults("| 9.2 | text | `a.rs` | no test |"), [""; 0]);
        assert_eq!(
            faults("| 9.2 | text | `a.rs`, `b.rs` | `a_function` |"),
            ["there is no b.rs", "a_function is no test"]
        );
        assert_eq!(faults("| 9.2 | text | `a.rs` | |"), ["neither a test nor \"no test\""]);
        assert_eq!(faults("| 9.2 | `a.rs` |"), ["a row has four cells"]);
    }
}
