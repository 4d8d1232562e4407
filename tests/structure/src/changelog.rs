//! Headings of the changelog: changes without a release first and once, each version once, and in
//! each version the kinds of changes once and in their order.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

use crate::quoted::HISTORY;

/// The heading of changes without a release.
const UNRELEASED: &str = "[Unreleased]";

/// Kinds of changes, in their order.
const KINDS: [&str; 7] = ["Upgrade steps", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// Faults of the headings.
///
/// # Errors
///
/// The page cannot be read.
pub(crate) fn faults(workspace: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join(HISTORY)).context(HISTORY)?;
    let faults = faults_of(&text).into_iter();
    Ok(faults.map(|(line, fault)| format!("{HISTORY}:{line}: {fault}")).collect())
}

/// Faults, each with its line.
fn faults_of(text: &str) -> Vec<(usize, String)> {
    let mut broken = Vec::new();
    let (mut versions, mut kinds, mut areas) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (line, text) in (1..).zip(text.lines()) {
        let Some((marks, heading)) = text.split_once(' ').filter(|(marks, _)| marks.chars().all(|it| it == '#')) else {
            continue;
        };
        match marks {
            "##" => {
                (kinds, areas) = Default::default();
                let name = heading.split(" - ").next().unwrap_or(heading);
                if versions.is_empty() != (heading == UNRELEASED) {
                    broken.push((line, format!("{UNRELEASED} is the first heading, and none of the others")));
                } else if !versions.is_empty() && !is_version(heading) {
                    broken.push((line, format!("'{heading}' is not as [1.2.3] - 2026-01-31")));
                } else if !versions.insert(name) {
                    broken.push((line, format!("{name} stands twice")));
                }
            }
            "###" => {
                areas = BTreeSet::new();
                match KINDS.iter().position(|kind| *kind == heading) {
                    None => broken.push((line, format!("'{heading}' is none of {}", KINDS.join(", ")))),
                    Some(at) if kinds.last().is_some_and(|last| *last >= at) => {
                        broken.push((
                            line,
                            format!("'{heading}' stands twice or late: the order is {}", KINDS.join(", ")),
                        ));
                    }
                    Some(at) => _ = kinds.insert(at),
                }
            }
            "####" if !areas.insert(heading) => broken.push((line, format!("'{heading}' stands twice"))),
            _ => {}
        }
    }
    broken
}

/// Whether a heading is as `[1.2.3] - 2026-01-31`.
fn is_version(heading: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|it| it.is_ascii_digit());
    let Some((version, date)) = heading.strip_prefix('[').and_then(|rest| rest.split_once("] - ")) else {
        return false;
    };
    let core = version.split_once('-').map_or(version, |(core, _)| core);
    let lengths: Vec<usize> = date.split('-').filter(|part| is_number(part)).map(str::len).collect();
    core.split('.').count() == 3 && core.split('.').all(is_number) && lengths == [4, 2, 2] && date.len() == 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_in_their_order_are_right() {
        let text = "# Changelog\n## [Unreleased]\n### Upgrade steps\n### Added\n#### A\n#### B\n### Fixed\n#### A\n\
                    ## [1.0.0-rc.1] - 2026-02-03\n### Added\n#### A\n## [0.1.0] - 2026-01-02\n### Security\n";
        assert_eq!(faults_of(text), []);
    }

    #[test]
    fn headings_that_repeat_or_are_unknown_are_found() {
        let found = |text: &str| {
            let faults = faults_of(&format!("## [Unreleased]\n{text}")).into_iter();
            faults.map(|(line, fault)| format!("{line}: {}", &fault[..fault.len().min(20)])).collect::<Vec<_>>()
        };
        assert_eq!(found("## [Unreleased]\n"), ["2: [Unreleased] is the "]);
        assert_eq!(found("## [1.0] - 2026-01-02\n"), ["2: '[1.0] - 2026-01-02'"]);
        assert_eq!(
            found("## [1.0.0]\n## [1.0.0] - 2026-1-02\n"),
            ["2: '[1.0.0]' is not as ", "3: '[1.0.0] - 2026-1-02"]
        );
        assert_eq!(found("## [1.0.0] - 2026-01-02\n## [1.0.0] - 2026-01-03\n"), ["3: [1.0.0] stands twice"]);
        assert_eq!(found("### News\n"), ["2: 'News' is none of Up"]);
        assert_eq!(found("### Added\n### Added\n"), ["3: 'Added' stands twice"]);
        assert_eq!(found("### Fixed\n### Added\n"), ["3: 'Added' stands twice"]);
        assert_eq!(found("### Added\n#### A\n#### A\n"), ["4: 'A' stands twice"]);
        assert_eq!(faults_of("## [1.0.0] - 2026-01-02\n").len(), 1);
    }
}
