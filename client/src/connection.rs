//! Connections of queue pairs by the connection manager: no channel of the program's own is needed
//! to exchange addresses.
//!
//! ```text
//!   Route::to(address) ─ device ─► queue pair ─ Route::connect ─────────┐
//!                                                                       ├─► Connection
//!   Listener::bind ─► ConnectionRequest ─ device ─► queue pair ─ accept ┘
//! ```
//!
//! Peers may be programs of this crate, of librdmacm over roced, or of Linux's rdma_cm. Service:
//! RC.
//!
//! Each connection has an event channel of its own, a descriptor in both processes. A program with
//! thousands of connections can have one for all: [`crate::cm`].

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use roced_abi::control::{CmAddress, CmChannelEvent, DeviceName, Index, ListDevice};

use crate::{
    cm::{CmChannel, CmIdentifier, CmSession, TakenCmEvent, cm_event, cm_port_space, cm_service},
    connection_options::ConnectionOptions,
    error::{Error, Result},
    qp::QueuePair,
};

/// The client's own number of an identifier: each has a channel of its own, so one will do.
const UID: u64 = 1;

/// Time that a peer without a neighbor entry has to answer.
const RESOLVE_TIMEOUT_MS: u32 = 5_000;

/// Requests that wait for [`Listener::next`], at most.
const BACKLOG: u32 = 1024;

/// The route to a listener: its device on this host is known.
///
/// A route makes one connection; [`Self::connect`] consumes it. After [`Error::NotConnected`] the
/// queue pair has its former state and receives, and may be connected by another route.
///
/// ```no_run
/// use std::time::Duration;
///
/// use roced_client::{ConnectionOptions, Device, Error, Route};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let route = Route::to("10.10.0.2:18603".parse()?, Duration::from_secs(5))?;
/// let device = Device::open(&route.device()?)?;
/// let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
/// let qp = pd.queue_pair(&cq, &cq).create()?;
/// match route.connect(&qp, &ConnectionOptions::default()) {
///     Ok(connection) => println!("connected to {}", connection.peer()?),
///     // No listener, a refusal, or no answer: another peer may do.
///     Err(error @ Error::NotConnected { .. }) => println!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Route {
    identifier: OwnIdentifier,
}

/// A listener of connections. Dropping it frees the port; connections that it made stay.
///
/// At most 1024 requests wait for [`Self::next`]; further ones are refused. Any thread may take
/// requests at any time.
///
/// ```no_run
/// use std::time::Duration;
///
/// use roced_client::{ConnectionRequest, Listener};
///
/// # fn serve(_: ConnectionRequest) {}
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // All addresses of the host, and a free port.
/// let listener = Listener::bind("[::]:0".parse()?)?;
/// println!("listening at port {}", listener.address()?.port());
/// while let Some(request) = listener.next(Duration::from_secs(60))? {
///     std::thread::spawn(move || serve(request));
/// }
/// println!("no request for a minute");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    identifier: OwnIdentifier,
}

/// A peer's request for a connection. Dropping it refuses.
///
/// ```no_run
/// use roced_client::{Access, ConnectionOptions, ConnectionRequest, Device, RecvRequest};
/// # use roced_client::Connection;
///
/// # fn answer(
/// #     request: ConnectionRequest,
/// #     device: &Device,
/// # ) -> roced_client::Result<Option<Connection>> {
/// // A version of the program's own protocol, in the peer's private data.
/// if request.private_data().first() != Some(&2) {
///     request.reject(b"version 2 is necessary")?;
///     return Ok(None);
/// }
/// let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
/// let (qp, memory) = (pd.queue_pair(&cq, &cq).create()?, pd.allocate(4096, Access::LOCAL_WRITE)?);
/// // The peer may send as soon as it is connected: the receive is posted before.
/// qp.to_init(Access::NONE)?;
/// qp.post_recv(&RecvRequest::new(&[memory.sge(..)]))?;
/// let connection = request.accept(&qp, &ConnectionOptions::default())?;
/// # Ok(Some(connection))
/// # }
/// ```
#[derive(Debug)]
pub struct ConnectionRequest {
    identifier: OwnIdentifier,
    private_data: Vec<u8>,
}

/// One end of a connection. Dropping it disconnects; the queue pair stays with the program.
///
/// ```no_run
/// use std::time::Duration;
///
/// use roced_client::{Completion, CompletionQueue, Connection, QueuePair, SendRequest};
///
/// # fn finish(
/// #     connection: Connection,
/// #     qp: QueuePair,
/// #     cq: CompletionQueue,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// println!("{} is connected to {}", connection.local()?, connection.peer()?);
/// qp.post_send(&SendRequest::send_inline(b"the last message").signaled())?;
/// // Disconnecting does not wait for work, so that the program waits for its completion before.
/// let mut done = [Completion::EMPTY];
/// if cq.wait(&mut done, Duration::from_secs(5))? == 1 {
///     done[0].ok()?;
/// }
/// connection.disconnect()?;
/// if !connection.wait_for_end(Duration::from_secs(5))? {
///     println!("the peer does not confirm the end");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Connection {
    identifier: OwnIdentifier,
    private_data: Vec<u8>,
}

/// An identifier with an event channel of its own.
#[derive(Debug)]
struct OwnIdentifier {
    channel: CmChannel,
    id: u32,
}

impl Route {
    /// Finds the route to `peer` in two steps, the addresses and the path, each within `timeout`. A
    /// neighbor has at most 5 s to answer, even if `timeout` is longer.
    ///
    /// # Errors
    /// [`Error::NotConnected`]: no route, no device on it, or a neighbor that does not answer;
    /// those of [`Device::list`](crate::Device::list); the daemon is gone.
    pub fn to(peer: SocketAddr, timeout: Duration) -> Result<Self> {
        let identifier = OwnIdentifier::new(&CmSession::shared()?)?;
        let OwnIdentifier { channel, id } = &identifier;
        channel.resolve_address(*id, CmAddress::default(), peer.into(), RESOLVE_TIMEOUT_MS)?;
        identifier.expect(cm_event::ADDRESS_RESOLVED, timeout)?;
        channel.resolve_route(*id, RESOLVE_TIMEOUT_MS)?;
        identifier.expect(cm_event::ROUTE_RESOLVED, timeout)?;
        Ok(Self { identifier })
    }

    /// Name of the device that leads to the peer: for [`crate::Device::open`].
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn device(&self) -> Result<String> {
        self.identifier.device()
    }

    /// Asks the peer for a connection of `qp`, a queue pair of the route's device in state RESET or
    /// INIT, and connects it. Receives can, and should, be posted before, after
    /// [`QueuePair::to_init`].
    ///
    /// # Errors
    /// [`Error::NotConnected`]: the peer refused, or does not answer within the timeout of
    /// `options`; private data that is too long; those of [`QueuePair::modify`]; the daemon is
    /// gone.
    pub fn connect(self, qp: &QueuePair, options: &ConnectionOptions<'_>) -> Result<Connection> {
        let Self { identifier } = self;
        identifier.channel.connect(identifier.id, options.parameters(qp), options.private_data)?;
        let event = identifier.expect(cm_event::CONNECT_RESPONSE, options.timeout)?;
        identifier.record()?.connect_qp(qp, options)?;
        identifier.channel.confirm(identifier.id)?;
        Ok(Connection { identifier, private_data: private_data(&event) })
    }
}

impl Listener {
    /// Listens at `address`, of which the IP address may be unspecified; port 0 is a free one.
    ///
    /// # Errors
    /// The address is not of this host, or on no device; the port is taken, or privileged; the
    /// daemon is gone.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let identifier = OwnIdentifier::new(&CmSession::shared()?)?;
        identifier.channel.bind(identifier.id, address.into())?;
        identifier.channel.listen(identifier.id, BACKLOG)?;
        Ok(Self { identifier })
    }

    /// Address and port.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn address(&self) -> Result<SocketAddr> {
        socket_address(&self.identifier.record()?.route.source)
    }

    /// The next request for a connection; `None` if none came within `timeout`.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn next(&self, timeout: Duration) -> Result<Option<ConnectionRequest>> {
        let deadline = Instant::now().checked_add(timeout);
        let OwnIdentifier { channel, .. } = &self.identifier;
        loop {
            let Some(TakenCmEvent { event, .. }) = next_event(channel, deadline)? else { return Ok(None) };
            if event.kind == cm_event::CONNECT_REQUEST {
                // Events of the connection come to a channel of its own.
                let own = channel.session().channel()?;
                own.migrate(channel, event.id)?;
                let identifier = OwnIdentifier { channel: own, id: event.id };
                return Ok(Some(ConnectionRequest { identifier, private_data: private_data(&event) }));
            }
        }
    }
}

impl ConnectionRequest {
    /// Name of the device that the request came to: for [`crate::Device::open`].
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn device(&self) -> Result<String> {
        self.identifier.device()
    }

    /// Returns the peer's address and port.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn peer(&self) -> Result<SocketAddr> {
        socket_address(&self.identifier.record()?.route.destination)
    }

    /// The peer's private data: 56 bytes, with zeros behind those that the peer gave.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Connects `qp`, a queue pair of the request's device in state RESET or INIT, and accepts.
    /// Returns when the peer has confirmed.
    ///
    /// # Errors
    /// As [`Route::connect`].
    pub fn accept(self, qp: &QueuePair, options: &ConnectionOptions<'_>) -> Result<Connection> {
        let Self { identifier, private_data } = self;
        identifier.record()?.connect_qp(qp, options)?;
        identifier.channel.accept(identifier.id, UID, options.parameters(qp), options.private_data)?;
        identifier.expect(cm_event::ESTABLISHED, options.timeout)?;
        Ok(Connection { identifier, private_data })
    }

    /// Refuses the request, with at most 148 bytes for the peer's program.
    ///
    /// # Errors
    /// Private data that is too long; the daemon is gone.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.identifier.channel.reject(self.identifier.id, 0, private_data)
    }
}

impl Connection {
    /// Returns the local address and port.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn local(&self) -> Result<SocketAddr> {
        socket_address(&self.identifier.record()?.route.source)
    }

    /// Returns the peer's address and port.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn peer(&self) -> Result<SocketAddr> {
        socket_address(&self.identifier.record()?.route.destination)
    }

    /// The peer's private data: that of its request (56 bytes) or of its acceptance (196), with
    /// zeros behind those that it gave.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits for the end of the connection, at most for `timeout`; true if it has ended.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn wait_for_end(&self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        while let Some(TakenCmEvent { event, .. }) = next_event(&self.identifier.channel, deadline)? {
            if matches!(event.kind, cm_event::DISCONNECTED | cm_event::DEVICE_REMOVAL) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the connection: the peer's program is told. Work of the queue pair is not waited for.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn disconnect(&self) -> Result<()> {
        self.identifier.channel.disconnect(self.identifier.id)
    }
}

impl AsFd for Listener {
    /// Readable when [`Self::next`] has a request, including that the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.identifier.channel.as_fd()
    }
}

impl AsFd for Connection {
    /// Readable when the connection has ended, including that the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.identifier.channel.as_fd()
    }
}

impl OwnIdentifier {
    fn new(session: &Arc<CmSession>) -> Result<Self> {
        let channel = session.channel()?;
        let id = channel.create_id(UID, cm_port_space::TCP, cm_service::RC)?;
        Ok(Self { channel, id })
    }

    fn record(&self) -> Result<CmIdentifier> {
        self.channel.identifier(self.id)
    }

    fn device(&self) -> Result<String> {
        let index = self.record()?.route.path.device;
        let name: DeviceName = self.channel.session().daemon().call::<ListDevice>(Index { index })?;
        name.as_str().map(str::to_owned).ok_or(Error::Protocol { what: "a device name that is not text" })
    }

    /// Waits for an event of this kind; any other one is the failure of the connection.
    fn expect(&self, kind: u32, timeout: Duration) -> Result<CmChannelEvent> {
        let Some(TakenCmEvent { event, .. }) = next_event(&self.channel, Instant::now().checked_add(timeout))? else {
            return Err(Error::NotConnected { event: cm_event::UNREACHABLE, status: -(Errno::ETIMEDOUT as i32) });
        };
        if event.kind == kind {
            Ok(event)
        } else {
            Err(Error::NotConnected { event: event.kind, status: event.status })
        }
    }
}

fn private_data(event: &CmChannelEvent) -> Vec<u8> {
    event.private_data[..usize::from(event.parameters.private_data_bytes).min(event.private_data.len())].to_vec()
}

/// The next event; `None` at `deadline`, if there is one.
fn next_event(channel: &CmChannel, deadline: Option<Instant>) -> Result<Option<TakenCmEvent>> {
    loop {
        if let Some(taken) = channel.take()? {
            return Ok(Some(taken));
        }
        let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => return Ok(None),
            // Rounded up, to avoid spinning during the last millisecond.
            Some(left) => PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX),
        };
        match poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::Kernel { call: "poll", errno }),
        }
    }
}

fn socket_address(of: &CmAddress) -> Result<SocketAddr> {
    let address = of.socket_address().ok().flatten();
    address.ok_or(Error::Protocol { what: "an identifier without address" })
}
