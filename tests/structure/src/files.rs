//! Files of the workspace.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::Result;

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
