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
#[derive(Debug)]
pub struct Route {
    identifier: OwnIdentifier,
}

/// A listener of connections.
#[derive(Debug)]
pub struct Listener {
    identifier: OwnIdentifier,
}

/// A peer's request for a connection. Dropping it refuses.
#[derive(Debug)]
pub struct ConnectionRequest {
    identifier: OwnIdentifier,
    private_data: Vec<u8>,
}

/// One end of a connection. Dropping it disconnects; the queue pair stays with the program.
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
    /// Finds the route to `peer`, within `timeout`.
    ///
    /// # Errors
    /// [`Error::NotConnected`]: no route, no device on it, or a neighbor that does not answer; the
    /// daemon is gone.
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
    /// [`Error::NotConnected`]: the peer refused, or does not answer; private data that is too
    /// long; the daemon is gone.
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
        let deadline = Instant::now() + timeout;
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
        let deadline = Instant::now() + timeout;
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
        let Some(TakenCmEvent { event, .. }) = next_event(&self.channel, Instant::now() + timeout)? else {
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

/// The next event; `None` at `deadline`.
fn next_event(channel: &CmChannel, deadline: Instant) -> Result<Option<TakenCmEvent>> {
    loop {
        if let Some(taken) = channel.take()? {
            return Ok(Some(taken));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // Rounded up, to avoid spinning during the last millisecond.
        let timeout = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
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
