//! Comments in Rust and C, told from strings that look like them.

use std::ops::Range;

/// A comment.
#[derive(Debug, PartialEq)]
pub(crate) struct Comment<'a> {
    /// Without its marks at the ends.
    pub(crate) text: &'a str,
    /// Where its first mark is, in bytes, and where its last one ends.
    pub(crate) range: Range<usize>,
    pub(crate) is_block: bool,
    /// Whether its line begins with code.
    pub(crate) is_behind_code: bool,
}

/// All comments of a text.
pub(crate) fn comments(text: &str) -> Vec<Comment<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let line = text[..at].rsplit('\n').next().unwrap_or("");
        let is_behind_code = !line.trim().is_empty();
        let is_in_word = line.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            let text = rest[..length].trim_start_matches(['/', '!']);
            found.push(Comment { text, range: at..at + length, is_block: false, is_behind_code });
            length
        } else if rest.starts_with("/*") {
            let length = block(rest);
            let text = rest[..length].trim_matches(['/', '*', '!']);
            found.push(Comment { text, range: at..at + length, is_block: true, is_behind_code });
            length
        } else {
            match first {
                '"' => string(rest),
                'r' if !is_in_word || line.ends_with(['b', 'c']) => raw_string(rest).unwrap_or(1),
                '\'' => character(rest),
                other => other.len_utf8(),
            }
        };
        at += length;
    }
    found
}

/// Whole lines of `text` that a range of it touches, each with its number from 1.
pub(crate) fn lines_of<'a>(text: &'a str, range: &Range<usize>) -> impl Iterator<Item = (usize, &'a str)> {
    let first = text[..range.start].matches('\n').count();
    let last = first + text[range.clone()].matches('\n').count();
    text.lines().enumerate().skip(first).take(last + 1 - first).map(|(at, line)| (at + 1, line))
}

/// Length of a block with the blocks in it.
fn block(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// Length of a string in quotes.
fn string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of `r"..."` or `r#"..."#`.
fn raw_string(text: &str) -> Option<usize> {
    let marks = text[1..].len() - text[1..].trim_start_matches('#').len();
    let inner = text[1 + marks..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    Some(inner.find(&end).map_or(text.len(), |length| marks + 2 + length + end.len()))
}

/// Length of a character in quotes, or of the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match (letters.next(), letters.next()) {
        (Some((_, '\\')), _) => text[3..].find('\'').map_or(1, |length| 3 + length + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_told_from_strings() {
        let text = r##"// one
            let a = "// no \" // no"; // two
            let b = '"'; /* three */ let c: &'a str = r#"// no " // no"#; // four
            let d = ('\'', '\\', b'/', "\\"); /* five /* six */ // seven */ f(); // eight
            /// nine
        "##;
        let found = comments(text);
        let texts: Vec<&str> = found.iter().map(|comment| comment.text.trim()).collect();
        assert_eq!(texts, ["one", "two", "three", "four", "five /* six */ // seven", "eight", "nine"]);
        let behind: Vec<bool> = found.iter().map(|comment| comment.is_behind_code).collect();
        assert_eq!(behind, [false, true, true, true, true, true, false]);
    }

    #[test]
    fn a_block_has_all_its_lines() {
        let text = "f(); /* one\n two */ g();\n\n// three\n";
        let found = comments(text);
        let lines = found.iter().map(|comment| lines_of(text, &comment.range).collect::<Vec<_>>());
        assert_eq!(lines.collect::<Vec<_>>(), [vec![(1, "f(); /* one"), (2, " two */ g();")], vec![(4, "// three")]]);
    }
}
