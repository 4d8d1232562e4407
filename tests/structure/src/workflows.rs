//! Workflows: the nightly one has all of its jobs with their commands, and no step may fail unseen,
//! be left out by a condition, or have another shell.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::files::files_below;

const NIGHTLY: &str = ".github/workflows/nightly.yml";

/// The folder of workflows and of their actions.
const FOLDER: &str = ".github";

/// Jobs of the nightly workflow, with the items of their lists: commands, own actions, systems.
const JOBS: [(&str, &[&str]); 4] = [
    (
        "full",
        &[
            GIT,
            PREPARE,
            "- run: rustup toolchain install nightly --profile minimal --component miri,rust-src",
            "- run: scripts/test --full --no-guests",
        ],
    ),
    (
        "guests",
        &[
            "- --kernel linux-image-amd64",
            "- --kernel linux-image-amd64/bookworm-backports",
            "- --kernel linux-image-amd64/trixie-backports",
            "- --debian trixie",
            GIT,
            PREPARE,
            "- run: scripts/guests --all-nics ${{ matrix.system }}",
        ],
    ),
    ("mutants", &[GIT, PREPARE, "- run: scripts/mutants"]),
    ("fuzz", &[GIT, PREPARE, "- run: scripts/fuzz ${{ matrix.target }} --seconds 1800"]),
];

const GIT: &str =
    "- run: apt-get update -q && apt-get install -y -q --no-install-recommends git ca-certificates curl procps";
const PREPARE: &str = "- uses: ./.github/actions/prepare";

/// Lines that the nightly workflow has besides its jobs.
const HEAD: [&str; 3] = ["  schedule:", "permissions:\n  contents: read\n", "\n    - cron: "];

/// Keys that have one value only: a condition chooses artifacts of a failure, and no more.
const VALUES: [(&str, &str); 3] = [("if:", "failure()"), ("shell:", "bash"), ("permissions:", "")];

/// Keys that no step and no job has.
const REFUSED: [&str; 1] = ["continue-on-error"];

/// Jobs and commands that are missing, and keys that hide a failure.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn faults(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let nightly = read(Path::new(NIGHTLY))?;
    let missing = HEAD.iter().filter(|text| !nightly.contains(**text));
    let mut broken: Vec<String> = missing.map(|text| format!("{NIGHTLY}: no '{}'", text.trim())).collect();
    broken.extend(differing_jobs(&nightly));
    for file in files_below(workspace)?.iter().filter(|file| file.starts_with(FOLDER)) {
        let is_yaml = file.extension().is_some_and(|it| it == "yml" || it == "yaml");
        let hidden = if is_yaml { hiding_keys(&read(file)?) } else { Vec::new() };
        broken.extend(hidden.into_iter().map(|(line, fault)| format!("{}:{line}: {fault}", file.display())));
    }
    Ok(broken)
}

fn differing_jobs(nightly: &str) -> Vec<String> {
    let found = jobs(nightly);
    let is_missing = |(job, items): &&(&str, &[&str])| !found.contains(&(*job, items.to_vec()));
    let missing = JOBS.iter().filter(is_missing);
    let place = "tests/structure/src/workflows.rs";
    missing.map(|(job, _)| format!("{NIGHTLY}: the job {job} is not that of {place}, or gone")).collect()
}

/// Jobs of a workflow with the items of their lists, without actions of others.
fn jobs(workflow: &str) -> Vec<(&str, Vec<&str>)> {
    let mut jobs: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in workflow.lines().skip_while(|line| *line != "jobs:") {
        let name = line.strip_prefix("  ").and_then(|line| line.strip_suffix(':'));
        let item = line.trim();
        if let Some(name) = name.filter(|name| !name.starts_with([' ', '#'])) {
            jobs.push((name, Vec::new()));
        } else if item.starts_with("- ")
            && (!item.starts_with("- uses:") || item.starts_with("- uses: ./"))
            && let Some((_, items)) = jobs.last_mut()
        {
            items.push(item);
        }
    }
    jobs
}

/// Keys that hide a failure, each with its line.
fn hiding_keys(workflow: &str) -> Vec<(usize, String)> {
    let fault = |line: &str| {
        let bare = line.trim().trim_start_matches("- ");
        let refused = REFUSED.iter().find(|key| bare.starts_with(**key)).map(|key| format!("{key} hides a failure"));
        let differs = |(key, value): &&(&str, &str)| bare.strip_prefix(*key).is_some_and(|rest| rest.trim() != *value);
        let changed = VALUES.iter().find(differs);
        refused.or_else(|| changed.map(|(key, value)| format!("{key} may be '{value}' only")))
    };
    workflow.lines().enumerate().filter_map(|(at, line)| Some((at + 1, fault(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_the_items_of_their_lists() {
        let workflow = "on:\n  schedule:\n    - cron: x\njobs:\n  one:\n    steps:\n      # text:\n      - run: a\n\
                        \x20     - uses: x/y@v5\n      - uses: ./own\n  two:\n    matrix:\n      - --b\n";
        assert_eq!(jobs(workflow), [("one", vec!["- run: a", "- uses: ./own"]), ("two", vec!["- --b"])]);
    }

    #[test]
    fn a_job_that_is_gone_or_does_something_else_is_found() {
        let job = |name: &str, items: &[&str]| format!("  {name}:\n    steps:\n      {}\n", items.join("\n      "));
        let right: String = JOBS.iter().map(|(name, items)| job(name, items)).collect();
        assert_eq!(differing_jobs(&format!("jobs:\n{right}")), [""; 0]);
        let found =
            differing_jobs(&format!("jobs:\n{}", right.replace("scripts/mutants", "true").replace("fuzz:", "x:")));
        assert!(found.len() == 2 && found[0].contains("job mutants ") && found[1].contains("job fuzz "), "{found:?}");
    }

    #[test]
    fn keys_that_hide_a_failure_are_found() {
        let right = "permissions:\n  contents: read\n- uses: x\n  if: failure()\n  shell: bash\n  notes: if: x\n";
        assert_eq!(hiding_keys(right), []);
        let wrong = "- if: false\n  continue-on-error: true\n  shell: true {0}\npermissions: write-all\n";
        let found = hiding_keys(wrong).into_iter().map(|(line, fault)| format!("{line}: {fault}"));
        let faults = [
            "1: if: may be 'failure()' only",
            "2: continue-on-error hides a failure",
            "3: shell: may be 'bash' only",
            "4: permissions: may be '' only",
        ];
        assert_eq!(found.collect::<Vec<_>>(), faults);
    }
}
