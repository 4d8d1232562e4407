//! Figures of the prose in comments and documents: words that STYLE bans, and comment lines that
//! are too long.

use std::{fmt, fs, path::Path};

use anyhow::Result;

/// Longest comment line, in columns.
const WIDTH: usize = 100;

/// Pronouns for persons: packets and queue pairs are none.
pub(crate) const PEOPLE: [&str; 8] = ["who", "whoever", "whom", "whose", "nobody", "somebody", "anybody", "everybody"];

/// Words that begin a clause in place of a noun.
pub(crate) const CLAUSE: [&str; 2] = ["what", "whatever"];

/// What is counted in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prose {
    pub(crate) words: usize,
    pub(crate) people: usize,
    pub(crate) clauses: usize,
    pub(crate) comment_lines: usize,
    pub(crate) long_lines: usize,
}

impl Prose {
    /// Counts the comments of Rust source, `//`, `///` and `//!`.
    pub(crate) fn of_rust(text: &str) -> Self {
        let mut prose = Self::default();
        for line in text.lines() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            prose.comment_lines += 1;
            prose.long_lines += usize::from(line.chars().count() > WIDTH);
            prose.add_words(comment.trim_start_matches(['/', '!']));
        }
        prose
    }

    /// Counts a document, without its fenced blocks.
    pub(crate) fn of_markdown(text: &str) -> Self {
        let mut prose = Self::default();
        let mut is_fenced = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            } else if !is_fenced {
                prose.add_words(line);
            }
        }
        prose
    }

    fn add_words(&mut self, line: &str) {
        // Code is no prose.
        for text in line.split('`').step_by(2) {
            for word in text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'') {
                let word = word.to_lowercase();
                self.words += usize::from(!word.is_empty());
                self.people += usize::from(PEOPLE.contains(&word.as_str()));
                self.clauses += usize::from(CLAUSE.contains(&word.as_str()));
            }
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.words += other.words;
        self.people += other.people;
        self.clauses += other.clauses;
        self.comment_lines += other.comment_lines;
        self.long_lines += other.long_lines;
    }

    pub(crate) fn people_per_thousand(self) -> f64 {
        self.per_thousand(self.people)
    }

    pub(crate) fn clauses_per_thousand(self) -> f64 {
        self.per_thousand(self.clauses)
    }

    /// Comment lines over [`WIDTH`] columns; 0 for documents.
    pub(crate) fn long_percent(self) -> f64 {
        100.0 * self.long_lines as f64 / self.comment_lines.max(1) as f64
    }

    fn per_thousand(self, count: usize) -> f64 {
        1000.0 * count as f64 / self.words.max(1) as f64
    }
}

impl fmt::Display for Prose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (people, clauses) = (self.people_per_thousand(), self.clauses_per_thousand());
        write!(f, "{:7} words, {people:4.1} people words and {clauses:4.1} free relatives per 1,000", self.words)?;
        if self.comment_lines > 0 {
            let long = self.long_percent();
            write!(f, ", {long:4.1} % of {} comment lines over {WIDTH} columns", self.comment_lines)?;
        }
        Ok(())
    }
}

/// Prose of every file below `folder` with this extension.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn of_folder(folder: &Path, extension: &str) -> Result<Prose> {
    let mut prose = Prose::default();
    for entry in walkdir::WalkDir::new(folder).into_iter().filter_entry(|entry| entry.file_name() != "target") {
        let entry = entry?;
        if entry.path().extension().is_none_or(|it| it != extension) {
            continue;
        }
        let text = fs::read_to_string(entry.path())?;
        prose.add(if extension == "rs" { Prose::of_rust(&text) } else { Prose::of_markdown(&text) });
    }
    Ok(prose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_count_and_code_does_not() {
        let text = "/// Whoever waits: `who()`.\nlet who = 1; // kept short\n    // nobody knows what\n";
        let prose = Prose::of_rust(text);
        assert_eq!((prose.words, prose.people, prose.clauses, prose.comment_lines), (5, 2, 1, 2));
    }

    #[test]
    fn fenced_blocks_are_left_out() {
        let prose = Prose::of_markdown("Two words\n```\nwho what\n```\nthree more words\n");
        assert_eq!((prose.words, prose.people), (5, 0));
    }
}
