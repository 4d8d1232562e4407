//! Widths of single comment lines: none is beyond that of scripts and settings, of any language.
//! (Of the lines over the width of its language a place may have a share, see `ceilings.rs`.)

use std::{ffi::OsStr, fs, path::Path};

use anyhow::Result;

use crate::{files::files_below, prose::SCRIPT_WIDTH};

/// Comment lines that are too wide, each with its file and number.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn too_wide(workspace: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in files_below(workspace)? {
        let Ok(text) = String::from_utf8(fs::read(workspace.join(&file))?) else { continue };
        let Some(mark) = mark_of(&file, &text) else { continue };
        for (number, width) in wide_lines(&text, mark) {
            broken.push(format!("{}:{number}: a comment of {width} columns, {SCRIPT_WIDTH} at most", file.display()));
        }
    }
    Ok(broken)
}

/// Beginning of a comment line.
fn mark_of(file: &Path, text: &str) -> Option<&'static str> {
    match file.extension().and_then(OsStr::to_str).unwrap_or("") {
        "rs" | "c" | "h" => Some("//"),
        "toml" | "py" | "yml" | "sh" | "service" | "conf" => Some("#"),
        _ if text.starts_with("#!") => Some("#"),
        _ => None,
    }
}

/// Number and width of each comment line that is too wide. Rows of tables cannot be broken.
fn wide_lines(text: &str, mark: &str) -> Vec<(usize, usize)> {
    let is_comment = |line: &str| {
        let comment = line.trim_start().strip_prefix(mark);
        comment.is_some_and(|comment| !comment.trim_start_matches(['/', '!', ' ']).starts_with('|'))
    };
    let comments = text.lines().enumerate().filter(|(_, line)| is_comment(line));
    let widths = comments.map(|(at, line)| (at + 1, line.chars().count()));
    widths.filter(|(_, width)| *width > SCRIPT_WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wide_line_among_many_is_found() {
        let wide = "x".repeat(140);
        let text = format!("{}# {wide}\nprintf {wide}\n", "# short\n".repeat(1000));
        assert_eq!(wide_lines(&text, "#"), [(1001, 142)]);
        assert_eq!(wide_lines(&format!("//! | {wide} |\n"), "//"), []);
        assert_eq!(mark_of(Path::new("scripts/test"), "#!/bin/sh\n"), Some("#"));
        assert_eq!(mark_of(Path::new("a.svg"), "<svg>"), None);
    }
}
