//! A daemon with a log that is not read: it goes on, and ends.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// More lines than a page of a pipe and the daemon's queue hold together.
const RELOADS: usize = 1300;

const SOON: Duration = Duration::from_secs(20);

/// A daemon that waits for its interface, and its service manager.
struct WaitingDaemon {
    child: Child,
    log: Option<ChildStderr>,
    manager: UnixDatagram,
}

impl WaitingDaemon {
    fn start(folder: &Path) -> Self {
        let (config, notify) = (folder.join("roced.toml"), folder.join("notify"));
        fs::write(&config, "[[device]]\nname = \"a\"\ninterface = \"no-such-nic\"\n").expect("a config");
        let manager = UnixDatagram::bind(&notify).expect("a socket");
        manager.set_read_timeout(Some(SOON)).expect("it is a socket");
        let mut roced = Command::new(env!("CARGO_BIN_EXE_roced"));
        roced.arg("run").arg("--config").arg(&config).env("NOTIFY_SOCKET", &notify).stderr(Stdio::piped());
        let mut child = roced.spawn().expect("roced was built");
        let log = child.stderr.take().expect("a pipe");
        fcntl(&log, FcntlArg::F_SETPIPE_SZ(4096)).expect("of a page");
        let daemon = Self { child, log: Some(log), manager };
        daemon.hears("READY=1");
        daemon
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    fn hears(&self, part: &str) {
        let mut buffer = [0; 512];
        loop {
            let length = self.manager.recv(&mut buffer).expect("the daemon goes on");
            if String::from_utf8_lossy(&buffer[..length]).contains(part) {
                return;
            }
        }
    }

    fn reload_often(&self) {
        for _ in 0..RELOADS {
            self.signal(Signal::SIGHUP);
            self.hears("RELOADING=1");
            self.hears("READY=1");
        }
    }

    fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + SOON;
        loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < end, "it does not end"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for WaitingDaemon {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_log_that_stands_still_delays_no_reload_and_no_stop() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut daemon = WaitingDaemon::start(folder.path());
    daemon.reload_often();
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn lines_that_were_lost_are_counted_when_the_reader_goes_on() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut daemon = WaitingDaemon::start(folder.path());
    daemon.reload_often();
    let log = daemon.log.take().expect("not read before");
    let mut lines = BufReader::new(log).lines().map(|line| line.expect("text"));
    let is_count = |line: &String| line.contains("log lines were lost: the log's reader stands still");
    let before: Vec<_> = lines.by_ref().take_while(|line| !is_count(line)).collect();
    let read_again = before.iter().filter(|line| line.contains("config read again")).count();
    assert!((1024..RELOADS).contains(&read_again), "{read_again}");
    daemon.signal(Signal::SIGHUP);
    assert!(lines.next().expect("the log goes on").contains("config read again"));
    assert_eq!(daemon.stop(), Some(0));
    assert!(lines.next().expect("the last line is written").contains("stopping"));
    assert_eq!(lines.next(), None);
}

/// An error of the start is written after the lines of the log, or given up.
#[test]
fn a_start_that_fails_ends_when_nothing_can_be_written() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let config = folder.path().join("roced.toml");
    fs::write(&config, "[[device]]\nname = \"a\"\ninterface = \"no-such-nic\"\n").expect("a config");
    let run = |stderr: Stdio| {
        let mut roced = Command::new(env!("CARGO_BIN_EXE_roced"));
        roced.arg("run").arg("--config").arg(&config).env_remove("NOTIFY_SOCKET").stderr(stderr);
        roced.spawn().expect("roced was built").wait_with_output().expect("it ends")
    };
    let output = run(Stdio::piped());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-nic"));
    let (_reader, writer) = nix::unistd::pipe().expect("a pipe");
    fill(&writer);
    let begin = Instant::now();
    assert_eq!(run(writer.into()).status.code(), Some(1));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

fn fill(writer: &OwnedFd) {
    let bytes = fcntl(writer, FcntlArg::F_GETPIPE_SZ).expect("a pipe") as usize;
    let mut writer = File::from(writer.try_clone().expect("a second descriptor"));
    writer.write_all(&vec![b'x'; bytes]).expect("it has room for as much");
}
