//! Management datagrams that workers received, on their way to the control thread.
//!
//! Any host can send as many as the wire carries, in the name of any address, and a control thread
//! that is away for a moment takes none. So they are told apart before they wait, each kind in a
//! bounded queue of its own:
//!
//! | kind | |
//! |---|---|
//! | answers | may name a connection with their sender, by a number that it alone learns |
//! | of known peers | requests of addresses that have sent such answers |
//! | of unknown peers | requests of all other addresses |
//! | others of known peers | about connections that this host does not know |
//! | others of unknown peers | likewise |
//!
//! Workers tell by [`MadFilters`]; a few datagrams of unknown peers get into a better queue by
//! chance, and the control thread looks closely. The queues are without locks. Of each an address
//! has a share. A datagram without room is dropped and counted: connection managers repeat those
//! that were lost.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crossbeam::{queue::ArrayQueue, utils::CachePadded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use roced_cm::wire::is_request;
use roced_transport::{
    management::{MAD_BYTES, ManagementDatagram},
    wire::Roce,
};
use roced_types::DeviceId;

use super::mad_filters::MadFilters;

/// Datagrams of each queue that wait at a time, of all workers: 3.1 MiB together. A flood of
/// 250,000 a second fills a queue of 4,096 in 16 ms, in which even a busy machine gives the control
/// thread a turn. After a restart of the daemon all peers are unknown peers, and name nothing. Known
/// and unknown are peers; unconnected are datagrams about connections that this host does not have.
const ANSWERS: usize = 4096;
const OF_KNOWN: usize = 1024;
const OF_UNKNOWN: usize = 4096;
const UNCONNECTED_OF_KNOWN: usize = 512;
const UNCONNECTED_OF_UNKNOWN: usize = 512;

/// The part of a queue that an address may have.
const SHARE_PART: usize = 8;

/// Shares of a queue. Each address has one, chosen by a hash with a random key, so that a peer
/// cannot pick addresses that share with another.
const SHARES: usize = 256;

/// Datagrams of a queue that the control thread takes in a turn.
const TAKEN: usize = 1024;

/// Datagrams of unknown peers and about unknown connections that the control thread has room for.
/// All others wait here: to drop them costs a worker less than to pass them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadRoom {
    /// Room for requests of unknown peers.
    pub of_unknown: usize,
    /// Room for datagrams of known peers about unknown connections.
    pub unconnected_of_known: usize,
    /// Room for datagrams of unknown peers about unknown connections.
    pub unconnected_of_unknown: usize,
}

impl MadRoom {
    /// Room for as many datagrams as a turn takes.
    pub const FULL: Self = Self { of_unknown: TAKEN, unconnected_of_known: TAKEN, unconnected_of_unknown: TAKEN };

    /// Most datagrams of a turn, by queue.
    fn most(self) -> [usize; 5] {
        let Self { of_unknown, unconnected_of_known, unconnected_of_unknown } = self;
        [TAKEN, TAKEN, of_unknown, unconnected_of_known, unconnected_of_unknown].map(|most| most.min(TAKEN))
    }
}

/// A management datagram that a worker received. The checks of queue pair 1 have passed; its
/// content is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMad {
    /// The device that received it.
    pub device: DeviceId,
    /// The VLAN of its tag, if it has one with a number other than 0.
    pub vlan: Option<u16>,
    /// The destination GID.
    pub local: [u8; 16],
    /// The source GID.
    pub remote: [u8; 16],
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// It came by RoCEv1, and so must its answer.
    pub is_roce_v1: bool,
    /// The datagram.
    pub bytes: [u8; MAD_BYTES],
}

impl ReceivedMad {
    pub(super) fn new(device: DeviceId, datagram: &ManagementDatagram) -> Self {
        Self {
            device,
            vlan: datagram.vlan,
            local: datagram.local,
            remote: datagram.remote,
            traffic_class: datagram.traffic_class,
            is_roce_v1: datagram.roce == Roce::V1,
            bytes: datagram.bytes,
        }
    }
}

/// Reason why a received datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadDrop {
    /// As many wait as its queue holds.
    QueueFull,
    /// As many of the peer's share wait as it may have.
    ShareFull,
    /// It names no connection of this host, and there was no room for it.
    AboutUnknown,
}

/// A queue of datagrams, with the shares of addresses.
#[derive(Debug)]
struct MadLine {
    /// Each with the number of its share.
    queue: ArrayQueue<(u8, ReceivedMad)>,
    /// Waiting datagrams of each share.
    waiting: [AtomicU32; SHARES],
}

impl MadLine {
    fn new(capacity: usize) -> Self {
        Self { queue: ArrayQueue::new(capacity), waiting: [const { AtomicU32::new(0) }; SHARES] }
    }

    /// Atomics count; the queue alone orders the memory of datagrams.
    fn release(&self, share: u8) {
        self.waiting[usize::from(share)].fetch_sub(1, Ordering::Relaxed);
    }

    fn push(&self, share: u8, mad: ReceivedMad) -> Result<(), MadDrop> {
        let waiting = self.waiting[usize::from(share)].fetch_add(1, Ordering::Relaxed);
        let pushed = if waiting as usize >= self.queue.capacity() / SHARE_PART {
            Err(MadDrop::ShareFull)
        } else {
            self.queue.push((share, mad)).map_err(|_| MadDrop::QueueFull)
        };
        if pushed.is_err() {
            self.release(share);
        }
        pushed
    }

    fn pop(&self) -> Option<ReceivedMad> {
        let (share, mad) = self.queue.pop()?;
        self.release(share);
        Some(mad)
    }
}

/// The first queue of datagrams that name no connection.
const FIRST_UNCONNECTED: usize = 3;

#[derive(Debug)]
struct SharedMads {
    answers: CachePadded<MadLine>,
    of_known: CachePadded<MadLine>,
    of_unknown: CachePadded<MadLine>,
    unconnected_of_known: CachePadded<MadLine>,
    unconnected_of_unknown: CachePadded<MadLine>,
    doorbell: EventFd,
    filters: Arc<MadFilters>,
}

/// A worker's side.
#[derive(Debug)]
pub struct MadSender {
    shared: Arc<SharedMads>,
    unannounced: bool,
}

/// The control thread's side.
#[derive(Debug)]
pub struct MadReceiver {
    shared: Arc<SharedMads>,
}

/// One receiver, and a sender for each of `workers`, for a host of so many connections.
///
/// # Errors
/// The kernel's, when it gives no eventfd.
pub fn mads(workers: usize, connections_max: usize) -> io::Result<(MadReceiver, Vec<MadSender>)> {
    let doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let shared = Arc::new(SharedMads {
        answers: CachePadded::new(MadLine::new(ANSWERS)),
        of_known: CachePadded::new(MadLine::new(OF_KNOWN)),
        of_unknown: CachePadded::new(MadLine::new(OF_UNKNOWN)),
        unconnected_of_known: CachePadded::new(MadLine::new(UNCONNECTED_OF_KNOWN)),
        unconnected_of_unknown: CachePadded::new(MadLine::new(UNCONNECTED_OF_UNKNOWN)),
        doorbell,
        filters: Arc::new(MadFilters::new(connections_max)),
    });
    let senders = (0..workers).map(|_| MadSender { shared: Arc::clone(&shared), unannounced: false }).collect();
    Ok((MadReceiver { shared }, senders))
}

impl SharedMads {
    /// The queue of a datagram of an address, by its place in [`Self::lines`].
    fn line_of(&self, address: u64, bytes: &[u8; MAD_BYTES]) -> usize {
        if self.filters.may_be_answer(address, bytes) {
            return 0;
        }
        match (is_request(bytes), self.filters.may_be_known(address)) {
            (true, true) => 1,
            (true, false) => 2,
            (false, true) => 3,
            (false, false) => 4,
        }
    }

    /// The most useful first.
    fn lines(&self) -> [&MadLine; 5] {
        [&self.answers, &self.of_known, &self.of_unknown, &self.unconnected_of_known, &self.unconnected_of_unknown]
    }
}

/// The share of an address. Other bits of its hash choose places of the filters.
const fn share_of(address: u64) -> u8 {
    (address >> 56) as u8
}

impl MadSender {
    /// Passes a datagram to the control thread.
    ///
    /// # Errors
    /// [`MadDrop`]: the datagram is dropped.
    pub fn push(&mut self, mad: ReceivedMad) -> Result<(), MadDrop> {
        let address = self.shared.filters.hash_of(&mad.remote);
        let line = self.shared.line_of(address, &mad.bytes);
        let is_about_unknown = line >= FIRST_UNCONNECTED;
        let pushed = self.shared.lines()[line].push(share_of(address), mad);
        pushed.map_err(|why| if is_about_unknown { MadDrop::AboutUnknown } else { why })?;
        self.unannounced = true;
        Ok(())
    }

    /// Wakes the control thread when something was pushed since the last call. Once per poll
    /// iteration.
    pub fn announce(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            // A counter that is full (EAGAIN) is as readable as can be.
            let _ = self.shared.doorbell.write(1);
        }
    }
}

impl MadReceiver {
    /// By these workers tell datagrams apart.
    pub fn filters(&self) -> &Arc<MadFilters> {
        &self.shared.filters
    }

    /// Takes the datagrams that wait and have room. Peers can send without end, so it takes 1,024
    /// of a queue; if others wait then the fd stays readable. Where there was no room it does not:
    /// the caller calls again when there is some.
    pub fn drain(&self, room: MadRoom, mut on_mad: impl FnMut(ReceivedMad)) {
        // Before popping, so that none is overlooked. EAGAIN when nothing was announced.
        let _ = self.shared.doorbell.read();
        let mut are_left = false;
        for (line, most) in self.shared.lines().into_iter().zip(room.most()) {
            let mut taken = 0;
            while taken < most
                && let Some(mad) = line.pop()
            {
                taken += 1;
                on_mad(mad);
            }
            // The caller may have dropped all of them, and have as much room as before.
            are_left |= taken > 0 && taken == most && !line.queue.is_empty();
        }
        if are_left {
            self.ring();
        }
    }

    /// Makes the fd readable.
    pub fn ring(&self) {
        // A counter that is full (EAGAIN) is as readable as can be.
        let _ = self.shared.doorbell.write(1);
    }
}

impl AsFd for MadReceiver {
    /// Readable when there may be a datagram.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use roced_cm::{
        CmObserver as _, PeerAddress,
        wire::{Attribute, CommId},
    };

    use super::*;

    /// A datagram from one of many hosts that names connection `id`.
    fn mad(host: u16, attribute: Attribute, id: u32) -> ReceivedMad {
        let [high, low] = host.to_be_bytes();
        let mut bytes = [0; MAD_BYTES];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&attribute.number().to_be_bytes());
        // All but a SIDR_REP have the receiver's number second.
        let at = if attribute == Attribute::SidrRep { 24 } else { 28 };
        bytes[at..at + 4].copy_from_slice(&id.to_be_bytes());
        ReceivedMad {
            device: DeviceId(0),
            vlan: None,
            local: [0; 16],
            remote: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low],
            traffic_class: 0,
            is_roce_v1: false,
            bytes,
        }
    }

    fn request(host: u16, number: u32) -> ReceivedMad {
        mad(host, Attribute::Req, number)
    }

    fn peer(host: u16) -> PeerAddress {
        let ReceivedMad { device, vlan, local, remote, .. } = request(host, 0);
        PeerAddress { device, vlan, local, remote }
    }

    fn new(workers: usize) -> (MadReceiver, Vec<MadSender>) {
        mads(workers, 10_000).expect("an eventfd")
    }

    fn taken(receiver: &MadReceiver) -> Vec<ReceivedMad> {
        let mut taken = Vec::new();
        receiver.drain(MadRoom::FULL, |mad| taken.push(mad));
        taken
    }

    fn share(receiver: &MadReceiver, host: u16) -> u8 {
        share_of(receiver.filters().hash_of(&request(host, 0).remote))
    }

    #[test]
    fn a_flood_of_one_address_takes_its_share_alone() {
        let (receiver, mut senders) = new(2);
        let flood: Vec<_> = (0..1000).map(|number| senders[0].push(request(1, number))).collect();
        assert_eq!(flood.iter().filter(|pushed| pushed.is_ok()).count(), OF_UNKNOWN / SHARE_PART);
        assert_eq!(flood.last(), Some(&Err(MadDrop::ShareFull)));
        let other = (2..).find(|host| share(&receiver, *host) != share(&receiver, 1)).expect("not all hosts have one");
        assert_eq!(senders[1].push(request(other, 7)), Ok(()));
        let taken = taken(&receiver);
        assert_eq!((taken.len(), taken.last()), (OF_UNKNOWN / SHARE_PART + 1, Some(&request(other, 7))));
        // Its share is free again.
        assert_eq!(senders[1].push(request(1, 0)), Ok(()));
    }

    /// Each message, with and without a connection of that number with its sender; with the number
    /// of another's connection, or of none.
    #[test]
    fn each_message_has_its_line() {
        let (receiver, _) = new(0);
        let (filters, shared) = (receiver.filters(), &receiver.shared);
        filters.on_number(CommId(77), &peer(1));
        filters.on_connected(&peer(1));
        let line = |mad: ReceivedMad| shared.line_of(filters.hash_of(&mad.remote), &mad.bytes);
        for attribute in Attribute::ALL {
            let lines = [(1, 77), (1, 78), (2, 77), (1, 0), (2, 0)].map(|(host, id)| line(mad(host, attribute, id)));
            let expected = match attribute {
                Attribute::Req | Attribute::SidrReq => [1, 1, 2, 1, 2],
                // One that takes back a request names no number.
                Attribute::Rej => [0, 3, 4, 1, 2],
                Attribute::Lap | Attribute::Apr => [3, 3, 4, 3, 4],
                _ => [0, 3, 4, 3, 4],
            };
            assert_eq!(lines, expected, "{attribute:?}");
        }
        let mut other_class = request(1, 0);
        other_class.bytes[1] = 4;
        assert_eq!(line(other_class), 3);
        filters.on_number_gone(CommId(77), &peer(1));
        filters.on_disconnected(&peer(1));
        assert_eq!([line(mad(1, Attribute::Rep, 77)), line(request(1, 0))], [4, 2]);
    }

    /// Every address floods with requests and with datagrams about connections that do not exist,
    /// also in the name of a known peer, and with the number of a connection of its own: that
    /// peer's request and answer have room, and come first.
    #[test]
    fn a_flood_of_all_addresses_leaves_known_peers_and_answers_room() {
        let (receiver, mut senders) = new(1);
        let filters = receiver.filters();
        filters.on_number(CommId(77), &peer(1));
        filters.on_connected(&peer(1));
        filters.on_number(CommId(666), &peer(2));
        let mut drops = [0; 2];
        assert_eq!(senders[0].push(mad(1, Attribute::Dreq, 5)), Ok(()));
        for host in 2..=u16::MAX {
            let unknown = [host, 1].map(|host| mad(host, Attribute::Dreq, 666));
            for mad in [request(host, 0)].into_iter().chain(unknown.into_iter().skip(usize::from(host == 2))) {
                match senders[0].push(mad) {
                    Ok(()) => {}
                    Err(MadDrop::AboutUnknown) => drops[0] += 1,
                    Err(MadDrop::QueueFull | MadDrop::ShareFull) => drops[1] += 1,
                }
            }
        }
        assert!(drops.iter().all(|drops| *drops > 10_000), "{drops:?}");
        let (known, answer) = (request(1, 1), mad(1, Attribute::Rtu, 77));
        assert_eq!([senders[0].push(known), senders[0].push(answer)], [Ok(()); 2]);
        let first = taken(&receiver);
        let at = [answer, known].map(|mad| first.iter().position(|taken| *taken == mad));
        // Some addresses have a share of the answers and of the known by chance.
        assert!(at.iter().all(|at| at.is_some_and(|at| at < 100)) && first.len() > TAKEN, "{at:?}");
    }

    #[test]
    fn a_full_line_drops_and_a_drop_takes_no_share() {
        let (receiver, mut senders) = new(1);
        let mut pushed = 0;
        let full = (0..=u16::MAX).find(|host| match senders[0].push(request(*host, 0)) {
            Ok(()) => {
                pushed += 1;
                false
            }
            Err(why) => why == MadDrop::QueueFull,
        });
        assert!(full.is_some(), "many hosts fill the line");
        assert_eq!(pushed, OF_UNKNOWN);
        while !taken(&receiver).is_empty() {}
        let is_free = |line: &MadLine| line.waiting.iter().all(|waiting| waiting.load(Ordering::Relaxed) == 0);
        assert!(receiver.shared.lines().into_iter().all(is_free));
    }

    #[test]
    fn a_drain_is_bounded_and_the_fd_is_readable_while_datagrams_wait() {
        let (receiver, mut senders) = new(1);
        for number in 0..10 {
            senders[0].push(request(1, number)).expect("room");
        }
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "not announced");
        senders[0].announce();
        assert!(taken(&receiver).into_iter().eq((0..10).map(|number| request(1, number))));
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "none is left");
        senders[0].announce();
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "announced once");
        // A peer that sends as fast as they are taken.
        let mut taken = 0;
        senders[0].push(request(1, 0)).expect("room");
        receiver.drain(MadRoom::FULL, |mad| {
            taken += 1;
            senders[0].push(mad).expect("room");
        });
        assert_eq!((taken, receiver.shared.doorbell.read()), (TAKEN, Ok(1)));
    }

    /// They wait, and keep the control thread from its sleep only while it has room.
    #[test]
    fn datagrams_without_room_wait() {
        let (receiver, mut senders) = new(1);
        for number in 0..10 {
            senders[0].push(request(1, number)).expect("room");
        }
        senders[0].push(mad(1, Attribute::Dreq, 5)).expect("room");
        senders[0].announce();
        let take = |of_unknown| {
            let mut taken = 0;
            let room = MadRoom { of_unknown, unconnected_of_known: 0, unconnected_of_unknown: 0 };
            receiver.drain(room, |_| taken += 1);
            (taken, receiver.shared.doorbell.read())
        };
        let sleeps = Err(Errno::EAGAIN);
        assert_eq!([0, 3, 7, 20].map(take), [(0, sleeps), (3, Ok(1)), (7, sleeps), (0, sleeps)]);
        assert_eq!(taken(&receiver), [mad(1, Attribute::Dreq, 5)]);
    }

    /// 256 addresses, each with a hash of its own start: the key is random.
    #[test]
    fn shares_differ_from_start_to_start() {
        let shares = || {
            let (receiver, _) = new(0);
            (0..256).map(|host| share(&receiver, host)).collect::<Vec<_>>()
        };
        assert_ne!(shares(), shares());
    }
}
