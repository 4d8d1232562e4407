//! A program under test: lines in, lines out, never waited for without a deadline, never left
//! behind.

use std::{
    fmt,
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A running program.
pub(crate) struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

/// A program that has ended.
pub(crate) struct Ended {
    name: String,
    pub(crate) status: ExitStatus,
    /// Output that was not read before.
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Program {
    /// Starts it.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}").replace('"', "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| name.clone())?;
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = child.stderr.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut text = Vec::new();
            // The text before an error is all there is to tell.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { name, stdin: child.stdin.take(), child, lines, errors: Some(errors) })
    }

    /// Runs it to its end.
    pub(crate) fn run(command: Command, limit: Duration) -> Result<Ended> {
        Self::start(command)?.end(limit)
    }

    /// Its process: with `scripts/lab exec` that of the program itself, because nothing stays in
    /// between.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self, limit: Duration) -> Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("{}: prints nothing within {} s", self.name, limit.as_secs()),
            Err(RecvTimeoutError::Disconnected) => {
                self.stop();
                let errors = self.take_errors();
                bail!("{}: ended early\n{errors}", self.name)
            }
        }
    }

    /// The next line, which must be this one.
    pub(crate) fn expect(&mut self, wanted: &str, limit: Duration) -> Result<()> {
        let line = self.line(limit)?;
        ensure!(line == wanted, "{}: says '{line}', not '{wanted}'", self.name);
        Ok(())
    }

    /// Writes a line to its stdin.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").with_context(|| format!("{}: does not listen", self.name))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for its end.
    pub(crate) fn end(mut self, limit: Duration) -> Result<Ended> {
        self.stdin = None;
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.stop();
                let errors = self.take_errors();
                bail!("{}: has not ended within {} s\n{errors}", self.name, limit.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mut output = String::new();
        for line in self.lines.iter() {
            output.push_str(&line);
            output.push('\n');
        }
        Ok(Ended { name: self.name.clone(), status, output, errors: self.take_errors() })
    }

    fn stop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn take_errors(&mut self) -> String {
        self.errors.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Ended {
    /// Its output, if it ended well.
    pub(crate) fn success(self) -> Result<String> {
        ensure!(self.status.success(), "{self}");
        Ok(self.output)
    }

    /// Its output on stderr, if it ended with an exit code other than 0.
    pub(crate) fn failure(self) -> Result<String> {
        ensure!(self.status.code().is_some_and(|code| code != 0), "this should have failed: {self}");
        Ok(self.errors)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}{}", self.name, self.status, self.output, self.errors)
    }
}

/// Outputs of two programs that depend on each other, if both ended well; else all that both said,
/// for the one may have failed because of the other.
pub(crate) fn both_ended_well(first: Result<Ended>, second: Result<Ended>) -> Result<(String, String)> {
    match (first, second) {
        (Ok(first), Ok(second)) => {
            ensure!(first.status.success() && second.status.success(), "{first}\n{second}");
            Ok((first.output, second.output))
        }
        (Err(error), Ok(ended)) | (Ok(ended), Err(error)) => Err(error.context(ended.to_string())),
        (Err(first), Err(second)) => Err(first.context(format!("{second:#}"))),
    }
}

/// Whether `condition` comes true within `limit`.
pub(crate) fn within(limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<bool> {
    let deadline = Instant::now() + limit;
    while !condition()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}
