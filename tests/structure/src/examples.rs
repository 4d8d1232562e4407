//! Example programs that no test runs: each is a test of two hosts with its name, or part of a
//! library's documentation.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    crates::Member,
    files::{Sources, files_below},
    unrun::listed_tests,
};

/// Tests of two hosts of the examples.
const MODULE: &str = "tests/e2e/tests/examples.rs";

/// Such programs.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn unrun(workspace: &Path, sources: &Sources, members: &[Member]) -> Result<Vec<String>> {
    Ok(unrun_of(&files_below(workspace)?, sources, members, &listed_tests(sources)?))
}

fn unrun_of(
    files: &BTreeSet<PathBuf>,
    sources: &Sources,
    members: &[Member],
    listed: &BTreeSet<String>,
) -> Vec<String> {
    let module = sources.get(Path::new(MODULE)).map_or("", String::as_str);
    let mut broken = Vec::new();
    for member in members {
        let folder = Path::new(&member.folder);
        let library = sources.get(&folder.join("src/lib.rs")).map_or("", String::as_str);
        for file in files {
            let Some(stem) = program_of(file, &folder.join("examples")) else { continue };
            let is_listed = listed.contains(&format!("examples::{stem}")) && module.contains(&format!("\"{stem}\""))
                || file.to_str().is_some_and(|name| module.contains(name));
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let included = format!("include_str!(\"../examples/{name}\")");
            let is_documented = library.lines().any(|line| line.starts_with("#![doc =") && line.contains(&included));
            if !is_listed && !is_documented {
                broken.push(format!("{}: no test of {MODULE} runs it, and no documentation has it", file.display()));
            }
        }
    }
    broken
}

/// The name of a program: of a file in the folder, or of a folder in it with a `main.rs`. Other
/// files are parts of programs, or pages.
fn program_of<'a>(file: &'a Path, examples: &Path) -> Option<&'a str> {
    let inner = file.strip_prefix(examples).ok()?;
    let parts: Vec<&str> = inner.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        [folder, "main.rs"] => Some(folder),
        [name] if !name.ends_with(".md") => Some(name.split('.').next().unwrap_or(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_run_or_documented() {
        let member = |folder: &str| Member { folder: folder.into(), manifest: toml::Table::new() };
        let members = [member("a"), member("b/c")];
        let module = "build(settings, \"run\"); build(settings, \"folder\"); build(settings, \"unlisted\"); compile(\"b/c/examples/of_c.c\")";
        let library =
            "#![doc = concat!(include_str!(\"../examples/shown.rs\"))]\n// include_str!(\"../examples/lost.rs\")";
        let sources = [(MODULE.into(), module.to_owned()), ("a/src/lib.rs".into(), library.to_owned())].into();
        let listed = ["examples::run", "examples::folder", "examples::unbuilt"].map(str::to_owned).into();
        let run = ["run.rs", "folder/main.rs", "folder/part.rs", "support/x.rs", "shown.rs", "README.md"];
        let lost = ["lost.rs", "more/main.rs", "unbuilt.rs", "unlisted.rs"];
        let files: BTreeSet<PathBuf> = run.iter().chain(&lost).map(|name| Path::new("a/examples").join(name)).collect();
        let others = ["b/c/examples/of_c.c", "b/c/examples/shown.rs", "b/src/run.rs"].map(PathBuf::from);
        let files = files.into_iter().chain(others).collect();
        let faults =
            ["a/examples/lost.rs", "a/examples/more/main.rs", "a/examples/unbuilt.rs", "a/examples/unlisted.rs"];
        let faults = faults.into_iter().chain(["b/c/examples/shown.rs"]);
        let fault = |name: &str| format!("{name}: no test of {MODULE} runs it, and no documentation has it");
        assert_eq!(unrun_of(&files, &sources, &members, &listed), faults.map(fault).collect::<Vec<_>>());
    }
}
