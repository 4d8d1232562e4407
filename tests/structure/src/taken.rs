//! Files of a crate that another one compiles or reads: by `#[path]`, `include_str!`,
//! `include_bytes!`, and `#include` of C. No arrow shows them, so each is named here.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use crate::{
    crates::Member,
    files::{Sources, files_below, normal},
};

/// Sources, each with a file of another crate that it takes.
const ACCEPTED: [(&str, &str); 7] = [
    // Its benches for a program that counts instructions.
    ("bench/pieces/src/main.rs", "transport/benches/engine.rs"),
    // The pair of interfaces, for a test of a whole daemon.
    ("daemon/tests/no_allocation.rs", "xdp/tests/veth/veth.rs"),
    // Command lines for manuals.
    ("packaging/src/main.rs", "ctl/src/cli.rs"),
    ("packaging/src/main.rs", "perf/src/cli.rs"),
    ("packaging/src/main.rs", "perf/src/size.rs"),
    ("packaging/src/main.rs", "run/src/cli.rs"),
    // Its host for the fuzzer.
    ("tests/fuzz/src/lib.rs", "cm/tests/identifiers/fake_host.rs"),
];

/// Files of other crates that are taken and not accepted, paths that cannot be followed, and
/// accepted ones that are not taken.
///
/// # Errors
///
/// A file cannot be read, or is not valid Rust.
pub(crate) fn faults(workspace: &Path, sources: &Sources, members: &[Member]) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let is_c = |file: &&PathBuf| file.extension().is_some_and(|it| it == "c" || it == "h");
    let mut headers = Sources::new();
    for file in files.iter().filter(is_c) {
        headers.insert(
            file.clone(),
            fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string())?,
        );
    }
    against(&ACCEPTED, &files, sources, &headers, members)
}

fn against(
    accepted: &[(&str, &str)],
    files: &BTreeSet<PathBuf>,
    sources: &Sources,
    headers: &Sources,
    members: &[Member],
) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut taken: BTreeSet<(PathBuf, PathBuf)> = BTreeSet::new();
    for (file, text) in sources {
        let mut paths = Paths::default();
        paths.add(text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?);
        let beside = file.parent().unwrap_or(Path::new(""));
        let below = Path::new(crate_of(file, members).unwrap_or(""));
        let targets = paths.beside.iter().map(|path| normal(&beside.join(path)));
        let targets =
            targets.chain(paths.of_crate.iter().map(|path| normal(&below.join(path.trim_start_matches('/')))));
        taken.extend(targets.map(|target| (file.clone(), target)));
        broken.extend(paths.unknown.iter().map(|name| {
            format!(
                "{}: {name} with a path that is no text: write it, from CARGO_MANIFEST_DIR or OUT_DIR as well",
                file.display()
            )
        }));
    }
    for (file, text) in headers {
        let beside = file.parent().unwrap_or(Path::new(""));
        for path in included(text) {
            // By an option of the compiler it may be in any folder.
            let own = normal(&beside.join(path));
            let named = files.iter().filter(|other| other.ends_with(path));
            let is_own = |other: &&PathBuf| crate_of(other, members) == crate_of(file, members);
            let target = Some(&own)
                .filter(|own| files.contains(*own) || path.contains(".."))
                .or_else(|| named.clone().find(is_own));
            taken.extend(target.or(named.clone().next()).map(|target| (file.clone(), target.clone())));
        }
    }
    let is_foreign = |(file, target): &&(PathBuf, PathBuf)| {
        let of = crate_of(target, members);
        target.starts_with("..") || of.is_some() && of != crate_of(file, members)
    };
    let foreign: Vec<(String, String)> = taken
        .iter()
        .filter(is_foreign)
        .map(|(file, target)| (file.display().to_string(), target.display().to_string()))
        .collect();
    let list = "ACCEPTED of tests/structure/src/taken.rs";
    let is_accepted = |pair: &&(String, String)| accepted.contains(&(&pair.0, &pair.1));
    let unknown = foreign.iter().filter(|pair| !is_accepted(pair));
    broken
        .extend(unknown.map(|(file, target)| format!("{file} takes {target} of another crate, and is not in {list}")));
    let gone =
        accepted.iter().filter(|(file, target)| !foreign.iter().any(|pair| pair.0 == *file && pair.1 == *target));
    broken.extend(gone.map(|(file, target)| format!("{file} does not take {target}, which is in {list}")));
    Ok(broken)
}

/// Folder of the crate that a file belongs to; none of documents, settings and scripts.
fn crate_of<'a>(file: &Path, members: &'a [Member]) -> Option<&'a str> {
    let folders = members.iter().map(|member| member.folder.as_str()).filter(|folder| file.starts_with(folder));
    folders.max_by_key(|folder| folder.len())
}

/// Paths of `#include "path"` and `#include <path>`.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let path = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
        path.strip_prefix(['"', '<'])?.split(['"', '>']).next()
    })
}

/// Paths of files that a source takes.
#[derive(Default)]
struct Paths {
    /// From the folder of the source.
    beside: Vec<String>,
    /// From the folder of its crate.
    of_crate: Vec<String>,
    /// Macros with another path.
    unknown: Vec<String>,
}

impl Paths {
    fn add(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match (token, &tokens[at + 1..]) {
                (TokenTree::Group(group), _) => self.add(group.stream()),
                (TokenTree::Ident(name), [TokenTree::Punct(mark), TokenTree::Group(group), ..])
                    if mark.as_char() == '!' && (name == "include_str" || name == "include_bytes") =>
                {
                    self.add_path(&format!("{name}!"), group.stream());
                }
                (TokenTree::Ident(name), [TokenTree::Punct(mark), TokenTree::Literal(path)])
                    if mark.as_char() == '=' && name == "path" =>
                {
                    self.beside.extend(text_of(&path.to_string()));
                }
                _ => {}
            }
        }
    }

    /// The path that a macro has: `"x"`, or `concat!(env!("OUT_DIR"), "/x")`.
    fn add_path(&mut self, name: &str, tokens: TokenStream) {
        let written = tokens.to_string().replace([' ', '\n'], "");
        let written = written.trim_end_matches(',');
        if let Some(path) = text_of(written) {
            self.beside.push(path);
        } else if let Some(path) = written
            .strip_prefix("concat!(env!(\"CARGO_MANIFEST_DIR\"),")
            .and_then(|rest| text_of(rest.strip_suffix(')')?))
        {
            self.of_crate.push(path);
        } else if !written.starts_with("concat!(env!(\"OUT_DIR\"),") || written.contains("..") {
            self.unknown.push(name.to_owned());
        }
    }
}

/// The text of one literal without escapes.
fn text_of(literal: &str) -> Option<String> {
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    (!text.contains(['"', '\\'])).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(accepted: &[(&str, &str)], texts: &[(&str, &str)]) -> Vec<String> {
        let member = |folder: &str| Member { folder: folder.into(), manifest: toml::Table::new() };
        let members = ["a", "b", "b/c"].map(member);
        let all = |is_rust: bool| -> Sources {
            let texts = texts.iter().filter(|(file, _)| file.ends_with(".rs") == is_rust);
            texts.map(|(file, text)| (file.into(), (*text).to_owned())).collect()
        };
        let files = texts.iter().map(|(file, _)| file.into()).collect();
        against(accepted, &files, &all(true), &all(false), &members).expect("valid Rust")
    }

    const NOT_LISTED: &str = "of another crate, and is not in ACCEPTED of tests/structure/src/taken.rs";

    #[test]
    fn files_of_other_crates_are_taken_by_name() {
        for (text, target) in [
            ("const A: &str = include_str!(\"../../b/src/x.rs\");", "b/src/x.rs"),
            ("fn f() { g(std::include_bytes!(\"../../b/c/x\",)); }", "b/c/x"),
            ("#![doc = concat!(\"x\", include_str!(\"../../b/x.md\"))]", "b/x.md"),
            ("const A: &str = include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../b/x\"));", "b/x"),
            ("#[path = \"../../b/src/x.rs\"] mod x;", "b/src/x.rs"),
            ("m! { #[path = \"../../b/src/x.rs\"] mod x; }", "b/src/x.rs"),
            ("const A: &str = include_str!(\"../../../x\");", "../x"),
        ] {
            let broken = vec![format!("a/src/l.rs takes {target} {NOT_LISTED}")];
            assert_eq!(faults_of(&[], &[("a/src/l.rs", text)]), broken, "{text}");
            assert_eq!(faults_of(&[("a/src/l.rs", target)], &[("a/src/l.rs", text)]), [""; 0], "{text}");
        }
        let own = "const A: &str = include_str!(\"../../docs/x.md\"); #[path = \"x.rs\"] mod x; // include_str!(\"../../b/x\")
            const B: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/x\")); const C: &str = include_str!(\"../x\");";
        assert_eq!(faults_of(&[], &[("a/build.rs", "fn f() {}"), ("a/src/l.rs", own)]), [""; 0]);
        assert_eq!(
            faults_of(&[("a/src/l.rs", "b/x")], &[("a/src/l.rs", "")]),
            ["a/src/l.rs does not take b/x, which is in ACCEPTED of tests/structure/src/taken.rs"]
        );
        for unknown in ["concat!(env!(\"OUT_DIR\"), \"/../x\")", "concat!(\"../..\", \"/b/x\")", "$path"] {
            let text = format!("macro_rules! m {{ ($path:expr) => {{ include_str!({unknown}) }}; }}");
            assert_eq!(faults_of(&[], &[("a/src/l.rs", &text)]).len(), 1, "{unknown}");
        }
    }

    #[test]
    fn headers_of_other_crates_are_taken_by_name() {
        let files = |include| [("a/src/x.bpf.c", include), ("a/include/own.h", ""), ("b/src/plant.h", "")];
        for own in ["#include <linux/bpf.h>", "#include \"own.h\"", "#include \"../include/own.h\"", "#include <own.h>"]
        {
            assert_eq!(faults_of(&[], &files(own)), [""; 0], "{own}");
        }
        let broken = [format!("a/src/x.bpf.c takes b/src/plant.h {NOT_LISTED}")];
        for foreign in [
            "#include \"../../b/src/plant.h\"",
            "  # include \"plant.h\"",
            "#include <plant.h>",
            "#include <src/plant.h>",
        ] {
            assert_eq!(faults_of(&[], &files(foreign)), broken, "{foreign}");
        }
        assert_eq!(faults_of(&[("a/src/x.bpf.c", "b/src/plant.h")], &files("#include \"plant.h\"")), [""; 0]);
    }
}
