//! Options and subcommands of the programs in commands that documents quote: each is one that the
//! program's command line has.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};
use proc_macro2::TokenTree;
use syn::{
    Attribute, Field, ItemEnum, Meta,
    visit::{self, Visit},
};

use crate::{files::files_below, quoted::HISTORY};

/// Programs, and the sources of their command lines.
const PROGRAMS: [(&str, &str); 4] = [
    ("roce-perf", "perf/src/cli.rs"),
    ("roce-run", "run/src/cli.rs"),
    ("rocectl", "ctl/src/cli.rs"),
    ("roced", "daemon/src/cli.rs"),
];

/// Words that a program's name may follow in a command.
const BEFORE: [&str; 5] = ["sudo", "$", "--", "|", "&&"];

/// Words that end a command.
const AFTER: [&str; 6] = ["|", "&&", ";", "&", "#", "--"];

/// Options of every program.
const COMMON: [&str; 2] = ["help", "version"];

/// Names that a command line has, without dashes at the beginning.
#[derive(Default)]
struct CommandLine {
    options: BTreeSet<String>,
    subcommands: BTreeSet<String>,
}

/// Options and subcommands that no program has.
///
/// # Errors
///
/// A file cannot be read, or a source has no options.
pub(crate) fn faults(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let mut programs = Vec::new();
    for (name, source) in PROGRAMS {
        let line = CommandLine::of(&read(Path::new(source))?).with_context(|| source.to_owned())?;
        ensure!(!line.options.is_empty(), "{source} has no options");
        programs.push((name, line));
    }
    let mut broken = Vec::new();
    let is_document = |file: &Path| file.extension().is_some_and(|it| it == "md") && file != Path::new(HISTORY);
    for document in files_below(workspace)?.into_iter().filter(|file| is_document(file)) {
        let faults = faults_of_document(&programs, &read(&document)?).into_iter();
        broken.extend(faults.map(|(line, fault)| format!("{}:{line}: {fault}", document.display())));
    }
    Ok(broken)
}

/// Faults of a document, each with its line.
fn faults_of_document(programs: &[(&str, CommandLine)], text: &str) -> Vec<(usize, String)> {
    let mut is_fenced = false;
    let mut faults = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_block = is_fenced || line.starts_with("    ") && !line.contains('`');
        let commands: Vec<&str> = if is_block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        let of_programs = programs.iter().flat_map(|(name, program)| {
            commands.iter().filter(|_| !is_fence).flat_map(|command| program.faults(name, command)).collect::<Vec<_>>()
        });
        faults.extend(of_programs.map(|fault| (at + 1, fault)));
    }
    faults
}

impl CommandLine {
    fn of(source: &str) -> Result<Self> {
        let mut line = Self::default();
        line.visit_file(&syn::parse_file(source)?);
        Ok(line)
    }

    /// Faults of a command of this program. One without subcommands starts another program, which
    /// has options of its own.
    fn faults(&self, name: &str, command: &str) -> Vec<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let is_called = |at: &usize| words[*at] == name && (*at == 0 || BEFORE.contains(&words[at - 1]));
        let Some(begin) = (0..words.len()).find(is_called) else { return Vec::new() };
        let own = words[begin + 1..].iter().take_while(|word| !AFTER.contains(word));
        let is_own = |word: &&&str| !self.subcommands.is_empty() || word.starts_with('-');
        let own: Vec<&str> = own.take_while(is_own).copied().collect();
        let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter == '-';
        let subcommand = own.first().filter(|word| !word.starts_with('-') && word.chars().all(is_of_name));
        let subcommand = subcommand.filter(|word| !self.subcommands.contains(**word));
        let options = own.iter().filter_map(|word| {
            let option = word.strip_prefix("--")?.split(|letter| !is_of_name(letter)).next()?;
            (!COMMON.contains(&option) && !self.options.contains(option))
                .then(|| format!("{name} has no option --{option}"))
        });
        subcommand.map(|word| format!("{name} has no subcommand {word}")).into_iter().chain(options).collect()
    }
}

impl<'ast> Visit<'ast> for CommandLine {
    fn visit_field(&mut self, field: &'ast Field) {
        let name = field.ident.as_ref().map(|name| name.to_string().replace('_', "-"));
        self.options.extend(field.attrs.iter().filter_map(|attribute| long_option(attribute, name.as_deref())));
        visit::visit_field(self, field);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        if item.attrs.iter().any(|attribute| words_of(attribute, "derive").iter().any(|word| word == "Subcommand")) {
            self.subcommands.extend(item.variants.iter().map(|variant| kebab(&variant.ident.to_string())));
        }
        visit::visit_item_enum(self, item);
    }
}

/// Tokens of an attribute with that name.
fn words_of(attribute: &Attribute, name: &str) -> Vec<String> {
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident(name) => {
            list.tokens.clone().into_iter().map(|token: TokenTree| token.to_string()).collect()
        }
        _ => Vec::new(),
    }
}

/// The option of a field with `#[arg(long)]` or `#[arg(long = "name")]`.
fn long_option(attribute: &Attribute, field: Option<&str>) -> Option<String> {
    let words = words_of(attribute, "arg");
    let at = words.iter().position(|word| word == "long")?;
    let is_named = words.get(at + 1).is_some_and(|word| word == "=");
    let given = words.get(at + 2).filter(|_| is_named).map(|name| name.trim_matches('"').to_owned());
    given.or_else(|| field.map(str::to_owned))
}

fn kebab(variant: &str) -> String {
    let dashed = variant.chars().enumerate().flat_map(|(at, letter)| {
        let dash = (at > 0 && letter.is_ascii_uppercase()).then_some('-');
        dash.into_iter().chain([letter.to_ascii_lowercase()])
    });
    dashed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[derive(Subcommand)] enum C { Run { #[arg(long, value_name = \"N\")] no_box: u8 }, CheckConfig { #[arg(long = \"x\")] y: u8 } }
        enum Other { Gone } struct D { #[arg(long, global = true)] json: bool, #[arg(short)] gone: bool, late: u8 }";

    fn found(text: &str) -> Vec<String> {
        let programs = [
            ("it", CommandLine::of(SOURCE).expect("valid")),
            ("runs", CommandLine::of("struct A { #[arg(long)] files: u8 }").expect("valid")),
        ];
        faults_of_document(&programs, text).into_iter().map(|(line, fault)| format!("{line}: {fault}")).collect()
    }

    #[test]
    fn options_and_subcommands_that_there_are_are_right() {
        let right = "`it run --no-box 1 --json` it gone `it` `it NAME` `it --help` `it, gone` `-p it --gone` `it --x=1`\n```\n\
                     sudo it check-config /file | grep --gone\nruns --files=x prog --gone\n  it run # --gone\n```\n";
        assert_eq!(found(right), [""; 0]);
    }

    #[test]
    fn options_and_subcommands_that_are_gone_are_found() {
        let wrong = "`it gone` `sudo it run --gone`\n```\nruns --json prog\nlab exec a -- it check-config --y 1\n```\n    it late\n";
        let faults = [
            "1: it has no subcommand gone",
            "1: it has no option --gone",
            "3: runs has no option --json",
            "4: it has no option --y",
            "6: it has no subcommand late",
        ];
        assert_eq!(found(wrong), faults);
    }
}
