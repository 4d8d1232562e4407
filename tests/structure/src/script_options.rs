//! Options of scripts: those that a script takes are those of its help, which is the comment at its
//! head; workflows and documents name no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

use crate::files::files_below;

/// The folder of scripts with a help.
const FOLDER: &str = "scripts/";

/// The folder of workflows and of their actions.
const WORKFLOWS: &str = ".github";

/// Every script knows them.
const HELP: [&str; 2] = ["--help", "-h"];

/// Lists of options that a script has as variables.
const LISTS: [&str; 3] = ["flags='", "values='", "files='"];

/// Words between two commands of a line.
const ENDS: [&str; 4] = ["|", "||", "&&", "--"];

/// Options of each script, by its help.
pub(crate) struct Scripts(BTreeMap<String, BTreeSet<String>>);

/// Options that a script or its help lacks, and those of workflows that a script does not have.
///
/// # Errors
///
/// A file cannot be read, or there are no scripts.
pub(crate) fn faults(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let scripts = Scripts::read(workspace)?;
    let mut broken = Vec::new();
    for (name, helped) in &scripts.0 {
        let taken = taken(&read(Path::new(name))?);
        broken.extend(taken.difference(helped).map(|option| format!("{name}: the help lacks {option}")));
        broken.extend(helped.difference(&taken).map(|option| format!("{name}: {option} of the help is not taken")));
    }
    for file in files_below(workspace)?.iter().filter(|file| file.starts_with(WORKFLOWS)) {
        let text = read(file)?;
        for (at, line) in text.lines().enumerate() {
            let faults = scripts.faults(&with_matrix(line, &text));
            broken.extend(faults.into_iter().map(|fault| format!("{}:{}: {fault}", file.display(), at + 1)));
        }
    }
    Ok(broken)
}

impl Scripts {
    /// Those of the workspace.
    ///
    /// # Errors
    ///
    /// A script cannot be read, or there are none.
    pub(crate) fn read(workspace: &Path) -> Result<Self> {
        let mut scripts = BTreeMap::new();
        for entry in fs::read_dir(workspace.join(FOLDER)).context(FOLDER)? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path()).with_context(|| entry.path().display().to_string())?;
            scripts.insert(format!("{FOLDER}{}", entry.file_name().display()), helped(&text));
        }
        ensure!(!scripts.is_empty(), "{FOLDER} has no scripts");
        Ok(Self(scripts))
    }

    #[cfg(test)]
    pub(crate) fn of(name: &str, text: &str) -> Self {
        Self([(name.to_owned(), helped(text))].into())
    }

    /// Options of `scripts/NAME --option` that this script does not have.
    pub(crate) fn faults(&self, words: &[&str]) -> Vec<String> {
        let path = |word: &str| bare(word).trim_start_matches("./").to_owned();
        let begin = words.iter().position(|word| self.0.contains_key(&path(word)));
        let Some(begin) = begin else { return Vec::new() };
        let name = path(words[begin]);
        let own = words[begin + 1..].iter().take_while(|word| !ENDS.contains(word) && !word.starts_with('#'));
        let lost = own.filter_map(|word| option(bare(word))).filter(|option| !self.0[&name].contains(*option));
        lost.filter(|option| !HELP.contains(option)).map(|option| format!("{name} has no option {option}")).collect()
    }
}

/// A word without the punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(['\'', '"', '`', ',', ';', ':', '(', ')', '[', ']'])
}

/// The option that a word is, without its value.
fn option(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--")?;
    let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').unwrap_or(name.len());
    name.starts_with(|letter: char| letter.is_ascii_lowercase()).then(|| &word[..2 + end])
}

/// Options in the comment at the head of a script.
fn helped(script: &str) -> BTreeSet<String> {
    let head = script.lines().skip(1).take_while(|line| line.starts_with('#'));
    let words = head.flat_map(str::split_whitespace).flat_map(|word| word.split('/'));
    words.filter_map(|word| option(bare(word))).map(str::to_owned).collect()
}

/// Options in the patterns of `case`, and in lists.
fn taken(script: &str) -> BTreeSet<String> {
    let code = script.lines().filter(|line| !line.starts_with('#')).map(str::trim_start);
    let lists = code.clone().filter_map(|line| LISTS.iter().find_map(|list| line.strip_prefix(list)));
    let patterns = code.filter_map(|line| line.split_once(')')).map(|(pattern, _)| pattern);
    let is_pattern = |text: &&str| text.starts_with(['-', '\'']) && !text.contains(['$', '"', '(']);
    let words = lists.chain(patterns.filter(is_pattern)).flat_map(|text| text.split([' ', '|', '\'']));
    words.filter_map(option).filter(|option| !HELP.contains(option)).map(str::to_owned).collect()
}

/// Words of a line of a workflow, with every value of a matrix in place of its name.
fn with_matrix<'a>(line: &'a str, workflow: &'a str) -> Vec<&'a str> {
    let values = |key: &str| {
        let below = workflow.lines().map(str::trim).skip_while(move |line| line.strip_suffix(':') != Some(key)).skip(1);
        below.map_while(|line| line.strip_prefix("- ")).flat_map(str::split_whitespace).collect::<Vec<_>>()
    };
    let words = line.split_whitespace();
    words.flat_map(|word| word.strip_prefix("matrix.").map_or_else(|| vec![word], values)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "#!/bin/bash\n# scripts/it [--one N | --two] --json/--three: text of it\n#   --four  text\nset -e\n\
        # --five\nflags='--one --two'\ncase $1 in\n  --json | --help | -h) echo \"--six)\" ;;\n  '--three --four') x ;;\n\
        *) echo --seven ;;\nesac\n";

    #[test]
    fn options_of_the_help_and_of_the_code_are_read() {
        let all = ["--four", "--json", "--one", "--three", "--two"].map(str::to_owned);
        assert_eq!(helped(SCRIPT), all.clone().into());
        assert_eq!(taken(SCRIPT), all.into());
    }

    #[test]
    fn options_that_a_script_does_not_have_are_found() {
        let scripts = Scripts::of("scripts/it", SCRIPT);
        let of = |line: &str| scripts.faults(&line.split_whitespace().collect::<Vec<_>>());
        for right in ["- run: ./scripts/it --one 3 [--two] --help -- --x", "--x scripts/it # --x", "scripts/other --x"]
        {
            assert_eq!(of(right), [""; 0], "{right}");
        }
        assert_eq!(of("scripts/it: --one=1, --gone=2 && --x"), ["scripts/it has no option --gone"]);
    }

    #[test]
    fn values_of_a_matrix_are_words_of_the_command() {
        let workflow = "matrix:\n  system:\n    - --one a\n    - b\n  other:\n    - c\n";
        let words = ["run:", "scripts/it", "${{", "--one", "a", "b", "}}"];
        assert_eq!(with_matrix("run: scripts/it ${{ matrix.system }}", workflow), words);
    }
}
