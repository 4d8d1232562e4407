//! Requests to the daemon's admin socket: one question, one answer, at most [`ANSWER_TIMEOUT`].

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _},
            net::UnixStream,
        },
    },
    path::Path,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use nix::{
    errno::Errno,
    sys::{
        socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt},
        time::{TimeVal, TimeValLike},
    },
    unistd::{Gid, Group},
};
use roced_report::{DEFAULT_ADMIN_SOCKET, Problem, Question};
use serde::de::DeserializeOwned;

/// Longest wait for an answer. The control thread answers in milliseconds; a stopped process never
/// does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer we read. A report of ten thousand queue pairs is a tenth of it.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The daemon behind an admin socket.
pub(crate) struct DaemonSocket<'a> {
    path: &'a Path,
}

impl<'a> DaemonSocket<'a> {
    /// The daemon with its admin socket at `path`. Opens nothing yet.
    pub(crate) fn at(path: &'a Path) -> Self {
        Self { path }
    }

    /// Asks `question` and waits for its report.
    pub(crate) fn ask<R: DeserializeOwned>(&self, question: Question) -> anyhow::Result<R> {
        let mut stream = self.connect()?;
        let line = serde_json::to_string(&question)? + "\n";
        stream.write_all(line.as_bytes()).map_err(|error| self.lost(&error, "asking the daemon"))?;
        parse(&self.read_line(stream)?).with_context(|| format!("the answer from {}", self.path.display()))
    }

    fn connect(&self) -> anyhow::Result<UnixStream> {
        let shown = self.path.display();
        let address = UnixAddr::new(self.path).with_context(|| format!("{shown} cannot be a socket path"))?;
        let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        set_patience(&fd)?;
        match socket::connect(fd.as_raw_fd(), &address) {
            Ok(()) => Ok(fd.into()),
            Err(Errno::ENOENT) => bail!(
                "no admin socket at {shown}: is roced running? (`systemctl status roced`; \
                 --socket PATH names another socket)"
            ),
            // The kernel refuses a file of any other type by the same error.
            Err(Errno::ECONNREFUSED) if !is_socket(self.path) => bail!(
                "{shown} is no socket: --socket takes the path of `[admin] socket`, by default {DEFAULT_ADMIN_SOCKET}"
            ),
            Err(Errno::ECONNREFUSED) => {
                bail!("no daemon listens on {shown}: roced has ended without removing its socket")
            }
            Err(Errno::EACCES) => bail!("no permission to open {shown}: {}", remedy(self.path)),
            // The socket of programs is of another type.
            Err(Errno::EPROTOTYPE) => {
                bail!(
                    "{shown} is no admin socket: --socket takes the path of `[admin] socket`, not that of `[control]`"
                )
            }
            Err(Errno::EAGAIN) => bail!("roced does not accept connections on {shown}: it hangs or is stopped"),
            Err(errno) => Err(errno).with_context(|| format!("connecting to {shown}")),
        }
    }

    fn read_line(&self, stream: UnixStream) -> anyhow::Result<String> {
        let mut line = String::new();
        let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
        reader.read_line(&mut line).map_err(|error| self.lost(&error, "reading the daemon's answer"))?;
        if line.is_empty() {
            bail!("roced closed {} without an answer: its log says why", self.path.display());
        }
        if !line.ends_with('\n') {
            bail!("the answer from {} ends in the middle: roced ended while it spoke", self.path.display());
        }
        Ok(line)
    }

    fn lost(&self, error: &std::io::Error, doing: &str) -> anyhow::Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow!(
                "roced took the question on {} but gave no answer within {} s: it hangs or is stopped",
                self.path.display(),
                ANSWER_TIMEOUT.as_secs()
            ),
            _ => anyhow!("{doing} on {}: {error}", self.path.display()),
        }
    }
}

/// False for a file of another type.
fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// How a user gets permission to open the socket: its group is that of operators, if that may.
fn remedy(path: &Path) -> String {
    let group = fs::metadata(path).ok().filter(|file| file.mode() & 0o060 == 0o060);
    let group = group.and_then(|file| Group::from_gid(Gid::from_raw(file.gid())).ok().flatten());
    match group {
        Some(Group { name, .. }) => format!(
            "run rocectl as root, or become a member of the group {name} (`usermod -aG {name} USER`, and a new login)"
        ),
        None => {
            "run rocectl as root; a group may use it that is named roced-admin, or by admin.group in roced's config"
                .to_owned()
        }
    }
}

/// Puts a deadline on connecting (a full backlog blocks), writing and reading.
fn set_patience(fd: &OwnedFd) -> nix::Result<()> {
    let patience = TimeVal::seconds(ANSWER_TIMEOUT.as_secs() as i64);
    socket::setsockopt(fd, sockopt::SendTimeout, &patience)?;
    socket::setsockopt(fd, sockopt::ReceiveTimeout, &patience)
}

fn parse<R: DeserializeOwned>(line: &str) -> anyhow::Result<R> {
    if let Ok(Problem { problem }) = serde_json::from_str(line) {
        bail!("roced says: {problem}");
    }
    serde_json::from_str(line).context("is not the report that was asked for: are rocectl and roced of one version?")
}
