//! The map of folders in ARCHITECTURE.md, compared with the files in both directions.
//!
//! ```text
//!   transport/  PROTOCOL     text                    a folder of the workspace
//!     src/wire/ opcode.rs (table) bth.rs             one below it, with its files
//!               deth.rs                              more of the line above
//!     src/mr.rs psn.rs       text                    files of the folder of the first, src/
//!   perf/       TOOL         text                    without file names: covers all of its files
//! ```
//!
//! A file belongs to the longest of these folders. Every source file is named there, unless no file
//! is; every file that is named there is one of that folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

use crate::files::files_below;

/// Files that every crate or module has.
const UNNAMED: [&str; 4] = ["lib.rs", "main.rs", "mod.rs", "tests.rs"];

/// Extensions of source files.
const SOURCES: [&str; 2] = [".rs", ".c"];

/// Folders with files or folders that the map names one by one, without an extension.
const LISTED: [&str; 3] = ["config", "scripts", "tests"];

/// Text of the map by folder, such as `transport/src/wire`.
type FolderMap = BTreeMap<String, String>;

/// Files and folders that the map does not name, and names without a file or folder.
///
/// # Errors
///
/// ARCHITECTURE.md cannot be read or has no such map.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let section = text.split_once("\n## Folders\n").context("ARCHITECTURE.md has no section \"Folders\"")?.1;
    let map = read_map(section.split("```").nth(1).context("the section \"Folders\" has no block")?);
    ensure!(map.len() > 10, "the map of ARCHITECTURE.md has few folders");
    let files: BTreeSet<String> =
        files_below(workspace)?.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    let broken = [unmapped_folders(&map, &files), wrong_files(&map, &files), wrong_lists(&map, &files)];
    Ok(broken.into_iter().flatten().map(|problem| format!("ARCHITECTURE.md, folders: {problem}")).collect())
}

fn read_map(block: &str) -> FolderMap {
    let mut map = FolderMap::new();
    let (mut top, mut folder) = (String::new(), None);
    for line in block.lines().filter(|line| !line.is_empty()) {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let first = line.split_whitespace().next().unwrap_or("");
        match (indent, first.strip_suffix('/')) {
            (0, Some(name)) => {
                name.clone_into(&mut top);
                folder = Some(top.clone());
            }
            (0, None) => folder = None,
            (2, Some(name)) => folder = Some(format!("{top}/{name}")),
            (2, None) => {
                folder = Some(first.rsplit_once('/').map_or(top.clone(), |(parent, _)| format!("{top}/{parent}")))
            }
            _ => {}
        }
        if let Some(folder) = &folder {
            let text = map.entry(folder.clone()).or_default();
            text.push_str(line);
            text.push('\n');
        }
    }
    map
}

/// Words of a text, with the punctuation of names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"._-/".contains(letter));
    parts.map(|word| word.trim_end_matches('.')).filter(|word| !word.is_empty())
}

fn is_source(path: &str) -> bool {
    SOURCES.iter().any(|extension| path.ends_with(extension))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `path` is `name`, or ends with it after a slash.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// The longest folder of the map that has the file.
fn folder_of<'a>(map: &'a FolderMap, file: &str) -> Option<&'a str> {
    let mut folder = file;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        if let Some((found, _)) = map.get_key_value(parent) {
            return Some(found);
        }
        folder = parent;
    }
    None
}

fn unmapped_folders(map: &FolderMap, files: &BTreeSet<String>) -> Vec<String> {
    let folders: BTreeSet<&str> = files.iter().filter_map(|file| Some(file.split_once('/')?.0)).collect();
    let missing = folders.into_iter().filter(|folder| !folder.starts_with('.') && !map.contains_key(*folder));
    missing.map(|folder| format!("{folder}/ has no line")).collect()
}

/// Source files that are not named, and named files and folders that do not exist.
fn wrong_files(map: &FolderMap, files: &BTreeSet<String>) -> Vec<String> {
    let mut of_folder: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        if let Some(folder) = folder_of(map, file) {
            of_folder.entry(folder).or_default().push(file);
        }
    }
    let mut wrong = Vec::new();
    for (folder, text) in map {
        let own = of_folder.remove(folder.as_str()).unwrap_or_default();
        let names: Vec<&str> = words(text).filter(|word| is_source(word)).collect();
        let missing = names.iter().filter(|name| !own.iter().any(|file| is_named(file, name)));
        wrong.extend(missing.map(|name| format!("the line of {folder}/ names {name}, which is none of its files")));
        let is_folder =
            |name: &str| files.iter().any(|file| file.starts_with(name) || file.contains(&format!("/{name}")));
        let folders = words(text).filter(|word| word.ends_with('/') && word.trim_end_matches('/') != folder);
        wrong.extend(folders.filter(|name| !is_folder(name)).map(|name| format!("{folder}/: there is no {name}")));
        if !names.is_empty() {
            wrong.extend(unnamed(&own, &names).map(|file| format!("the line of {folder}/ does not name {file}")));
        }
    }
    wrong
}

/// Source files of `own` that have no name in `names`; each name counts for one of several files
/// with it.
fn unnamed<'a>(own: &[&'a str], names: &[&str]) -> impl Iterator<Item = &'a str> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *named.entry(file_name(name)).or_default() += 1;
    }
    let sources = own.iter().copied().filter(|file| file.contains("/src/") && is_source(file));
    let mut unnamed = Vec::new();
    for file in sources.filter(|file| !UNNAMED.contains(&file_name(file))) {
        match named.get_mut(file_name(file)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => unnamed.push(file),
        }
    }
    unnamed.into_iter()
}

/// Children of [`LISTED`] folders without a name, and names of scripts without a file.
fn wrong_lists(map: &FolderMap, files: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for folder in LISTED {
        let Some(text) = map.get(folder) else { continue };
        let named: BTreeSet<&str> = words(text).map(|word| word.trim_end_matches('/')).collect();
        let below = files.iter().filter_map(|file| file.strip_prefix(folder)?.strip_prefix('/'));
        let children: BTreeSet<&str> = below.filter_map(|file| file.split('/').next()).collect();
        wrong.extend(children.difference(&named).map(|name| format!("the line of {folder}/ does not name {name}")));
        if folder == "scripts" {
            let gone = named.difference(&children).filter(|name| **name != folder);
            wrong.extend(gone.map(|name| format!("there is no {folder}/{name}")));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "
README.md
top/         TITLE                  text
  src/       a.rs (first) b.rs
             c.rs
  src/d/     text about everything
  src/e.rs   sub/: b.rs
scripts/     run
";

    fn files(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn lines_belong_to_folders() {
        let map = read_map(MAP);
        assert_eq!(map.keys().collect::<Vec<_>>(), ["scripts", "top", "top/src", "top/src/d"]);
        assert!(map["top/src"].contains("c.rs") && map["top/src"].contains("e.rs"));
    }

    #[test]
    fn a_complete_map_has_no_problem() {
        let map = read_map(MAP);
        let paths = ["a.rs", "b.rs", "c.rs", "d/any.rs", "d/mod.rs", "e.rs", "lib.rs", "sub/b.rs"];
        let files: BTreeSet<String> = paths.iter().map(|path| format!("top/src/{path}")).collect();
        assert_eq!(wrong_files(&map, &files), [""; 0]);
        assert_eq!(unmapped_folders(&map, &files), [""; 0]);
    }

    #[test]
    fn files_without_a_name_and_names_without_a_file_are_found() {
        let map = read_map(MAP);
        let files =
            files(&["top/src/a.rs", "top/src/b.rs", "top/src/d/c.rs", "top/src/e.rs", "top/src/f.rs", "new/src/a.rs"]);
        let problems = [
            "the line of top/src/ names c.rs, which is none of its files",
            "top/src/: there is no sub/",
            "the line of top/src/ does not name top/src/f.rs",
        ];
        assert_eq!(wrong_files(&map, &files), problems);
        assert_eq!(unmapped_folders(&map, &files), ["new/ has no line"]);
    }

    #[test]
    fn one_name_stands_for_one_of_two_files() {
        let own = ["x/src/a.rs", "x/src/sub/a.rs", "x/tests/b.rs"];
        assert_eq!(unnamed(&own, &["a.rs"]).collect::<Vec<_>>(), ["x/src/sub/a.rs"]);
        assert_eq!(unnamed(&own, &["a.rs", "sub/a.rs"]).count(), 0);
    }

    #[test]
    fn scripts_are_named_one_by_one() {
        let map = read_map(MAP);
        assert_eq!(wrong_lists(&map, &files(&["scripts/run"])), [""; 0]);
        let problems = ["the line of scripts/ does not name test", "there is no scripts/run"];
        assert_eq!(wrong_lists(&map, &files(&["scripts/test"])), problems);
    }
}
