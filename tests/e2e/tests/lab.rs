//! A lab for one test: `scripts/lab` with a name of its own, taken down when the test ends, however
//! it ends.

use std::{
    collections::BTreeMap,
    fmt, fs, iter,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{Ended, Program};

/// How long anything may take that moves no data.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Hosts, interfaces and daemons are made: in an emulated guest that takes half a minute by itself.
const UP: Duration = Duration::from_secs(180);

/// Where the runs of all labs lie.
const RUNS: &str = "/run/roced-lab";

/// Our labs are `e2e-PID-NUMBER`.
const PREFIX: &str = "e2e-";

/// A host; the third is there with `--hosts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    A,
    B,
    C,
    D,
    E,
}

impl Host {
    /// Its address on device roce0, where the hosts are connected directly or by a switch.
    pub(crate) fn ipv4(self) -> String {
        format!("10.10.0.{}", self as u8 + 1)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
        })
    }
}

/// Two hosts or more with a daemon each.
pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// Sets one up as `options` say, both daemons serving.
    pub(crate) fn up(options: &[&str]) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let lab = Self { name: format!("{PREFIX}{}-{number}", std::process::id()) };
        let mut up = lab.command("up");
        up.args(options);
        Program::run(up, UP)?.success()?;
        Ok(lab)
    }

    /// Its name, which its network namespaces begin with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// `scripts/lab WHAT` for this lab.
    pub(crate) fn command(&self, what: &str) -> Command {
        let mut command = Command::new(repository().join("scripts/lab"));
        command.arg(what).env("LAB_NAME", &self.name).env("LAB_BUILD", "0");
        command
    }

    /// `program` on a host.
    pub(crate) fn on(&self, host: Host, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.command("exec");
        command.arg(host.to_string()).arg("--").arg(program).args(arguments);
        command
    }

    /// Starts `program` on a host.
    pub(crate) fn start(&self, host: Host, program: &str, arguments: &[&str]) -> Result<Program> {
        Program::start(self.on(host, program, arguments))
    }

    /// Runs `program` on a host to its end.
    pub(crate) fn run(&self, host: Host, program: &str, arguments: &[&str], limit: Duration) -> Result<Ended> {
        Program::run(self.on(host, program, arguments), limit)
    }

    /// Report of `rocectl` about a host.
    pub(crate) fn ctl(&self, host: Host, what: &str) -> Result<Value> {
        let text = self.run(host, "rocectl", &["--json", what], SOON)?.success()?;
        serde_json::from_str(&text).with_context(|| format!("rocectl --json {what} is no JSON: {text}"))
    }

    /// The counter `name` of every group of a host that `groups` names (`device/*/queue/*`), summed
    /// up.
    pub(crate) fn counter(&self, host: Host, groups: &str, name: &str) -> Result<u64> {
        let report = self.ctl(host, "counters")?;
        let all = report["counters"].as_object().context("counters")?;
        let named = all.iter().filter(|(group, _)| is_named(group, groups));
        let counts: Vec<_> = named.filter_map(|(_, counters)| counters[name].as_u64()).collect();
        ensure!(!counts.is_empty(), "host {host} has no counter {name} in {groups}: {report:#}");
        Ok(counts.iter().sum())
    }

    /// Process of a host's daemon.
    pub(crate) fn daemon(&self, host: Host) -> Result<i32> {
        let pid = self.ctl(host, "status")?["pid"].as_i64().context("pid")?;
        Ok(i32::try_from(pid)?)
    }

    /// Deletes the interfaces of both hosts.
    pub(crate) fn unplug(&self) -> Result<()> {
        Program::run(self.command("unplug"), SOON)?.success().map(drop)
    }

    /// Makes them anew.
    pub(crate) fn plug(&self) -> Result<()> {
        Program::run(self.command("plug"), SOON)?.success().map(drop)
    }

    /// Ends a host's daemon.
    pub(crate) fn stop_daemon(&self, host: Host, signal: Signal) -> Result<()> {
        let mut stop = self.command("stop");
        stop.arg(host.to_string()).arg(signal.as_str().trim_start_matches("SIG"));
        Program::run(stop, SOON)?.success().map(drop)
    }

    /// Starts a host's daemon again; it serves when this returns.
    pub(crate) fn start_daemon(&self, host: Host) -> Result<()> {
        let mut start = self.command("start");
        start.arg(host.to_string());
        Program::run(start, SOON)?.success().map(drop)
    }

    /// The log of a host's daemon.
    pub(crate) fn log(&self, host: Host) -> Result<String> {
        let mut log = self.command("log");
        log.arg(host.to_string());
        let file = Program::run(log, SOON)?.success()?;
        fs::read_to_string(file.trim()).with_context(|| format!("reading {file}"))
    }

    /// The config file of a host's daemon.
    pub(crate) fn config(&self, host: Host) -> PathBuf {
        Path::new(RUNS).join(&self.name).join(host.to_string()).join("roced.toml")
    }

    /// Restarts the daemon of a host with another config.
    pub(crate) fn change_config(&self, host: Host, change: impl FnOnce(String) -> String) -> Result<()> {
        self.stop_daemon(host, Signal::SIGTERM)?;
        let file = self.config(host);
        fs::write(&file, change(fs::read_to_string(&file)?))?;
        self.start_daemon(host)
    }

    /// Sets faults, as `scripts/lab fault` takes them.
    pub(crate) fn fault(&self, faults: &[&str]) -> Result<()> {
        let mut fault = self.command("fault");
        fault.args(faults);
        Program::run(fault, SOON)?.success().map(drop)
    }

    /// Counters of the faults since they were set.
    pub(crate) fn faults(&self) -> Result<BTreeMap<String, u64>> {
        let mut show = self.command("fault");
        show.args(["show", "--json"]);
        Ok(serde_json::from_str(&Program::run(show, SOON)?.success()?)?)
    }

    /// Lets the counters of the switch's queues begin at zero.
    pub(crate) fn reset_queues(&self) -> Result<()> {
        let mut reset = self.command("queue");
        reset.arg("--reset");
        Program::run(reset, SOON)?.success().map(drop)
    }

    /// The queue of the switch's port toward `host`, `seconds` later and with rates of that time.
    pub(crate) fn queue(&self, host: Host, seconds: u64) -> Result<Value> {
        Self::port(host, &self.start_queues(seconds)?.end(SOON + Duration::from_secs(seconds))?.success()?)
    }

    /// Starts to take the queues of the switch's ports for `seconds`; [`Self::port`] reads them.
    pub(crate) fn start_queues(&self, seconds: u64) -> Result<Program> {
        let mut queue = self.command("queue");
        queue.args(["--json", "--seconds", &seconds.to_string()]);
        Program::start(queue)
    }

    /// The queue of the switch's port toward `host` in a document of all.
    pub(crate) fn port(host: Host, document: &str) -> Result<Value> {
        let report: Value = serde_json::from_str(document)?;
        let port = format!("{host}0");
        let ports = report["ports"].as_array().context("ports")?;
        ports.iter().find(|queue| queue["port"] == port.as_str()).cloned().with_context(|| format!("no port {port}"))
    }

    /// Starts to capture into `file`; [`Capture::stop`] ends it.
    pub(crate) fn capture(&self, file: &Path) -> Result<Capture> {
        let mut capture = self.command("capture");
        capture.arg(file).arg("600");
        Capture::start(capture, "capturing")
    }

    /// Starts to record RoCE frames into `file`; [`Capture::stop`] ends it.
    pub(crate) fn record(&self, file: &Path) -> Result<Capture> {
        let mut record = self.command("fault");
        record.arg("--record").arg(file);
        Capture::start(record, "capturing")
    }

    /// Starts to replay a recording; [`Capture::stop`] ends it and returns a summary.
    pub(crate) fn replay(&self, file: &Path, pace: &[&str]) -> Result<Capture> {
        let mut replay = self.command("fault");
        replay.arg("--replay").arg(file).args(pace);
        Capture::start(replay, "replaying")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = Program::run(self.command("down"), SOON).and_then(Ended::success) {
            eprintln!("lab {}: {error:#}", self.name);
        }
    }
}

/// Whether `group` has the parts of `pattern`, of which `*` is any.
fn is_named(group: &str, pattern: &str) -> bool {
    let (group, pattern): (Vec<_>, Vec<_>) = (group.split('/').collect(), pattern.split('/').collect());
    group.len() == pattern.len() && iter::zip(group, pattern).all(|(part, wanted)| wanted == "*" || part == wanted)
}

/// A capture or a replay that runs.
pub(crate) struct Capture {
    program: Program,
}

impl Capture {
    fn start(command: Command, begins_with: &str) -> Result<Self> {
        let mut program = Program::start(command)?;
        let line = program.line(SOON)?;
        ensure!(line.starts_with(begins_with), "{line}");
        Ok(Self { program })
    }

    /// Ends it; every frame is then in its file. Returns its output at the end.
    pub(crate) fn stop(self) -> Result<String> {
        // Not SIGINT: where that is ignored, as in the background of a script, no shell can trap
        // it.
        self.program.signal(Signal::SIGTERM)?;
        Ok(self.program.end(SOON)?.success()?.trim_end().to_owned())
    }
}

/// The source tree.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Takes down labs that an earlier run of these tests, killed in the middle, left behind.
pub(crate) fn sweep() -> Result<()> {
    let Ok(entries) = fs::read_dir(RUNS) else { return Ok(()) };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            eprintln!("taking down {name}, left behind by an earlier run");
            drop(Lab { name });
        }
    }
    Ok(())
}
