//! The control channel: a stream ([`crate::stream`]) on which both sides exchange parameters and
//! findings, one line of JSON at a time.
//!
//! ```text
//!   client                                   server
//!     Hello {protocol, version}      ──►
//!                                    ◄──     Hello {protocol, version}
//!     Setup {run, queue pairs}       ──►              the server creates its queue pairs
//!                                    ◄──     Ready {queue pairs, mtu}
//!     ... data by RDMA; Alive now and then in both directions ...
//!     Finish {messages}              ──►              the server waits for all of them
//!                                    ◄──     Verdict {findings}
//! ```
//!
//! Either side may say `Failed {problem}` instead of anything. Nothing waits without a deadline:
//! not connecting, not an answer, not silence in the middle of a run. A thread of its own says
//! `Alive`, so that a side that is busy for seconds with gigabytes is not taken for dead, and one
//! that is stopped or cut off is.

#[cfg(test)]
mod tests;

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::{
    cli::{Op, PathOptions},
    pattern::Mismatch,
    peer::Peer,
    statistics::Statistics,
    stream::{ANSWER_TIMEOUT, ControlStream, IncomingStream, PIECE_BYTES},
};

/// Port of `roce-perf serve`. Not 18515, the port of perftest and the pingpongs: with both running,
/// each would report a wrong version of the other.
pub(crate) const DEFAULT_PORT: u16 = 18511;

/// Version of this protocol. Both sides must have the same.
const PROTOCOL: u32 = 1;

/// How long a peer that is alive may work on something: gigabytes of memory to be made or compared,
/// on a busy machine.
pub(crate) const WORK_TIMEOUT: Duration = Duration::from_secs(120);

/// How often each side says that it is alive.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// After how much silence the peer is taken for dead. Far above [`ALIVE_INTERVAL`], for TCP itself
/// may have to repeat a lost segment several times on a bad path.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Longest line: the addresses of 1024 queue pairs take a tenth of it.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A message of the control channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ControlMessage {
    /// First, by both.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Version of the program.
        version: String,
    },
    /// Request of the client.
    Setup(Setup),
    /// The server is ready for it.
    Ready(Ready),
    /// Nothing but that one is there.
    Alive,
    /// The client sent all it wanted to send.
    Finish {
        /// Messages of each queue pair.
        messages: Vec<u64>,
    },
    /// Findings of the server.
    Verdict(PeerVerdict),
    /// The end, for this reason.
    Failed {
        /// Description of a failure.
        problem: String,
    },
}

/// A run, and the client's half of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Measurement to run.
    pub(crate) run: Run,
    /// Source address of the client's packets.
    pub(crate) gid: IpAddr,
    /// Largest path MTU that the client's link carries, bytes.
    pub(crate) mtu: u32,
    /// The path MTU that its user named: this one or none.
    pub(crate) mtu_asked: Option<u32>,
    /// The client's queue pairs.
    pub(crate) qps: Vec<QpInfo>,
}

/// Kind of measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Latency or throughput.
    pub(crate) kind: RunKind,
    /// By which operation.
    pub(crate) op: Op,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Messages under way on each queue pair.
    pub(crate) depth: u32,
    /// The receiver compares the data.
    pub(crate) verify: bool,
    /// Of the pattern.
    pub(crate) seed: u64,
    /// How packets travel.
    pub(crate) path: PathOptions,
}

/// Latency or throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunKind {
    /// Round trips, one at a time.
    Ping,
    /// Throughput.
    Bw,
}

/// The server's half of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Source address of the server's packets.
    pub(crate) gid: IpAddr,
    /// Path MTU that both use.
    pub(crate) mtu: u32,
    /// The server's queue pairs, in the order of the client's.
    pub(crate) qps: Vec<QpInfo>,
    /// Port to which the client connects them by the connection manager, if they are not connected
    /// by their numbers.
    #[serde(default)]
    pub(crate) port: Option<u16>,
}

/// Description of a queue pair for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpInfo {
    /// Its number.
    pub(crate) qpn: u32,
    /// First PSN that it sends.
    pub(crate) psn: u32,
    /// Memory that the peer writes to or reads from.
    pub(crate) memory: Option<RemoteMemoryInfo>,
}

/// Memory offered to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteMemoryInfo {
    /// Address of the first byte.
    pub(crate) va: u64,
    /// Its key.
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// Findings of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerVerdict {
    /// Bytes that the server compared with the pattern, message by message, each of them.
    pub(crate) compared_bytes: u64,
    /// The first message that was wrong.
    pub(crate) mismatch: Option<Mismatch>,
    /// Statistics of the server's queue pairs.
    pub(crate) statistics: Statistics,
}

/// One end of a control channel.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    mouth: Arc<Mouth>,
    heart: Option<JoinHandle<()>>,
    /// Bytes received that are no whole line yet, and lines not looked at yet.
    received: Vec<u8>,
    last_heard: Instant,
}

/// The stream, and the sending half: writes one line at a time, from any thread.
#[derive(Debug)]
struct Mouth {
    stream: ControlStream,
    speaks: Mutex<()>,
    closed: AtomicBool,
}

impl Mouth {
    fn say(&self, message: &ControlMessage) -> io::Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        let _speaks = self.speaks.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.send(line.as_bytes())
    }

    /// Says `Alive` until the channel is closed, or cannot be spoken into.
    fn beat(&self) {
        loop {
            thread::park_timeout(ALIVE_INTERVAL);
            // The next send or receive reports the reason of the failure.
            if self.closed.load(Ordering::Acquire) || self.say(&ControlMessage::Alive).is_err() {
                return;
            }
        }
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        self.mouth.closed.store(true, Ordering::Release);
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            self.mouth.stream.close();
            heart.join().expect("it has nothing to panic about");
        }
    }
}

impl ControlChannel {
    /// Connects to `peer`, by the connection manager or by TCP, and exchanges hellos.
    ///
    /// # Errors
    /// None of the addresses answers within [`ANSWER_TIMEOUT`], or the other side is no server of
    /// this version.
    pub(crate) fn connect(peer: &Peer, by_cm: bool) -> anyhow::Result<Self> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut last = None;
        for address in peer.resolve(ANSWER_TIMEOUT)? {
            let rest = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
            let connected = if by_cm {
                ControlStream::connect_cm(address, rest).map_err(|error| describe_cm(address, error))
            } else {
                ControlStream::connect_tcp(address, rest).map_err(|error| describe_tcp(address, error))
            };
            match connected {
                Ok(stream) => {
                    let mut channel = Self::over(stream);
                    channel.hello().with_context(|| format!("{peer} does not speak as a roce-perf server"))?;
                    return Ok(channel);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("resolve gives at least one address"))
    }

    /// Takes a stream from a client and exchanges hellos.
    ///
    /// # Errors
    /// When the client is none of this version, or silent.
    pub(crate) fn accept(stream: IncomingStream) -> anyhow::Result<Self> {
        let mut channel = Self::over(stream.accept()?);
        channel.hello()?;
        Ok(channel)
    }

    fn over(stream: ControlStream) -> Self {
        let mouth = Arc::new(Mouth { stream, speaks: Mutex::new(()), closed: AtomicBool::new(false) });
        Self { mouth, heart: None, received: Vec::new(), last_heard: Instant::now() }
    }

    /// Device of a channel by the connection manager, by which queue pairs are connected as well.
    pub(crate) fn device(&self) -> Option<&str> {
        self.mouth.stream.device()
    }

    fn hello(&mut self) -> anyhow::Result<()> {
        self.say(&ControlMessage::Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() })?;
        match self.listen(ANSWER_TIMEOUT)? {
            ControlMessage::Hello { protocol: PROTOCOL, .. } => {
                let mouth = Arc::clone(&self.mouth);
                self.heart = Some(thread::Builder::new().name("heart".into()).spawn(move || mouth.beat())?);
                Ok(())
            }
            ControlMessage::Hello { protocol, version } => bail!(
                "the peer is roce-perf {version} with protocol {protocol}, this is {} with protocol {PROTOCOL}: \
                 use one version on both sides",
                env!("CARGO_PKG_VERSION")
            ),
            other => bail!("the peer began with {other:?}"),
        }
    }

    /// This side's address.
    pub(crate) fn local_ip(&self) -> anyhow::Result<IpAddr> {
        self.mouth.stream.addresses().map(|[local, _]| local.ip())
    }

    /// The other side's address.
    pub(crate) fn peer_ip(&self) -> anyhow::Result<IpAddr> {
        self.mouth.stream.addresses().map(|[_, peer]| peer.ip())
    }

    /// This side's address with another port.
    pub(crate) fn local_at(&self, port: u16) -> anyhow::Result<SocketAddr> {
        let [mut local, _] = self.mouth.stream.addresses()?;
        local.set_port(port);
        Ok(local)
    }

    /// The other side's address with another port.
    pub(crate) fn peer_at(&self, port: u16) -> anyhow::Result<SocketAddr> {
        let [_, mut peer] = self.mouth.stream.addresses()?;
        peer.set_port(port);
        Ok(peer)
    }

    /// Says `message`.
    ///
    /// # Errors
    /// When the peer is gone or does not listen.
    pub(crate) fn say(&mut self, message: &ControlMessage) -> anyhow::Result<()> {
        self.mouth.say(message).map_err(|error| {
            // The last message of the peer explains more than the broken pipe.
            match self.hear() {
                Ok(Some(ControlMessage::Failed { problem })) => anyhow!("the peer says: {problem}"),
                _ => anyhow!("the peer is gone: {error}"),
            }
        })
    }

    /// Tells the peer about the end. A peer that is already gone needs no message.
    pub(crate) fn say_failed(&mut self, error: &anyhow::Error) {
        // The caller is about to report `error` itself; a second one would only hide it.
        let _ = self.say(&ControlMessage::Failed { problem: format!("{error:#}") });
    }

    /// Waits for the next message of the peer, for at most `patience` without counting signs of
    /// life.
    ///
    /// # Errors
    /// When nothing came, the peer is gone, or it says that it failed.
    pub(crate) fn listen(&mut self, patience: Duration) -> anyhow::Result<ControlMessage> {
        let deadline = Instant::now() + patience;
        loop {
            match self.parse_line()? {
                Some(ControlMessage::Failed { problem }) => bail!("the peer says: {problem}"),
                Some(message) => return Ok(message),
                None => {}
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                bail!("the peer gave no answer within {} s", patience.as_secs());
            }
            self.receive(rest.min(ALIVE_INTERVAL))?;
            // Only now: this side may have been busy for longer than that, and messages that
            // arrived meanwhile count.
            self.check_silence()?;
        }
    }

    /// Returns a message of the peer, if one arrived. Called now and then while data moves.
    ///
    /// # Errors
    /// When the peer is gone, silent for too long, or says that it failed.
    pub(crate) fn look(&mut self) -> anyhow::Result<Option<ControlMessage>> {
        match self.hear()? {
            Some(ControlMessage::Failed { problem }) => bail!("the peer says: {problem}"),
            None => self.check_silence().map(|()| None),
            heard => Ok(heard),
        }
    }

    fn check_silence(&self) -> anyhow::Result<()> {
        if self.last_heard.elapsed() > SILENCE_MAX {
            bail!("the peer has been silent for {} s: it hangs, or the network between us does", SILENCE_MAX.as_secs());
        }
        Ok(())
    }

    /// Returns a message of the peer without waiting. [`ControlMessage::Failed`] is returned like
    /// any other.
    fn hear(&mut self) -> anyhow::Result<Option<ControlMessage>> {
        let received = self.receive(Duration::ZERO);
        // Messages sent before the connection broke come first.
        match self.parse_line()? {
            Some(message) => Ok(Some(message)),
            None => received.map(|()| None),
        }
    }

    /// The next line that is more than a sign of life.
    fn parse_line(&mut self) -> anyhow::Result<Option<ControlMessage>> {
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=end).collect();
            let message = serde_json::from_slice(&line).with_context(|| {
                let shown: String = String::from_utf8_lossy(&line).chars().take(80).collect();
                format!("the peer said {shown:?}, which is no message of roce-perf")
            })?;
            if message != ControlMessage::Alive {
                return Ok(Some(message));
            }
        }
        if self.received.len() > LINE_BYTES_MAX {
            bail!("the peer said more than {LINE_BYTES_MAX} bytes without the end of a line");
        }
        Ok(None)
    }

    /// Takes arrived bytes; returns without any if none come within `patience`.
    fn receive(&mut self, patience: Duration) -> anyhow::Result<()> {
        let mut bytes = [0; PIECE_BYTES];
        match self.mouth.stream.receive(&mut bytes, patience) {
            Ok(0) => bail!("the peer closed the connection"),
            Ok(length) => {
                self.received.extend_from_slice(&bytes[..length]);
                self.last_heard = Instant::now();
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(anyhow!("the peer is gone: {error}")),
        }
    }
}

fn describe_tcp(address: SocketAddr, error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            anyhow!("{address} does not answer within {} s", ANSWER_TIMEOUT.as_secs())
        }
        ErrorKind::ConnectionRefused => {
            anyhow!("no server listens on {address}: is `roce-perf serve` running there?")
        }
        _ => anyhow!(error).context(format!("connecting to {address}")),
    }
}

fn describe_cm(address: SocketAddr, error: roced_client::Error) -> anyhow::Error {
    let context = match error.side() {
        roced_client::Side::Peer => format!("connecting to {address}: is `roce-perf serve --cm` running there?"),
        _ => format!("connecting to {address}"),
    };
    anyhow!(error).context(context)
}
