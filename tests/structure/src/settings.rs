//! Settings of tools: those of cargo that take crates from another place or run another program,
//! those of rustfmt and of linters that turn checks off, and targets of crates without tests.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::{crates::Member, files::files_below};

/// Tables of cargo's settings that change no build.
const OF_CARGO: [&str; 3] = ["http", "net", "term"];

/// The settings of rustfmt, which stand at the root.
const FORMAT: &str = "rustfmt.toml";

/// Keys of rustfmt's settings.
const OF_FORMAT: [&str; 2] = ["max_width", "use_small_heuristics"];

/// Settings of tools, by the names of their files.
const REFUSED: [&str; 6] = [FORMAT, ".rustfmt.toml", "clippy.toml", ".clippy.toml", ".shellcheckrc", "shellcheckrc"];

/// Folders with shell scripts.
pub(crate) const WITH_SCRIPTS: [&str; 4] = ["scripts", ".ci", "tests", "packaging"];

/// A line of a script that turns every lint off.
const ALL_LINTS: &str = concat!("disable", "=all");

/// Kinds of targets with tests. A bench has a program of its own.
const TARGETS: [&str; 4] = ["lib", "bin", "test", "example"];

/// Keys of a target with tests that may not be false.
const TESTED: [&str; 2] = ["test", "harness"];

/// Tests with a program of their own, which runs them one at a time or in a process that it traces:
/// crate and target.
const OWN_PROGRAM: [(&str, &str); 2] = [("tests/e2e", "e2e"), ("transport", "instructions")];

/// Settings that the repository may not have, and targets without tests.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn faults(workspace: &Path, members: &[Member]) -> Result<Vec<String>> {
    let mut broken: Vec<String> = members.iter().flat_map(untested).collect();
    for file in files_below(workspace)? {
        let read = || fs::read_to_string(workspace.join(&file)).with_context(|| file.display().to_string());
        let table = || read()?.parse::<Table>().with_context(|| file.display().to_string());
        if is_of_cargo(&file) {
            broken.extend(foreign(&file, &table()?, &OF_CARGO));
        } else if file == Path::new(FORMAT) {
            broken.extend(foreign(&file, &table()?, &OF_FORMAT));
        } else if file.file_name().is_some_and(|name| REFUSED.iter().any(|refused| name == *refused)) {
            broken.push(format!("{}: no settings of this tool: they turn checks off", file.display()));
        } else if WITH_SCRIPTS.iter().any(|folder| file.starts_with(folder)) {
            let text = fs::read(workspace.join(&file)).map(String::from_utf8);
            let is_off = text.is_ok_and(|text| text.is_ok_and(|text| turns_lints_off(&text)));
            broken.extend(is_off.then(|| format!("{}: shellcheck {ALL_LINTS}: name the lints", file.display())));
        }
    }
    Ok(broken)
}

/// Whether a file is of cargo's settings, which count below its folder.
fn is_of_cargo(file: &Path) -> bool {
    let is_beginning = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("config"));
    is_beginning && file.parent().is_some_and(|folder| folder.ends_with(".cargo"))
}

/// Keys besides those that are allowed.
fn foreign(file: &Path, settings: &Table, allowed: &[&str]) -> Vec<String> {
    let foreign = settings.keys().filter(|key| !allowed.contains(&key.as_str()));
    let list = allowed.join(", ");
    foreign.map(|key| format!("{}: '{key}' is none of the settings allowed: {list}", file.display())).collect()
}

fn turns_lints_off(script: &str) -> bool {
    let mut comments = script.lines().filter(|line| line.trim_start().starts_with('#'));
    script.starts_with("#!") && comments.any(|line| line.contains("shellcheck ") && line.contains(ALL_LINTS))
}

/// Targets of a crate that are left out when tests run.
fn untested(member: &Member) -> Vec<String> {
    let mut broken = Vec::new();
    for kind in TARGETS {
        let targets = match member.manifest.get(kind) {
            Some(Value::Array(targets)) => targets.as_slice(),
            Some(target) => std::slice::from_ref(target),
            None => &[],
        };
        for target in targets {
            let name = target.get("name").and_then(Value::as_str).unwrap_or("");
            let is_own = kind == "test" && OWN_PROGRAM.contains(&(&member.folder, name));
            let is_off = |key: &&&str| target.get(**key).and_then(Value::as_bool) == Some(false);
            let off = TESTED.iter().filter(is_off).filter(|_| !is_own);
            let place = format!("{}/Cargo.toml: {kind} {name}", member.folder);
            broken.extend(off.map(|key| format!("{place}: `{key} = false` leaves its tests out")));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().expect("valid")
    }

    #[test]
    fn settings_of_cargo_run_no_other_program() {
        let file = Path::new("a/.cargo/config.toml");
        assert!(is_of_cargo(file) && is_of_cargo(Path::new(".cargo/config")) && !is_of_cargo(Path::new("a/config")));
        let of = |text: &str| foreign(file, &table(text), &OF_CARGO);
        assert_eq!(of("[http]\nproxy = \"x\"\n[net]\noffline = true\n[term]\n"), [""; 0]);
        for key in ["alias", "build", "env", "include", "patch", "paths", "registries", "source", "target"] {
            let broken = format!("a/.cargo/config.toml: '{key}' is none of the settings allowed: http, net, term");
            assert_eq!(of(&format!("{key} = {{ x = 1 }}")), [broken], "{key}");
        }
    }

    #[test]
    fn settings_of_rustfmt_only_give_widths() {
        let of = |text: &str| foreign(Path::new(FORMAT), &table(text), &OF_FORMAT);
        assert_eq!(of("max_width = 100\nuse_small_heuristics = \"Max\""), [""; 0]);
        let broken = "rustfmt.toml: 'ignore' is none of the settings allowed: max_width, use_small_heuristics";
        assert_eq!(of("ignore = [\"a\"]"), [broken]);
    }

    #[test]
    fn files_of_linters_are_found() {
        let root = std::env::temp_dir().join(format!("roced-structure-settings-{}", std::process::id()));
        let script = format!("#!/bin/sh\n# shellcheck {ALL_LINTS}\n");
        let files = [
            (".ci/a", script.as_str()),
            (".ci/b", "#!/bin/sh\n# shellcheck disable=SC2034\n"),
            (".shellcheckrc", ""),
            ("a/rustfmt.toml", ""),
            ("rustfmt.toml", "max_width = 1"),
        ];
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let found = faults(&root, &[]).expect("readable");
        fs::remove_dir_all(&root).expect("a folder");
        let names: Vec<&str> = found.iter().filter_map(|fault| fault.split(':').next()).collect();
        assert_eq!(names, [".ci/a", ".shellcheckrc", "a/rustfmt.toml"], "{found:?}");
    }

    #[test]
    fn targets_without_tests_are_found() {
        let of =
            |folder: &str, manifest: &str| untested(&Member { folder: folder.to_owned(), manifest: table(manifest) });
        assert_eq!(of("a", "[lib]\ndoctest = false\n[[bench]]\nname = \"x\"\nharness = false"), [""; 0]);
        let manifest =
            "[lib]\ntest = false\n[[bin]]\nname = \"x\"\ntest = true\n[[test]]\nname = \"e2e\"\nharness = false";
        let library = "a/Cargo.toml: lib : `test = false` leaves its tests out";
        assert_eq!(of("a", manifest), [library, "a/Cargo.toml: test e2e: `harness = false` leaves its tests out"]);
        assert_eq!(of("tests/e2e", "[[test]]\nname = \"e2e\"\nharness = false"), [""; 0]);
    }
}
