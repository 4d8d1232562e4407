//! Shares of a transfer beside hostile programs of another user, by the attacks of
//! `scripts/hostile`.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::sample::Spread;

/// The attack with an aggressor of each kind.
const ATTACK: &str = "aggressors";

/// A transfer beside one kind of aggressor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Beside {
    /// Kind, such as "1,000 queue pairs".
    pub(crate) aggressor: String,
    /// Goodput in percent of its fair share, which is half of its goodput alone.
    pub(crate) share_percent: Spread,
    /// 99th percentile of the time of a message, in times of that beside an equal; `None` for the
    /// equal.
    pub(crate) p99_of_equal: Option<Spread>,
}

/// A line of the attacks' JSON.
#[derive(Debug, Deserialize)]
struct Figure {
    figure: String,
    /// No number where the attack did not come to one.
    value: Option<f64>,
}

/// Runs the attack `rounds` times, between hosts of its own, with the daemon of folder `built`.
pub(crate) fn measure(built: &Path, folder: &Path, rounds: usize) -> anyhow::Result<Vec<Beside>> {
    let json = folder.join("fairness.json");
    let mut figures = Vec::new();
    for _ in 0..rounds {
        // Its exit status says whether bars were met. The table says that as well.
        let status = Command::new("scripts/hostile")
            .args(["--only", ATTACK, "--roced"])
            .arg(built.join("roced"))
            .arg("--json")
            .arg(&json)
            .env("HOSTILE_BUILD", "0")
            .stdout(Stdio::null())
            .status()
            .context("scripts/hostile")?;
        let text = fs::read_to_string(&json).with_context(|| format!("scripts/hostile ended with {status}"))?;
        for line in text.lines() {
            figures.push(serde_json::from_str::<Figure>(line).with_context(|| line.to_owned())?);
        }
    }
    let beside = table(&figures);
    ensure!(!beside.is_empty(), "scripts/hostile --only {ATTACK} has no figures");
    Ok(beside)
}

/// The figures of all rounds by kind of aggressor, in the order of the attack.
fn table(figures: &[Figure]) -> Vec<Beside> {
    let mut order = Vec::new();
    let mut shares = BTreeMap::<&str, Vec<f64>>::new();
    let mut p99s = BTreeMap::<&str, Vec<f64>>::new();
    for Figure { figure, value } in figures {
        let Some((aggressor, figure)) = figure.strip_prefix("beside ").and_then(|text| text.split_once(": ")) else {
            continue;
        };
        let into = match figure {
            "goodput, of half of that alone" => &mut shares,
            "p99, of that beside an equal" => &mut p99s,
            _ => continue,
        };
        if !order.contains(&aggressor) {
            order.push(aggressor);
        }
        into.entry(aggressor).or_default().extend(*value);
    }
    let spread = |all: &Vec<f64>| Spread::of(all.iter().copied());
    let row = |name: &str| {
        Some(Beside {
            aggressor: name.to_owned(),
            share_percent: shares.get(name).and_then(spread)?,
            p99_of_equal: p99s.get(name).and_then(spread),
        })
    };
    order.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_all_rounds_become_one_row_for_each_aggressor() {
        let figure = |figure: &str, value| Figure { figure: figure.to_owned(), value };
        let rows = table(&[
            figure("alone: goodput", Some(5.0)),
            figure("beside an equal: goodput, of half of that alone", Some(100.0)),
            figure("beside registrations: goodput, of half of that alone", Some(90.0)),
            figure("beside registrations: p99, of that beside an equal", Some(2.0)),
            figure("beside an equal: goodput, of half of that alone", Some(110.0)),
            figure("beside registrations: goodput, of half of that alone", Some(80.0)),
            figure("beside registrations: p99, of that beside an equal", None),
            figure("daemon alive", Some(1.0)),
        ]);
        let names: Vec<_> = rows.iter().map(|row| row.aggressor.as_str()).collect();
        assert_eq!(names, ["an equal", "registrations"]);
        assert_eq!((rows[0].share_percent.min, rows[0].share_percent.max), (100.0, 110.0));
        assert!(rows[0].p99_of_equal.is_none(), "an equal is not compared with itself");
        let p99 = rows[1].p99_of_equal.expect("a figure of one round");
        assert_eq!((rows[1].share_percent.min, p99.median, p99.rounds), (80.0, 2.0, 1));
    }
}
