//! Circumstances of an attack: programs, time, and beginnings common to many.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use roced_client::ServiceType;

use crate::{
    actor::{ActArguments, Actor},
    latency::{ControlProbe, Latencies},
    network::{Host, HostPair},
    victim::Transfer,
};

/// Longest wait of a call of another program, ms. The machine itself adds some when it is busy.
pub(crate) const SILENCE_MS: f64 = 200.0;

/// Least rate of a transfer beside one aggressor, in hundredths of its rate alone: 80 % of a half.
pub(crate) const FAIR_PERCENT: f64 = 40.0;

/// Settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// The daemon.
    pub(crate) program: PathBuf,
    /// Duration of the long attacks; the short form otherwise.
    pub(crate) minutes: Option<u64>,
    /// Seed of all that is random.
    pub(crate) seed: u64,
}

impl Stage {
    /// Two hosts with the default config.
    pub(crate) fn hosts(&self) -> Result<HostPair> {
        self.hosts_with("")
    }

    /// Two hosts with more config.
    pub(crate) fn hosts_with(&self, config: &str) -> Result<HostPair> {
        HostPair::up(&self.program, config)
    }

    /// Duration of an attack: `short` seconds, or the minutes of the command line.
    pub(crate) fn duration(&self, short: u64) -> Duration {
        Duration::from_secs(self.minutes.map_or(short, |minutes| minutes * 60))
    }

    /// Number of rounds: `long` with minutes on the command line.
    pub(crate) fn rounds(&self, short: u32, long: u32) -> u32 {
        if self.minutes.is_some() { long } else { short }
    }
}

/// A transfer from `from` to `to`.
pub(crate) fn transfer(from: &Host, to: &Host, service: ServiceType, bytes: usize, window: u64) -> Transfer {
    Transfer {
        from: from.socket.clone(),
        to: (to.socket.clone(), to.gid()),
        source: from.gid(),
        service,
        bytes,
        window,
    }
}

/// Times of calls of another program while `act` is at work on `host` for `time`.
pub(crate) fn calls_beside(host: &mut Host, act: &ActArguments, time: Duration) -> Result<Latencies> {
    let probe = ControlProbe::start(&host.socket)?;
    thread::sleep(Duration::from_millis(100));
    let mut actor = Actor::ready(act)?;
    actor.go();
    thread::sleep(time);
    drop(actor);
    settle(&probe);
    let result = probe.finish();
    if !host.is_alive() {
        anyhow::bail!("the daemon has ended: {}", last_lines(&host.log_text()));
    }
    result
}

/// Waits until a silent control thread answers again.
pub(crate) fn settle(probe: &ControlProbe) {
    thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    while probe.silence() > Duration::from_millis(100) && begin.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The end of a log.
pub(crate) fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Free memory of this machine, bytes.
pub(crate) fn free_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
