//! Two hosts on one machine: network namespaces with a veth pair, each with a daemon.

use std::{
    env, fs,
    fs::{File, Permissions},
    io::Read as _,
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use roced_client::{Device, Gid};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Holdings;

/// Time that a daemon has to serve or to end.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Name of the interface on both hosts.
pub(crate) const INTERFACE: &str = "eth0";

/// Two hosts.
#[derive(Debug)]
pub(crate) struct HostPair {
    /// The host under attack.
    pub(crate) a: Host,
    /// Its peer.
    pub(crate) b: Host,
    folder: TempDir,
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    /// Its network namespace.
    pub(crate) space: String,
    /// Its address.
    pub(crate) address: Ipv4Addr,
    /// Socket of clients.
    pub(crate) socket: PathBuf,
    /// Socket of operators.
    pub(crate) admin: PathBuf,
    /// Log of the daemon.
    pub(crate) log: PathBuf,
    config: PathBuf,
    program: PathBuf,
    daemon: Option<Child>,
}

impl HostPair {
    /// Makes two hosts with running daemons of `program`. `config` goes behind the config of both.
    pub(crate) fn up(program: &Path, config: &str) -> Result<Self> {
        // scripts/hostile removes all that have its prefix, however this program ended.
        let prefix = env::var("HOSTILE_NAME").unwrap_or_else(|_| format!("hostile-{}", std::process::id()));
        let folder = tempfile::Builder::new().prefix(&format!("{prefix}-")).tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let host = |name: &str, last| Host::new(&format!("{prefix}-{name}"), last, program, folder.path(), config);
        let (a, b) = (host("a", 1)?, host("b", 2)?);
        let mut pair = Self { a, b, folder };
        pair.connect()?;
        pair.a.start()?;
        pair.b.start()?;
        Ok(pair)
    }

    /// A folder that every user may enter.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn connect(&self) -> Result<()> {
        let (a, b) = (&self.a.space, &self.b.space);
        for space in [a, b] {
            run("ip", &["netns", "add", space])?;
            run("ip", &["-n", space, "link", "set", "lo", "up"])?;
        }
        run(
            "ip",
            &[
                "link",
                "add",
                INTERFACE,
                "netns",
                a,
                "numtxqueues",
                "1",
                "numrxqueues",
                "1",
                "type",
                "veth",
                "peer",
                "name",
                INTERFACE,
                "netns",
                b,
                "numtxqueues",
                "1",
                "numrxqueues",
                "1",
            ],
        )?;
        for host in [&self.a, &self.b] {
            let address = format!("{}/24", host.address);
            let offloads = ["-K", INTERFACE, "tx", "off", "txvlan", "off", "rxvlan", "off"];
            host.run("ethtool", &offloads)?;
            run("ip", &["-n", &host.space, "address", "add", &address, "dev", INTERFACE])?;
            run("ip", &["-n", &host.space, "link", "set", INTERFACE, "up"])?;
        }
        Ok(())
    }
}

impl Host {
    fn new(space: &str, last: u8, program: &Path, folder: &Path, config: &str) -> Result<Self> {
        let folder = folder.join(space);
        fs::create_dir(&folder)?;
        let place = |name: &str| folder.join(name);
        let host = Self {
            space: space.to_owned(),
            address: Ipv4Addr::new(10, 77, 0, last),
            socket: place("roced.sock"),
            admin: place("admin.sock"),
            log: place("log"),
            config: place("roced.toml"),
            program: program.to_owned(),
            daemon: None,
        };
        let text = format!(
            "[control]\nsocket = \"{}\"\nmode = 0o666\n[admin]\nsocket = \"{}\"\n[[worker]]\nidle = \"sleep\"\n\
             [[device]]\nname = \"roce0\"\ninterface = \"{INTERFACE}\"\n{config}\n",
            host.socket.display(),
            host.admin.display(),
        );
        fs::write(&host.config, text)?;
        Ok(host)
    }

    /// Its address as a GID.
    pub(crate) fn gid(&self) -> Gid {
        Gid::from(std::net::IpAddr::V4(self.address))
    }

    /// MAC address of its interface.
    pub(crate) fn mac(&self) -> Result<[u8; 6]> {
        let path = format!("/sys/class/net/{INTERFACE}/address");
        let text = self.run("cat", &[&path])?;
        let octets: Result<Vec<u8>, _> = text.trim().split(':').map(|octet| u8::from_str_radix(octet, 16)).collect();
        octets?.try_into().ok().context("a MAC address")
    }

    /// Runs a program in its network namespace.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run("ip", &[&["netns", "exec", &self.space, program], arguments].concat())
    }

    /// Starts the daemon and waits until it serves.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "the daemon runs already");
        let log = File::options().create(true).append(true).open(&self.log)?;
        // `ip` becomes the daemon, with the same process id.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space]).arg(&self.program).args(["run", "--config"]).arg(&self.config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.daemon = Some(command.spawn().context("starting the daemon")?);
        let begin = Instant::now();
        loop {
            if self.serves() {
                return Ok(());
            }
            ensure!(self.is_alive() && begin.elapsed() < TIMEOUT, "the daemon does not serve: {}", self.log_text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn serves(&self) -> bool {
        let open = || Device::open_at(&self.socket, Device::list_at(&self.socket)?.first().map_or("", String::as_str));
        open().is_ok_and(|device| device.port().is_ok_and(|port| port.active) && device.gid_toward(self.gid()).is_ok())
    }

    /// Process id of the daemon.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("the daemon does not run")?.id())
    }

    /// Resources of the daemon.
    pub(crate) fn holdings(&self) -> Result<Holdings> {
        Holdings::of(self.pid()?)
    }

    /// True while the daemon runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| matches!(daemon.try_wait(), Ok(None)))
    }

    /// Ends the daemon by `signal` and waits for its end.
    pub(crate) fn stop(&mut self, signal: Signal) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        if daemon.try_wait()?.is_some() {
            return Ok(());
        }
        kill(Pid::from_raw(daemon.id() as i32), signal)?;
        let begin = Instant::now();
        while daemon.try_wait()?.is_none() {
            if begin.elapsed() > TIMEOUT {
                daemon.kill()?;
                daemon.wait()?;
                bail!("the daemon has not ended {} s after {signal}", TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Answer of the admin socket to a question in JSON.
    pub(crate) fn ask(&self, question: &str) -> Result<Value> {
        let mut stream = UnixStream::connect(&self.admin)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        std::io::Write::write_all(&mut stream, format!("{question}\n").as_bytes())?;
        let mut answer = String::new();
        let mut bytes = [0; 1 << 16];
        while !answer.ends_with('\n') {
            let length = stream.read(&mut bytes)?;
            ensure!(length > 0, "the admin socket was closed");
            answer.push_str(std::str::from_utf8(&bytes[..length])?);
        }
        Ok(serde_json::from_str(&answer)?)
    }

    /// Log of the daemon.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for HostPair {
    fn drop(&mut self) {
        for host in [&mut self.a, &mut self.b] {
            // A host that does not end is killed; the figures are taken already.
            let _ = host.stop(Signal::SIGTERM);
            let _ = run("ip", &["netns", "delete", &host.space]);
        }
    }
}

/// Runs a program to its end; returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).stdin(Stdio::null()).output().with_context(|| program.to_owned())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
