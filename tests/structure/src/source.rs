//! Source files of a crate, parsed, and the module that each of them is.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

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

/// A crate's `src` folder.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Its folder in the workspace, such as `tests/sim`.
    pub(crate) folder: String,
    pub(crate) files: Vec<SourceFile>,
}

impl Crate {
    /// Reads every file below `folder`/src.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not valid Rust.
    pub(crate) fn read(workspace: &Path, folder: &str) -> Result<Self> {
        let root = workspace.join(folder).join("src");
        let mut files = Vec::new();
        for entry in walkdir::WalkDir::new(&root).sort_by_file_name() {
            let entry = entry?;
            if entry.path().extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(entry.path()).with_context(|| entry.path().display().to_string())?;
            let syntax = syn::parse_file(&text).with_context(|| entry.path().display().to_string())?;
            let path = entry.path().strip_prefix(&root).expect("below it").to_owned();
            files.push(SourceFile { module: module_of(&path), path, syntax });
        }
        Ok(Self { folder: folder.to_owned(), files })
    }

    /// The index of each module's file.
    pub(crate) fn modules(&self) -> BTreeMap<&[String], usize> {
        self.files.iter().enumerate().map(|(at, file)| (&file.module[..], at)).collect()
    }
}

/// `lib.rs` and `main.rs` are the root, `a/mod.rs` and `a.rs` are `a`.
fn module_of(path: &Path) -> ModulePath {
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
            assert_eq!(module_of(Path::new(path)).join("::"), module);
        }
    }
}
