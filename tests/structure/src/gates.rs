//! The gates of a change: lines of the tests of scripts, and the lints of each crate. A step that
//! was left out for a while would not be missed otherwise.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::crates::Member;

/// Tests of scripts, and lines that each must have; tests/structure/src/verbatim.rs has the scripts.
const STEPS: [(&str, &[&str]); 2] = [
    (
        ".ci/usage-test",
        &[
            r#"complain() { printf 'usage-test: %s: %s\n%s\n' "$words" "$*" "$(head -5 "$folder/out" "$folder/err")" >&2; failed=1; }"#,
            r#"((code == 2)) || complain "exit code $code, not 2""#,
            r#"helps "$script" --help"#,
            r#"refuses "$script" --bogus"#,
        ],
    ),
    (
        ".ci/belongings-test",
        &[
            r#"complain() { printf 'belongings-test: line %s: %s\n%s\n' "${BASH_LINENO[0]}" "$*" "$(tail -5 "$folder/out")" >&2; failed=1; }"#,
        ],
    ),
];

/// Lints that the workspace denies.
pub(crate) const DENIED: [(&str, &str); 5] = [
    ("rust", "unsafe_code"),
    ("clippy", "undocumented_unsafe_blocks"),
    ("clippy", "dbg_macro"),
    ("clippy", "todo"),
    ("clippy", "unimplemented"),
];

/// Lints that the workspace warns of.
pub(crate) const WARNED: [(&str, &str); 4] = [
    ("rust", "missing_docs"),
    ("rust", "unreachable_pub"),
    ("rust", "unused_qualifications"),
    ("rust", "unexpected_cfgs"),
];

/// Steps that are missing, and crates without the lints of the workspace.
///
/// # Errors
///
/// A file with steps cannot be read.
pub(crate) fn faults(workspace: &Path, members: &[Member]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (file, steps) in STEPS {
        let text = fs::read_to_string(workspace.join(file)).with_context(|| file.to_owned())?;
        faults.extend(missing_steps(file, &text, steps));
    }
    faults.extend(
        members
            .iter()
            .filter(|member| !has_lints(member))
            .map(|member| format!("{}/Cargo.toml: no lints of the workspace: [lints] workspace = true", member.folder)),
    );
    let manifest = fs::read_to_string(workspace.join("Cargo.toml")).context("Cargo.toml")?;
    faults.extend(missing_lints(&manifest.parse().context("Cargo.toml")?));
    Ok(faults)
}

fn missing_steps(file: &str, text: &str, steps: &[&str]) -> Vec<String> {
    let has = |step: &str| text.lines().any(|line| line.trim() == step);
    steps.iter().filter(|step| !has(step)).map(|step| format!("{file}: no line '{step}'")).collect()
}

fn missing_lints(manifest: &Table) -> Vec<String> {
    let lints = manifest.get("workspace").and_then(|workspace| workspace.get("lints"));
    let level = |group: &str, lint: &str| {
        let level = lints.and_then(|lints| lints.get(group)?.get(lint))?;
        level.get("level").unwrap_or(level).as_str()
    };
    let groups = lints.and_then(Value::as_table).into_iter().flatten();
    let set = groups.filter_map(|(group, lints)| Some(lints.as_table()?.keys().map(move |lint| (&**group, &**lint))));
    let unknown = set.flatten().filter(|lint| !DENIED.contains(lint) && !WARNED.contains(lint));
    let unknown = unknown.map(|(_, lint)| format!("Cargo.toml: {lint} is in no list of tests/structure/src/gates.rs"));
    let missing = |lints: &'static [(&str, &str)], wanted: &'static str| {
        let missing = lints.iter().filter(move |(group, lint)| level(group, lint) != Some(wanted));
        missing.map(move |(group, lint)| format!("Cargo.toml: [workspace.lints.{group}] does not {wanted} {lint}"))
    };
    missing(&DENIED, "deny").chain(missing(&WARNED, "warn")).chain(unknown).collect()
}

fn has_lints(member: &Member) -> bool {
    let lints = member.manifest.get("lints").and_then(|lints| lints.get("workspace"));
    lints.and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(manifest: &str) -> Member {
        Member { folder: "a".to_owned(), manifest: manifest.parse().expect("valid") }
    }

    #[test]
    fn a_step_is_a_whole_line() {
        let text = "if x; then\n  step scripts/a\n  step scripts/b --exclude c\nfi\n";
        assert_eq!(missing_steps("f", text, &["step scripts/a", "step scripts/b"]), ["f: no line 'step scripts/b'"]);
    }

    #[test]
    fn a_crate_has_the_lints_of_the_workspace() {
        let found = ["[lints]\nworkspace = true", "[lints]\nworkspace = false", "[package]\nname = \"a\""];
        assert_eq!(found.map(|manifest| has_lints(&member(manifest))), [true, false, false]);
    }

    #[test]
    fn the_workspace_has_the_levels_of_its_lints() {
        let denied = "[workspace.lints.rust]\nunsafe_code = \"deny\"\nmissing_docs = \"warn\"\nunreachable_pub = \"allow\"\n\
                      unexpected_cfgs = { level = \"warn\", check-cfg = [] }\ndead_code = \"allow\"\n[workspace.lints.clippy]\n\
                      undocumented_unsafe_blocks = \"warn\"\ndbg_macro = \"deny\"\ntodo = \"deny\"";
        assert_eq!(
            missing_lints(&denied.parse().expect("valid")),
            [
                "Cargo.toml: [workspace.lints.clippy] does not deny undocumented_unsafe_blocks",
                "Cargo.toml: [workspace.lints.clippy] does not deny unimplemented",
                "Cargo.toml: [workspace.lints.rust] does not warn unreachable_pub",
                "Cargo.toml: [workspace.lints.rust] does not warn unused_qualifications",
                "Cargo.toml: dead_code is in no list of tests/structure/src/gates.rs",
            ]
        );
    }
}
