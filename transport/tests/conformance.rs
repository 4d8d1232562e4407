//! `docs/conformance.md` names files and tests; they are there.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").to_owned()
}

/// Every Rust file of the crates that the table may point to.
fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of this repository") {
        let path = entry.expect("a folder of this repository").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *into += &fs::read_to_string(&path).expect("a source file is text");
        }
    }
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_file_and_test_of_the_table_is_there() {
    let table = fs::read_to_string(root().join("docs/conformance.md")).expect("the document is there");
    let mut code = String::new();
    for folder in ["transport/src", "transport/tests", "tests", "daemon", "client", "memory", "shared", "xdp"] {
        sources(&root().join(folder), &mut code);
    }
    let mut rows = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let cells: Vec<&str> = row.split('|').collect();
        let [_, _, _, files, tests, _] = cells[..] else { panic!("five bars: {row}") };
        for file in quoted(files) {
            assert!(root().join(file).is_file(), "{file} is gone: {row}");
        }
        assert!(
            tests.contains('`') || tests.contains("no test"),
            "neither a test nor the word that there is none: {row}"
        );
        for test in quoted(tests) {
            assert!(code.contains(&format!("fn {test}(")), "no test {test}: {row}");
        }
        rows += 1;
    }
    assert!(rows > 30, "the tables were not read");
}
