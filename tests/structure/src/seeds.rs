//! Seeds that proptest keeps of failures: it reads a file only for the source file of that name.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::files::files_below;

/// The folder of seeds, beside the `src` of a crate.
const FOLDER: &str = "proptest-regressions";

/// Files of seeds that are never read.
///
/// # Errors
///
/// A folder cannot be read.
pub(crate) fn unread(workspace: &Path) -> Result<Vec<String>> {
    Ok(unread_of(&files_below(workspace)?))
}

fn unread_of(files: &BTreeSet<PathBuf>) -> Vec<String> {
    let sources = files.iter().filter_map(|file| Some((file, source_of(file)?)));
    let unread = sources.filter(|(_, source)| !files.contains(source));
    unread.map(|(file, source)| format!("{}: never read, there is no {}", file.display(), source.display())).collect()
}

/// The source file with the tests that failed.
fn source_of(file: &Path) -> Option<PathBuf> {
    let folder = file.ancestors().find(|folder| folder.ends_with(FOLDER))?;
    let within = file.strip_prefix(folder).ok()?;
    Some(folder.with_file_name("src").join(within).with_extension("rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_belong_to_a_source_file() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        let all = ["a/proptest-regressions/b/c.txt", "a/src/b/c.rs"];
        assert_eq!(unread_of(&files(&all)), [""; 0]);
        assert_eq!(
            unread_of(&files(&all[..1])),
            ["a/proptest-regressions/b/c.txt: never read, there is no a/src/b/c.rs"]
        );
    }
}
