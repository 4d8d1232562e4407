//! Management datagrams that workers received, on their way to the control thread.
//!
//! Any host can send as many as the wire carries, in the name of any address, and a control thread
//! that is away for a moment takes none. So they are told apart before they wait, each kind in a
//! line of its own:
//!
//! | kind | |
//! |---|---|
//! | answers | may name a connection of this host, by a number that only its peer learns |
//! | of known peers | requests of addresses that have sent such answers |
//! | of strangers | requests of all other addresses |
//! | about unknown connections | all others |
//!
//! Workers tell by filters that the control thread writes; a few datagrams of strangers get into a
//! better line by chance, and the control thread looks closely. All lines are bounded and lock-free. Of
//! each an address has a share. A datagram without room is dropped and counted: connection
//! managers repeat those that were lost.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crossbeam::queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use roced_cm::{CountingFilter, NumberFilter, wire::is_request};
use roced_transport::{
    management::{MAD_BYTES, ManagementDatagram},
    wire::Roce,
};
use roced_types::DeviceId;

/// Lines, and datagrams of each that wait at a time, of all workers: 1.3 MiB together. Answers
/// have most: three of the five messages of a connection. Of what names nothing few are kept, for
/// few are answered.
const ANSWERS: usize = 1536;
const OF_KNOWN: usize = 1024;
const OF_STRANGERS: usize = 1280;
const ABOUT_UNKNOWN: usize = 256;

/// The part of a line that an address may have.
const SHARE_PART: usize = 4;

/// Shares of a line. Each address has one, chosen by a hash with a random key, so that a peer cannot
/// pick addresses that share with another.
const SHARES: usize = 256;

/// Places of the filter of known peers: of 4,096, six of a hundred addresses that a stranger makes
/// up share one.
const PEER_PLACES: usize = 1 << 16;

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
    /// As many wait as its line holds.
    QueueFull,
    /// As many of the peer's share wait as it may have.
    ShareFull,
    /// It names no connection of this host, and there was no room for it.
    AboutUnknown,
}

/// Addresses of known peers.
#[derive(Debug)]
pub struct PeerFilter {
    filter: CountingFilter,
    hash: RandomState,
}

impl Default for PeerFilter {
    fn default() -> Self {
        Self { filter: CountingFilter::new(PEER_PLACES), hash: RandomState::new() }
    }
}

impl PeerFilter {
    /// Adds a peer by its GID.
    pub fn add(&self, remote: &[u8; 16]) {
        self.filter.add(self.place(remote));
    }

    /// Removes one that was added.
    pub fn remove(&self, remote: &[u8; 16]) {
        self.filter.remove(self.place(remote));
    }

    fn may_contain(&self, remote: &[u8; 16]) -> bool {
        self.filter.may_contain(self.place(remote))
    }

    fn place(&self, remote: &[u8; 16]) -> usize {
        self.hash.hash_one(remote) as usize
    }
}

/// By these workers tell datagrams apart. The control thread writes them.
#[derive(Clone, Debug, Default)]
pub struct MadFilters {
    /// Numbers of this host's connections.
    pub numbers: Arc<NumberFilter>,
    /// Peers that have named one.
    pub peers: Arc<PeerFilter>,
}

/// A line of datagrams.
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

#[derive(Debug)]
struct SharedMads {
    answers: MadLine,
    of_known: MadLine,
    of_strangers: MadLine,
    about_unknown: MadLine,
    doorbell: EventFd,
    filters: MadFilters,
    hash: RandomState,
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

/// One receiver, and a sender for each of `workers`.
///
/// # Errors
/// The kernel's, when it gives no eventfd.
pub fn mads(workers: usize) -> io::Result<(MadReceiver, Vec<MadSender>)> {
    let doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let shared = Arc::new(SharedMads {
        answers: MadLine::new(ANSWERS),
        of_known: MadLine::new(OF_KNOWN),
        of_strangers: MadLine::new(OF_STRANGERS),
        about_unknown: MadLine::new(ABOUT_UNKNOWN),
        doorbell,
        filters: MadFilters::default(),
        hash: RandomState::new(),
    });
    let senders = (0..workers).map(|_| MadSender { shared: Arc::clone(&shared), unannounced: false }).collect();
    Ok((MadReceiver { shared }, senders))
}

impl SharedMads {
    fn share_of(&self, mad: &ReceivedMad) -> u8 {
        self.hash.hash_one(mad.remote) as u8
    }

    fn line_of(&self, mad: &ReceivedMad) -> &MadLine {
        if self.filters.numbers.may_be_named(&mad.bytes) {
            &self.answers
        } else if !is_request(&mad.bytes) {
            &self.about_unknown
        } else if self.filters.peers.may_contain(&mad.remote) {
            &self.of_known
        } else {
            &self.of_strangers
        }
    }

    /// The most useful first.
    fn lines(&self) -> [&MadLine; 4] {
        [&self.answers, &self.of_known, &self.of_strangers, &self.about_unknown]
    }
}

impl MadSender {
    /// Passes a datagram to the control thread.
    ///
    /// # Errors
    /// [`MadDrop`]: the datagram is dropped.
    pub fn push(&mut self, mad: ReceivedMad) -> Result<(), MadDrop> {
        let line = self.shared.line_of(&mad);
        let is_about_unknown = std::ptr::eq(line, &raw const self.shared.about_unknown);
        line.push(self.shared.share_of(&mad), mad)
            .map_err(|why| if is_about_unknown { MadDrop::AboutUnknown } else { why })?;
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
    pub fn filters(&self) -> &MadFilters {
        &self.shared.filters
    }

    /// Takes the datagrams that wait. Peers can send without end, so it takes no more of a line than
    /// that holds; if others wait then the fd stays readable.
    pub fn drain(&self, mut on_mad: impl FnMut(ReceivedMad)) {
        // Before popping, so that none is overlooked. EAGAIN when nothing was announced.
        let _ = self.shared.doorbell.read();
        for line in self.shared.lines() {
            for _ in 0..line.queue.capacity() {
                let Some(mad) = line.pop() else { break };
                on_mad(mad);
            }
        }
        if self.shared.lines().iter().any(|line| !line.queue.is_empty()) {
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
    use roced_cm::wire::Attribute;

    use super::*;

    /// A datagram that names nothing, from one of many hosts.
    fn unknown(host: u16, number: u8) -> ReceivedMad {
        let [high, low] = host.to_be_bytes();
        let mut bytes = [number; MAD_BYTES];
        bytes[16..18].copy_from_slice(&Attribute::Rtu.number().to_be_bytes());
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

    fn request(host: u16, number: u8) -> ReceivedMad {
        let mut mad = unknown(host, number);
        mad.bytes[16..18].copy_from_slice(&Attribute::Req.number().to_be_bytes());
        mad
    }

    fn new(workers: usize) -> (MadReceiver, Vec<MadSender>) {
        mads(workers).expect("an eventfd")
    }

    fn taken(receiver: &MadReceiver) -> Vec<ReceivedMad> {
        let mut taken = Vec::new();
        receiver.drain(|mad| taken.push(mad));
        taken
    }

    #[test]
    fn a_flood_of_one_address_takes_its_share_alone() {
        let (receiver, mut senders) = new(2);
        let flood: Vec<_> = (0..400).map(|number| senders[0].push(request(1, number as u8))).collect();
        assert_eq!(flood.iter().filter(|pushed| pushed.is_ok()).count(), OF_STRANGERS / SHARE_PART);
        assert_eq!(flood.last(), Some(&Err(MadDrop::ShareFull)));
        let share = |host| receiver.shared.share_of(&request(host, 0));
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        assert_eq!(senders[1].push(request(other, 7)), Ok(()));
        let taken = taken(&receiver);
        assert_eq!((taken.len(), taken.last()), (OF_STRANGERS / SHARE_PART + 1, Some(&request(other, 7))));
        // Its share is free again.
        assert_eq!(senders[1].push(request(1, 0)), Ok(()));
    }

    /// Every address floods with requests and with datagrams about connections that do not exist,
    /// also in the name of a known peer: that one's request and answer have room, and come first.
    #[test]
    fn a_flood_of_all_addresses_leaves_known_peers_and_answers_room() {
        let (receiver, mut senders) = new(1);
        let filters = receiver.filters().clone();
        let known = request(1, 1);
        filters.peers.add(&known.remote);
        let mut drops = [0; 2];
        for host in 1..=u16::MAX {
            for mad in [request(host, 0), unknown(host, 0), unknown(1, 0)] {
                match senders[0].push(mad) {
                    Ok(()) => {}
                    Err(MadDrop::AboutUnknown) => drops[0] += 1,
                    Err(MadDrop::QueueFull | MadDrop::ShareFull) => drops[1] += 1,
                }
            }
            // Those that are known by chance are too few to matter while the control thread turns.
            if receiver.shared.of_known.queue.len() > 100 {
                assert!(taken(&receiver).len() > 100);
            }
        }
        assert!(drops.iter().all(|drops| *drops > 10_000), "{drops:?}");
        let _ = taken(&receiver);
        for host in 2..5000 {
            let _ =
                (senders[0].push(request(host, 0)), senders[0].push(unknown(1, 0)), senders[0].push(unknown(host, 0)));
        }
        assert_eq!(senders[0].push(known), Ok(()));
        let first = taken(&receiver);
        let at = first.iter().position(|mad| *mad == known).expect("it is there");
        assert!(at < OF_KNOWN && first.len() > OF_STRANGERS, "{at} of {}", first.len());
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
        assert_eq!(pushed, OF_STRANGERS);
        taken(&receiver);
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
        let numbers: Vec<u8> = taken(&receiver).iter().map(|mad| mad.bytes[0]).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "none is left");
        senders[0].announce();
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "announced once");
        // A peer that sends as fast as they are taken.
        let mut taken = 0;
        senders[0].push(request(1, 0)).expect("room");
        receiver.drain(|mad| {
            taken += 1;
            senders[0].push(mad).expect("room");
        });
        assert_eq!((taken, receiver.shared.doorbell.read()), (OF_STRANGERS, Ok(1)));
    }

    /// 256 addresses, each with a hash of its own start: the key is random.
    #[test]
    fn shares_differ_from_start_to_start() {
        let shares = || {
            let (receiver, _) = new(0);
            (0..256).map(|host| receiver.shared.share_of(&request(host, 0))).collect::<Vec<_>>()
        };
        assert_ne!(shares(), shares());
    }
}
