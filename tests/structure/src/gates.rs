//! The gates of a change: the steps of scripts that continuous integration runs, and the lints of
//! each crate. A step that was left out for a while would not be missed otherwise.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::{crates::Member, files::Sources};

/// Files, and lines that each must have.
const STEPS: [(&str, &[&str]); 4] = [
    (".github/workflows/ci.yml", &["- run: .ci/run"]),
    (".ci/run", &["scripts/setup", "scripts/check", "scripts/test"]),
    (
        "scripts/check",
        &[
            "step cargo fmt --all --check",
            "step cargo clippy --workspace --all-targets --locked -- -D warnings",
            "step cargo run --quiet --locked -p roced-structure",
            "step env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked --quiet",
            "step cargo deny check licenses sources bans",
            "step shellcheck \"${scripts[@]}\"",
            "step check_the_unit",
            "step .ci/usage-test",
            "step .ci/belongings-test",
            "step .ci/subjects-test",
            "step .ci/subjects",
        ],
    ),
    (
        "scripts/test",
        &[
            "step cargo test --workspace --exclude roced-e2e --locked",
            "step scripts/version-map",
            "step env ROCED_FULL=${full:-0} cargo test -p roced-e2e --locked",
            "step scripts/pieces",
            "step miri",
            "step scripts/fuzz all --seconds 5",
            "step scripts/interop",
            "step scripts/third-party",
            "step scripts/containers",
            "if [[ -n $guests ]]; then step scripts/guests --all; fi",
            "step scripts/interop --short",
            "if ((EUID == 0)); then step scripts/guests --short; else echo \"SKIPPED: scripts/guests: needs root\"; fi",
        ],
    ),
];

/// Lints that the workspace denies.
const DENIED: [(&str, &str); 5] = [
    ("rust", "unsafe_code"),
    ("clippy", "undocumented_unsafe_blocks"),
    ("clippy", "dbg_macro"),
    ("clippy", "todo"),
    ("clippy", "unimplemented"),
];

/// Written in two parts, because this file is a source as well.
const ALLOWED_UNSAFE: &str = concat!("allow(unsafe", "_code");

/// Steps that are missing, crates without the lints of the workspace, and modules that allow unsafe
/// code where they should expect it with a reason.
///
/// # Errors
///
/// A file with steps cannot be read.
pub(crate) fn faults(workspace: &Path, members: &[Member], sources: &Sources) -> Result<Vec<String>> {
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
    let allows = sources.iter().filter(|(_, text)| text.contains(ALLOWED_UNSAFE));
    faults.extend(allows.map(|(file, _)| {
        format!("{}: {ALLOWED_UNSAFE}): unsafe code is expected, #![expect(unsafe_code, reason = ...)]", file.display())
    }));
    Ok(faults)
}

fn missing_steps(file: &str, text: &str, steps: &[&str]) -> Vec<String> {
    let has = |step: &str| text.lines().any(|line| line.trim() == step);
    steps.iter().filter(|step| !has(step)).map(|step| format!("{file}: no line '{step}'")).collect()
}

fn missing_lints(manifest: &Table) -> Vec<String> {
    let lints = manifest.get("workspace").and_then(|workspace| workspace.get("lints"));
    let level = |group: &str, lint: &str| lints.and_then(|lints| lints.get(group)?.get(lint)?.as_str());
    let missing = DENIED.into_iter().filter(|(group, lint)| level(group, lint) != Some("deny"));
    missing.map(|(group, lint)| format!("Cargo.toml: [workspace.lints.{group}] does not deny {lint}")).collect()
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
    fn the_workspace_denies_its_lints() {
        let denied = "[workspace.lints.rust]\nunsafe_code = \"deny\"\n[workspace.lints.clippy]\n\
                      undocumented_unsafe_blocks = \"warn\"\ndbg_macro = \"deny\"\ntodo = \"deny\"";
        assert_eq!(
            missing_lints(&denied.parse().expect("valid")),
            [
                "Cargo.toml: [workspace.lints.clippy] does not deny undocumented_unsafe_blocks",
                "Cargo.toml: [workspace.lints.clippy] does not deny unimplemented",
            ]
        );
    }

    #[test]
    fn unsafe_code_is_expected_and_not_allowed() {
        let sources = [("a.rs", format!("#[{ALLOWED_UNSAFE})]\nmod x;")), ("b.rs", "#![expect(unsafe_code)]".into())];
        let sources = sources.map(|(file, text)| (file.into(), text)).into();
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = faults(&workspace, &[], &sources).expect("read");
        assert!(found.len() == 1 && found[0].starts_with("a.rs: allow"), "{found:?}");
    }
}
