//! A host's daemon and the programs that serve on it: started, asked, and ended with this process.

use std::{
    fs,
    io::{Read as _, Seek as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use roced_client::Device;
use serde_json::Value;

use crate::{
    cpu,
    network::{BenchNetwork, NetworkSide, Pair},
};

/// How long starting and ending anything may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Where `roce-perf serve` listens.
const PERF_PORT: u16 = 18511;

/// Lines of the config that are not the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// For the section `[[device]]`.
    pub(crate) device: Vec<String>,
    /// For the section `[[worker]]`.
    pub(crate) worker: Vec<String>,
    /// Such sections that there are besides the first.
    pub(crate) more_workers: usize,
}

/// A process of ours that is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_none())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; the signal then has no receiver.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while self.runs() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command and sends its output to `log`.
pub(crate) fn start(mut command: Command, log: &Path) -> anyhow::Result<Running> {
    let to = fs::File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    Ok(Running(command.spawn().with_context(|| format!("starting {command:?}"))?))
}

/// Runs a command to its end, and returns its output. A command that has not ended within `limit`
/// is ended, and that is an error.
pub(crate) fn run(mut command: Command, limit: Duration) -> anyhow::Result<String> {
    // Files, not pipes: no thread has to read them while it runs.
    let [mut output, mut errors] = [tempfile::tempfile()?, tempfile::tempfile()?];
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let mut running = Running(command.spawn().with_context(|| format!("starting {command:?}"))?);
    let has_ended = within(limit, || !running.runs());
    let status = running.0.try_wait()?;
    let [text, errors] = [&mut output, &mut errors].map(|file| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let (text, errors) = (text?, errors?);
    ensure!(has_ended, "{command:?} has not ended within {} s: {text}{errors}", limit.as_secs_f64());
    ensure!(status.is_some_and(|status| status.success()), "{command:?}: {text}{errors}");
    Ok(text)
}

/// Waits for `what` to come true.
pub(crate) fn within(patience: Duration, mut what: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !what() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A host with a daemon that serves, and a `roce-perf serve`.
#[derive(Debug)]
pub(crate) struct Host {
    // Before the daemon: it ends first.
    perf: Running,
    daemon: Running,
    folder: PathBuf,
    programs: PathBuf,
}

impl Host {
    /// Starts a daemon on a host's interface of `pair` and waits until it serves. Its files come to
    /// lie in `folder`.
    pub(crate) fn new(
        network: &BenchNetwork,
        (pair, side): (Pair, NetworkSide),
        programs: &Path,
        folder: &Path,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(format!("{}{}", side.letter(), pair.interface()));
        fs::create_dir_all(&folder)?;
        let config = folder.join("roced.toml");
        fs::write(&config, config_text(&folder, &pair.interface(), settings))?;
        let log = folder.join("log");
        let mut command = network.command(side, programs.join("roced"));
        command.args(["run", "--config"]).arg(&config);
        let mut daemon = start(command, &log)?;
        let serves = || Device::list_at(&folder.join("roced.sock")).is_ok_and(|devices| !devices.is_empty());
        let there = within(TIMEOUT, || serves() || !daemon.runs());
        ensure!(there && daemon.runs(), "roced does not serve:\n{}", fs::read_to_string(&log).unwrap_or_default());

        let mut command = network.command(side, programs.join("roce-perf"));
        let address = (pair.address(side), PERF_PORT);
        command.args(["serve", "--bind", &address.0.to_string()]).env("ROCED_SOCKET", folder.join("roced.sock"));
        let perf = start(command, &folder.join("perf.log"))?;
        let listens = || network.on(side, || Ok(TcpStream::connect(address)?)).is_ok();
        ensure!(within(TIMEOUT, listens), "roce-perf serve does not listen: {}", folder.join("perf.log").display());
        Ok(Self { perf, daemon, folder, programs: programs.to_owned() })
    }

    /// The socket that programs connect to.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("roced.sock")
    }

    /// Programs that have ended though they should not, with their logs.
    pub(crate) fn fallen(&mut self) -> Option<String> {
        let said = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let ended = [(&mut self.daemon, "roced", "log"), (&mut self.perf, "roce-perf serve", "perf.log")];
        let ended = ended.into_iter().filter_map(|(running, name, log)| {
            let status = running.0.try_wait().ok()??;
            Some(format!("{name} has ended, {status}:\n{}", said(log)))
        });
        let all: Vec<_> = ended.collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }

    /// The daemon's process.
    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The processes that serve here.
    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.daemon.pid(), self.perf.pid()]
    }

    /// Processor time of daemon and server.
    pub(crate) fn cpu(&self) -> Duration {
        self.pids().map(cpu::of_process).iter().sum()
    }

    /// The daemon's status.
    pub(crate) fn status(&self) -> anyhow::Result<Value> {
        self.ask("status")
    }

    /// A counter of the daemon's group `control`.
    pub(crate) fn control_counter(&self, name: &str) -> anyhow::Result<u64> {
        let counters = self.ask("counters")?;
        counters["counters"]["control"][name].as_u64().with_context(|| format!("no counter {name}"))
    }

    fn ask(&self, what: &str) -> anyhow::Result<Value> {
        let mut command = Command::new(self.programs.join("rocectl"));
        command.args(["--json", what]).env("ROCED_ADMIN_SOCKET", self.folder.join("admin.sock"));
        Ok(serde_json::from_str(&run(command, TIMEOUT)?)?)
    }

    /// Memory of the daemon in bytes, as the kernel shares it out.
    pub(crate) fn memory(&self) -> anyhow::Result<HostMemory> {
        let path = format!("/proc/{}/smaps_rollup", self.daemon.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.map(|kib| kib * 1024).with_context(|| format!("{path} has no {name}"))
        };
        Ok(HostMemory { rss: field("Rss:")?, pss: field("Pss:")?, anonymous: field("Anonymous:")? })
    }
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct HostMemory {
    /// Resident.
    pub(crate) rss: u64,
    /// Resident memory, with its share of shared pages.
    pub(crate) pss: u64,
    /// Of no file: the daemon's alone.
    pub(crate) anonymous: u64,
}

impl HostMemory {
    /// Of the growth to `after` the part of each of `count`.
    pub(crate) fn each(self, after: Self, count: usize) -> Self {
        let each = |before: u64, after: u64| after.saturating_sub(before) / count as u64;
        Self {
            rss: each(self.rss, after.rss),
            pss: each(self.pss, after.pss),
            anonymous: each(self.anonymous, after.anonymous),
        }
    }
}

fn config_text(folder: &Path, interface: &str, settings: &Settings) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let worker = format!("[[worker]]\n{}\n\n", settings.worker.join("\n"));
    format!(
        "[log]\nlevel = \"warn\"\n\n[control]\nsocket = \"{}\"\n\n[admin]\nsocket = \"{}\"\n\n{}\
         [[device]]\nname = \"roce0\"\ninterface = \"{}\"\n{}\n",
        file("roced.sock"),
        file("admin.sock"),
        worker.repeat(1 + settings.more_workers),
        interface,
        settings.device.join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use roced::config::Config;

    use super::*;

    #[test]
    fn a_program_is_waited_for_until_its_limit_and_no_longer() {
        let shell = |line: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", line]);
            command
        };
        let long = Duration::from_secs(60);
        assert_eq!(run(shell("echo well; echo apart >&2"), long).expect("it ends well"), "well\n");
        let failed = run(shell("echo some; echo why >&2; exit 3"), long).expect_err("it fails").to_string();
        assert!(failed.ends_with("some\nwhy\n"), "{failed}");
        let begin = Instant::now();
        let late = run(shell("exec sleep 60"), Duration::from_millis(20)).expect_err("it does not end").to_string();
        assert!(late.contains("has not ended within 0.02 s") && begin.elapsed() < long, "{late}");
    }

    #[test]
    fn the_config_is_the_default_except_for_given_keys() {
        let settings = Settings {
            device: vec!["window_packets = 64".into()],
            worker: vec!["spin_us = 7".into()],
            more_workers: 1,
        };
        let config = Config::parse(&config_text(Path::new("/run/x"), "eth0", &settings), &[0]).expect("valid");
        assert_eq!(config.devices[0].window_packets, 64);
        assert_eq!(config.workers.iter().map(|worker| worker.spin_us).collect::<Vec<_>>(), [7, 7]);
        let plain =
            Config::parse(&config_text(Path::new("/run/x"), "eth0", &Settings::default()), &[0]).expect("valid");
        assert_eq!(plain.devices[0], roced::config::DeviceConfig::new("roce0", "eth0"));
    }
}
