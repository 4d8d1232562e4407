//! The bytes under the control channel: a TCP connection, or SENDs of a queue pair that the
//! connection manager connects.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use roced_client::{
    Access, Completion, CompletionQueue, Connection, ConnectionOptions, ConnectionRequest, Device, Listener,
    MemoryRegion, QueuePair, RecvRequest, Result, Route, SendRequest,
};

/// How long connecting may take, and sending.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a SEND.
pub(crate) const PIECE_BYTES: usize = 4096;

/// SENDs under way, and receives posted: more than signs of life in the time that a peer may be
/// busy without looking.
const PIECES: u32 = 256;

/// A queue is made this much deeper than needed: a completion may be here a moment before the
/// daemon gives its place back.
const SPARE: u32 = 8;

/// How often the end of the connection is looked for while room is waited for.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// How long a request for a connection is waited for at a time. The listener is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// One end of a stream. Any thread may send while another receives.
#[derive(Debug)]
pub(crate) enum ControlStream {
    /// By TCP.
    Tcp(TcpStream),
    /// By the connection manager.
    Cm(Box<CmStream>),
}

/// A listener of streams.
#[derive(Debug)]
pub(crate) enum StreamListener {
    /// By TCP.
    Tcp(TcpListener),
    /// By the connection manager.
    Cm(Listener),
}

/// A stream that a peer asks for.
#[derive(Debug)]
pub(crate) enum IncomingStream {
    /// By TCP: it is there.
    Tcp(TcpStream),
    /// By the connection manager.
    Cm(ConnectionRequest),
}

impl StreamListener {
    /// Listens at the first of `addresses` that is possible.
    pub(crate) fn bind(addresses: &[SocketAddr], by_cm: bool) -> anyhow::Result<Self> {
        if !by_cm {
            return Ok(Self::Tcp(TcpListener::bind(addresses)?));
        }
        let mut bound = addresses.iter().map(|address| Listener::bind(*address));
        let first = bound.next().context("no address")?;
        Ok(Self::Cm(first.or_else(|error| bound.find_map(Result::ok).ok_or(error))?))
    }

    /// Address and port.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?,
            Self::Cm(listener) => listener.address()?,
        })
    }

    /// The next stream, and its peer. Waits.
    ///
    /// # Errors
    /// The peer gave up before it was accepted, or there is no file descriptor: the next one may do
    /// better. The inner error, of the connection manager alone: no other one will come.
    pub(crate) fn accept(&self) -> Result<io::Result<(IncomingStream, SocketAddr)>> {
        match self {
            Self::Tcp(listener) => Ok(listener.accept().map(|(stream, from)| (IncomingStream::Tcp(stream), from))),
            Self::Cm(listener) => loop {
                if let Some(request) = listener.next(REQUEST_TIMEOUT)? {
                    let from = request.peer()?;
                    return Ok(Ok((IncomingStream::Cm(request), from)));
                }
            },
        }
    }
}

impl IncomingStream {
    /// Accepts it.
    pub(crate) fn accept(self) -> anyhow::Result<ControlStream> {
        match self {
            Self::Tcp(stream) => Ok(ControlStream::of_tcp(stream)?),
            Self::Cm(request) => Ok(ControlStream::Cm(Box::new(CmStream::accept(request)?))),
        }
    }
}

impl ControlStream {
    /// Connects by TCP.
    pub(crate) fn connect_tcp(peer: SocketAddr, patience: Duration) -> io::Result<Self> {
        Self::of_tcp(TcpStream::connect_timeout(&peer, patience)?)
    }

    /// Connects by the connection manager.
    pub(crate) fn connect_cm(peer: SocketAddr, patience: Duration) -> Result<Self> {
        CmStream::connect(peer, patience).map(|stream| Self::Cm(Box::new(stream)))
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self::Tcp(stream))
    }

    /// The device of a stream by the connection manager.
    pub(crate) fn device(&self) -> Option<&str> {
        match self {
            Self::Tcp(_) => None,
            Self::Cm(stream) => Some(&stream.end.device),
        }
    }

    /// Addresses of this side and of the peer: link-local ones with their interface.
    pub(crate) fn addresses(&self) -> anyhow::Result<[SocketAddr; 2]> {
        let [local, peer] = match self {
            Self::Tcp(stream) => [stream.local_addr()?, stream.peer_addr()?],
            Self::Cm(stream) => [stream.connection.local()?, stream.connection.peer()?],
        };
        // IPv4 also on an IPv6 socket.
        Ok([local, peer].map(|address| match address.ip().to_canonical() {
            v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
            IpAddr::V6(_) => address,
        }))
    }

    /// Sends all of `bytes`; one caller at a time.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => { stream }.write_all(bytes),
            Self::Cm(stream) => bytes.chunks(PIECE_BYTES).try_for_each(|piece| stream.send(piece)),
        }
    }

    /// Receives into a buffer of [`PIECE_BYTES`], and waits for at most `patience`: the number of
    /// bytes, 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if nothing came in time.
    pub(crate) fn receive(&self, into: &mut [u8; PIECE_BYTES], patience: Duration) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) if patience.is_zero() => {
                // A sender on another thread has the same open file. It would notice only with a
                // full send buffer, hours of a peer that does not listen.
                stream.set_nonblocking(true)?;
                let received = { stream }.read(into);
                stream.set_nonblocking(false)?;
                received
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(patience))?;
                { stream }.read(into)
            }
            Self::Cm(stream) => stream.receive(into, patience),
        }
    }

    /// Sends the end of the stream, behind all other bytes.
    pub(crate) fn close(&self) {
        match self {
            // Fails if the peer has already closed the connection.
            Self::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
            Self::Cm(stream) => stream.close(),
        }
    }
}

/// One end of a stream of SENDs. An empty one is its end.
#[derive(Debug)]
pub(crate) struct CmStream {
    // First: the peer hears of the end before the queue pair is gone.
    connection: Connection,
    end: StreamEnd,
    /// Number of pieces sent so far, and of those known to have arrived.
    sent: Mutex<[u64; 2]>,
    has_ended: AtomicBool,
}

/// The queue pair of a stream, with receives posted.
#[derive(Debug)]
struct StreamEnd {
    device: String,
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    /// Pieces to send, then pieces to receive into.
    memory: MemoryRegion,
}

impl StreamEnd {
    fn new(name: String) -> Result<Self> {
        let device = Device::open(&name)?;
        let pd = device.protection_domain()?;
        let [send_cq, recv_cq] = [device.completion_queue(PIECES + SPARE)?, device.completion_queue(PIECES + SPARE)?];
        let builder = pd.queue_pair(&send_cq, &recv_cq).send_wrs(PIECES + SPARE).recv_wrs(PIECES + SPARE);
        let qp = builder.send_sges(1).recv_sges(1).inline_bytes(0).create()?;
        let memory = pd.allocate(2 * PIECES as usize * PIECE_BYTES, Access::LOCAL_WRITE)?;
        qp.to_init(Access::NONE)?;
        let end = Self { device: name, qp, send_cq, recv_cq, memory };
        (0..PIECES).try_for_each(|piece| end.post_receive(piece))?;
        Ok(end)
    }

    fn post_receive(&self, piece: u32) -> Result<()> {
        let at = arrival(piece);
        self.qp.post_recv(&RecvRequest::new(&[self.memory.sge(at..at + PIECE_BYTES)]).id(piece.into()))
    }
}

/// Where a piece that is received lies.
const fn arrival(piece: u32) -> usize {
    (PIECES + piece) as usize * PIECE_BYTES
}

/// Nothing of the peer is reachable; its program may be busy for long before it posts receives.
fn options(timeout: Duration) -> ConnectionOptions<'static> {
    ConnectionOptions { access: Access::NONE, timeout, ..ConnectionOptions::default() }
}

impl CmStream {
    fn connect(peer: SocketAddr, patience: Duration) -> Result<Self> {
        let route = Route::to(peer, patience)?;
        let end = StreamEnd::new(route.device()?)?;
        let connection = route.connect(&end.qp, &options(patience))?;
        Ok(Self::over(connection, end))
    }

    fn accept(request: ConnectionRequest) -> anyhow::Result<Self> {
        let end = StreamEnd::new(request.device()?)?;
        let connection = request.accept(&end.qp, &options(ANSWER_TIMEOUT)).context("accepting a connection")?;
        Ok(Self::over(connection, end))
    }

    const fn over(connection: Connection, end: StreamEnd) -> Self {
        Self { connection, end, sent: Mutex::new([0; 2]), has_ended: AtomicBool::new(false) }
    }

    fn send(&self, piece: &[u8]) -> io::Result<()> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        self.await_room(&mut sent, PIECES.into())?;
        let at = (sent[0] % u64::from(PIECES)) as usize * PIECE_BYTES;
        self.end.memory.write_at(at, piece);
        let sge = [self.end.memory.sge(at..at + piece.len())];
        self.end.qp.post_send(&SendRequest::send(&sge).signaled()).map_err(io::Error::other)?;
        sent[0] += 1;
        Ok(())
    }

    /// Waits until fewer than `most` pieces are under way.
    fn await_room(&self, [sent, arrived]: &mut [u64; 2], most: u64) -> io::Result<()> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut done = [Completion::EMPTY; 16];
        loop {
            let is_full = *sent - *arrived >= most;
            let left = if is_full { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            let left = left.min(END_INTERVAL);
            let count = self.end.send_cq.wait(&mut done, left).map_err(io::Error::other)?;
            for completion in &done[..count] {
                completion.ok().map_err(|error| io::Error::new(ErrorKind::BrokenPipe, error))?;
            }
            *arrived += count as u64;
            if *sent - *arrived < most {
                return Ok(());
            }
            if left.is_zero() && is_full {
                return Err(ErrorKind::TimedOut.into());
            }
            if self.has_ended()? {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn receive(&self, into: &mut [u8; PIECE_BYTES], patience: Duration) -> io::Result<usize> {
        if let Some(bytes) = self.take(into, patience)? {
            return Ok(bytes);
        }
        if !self.has_ended()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        // It may have arrived before the end.
        Ok(self.take(into, Duration::ZERO)?.unwrap_or(0))
    }

    /// The peer has ended the connection.
    fn has_ended(&self) -> io::Result<bool> {
        // The event comes once.
        if self.connection.wait_for_end(Duration::ZERO).map_err(io::Error::other)? {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        Ok(self.has_ended.load(Ordering::Relaxed))
    }

    /// The next piece, if one comes in time.
    fn take(&self, into: &mut [u8; PIECE_BYTES], patience: Duration) -> io::Result<Option<usize>> {
        let mut done = [Completion::EMPTY];
        if self.end.recv_cq.wait(&mut done, patience).map_err(io::Error::other)? == 0 {
            return Ok(None);
        }
        let completion = done[0].ok().map_err(|error| io::Error::new(ErrorKind::ConnectionReset, error))?;
        let piece = completion.wr_id as u32;
        let bytes = completion.byte_len as usize;
        self.end.memory.read_at(arrival(piece), &mut into[..bytes]);
        self.end.post_receive(piece).map_err(io::Error::other)?;
        Ok(Some(bytes))
    }

    fn close(&self) {
        // A peer that is gone needs no end.
        if self.send(&[]).is_ok() {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.await_room(&mut sent, 1);
        }
    }
}
