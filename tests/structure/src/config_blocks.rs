//! Settings of the config in blocks of documents: each section and key is one of
//! `config/roced.toml`.
//!
//! A block is fenced or indented. It is of the config from a header of one of its sections on, as
//! `[net]` or `[[device]]`, or if it is marked `toml`; the block of a shell that writes such lines
//! counts as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    files::files_below,
    lists::CONFIG,
    quoted::{HISTORY, config_keys},
};

type Keys = BTreeMap<String, BTreeSet<String>>;

/// Sections and keys that the config does not have.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn unknown(workspace: &Path) -> Result<Vec<String>> {
    let config = config_keys(&fs::read_to_string(workspace.join(CONFIG)).context(CONFIG)?);
    let is_document = |file: &PathBuf| file.extension().is_some_and(|it| it == "md") && file != Path::new(HISTORY);
    let mut broken = Vec::new();
    for document in files_below(workspace)?.into_iter().filter(is_document) {
        let text = fs::read_to_string(workspace.join(&document)).with_context(|| document.display().to_string())?;
        let faults = faults(&config, &text).into_iter();
        broken.extend(faults.map(|(line, fault)| format!("{}:{line}: {fault}", document.display())));
    }
    Ok(broken)
}

/// Faults of a document, each with its line.
fn faults(config: &Keys, text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let mut fence: Option<&str> = None;
    let mut section: Option<&str> = None;
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim();
        if let Some(mark) = bare.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(mark) };
            section = None;
            continue;
        }
        let is_indented = line.starts_with("    ") || bare.is_empty();
        if fence.is_none() && !is_indented {
            section = None;
        } else if let Some(header) = header(bare) {
            let top = header.split('.').next().unwrap_or(header);
            let is_ours = config.keys().any(|name| name.split('.').next() == Some(top));
            if (is_ours || fence == Some("toml")) && !config.contains_key(header) {
                faults.push((at + 1, format!("{CONFIG} has no section [{header}]")));
            }
            section = config.contains_key(header).then_some(header);
        } else if let (Some(section), Some(key)) = (section, key(bare))
            && !config[section].contains(key)
        {
            faults.push((at + 1, format!("{CONFIG} has no {section}.{key}")));
        }
    }
    faults
}

/// The name in a line that is a header only, a comment behind it not included.
fn header(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or("").trim();
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter == '_' || letter == '.';
    (!name.is_empty() && name.chars().all(is_of_name)).then_some(name)
}

/// The key of a line `key = value`, also of one in a comment.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.strip_prefix('#').unwrap_or(line).split_once('=')?;
    let key = key.trim_end();
    (!key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let config = config_keys("[net]\ndenied_peers = []\n[limits.client]\n#qps = 1\n[[device]]\nname = \"a\"\n");
        faults(&config, text).into_iter().map(|(line, fault)| format!("{line}: {fault}")).collect()
    }

    #[test]
    fn keys_and_sections_of_the_config_are_right() {
        let right = "- text\n\n      [net] # peers\n      denied_peers = [\"a\"]\n\ntext with gone = 1\n```\n[[device]]\n\
                     name = \"b\"\n#name=\"c\"\n[limits.client]\nqps = 2\n```\n[gone]\ngone = 1\n```\n[Service]\n\
                     User=roced\nx=1\n[dependencies]\nroced = \"1\"\n```\n";
        assert_eq!(found(right), [""; 0]);
    }

    #[test]
    fn keys_and_sections_that_are_gone_are_found() {
        let wrong = "    [net]\n    denied = []\n```\n[limits.gone]\nname = 1\n[[device]]\n# gone = 1\n```\n```toml\n[lost]\n```\n";
        let faults = [
            "2: config/roced.toml has no net.denied",
            "4: config/roced.toml has no section [limits.gone]",
            "10: config/roced.toml has no section [lost]",
        ];
        assert_eq!(found(wrong), faults);
        assert_eq!(found("```\n[net]\n#gone = 1\n```"), ["3: config/roced.toml has no net.gone"]);
    }
}
