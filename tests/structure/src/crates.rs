//! Dependencies between the crates of the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

/// Dependencies of `folders` on crates of the workspace that have no arrow, and folders without an
/// arrow.
///
/// # Errors
///
/// A manifest cannot be read.
pub(crate) fn forbidden_dependencies(
    workspace: &Path,
    folders: &[&str],
    arrows: &BTreeMap<String, BTreeSet<String>>,
) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for folder in folders {
        let file = workspace.join(folder).join("Cargo.toml");
        let manifest = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let Some(allowed) = arrows.get(*folder) else {
            broken.push(format!("ARCHITECTURE.md has no arrow for the crate {folder}"));
            continue;
        };
        let forbidden = dependencies(&manifest).filter(|name| !allowed.contains(*name));
        broken.extend(forbidden.map(|name| format!("{folder}/Cargo.toml: {folder} may not depend on {name}")));
    }
    Ok(broken)
}

/// Crates of the workspace below `[dependencies]`, as lines `name.workspace = true`.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let lines = section.take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| *name == "roced" || name.starts_with("roced-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dependencies_of_the_program_count() {
        let manifest = "[package]\nname = \"roced-x\"\n[dependencies]\nroced-abi.workspace = true\nnix = \"1\"\n\
                        roced = {}\n\n[dev-dependencies]\nroced-client.workspace = true\n";
        assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["roced-abi", "roced"]);
    }
}
