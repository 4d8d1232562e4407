//! Files and functions of tests that nothing runs: inputs of fuzz targets that are gone, functions
//! missing from the list of tests between two hosts, programs that no build names, mutants with
//! another ending.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::{FnArg, Item, ItemFn, ItemMacro, ReturnType, Visibility, visit::Visit};

use crate::{
    crates::Member,
    files::{Sources, files_below},
    lists::{TARGETS, fuzz_targets},
};

/// A folder for each fuzz target, with inputs.
const REGRESSIONS: &str = "tests/fuzz/regressions";

/// Tests between two hosts; the list is in its `main.rs`.
const TWO_HOSTS: &str = "tests/e2e/tests";

/// Extensions of sources below `tests` that something builds, includes or starts by their name.
const PROGRAMS: [&str; 3] = ["c", "h", "py"];

/// Files and functions of tests that nothing runs.
///
/// # Errors
///
/// A file cannot be read, or has no list of tests.
pub(crate) fn faults(workspace: &Path, sources: &Sources, members: &[Member]) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let targets = fuzz_targets(sources.get(Path::new(TARGETS)).context(TARGETS)?);
    let mut broken = wrong_inputs(&files, &targets);
    broken.extend(wrong_mutants(&files));
    broken.extend(unlisted_tests(sources)?);
    broken.extend(members.iter().filter_map(conditional_tests));
    let mut texts = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_none_or(|it| it != "md" && it != "patch")) {
        if let Ok(text) = String::from_utf8(fs::read(workspace.join(file))?) {
            texts.push((file, text));
        }
    }
    broken.extend(unnamed_programs(&files, &texts));
    Ok(broken)
}

/// Inputs that no fuzz target reads.
fn wrong_inputs(files: &BTreeSet<PathBuf>, targets: &[String]) -> Vec<String> {
    let inputs = files.iter().filter_map(|file| Some((file, file.strip_prefix(REGRESSIONS).ok()?)));
    let is_read = |input: &Path| {
        let parts: Vec<_> = input.iter().collect();
        parts.len() == 2 && targets.iter().any(|target| parts[0] == target.as_str())
    };
    let lost = inputs.filter(|(_, input)| !is_read(input));
    lost.map(|(file, _)| format!("{}: no fuzz target reads it, {TARGETS} names them", file.display())).collect()
}

/// Files beside mutants that are no patches: only these are applied.
fn wrong_mutants(files: &BTreeSet<PathBuf>) -> Vec<String> {
    let is_of_mutants = |file: &&PathBuf| file.parent().is_some_and(|folder| folder.ends_with("mutants"));
    let others = files.iter().filter(is_of_mutants).filter(|file| file.extension().is_none_or(|it| it != "patch"));
    others.map(|file| format!("{}: scripts/mutants applies *.patch", file.display())).collect()
}

/// Tests that `cargo test` builds only with a feature: scripts/test gives none.
fn conditional_tests(member: &Member) -> Option<String> {
    let mut tests = member.manifest.get("test").and_then(toml::Value::as_array).into_iter().flatten();
    let is_conditional = tests.any(|test| test.get("required-features").is_some());
    is_conditional.then(|| format!("{}/Cargo.toml: a [[test]] with required-features never runs", member.folder))
}

/// The list of tests between two hosts, as `module::name`.
///
/// # Errors
///
/// A file is not valid Rust, or none has the list.
pub(crate) fn listed_tests(sources: &Sources) -> Result<BTreeSet<String>> {
    let mut list = TestList::default();
    for (file, text) in sources.iter().filter(|(file, _)| file.parent() == Some(Path::new(TWO_HOSTS))) {
        list.visit_file(&syn::parse_file(text).with_context(|| file.display().to_string())?);
    }
    ensure!(!list.found.is_empty(), "{TWO_HOSTS} has no list tests! {{ ... }}");
    Ok(list.found.into_iter().collect())
}

/// Functions like tests between two hosts that the list does not name.
fn unlisted_tests(sources: &Sources) -> Result<Vec<String>> {
    let listed = listed_tests(sources)?;
    let mut defined = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| file.parent() == Some(Path::new(TWO_HOSTS))) {
        let module = file.file_stem().unwrap_or_default().to_string_lossy();
        let syntax = syn::parse_file(text).with_context(|| file.display().to_string())?;
        let functions = syntax.items.iter().filter_map(|item| match item {
            Item::Fn(function) if is_test_of_two_hosts(function) => Some(function.sig.ident.to_string()),
            _ => None,
        });
        defined.extend(functions.map(|name| format!("{module}::{name}")));
        let macros = syntax.items.iter().filter_map(|item| match item {
            Item::Macro(called) if called.ident.is_none() => Some(cells(called)),
            _ => None,
        });
        defined.extend(macros.flatten().map(|name| format!("{module}::{name}")));
    }
    let lost = defined.into_iter().filter(|name| !listed.contains(name));
    Ok(lost.map(|name| format!("{TWO_HOSTS}: tests! of main.rs does not name {name}, it never runs")).collect())
}

/// Whether a function is as `pub(crate) fn name(settings: &Settings) -> Result<()>`.
fn is_test_of_two_hosts(function: &ItemFn) -> bool {
    let has_settings = |argument: &FnArg| match argument {
        FnArg::Typed(argument) => matches!(&*argument.ty, syn::Type::Reference(to) if is_named(&to.elem, "Settings")),
        FnArg::Receiver(_) => false,
    };
    let inputs = &function.sig.inputs;
    let is_result = matches!(&function.sig.output, ReturnType::Type(_, to) if is_named(to, "Result"));
    let is_private = matches!(function.vis, Visibility::Inherited);
    !is_private && inputs.len() == 1 && inputs.iter().all(has_settings) && is_result
}

fn is_named(of: &syn::Type, name: &str) -> bool {
    matches!(of, syn::Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == name))
}

/// Names of tests that `cells! { name: "service" "operation"; }` defines.
fn cells(called: &ItemMacro) -> Vec<String> {
    if !called.mac.path.is_ident("cells") {
        return Vec::new();
    }
    names_before(called.mac.tokens.clone(), ':')
}

/// Names with a mark behind them.
fn names_before(tokens: TokenStream, mark: char) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let names = tokens.windows(2).filter_map(|pair| match pair {
        [TokenTree::Ident(name), TokenTree::Punct(next)] if next.as_char() == mark => Some(name.to_string()),
        _ => None,
    });
    names.collect()
}

/// Names of `tests! { module: name name; }`, as `module::name`.
#[derive(Default)]
struct TestList {
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for TestList {
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if !called.path.is_ident("tests") {
            return;
        }
        let text = called.tokens.to_string();
        for (module, names) in text.split(';').filter_map(|part| part.split_once(':')) {
            self.found.extend(names.split_whitespace().map(|name| format!("{}::{name}", module.trim())));
        }
    }
}

/// Programs of tests that no other file names.
fn unnamed_programs(files: &BTreeSet<PathBuf>, texts: &[(&PathBuf, String)]) -> Vec<String> {
    let is_program = |file: &&PathBuf| {
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or("");
        file.starts_with("tests") && PROGRAMS.contains(&extension)
    };
    let is_unnamed = |file: &&PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        !texts.iter().any(|(other, text)| other != file && has_name(text, &name))
    };
    let unnamed = files.iter().filter(is_program).filter(is_unnamed);
    unnamed.map(|file| format!("{}: no other file names it, nothing builds or runs it", file.display())).collect()
}

/// Whether a text has a name that is no part of a longer one.
fn has_name(text: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    text.match_indices(name).any(|(at, _)| {
        let behind = &text[at + name.len()..];
        // A sentence may end there.
        let behind = behind.strip_prefix('.').unwrap_or(behind);
        !text[..at].ends_with(is_of_name) && !behind.starts_with(|letter| is_of_name(letter) && letter != '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> BTreeSet<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn inputs_and_mutants_that_nothing_reads_are_found() {
        let file = |name: &str| format!("{REGRESSIONS}/{name}");
        let names = ["frame/a", "gone/b", "c", "frame/d/e"].map(file);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lost = ["c", "frame/d/e", "gone/b"]
            .map(|name| format!("{}: no fuzz target reads it, tests/fuzz/src/lib.rs names them", file(name)));
        assert_eq!(wrong_inputs(&paths(&names), &["frame".into()]), lost);
        let files = paths(&["cm/mutants/a.patch", "cm/mutants/b.diff", "x/mutants/c", "scripts/mutants", "a.diff"]);
        let broken =
            ["cm/mutants/b.diff", "x/mutants/c"].map(|file| format!("{file}: scripts/mutants applies *.patch"));
        assert_eq!(wrong_mutants(&files), broken);
    }

    #[test]
    fn tests_behind_a_feature_are_found() {
        let member = |manifest: &str| Member { folder: "a".into(), manifest: manifest.parse().expect("valid") };
        let test = "[[test]]\nname = \"x\"\nharness = false\n";
        assert_eq!(conditional_tests(&member(test)), None);
        let broken = "a/Cargo.toml: a [[test]] with required-features never runs";
        let conditional = member(&format!("{test}[[test]]\nname = \"y\"\nrequired-features = [\"z\"]\n"));
        assert_eq!(conditional_tests(&conditional).as_deref(), Some(broken));
    }

    #[test]
    fn a_function_that_the_list_forgets_is_found() {
        let sources: Sources = [
            ("main.rs", "macro_rules! tests { () => {} } const TESTS: X = tests! { a: one two; b: three; };"),
            (
                "a.rs",
                "pub(crate) fn one(_: &Settings) -> Result<()> {} pub(crate) fn four(s: &crate::Settings) -> Result<()> {}
                 fn five(s: &Settings) -> Result<()> {} pub(crate) fn six(s: &Settings) -> u8 {} pub(crate) fn seven() {}
                 cells! { two: \"x\" \"y\"; eight: \"x\" \"y\"; }",
            ),
            ("b.rs", "pub(crate) fn one(_: &Settings) -> Result<()> {} pub(crate) fn three(_: &Settings) -> Result<()> {}"),
        ]
        .map(|(file, text)| (Path::new(TWO_HOSTS).join(file), text.to_owned()))
        .into();
        let broken = ["a::four", "a::eight", "b::one"]
            .map(|name| format!("tests/e2e/tests: tests! of main.rs does not name {name}, it never runs"));
        assert_eq!(unlisted_tests(&sources).expect("valid Rust"), broken);
    }

    #[test]
    fn a_program_that_no_file_names_is_found() {
        let files =
            paths(&["tests/a/ends.c", "tests/a/new.c", "tests/a/x.py", "tests/a/y.h", "src/z.c", "tests/a/run"]);
        let texts = [("tests/a/run", "gcc a/ends.c bends.c; python3 \"$here/x.py\""), ("tests/a/new.c", "y.h new.c")];
        let texts = texts.map(|(file, text)| (PathBuf::from(file), text.to_owned()));
        let texts: Vec<_> = texts.iter().map(|(file, text)| (file, text.clone())).collect();
        let broken = ["tests/a/new.c: no other file names it, nothing builds or runs it"];
        assert_eq!(unnamed_programs(&files, &texts), broken);
        assert!(!has_name("renew.c new.cc new.c.o new.c-x", "new.c") && has_name("It is new.c.", "new.c"));
    }
}
