//! Sizes of the folders of crates' `src`, each with its subfolders: below [`LINES`], so that a
//! reader can learn one subject at a time.

use std::collections::BTreeMap;

use crate::{crates::Member, files::Sources};

/// A folder has fewer lines.
const LINES: usize = 4_000;

/// A folder that is larger, with the lines that it may not reach either.
struct LargeFolder {
    folder: &'static str,
    lines: usize,
    reason: &'static str,
}

/// Folders that are larger and are one subject. No other is added.
const LARGE: [LargeFolder; 2] = [
    LargeFolder {
        folder: "daemon/src/worker",
        lines: 6_500,
        reason: "the steps of one poll loop, which share the worker's state, with its commands and reports",
    },
    LargeFolder {
        folder: "transport/src/qp",
        lines: 10_500,
        reason: "the roles of a queue pair, which share its private state",
    },
];

/// Folders with too many lines, and exceptions that none needs.
pub(crate) fn too_large(sources: &Sources, members: &[Member]) -> Vec<String> {
    against(&lines_by_folder(sources, members), &LARGE)
}

/// Lines of each folder below the `src` of a member.
fn lines_by_folder(sources: &Sources, members: &[Member]) -> BTreeMap<String, usize> {
    let roots: Vec<String> = members.iter().map(|member| format!("{}/src", member.folder)).collect();
    let mut sizes = BTreeMap::new();
    for (file, text) in sources {
        let Some(root) = roots.iter().find(|root| file.starts_with(root)) else { continue };
        // The file of a module, `a.rs`, counts for its folder `a`.
        let module = file.with_extension("");
        let module = Some(module.as_path()).filter(|module| sources.keys().any(|other| other.starts_with(module)));
        let folders = file.ancestors().skip(1).take_while(|folder| !folder.ends_with(root));
        for folder in module.into_iter().chain(folders) {
            *sizes.entry(folder.display().to_string()).or_default() += text.lines().count();
        }
    }
    sizes
}

fn against(sizes: &BTreeMap<String, usize>, large: &[LargeFolder]) -> Vec<String> {
    let exception = |folder: &str| large.iter().find(|large| large.folder == folder);
    let limit = |folder: &str| exception(folder).map_or(LINES, |large| large.lines);
    let above = sizes.iter().filter(|(folder, lines)| **lines >= limit(folder));
    let above = above.map(|(folder, lines)| {
        format!("{folder}: {lines} lines, a folder has fewer than {}: a subject of it may be a folder", limit(folder))
    });
    let needless = large.iter().filter(|large| sizes.get(large.folder).is_none_or(|lines| *lines < LINES));
    let needless = needless.map(|LargeFolder { folder, reason, .. }| {
        format!("{folder}: needs no exception of tests/structure/src/folder_sizes.rs ({reason})")
    });
    above.chain(needless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_for_each_folder_that_they_are_in() {
        let member = Member { folder: "a/b".into(), manifest: toml::Table::new() };
        let files = ["a/b/src/lib.rs", "a/b/src/c.rs", "a/b/src/c/d/e.rs", "a/b/tests/c/d.rs"];
        let sources = files.map(|file| (file.into(), "//\n//\n".to_owned())).into();
        let sizes = [("a/b/src/c".to_owned(), 4), ("a/b/src/c/d".to_owned(), 2)].into();
        assert_eq!(lines_by_folder(&sources, &[member]), sizes);
    }

    #[test]
    fn a_folder_has_fewer_lines_unless_it_is_an_exception() {
        let of = |lines| [("x".to_owned(), lines)].into();
        let large = |folder| [LargeFolder { folder, lines: 5_000, reason: "because" }];
        assert_eq!(against(&of(3_999), &[]), [""; 0]);
        assert_eq!(
            against(&of(4_000), &[]),
            ["x: 4000 lines, a folder has fewer than 4000: a subject of it may be a folder"]
        );
        assert_eq!(against(&of(4_999), &large("x")), [""; 0]);
        assert_eq!(
            against(&of(5_000), &large("x")),
            ["x: 5000 lines, a folder has fewer than 5000: a subject of it may be a folder"]
        );
        let needless =
            |folder| format!("{folder}: needs no exception of tests/structure/src/folder_sizes.rs (because)");
        assert_eq!(against(&of(3_999), &large("x")), [needless("x")]);
        assert_eq!(against(&of(1), &large("y")), [needless("y")]);
    }
}
