//! `cmtime` of the package rdmacm-utils over our libibverbs: connections step by step, all of them
//! in one step before the next.

use std::{env, time::Duration};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::{
    host::{Host, run, start, within},
    network::NetworkSide,
    programs::Programs,
};

/// Connections: 1,000 at once.
const CONNECTIONS: &str = "1000";

/// How long the client may take, and the server until it listens.
const LIMIT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Times of a connection, microseconds: that of all divided by their number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CmTimes {
    /// From the first request to the last established connection.
    pub(crate) connect_us: f64,
    /// All steps, from the identifier to its end.
    pub(crate) all_us: f64,
}

/// Runs it; `None` without the package.
pub(crate) fn measure(programs: &Programs<'_>) -> anyhow::Result<Option<CmTimes>> {
    if !is_installed("cmtime") {
        return Ok(None);
    }
    let (place, address) = (&programs.place, programs.pair.address(NetworkSide::B).to_string());
    let on = |host: &Host, side, options: &[&str]| {
        let mut command = place.network.command(side, place.built.join("roce-run"));
        command.arg("cmtime").args(options).env("ROCED_SOCKET", host.socket());
        command
    };
    let listeners = || programs.b.control_counter("cm_listeners");
    let before = listeners()?;
    // It serves without end, and ends with this value.
    let server = start(on(programs.b, NetworkSide::B, &["-b", &address]), &place.folder.join("cmtime.log"))?;
    let listens = within(TIMEOUT, || listeners().is_ok_and(|now| now > before));
    ensure!(listens, "cmtime does not listen");
    let text = run(on(programs.a, NetworkSide::A, &["-s", &address, "-c", CONNECTIONS]), LIMIT)?;
    drop(server);
    Ok(Some(times(&text).with_context(|| format!("cmtime says no times: {text}"))?))
}

fn is_installed(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// The last column of its table.
fn times(text: &str) -> Option<CmTimes> {
    let steps = text.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        Some((name.trim(), numbers.split_whitespace().next_back()?.parse::<f64>().ok()?))
    });
    let steps: Vec<_> = steps.collect();
    let connect_us = steps.iter().find(|(name, _)| *name == "connect")?.1;
    Some(CmTimes { connect_us, all_us: steps.iter().map(|(_, us)| us).sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_are_read_from_the_table() {
        let text = "creating id\nstep              total ms     max ms     min us  us / conn\n\
                    create id    :       73.16       8.04       9.00      73.16\n\
                    connect      :      807.65     605.76    2704.00     807.65\n";
        assert_eq!(times(text), Some(CmTimes { connect_us: 807.65, all_us: 73.16 + 807.65 }));
        assert_eq!(times("connecting\n"), None);
    }
}
