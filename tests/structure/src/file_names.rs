//! Names of files that say nothing of their content, and interpreters that scripts name: shell
//! scripts are where `scripts/check` lints them, with a first line that it finds.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{files::files_below, settings::WITH_SCRIPTS};

/// Stems of names that no file and no folder has.
const EMPTY: [&str; 8] = ["common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"];

/// The connection manager of IBTA, which has that name: its file and its folder.
const ACCEPTED: [&str; 2] = ["cm/src/manager", "cm/src/manager.rs"];

/// First lines of shell scripts, as `scripts/check` looks for them.
const SHELLS: [&str; 4] = ["#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env bash", "#!/usr/bin/env sh"];

/// First lines of other scripts.
const OTHERS: [&str; 2] = ["#!/usr/bin/python3", "#!/usr/bin/env python3"];

/// A script with another first line: the first program of a guest, which has nothing but busybox.
const OF_GUEST: (&str, &str) = ("tests/guests/init", "#!/busybox sh");

/// Such names and interpreters.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn faults(workspace: &Path) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let mut broken: Vec<String> = files.iter().filter_map(|file| empty_name(file)).collect();
    for file in &files {
        let bytes = fs::read(workspace.join(file)).with_context(|| file.display().to_string())?;
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        broken.extend(foreign_interpreter(file, &String::from_utf8_lossy(line)));
    }
    Ok(broken)
}

/// A file or folder with an empty name.
fn empty_name(file: &Path) -> Option<String> {
    let mut place = PathBuf::new();
    let named = file.iter().find(|part| {
        place.push(part);
        let stem = part.to_string_lossy().split('.').next().unwrap_or("").to_lowercase();
        EMPTY.contains(&stem.as_str()) && !ACCEPTED.iter().any(|accepted| place == Path::new(accepted))
    })?;
    let name = named.to_string_lossy();
    Some(format!("{}: the name {name} says nothing: name the one thing that it holds", file.display()))
}

/// A first line that names another interpreter, or a shell script where no lint sees it.
fn foreign_interpreter(file: &Path, line: &str) -> Option<String> {
    if !line.starts_with("#!") || line.starts_with("#![") {
        return None;
    }
    let place = file.display();
    if SHELLS.contains(&line) {
        let is_linted = WITH_SCRIPTS.iter().any(|folder| file.starts_with(folder));
        let folders = WITH_SCRIPTS.join(", ");
        return (!is_linted).then(|| format!("{place}: a shell script outside of {folders}, where it is linted"));
    }
    let is_known = OTHERS.contains(&line) || (file, line) == (Path::new(OF_GUEST.0), OF_GUEST.1);
    let known = SHELLS.into_iter().chain(OTHERS).collect::<Vec<_>>().join(", ");
    (!is_known).then(|| format!("{place}: '{line}' is none of {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_are_found() {
        for name in ["a/src/utils.rs", "a/src/common/mod.rs", "tests/helpers.test.rs", "cm/src/x/manager.rs", "misc"] {
            assert!(empty_name(Path::new(name)).is_some(), "{name}");
        }
        for name in ["cm/src/manager.rs", "cm/src/manager/active.rs", "a/src/utility.rs", "a/common_frames.rs"] {
            assert_eq!(empty_name(Path::new(name)), None, "{name}");
        }
        assert!(empty_name(Path::new("cm/src/manager/util.rs")).is_some());
    }

    #[test]
    fn scripts_name_a_known_interpreter() {
        let found = |file: &str, line: &str| foreign_interpreter(Path::new(file), line).is_some();
        for (file, line) in [
            ("scripts/a", "#!/bin/bash"),
            ("tests/a/b", "#!/usr/bin/env sh"),
            ("config/a.py", "#!/usr/bin/env python3"),
            ("tests/guests/init", "#!/busybox sh"),
            ("a/src/lib.rs", "#![no_std]"),
            ("a", "text"),
        ] {
            assert!(!found(file, line), "{file} {line}");
        }
        for (file, line) in [
            ("scripts/a", "#!/bin/bash -e"),
            ("scripts/a", "#! /bin/sh"),
            ("scripts/a", "#!/usr/bin/perl"),
            ("tests/a", "#!/busybox sh"),
            ("config/a", "#!/bin/sh"),
        ] {
            assert!(found(file, line), "{file} {line}");
        }
    }
}
