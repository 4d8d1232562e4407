//! The map of folders in ARCHITECTURE.md, compared with the files in both directions.
//!
//! ```text
//!   transport/  PROTOCOL     text               a folder of the workspace
//!     src/wire/ opcode.rs (table) bth.rs        one below it, with its files
//!               deth.rs sub/: a.rs b.rs; c.rs   more of the line above
//!     src/mr.rs psn.rs       text               files of the folder of the first, src/
//! ```
//!
//! `sub/:` begins the files of a folder; it ends with `;`, the parentheses around it, or the line.
//! A name is a path in the folder of its line, or in `src` of that. A file belongs to the longest
//! of these folders. Every source file of `src` is named there, and beside `src` every file of the
//! crate's own folder and every folder with source files; every name is that of a file or folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

use crate::files::files_below;

/// Files that every crate or module has. Below a folder that the map does not name, the folder
/// needs a name.
const UNNAMED: [&str; 3] = ["lib.rs", "main.rs", "tests.rs"];

/// Extensions of source files.
const SOURCES: [&str; 9] = [".rs", ".c", ".h", ".inc", ".S", ".s", ".cc", ".cpp", ".hpp"];

/// Folders without names of their files: programs of examples, each complete, and crates of tests,
/// of which the map names each.
const NAMELESS: [&str; 3] = ["client/examples", "tests", "verbs/examples"];

/// Folders with files or folders that the map names one by one, without an extension.
const LISTED: [&str; 3] = ["config", "scripts", "tests"];

/// Workflows, which the map names without their folder.
const WORKFLOWS: &str = ".github/workflows/";

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
    let block = section.split("```").nth(1).context("the section \"Folders\" has no block")?;
    let map = read_map(block);
    ensure!(map.len() > 10, "the map of ARCHITECTURE.md has few folders");
    let files: BTreeSet<String> =
        files_below(workspace)?.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    let broken = [
        unmapped_folders(&map, &files),
        wrong_files(&map, &files),
        wrong_lists(&map, &files),
        wrong_roots(block, &files),
        old_modules(&files),
    ];
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
            // The first word is the folder, or a file of it.
            let own = first.rsplit_once('/').filter(|_| indent < 4).map_or("", |(parent, _)| parent);
            let text = map.entry(folder.clone()).or_default();
            text.push_str(line.trim_start().strip_prefix(own).unwrap_or(line).trim_start_matches('/'));
            text.push('\n');
        }
    }
    map
}

/// Words of a text, with the punctuation of names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|letter: char| !is_of_word(letter));
    parts.map(|word| word.trim_end_matches('.')).filter(|word| !word.is_empty())
}

fn is_source(path: &str) -> bool {
    SOURCES.iter().any(|extension| path.ends_with(extension))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
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

/// Modules in files `mod.rs` of a crate's `src`: the file of a module stands beside its folder.
fn old_modules(files: &BTreeSet<String>) -> Vec<String> {
    let old = files.iter().filter_map(|file| file.strip_suffix("/mod.rs")).filter(|module| module.contains("/src/"));
    old.map(|module| format!("{module}/mod.rs: the file of this module is {module}.rs")).collect()
}

fn unmapped_folders(map: &FolderMap, files: &BTreeSet<String>) -> Vec<String> {
    let folders: BTreeSet<&str> = files.iter().filter_map(|file| Some(file.split_once('/')?.0)).collect();
    let missing = folders.into_iter().filter(|folder| !folder.starts_with('.') && !map.contains_key(*folder));
    missing.map(|folder| format!("{folder}/ has no line")).collect()
}

/// Source files and folders that are not named, and named ones that do not exist.
fn wrong_files(map: &FolderMap, files: &BTreeSet<String>) -> Vec<String> {
    let is_folder = |path: &str| files.range(path.to_owned()..).next().is_some_and(|file| file.starts_with(path));
    let mut wrong = Vec::new();
    for (folder, text) in map {
        let mut named = BTreeSet::new();
        for name in names(text) {
            let places = [format!("{folder}/{name}"), format!("{folder}/src/{name}"), name.clone()];
            let places = if name.ends_with('/') { &places[..] } else { &places[..2] };
            let found =
                places.iter().find(|path| if name.ends_with('/') { is_folder(path) } else { files.contains(*path) });
            match found {
                Some(path) => _ = named.insert(path.clone()),
                None => wrong.push(format!("the line of {folder}/ names {name}, which is not there")),
            }
        }
        if !NAMELESS.contains(&folder.as_str()) {
            let own = files.iter().filter(|file| is_source(file) && folder_of(map, file) == Some(folder));
            // The line or the names of a folder are those of the module with its files.
            let of_module =
                |name: String| match name.strip_suffix(".rs").filter(|module| is_folder(&format!("{module}/"))) {
                    Some(module) if map.contains_key(module) => None,
                    Some(module) => Some(format!("{module}/")),
                    None => Some(name),
                };
            let needed: BTreeSet<String> =
                own.filter_map(|file| needed_name(folder, file)).filter_map(of_module).collect();
            // A named file, or one of its folder, names the folder as well.
            let is_named = |name: &str| {
                let file = name.strip_suffix('/').map(|folder| format!("{folder}.rs"));
                named.contains(name)
                    || file.is_some_and(|file| named.contains(&file) || named.iter().any(|it| it.starts_with(name)))
            };
            let missing = needed.iter().filter(|name| !is_named(name));
            wrong.extend(missing.map(|name| format!("the line of {folder}/ does not name {name}")));
        }
    }
    wrong
}

/// The file or folder that the line of `folder` must name because of a source file: beside a
/// crate's `src` only the first folder, and none of [`UNNAMED`].
fn needed_name(folder: &str, file: &str) -> Option<String> {
    let path = file.strip_prefix(folder)?.strip_prefix('/')?;
    let is_of_program = folder.contains("/src") || path.starts_with("src/");
    let beside = path.split_once('/').filter(|_| !is_of_program);
    match beside {
        Some((first, _)) => Some(format!("{folder}/{first}/")),
        None if !UNNAMED.contains(&file_name(path)) => Some(file.to_owned()),
        None => {
            let own = path.strip_prefix("src/").unwrap_or(path).rsplit_once('/')?.0;
            Some(format!("{}/", file.strip_suffix(file_name(file))?.trim_end_matches('/'))).filter(|_| !own.is_empty())
        }
    }
}

/// Source files and folders (with a slash at the end) that the text of a folder names, as paths in
/// it. Quoted text names none.
fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        let line: String = line.split('`').step_by(2).collect();
        // Folders that are open, each with the number of parentheses around it.
        let mut open: Vec<(usize, &str)> = Vec::new();
        let mut depth = 0;
        for part in line.split_inclusive(|letter: char| !is_of_word(letter)) {
            let end = part.chars().last().filter(|letter| !is_of_word(*letter));
            let word = part.trim_end_matches(|letter: char| !is_of_word(letter)).trim_end_matches('.');
            if is_source(word) || word.ends_with('/') {
                let folders: String = open.iter().map(|(_, folder)| *folder).collect();
                names.push(folders + word);
            }
            match end {
                Some(':') if word.ends_with('/') => open.push((depth, word)),
                Some('(') => depth += 1,
                Some(')') => depth = depth.saturating_sub(1),
                Some(';') => open.retain(|(around, _)| *around < depth),
                _ => {}
            }
            open.retain(|(around, _)| *around <= depth);
        }
    }
    names
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-/".contains(letter)
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

/// Files of the root, of `.ci` and of workflows that the lines without a folder do not name, and
/// names there without a file.
fn wrong_roots(block: &str, files: &BTreeSet<String>) -> Vec<String> {
    let is_of_root = |line: &&str| {
        let first = line.split_whitespace().next().unwrap_or("");
        !line.starts_with(' ') && (first.starts_with('.') || !first.ends_with('/'))
    };
    let named: BTreeSet<&str> = block.lines().filter(is_of_root).flat_map(words).collect();
    let needed = |file: &&String| {
        let is_plain = !file.contains('/') && !file.starts_with('.');
        is_plain || file.starts_with(".ci/") || file.starts_with(WORKFLOWS)
    };
    let name = |file: &'_ String| file.strip_prefix(WORKFLOWS).unwrap_or(file).to_owned();
    let needed: BTreeSet<String> = files.iter().filter(needed).map(name).collect();
    let missing = needed.iter().filter(|name| !named.contains(name.as_str()));
    let is_path = |name: &&&str| name.contains('/') || name.contains('.');
    let exists = |name: &str| {
        let is_folder = files.range(name.to_owned()..).next().is_some_and(|file| file.starts_with(name));
        needed.contains(name) || files.contains(name) || name.ends_with('/') && is_folder
    };
    let gone = named.iter().filter(is_path).filter(|name| !exists(name));
    let missing = missing.map(|name| format!("no line names {name}"));
    missing.chain(gone.map(|name| format!("there is no {name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "
README.md
top/         TITLE                  text like `no/such.h` build.rs benches/
  src/       a.rs (first) b.rs
             c.rs and f/: a.rs (text) sub/b.rs; d.rs (f/: c.rs) h.h
  src/d/     x.rs
  src/e.rs   sub/: b.rs
scripts/     run
";

    const FILES: [&str; 16] = [
        "benches/any.rs",
        "build.rs",
        "src/a.rs",
        "src/b.rs",
        "src/c.rs",
        "src/d.rs",
        "src/d/x.rs",
        "src/e.rs",
        "src/f.rs",
        "src/f/a.rs",
        "src/f/c.rs",
        "src/f/sub/b.rs",
        "src/h.h",
        "src/lib.rs",
        "src/sub.rs",
        "src/sub/b.rs",
    ];

    fn files(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|path| format!("top/{path}")).collect()
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
        assert_eq!(wrong_files(&map, &files(&FILES)), [""; 0]);
        assert_eq!(unmapped_folders(&map, &files(&FILES)), [""; 0]);
    }

    #[test]
    fn files_without_a_name_and_names_without_a_file_are_found() {
        let map = read_map(MAP);
        let others: Vec<&str> = FILES.into_iter().filter(|file| !["src/b.rs", "src/d/x.rs"].contains(file)).collect();
        let new = files(&[&others[..], &["src/d/y.rs", "src/new.h", "examples/a.rs", "other.c"]].concat());
        let problems = [
            "the line of top/ does not name top/examples/",
            "the line of top/ does not name top/other.c",
            "the line of top/src/ names b.rs, which is not there",
            "the line of top/src/ does not name top/src/new.h",
            "the line of top/src/d/ names x.rs, which is not there",
            "the line of top/src/d/ does not name top/src/d/y.rs",
        ];
        assert_eq!(wrong_files(&map, &new), problems);
        assert_eq!(unmapped_folders(&map, &["new/src/a.rs".to_owned()].into()), ["new/ has no line"]);
    }

    #[test]
    fn a_folder_of_unnamed_files_needs_a_name() {
        let map = read_map(MAP);
        let new = files(
            &[
                &FILES[..],
                &[
                    "src/new.rs",
                    "src/new/tests.rs",
                    "src/b/tests.rs",
                    "src/f/more/tests.rs",
                    "src/d/tests.rs",
                    "src/x.inc",
                ],
            ]
            .concat(),
        );
        let problems = [
            "the line of top/src/ does not name top/src/f/more/",
            "the line of top/src/ does not name top/src/new/",
            "the line of top/src/ does not name top/src/x.inc",
        ];
        assert_eq!(wrong_files(&map, &new), problems);
    }

    #[test]
    fn the_file_of_a_module_is_beside_its_folder() {
        let found = old_modules(&files(&["src/a/mod.rs", "tests/a/mod.rs", "src/b.rs", "src/b/c.rs"]));
        assert_eq!(found, ["top/src/a/mod.rs: the file of this module is top/src/a.rs"]);
    }

    #[test]
    fn a_file_in_another_folder_is_not_the_named_one() {
        let map = read_map(MAP);
        let moved = FILES.map(|file| if file == "src/c.rs" { "src/sub/c.rs" } else { file });
        let problems = [
            "the line of top/src/ names c.rs, which is not there",
            "the line of top/src/ does not name top/src/sub/c.rs",
        ];
        assert_eq!(wrong_files(&map, &files(&moved)), problems);
    }

    #[test]
    fn a_line_without_names_names_nothing() {
        let map = read_map("top/     TITLE    text about everything\n");
        assert_eq!(
            wrong_files(&map, &files(&["src/a.rs", "src/lib.rs"])),
            ["the line of top/ does not name top/src/a.rs"]
        );
    }

    #[test]
    fn scripts_are_named_one_by_one() {
        let map = read_map(MAP);
        assert_eq!(wrong_lists(&map, &["scripts/run".to_owned()].into()), [""; 0]);
        let problems = ["the line of scripts/ does not name test", "there is no scripts/run"];
        assert_eq!(wrong_lists(&map, &["scripts/test".to_owned()].into()), problems);
    }

    #[test]
    fn files_of_the_root_and_of_workflows_are_named_one_by_one() {
        let map = "a.md  NOTICE\nfolder/  text.md\n  b.rs\n.ci/run  text    .github/  workflows: one.yml, others\n";
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let right = [".ci/run", ".github/workflows/one.yml", ".gitignore", "NOTICE", "a.md", "folder/b.rs"];
        assert_eq!(wrong_roots(map, &files(&right)), [""; 0]);
        let new = [".ci/new", ".github/workflows/two.yml", "Makefile", "NOTICE", "a.md"];
        let problems = ["no line names .ci/new", "no line names Makefile", "no line names two.yml"];
        let gone = ["there is no .ci/run", "there is no one.yml"];
        assert_eq!(wrong_roots(map, &files(&new)), [&problems[..], &gone].concat());
    }
}
