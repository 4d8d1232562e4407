//! Source files of a crate, parsed, and the module that each of them is.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::crates::Member;

/// A module path within a crate, from its root.
pub(crate) type ModulePath = Vec<String>;

/// One file of a crate.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Relative to the crate's `src`.
    pub(crate) path: PathBuf,
    pub(crate) module: ModulePath,
    pub(crate) syntax: syn::File,
}

impl SourceFile {
    /// The file at `path`, relative to `src`, of a crate that has a `lib.rs` or not.
    pub(crate) fn new(path: &Path, has_library: bool, syntax: syn::File) -> Self {
        Self { path: path.to_owned(), module: module_of(path, has_library), syntax }
    }

    /// The file or folder of `src` that it is or belongs to, without an extension.
    pub(crate) fn top(&self) -> &str {
        let first = self.path.iter().next().and_then(OsStr::to_str).unwrap_or("");
        first.strip_suffix(".rs").unwrap_or(first)
    }
}

/// A crate's `src` folder.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Its folder in the workspace, such as `tests/sim`.
    pub(crate) folder: String,
    /// Its name in paths.
    pub(crate) name: String,
    pub(crate) files: Vec<SourceFile>,
}

impl Crate {
    /// Reads every file below the `src` of a member of the workspace.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not valid Rust.
    pub(crate) fn read(workspace: &Path, member: &Member) -> Result<Self> {
        let root = workspace.join(&member.folder).join("src");
        let has_library = root.join("lib.rs").exists();
        let mut files = Vec::new();
        for entry in walkdir::WalkDir::new(&root).sort_by_file_name() {
            let entry = entry?;
            if entry.path().extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(entry.path()).with_context(|| entry.path().display().to_string())?;
            let syntax = syn::parse_file(&text).with_context(|| entry.path().display().to_string())?;
            let path = entry.path().strip_prefix(&root).expect("below it");
            files.push(SourceFile::new(path, has_library, syntax));
        }
        Ok(Self { folder: member.folder.clone(), name: member.name().replace('-', "_"), files })
    }

    /// The index of each module's file.
    pub(crate) fn modules(&self) -> BTreeMap<&[String], usize> {
        self.files.iter().enumerate().map(|(at, file)| (&file.module[..], at)).collect()
    }
}

/// `lib.rs` is the root, `a/mod.rs` and `a.rs` are `a`. `main.rs` is the root of a crate without a
/// library, and a module of its own beside one.
fn module_of(path: &Path, has_library: bool) -> ModulePath {
    if has_library && path == Path::new("main.rs") {
        return vec!["main".into()];
    }
    let mut module: ModulePath =
        path.with_extension("").components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_module_styles_are_known() {
        for (path, module) in [("lib.rs", ""), ("qp/mod.rs", "qp"), ("qp.rs", "qp"), ("qp/link.rs", "qp::link")] {
            assert_eq!(module_of(Path::new(path), true).join("::"), module);
        }
    }

    #[test]
    fn a_program_has_a_module_of_its_own_beside_a_library() {
        let modules = [false, true].map(|has_library| module_of(Path::new("main.rs"), has_library).join("::"));
        assert_eq!(modules, ["", "main"]);
    }

    #[test]
    fn the_top_of_a_file_is_its_folder_or_itself() {
        let syntax = || syn::parse_str("").expect("valid");
        let top = |path: &str| SourceFile::new(Path::new(path), true, syntax()).top().to_owned();
        assert_eq!(
            ["lib.rs", "main.rs", "qp/mod.rs", "qp.rs", "qp/a/b.rs"].map(top),
            ["lib", "main", "qp", "qp", "qp"]
        );
    }
}
