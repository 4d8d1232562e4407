//! Widths of single lines with comments, behind code as well: none is beyond [`WIDEST`].
//! (Of the comment lines beyond 100 columns a place may have a share, see `ceilings.rs`.)

use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

use anyhow::Result;

use crate::{
    comments::{comments, lines_of},
    files::files_below,
    prose::{HASH_COMMENTS, WIDEST, comment_behind},
};

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
            broken.push(format!("{}:{number}: a comment of {width} columns, {WIDEST} at most", file.display()));
        }
    }
    Ok(broken)
}

/// Beginning of a comment line.
fn mark_of(file: &Path, text: &str) -> Option<&'static str> {
    match file.extension().and_then(OsStr::to_str).unwrap_or("") {
        "rs" | "c" | "h" => Some("//"),
        extension if HASH_COMMENTS.contains(&extension) => Some("#"),
        _ if text.starts_with("#!") => Some("#"),
        _ => None,
    }
}

/// Number and width of each line with a comment that is too wide. Rows of tables cannot be broken.
fn wide_lines(text: &str, mark: &str) -> Vec<(usize, usize)> {
    let lines: BTreeMap<usize, &str> = if mark == "#" {
        let is_comment = |line: &str| line.trim_start().starts_with(mark) || comment_behind(line).is_some();
        text.lines().enumerate().filter(|(_, line)| is_comment(line)).map(|(at, line)| (at + 1, line)).collect()
    } else {
        comments(text).iter().flat_map(|comment| lines_of(text, &comment.range)).collect()
    };
    let is_row = |line: &str| line.trim_start_matches(['/', '!', '*', '#', ' ', '\t']).starts_with('|');
    let widths = lines.into_iter().filter(|(_, line)| !is_row(line)).map(|(at, line)| (at, line.chars().count()));
    widths.filter(|(_, width)| *width > WIDEST).collect()
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
        assert_eq!(
            wide_lines(&format!("let a = \"{wide}\";\nf(); // {wide}\n/*\n {wide}\n*/"), "//"),
            [(2, 148), (4, 141)]
        );
        assert_eq!(wide_lines(&format!("run '# {wide}'\na=1 # {wide}\n"), "#"), [(2, 146)]);
        assert_eq!(mark_of(Path::new("scripts/test"), "#!/bin/sh\n"), Some("#"));
        assert_eq!(mark_of(Path::new("a.svg"), "<svg>"), None);
    }
}
