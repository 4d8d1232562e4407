//! Hostile programs as child processes of another user.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::acts::Role;

/// Users of hostile programs; no account of a system has these numbers.
pub(crate) const FIRST_UID: u32 = 60_001;

/// Arguments of a hostile program.
#[derive(Args, Clone, Debug)]
pub(crate) struct ActArguments {
    /// Act.
    #[arg(value_enum)]
    pub(crate) role: Role,
    /// Socket of the daemon.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Socket of the peer's daemon.
    #[arg(long)]
    pub(crate) peer: Option<PathBuf>,
    /// User.
    #[arg(long, default_value_t = FIRST_UID)]
    pub(crate) uid: u32,
    /// Group.
    #[arg(long, default_value_t = FIRST_UID)]
    pub(crate) gid: u32,
    /// Number of objects, sessions or rounds.
    #[arg(long, default_value_t = 1)]
    pub(crate) count: u32,
    /// Bytes of memory.
    #[arg(long, default_value_t = 0)]
    pub(crate) bytes: u64,
    /// Seed of random acts.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl ActArguments {
    /// An act against the daemon at `socket`.
    pub(crate) fn new(role: Role, socket: &Path) -> Self {
        let (socket, peer) = (socket.to_owned(), None);
        Self { role, socket, peer, uid: FIRST_UID, gid: FIRST_UID, count: 1, bytes: 0, seed: 1 }
    }

    /// The same by the `nth` hostile user.
    pub(crate) fn by(self, nth: u32) -> Self {
        Self { uid: FIRST_UID + nth, gid: FIRST_UID + nth, ..self }
    }

    /// The same with this number.
    pub(crate) fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }
}

/// A hostile program that runs.
#[derive(Debug)]
pub(crate) struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    /// Starts it. It ends with the calling thread.
    pub(crate) fn start(arguments: &ActArguments) -> Result<Self> {
        use clap::ValueEnum as _;
        let role = arguments.role.to_possible_value().context("a role has a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("act").arg(role.get_name()).arg("--socket").arg(&arguments.socket);
        if let Some(peer) = &arguments.peer {
            command.arg("--peer").arg(peer);
        }
        for (option, value) in [
            ("--uid", arguments.uid.into()),
            ("--gid", arguments.gid.into()),
            ("--count", arguments.count.into()),
            ("--bytes", arguments.bytes),
            ("--seed", arguments.seed),
        ] {
            command.arg(option).arg(value.to_string());
        }
        // The end of a hostile program is no news.
        command.env("RUST_BACKTRACE", "0");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a program")?;
        let stdout = child.stdout.take().context("its output")?;
        let stdin = child.stdin.take();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, lines })
    }

    /// Starts it and waits until it says that it is ready.
    pub(crate) fn ready(arguments: &ActArguments) -> Result<Self> {
        let actor = Self::start(arguments)?;
        actor.line(Duration::from_secs(120)).with_context(|| format!("{:?} is not ready", arguments.role))?;
        Ok(actor)
    }

    /// The next line that it prints.
    pub(crate) fn line(&self, timeout: Duration) -> Result<String> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("nothing within {} s", timeout.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("it has ended"),
        }
    }

    /// The number at the end of its next line.
    pub(crate) fn number(&self, timeout: Duration) -> Result<f64> {
        let line = self.line(timeout)?;
        line.split_whitespace().last().and_then(|word| word.parse().ok()).with_context(|| format!("'{line}'"))
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to go on.
    pub(crate) fn go(&mut self) {
        self.stdin = None;
    }

    /// True while it runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its own end; true if there was one in time.
    pub(crate) fn ends_within(&mut self, timeout: Duration) -> bool {
        let begin = std::time::Instant::now();
        while self.is_alive() {
            if begin.elapsed() > timeout {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
