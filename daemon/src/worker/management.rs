//! Management datagrams between workers and the control thread: queue pair 1 of every device.
//!
//! ```text
//!   endpoint ── poll_management ──► MadSender ──────► MadReceiver      control thread
//!   endpoint ◄─ send_management ─── worker ◄── OutgoingMads ◄── Workers::send_mad
//! ```
//!
//! All queues are bounded and lock-free. A received datagram without room is dropped and counted:
//! connection managers repeat those that were lost. One to be sent goes back to the control thread.
//! Of the received ones, a peer has a share of the queue, so that a flood from one address leaves
//! room for others.

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
use roced_transport::{
    clock::Nanos,
    management::{MAD_BYTES, ManagementDatagram},
    wire::{Path, Roce},
};
use roced_types::DeviceId;

/// Received datagrams that wait for the control thread, of all workers: 1.3 MiB. A flood at 100,000
/// a second takes 40 ms to fill it, in which even a busy machine gives the control thread a turn.
const RECEIVED: usize = 4096;

/// Received datagrams of one share that wait at a time.
const SHARE: u32 = 256;

/// Shares. Each address has one of them for requests and one for all other datagrams, chosen by a
/// hash with a random key, so that a peer cannot pick addresses that share with another.
const SHARES: usize = 256;

/// Attribute IDs of REQ and SIDR_REQ (IBTA v1 table 98).
const REQUESTS: [[u8; 2]; 2] = [[0, 0x10], [0, 0x17]];

/// Datagrams that wait for a worker to send them: 110 KiB. A guess.
const OUTGOING: usize = 256;

/// How long an endpoint may have no room before its datagrams are dropped. A guess: a NIC that
/// sends at all has room sooner.
const HELD_MAX: Nanos = Nanos(20_000_000);

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

/// A management datagram that a worker sends from queue pair 1 to that of the other end of the
/// path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingMad {
    /// The device that sends it.
    pub device: DeviceId,
    /// Its path.
    pub path: Path,
    /// The datagram.
    pub bytes: [u8; MAD_BYTES],
}

/// Reason why a received datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadDrop {
    /// As many wait as the queue holds.
    QueueFull,
    /// As many of the peer's share wait as it may have.
    ShareFull,
}

#[derive(Debug)]
struct SharedMads {
    /// Each with the number of its share.
    queue: ArrayQueue<(u8, ReceivedMad)>,
    doorbell: EventFd,
    /// Waiting datagrams of each share.
    waiting: [AtomicU32; SHARES],
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
        queue: ArrayQueue::new(RECEIVED),
        doorbell,
        waiting: [const { AtomicU32::new(0) }; SHARES],
        hash: RandomState::new(),
    });
    let senders = (0..workers).map(|_| MadSender { shared: Arc::clone(&shared), unannounced: false }).collect();
    Ok((MadReceiver { shared }, senders))
}

impl SharedMads {
    /// Requests of a peer have another share than everything else: answers in the name of a peer,
    /// which cost less to forge, leave its requests room.
    fn share_of(&self, mad: &ReceivedMad) -> u8 {
        let is_request = REQUESTS.contains(&[mad.bytes[16], mad.bytes[17]]);
        self.hash.hash_one((mad.remote, is_request)) as u8
    }

    /// Atomics count; the queue alone orders the memory of datagrams.
    fn release(&self, share: u8) {
        self.waiting[usize::from(share)].fetch_sub(1, Ordering::Relaxed);
    }
}

impl MadSender {
    /// Passes a datagram to the control thread.
    ///
    /// # Errors
    /// [`MadDrop`]: the datagram is dropped.
    pub fn push(&mut self, mad: ReceivedMad) -> Result<(), MadDrop> {
        let share = self.shared.share_of(&mad);
        if self.shared.waiting[usize::from(share)].fetch_add(1, Ordering::Relaxed) >= SHARE {
            self.shared.release(share);
            return Err(MadDrop::ShareFull);
        }
        if self.shared.queue.push((share, mad)).is_err() {
            self.shared.release(share);
            return Err(MadDrop::QueueFull);
        }
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
    /// Takes the datagrams that wait. Peers can send without end, so it takes no more than the
    /// queue holds; then the fd stays readable.
    pub fn drain(&self, mut on_mad: impl FnMut(ReceivedMad)) {
        // Before popping, so that none is overlooked. EAGAIN when nothing was announced.
        let _ = self.shared.doorbell.read();
        for _ in 0..RECEIVED {
            let Some((share, mad)) = self.shared.queue.pop() else { return };
            self.shared.release(share);
            on_mad(mad);
        }
        self.ring();
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

/// Datagrams from the control thread to one worker. [`Workers::send_mad`] adds to it and wakes the
/// worker.
///
/// [`Workers::send_mad`]: super::workers::Workers::send_mad
#[derive(Debug)]
pub struct OutgoingMads {
    queue: ArrayQueue<OutgoingMad>,
}

impl OutgoingMads {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { queue: ArrayQueue::new(OUTGOING) })
    }

    /// Adds a datagram.
    #[expect(clippy::result_large_err, reason = "a datagram without room goes back to its sender")]
    pub(super) fn push(&self, mad: OutgoingMad) -> Result<(), OutgoingMad> {
        self.queue.push(mad)
    }

    /// Takes a datagram. Costs two loads when there is none.
    #[inline]
    pub(super) fn pop(&self) -> Option<OutgoingMad> {
        if self.is_empty() { None } else { self.queue.pop() }
    }

    /// No datagram waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The worker's end of [`OutgoingMads`]: takes no more than endpoints have room for.
#[derive(Debug)]
pub(super) struct MadOutlet {
    queue: Arc<OutgoingMads>,
    /// Without room in its endpoint; those behind it wait as well.
    held: Option<OutgoingMad>,
    /// Since when each endpoint of the worker has had no room.
    full_since: Vec<Option<Nanos>>,
}

impl MadOutlet {
    pub(super) fn new(queue: Arc<OutgoingMads>, endpoints: usize) -> Self {
        Self { queue, held: None, full_since: vec![None; endpoints] }
    }

    /// Takes the next datagram.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<OutgoingMad> {
        self.held.take().or_else(|| self.queue.pop())
    }

    /// Endpoint number `at` of the worker had room.
    pub(super) fn on_room(&mut self, at: usize) {
        self.full_since[at] = None;
    }

    /// Endpoint number `at` had no room for a datagram, which is the next one again; false if it
    /// has had none for long: the datagram is dropped, and others do not wait for it.
    pub(super) fn hold(&mut self, at: usize, mad: OutgoingMad, now: Nanos) -> bool {
        let since = *self.full_since[at].get_or_insert(now);
        let may_wait = now - since < HELD_MAX;
        if may_wait {
            self.held = Some(mad);
        }
        may_wait
    }

    /// No datagram waits but for room, which is looked for when the endpoint has sent.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_some() || self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use roced_transport::{io::Egress, wire::PathSpec};

    use super::*;

    fn mad(host: u16, number: u8) -> ReceivedMad {
        let [high, low] = host.to_be_bytes();
        ReceivedMad {
            device: DeviceId(0),
            vlan: None,
            local: [0; 16],
            remote: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low],
            traffic_class: 0,
            is_roce_v1: false,
            bytes: [number; MAD_BYTES],
        }
    }

    #[test]
    fn a_flood_of_one_address_takes_its_share_alone() {
        let (receiver, mut senders) = mads(2).expect("an eventfd");
        let flood: Vec<_> = (0..300).map(|number| senders[0].push(mad(1, number as u8))).collect();
        assert_eq!(flood.iter().filter(|pushed| pushed.is_ok()).count(), SHARE as usize);
        assert_eq!(flood.last(), Some(&Err(MadDrop::ShareFull)));
        let share = |host| receiver.shared.share_of(&mad(host, 0));
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        assert_eq!(senders[1].push(mad(other, 7)), Ok(()));
        let mut request = mad(1, 0);
        request.bytes[16..18].copy_from_slice(&REQUESTS[0]);
        let shares = [&request, &mad(1, 0)].map(|mad| receiver.shared.share_of(mad));
        let is_alike = shares[0] == shares[1];
        assert_eq!(senders[1].push(request), if is_alike { Err(MadDrop::ShareFull) } else { Ok(()) });
        let mut taken = Vec::new();
        receiver.drain(|mad| taken.push(mad));
        let requests = usize::from(!is_alike);
        assert_eq!((taken.len(), taken[SHARE as usize]), (SHARE as usize + 1 + requests, mad(other, 7)));
        // Its share is free again.
        assert_eq!(senders[1].push(mad(1, 0)), Ok(()));
    }

    #[test]
    fn a_full_queue_drops_and_a_drop_takes_no_share() {
        let (receiver, mut senders) = mads(1).expect("an eventfd");
        let mut pushed = 0;
        let full = (0..=u16::MAX).find(|host| match senders[0].push(mad(*host, 0)) {
            Ok(()) => {
                pushed += 1;
                false
            }
            Err(why) => why == MadDrop::QueueFull,
        });
        assert!(full.is_some(), "many hosts fill the queue");
        assert_eq!(pushed, RECEIVED);
        receiver.drain(|_| {});
        assert!(receiver.shared.waiting.iter().all(|waiting| waiting.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_drain_is_bounded_and_the_fd_is_readable_while_datagrams_wait() {
        let (receiver, mut senders) = mads(1).expect("an eventfd");
        for number in 0..10 {
            senders[0].push(mad(1, number)).expect("room");
        }
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "not announced");
        senders[0].announce();
        let mut taken = Vec::new();
        receiver.drain(|mad| taken.push(mad.bytes[0]));
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "none is left");
        senders[0].announce();
        assert_eq!(receiver.shared.doorbell.read(), Err(Errno::EAGAIN), "announced once");
        // A peer that sends as fast as they are taken.
        let mut taken = 0;
        senders[0].push(mad(1, 0)).expect("room");
        receiver.drain(|mad| {
            taken += 1;
            senders[0].push(mad).expect("room");
        });
        assert_eq!((taken, receiver.shared.doorbell.read()), (RECEIVED, Ok(1)));
    }

    #[test]
    fn a_datagram_without_room_goes_back_to_its_sender() {
        let outgoing = OutgoingMads::new();
        let spec = PathSpec {
            via: Egress::Nic { flow: 0 },
            source_mac: [2; 6],
            dest_mac: [4; 6],
            vlan: None,
            source: [1; 16],
            destination: [2; 16],
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V1,
        };
        let path = Path::new(&spec).expect("IPv6");
        let mad = |number| OutgoingMad { device: DeviceId(0), path, bytes: [number; MAD_BYTES] };
        for _ in 0..OUTGOING {
            outgoing.push(mad(1)).expect("room");
        }
        assert_eq!(outgoing.push(mad(2)), Err(mad(2)));
        assert_eq!(outgoing.pop(), Some(mad(1)));
        assert_eq!(outgoing.push(mad(2)), Ok(()));
    }

    /// 256 addresses, each with a hash of its own start: the key is random.
    #[test]
    fn shares_differ_from_start_to_start() {
        let shares = || {
            let (receiver, _) = mads(0).expect("an eventfd");
            (0..256).map(|host| receiver.shared.share_of(&mad(host, 0))).collect::<Vec<_>>()
        };
        assert_ne!(shares(), shares());
    }
}
