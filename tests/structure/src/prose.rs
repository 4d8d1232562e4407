//! Figures of the prose in comments, documents, logs and errors: words that CONVENTIONS.md bans,
//! and comment lines that are too long.

use std::{collections::BTreeMap, ffi::OsStr, fmt, fs, path::Path};

use anyhow::Result;

use crate::{
    comments::{comments, lines_of},
    files::files_below,
    messages::messages,
};

/// Longest comment line, in columns.
const WIDTH: usize = 100;

/// Longest line with a comment of all, behind code as well.
pub(crate) const WIDEST: usize = 140;

/// Files with comments up to [`WIDEST`]: the table of options at the head of the lab.
const WIDER: [&str; 1] = ["scripts/lab"];

/// Words for persons, which packets and queue pairs are not: pronouns, and figures of speech.
pub(crate) const PEOPLE: [&str; 19] = [
    "who",
    "whoever",
    "whom",
    "whose",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "affair",
    "affairs",
    "aloud",
    "habit",
    "habits",
    "stranger",
    "strangers",
    "vain",
];

/// Words that begin a clause in place of a noun.
pub(crate) const CLAUSE: [&str; 2] = ["what", "whatever"];

/// Last words of a sentence or a part of it that say nothing: "too" and "then", unless one of
/// [`TIMES`] is before it.
const TRAILING: [&str; 2] = ["too", "then"];

/// Words that make "then" a time: "until then", "now and then".
const TIMES: [&str; 7] = ["and", "before", "by", "just", "since", "till", "until"];

/// Marks that end a sentence or a part of it.
const MARKS: [char; 4] = ['.', ';', ':', ')'];

/// Extensions of files with comments behind `#`.
pub(crate) const HASH_COMMENTS: [&str; 14] = [
    "conf",
    "path",
    "py",
    "scriptlets",
    "service",
    "sh",
    "slice",
    "socket",
    "sysusers",
    "timer",
    "tmpfiles",
    "toml",
    "yaml",
    "yml",
];

/// Counts of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prose {
    pub(crate) words: usize,
    pub(crate) people: usize,
    pub(crate) clauses: usize,
    pub(crate) trailing: usize,
    /// People words, free relatives and trailing words in messages.
    pub(crate) in_messages: usize,
    pub(crate) comment_lines: usize,
    pub(crate) long_lines: usize,
}

impl Prose {
    /// Counts the comments of Rust source, `//`, `///`, `//!` and `/* */`. The width counts of lines
    /// that are comments, and of all lines of blocks.
    pub(crate) fn of_rust(text: &str) -> Self {
        let mut prose = Self::of_comments(text, WIDTH, |line| {
            line.strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!']))
        });
        for comment in comments(text).into_iter().filter(|comment| comment.is_behind_code || comment.is_block) {
            prose.add_words(comment.text);
            if comment.is_block && !comment.is_behind_code {
                prose.add_widths(lines_of(text, &comment.range).map(|(_, line)| line), WIDTH);
            }
        }
        prose
    }

    /// Counts the messages of Rust source: logs, errors, expectations. The last word of a message is
    /// that of a sentence.
    pub(crate) fn of_messages(text: &str) -> Self {
        let mut words = Self::default();
        for message in messages(text) {
            // Insertions are no prose.
            let parts = message.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
            parts.for_each(|part| words.add_words(part));
            words.trailing += usize::from(ends_trailing(&message));
        }
        Self { in_messages: words.people + words.clauses + words.trailing, ..Self::default() }
    }

    /// Counts the comments of C source, `/* */` and `//`.
    pub(crate) fn of_c(text: &str) -> Self {
        let mut is_within = false;
        let mut prose = Self::of_comments(text, WIDTH, |line| {
            let is_block = is_within || line.starts_with("/*");
            is_within = is_block && !line.contains("*/");
            if is_block { Some(line.trim_matches(['/', '*'])) } else { line.strip_prefix("//") }
        });
        let others = comments(text).into_iter().filter(|comment| comment.is_behind_code);
        others.for_each(|comment| prose.add_words(comment.text));
        prose
    }

    /// Counts the comments of a script or of settings, `#`, also behind code. The width counts of
    /// lines that are comments, against `width`.
    pub(crate) fn of_hash_comments(text: &str, width: usize) -> Self {
        let mut prose = Self::of_comments(text, width, |line| {
            line.strip_prefix('#')
                .filter(|comment| !comment.starts_with('!'))
                .map(|comment| comment.trim_start_matches('#'))
        });
        text.lines().filter_map(comment_behind).for_each(|comment| prose.add_words(comment));
        prose
    }

    /// Counts the comments that `comment_of` finds in lines without their indentation.
    fn of_comments(text: &str, width: usize, mut comment_of: impl FnMut(&str) -> Option<&str>) -> Self {
        let mut prose = Self::default();
        let mut paragraph = Vec::new();
        for line in text.lines() {
            let Some(comment) = comment_of(line.trim_start()) else {
                prose.add_paragraph(&mut paragraph);
                continue;
            };
            prose.add_widths([line], width);
            prose.add_line(&mut paragraph, comment);
        }
        prose.add_paragraph(&mut paragraph);
        prose
    }

    fn add_widths<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>, width: usize) {
        for line in lines {
            self.comment_lines += 1;
            self.long_lines += usize::from(line.chars().count() > width);
        }
    }

    /// Counts a document, without its fenced blocks.
    pub(crate) fn of_markdown(text: &str) -> Self {
        let mut prose = Self::default();
        let mut paragraph = Vec::new();
        let mut is_fenced = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            } else if !is_fenced {
                prose.add_line(&mut paragraph, line);
            }
        }
        prose.add_paragraph(&mut paragraph);
        prose
    }

    /// Adds a line to a paragraph, or counts the one that ends before it.
    fn add_line<'a>(&mut self, paragraph: &mut Vec<&'a str>, line: &'a str) {
        let begins = line.trim_start();
        if begins.is_empty() || ["```", "- ", "* ", "|", "#"].iter().any(|mark| begins.starts_with(mark)) {
            self.add_paragraph(paragraph);
        }
        paragraph.push(line);
        if begins.starts_with("```") {
            self.add_paragraph(paragraph);
        }
    }

    /// Counts a paragraph, and empties it. Quoted code may be over two lines; if a mark of it has no
    /// other, each line is by itself.
    fn add_paragraph(&mut self, paragraph: &mut Vec<&str>) {
        let text = paragraph.join("\n");
        if text.matches('`').count().is_multiple_of(2) {
            self.add_words(&text);
        } else {
            paragraph.iter().for_each(|line| self.add_words(line));
        }
        paragraph.clear();
    }

    fn add_words(&mut self, text: &str) {
        // Code is no prose.
        for text in text.split('`').step_by(2) {
            for word in text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'') {
                let word = word.trim_start_matches('\'').split('\'').next().unwrap_or("").to_lowercase();
                self.words += usize::from(!word.is_empty());
                self.people += usize::from(PEOPLE.contains(&word.as_str()));
                self.clauses += usize::from(CLAUSE.contains(&word.as_str()));
            }
            self.trailing += trailing(text);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.words += other.words;
        self.people += other.people;
        self.clauses += other.clauses;
        self.trailing += other.trailing;
        self.in_messages += other.in_messages;
        self.comment_lines += other.comment_lines;
        self.long_lines += other.long_lines;
    }

    /// Comment lines that are too long, percent; 0 for documents.
    pub(crate) fn long_percent(self) -> f64 {
        100.0 * self.long_lines as f64 / self.comment_lines.max(1) as f64
    }
}

impl fmt::Display for Prose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, people, clauses, trailing, in_messages, .. } = self;
        write!(f, "{words:7} words, {people:3} people words, {clauses:3} free relatives, {trailing:2} trailing words")?;
        write!(f, ", {in_messages:3} in messages")?;
        if self.comment_lines > 0 {
            let long = self.long_percent();
            write!(f, ", {long:4.1} % of {} comment lines too long", self.comment_lines)?;
        }
        Ok(())
    }
}

/// The comment behind code of a script or of settings, if a space is before it and it is in no
/// quotes that the line has. An apostrophe that nothing closes is none.
pub(crate) fn comment_behind(line: &str) -> Option<&str> {
    let mut quote = None;
    let mut is_escaped = false;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match quote {
            _ if is_escaped => is_escaped = false,
            _ if letter == '\\' => is_escaped = true,
            Some(open) if letter == open => quote = None,
            None if ['"', '\''].contains(&letter) && line[at + 1..].contains(letter) => quote = Some(letter),
            None if letter == '#' && before.is_whitespace() && !line[..at].trim().is_empty() => {
                return Some(line[at..].trim_start_matches('#'));
            }
            _ => {}
        }
        before = letter;
    }
    None
}

/// Number of [`TRAILING`] words in a text.
fn trailing(text: &str) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    let has_mark = |at: &usize| words[*at].ends_with(MARKS);
    (0..words.len()).filter(has_mark).filter(|at| is_trailing(&words[..=*at])).count()
}

/// Whether a text without a mark at its end has one of [`TRAILING`] there.
fn ends_trailing(text: &str) -> bool {
    !text.ends_with(MARKS) && is_trailing(&text.split_whitespace().collect::<Vec<_>>())
}

/// Whether the last word is one of [`TRAILING`] without one of [`TIMES`] before it.
fn is_trailing(words: &[&str]) -> bool {
    let lower = |back: usize| words.iter().rev().nth(back).map_or(String::new(), |word| word.to_lowercase());
    let (last, before) = (lower(0), lower(1));
    let last = last.trim_end_matches(MARKS);
    TRAILING.contains(&last) && !(last == "then" && TIMES.contains(&before.as_str()))
}

/// Prose by place: comments and messages of the files below the longest of `folders` that has them,
/// or else of [`ELSEWHERE`]; each document is a place of its own.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn by_place(workspace: &Path, folders: &[&str]) -> Result<BTreeMap<String, Prose>> {
    let mut places: BTreeMap<String, Prose> = folders.iter().map(|it| ((*it).to_owned(), Prose::default())).collect();
    for file in files_below(workspace)? {
        let Ok(text) = String::from_utf8(fs::read(workspace.join(&file))?) else { continue };
        let (place, prose) = if extension_of(&file) == "md" {
            (file.display().to_string(), Prose::of_markdown(&text))
        } else {
            let longest = folders.iter().filter(|folder| file.starts_with(folder)).max_by_key(|folder| folder.len());
            (longest.map_or(ELSEWHERE, |folder| *folder).to_owned(), of_source(&file, &text))
        };
        places.entry(place).or_default().add(prose);
    }
    Ok(places)
}

/// Place of source files that no folder has.
pub(crate) const ELSEWHERE: &str = "elsewhere";

fn of_source(file: &Path, text: &str) -> Prose {
    let width = if WIDER.iter().any(|wider| file == Path::new(wider)) { WIDEST } else { WIDTH };
    match extension_of(file) {
        "rs" => {
            let mut prose = Prose::of_rust(text);
            prose.add(Prose::of_messages(text));
            prose
        }
        "c" | "h" => Prose::of_c(text),
        "py" => {
            let mut prose = Prose::of_hash_comments(text, width);
            docstrings(text).for_each(|docstring| prose.add(Prose::of_markdown(docstring)));
            prose
        }
        _ if HASH_COMMENTS.contains(&extension_of(file)) || file.ends_with("Makefile") => {
            Prose::of_hash_comments(text, width)
        }
        _ if text.starts_with("#!") => Prose::of_hash_comments(text, width),
        _ => Prose::default(),
    }
}

/// Texts in three quotes of a Python program.
fn docstrings(text: &str) -> impl Iterator<Item = &str> {
    let strings = ["\"\"\"", "'''"].into_iter().flat_map(|mark| text.split(mark).skip(1).step_by(2));
    strings.filter(|docstring| !docstring.is_empty())
}

fn extension_of(file: &Path) -> &str {
    file.extension().and_then(OsStr::to_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_at_the_end_of_a_sentence_count() {
        let text =
            "It ends, too. Too many then come now and then. It waits until then; the rest is lost then; (others too)\n";
        assert_eq!(Prose::of_markdown(text).trailing, 3);
    }

    #[test]
    fn comments_count_and_code_does_not() {
        let text =
            "/// Whoever waits: `who()`.\nlet who = \"// who\"; // kept for somebody\n    // nobody knows what\n";
        let prose = Prose::of_rust(text);
        assert_eq!((prose.words, prose.people, prose.clauses, prose.comment_lines), (8, 3, 1, 2));
        let wide = " word".repeat(24);
        let prose = Prose::of_rust(&["f(/* whose */ 1);\n/*\n * who", &wide, "\n */"].concat());
        assert_eq!((prose.people, prose.comment_lines, prose.long_lines), (2, 3, 1));
    }

    #[test]
    fn words_before_an_apostrophe_count() {
        let prose = Prose::of_markdown("It's nobody's, who\u{2019}s there, 'what's left' and the queue's 'whole'.\n");
        assert_eq!((prose.people, prose.clauses, prose.words), (2, 1, 11));
    }

    #[test]
    fn code_over_two_lines_hides_no_words() {
        let prose =
            Prose::of_rust("// `Foo<A,\n// B>` for whoever needs what is left.\n// `one`\nfn f() {}\n// nobody\n");
        assert_eq!((prose.people, prose.clauses), (2, 1));
        assert_eq!(Prose::of_markdown("`who\nwho` what\n\n- a ` who\n- `b` what `who`\n").people, 0);
        assert_eq!(Prose::of_markdown("`who\nwho` what\n\n- a ` who\n- `b` what `who`\n").clauses, 2);
    }

    #[test]
    fn both_kinds_of_c_comments_count_and_code_does_not() {
        let text =
            "/* One: who. */\n/*\n * Two nobody\n   three\n */\nint what; /* kept short */\n\t// four\nint who;\n";
        let prose = Prose::of_c(text);
        assert_eq!((prose.words, prose.people, prose.clauses, prose.comment_lines), (8, 2, 0, 6));
    }

    #[test]
    fn the_first_line_of_a_script_and_its_commands_do_not_count() {
        let text = "#!/bin/sh\n# Someone reads.\n## what\nwho=1 # kept short\n  # last\n";
        let prose = Prose::of_hash_comments(text, WIDTH);
        assert_eq!((prose.words, prose.people, prose.clauses, prose.comment_lines), (6, 1, 1, 3));
    }

    #[test]
    fn comments_behind_code_of_scripts_and_settings_count() {
        let text = "key = 1  # who reads\nrun \"a # who\" 'b # who' # kept, too.\necho a#who $# # what\n\
                    it's = 2\t# somebody\ntext = \"it's\" # nobody\nsed 's#who#b#' x\n";
        let prose = Prose::of_hash_comments(text, WIDTH);
        assert_eq!((prose.words, prose.people, prose.clauses, prose.trailing, prose.comment_lines), (7, 3, 1, 1, 0));
    }

    #[test]
    fn long_comment_lines_of_every_language_count() {
        let line = |start: &str| format!("{start}{}\n", " word".repeat(24));
        let source = of_source(Path::new("a.c"), &line("//"));
        assert_eq!([Prose::of_rust(&line("//")), source].map(|prose| prose.long_lines), [1, 1]);
        let script = |file: &str| of_source(Path::new(file), &format!("#!/bin/sh\n{}", line("#"))).long_lines;
        assert_eq!(["scripts/test", "scripts/lab"].map(script), [1, 0]);
    }

    #[test]
    fn fenced_blocks_are_left_out() {
        let prose = Prose::of_markdown("Two words\n```\nwho what\n```\nthree more words\n");
        assert_eq!((prose.words, prose.people), (5, 0));
    }

    #[test]
    fn texts_of_every_language_count() {
        let prose = |file: &str, text: &str| of_source(Path::new(file), text);
        let python = "#!/usr/bin/python3\n\"\"\"Whoever reads.\n\nwhat `who`\n\"\"\"\nwho = \"who\" # nobody\n";
        let found = prose("a/b.py", python);
        assert_eq!((found.people, found.clauses, found.words), (2, 1, 4));
        for file in ["a.yaml", "a.yml", "roced.sysusers", "roced.service", "a.scriptlets", "a.timer", "Makefile"] {
            assert_eq!(prose(file, "who=1\n# who\n").people, 1, "{file}");
        }
        assert_eq!(prose("a.json", "# who\n").people, 0);
    }

    #[test]
    fn messages_count_without_their_insertions() {
        let text = "fn f() { error!(%who, \"nobody reads {what} that came\"); } // a comment: \"who\"";
        assert_eq!(Prose::of_messages(text).in_messages, 1);
    }

    #[test]
    fn messages_of_assertions_and_last_words_of_messages_count() {
        let text = "fn f() { assert!(a == \"who\", \"it is nobody\"); assert_eq!(a, b(\"who\"), \"what comes\"); \
                    ensure!(x(\"who\"), \"the other, too\"); info!(\"it ends then; now\"); warn!(\"until then\"); \
                    bail!(\"lost then.\"); error!(\"{then} too {x}\"); }";
        assert_eq!(Prose::of_messages(text).in_messages, 5);
    }
}
