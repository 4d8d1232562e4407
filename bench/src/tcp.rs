//! The usual alternative: TCP on plain sockets, blocking or looking all the time.

mod pingpong;
mod stream;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context;

pub(crate) use self::{
    pingpong::pingpong,
    stream::{Stream, stream},
};
use crate::network::{BenchNetwork, NetworkSide, Pair};

/// How a socket waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// In the kernel, as programs do.
    Blocking,
    /// Not at all: asks again until there is something.
    Busy,
}

/// Longest wait for anything.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection: host a's end and host b's.
#[derive(Debug)]
pub(crate) struct TcpConnection(TcpStream, TcpStream);

impl TcpConnection {
    /// Over a pair of the network.
    pub(crate) fn over(network: &BenchNetwork, pair: Pair, waiting: Waiting) -> anyhow::Result<Self> {
        let listener = network.on(NetworkSide::B, || listen(pair.address(NetworkSide::B)))?;
        let client = network.on(NetworkSide::A, || connect(listener.local_addr()?))?;
        Self::new(client, &listener, waiting)
    }

    /// Over the loopback of host a.
    pub(crate) fn over_loopback(network: &BenchNetwork, waiting: Waiting) -> anyhow::Result<Self> {
        let (client, listener) = network.on(NetworkSide::A, || {
            let listener = listen(Ipv4Addr::LOCALHOST)?;
            Ok((connect(listener.local_addr()?)?, listener))
        })?;
        Self::new(client, &listener, waiting)
    }

    fn new(client: TcpStream, listener: &TcpListener, waiting: Waiting) -> anyhow::Result<Self> {
        let (server, _) = listener.accept().context("accepting over TCP")?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_nonblocking(waiting == Waiting::Busy)?;
            if waiting == Waiting::Blocking {
                end.set_read_timeout(Some(TIMEOUT))?;
                end.set_write_timeout(Some(TIMEOUT))?;
            }
        }
        Ok(Self(client, server))
    }
}

fn listen(address: Ipv4Addr) -> anyhow::Result<TcpListener> {
    TcpListener::bind((address, 0)).with_context(|| format!("listening on {address}"))
}

fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    TcpStream::connect_timeout(&to, TIMEOUT).with_context(|| format!("connecting to {to}"))
}

/// Calls until there is an answer, or patience ends.
fn persist(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut since = None;
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Of a socket that does not block: not yet. One that does has waited its time.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if since.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            result => return result,
        }
    }
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = persist(|| socket.write(bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// False when the peer has ended before any byte.
fn read_exact(socket: &mut TcpStream, mut bytes: &mut [u8]) -> io::Result<bool> {
    let whole = bytes.len();
    while !bytes.is_empty() {
        match persist(|| socket.read(bytes))? {
            0 if bytes.len() == whole => return Ok(false),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => bytes = &mut bytes[read..],
        }
    }
    Ok(true)
}
