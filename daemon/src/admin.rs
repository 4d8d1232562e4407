//! The operator's socket: a line of JSON in, a line of JSON out. The words are those of
//! `shared/report/src/lib.rs`.
//!
//! It runs on the control thread and must never delay it: sockets do not block, a question is
//! short, an answer is written as fast as it is read, and a slow operator is disconnected. A thread
//! of the operator's closes its socket, and descriptors in it.

pub(crate) mod access;

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        socket::{MsgFlags, getsockopt, send, sockopt::PeerCredentials},
    },
};
use roced_memory::{
    accounts::{ClientAccount, ClientAccounts},
    descriptor,
    shared_fd::SharedFd,
};
use roced_report::{Problem, Question};
use roced_types::AccountId;

use self::access::AdminAccess;

/// Operators connected at a time; more wait in the kernel's queue until one has left. Each is a
/// person or a script, and a connection is soon over.
const CONNECTIONS_MAX: usize = 16;

/// Bytes of a question; the longest is a few dozen.
const QUESTION_BYTES_MAX: usize = 1024;

/// How long an operator may take between two steps.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection lasts, with any number of steps: others wait for its place. `rocectl`
/// makes one for each question, and the longest answer takes some seconds where the daemon is busy.
const LIFETIME: Duration = Duration::from_secs(30);

/// Number of the listener in the epoll set; connections have numbers of their own.
const LISTENER: u64 = u64::MAX;

/// The socket and its connections.
#[derive(Debug)]
pub struct Admin {
    path: PathBuf,
    listener: UnixListener,
    epoll: Epoll,
    connections: Vec<(u64, AdminConnection)>,
    next: u64,
    access: AdminAccess,
    accounts: ClientAccounts,
}

#[derive(Debug)]
struct AdminConnection {
    stream: SharedFd,
    /// User at the other end, as the kernel said when it connected.
    account: ClientAccount,
    /// Why it gets no answer.
    refusal: Option<String>,
    question: Vec<u8>,
    answer: Vec<u8>,
    /// Bytes of `answer` that are on their way.
    sent: usize,
    deadline: Instant,
    /// No deadline is later than this.
    ends: Instant,
}

impl Admin {
    /// Listens at `path`, for root, the daemon's user and that group, or the usual one if it
    /// exists. A socket without a listener is replaced.
    ///
    /// # Errors
    /// The kernel's; [`ErrorKind::AddrInUse`] when another daemon listens there, or something else
    /// than a socket stands there; [`ErrorKind::NotFound`] when there is no such group.
    pub fn open(path: &Path, group: Option<&str>) -> io::Result<Self> {
        let mut access = AdminAccess::new(group)?;
        remove_stale(path)?;
        let listener = UnixListener::bind(path)?;
        access.give(path)?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let accounts = ClientAccounts::default();
        Ok(Self { path: path.into(), listener, epoll, connections: Vec::new(), next: 0, access, accounts })
    }

    /// When [`Self::serve`] wants to be called though nothing is readable.
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.iter().map(|(_, connection)| connection.deadline).min()
    }

    /// Performs all work that does not wait. `answer` gets a question and the user that asks, and
    /// returns the JSON of the answer, without a line end.
    pub fn serve(&mut self, now: Instant, mut answer: impl FnMut(Question, u32) -> Result<String, Problem>) {
        let was_full = self.is_full();
        let mut events = [EpollEvent::empty(); CONNECTIONS_MAX + 1];
        // A failure (EINTR) leaves the set readable: we are called again.
        let ready = self.epoll.wait(&mut events, nix::sys::epoll::EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..ready] {
            if event.data() == LISTENER {
                self.accept(now);
                continue;
            }
            let Some(at) = self.connections.iter().position(|(number, _)| *number == event.data()) else { continue };
            // The operator is gone, and an order must not be carried out. A connection that is
            // shut down for writing alone still gets its answer.
            if event.events().contains(EpollFlags::EPOLLHUP) {
                self.remove(at);
                continue;
            }
            match self.connections[at].1.proceed(now, &mut answer) {
                Ok(interest) => self.watch(at, interest),
                Err(_gone) => self.remove(at),
            }
        }
        while let Some(at) = self.connections.iter().position(|(_, connection)| connection.deadline <= now) {
            self.remove(at);
        }
        if self.is_full() != was_full {
            let interest = if self.is_full() { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
            let mut event = EpollEvent::new(interest, LISTENER);
            self.epoll.modify(&self.listener, &mut event).expect("a watched socket can be watched otherwise");
        }
    }

    fn remove(&mut self, at: usize) {
        let (_, connection) = self.connections.swap_remove(at);
        // It cannot fail: the stream is in the set, and open until its user's thread closes it.
        let _ = self.epoll.delete(&connection.stream);
    }

    fn is_full(&self) -> bool {
        self.connections.len() == CONNECTIONS_MAX
    }

    fn accept(&mut self, now: Instant) {
        if self.is_full() {
            return;
        }
        // Any failure concerns one operator, or passes: the set stays readable.
        let Ok((stream, _)) = self.listener.accept() else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { return };
        let refusal = (!self.access.allows(&stream, credentials)).then(|| self.access.describe());
        let account = self.accounts.account(AccountId(credentials.uid()));
        let stream = SharedFd::new(stream.into(), Some(account.clone()));
        let number = self.next;
        if self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number)).is_ok() {
            self.next += 1;
            let (question, answer) = (Vec::new(), Vec::new());
            let (deadline, ends) = (now + STEP_TIMEOUT, now + LIFETIME);
            let connection = AdminConnection { stream, account, refusal, question, answer, sent: 0, deadline, ends };
            self.connections.push((number, connection));
        }
    }

    fn watch(&self, at: usize, interest: EpollFlags) {
        let (number, connection) = &self.connections[at];
        let mut event = EpollEvent::new(interest, *number);
        self.epoll.modify(&connection.stream, &mut event).expect("a watched stream can be watched otherwise");
    }
}

impl AsFd for Admin {
    /// Readable when [`Self::serve`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}

/// This connection is over, for any reason: no state of the daemon depends on it.
struct Gone;

impl From<Errno> for Gone {
    fn from(_: Errno) -> Self {
        Self
    }
}

impl AdminConnection {
    /// Reads, answers and writes until it would have to wait; returns the readiness to wait for.
    fn proceed(
        &mut self,
        now: Instant,
        answer: &mut impl FnMut(Question, u32) -> Result<String, Problem>,
    ) -> Result<EpollFlags, Gone> {
        self.deadline = self.ends.min(now + STEP_TIMEOUT);
        // One question per call, so that an operator that asks without end gets no more than one
        // turn.
        if !self.write()? {
            return Ok(EpollFlags::EPOLLOUT);
        }
        self.read()?;
        if let Some(end) = self.question.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.question.drain(..=end).collect();
            self.answer = answer_line(&line, |question| match &self.refusal {
                Some(problem) => Err(Problem { problem: problem.clone() }),
                None => answer(question, self.account.id().0),
            });
            self.sent = 0;
            if !self.write()? {
                return Ok(EpollFlags::EPOLLOUT);
            }
        } else if self.question.len() >= QUESTION_BYTES_MAX {
            return Err(Gone);
        }
        // Bytes read beyond the first line are not seen by epoll: wait for room to write, which
        // there is.
        let more = self.question.contains(&b'\n');
        Ok(if more { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN })
    }

    fn read(&mut self) -> Result<(), Gone> {
        let mut bytes = [0; QUESTION_BYTES_MAX];
        let room = QUESTION_BYTES_MAX - self.question.len();
        if room == 0 {
            return Ok(());
        }
        match descriptor::receive(&self.stream, &mut bytes[..room], &self.account) {
            // Descriptors answer no question.
            Ok(None) => Err(Gone),
            Ok(Some(incoming)) if !incoming.descriptors.is_empty() => Err(Gone),
            Ok(Some(incoming)) if incoming.length == 0 && !self.question.contains(&b'\n') => Err(Gone),
            Ok(Some(incoming)) => {
                self.question.extend_from_slice(&bytes[..incoming.length]);
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// True when all is written.
    fn write(&mut self) -> Result<bool, Gone> {
        while self.sent < self.answer.len() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.stream.as_fd().as_raw_fd(), &self.answer[self.sent..], flags) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.sent += count,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.answer = Vec::new();
        self.sent = 0;
        Ok(true)
    }
}

fn answer_line(line: &[u8], answer: impl FnOnce(Question) -> Result<String, Problem>) -> Vec<u8> {
    let question =
        serde_json::from_slice(line).map_err(|error| Problem { problem: format!("no such question: {error}") });
    let text = question
        .and_then(answer)
        .unwrap_or_else(|problem| serde_json::to_string(&problem).expect("a struct with a string is JSON"));
    let mut bytes = text.into_bytes();
    bytes.push(b'\n');
    bytes
}

/// Removes a socket that a daemon left behind; one on which a daemon listens, or anything else,
/// stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if found.file_type().is_socket() && UnixStream::connect(path).is_err() {
        return fs::remove_file(path);
    }
    Err(ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read, Write},
        thread,
    };

    use super::*;

    /// An admin socket that is served until `ask` returns.
    fn served<T: Send>(
        answer: impl Fn(Question, u32) -> Result<String, Problem>,
        ask: impl FnOnce(&Path) -> T + Send,
    ) -> T {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let mut admin = Admin::open(&path, None).expect("a socket");
        thread::scope(|scope| {
            let asker = scope.spawn(|| ask(&path));
            while !asker.is_finished() {
                admin.serve(Instant::now(), &answer);
                thread::yield_now();
            }
            asker.join().expect("the asker ended well")
        })
    }

    fn ask(stream: &mut BufReader<UnixStream>, line: &str) -> String {
        stream.get_mut().write_all(line.as_bytes()).expect("write");
        let mut answer = String::new();
        stream.read_line(&mut answer).expect("read");
        answer
    }

    #[test]
    fn each_line_is_answered_in_order_even_when_they_come_together() {
        let answer = |question, _| Ok(format!("\"{question:?}\""));
        let answers = served(answer, |path| {
            let mut stream = BufReader::new(UnixStream::connect(path).expect("connect"));
            let first = ask(&mut stream, "\"status\"\n\"qps\"\n");
            let second = ask(&mut stream, "");
            [first, second, ask(&mut stream, "\"counters\"\n"), ask(&mut stream, "\"weather\"\n")]
        });
        assert_eq!(answers[..3], ["\"Status\"\n", "\"Qps\"\n", "\"Counters\"\n"]);
        assert!(answers[3].contains("no such question") && answers[3].contains("problem"), "{}", answers[3]);
    }

    #[test]
    fn the_user_that_asks_is_the_kernels_word() {
        let answer = served(
            |question, uid| Ok(format!("\"{question:?} {uid}\"")),
            |path| {
                ask(&mut BufReader::new(UnixStream::connect(path).expect("connect")), "{\"device_remove\":\"roce0\"}\n")
            },
        );
        assert_eq!(
            answer,
            format!("\"DeviceRemove(\\\"roce0\\\") {}\"\n", nix::unistd::geteuid()).replace("\\\"", "\"")
        );
    }

    /// `rocectl` gives up after some seconds, for example while a debugger has stopped the daemon.
    #[test]
    fn a_question_on_a_closed_connection_is_not_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let mut admin = Admin::open(&path, None).expect("a socket");
        let left = |admin: &mut Admin| {
            let mut asked = 0;
            for _ in 0..10 {
                admin.serve(Instant::now(), |_, _| {
                    asked += 1;
                    Ok("1".into())
                });
            }
            asked
        };
        let mut gone = UnixStream::connect(&path).expect("connect");
        gone.write_all(b"\"status\"\n").expect("write");
        drop(gone);
        assert_eq!(left(&mut admin), 0);
        let mut waits = UnixStream::connect(&path).expect("connect");
        waits.write_all(b"\"status\"\n").expect("write");
        waits.shutdown(std::net::Shutdown::Write).expect("shut down");
        assert_eq!(left(&mut admin), 1);
        assert_eq!(BufReader::new(waits).lines().next().expect("a line").expect("read"), "1");
    }

    #[test]
    fn an_answer_larger_than_the_socket_holds_arrives_whole() {
        let long = "x".repeat(4 << 20);
        let answer = served(
            |_, _| Ok(long.clone()),
            |path| ask(&mut BufReader::new(UnixStream::connect(path).expect("connect")), "\"status\"\n"),
        );
        assert!(answer.trim_end() == long);
    }

    #[test]
    fn a_question_without_end_is_turned_away_and_one_operator_too_many_waits() {
        served(
            |_, _| Ok("1".into()),
            |path| {
                let mut endless = UnixStream::connect(path).expect("connect");
                endless.write_all(&[b' '; QUESTION_BYTES_MAX]).expect("write");
                assert_eq!(endless.read(&mut [0; 8]).expect("end of file"), 0);

                let mut all: Vec<_> =
                    (0..CONNECTIONS_MAX).map(|_| BufReader::new(UnixStream::connect(path).expect("connect"))).collect();
                for stream in &mut all {
                    assert_eq!(ask(stream, "\"status\"\n"), "1\n");
                }
                let mut one_more = BufReader::new(UnixStream::connect(path).expect("connect"));
                one_more.get_ref().set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
                one_more.get_mut().write_all(b"\"status\"\n").expect("write");
                let mut line = String::new();
                assert!(one_more.read_line(&mut line).is_err(), "{line}");
                one_more.get_ref().set_read_timeout(None).expect("none");
                all.pop();
                one_more.read_line(&mut line).expect("an answer");
                assert_eq!(line, "1\n");
            },
        );
    }

    #[test]
    fn a_slow_operator_is_disconnected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let mut admin = Admin::open(&path, None).expect("a socket");
        let mut idle = UnixStream::connect(&path).expect("connect");
        let now = Instant::now();
        assert_eq!(admin.deadline(), None);
        admin.serve(now, |_, _| Ok("1".into()));
        assert_eq!(admin.deadline(), Some(now + STEP_TIMEOUT));
        admin.serve(now + STEP_TIMEOUT, |_, _| Ok("1".into()));
        assert_eq!(admin.deadline(), None);
        assert_eq!(idle.read(&mut [0; 8]).expect("end of file"), 0);
    }

    /// It reads or writes something every second.
    fn lasts(step: impl Fn(&mut UnixStream)) -> Duration {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        let mut admin = Admin::open(&path, None).expect("a socket");
        let mut slow = UnixStream::connect(&path).expect("connect");
        slow.set_nonblocking(true).expect("an option");
        let (begin, long) = (Instant::now(), "x".repeat(64 << 20));
        let mut now = begin;
        admin.serve(now, |_, _| Ok(long.clone()));
        while admin.deadline().is_some() {
            step(&mut slow);
            now += Duration::from_secs(1);
            assert!(now < begin + Duration::from_secs(3600), "it has its place for ever");
            admin.serve(now, |_, _| Ok(long.clone()));
        }
        now - begin
    }

    #[test]
    fn an_operator_that_goes_on_slowly_has_its_place_for_a_bounded_time() {
        let writes = lasts(|slow| slow.write_all(b" ").expect("room"));
        let asks = lasts(|slow| {
            slow.write_all(b"\"weather\"\n").expect("room");
            while slow.read(&mut [0; 1024]).is_ok() {}
        });
        let reads = lasts(|slow| {
            // The first time there is nothing to read.
            let _ = slow.write_all(b"\"status\"\n");
            let _ = slow.read(&mut [0; 256 << 10]);
        });
        assert_eq!([writes, asks, reads], [LIFETIME; 3]);
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.sock");
        drop(UnixListener::bind(&path).expect("a socket"));
        let admin = Admin::open(&path, None).expect("no daemon listens there");
        assert_eq!(Admin::open(&path, None).expect_err("another listener is there").kind(), ErrorKind::AddrInUse);
        drop(admin);
        assert!(!path.exists());
        fs::write(&path, "precious").expect("a file");
        assert_eq!(Admin::open(&path, None).expect_err("a file stands there").kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
    }
}
