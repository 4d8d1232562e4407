//! Signals of scripts: one with a trap for its end has traps for SIGINT and SIGTERM as well. Without
//! them bash drops a SIGINT when the program that it waits for ends as usual, and acts upon a
//! SIGTERM while that program still runs.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

/// The folder of scripts that users run.
const FOLDER: &str = "scripts/";

/// Signals that end a script.
const SIGNALS: [&str; 2] = ["INT", "TERM"];

/// Scripts with a trap for their end and none for a signal.
///
/// # Errors
///
/// A script cannot be read.
pub(crate) fn untrapped(workspace: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for entry in fs::read_dir(workspace.join(FOLDER)).context(FOLDER)? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path()).with_context(|| entry.path().display().to_string())?;
        let name = entry.file_name();
        broken
            .extend(lacking(&text).map(|signal| format!("{FOLDER}{}: a trap EXIT, none for {signal}", name.display())));
    }
    Ok(broken)
}

/// Signals without a trap in a script that has one for its end.
fn lacking(script: &str) -> impl Iterator<Item = &'static str> {
    let trapped = trapped(script);
    SIGNALS.into_iter().filter(move |signal| trapped.contains("EXIT") && !trapped.contains(signal))
}

/// Conditions with a command, neither ignored nor reset.
fn trapped(script: &str) -> BTreeSet<&str> {
    let traps = script.lines().filter_map(|line| line.trim_start().strip_prefix("trap "));
    let commands = traps.filter(|trap| !trap.starts_with("'' ") && !trap.starts_with("- "));
    let is_condition = |word: &&str| word.chars().all(|letter| letter.is_ascii_uppercase());
    let before = |trap: &'_ str, end: &str| trap.rfind(end).unwrap_or(trap.len());
    let whole = commands.map(|trap| trap[..before(trap, " #")].trim_end().trim_end_matches(';'));
    whole.flat_map(|trap| trap.split_whitespace().rev().take_while(is_condition)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_without_a_trap_are_found() {
        let of = |script: &str| lacking(script).collect::<Vec<_>>();
        assert_eq!(of("trap end EXIT"), ["INT", "TERM"]);
        assert_eq!(of("trap end EXIT # at the end"), ["INT", "TERM"]);
        assert_eq!(of("trap end EXIT;"), ["INT", "TERM"]);
        assert_eq!(of("  trap 'rm x' EXIT\ntrap 'exit 130' INT\ntrap '' INT TERM\ntrap - EXIT TERM"), ["TERM"]);
        assert_eq!(of("# trap 'exit 130' INT\ntrap 'exit 143' EXIT TERM"), ["INT"]);
    }

    #[test]
    fn scripts_that_are_ended_by_signals_are_good() {
        let good = [
            "true",
            "trap '' INT",
            "trap end EXIT\ntrap 'exit 1' INT TERM HUP",
            "trap end EXIT INT\n  trap \"x\" TERM",
        ];
        for script in good {
            assert!(lacking(script).next().is_none(), "{script}");
        }
    }
}
