//! Files and links that documents name.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::files::files_below;

/// Extensions of files that a document may name in backticks.
const EXTENSIONS: [&str; 4] = [".rs", ".bpf.c", ".toml", ".md"];

/// Files of other projects or hosts, and files planned by a design page.
const ELSEWHERE: [&str; 3] = ["/etc/", "drivers/", "congestion/dcqcn.rs"];

/// Names in documents of files that do not exist, and links to such files.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn missing_files(workspace: &Path) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let mut missing = Vec::new();
    for document in files.iter().filter(|file| file.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(workspace.join(document)).with_context(|| document.display().to_string())?;
        let folder = document.parent().unwrap_or(Path::new(""));
        for (number, line) in text.lines().enumerate() {
            let names = named_files(line).filter(|name| !files.iter().any(|file| file.ends_with(name)));
            let links = links(line).filter(|link| !workspace.join(folder).join(link).exists());
            for name in names.chain(links) {
                missing.push(format!("{}:{}: there is no {name}", document.display(), number + 1));
            }
        }
    }
    Ok(missing)
}

/// File names and paths in backticks.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &&str| {
        let is_plain = text.chars().all(|it| it.is_ascii_alphanumeric() || "-_./".contains(it));
        is_plain
            && EXTENSIONS.iter().any(|extension| text.len() > extension.len() && text.ends_with(extension))
            && !ELSEWHERE.iter().any(|elsewhere| text.contains(elsewhere))
    };
    line.split('`').skip(1).step_by(2).filter(is_name)
}

/// Relative targets of links, without their anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let paths = targets.map(|(target, _)| target.split_once('#').map_or(target, |(path, _)| path));
    paths.filter(|path| !path.is_empty() && !path.contains("://") && !path.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_backticks_and_relative_links_are_found() {
        let line =
            "`qp/mod.rs`, `a b.rs`, `.rs`, `/etc/roced/roced.toml`, `cargo x` [a](../x.md#part) [b](https://c.rs)";
        assert_eq!(named_files(line).collect::<Vec<_>>(), ["qp/mod.rs"]);
        assert_eq!(links(line).collect::<Vec<_>>(), ["../x.md"]);
    }
}
