//! Scripts, pages and settings that files other than documents name: workflows, scripts, sources.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::files::files_below;

/// Beginnings of paths that are those of files or folders.
const FOLDERS: [&str; 5] = [".ci/", ".github/", "config/", "docs/", "scripts/"];

/// Documents have rules of their own, mutants are changes of other files, and a test of these rules
/// names files that are not there.
const LEFT_OUT: [&str; 2] = ["md", "patch"];
const OWN: &str = "tests/structure";

/// A page of the packages: the change log is beside the other pages there.
const PACKAGED: &str = "docs/CHANGELOG.md";

/// Names of files and folders that do not exist.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn missing(workspace: &Path) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let mut broken = Vec::new();
    for file in &files {
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or("");
        if LEFT_OUT.contains(&extension) || file.starts_with(OWN) {
            continue;
        }
        let Ok(text) = String::from_utf8(fs::read(workspace.join(file))?) else { continue };
        let gone = gone(&text, &files);
        broken.extend(gone.into_iter().map(|(line, name)| format!("{}:{line}: there is no {name}", file.display())));
    }
    Ok(broken)
}

/// Names that are of no file or folder, each with its line.
fn gone<'a>(text: &'a str, files: &BTreeSet<PathBuf>) -> Vec<(usize, &'a str)> {
    let exists = |name: &str| {
        let path = Path::new(name);
        files.range(path.to_owned()..).next().is_some_and(|file| file.starts_with(path))
    };
    let names = text.lines().enumerate().flat_map(|(at, line)| names(line).map(move |name| (at + 1, name)));
    names.filter(|(_, name)| *name != PACKAGED && !exists(name)).collect()
}

fn names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && !"._-/".contains(letter));
    let words = words.map(|word| word.strip_prefix("./").unwrap_or(word).trim_end_matches('.'));
    words.filter(|word| FOLDERS.iter().any(|folder| word.len() > folder.len() && word.starts_with(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_gone_is_found_where_it_is_named() {
        let files = ["scripts/test", "docs/a/b.md", ".ci/run"].map(PathBuf::from).into();
        let text = "run: scripts/test --full\n- run: ./scripts/gone\n# See docs/a, docs/a/b.md. Or scripts/*, \
                    $root/scripts/x\n\"$root\"/.ci/run; .ci/ru\nprintln!(\"docs/c.md\"); docs/CHANGELOG.md";
        assert_eq!(gone(text, &files), [(2, "scripts/gone"), (4, ".ci/ru"), (5, "docs/c.md")]);
    }
}
