//! Programs on this machine: never waited for without a deadline, never left behind.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// 0 for success; -1 when a signal ended it.
    pub(crate) code: i32,
    /// Its output, on stdout and stderr.
    pub(crate) output: String,
    /// When it was seen to have ended, since the epoch.
    pub(crate) at_ns: u64,
}

impl Ended {
    pub(crate) fn now(code: i32, output: String) -> Self {
        Self { code, output, at_ns: now_ns() }
    }

    /// Its output, if it ended well.
    pub(crate) fn success(self, what: &str) -> Result<String> {
        ensure!(self.code == 0, "{what}: exit code {}\n{}", self.code, self.output.trim_end());
        Ok(self.output)
    }
}

/// Since the epoch.
pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    now.as_nanos() as u64
}

/// A program that runs, and prints into a file.
pub(crate) struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let name = format!("{command:?}").replace('"', "");
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| name.clone())?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Its output until now.
    pub(crate) fn printed(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }

    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it has printed `text`.
    pub(crate) fn await_text(&mut self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let printed = self.printed()?;
            if printed.contains(text) {
                return Ok(());
            }
            ensure!(self.runs()?, "{}: ended early\n{printed}", self.name);
            ensure!(
                Instant::now() < deadline,
                "{}: does not say '{text}' within {} s\n{printed}",
                self.name,
                limit.as_secs()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// Waits for its end; a process that takes longer is killed, and that is an error.
    pub(crate) fn end(mut self, limit: Duration) -> Result<Ended> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Ended::now(status.code().unwrap_or(-1), self.printed()?));
            }
            if Instant::now() > deadline {
                let printed = self.printed()?;
                bail!("{}: has not ended within {} s\n{}", self.name, limit.as_secs(), printed.trim_end());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: Command, log: &Path, limit: Duration) -> Result<Ended> {
    Running::start(command, log)?.end(limit)
}
