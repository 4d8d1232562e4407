//! Dependencies of members on crates: inherited from the workspace's list, which has a reason for
//! each crate from outside and no entry without a user.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::crates::Member;

/// The workspace's list.
const LIST: &str = "[workspace.dependencies]";

/// Dependencies that are not inherited, and entries of the list without a reason or a user.
///
/// # Errors
///
/// The workspace's manifest cannot be read.
pub(crate) fn faults(workspace: &Path, members: &[Member]) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join("Cargo.toml")).context("Cargo.toml")?;
    faults_of(&text, members)
}

fn faults_of(text: &str, members: &[Member]) -> Result<Vec<String>> {
    let root: Table = text.parse().context("Cargo.toml")?;
    let listed = root.get("workspace").and_then(|it| it.get("dependencies")).and_then(Value::as_table);
    let listed = listed.context("Cargo.toml has no list of dependencies")?;
    let mut broken = Vec::new();
    let mut used = BTreeSet::new();
    for member in members {
        let mut own = Vec::new();
        dependencies(&member.manifest, &mut own);
        used.extend(own.iter().map(|(name, _)| name.as_str()));
        let is_inherited = |how: &Value| how.get("workspace").and_then(Value::as_bool) == Some(true);
        let foreign = own.into_iter().filter(|(_, how)| !is_inherited(how));
        broken.extend(foreign.map(|(name, _)| {
            format!("{}/Cargo.toml: {name} is not of the workspace's list: write `workspace = true`", member.folder)
        }));
    }
    let explained = explained_entries(text);
    for (name, how) in listed {
        if how.get("path").is_none() && !explained.contains(name.as_str()) {
            broken.push(format!("Cargo.toml: {name} has no comment with its reason, behind it or right above"));
        }
        if !used.contains(name.as_str()) {
            broken.push(format!("Cargo.toml: no member uses {name}"));
        }
    }
    Ok(broken)
}

/// Every dependency of a manifest, those of tests and of platforms among them.
fn dependencies<'a>(table: &'a Table, found: &mut Vec<(&'a String, &'a Value)>) {
    for (name, value) in table {
        let Some(inner) = value.as_table() else { continue };
        if name.ends_with("dependencies") {
            found.extend(inner);
        } else {
            dependencies(inner, found);
        }
    }
}

/// Names in the list with a comment behind them or in the line above. A comment of dashes is the
/// heading of a group.
fn explained_entries(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().skip_while(|line| line.trim() != LIST).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('[')).collect();
    let is_reason = |comment: &str| comment.contains(char::is_alphanumeric) && !comment.trim().starts_with("---");
    let above = [""].iter().chain(&lines);
    let entries = lines.iter().zip(above).filter_map(|(line, above)| {
        let name = line.split([' ', '=', '.']).next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        // Pieces between quotes: a mark in a string begins no comment.
        let behind = line.split('"').step_by(2).find_map(|piece| piece.split_once('#'));
        let has_reason =
            behind.is_some_and(|(_, comment)| is_reason(comment)) || above.strip_prefix('#').is_some_and(is_reason);
        has_reason.then_some(name.trim_matches('"'))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &str, manifest: &str) -> Vec<String> {
        let member = Member { folder: "a".into(), manifest: manifest.parse().expect("valid") };
        faults_of(&format!("{LIST}\n{list}\n[profile.dev]\nother = 1 # x\n"), &[member]).expect("valid")
    }

    #[test]
    fn dependencies_are_inherited() {
        let list = "own = { path = \"own\" }\nnix = \"1\" # calls\nsyn = \"2\" # syntax\n";
        let inherited = "[dependencies]\nown.workspace = true\n[dev-dependencies]\nnix = { workspace = true, features = [] }\n\
                         [target.x.build-dependencies.syn]\nworkspace = true\n";
        assert_eq!(found(list, inherited), [""; 0]);
        let wrong = "[dependencies]\nown = { path = \"../own\" }\n[dev-dependencies]\nnix = \"1\"\n\
                     [target.x.build-dependencies.syn]\nversion = \"1\"\n";
        let fault =
            |name: &str| format!("a/Cargo.toml: {name} is not of the workspace's list: write `workspace = true`");
        assert_eq!(found(list, wrong), ["own", "nix", "syn"].map(fault));
    }

    #[test]
    fn an_entry_of_the_list_has_a_reason() {
        let users = "[dependencies]\na.workspace = true\nb.workspace = true\n";
        for list in ["# of a\na = \"1\"\nb = \"1\" # of b", "# of\n# a\na = \"1\"\nb.version = \"1\" # of b"] {
            assert_eq!(found(list, users), [""; 0], "{list}");
        }
        let fault = "Cargo.toml: a has no comment with its reason, behind it or right above";
        for entry in ["a = \"1#x\"", "# --- group ---\na = \"1\"", "# far\n\na = \"1\"", "a = \"1\" #", "#\na = \"1\""]
        {
            assert_eq!(found(&format!("{entry}\n\nb = \"1\" # of b"), users), [fault], "{entry}");
        }
    }

    #[test]
    fn an_entry_of_the_list_has_a_user() {
        assert_eq!(found("a = \"1\" # of a", "[package]\nname = \"a\"\n"), ["Cargo.toml: no member uses a"]);
    }
}
