//! The reference of counters, docs/counters.md: it names each counter that there is, and no other.
//!
//! A cell of a table that is one name in backticks is a counter; names in other text are not looked
//! at. Names of counters are literals where they are counted, as for metrics.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{
    files::files_below,
    metrics::{GROUPS, literals},
};

/// The document.
const REFERENCE: &str = "docs/counters.md";

/// Sources of counters that are metrics under another name, each with the beginning of its counters.
const OTHERS: [(&str, &str); 2] = [("drop_", "transport/src/reject.rs"), ("xdp_", "shared/steering/src/lib.rs")];

/// Beginning of a line that declares counters.
const DECLARATION: &str = "named_counters! {";

/// Counters without a row, and rows without a counter.
///
/// # Errors
///
/// A file cannot be read, or names no counters.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let mut counters = BTreeSet::new();
    let mut broken = Vec::new();
    let sources = GROUPS.map(|(_, source)| ("", source)).into_iter().chain(OTHERS);
    for (start, source) in sources.clone() {
        let names: Vec<_> =
            literals(&read(Path::new(source))?).into_iter().filter(|it| it.starts_with(start)).collect();
        ensure!(!names.is_empty(), "{source} names no counters");
        counters.extend(names);
    }
    for file in files_below(workspace)? {
        let is_known = sources.clone().any(|(_, source)| file == Path::new(source));
        if file.extension().is_some_and(|it| it == "rs") && !is_known && declares(&read(&file)?) {
            broken.push(format!("{} declares counters, and {REFERENCE} is not compared with it", file.display()));
        }
    }
    broken.extend(against(&counters, &rows(&read(Path::new(REFERENCE))?)));
    Ok(broken)
}

fn declares(source: &str) -> bool {
    source.lines().any(|line| line.starts_with(DECLARATION))
}

/// Counters of the tables: cells that are a name in backticks.
fn rows(document: &str) -> Vec<String> {
    let cells = document.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
    let names = cells.filter_map(|cell| cell.trim().strip_prefix('`')?.strip_suffix('`'));
    let is_name =
        |name: &&str| name.chars().all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter));
    names.filter(is_name).map(str::to_owned).collect()
}

fn against(counters: &BTreeSet<String>, rows: &[String]) -> Vec<String> {
    let listed: BTreeSet<&String> = rows.iter().collect();
    let missing = counters.iter().filter(|counter| !listed.contains(counter));
    let missing = missing.map(|counter| format!("{REFERENCE} has no row for the counter {counter}"));
    let unknown = listed.iter().filter(|row| !counters.contains(**row));
    let unknown = unknown.map(|row| format!("{REFERENCE} has a row for {row}, which no source counts"));
    let twice = listed.iter().filter(|row| rows.iter().filter(|other| other == *row).count() > 1);
    missing.chain(unknown).chain(twice.map(|row| format!("{REFERENCE} has several rows for {row}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_a_name_alone_are_counters() {
        let document =
            "`a_b`\n| `c` | packets | as `d_e` |\n|---|\n| `device/NAME` | X |\n| REQ | `f_1` | `g`, `h` |\n";
        assert_eq!(rows(document), ["c", "f_1"]);
    }

    #[test]
    fn counters_and_rows_without_the_other_are_told() {
        let counters = ["one".to_owned(), "two".to_owned()].into();
        let rows = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(against(&counters, &rows(&["two", "one"])), [""; 0]);
        let broken = [
            "docs/counters.md has no row for the counter two",
            "docs/counters.md has a row for three, which no source counts",
            "docs/counters.md has several rows for one",
        ];
        assert_eq!(against(&counters, &rows(&["one", "three", "one"])), broken);
    }

    #[test]
    fn declarations_are_found_and_their_mentions_are_not() {
        assert!(declares("use a;\nnamed_counters! {\n    A, B {}\n}\n"));
        assert!(!declares("// named_counters! { A, B {} }\nmacro_rules! named_counters {}\n"));
    }
}
