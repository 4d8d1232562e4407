//! Local addresses, destinations, paths and options of identifiers.

use core::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use roced_types::{AccountId, is_link_local};

use super::{CmErrno, EventKind, Host, IdKey, IdService, IdState, Identifier, Identifiers, any_of, ports::PortUse};
use crate::connection::PeerAddress;

/// Packet life time of a path: exponent (0.27 s), as Linux has it since 6.2.
const PACKET_LIFE_TIME: u8 = 16;

/// Hop limit of frames.
const HOP_LIMIT: u8 = 64;

/// First port that is not privileged.
const UNPRIVILEGED: u16 = 1024;

/// The path of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPath {
    /// Path MTU, bytes.
    pub mtu_bytes: u32,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// Packet life time: exponent.
    pub packet_life_time: u8,
    /// Rate in the code of IBTA; 0 is that of the port.
    pub rate: u8,
}

/// An option of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// Traffic class of the path.
    TypeOfService(u8),
    /// Share the port with other identifiers.
    ReuseAddress(bool),
    /// IPv6 alone, not IPv4 as well.
    FamilyOnly(bool),
    /// ACK timeout of the queue pair: exponent.
    AckTimeout(u8),
}

impl Identifiers {
    /// Binds an identifier to a local address; port 0 is a free one.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`], [`CmErrno::AddressNotAvailable`], [`CmErrno::NoDevice`],
    /// [`CmErrno::Access`], [`CmErrno::AddressInUse`].
    pub fn bind(&mut self, key: IdKey, address: SocketAddr, host: &mut impl Host) -> Result<(), CmErrno> {
        self.bind_for(key, address, None, host)
    }

    fn bind_for(
        &mut self,
        key: IdKey,
        address: SocketAddr,
        destination: Option<SocketAddr>,
        host: &mut impl Host,
    ) -> Result<(), CmErrno> {
        let random = self.random.next();
        let id = self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)?;
        if id.state != IdState::Idle {
            return Err(CmErrno::Invalid);
        }
        let ip = address.ip();
        if is_link_local(ip) && scope_of(address) == 0 {
            return Err(CmErrno::Invalid);
        }
        let device = if is_any(ip) { None } else { Some(host.local(ip, scope_of(address))?) };
        let account = host.account();
        let port_use = PortUse { chosen_for: destination, account, ..id.port_use(key, address, host.is_ipv6_only()) };
        let port = match address.port() {
            0 => self.ports.take_free(id.port_space, &host.ephemeral_ports(), random, port_use)?,
            1..UNPRIVILEGED if !host.is_privileged() => return Err(CmErrno::Access),
            port => {
                self.ports.take(
                    id.port_space,
                    port,
                    &host.ephemeral_ports(),
                    PortUse { chosen_for: None, ..port_use },
                )?;
                port
            }
        };
        let mut source = address;
        source.set_port(port);
        (id.source, id.device, id.state) = (Some(source), device, IdState::Bound);
        Ok(())
    }

    /// Finds the device and the neighbor that lead to `destination`; an event reports the result.
    /// An identifier that is not bound is bound first, to `source` if there is one.
    ///
    /// # Errors
    /// Those of [`Self::bind`], [`CmErrno::NetUnreachable`].
    pub fn resolve_address(
        &mut self,
        key: IdKey,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
        host: &mut impl Host,
        now: Duration,
    ) -> Result<(), CmErrno> {
        let id = self.id(key)?;
        let is_idle = id.state == IdState::Idle;
        if is_idle {
            let any = SocketAddr::new(any_of(destination.ip()), 0);
            let source = source.unwrap_or(any);
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(CmErrno::Invalid);
            }
            self.bind_for(key, source, Some(destination), host)?;
        }
        let found = self.find_route(key, destination, host);
        if is_idle && found.is_err() {
            // As if the call had not been made.
            self.give_port_back(key);
            let id = self.id(key)?;
            (id.source, id.device, id.state) = (None, None, IdState::Idle);
        }
        let Some(peer) = found? else { return Ok(()) };
        if destination.ip().is_multicast() || is_any(destination.ip()) || host.is_reachable(peer) {
            self.resolved(key);
            return Ok(());
        }
        let id = self.id(key)?;
        (id.state, id.deadline) = (IdState::AddressQuery, Some(now + timeout));
        self.timers.insert((now + timeout, key));
        self.neighbor_waits.insert(self.account_of(key.owner), peer, key);
        Ok(())
    }

    /// The route to `destination`: the peer, or `None` if an event has reported that no device
    /// leads there.
    fn find_route(
        &mut self,
        key: IdKey,
        destination: SocketAddr,
        host: &mut impl Host,
    ) -> Result<Option<PeerAddress>, CmErrno> {
        let id = self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)?;
        let Some(source) = id.source.filter(|_| id.state == IdState::Bound) else { return Err(CmErrno::Invalid) };
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(CmErrno::Invalid);
        }
        let scope = scope_of(destination).max(scope_of(source));
        if is_link_local(destination.ip()) && scope == 0 {
            return Err(CmErrno::Invalid);
        }
        let chosen = (!is_any(source.ip())).then_some(source.ip());
        let found = if is_any(destination.ip()) {
            host.any_device().ok_or(CmErrno::NoDevice)
        } else {
            host.route(chosen, destination.ip(), scope)
        };
        id.destination = Some(destination);
        match found {
            Ok(device) => {
                let address = if is_any(destination.ip()) { destination.ip() } else { device.address };
                id.source = Some(with_address(source, address, host.scope_of(&device)));
                id.device = Some(device);
                self.ids[&key].peer().map(Some)
            }
            Err(CmErrno::NoDevice) => {
                self.tell(key, EventKind::AddressError, -CmErrno::NoDevice.number());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn resolved(&mut self, key: IdKey) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::AddressResolved;
        }
        self.tell(key, EventKind::AddressResolved, 0);
    }

    /// Frames can be sent to the peer now.
    pub fn on_neighbor(&mut self, peer: PeerAddress) {
        while let Some(key) = self.neighbor_waits.first_at(peer) {
            self.cancel_resolution(key);
            self.resolved(key);
        }
    }

    pub(super) fn give_up_neighbor(&mut self, key: IdKey) {
        self.cancel_resolution(key);
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::Bound;
        }
        self.tell(key, EventKind::AddressError, -CmErrno::TimedOut.number());
    }

    /// Nothing waits for the identifier's neighbor now.
    pub(super) fn cancel_resolution(&mut self, key: IdKey) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        if let Some(deadline) = id.deadline.take() {
            self.timers.remove(&(deadline, key));
        }
        if let Ok(peer) = id.peer() {
            self.neighbor_waits.remove(self.account_of(key.owner), peer, key);
        }
    }

    /// Fills in the path; an event says so.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`]; [`CmErrno::NoDevice`] for a loopback destination.
    pub fn resolve_route(&mut self, key: IdKey) -> Result<(), CmErrno> {
        let id = self.id(key)?;
        if id.state != IdState::AddressResolved {
            return Err(CmErrno::Invalid);
        }
        let (Some(device), Some(source), Some(destination)) = (id.device, id.source, id.destination) else {
            return Err(CmErrno::Invalid);
        };
        if is_any(destination.ip()) {
            return Err(CmErrno::NoDevice);
        }
        if device.mtu_bytes == 0 {
            return Err(CmErrno::Invalid);
        }
        let traffic_class = id.options.type_of_service.unwrap_or(0);
        id.path = Some(IdPath {
            mtu_bytes: device.mtu_bytes,
            flow_label: flow_label(source, destination),
            traffic_class,
            hop_limit: HOP_LIMIT,
            service_level: priority(traffic_class),
            packet_life_time: id.options.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1)),
            rate: 0,
        });
        id.state = IdState::RouteResolved;
        self.tell(key, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// Sets an option. When it counts, and up to which state it may be set, is as in Linux: the
    /// type of service until the route is resolved, the ACK timeout until the queue pair is
    /// connected; sharing of a port may begin in any state but that of a listener and end before
    /// the port is bound; one family alone until the identifier listens.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`].
    pub fn set_option(&mut self, key: IdKey, option: IdOption) -> Result<(), CmErrno> {
        let id = self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)?;
        match option {
            IdOption::TypeOfService(class) => id.options.type_of_service = Some(class),
            IdOption::ReuseAddress(may) => {
                if id.state != IdState::Idle && (!may || id.state == IdState::Listening) {
                    return Err(CmErrno::Invalid);
                }
                id.options.may_share_port = may;
            }
            IdOption::FamilyOnly(only) => {
                if !matches!(id.state, IdState::Idle | IdState::Bound) {
                    return Err(CmErrno::Invalid);
                }
                id.options.is_family_only = Some(only);
            }
            IdOption::AckTimeout(_) if id.service != IdService::Reliable => return Err(CmErrno::Invalid),
            IdOption::AckTimeout(timeout) if timeout > 31 => return Err(CmErrno::Invalid),
            IdOption::AckTimeout(timeout) => id.options.ack_timeout = Some(timeout),
        }
        let port = id.source.map_or(0, |source| source.port());
        if let Some(port_use) = self.ports.use_of(id.port_space, port, key) {
            port_use.may_share = id.options.may_share_port;
            let only = id.options.is_family_only.unwrap_or(port_use.is_family_only);
            port_use.is_family_only = only || port_use.address.is_ipv4();
        }
        Ok(())
    }
}

impl Identifier {
    fn port_use(&self, key: IdKey, address: SocketAddr, is_ipv6_only: bool) -> PortUse {
        let scope = link_scope(address);
        let address = address.ip();
        PortUse {
            key,
            address: if address.is_loopback() { any_of(address) } else { address },
            scope,
            is_family_only: address.is_ipv4() || self.options.is_family_only.unwrap_or(is_ipv6_only),
            may_share: self.options.may_share_port,
            listens: false,
            is_chosen: false,
            chosen_for: None,
            account: AccountId(0),
        }
    }
}

/// Linux takes the loopback address for all addresses.
const fn is_any(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

const fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// The interface of a link-local address, 0 of others.
pub(super) const fn link_scope(address: SocketAddr) -> u32 {
    if is_link_local(address.ip()) { scope_of(address) } else { 0 }
}

/// The port of `of` at `address`, of interface `scope` if it is link-local.
fn with_address(mut of: SocketAddr, address: IpAddr, scope: u32) -> SocketAddr {
    of.set_ip(address);
    if let SocketAddr::V6(v6) = &mut of
        && is_link_local(address)
    {
        v6.set_scope_id(scope);
    }
    of
}

/// Flow label of a connection, by which frames get their UDP source port: that of the program's
/// IPv6 address, or one of the ports.
const fn flow_label(source: SocketAddr, destination: SocketAddr) -> u32 {
    let own = match source {
        SocketAddr::V6(v6) => v6.flowinfo() & 0x000f_ffff,
        SocketAddr::V4(_) => 0,
    };
    if own != 0 {
        return own;
    }
    (source.port() as u32 * 31 + destination.port() as u32) & 0x000f_ffff
}

/// Priority of a type of service (RFC 1349), as Linux maps it.
const fn priority(type_of_service: u8) -> u8 {
    match type_of_service & 0x1e {
        0..8 => 0,
        8..16 => 2,
        16..24 => 6,
        _ => 4,
    }
}

/// The address 0.0.0.0 and no port: where an identifier listens that is not bound.
pub(super) const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_labels_are_those_of_the_recordings() {
        let label = |source: u16, destination: u16| {
            flow_label(
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), source),
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), destination),
            )
        };
        assert_eq!(label(0xe676, 7174), 0xc0450);
        assert_eq!(label(0, 0), 0);
    }

    #[test]
    fn priorities_are_those_of_linux() {
        let of = [(0x00, 0), (0x04, 0), (0x08, 2), (0x10, 6), (0x18, 4), (0x1c, 4), (0xe0, 0), (0xe8, 2)];
        for (class, level) in of {
            assert_eq!(priority(class), level, "{class:#x}");
        }
    }
}
