//! Frequent mistakes in lines that are no TOML, in words that name the remedy.

use std::ops::Range;

use roced_output::shortened;

/// Most characters of a key or value of the file that a report repeats.
const EXCERPT_CHARACTERS_MAX: usize = 64;

/// Message of the parser for a second key or table of a name.
const DUPLICATE: &str = "duplicate key";

/// The message for the parser's error at `offset`, in `line` of the text.
pub(super) fn explained(text: &str, line: &Range<usize>, offset: usize, message: &str) -> String {
    let written = &text[line.clone()];
    let is_value = written.find('=').is_some_and(|at| offset > line.start + at);
    if message == DUPLICATE && !is_value {
        return duplicate(text, line);
    }
    match written.split_once('=') {
        Some((key, value)) if is_value => {
            let value = value.split('#').next().unwrap_or("").trim();
            if value.is_empty() {
                return format!("{} has no value", excerpt(key.trim()));
            }
            let is_word = |letter: char| letter.is_alphanumeric() || "_-./:".contains(letter);
            // One that begins with a digit is a number with a mistake, which the parser names.
            let is_text = value.starts_with(|first: char| first.is_alphabetic() || "_/.".contains(first));
            if !is_text || !value.chars().all(is_word) {
                return excerpt(message);
            }
            let (key, value) = (excerpt(key.trim()), excerpt(value));
            format!("{value} is no number, true or false; a text has quotes: {key} = \"{value}\"")
        }
        _ => excerpt(message),
    }
}

/// The name that is there a second time, and the place of the first.
fn duplicate(text: &str, line: &Range<usize>) -> String {
    let name = |line: &str| match line.trim().strip_prefix('[') {
        Some(_) => line.split('#').next().unwrap_or("").trim().to_owned(),
        None => line.split_once('=').map_or(line, |(key, _)| key).trim().to_owned(),
    };
    let repeated = name(&text[line.clone()]);
    let is_table = repeated.starts_with('[');
    let before = text[..line.start].lines().enumerate();
    let first = if is_table {
        before.map(|(at, line)| (at, name(line))).find(|(_, it)| *it == repeated)
    } else {
        // Of the same table.
        let section: Vec<_> = before.collect();
        let head = section.iter().rposition(|(_, line)| line.trim_start().starts_with('[')).map_or(0, |at| at + 1);
        section[head..].iter().map(|(at, line)| (*at, name(line))).find(|(_, it)| *it == repeated)
    };
    let first = first.map_or(String::new(), |(at, _)| format!(", the first is in line {}", at + 1));
    format!("{} is here a second time{first}", excerpt(&repeated))
}

/// A key, a value or a message of the parser, in short.
pub(super) fn excerpt(text: &str) -> String {
    shortened(text, EXCERPT_CHARACTERS_MAX)
}
