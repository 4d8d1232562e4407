//! Crates that know no operating system: without `std`, and with few crates from outside.
//!
//! The compiler alone does not hold them to it: a dependency may bring `std`, and `#![no_std]` may
//! go. That no source but tests says `extern crate std` is a rule of all crates.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result};
use syn::{AttrStyle, Meta};
use toml::Table;

use crate::{crates::Member, files::Sources};

/// A crate without `std`.
struct Isolated {
    folder: &'static str,
    /// Crates from outside that it may use: they make no system calls, or none with the features
    /// of the workspace's manifest.
    outside: &'static [&'static str],
    is_safe: bool,
}

const ISOLATED: [Isolated; 6] = [
    Isolated { folder: "shared/types", outside: &["zerocopy"], is_safe: false },
    Isolated { folder: "shared/steering", outside: &[], is_safe: false },
    Isolated { folder: "shared/report", outside: &["serde"], is_safe: false },
    // Loom is in its place of atomics, in builds of tests alone.
    Isolated { folder: "shared/abi", outside: &["loom", "zerocopy"], is_safe: false },
    Isolated { folder: "transport", outside: &["crc32fast", "thiserror"], is_safe: true },
    Isolated { folder: "cm", outside: &["chacha20", "thiserror"], is_safe: true },
];

/// Attributes and dependencies of crates without `std` that are against the list, and such crates
/// that it does not have.
///
/// # Errors
///
/// A library is not valid Rust.
pub(crate) fn faults(members: &[Member], inherited: &Table, sources: &Sources) -> Result<Vec<String>> {
    against(&ISOLATED, members, inherited, sources)
}

fn against(list: &[Isolated], members: &[Member], inherited: &Table, sources: &Sources) -> Result<Vec<String>> {
    let own: BTreeSet<&str> = members.iter().map(Member::name).collect();
    let is_listed = |name: &str| {
        let folder = members.iter().find(|member| member.name() == name).map(|member| &member.folder);
        folder.is_some_and(|folder| list.iter().any(|isolated| isolated.folder == folder))
    };
    let mut broken = Vec::new();
    for member in members {
        let folder = &member.folder;
        let file = Path::new(folder).join("src/lib.rs");
        let attributes = match sources.get(&file) {
            Some(text) => attributes(text).with_context(|| file.display().to_string())?,
            None => BTreeSet::new(),
        };
        let Some(isolated) = list.iter().find(|isolated| isolated.folder == folder) else {
            if attributes.contains("no_std") {
                broken.push(format!("{folder}: name it in ISOLATED of tests/structure/src/isolation.rs"));
            }
            continue;
        };
        let needed = [("no_std", true), ("forbid(unsafe_code)", isolated.is_safe)];
        let missing = needed.iter().filter(|(attribute, is_needed)| *is_needed && !attributes.contains(*attribute));
        broken.extend(missing.map(|(attribute, _)| format!("{} has no `#![{attribute}]`", file.display())));
        for name in member.dependencies(inherited) {
            if own.contains(name) && !is_listed(name) {
                broken.push(format!("{folder}/Cargo.toml: {folder} has no std, and {name} has it"));
            } else if !own.contains(name) && !isolated.outside.contains(&name) {
                broken.push(format!("{folder}/Cargo.toml: {folder} knows no operating system, and may not use {name}"));
            }
        }
    }
    let gone = list.iter().filter(|isolated| !members.iter().any(|member| member.folder == isolated.folder));
    broken.extend(gone.map(|isolated| format!("there is no crate {} without std", isolated.folder)));
    Ok(broken)
}

/// Attributes of a whole file that have no condition, without spaces.
fn attributes(text: &str) -> syn::Result<BTreeSet<String>> {
    let file = syn::parse_file(text)?;
    let inner = file.attrs.iter().filter(|attribute| matches!(attribute.style, AttrStyle::Inner(_)));
    let texts = inner.filter_map(|attribute| match &attribute.meta {
        Meta::Path(path) => path.get_ident().map(ToString::to_string),
        Meta::List(list) => {
            let name = list.path.get_ident()?;
            Some(format!("{name}({})", list.tokens.to_string().replace(' ', "")))
        }
        Meta::NameValue(_) => None,
    });
    Ok(texts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(folder: &str, dependencies: &str) -> Member {
        let manifest = format!("[package]\nname = \"roced-{folder}\"\n[dependencies]\n{dependencies}");
        Member { folder: folder.into(), manifest: manifest.parse().expect("valid") }
    }

    const LIST: [Isolated; 2] = [
        Isolated { folder: "a", outside: &["zerocopy"], is_safe: false },
        Isolated { folder: "b", outside: &[], is_safe: true },
    ];

    fn faults_of(a: (&str, &str), b: (&str, &str)) -> Vec<String> {
        let members = [member("a", a.0), member("b", b.0), member("c", "nix = {}")];
        let sources = [("a", a.1), ("b", b.1), ("c", "#![forbid(unsafe_code)]")];
        let sources = sources.map(|(folder, text)| (format!("{folder}/src/lib.rs").into(), text.to_owned())).into();
        against(&LIST, &members, &"short = { package = \"libc\" }".parse().expect("valid"), &sources).expect("valid")
    }

    #[test]
    fn a_crate_without_std_uses_listed_crates() {
        let safe = "#![no_std]\n#![forbid(unsafe_code)]";
        assert_eq!(faults_of(("zerocopy = {}", "#![no_std]"), ("roced-a = {}", safe)), [""; 0]);
        let broken = [
            "a/Cargo.toml: a knows no operating system, and may not use nix",
            "a/Cargo.toml: a has no std, and roced-c has it",
            "b/Cargo.toml: b knows no operating system, and may not use libc",
            "b/Cargo.toml: b knows no operating system, and may not use zerocopy",
        ];
        let target = "nix = {}\n[target.x.build-dependencies]\nroced-c = {}";
        let short = "short.workspace = true\nzerocopy = {}";
        assert_eq!(faults_of((target, "#![no_std]"), (short, safe)), broken);
    }

    #[test]
    fn attributes_of_a_crate_without_std_stay() {
        let conditional = "#![cfg_attr(not(test), no_std)]";
        let broken = ["a/src/lib.rs has no `#![no_std]`", "b/src/lib.rs has no `#![forbid(unsafe_code)]`"];
        assert_eq!(faults_of(("", conditional), ("", "#![no_std]")), broken);
        let members = [member("a", ""), member("d", "")];
        let sources = ["a", "d"].map(|folder| (format!("{folder}/src/lib.rs").into(), "#![no_std]".to_owned()));
        let broken = ["d: name it in ISOLATED of tests/structure/src/isolation.rs", "there is no crate b without std"];
        assert_eq!(against(&LIST, &members, &Table::new(), &sources.into()).expect("valid"), broken);
    }
}
