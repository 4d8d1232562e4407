//! Spelling: American, in comments, documents and NOTICE. One spelling, so that a search finds all.

use std::{ffi::OsStr, fs, path::Path};

use anyhow::Result;

use crate::{comments::comments, files::files_below, prose::HASH_COMMENTS};

/// British beginnings of words, each with the American one.
const BEGINNINGS: [(&str, &str); 27] = [
    ("acknowledgement", "acknowledgment"),
    ("analyse", "analyze"),
    ("artefact", "artifact"),
    ("authoris", "authoriz"),
    ("behaviour", "behavior"),
    ("cancelled", "canceled"),
    ("catalogue", "catalog"),
    ("colour", "color"),
    ("defence", "defense"),
    ("favour", "favor"),
    ("honour", "honor"),
    ("initialis", "initializ"),
    ("judgement", "judgment"),
    ("labelled", "labeled"),
    ("licence", "license"),
    ("minimis", "minimiz"),
    ("modelled", "modeled"),
    ("neighbour", "neighbor"),
    ("normalis", "normaliz"),
    ("offence", "offense"),
    ("optimisation", "optimization"),
    ("optimise", "optimize"),
    ("organis", "organiz"),
    ("recognis", "recogniz"),
    ("serialis", "serializ"),
    ("synchronis", "synchroniz"),
    ("whilst", "while"),
];

/// British words, each with the American one.
const WORDS: [(&str, &str); 3] = [("fulfil", "fulfill"), ("grey", "gray"), ("towards", "toward")];

/// British words of the workspace, each with its file.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn british(workspace: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in files_below(workspace)? {
        let Ok(text) = String::from_utf8(fs::read(workspace.join(&file))?) else { continue };
        for (word, american) in british_words(&prose_of(&file, &text)) {
            broken.push(format!("{}: {word} is British: {american}", file.display()));
        }
    }
    Ok(broken)
}

/// Text of comments and documents, without code.
fn prose_of(file: &Path, text: &str) -> String {
    let hash_comments = || text.lines().filter_map(|line| line.trim_start().strip_prefix('#')).collect::<Vec<_>>();
    match file.extension().and_then(OsStr::to_str).unwrap_or("") {
        "rs" | "c" | "h" => without_code(comments(text).into_iter().map(|comment| comment.text)),
        "md" => {
            let mut is_fenced = false;
            without_code(text.lines().filter(|line| {
                let is_fence = line.trim_start().starts_with("```");
                is_fenced ^= is_fence;
                !is_fenced && !is_fence
            }))
        }
        extension if HASH_COMMENTS.contains(&extension) => without_code(hash_comments().into_iter()),
        _ if text.starts_with("#!") => without_code(hash_comments().into_iter()),
        _ if file == Path::new("NOTICE") => without_code(text.lines()),
        _ => String::new(),
    }
}

fn without_code<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.flat_map(|line| line.split('`').step_by(2).chain(["\n"])).collect()
}

fn british_words(text: &str) -> impl Iterator<Item = (String, &'static str)> {
    let words = text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
    words.filter_map(|word| {
        let begins = |(british, _): &&(&str, &str)| word.starts_with(british);
        let is = |(british, _): &&(&str, &str)| word == *british;
        let (_, american) = BEGINNINGS.iter().find(begins).or_else(|| WORDS.iter().find(is))?;
        Some((word, *american))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn british_words_of_prose_are_found_and_those_of_code_are_not() {
        let found = |file: &str, text: &str| {
            let prose = prose_of(Path::new(file), text);
            british_words(&prose).map(|(word, _)| word).collect::<Vec<_>>()
        };
        let source = "use neighbour::Neighbour; // Neighbours of `neighbour`, an optimistic one\n";
        assert_eq!(found("a.rs", source), ["neighbours"]);
        assert_eq!(found("a.md", "Defences\n```\ncolour\n```\ntowards a `licence`\n"), ["defences", "towards"]);
        assert_eq!(found("a.toml", "colour = 1\n# honoured\n"), ["honoured"]);
        assert_eq!(found("NOTICE", "their licences"), ["licences"]);
        assert_eq!(found("a.svg", "their licences"), [""; 0]);
    }
}
