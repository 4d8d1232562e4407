//! How scenarios ended: a line while they run, a table when they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
    time::Duration,
};

use anyhow::Result;
use comfy_table::{Table, presets::ASCII_MARKDOWN};

use crate::{
    compare::{Difference, compare},
    drive::Told,
    plan,
    scenario::{Network, Run, Scenario, Side},
    verify::{self, Verdict},
};

/// Lines that are printed of what is wrong.
const LINES_MAX: usize = 40;

/// How a scenario ended.
pub(crate) struct Outcome {
    scenario: Scenario,
    took: Duration,
    /// What is wrong.
    errors: Vec<String>,
    told: Told,
    verdict: Verdict,
}

impl Outcome {
    /// Of what was run and captured in `folder`. `mended`: the guest had to be booted again.
    pub(crate) fn new(scenario: Scenario, took: Duration, ended: Result<Told>, mended: bool, folder: &Path) -> Self {
        let mut errors = Vec::new();
        if mended {
            errors.push("the guest no longer answered".to_owned());
        }
        let (told, is_told) = match ended {
            Ok(told) => (told, true),
            Err(error) => {
                errors.push(format!("{error:#}"));
                (Told::default(), false)
            }
        };
        let mut verdict = Verdict::default();
        let is_compared = scenario.run == Run::Ends("operations");
        match verify::verify(scenario.path_mtu(), folder) {
            Ok(found) => verdict = found,
            // Where nothing was run, there may be nothing to see.
            Err(error) if is_told => errors.push(format!("{error:#}")),
            Err(_) => (),
        }
        if !is_compared {
            // They are many.
            verdict.ports = Default::default();
        }
        if is_told {
            errors.extend(verdict.ours.iter().cloned());
            let corrupted = told.harmed[2];
            if verdict.damaged as u64 > corrupted {
                errors.push(format!(
                    "{} frames were damaged, and {corrupted} were corrupted on purpose",
                    verdict.damaged
                ));
            }
        }
        Self { scenario, took, errors, told, verdict }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty()
    }

    fn word(&self) -> &'static str {
        if self.is_good() { "ok" } else { "FAILED" }
    }

    /// What of rxe is not as it should be.
    fn theirs(&self) -> String {
        let rules = self.verdict.theirs.iter().map(|(rule, (count, _))| format!("{rule} {count}"));
        let quirks = self.told.quirks.iter().map(|_| "as known".to_owned());
        rules.chain(quirks).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:6} {} ({:.1} s, {} frames)",
            self.word(),
            self.scenario,
            self.took.as_secs_f32(),
            self.verdict.frames
        )?;
        let lines = self.errors.iter().flat_map(|error| error.lines());
        lines.take(LINES_MAX).try_for_each(|line| write!(f, "\n        {line}"))
    }
}

/// How the frames of the two differ where they do the same, over each network.
pub(crate) fn differences(outcomes: &[Outcome]) -> BTreeMap<&'static str, Vec<Difference>> {
    let mut found = BTreeMap::new();
    for network in Network::ALL {
        let of = |client: Side| {
            let is_it = |it: &&Outcome| {
                it.scenario.run == Run::Ends("operations")
                    && (it.scenario.client, it.scenario.network) == (client, network)
            };
            outcomes.iter().find(is_it).filter(|it| it.is_good()).map(|it| &it.verdict.ports)
        };
        if let (Some(ours), Some(theirs)) = (of(Side::Roced), of(Side::Rxe)) {
            found.insert(network.name(), compare([ours, theirs]));
        }
    }
    found
}

/// Prints them; gives how many have no reason.
pub(crate) fn print_differences(outcomes: &[Outcome], folder: &Path) -> Result<usize> {
    let mut text = String::from("| | field | roced | rxe |\n|---|---|---|---|\n");
    let mut without_reason = 0;
    let mut told = BTreeSet::new();
    for (network, differences) in differences(outcomes) {
        for difference in differences {
            let line = difference.to_string();
            if !told.insert(line.clone()) {
                continue;
            }
            text.push_str(&line);
            text.push('\n');
            if difference.reason().is_none() {
                println!("interop: a difference over {network} without a reason: {line}");
                without_reason += 1;
            }
        }
    }
    println!("\nHow the same operations look, of roced and of rxe:\n{text}");
    fs::write(folder.join("differences.md"), text)?;
    Ok(without_reason)
}

/// Prints the table, what was left out, and what of rxe is otherwise than it should be; the table also goes into `folder`.
pub(crate) fn print(outcomes: &[Outcome], folder: &Path) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "#",
        "program",
        "client > server",
        "bytes",
        "MTU",
        "network",
        "faults",
        "frames",
        "harmed",
        "result",
        "of rxe",
        "s",
    ]);
    for (number, outcome) in outcomes.iter().enumerate() {
        let scenario = &outcome.scenario;
        table.add_row([
            (number + 1).to_string(),
            scenario.program(),
            scenario.direction(),
            scenario.bytes(),
            scenario.mtu.to_string(),
            scenario.network.to_string(),
            scenario.faults(),
            outcome.verdict.frames.to_string(),
            outcome.told.harmed.iter().sum::<u64>().to_string(),
            outcome.word().to_owned(),
            outcome.theirs(),
            format!("{:.1}", outcome.took.as_secs_f32()),
        ]);
    }
    println!("\n{table}\n");
    fs::write(folder.join("table.md"), format!("{table}\n"))?;
    for left_out in plan::LEFT_OUT {
        println!("left out: {left_out}");
    }
    let mut theirs = BTreeMap::new();
    for (number, outcome) in outcomes.iter().enumerate() {
        for (rule, (count, first)) in &outcome.verdict.theirs {
            let entry = theirs.entry(*rule).or_insert_with(|| (0, 0, format!("scenario {}: {first}", number + 1)));
            entry.0 += count;
            entry.1 += 1;
        }
        for quirk in &outcome.told.quirks {
            println!("scenario {}: {quirk}", number + 1);
        }
    }
    for (rule, (count, scenarios, first)) in theirs {
        println!("of rxe, {rule}: {count} times in {scenarios} scenarios, such as in {first}");
    }
    let unrelated: usize = outcomes.iter().map(|outcome| outcome.verdict.unrelated).sum();
    let frames: usize = outcomes.iter().map(|outcome| outcome.verdict.frames).sum();
    println!("{frames} frames looked at; {unrelated} of them on connections that cannot be told apart");
    Ok(())
}
