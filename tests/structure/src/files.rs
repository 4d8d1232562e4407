//! Files of the workspace.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::compiled::Sources;

/// Files below `folder`, relative to it, without build output, copies for packages, and the
/// repository.
///
/// # Errors
///
/// A folder cannot be read.
pub(crate) fn files_below(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let is_left_out = |name: &str| matches!(name, "target" | "stage" | ".git");
    let walk = walkdir::WalkDir::new(folder);
    let entries = walk.into_iter().filter_entry(|entry| !entry.file_name().to_str().is_some_and(is_left_out));
    let mut files = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.insert(entry.path().strip_prefix(folder)?.to_owned());
        }
    }
    Ok(files)
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
