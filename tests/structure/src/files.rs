//! Files of the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// Source files of the workspace with their texts.
pub(crate) type Sources = BTreeMap<PathBuf, String>;

/// Folders of the workspace with build output, copies for packages, and the repository.
const LEFT_OUT: [&str; 3] = ["target", "packaging/stage", ".git"];

/// In a target folder of cargo, also one of another name.
const MARK_OF_CACHES: &str = "CACHEDIR.TAG";

/// Files below `folder`, relative to it, without those of [`LEFT_OUT`], of target folders, and
/// those that git ignores.
///
/// # Errors
///
/// A folder cannot be read.
pub(crate) fn files_below(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let walk = walkdir::WalkDir::new(folder);
    let ignored = ignored_by_git(folder);
    let is_left_out = |path: &Path| {
        LEFT_OUT.iter().any(|name| path == folder.join(name))
            || path.strip_prefix(folder).is_ok_and(|path| ignored.contains(path))
            || path.join(MARK_OF_CACHES).exists()
    };
    let entries = walk.into_iter().filter_entry(|entry| !is_left_out(entry.path()));
    let mut files = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.insert(entry.path().strip_prefix(folder)?.to_owned());
        }
    }
    Ok(files)
}

/// Files and whole folders that git ignores, relative to `folder`; none where it is no repository.
fn ignored_by_git(folder: &Path) -> BTreeSet<PathBuf> {
    if !folder.join(".git").exists() {
        return BTreeSet::new();
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args("ls-files -z --others --ignored --exclude-standard --directory".split(' '));
    let listed = git.output().map(|output| output.stdout).unwrap_or_default();
    listed.split(|&byte| byte == 0).filter(|path| !path.is_empty()).map(|path| OsStr::from_bytes(path).into()).collect()
}

/// Source files of Rust in the workspace, with their texts.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn sources(workspace: &Path) -> Result<Sources> {
    let mut sources = Sources::new();
    for file in files_below(workspace)?.into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let text = fs::read_to_string(workspace.join(&file)).with_context(|| file.display().to_string())?;
        sources.insert(file, text);
    }
    Ok(sources)
}

/// A path without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            // Above the workspace it stays, and names nothing.
            std::path::Component::ParentDir if !normal.pop() => normal.push(".."),
            std::path::Component::ParentDir => {}
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_named_as_build_output_are_read_below_the_root() {
        let root = std::env::temp_dir().join(format!("roced-structure-{}", std::process::id()));
        for file in ["target/a.rs", "src/target/b.rs", "src/stage/c.rs", "packaging/stage/d.rs", "x/.git/e"] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, "").expect("a file");
        }
        let files = files_below(&root).expect("readable");
        fs::remove_dir_all(&root).expect("a folder");
        assert_eq!(files, ["src/stage/c.rs", "src/target/b.rs", "x/.git/e"].map(PathBuf::from).into());
    }

    #[test]
    fn files_that_git_ignores_and_other_target_folders_are_not_read() {
        let root = std::env::temp_dir().join(format!("roced-structure-git-{}", std::process::id()));
        let ignore = "/packages\n*~\n";
        let files =
            [".gitignore", "a.rs", "a.rs~", "packages/b.deb", "src/packages/c", "build/CACHEDIR.TAG", "build/d"];
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, ignore).expect("a file");
        }
        let init = Command::new("git").args(["init", "--quiet"]).arg(&root).status();
        assert!(init.expect("git is installed").success());
        let files = files_below(&root).expect("readable");
        fs::remove_dir_all(&root).expect("a folder");
        assert_eq!(files, [".gitignore", "a.rs", "src/packages/c"].map(PathBuf::from).into());
    }
}
