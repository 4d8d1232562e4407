//! The example's other program, over TCP: queue pairs learn of each other by other means than RDMA.
//!
//! Both programs send lines of text. The program that is started without an address waits for the
//! program that is started with one.

use std::{
    fmt::Display,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::{IpAddr, Ipv6Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// TCP port on which the program without an address listens.
const PORT: u16 = 18600;
/// Time that the waiting program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for each line.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// The program on the other host.
pub(crate) struct Peer {
    /// Its IP address, from which its GID follows.
    pub(crate) address: IpAddr,
    /// The peer was started without an address: it waited for this program.
    pub(crate) waited: bool,
    lines: BufReader<TcpStream>,
}

impl Peer {
    /// Connects to the program at `address`, or waits for one that connects.
    ///
    /// # Errors
    /// Not an IP address; no program listens there; the port is in use.
    pub(crate) fn meet(address: Option<String>) -> Result<Self> {
        let waited = address.is_some();
        let stream = match address {
            Some(text) => {
                let address = text.parse().with_context(|| {
                    format!("'{text}' is no IP address: give that of the other host, or nothing to wait for it")
                })?;
                connect(address)?
            }
            None => {
                let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))
                    .with_context(|| format!("TCP port {PORT}: does another example wait here already?"))?;
                listener.accept().context("waiting for the other program")?.0
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        Ok(Self { address: stream.peer_addr()?.ip().to_canonical(), waited, lines: BufReader::new(stream) })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// The peer has ended.
    pub(crate) fn say(&mut self, line: impl Display) -> Result<()> {
        let line = format!("{line}\n");
        self.lines.get_mut().write_all(line.as_bytes()).context("the other program has ended early: see its error")
    }

    /// Receives a line.
    ///
    /// # Errors
    /// The peer has ended, or sends nothing for [`LINE_TIMEOUT`].
    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let bytes = self.lines.read_line(&mut line).context("the other program sends nothing")?;
        ensure!(bytes > 0, "the other program has ended early: see its error");
        Ok(line.trim_end().to_owned())
    }

    /// Sends a line and receives the peer's: neither program goes on before the other is here.
    ///
    /// # Errors
    /// As [`Self::say`] and [`Self::hear`].
    pub(crate) fn exchange(&mut self, line: impl Display) -> Result<String> {
        self.say(line)?;
        self.hear()
    }
}

/// Connects to a program that may only just have been started.
fn connect(address: IpAddr) -> Result<TcpStream> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match TcpStream::connect((address, PORT)) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            outcome => {
                let advice =
                    || format!("TCP to {address} port {PORT}: start this example there first, without an address");
                return outcome.with_context(advice);
            }
        }
    }
}
