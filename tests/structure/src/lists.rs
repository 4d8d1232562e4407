//! Facts that stand in two places: fuzz targets of the nightly workflow and of docs/fuzzing.md,
//! keys that a reload applies, at the head of config/roced.toml, the version of the client ABI, and
//! scripts, which CONTRIBUTING.md names.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// The list of fuzz targets.
pub(crate) const TARGETS: &str = "tests/fuzz/src/lib.rs";

/// The workflow with a matrix of fuzz targets.
const NIGHTLY: &str = ".github/workflows/nightly.yml";

/// The document with a table of fuzz targets.
const FUZZING: &str = "docs/fuzzing.md";

/// The effect of each key's change.
const CHANGES: &str = "daemon/src/config/changes.rs";

/// The config with every key.
pub(crate) const CONFIG: &str = "config/roced.toml";

/// The constant with the version of the client ABI.
const ABI: &str = "shared/abi/src/lib.rs";

/// The document that begins with that version.
const ABI_DOCUMENT: &str = "docs/client-abi.md";

/// The folder of scripts.
const SCRIPTS: &str = "scripts";

/// The document that names every script.
const CONTRIBUTING: &str = "CONTRIBUTING.md";

/// Lists and versions that differ.
///
/// # Errors
///
/// A file cannot be read, or has no such list.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let read = |file| fs::read_to_string(workspace.join(file)).context(file);
    let mut broken = Vec::new();
    let targets = fuzz_targets(&read(TARGETS)?);
    ensure!(!targets.is_empty(), "{TARGETS} has no targets");
    for (file, listed) in [(NIGHTLY, matrix(&read(NIGHTLY)?)), (FUZZING, rows(&read(FUZZING)?))] {
        if listed != targets {
            broken.push(format!("{file} has the fuzz targets {}, {TARGETS} {}", listed.join(" "), targets.join(" ")));
        }
    }
    let applied = applied_keys(&sections(&read(CHANGES)?)?);
    if !head(&read(CONFIG)?).contains(&format!("A reload applies {applied} (")) {
        broken.push(format!("the head of {CONFIG} does not say, by {CHANGES}: A reload applies {applied} (...)"));
    }
    let version = abi_version(&read(ABI)?).with_context(|| format!("{ABI} has no version"))?;
    if !read(ABI_DOCUMENT)?.contains(&format!("**Version {version}.**")) {
        broken.push(format!("{ABI_DOCUMENT} does not say \"**Version {version}.**\", the VERSION of {ABI}"));
    }
    let contributing = read(CONTRIBUTING)?;
    for script in fs::read_dir(workspace.join(SCRIPTS)).context(SCRIPTS)? {
        let script = format!("{SCRIPTS}/{}", script?.file_name().display());
        if !names(&contributing, &script) {
            broken.push(format!("{CONTRIBUTING} does not name {script}"));
        }
    }
    Ok(broken)
}

/// Whether the document has the name, alone or with arguments, in backticks or in a block.
fn names(document: &str, script: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || ['-', '/', '_'].contains(&next));
    document.match_indices(script).any(|(at, _)| ends(&document[at + script.len()..]))
}

/// Value of the constant `VERSION`.
fn abi_version(source: &str) -> Option<u32> {
    source.lines().find_map(|line| line.strip_prefix("pub const VERSION: u32 = ")?.strip_suffix(';')?.parse().ok())
}

/// Names of the list `Target { name: "...", ... }`.
pub(crate) fn fuzz_targets(source: &str) -> Vec<String> {
    let names = source.split("Target { name: \"").skip(1).filter_map(|rest| rest.split_once('"'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// Names of `target: [name, name]`.
fn matrix(workflow: &str) -> Vec<String> {
    let list = workflow.lines().find_map(|line| line.trim().strip_prefix("target: [")?.strip_suffix(']'));
    list.into_iter().flat_map(|list| list.split(", ")).map(str::to_owned).collect()
}

/// Names in the first column of the table.
fn rows(document: &str) -> Vec<String> {
    let names = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// Comments at the head of the config, in one line.
fn head(config: &str) -> String {
    let lines = config.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    lines.collect::<Vec<_>>().join(" ")
}

/// A section of the config, with its keys: whether a reload applies a change.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    name: String,
    keys: Vec<(String, bool)>,
}

/// Sections that `section!` and `add` have, in order.
///
/// # Errors
///
/// The text has another form.
fn sections(source: &str) -> Result<Vec<Section>> {
    let source = source.split("#[cfg(test)]").next().unwrap_or("");
    let mut sections = Vec::new();
    for call in source.split("section!(").skip(1) {
        let (_, rest) = call.split_once('"').context("section! without a section")?;
        let (name, rest) = rest.split_once('"').context("section! without a section")?;
        let (_, rest) = rest.split_once('{').context("section! without keys")?;
        let (body, _) = rest.split_once('}').context("section! without keys")?;
        let lines: String = body.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let keys = lines.split(',').filter_map(|key| key.split_once("=>"));
        let keys = keys.map(|(key, effect)| (key.trim().to_owned(), effect.trim() != "Restart")).collect();
        sections.push(Section { name: name.to_owned(), keys });
    }
    ensure!(sections.len() > 5, "{CHANGES} has no sections");
    let mut calls = source.lines().filter(|line| line.contains("changes.add(\""));
    let outside = calls.find(|line| !line.ends_with("Effect::Restart);"));
    ensure!(outside.is_none(), "{CHANGES} applies a key outside of section!: {outside:?}");
    Ok(sections)
}

/// Keys that a reload applies: by section, if it applies most keys of one. The device is last.
fn applied_keys(sections: &[Section]) -> String {
    let mut parts = Vec::new();
    for Section { name, keys } in sections {
        let named = |is_applied: bool| keys.iter().filter(move |key| key.1 == is_applied).map(|key| key.0.clone());
        let (applied, others): (Vec<_>, Vec<_>) = (named(true).collect(), named(false).collect());
        match (name.as_str(), applied.len(), others.len()) {
            (_, 0, _) => {}
            ("device", ..) => parts.push(format!("and of a device {}", enumerated(&applied))),
            (_, _, 0) => parts.push(format!("[{name}]")),
            (_, most, few) if few < most => parts.push(format!("[{name}] except {}", enumerated(&others))),
            _ => parts.extend(applied.iter().map(|key| format!("{name}.{key}"))),
        }
    }
    parts.join(", ")
}

/// `a, b and c`.
fn enumerated(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_in_all_three_places() {
        let source =
            "struct Target { name: &str }\n&[\n    Target { name: \"a\", run },\n    Target { name: \"b_c\", run },\n]";
        let workflow = "  matrix:\n        target: [a, b_c]\n";
        let document = "| Target | Input |\n|---|---|\n| `a` | `x` |\n| `b_c` | y |\n";
        assert_eq!([fuzz_targets(source), matrix(workflow), rows(document)], [["a", "b_c"]; 3]);
    }

    #[test]
    fn applied_keys_are_those_without_a_restart() {
        let source = "section!(\"log\", L { level => Apply, target => Restart, });
            section!(\"admin\", A { socket => Restart, });
            section!(\"net\", N { x => Apply, });
            section!(\"limits.client\", C {
                qps => Apply,
                // Tables, of that size.
                cqs => Restart,
                mrs => Apply,
            });
            section!(\"limits.device\", D { qps => Restart, });
            section!(\"device\", D { x => Restart, y => Attach, z => Attach, });
            changes.add(\"limits\", \"clients\", Effect::Restart);";
        let applied = applied_keys(&sections(source).expect("the usual form"));
        assert_eq!(applied, "log.level, [net], [limits.client] except cqs, and of a device y and z");
        let outside = source.replace("\"clients\", Effect::Restart", "\"clients\", Effect::Apply");
        assert!(sections(&outside).is_err());
    }

    #[test]
    fn a_longer_name_is_no_mention_of_a_script() {
        assert!(names("`scripts/lab up`, `scripts/test`.", "scripts/test"));
        assert!(!names("`scripts/test-all`, `scripts/tests`", "scripts/test"));
    }

    #[test]
    fn the_head_ends_with_its_comment() {
        assert_eq!(head("# a\n#\n# b (\n\n# c\n"), "a  b (");
    }

    #[test]
    fn the_version_is_that_of_the_constant() {
        assert_eq!(abi_version("// pub const VERSION: u32 = 1;\npub const VERSION: u32 = 15;\n"), Some(15));
        assert_eq!(abi_version("pub const VERSIONS: u32 = 1;\n"), None);
    }
}
