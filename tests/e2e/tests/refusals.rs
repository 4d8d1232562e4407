//! Bad input: each a message that names the error, an exit code that is not 0, and nothing else
//! lost.

use std::{fs, os::unix::net::UnixDatagram, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use roced_abi::VERSION;

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::{Program, within},
};

/// `roced run` on host a, with a config of its own, fails and says each of `words`. The daemons of
/// the lab go on.
fn refuses(lab: &Lab, config: &str, words: &[&str]) -> Result<()> {
    let file = lab.config(Host::A).with_file_name("other.toml");
    fs::write(&file, config)?;
    let file = file.to_str().expect("a plain path").to_owned();
    let ended = lab.run(Host::A, "roced", &["run", "--config", &file], Duration::from_secs(15))?;
    says(&ended.failure()?, words)
}

fn says(message: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(message.contains(word), "it does not name '{word}': {message}");
    }
    Ok(())
}

/// A config like host a's, but with sockets of its own.
fn other_config(lab: &Lab) -> Result<String> {
    let config = fs::read_to_string(lab.config(Host::A))?;
    Ok(config.replace("/a/roced.sock", "/a/other.sock").replace("/a/admin.sock", "/a/other-admin.sock"))
}

pub(crate) fn configs_that_cannot_be_served(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let config = other_config(&lab)?;
    refuses(&lab, &format!("{config}colour = \"red\"\n"), &["colour"])?;
    refuses(&lab, &config.replace("eth0", "eth7"), &["eth7"])?;
    refuses(&lab, &config, &["eth0"])?; // the daemon of the lab has that queue
    refuses(&lab, "[device", &["other.toml"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

/// A daemon that cannot start leaves neither sockets nor the folders that it made for them; folders
/// that were there stay.
pub(crate) fn a_daemon_that_cannot_start_leaves_no_folder(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let config = fs::read_to_string(lab.config(Host::A))?;
    let folder = lab.config(Host::A).parent().context("a folder")?.to_owned();
    let there = folder.join("there");
    fs::create_dir(&there)?;
    for (moved, to, words) in [
        (&["admin.sock"][..], "made", "roced.sock"),
        (&["roced.sock"], "made", "admin.sock"),
        (&["roced.sock", "admin.sock"], "made", "eth0"),
        (&["roced.sock", "admin.sock"], "there", "eth0"),
    ] {
        let other = moved.iter().fold(config.clone(), |config, socket| {
            config.replace(&format!("/a/{socket}"), &format!("/a/{to}/{socket}"))
        });
        refuses(&lab, &other, &[words])?;
        ensure!(!folder.join("made").exists(), "{moved:?}: the folder stays");
        ensure!(fs::read_dir(&there)?.next().is_none(), "{moved:?}: a socket stays");
    }
    Ok(())
}

/// Under a service manager a daemon waits for an absent interface: one line of the log names it,
/// and the unit does not fail every two seconds. The interface that comes is served; so is the one
/// that a corrected config names, by a reload.
pub(crate) fn a_service_waits_for_its_interface(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let daemon = Service::start(&lab)?;
    // Two more attempts.
    thread::sleep(Duration::from_secs(5));
    let add = ["link", "add", "eth7", "type", "veth", "peer", "name", "other"];
    lab.run(Host::A, "ip", &add, SOON)?.success()?;
    daemon.serves_until_stopped(&lab, "eth7")?;
    lab.run(Host::A, "ip", &["link", "delete", "eth7"], SOON)?.success()?;

    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    let daemon = Service::start(&lab)?;
    fs::write(&daemon.config, "[device")?;
    daemon.program.signal(Signal::SIGHUP)?;
    fs::write(&daemon.config, other_config(&lab)?)?;
    daemon.program.signal(Signal::SIGHUP)?;
    daemon.serves_until_stopped(&lab, "eth0")?;

    let Service { program, .. } = Service::start(&lab)?;
    program.signal(Signal::SIGTERM)?;
    program.end(SOON)?.success().map(drop)
}

/// A daemon on host a beside that of the lab, with a service manager that listens.
struct Service {
    program: Program,
    manager: UnixDatagram,
    config: PathBuf,
    _folder: tempfile::TempDir,
}

impl Service {
    /// Starts one with an interface, eth7, that is not there.
    fn start(lab: &Lab) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("notify");
        let manager = UnixDatagram::bind(&socket)?;
        manager.set_read_timeout(Some(SOON))?;
        let config = lab.config(Host::A).with_file_name("other.toml");
        fs::write(&config, other_config(lab)?.replace("eth0", "eth7"))?;
        let environment = format!("NOTIFY_SOCKET={}", socket.display());
        let arguments = [&environment, "roced", "run", "--config", config.to_str().context("a plain path")?];
        let program = lab.start(Host::A, "env", &arguments)?;
        let mut service = Self { program, manager, config, _folder: folder };
        let message = service.hears()?;
        ensure!(message.contains("READY=1") && message.contains("STATUS=waiting: "), "{message}");
        says(&message, &["eth7"])?;
        ensure!(service.program.runs()?, "it has ended");
        Ok(service)
    }

    fn hears(&self) -> Result<String> {
        let mut message = [0; 4096];
        let length = self.manager.recv(&mut message).context("the service manager hears nothing")?;
        Ok(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    /// It serves `interface`, and its log has named the absent one once.
    fn serves_until_stopped(self, lab: &Lab, interface: &str) -> Result<()> {
        ensure!(within(SOON, || Ok(self.hears()?.contains("STATUS=serving 1 device")))?, "it does not serve");
        let socket = self.config.with_file_name("other-admin.sock");
        let arguments = ["--socket", socket.to_str().context("a plain path")?, "status"];
        says(&lab.run(Host::A, "rocectl", &arguments, SOON)?.success()?, &[interface])?;
        self.program.signal(Signal::SIGTERM)?;
        let ended = self.program.end(SOON)?;
        let log = ended.errors.clone();
        ended.success()?;
        ensure!(log.lines().filter(|line| line.contains("no network interface")).count() == 1, "{log}");
        Ok(())
    }
}

/// Told by `roced check-config` too, all of it and with line numbers.
pub(crate) fn check_config_says_all_that_is_wrong(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let file = lab.config(Host::A);
    let path = file.to_str().expect("a plain path");
    lab.run(Host::A, "roced", &["check-config", path], SOON)?.success()?;
    let config = fs::read_to_string(&file)?.replace("[[worker]]", "[[worker]]\ncolour = 1\nspin_us = -1");
    fs::write(&file, config)?;
    let ended = lab.run(Host::A, "roced", &["check-config", path], SOON)?;
    let all = format!("{}{}", ended.output, ended.errors);
    ended.failure()?;
    says(&all, &["colour", "spin_us", ":8", ":9"])
}

pub(crate) fn a_missing_capability(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    let config = lab.config(Host::A);
    let config = config.to_str().expect("a plain path");
    for capability in ["net_admin", "net_raw"] {
        let bounding = format!("--bounding-set=-{capability}");
        let arguments = [&bounding, "--", "roced", "run", "--config", config];
        let ended = lab.run(Host::A, "setpriv", &arguments, Duration::from_secs(15))?;
        says(&ended.failure()?, &[&format!("CAP_{}", capability.to_uppercase())])?;
    }
    lab.start_daemon(Host::A)
}

pub(crate) fn an_mtu_that_is_too_small(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--mtu", "1500"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let ended = lab.run(Host::A, "roce-perf", &["ping", PEER_IPV4, "--mtu", "4096"], SOON)?;
    says(&ended.failure()?, &["4096", "1024"])?;
    perf::run(&lab, Host::A, &["ping", PEER_IPV4, "--count", "100"], SOON)?;
    // Too small for the smallest path MTU, 256: the device is there but cannot be used.
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    lab.run(Host::A, "ip", &["link", "set", "eth0", "mtu", "300"], SOON)?.success()?;
    refuses(&lab, &other_config(&lab)?, &["eth0", "300"])
}

pub(crate) fn another_version_of_the_client_abi(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let ours = VERSION.to_string();
    lab.run(Host::A, settings.client, &["hello", &ours], SOON)?.success()?;
    for version in [0, VERSION - 1, VERSION + 1, u32::MAX] {
        let message = lab.run(Host::A, settings.client, &["hello", &version.to_string()], SOON)?.failure()?;
        says(&message, &["Version", &format!("[{ours}, {version}]")])?;
    }
    lab.run(Host::A, settings.client, &["hello", &ours], SOON)?.success().map(drop)
}

pub(crate) fn a_peer_that_never_answers(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    // No host has that address, no server listens there.
    let message = lab.run(Host::A, "roce-perf", &["ping", "10.10.0.77", "--count", "1"], SOON)?.failure()?;
    says(&message, &["10.10.0.77"])?;
    let message = lab.run(Host::A, "roce-perf", &["ping", PEER_IPV4, "--count", "1"], SOON)?.failure()?;
    says(&message, &["roce-perf serve"])?;
    // The control connection stands, but RoCE does not get through: a firewall on the way, for
    // example.
    let _server = Server::start(&lab, Host::B, &[])?;
    lab.fault(&["--drop", "100%"])?;
    for op in ["write", "read", "send"] {
        let arguments = ["bw", PEER_IPV4, "--op", op, "--bytes", "1M"];
        let message = lab.run(Host::A, "roce-perf", &arguments, SOON)?.failure()?;
        says(&message.to_lowercase(), &["retr"])?;
    }
    let parts =
        ["queue pair failed", "program=\"roce-perf\"", "peer=10.10.0.2", "TransportRetryExceeded", "ack_timeouts="];
    says(&lab.log(Host::A)?, &parts)?;
    lab.fault(&["off"])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}

pub(crate) fn no_daemon(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    for (program, arguments) in [("rocectl", &["status"][..]), ("roce-perf", &["ping", PEER_IPV4])] {
        let message = lab.run(Host::A, program, arguments, SOON)?.failure()?;
        says(&message, &["roced"])?;
    }
    Ok(())
}
