//! The kernel's view of the network, followed live: links, addresses (which are GIDs), routes and
//! neighbors.
//!
//! [`Net`] mirrors netlink's messages and answers from the mirror; only a route is queried, since
//! only the kernel knows its rules. It runs on the control thread: readable [`Net::fd`] →
//! [`Net::on_readable`], [`Net::deadline`] → [`Net::on_deadline`], and both return the changes.
//!
//! ```text
//!   netlink events ─► links, addresses, neighbors ─► devices' GIDs, MTU, state ─► Link, Gids
//!                                  │
//!                   followed destinations ── route? ── neighbor? ───────────────► NextHop
//! ```

mod asking;
mod events;
mod follow;
mod follows;
mod gid;
mod link;
mod mac_changes;
mod membership;
mod mirror;
mod neighbor;
mod questions;
mod route;

use std::{
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use roced_types::{DeviceId, is_link_local};
use roced_xdp::netlink::Requests;
use thiserror::Error;
use tracing::{debug, info, warn};

use self::{
    events::{Heard, KernelEvents},
    follow::{Follow, View},
    follows::Follows,
    mac_changes::MacChanges,
    membership::Memberships,
    mirror::{Concerns, Mirror},
    neighbor::Neighbor,
    questions::Questions,
    route::Hop,
};
pub use self::{
    follow::{FollowId, NextHop},
    gid::{GidTable, GidTableEntry, RoceVersion},
    link::{Below, LowerInterface},
    questions::{ASKED_MAX, Asker},
};
use crate::log_limiter::LogLimiter;

/// A device and its interface.
#[derive(Clone, Debug)]
pub struct DeviceInterface {
    /// The device.
    pub device: DeviceId,
    /// Name of its network interface.
    pub name: String,
}

/// View of a device from the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNet {
    /// Name of the interface: the present one, or while there is none that of the config.
    pub name: String,
    /// The name of the config, by which an interface is found.
    configured_name: String,
    /// Index of the interface, the last one that there was.
    pub ifindex: u32,
    /// The interface is there.
    pub present: bool,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Up, with a carrier.
    pub link_up: bool,
    /// MTU of the link, bytes.
    pub link_mtu_bytes: u32,
    /// The longest IP packet that the device's queues take, bytes, see [`Net::limit_packets`].
    pub packet_bytes_max: u32,
    /// Speed, Mbit/s, 0 when not known.
    pub speed_mbit_per_s: u32,
    /// Its GIDs.
    pub gids: GidTable,
}

impl DeviceNet {
    /// MTU of the link, or the largest packet of the device's queues if that is less, bytes.
    pub fn usable_mtu_bytes(&self) -> u32 {
        self.link_mtu_bytes.min(self.packet_bytes_max)
    }
}

/// Something is not as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkChange {
    /// A device's interface is gone: deleted, unplugged, its driver unloaded, or moved to another
    /// network namespace.
    Gone(DeviceId),
    /// An interface with the name of a device's is there again. Its link and GIDs follow.
    Returned(DeviceId),
    /// A device's interface has another name ([`DeviceNet::name`]).
    Renamed(DeviceId),
    /// A device's link: up or down, MTU, MAC address.
    Link(DeviceId),
    /// A device's GIDs.
    Gids(DeviceId),
    /// How a followed destination is reached.
    NextHop(FollowId, NextHop),
}

/// The network could not be looked at.
#[derive(Debug, Error)]
pub enum NetError {
    /// No such interface.
    #[error("there is no network interface {0}: `ip link` shows those that are there, and an altname does not do")]
    NoSuchInterface(String),
    /// Not Ethernet.
    #[error("{0} is not an Ethernet interface: RoCEv2 needs one")]
    NotEthernet(String),
    /// Netlink failed.
    #[error("netlink {what}: {source}")]
    Netlink {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// No route leads from that GID to that destination by its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no route to {destination} from {from} by that device")]
pub struct NoRoute {
    /// Where from.
    pub from: IpAddr,
    /// Where to.
    pub destination: IpAddr,
}

/// The pause before everything is read anew once more. A guess: long enough for a swarm of changes
/// to pass.
const READ_AGAIN_PAUSE: Duration = Duration::from_millis(100);

/// The kernel's network, and the daemon's use of it.
#[derive(Debug)]
pub struct Net {
    requests: Requests,
    events: KernelEvents,
    mirror: Mirror,
    /// Changes were lost and reading everything anew did not succeed yet: when it is tried again.
    read_again_at: Option<Instant>,
    devices: Vec<(DeviceId, DeviceNet)>,
    follows: Follows,
    questions: Questions,
    mac_changes: MacChanges,
    /// Lines about neighbors that do not answer: unknown peers can cause them.
    silent_neighbors: LogLimiter,
    memberships: Memberships,
    resolve_timeout: Duration,
    /// Nothing is sent to hosts of these.
    denied: Vec<IpNet>,
}

impl Net {
    /// Reads everything and follows it from now on. A neighbor that does not answer within
    /// `resolve_timeout` is unreachable.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn open(interfaces: &[DeviceInterface], resolve_timeout: Duration) -> Result<Self, NetError> {
        let failed = |what| move |source| NetError::Netlink { what, source };
        // Events first: changes during the dump are received afterward, and receiving them twice
        // does no harm.
        let events = KernelEvents::open().map_err(failed("cannot be listened to"))?;
        let mut requests = Requests::open(NETLINK_ROUTE).map_err(failed("cannot be asked"))?;
        let mirror = Mirror::read(&mut requests).map_err(failed("dump failed"))?;
        let mut net = Self {
            requests,
            events,
            mirror,
            read_again_at: None,
            devices: Vec::new(),
            follows: Follows::default(),
            questions: Questions::default(),
            mac_changes: MacChanges::default(),
            silent_neighbors: LogLimiter::default(),
            memberships: Memberships::default(),
            resolve_timeout,
            denied: Vec::new(),
        };
        for DeviceInterface { device, name } in interfaces {
            let (ifindex, link) =
                net.mirror.links.by_name(name).ok_or_else(|| NetError::NoSuchInterface(name.clone()))?;
            if !link.is_ethernet {
                return Err(NetError::NotEthernet(name.clone()));
            }
            let mut seen = DeviceNet {
                name: name.clone(),
                configured_name: name.clone(),
                ifindex,
                present: true,
                mac: link.mac,
                link_up: link.up,
                link_mtu_bytes: link.mtu_bytes,
                packet_bytes_max: u32::MAX,
                speed_mbit_per_s: link::speed_mbit_per_s(ifindex, name),
                gids: GidTable::default(),
            };
            seen.gids.update(&net.mirror.addresses.gids(ifindex, &net.mirror.links));
            net.devices.push((*device, seen));
        }
        Ok(net)
    }

    /// Sets how long a neighbor may take to answer, for destinations that are asked for from now
    /// on.
    pub fn set_resolve_timeout(&mut self, timeout: Duration) {
        self.resolve_timeout = timeout;
    }

    /// From now on there is no way to hosts of these networks, nor for destinations that are
    /// followed.
    pub fn set_denied(&mut self, denied: Vec<IpNet>) {
        if self.denied != denied {
            self.denied = denied;
            self.follows.on_routes(Instant::now());
        }
    }

    /// Readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// A device.
    ///
    /// # Panics
    /// For a device that was not given to [`Self::open`].
    pub fn device(&self, device: DeviceId) -> &DeviceNet {
        self.devices
            .iter()
            .find(|(id, _)| *id == device)
            .map(|(_, seen)| seen)
            .expect("devices stay while the daemon runs")
    }

    /// The interface of a device has ports: it is a bond, a bridge, or a virtual NIC beside its VF.
    pub fn has_ports(&self, device: DeviceId) -> bool {
        self.mirror.links.has_ports(self.device(device).ifindex)
    }

    /// The interfaces that receive the frames of a device's interface.
    pub fn below(&self, device: DeviceId) -> Below {
        self.mirror.links.below(self.device(device).ifindex)
    }

    /// A number that grows with each change of an interface: while it stays, [`Self::below`] does.
    pub fn interface_changes(&self) -> u64 {
        self.mirror.links.changes()
    }

    /// RX queues that the kernel has made for the interface of a device.
    pub fn rx_queues_made(&self, device: DeviceId) -> u32 {
        self.mirror.links.get(self.device(device).ifindex).map_or(1, |link| link.rx_queues)
    }

    /// The device's queues take IP packets of at most `bytes`, for any MTU of its link.
    ///
    /// # Panics
    /// As [`Self::device`].
    pub fn limit_packets(&mut self, device: DeviceId, bytes: u32) {
        let seen = self.devices.iter_mut().find(|(id, _)| *id == device);
        seen.expect("devices stay while the daemon runs").1.packet_bytes_max = bytes;
    }

    /// Frames that the interface of a device has received since any time. `None` if it is gone.
    pub fn received_frames(&mut self, device: DeviceId) -> Option<u64> {
        let seen = self.device(device);
        let mut question = LinkMessage::default();
        question.header.index = seen.present.then_some(seen.ifindex)?;
        let answers = self.requests.get(RouteNetlinkMessage::GetLink(question)).ok()?;
        answers.iter().find_map(|answer| {
            let RouteNetlinkMessage::NewLink(link) = answer else { return None };
            link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Stats64(stats) => Some(stats.rx_packets),
                _ => None,
            })
        })
    }

    /// Processes messages of netlink.
    ///
    /// # Errors
    /// The kernel's, when the socket itself fails.
    pub fn on_readable(&mut self) -> Result<Vec<NetworkChange>, NetError> {
        let failed = |source| NetError::Netlink { what: "stopped telling of changes", source };
        let now = Instant::now();
        let mut routes_changed = false;
        match self.events.drain().map_err(failed)? {
            Heard::Changes(messages) => {
                for message in &messages {
                    match self.mirror.take(message) {
                        Concerns::Nothing => {}
                        Concerns::Neighbor(news) => self.on_neighbor(news, now),
                        Concerns::Routes => routes_changed = true,
                    }
                }
                self.questions.on_news_read();
            }
            Heard::Lost => {
                info!("netlink lost changes; reading everything anew");
                routes_changed |= self.read_again();
            }
        }
        let mut changes = self.refresh_devices(routes_changed);
        changes.extend(self.on_deadline());
        Ok(changes)
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let parts = [self.follows.deadline(), self.questions.deadline(), self.mac_changes.deadline()];
        parts.into_iter().flatten().chain(self.read_again_at).min()
    }

    /// Time has passed: neighbors are asked again, and given up. Many destinations are handled in
    /// steps, the next of which is due at once.
    pub fn on_deadline(&mut self) -> Vec<NetworkChange> {
        let now = Instant::now();
        let mut changes = Vec::new();
        if self.read_again_at.is_some_and(|at| at <= now) && self.read_again() {
            changes.extend(self.refresh_devices(true));
        }
        while let Some(neighbor) = self.mac_changes.on_time(now) {
            self.follows.on_neighbor(neighbor, now);
        }
        let outdated = self.follows.take_outdated();
        changes.extend(outdated.into_iter().filter_map(|(id, routes_changed)| self.look_again(id, routes_changed)));
        for id in self.follows.due(now) {
            let Some(mut follow) = self.follows.take(id) else { continue };
            if follow.give_up(now) {
                changes.push(NetworkChange::NextHop(id, NextHop::Unreachable));
                if let Some(held_back) = self.silent_neighbors.admit(now) {
                    info!(destination = %follow.destination, held_back, "neighbor does not answer");
                }
            }
            self.pass_time(id, follow, now);
        }
        self.questions.on_time(now);
        self.free_silent(now);
        self.ask_waiting(now);
        changes
    }

    /// An interface of this host has the address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.mirror.addresses.contains(address)
    }

    /// The address of this host from which the kernel sends to `destination`, by interface `scope`
    /// if that is not 0. `None` without a route.
    pub fn source_for(&mut self, destination: IpAddr, scope: u32) -> Option<IpAddr> {
        let out = (scope != 0).then_some(scope);
        route::source(&mut self.requests, destination, out).unwrap_or_else(|error| {
            warn!(%destination, %error, "the kernel would not tell a route");
            None
        })
    }

    /// Follows how `destination` is reached from `source`, a GID of `device`. Each call wants an
    /// [`Self::unfollow`]. A question for its neighbor counts for `asker`; while that has too many,
    /// it waits in line, and the next hop is [`NextHop::Resolving`] until then as well.
    ///
    /// # Errors
    /// [`NoRoute`]: nothing is followed.
    pub fn follow(
        &mut self,
        device: DeviceId,
        source: GidTableEntry,
        destination: IpAddr,
        asker: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        if let Some((id, next, place)) = self.follows.join((device, source, destination), asker) {
            if let Some(place) = place {
                self.questions.wait(asker, place, id);
                // It may have room where the others that wait for it have none.
                self.questions.set_left(Some(Instant::now()));
            }
            return Ok((id, next));
        }
        let now = Instant::now();
        let mut follow = Follow::new(device, source, destination);
        let view = self.look(&mut follow, true, now);
        if follow.hop.is_none() && view == View::NoWay {
            return Err(NoRoute { from: source.address, destination });
        }
        follow.see(view, now);
        let next = follow.next;
        let id = self.follows.add(follow, asker);
        // A neighbor not known yet is asked for at once, if the asker has room.
        if let Some(follow) = self.follows.take(id) {
            self.pass_time(id, follow, now);
        }
        Ok((id, next))
    }

    /// Whether `destination` is followed only by asking its neighbor first: the kernel does not
    /// know its MAC address.
    pub fn must_ask(&mut self, device: DeviceId, source: GidTableEntry, destination: IpAddr) -> bool {
        let view = self.look(&mut Follow::new(device, source, destination), true, Instant::now());
        matches!(view, View::Asked | View::Silent)
    }

    /// One follower less, of this asker.
    pub fn unfollow(&mut self, id: FollowId, asker: Asker) {
        if let Some(place) = self.follows.leave(id, asker) {
            self.questions.leave(asker, place);
        }
    }

    /// Makes the kernel a member of a multicast group on the interface of `source`, a GID of
    /// `device`. Each call wants a [`Self::leave`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn join(&mut self, device: DeviceId, source: &GidTableEntry, group: IpAddr) -> io::Result<()> {
        self.memberships.join(device, source, group)
    }

    /// One member less of those that joined by an address of VLAN `vlan`. The address may be gone.
    pub fn leave(&mut self, device: DeviceId, vlan: Option<u16>, group: IpAddr) {
        self.memberships.leave(device, vlan, group);
    }

    /// The multicast groups that a device is a member of, each at least once.
    pub fn groups(&self, device: DeviceId) -> impl Iterator<Item = IpAddr> {
        self.memberships.groups(device)
    }

    /// Reads everything anew after changes were lost; says whether that succeeded. It may not while
    /// much is changing.
    fn read_again(&mut self) -> bool {
        match Mirror::read(&mut self.requests) {
            Ok(mut mirror) => {
                mirror.links.count_changes_after(&self.mirror.links);
                (self.mirror, self.read_again_at) = (mirror, None);
                let neighbors = &self.mirror.neighbors;
                self.questions.on_lost_news(|(ifindex, address)| neighbors.get(ifindex, address));
                true
            }
            Err(error) => {
                warn!(%error, "the network could not be read anew; it is tried again soon");
                self.read_again_at = Some(Instant::now() + READ_AGAIN_PAUSE);
                false
            }
        }
    }

    /// Brings devices up to date. Followed destinations are outdated if routes or devices have
    /// changed.
    fn refresh_devices(&mut self, routes_changed: bool) -> Vec<NetworkChange> {
        let changes = self.device_changes();
        if routes_changed || !changes.is_empty() {
            self.follows.on_routes(Instant::now());
        }
        changes
    }

    fn device_changes(&mut self) -> Vec<NetworkChange> {
        let mut changes = Vec::new();
        let removed = self.mirror.links.take_removed();
        for (device, seen) in &mut self.devices {
            let links = &self.mirror.links;
            if seen.present && (removed.contains(&seen.ifindex) || links.get(seen.ifindex).is_none()) {
                seen.present = false;
                changes.push(NetworkChange::Gone(*device));
                seen.name.clone_from(&seen.configured_name);
            }
            if !seen.present
                && let Some((ifindex, _)) = links.by_name(&seen.name).filter(|(_, link)| link.is_ethernet)
            {
                (seen.present, seen.ifindex) = (true, ifindex);
                changes.push(NetworkChange::Returned(*device));
            }
            let link = links.get(seen.ifindex).filter(|_| seen.present);
            if let Some(link) = link
                && link.name != seen.name
            {
                info!(from = seen.name, to = link.name, "the interface was renamed");
                seen.name.clone_from(&link.name);
                changes.push(NetworkChange::Renamed(*device));
            }
            let (mac, up, mtu) =
                link.map_or((seen.mac, false, seen.link_mtu_bytes), |link| (link.mac, link.up, link.mtu_bytes));
            if (mac, up, mtu) != (seen.mac, seen.link_up, seen.link_mtu_bytes) {
                (seen.mac, seen.link_up, seen.link_mtu_bytes) = (mac, up, mtu);
                seen.speed_mbit_per_s = link::speed_mbit_per_s(seen.ifindex, &seen.name);
                info!(interface = seen.name, up, mtu, "link changed");
                changes.push(NetworkChange::Link(*device));
            }
            let gids = link.map_or_else(Vec::new, |_| self.mirror.addresses.gids(seen.ifindex, links));
            self.memberships.follow(*device, &gids, |index| removed.contains(&index) || links.get(index).is_none());
            if seen.gids.update(&gids) {
                info!(interface = seen.name, gids = seen.gids.entries().count(), "GIDs changed");
                changes.push(NetworkChange::Gids(*device));
            }
        }
        changes
    }

    /// Brings a destination up to date; queries the kernel for the route if routes have changed.
    fn look_again(&mut self, id: FollowId, routes_changed: bool) -> Option<NetworkChange> {
        let now = Instant::now();
        let mut follow = self.follows.take(id)?;
        let view = self.look(&mut follow, routes_changed, now);
        if routes_changed {
            follow.hope(now);
        }
        let change = follow.see(view, now).then(|| {
            debug!(destination = %follow.destination, next = ?follow.next, "next hop changed");
            NetworkChange::NextHop(id, follow.next)
        });
        if !follow.lacks_neighbor() {
            self.leave_line(&mut follow);
        }
        self.follows.put(id, follow);
        change
    }

    /// Route to the destination according to present knowledge; queries the kernel for the route if
    /// `ask_route`.
    fn look(&mut self, follow: &mut Follow, ask_route: bool, now: Instant) -> View {
        if let Some(local) = self.local_device(follow) {
            return View::Known(NextHop::Local(local));
        }
        if ask_route {
            let is_denied = self.denied.iter().any(|denied| denied.contains(&follow.destination));
            let hop = if is_denied { None } else { self.find_hop(follow) };
            follow.set_hop(hop, now);
        }
        let Some(hop) = follow.hop else { return View::NoWay };
        let Some(link) = self.mirror.links.get(hop.ifindex).filter(|link| link.up) else { return View::NoWay };
        let vlan = self.mirror.links.vlan_on(hop.ifindex, self.device(follow.device).ifindex).flatten();
        match self.mirror.neighbors.get(hop.ifindex, hop.neighbor) {
            Some(Neighbor::Known { mac, .. }) => View::Known(NextHop::Reachable {
                mac,
                vlan,
                source_mac: link.mac,
                mtu_bytes: hop.mtu_bytes.unwrap_or(u32::MAX).min(link.mtu_bytes),
            }),
            Some(Neighbor::Asked) | None => View::Asked,
            Some(Neighbor::Silent) => View::Silent,
        }
    }

    /// The device of ours that has the destination as a GID. A link-local address is itself only on
    /// one link.
    fn local_device(&self, follow: &Follow) -> Option<DeviceId> {
        let (device, source) = (follow.device, &follow.source);
        let ours = |(_, gid): (u32, &GidTableEntry)| {
            gid.address == follow.destination && (!is_link_local(gid.address) || gid.ifindex == source.ifindex)
        };
        // Its own device first: two devices may have the same address.
        let own = self.devices.iter().filter(|(id, _)| *id == device);
        let others = self.devices.iter().filter(|(id, _)| *id != device);
        own.chain(others).find(|(_, seen)| seen.gids.entries().any(ours)).map(|(id, _)| *id)
    }

    /// The first hop of the route, if it leaves by the follower's device. Where rules lead
    /// elsewhere, the kernel is queried again for a route by the interface that has the source
    /// address: that is the one the client chose. A link-local destination is on the link of the
    /// source, for any routes.
    fn find_hop(&mut self, follow: &Follow) -> Option<Hop> {
        let seen = self.device(follow.device);
        let ifindex = seen.ifindex;
        let source = follow.source;
        seen.gids.entries().find(|(_, gid)| (gid.address, gid.ifindex) == (source.address, source.ifindex))?;
        let any = (!is_link_local(follow.destination)).then_some(None);
        for out in any.into_iter().chain([Some(source.ifindex)]) {
            match route::find(&mut self.requests, source.address, follow.destination, out) {
                Ok(Some(hop)) if self.mirror.links.vlan_on(hop.ifindex, ifindex).is_some() => return Some(hop),
                Ok(_) => {}
                Err(error) => warn!(destination = %follow.destination, %error, "the kernel would not tell a route"),
            }
        }
        None
    }
}
