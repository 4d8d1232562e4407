//! Frames from one worker to another, or to itself, in packet buffers of the sending worker.
//!
//! There are two kinds:
//!
//! * **forwarded**: RSS delivered a frame to a queue of a worker that does not own its queue pair.
//!   Without room it is dropped and counted, as by a NIC.
//! * **handed over** (local loopback): the peer of a queue pair belongs to this daemon (same worker,
//!   another worker, another device). Without room the sender tries again; nothing is lost. Within
//!   one endpoint payload is borrowed, and only the headers are in the buffer.
//!
//! ```text
//!   sender's pool ──fill──► receiver's inbox ──on_frame──► sender's returns ──► sender's pool
//!          └──── to itself: a plain queue, no atomics ────┘
//! ```
//!
//! Each worker has a fixed number of buffers of each kind, and every inbox has room for all of
//! them: a push never fails, because the pool is the bound. A slow receiver therefore delays only
//! its own senders, up to their own buffers.

use std::{collections::VecDeque, sync::Arc};

use crossbeam::queue::ArrayQueue;
use roced_transport::io::{Abort, BorrowedPayload, EmitError, FrameMut, FrameOrigin, Segments};
use roced_types::{DeviceId, SGE_MAX};

use super::wake::Waker;

/// Maximum length of a frame in bytes: a jumbo frame with its Ethernet header and two VLAN tags,
/// rounded up.
pub const FRAME_BYTES_MAX: usize = 9216;

/// Number of buffers of each kind of a worker. At path MTU 4096 about 1 MB in flight, which stays
/// in cache; a guess.
pub const PACKET_BUFFERS: usize = 256;

/// Maximum number of bytes borrowed in a poll iteration: some tens of microseconds of copying.
const BORROWED_BYTES_PER_POLL: usize = 256 << 10;

/// How a frame came to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// A NIC queue of another worker.
    Forwarded,
    /// A queue pair of this daemon.
    HandedOver,
}

/// Buffer with a frame in transit, which returns to its sender.
#[derive(Debug)]
pub struct PacketBuffer {
    home: usize,
    kind: BufferKind,
    origin: FrameOrigin,
    group_of: Option<DeviceId>,
    length: usize,
    bytes: Box<[u8]>,
    /// Borrowed payload; with room for as many pieces as a work request may have.
    borrowed: Vec<BorrowedPayload>,
}

impl PacketBuffer {
    fn new(home: usize, kind: BufferKind) -> Self {
        let bytes = vec![0; FRAME_BYTES_MAX].into_boxed_slice();
        let origin = match kind {
            BufferKind::Forwarded => FrameOrigin::Wire,
            BufferKind::HandedOver => FrameOrigin::Local,
        };
        Self { home, kind, origin, group_of: None, length: 0, bytes, borrowed: Vec::with_capacity(SGE_MAX as usize) }
    }

    /// Frame, without borrowed payload.
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Payload that the frame borrows.
    pub fn borrowed(&self) -> &[BorrowedPayload] {
        &self.borrowed
    }

    fn borrowed_bytes(&self) -> usize {
        self.borrowed.iter().map(BorrowedPayload::len).sum()
    }

    /// How the frame came to this worker.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// Origin of the frame. One that a queue pair of this daemon sent to a group, and that another
    /// worker forwarded, is local.
    pub fn origin(&self) -> FrameOrigin {
        self.origin
    }

    /// Device, if the frame is for a multicast group of it. Otherwise the destination QPN
    /// determines the owner.
    pub fn group_of(&self) -> Option<DeviceId> {
        self.group_of
    }
}

#[derive(Debug)]
struct Post {
    inbox: ArrayQueue<PacketBuffer>,
    returns: ArrayQueue<PacketBuffer>,
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Pool(Vec<PacketBuffer>);

impl Pool {
    fn new(home: usize, kind: BufferKind) -> Self {
        Self((0..PACKET_BUFFERS).map(|_| PacketBuffer::new(home, kind)).collect())
    }
}

/// Counters of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoffCounters {
    /// Frames that arrived on a queue of this worker and belong to another worker.
    pub forwarded: u64,
    /// Such frames that were dropped because all buffers were in use.
    pub forward_dropped: u64,
    /// Frames that queue pairs of this worker sent to queue pairs of this daemon.
    pub handed_over: u64,
    /// Number of times that such a frame had to wait because all buffers were in use.
    pub hand_over_full: u64,
    /// Such frames without a possible owner in this daemon.
    pub hand_over_lost: u64,
    /// Frames that other workers forwarded to this one.
    pub forwarded_in: u64,
    /// Frames that other workers handed over to this one.
    pub handed_over_in: u64,
}

impl HandoffCounters {
    /// All names with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("forwarded", self.forwarded),
            ("forward_dropped", self.forward_dropped),
            ("forwarded_in", self.forwarded_in),
            ("handed_over", self.handed_over),
            ("handed_over_in", self.handed_over_in),
            ("hand_over_full", self.hand_over_full),
            ("hand_over_lost", self.hand_over_lost),
        ]
        .into_iter()
    }
}

/// One worker's side of the exchange.
#[derive(Debug)]
pub struct Handoff {
    me: usize,
    posts: Arc<[Post]>,
    forward: Pool,
    over: Pool,
    own: VecDeque<PacketBuffer>,
    /// Number of frames in `own` with borrowed payload, and the length of that payload in bytes.
    borrowing: usize,
    borrowed_bytes: usize,
    /// Sender to serve next in [`Self::take_in`].
    own_turn: bool,
    /// Workers with new frames since [`Self::wake_receivers`], one bit each.
    touched: u64,
    counters: HandoffCounters,
}

/// All buffers of this kind are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Creates the exchange among the workers of `wakers`: one side for each worker.
///
/// # Panics
/// With more than 64 workers. There are at most 64 endpoints, and each worker has one.
pub fn handoffs(wakers: &[Arc<Waker>]) -> Vec<Handoff> {
    assert!(wakers.len() <= 64, "a daemon has at most 64 workers");
    let everybody = wakers.len() * PACKET_BUFFERS * 2;
    let posts: Arc<[Post]> = wakers
        .iter()
        .map(|waker| Post {
            inbox: ArrayQueue::new(everybody),
            returns: ArrayQueue::new(PACKET_BUFFERS * 2),
            waker: Arc::clone(waker),
        })
        .collect();
    (0..wakers.len())
        .map(|me| Handoff {
            me,
            posts: Arc::clone(&posts),
            forward: Pool::new(me, BufferKind::Forwarded),
            over: Pool::new(me, BufferKind::HandedOver),
            own: VecDeque::with_capacity(PACKET_BUFFERS),
            borrowing: 0,
            borrowed_bytes: 0,
            own_turn: false,
            touched: 0,
            counters: HandoffCounters::default(),
        })
        .collect()
}

impl Handoff {
    /// Copies a frame that arrived here to worker `to`, which owns its queue pair.
    ///
    /// # Errors
    /// [`Full`] if there is no room, or the frame is longer than [`FRAME_BYTES_MAX`]. The frame is
    /// dropped and counted.
    ///
    /// # Panics
    /// If there is no worker `to`.
    pub fn forward(&mut self, to: usize, frame: &Segments<'_>) -> Result<(), Full> {
        self.copy_to(to, None, FrameOrigin::Wire, frame)
    }

    /// Like [`Self::forward`], to a worker with queue pairs of `device` in the multicast group of
    /// the frame, which has this origin.
    ///
    /// # Errors
    /// As [`Self::forward`].
    ///
    /// # Panics
    /// As [`Self::forward`].
    pub fn forward_to_group(
        &mut self,
        to: usize,
        device: DeviceId,
        origin: FrameOrigin,
        frame: &Segments<'_>,
    ) -> Result<(), Full> {
        self.copy_to(to, Some(device), origin, frame)
    }

    fn copy_to(
        &mut self,
        to: usize,
        group_of: Option<DeviceId>,
        origin: FrameOrigin,
        frame: &Segments<'_>,
    ) -> Result<(), Full> {
        let length = frame.iter().map(|piece| piece.len()).sum::<usize>();
        let packet_buffer = if length <= FRAME_BYTES_MAX { self.take_buffer(BufferKind::Forwarded) } else { None };
        let Some(mut packet_buffer) = packet_buffer else {
            self.counters.forward_dropped += 1;
            return Err(Full);
        };
        let mut at = 0;
        for piece in frame {
            packet_buffer.bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        (packet_buffer.length, packet_buffer.group_of, packet_buffer.origin) = (length, group_of, origin);
        self.counters.forwarded += 1;
        self.deliver(to, packet_buffer);
        Ok(())
    }

    /// Passes a buffer of `frame_bytes` to `fill`, which may borrow payload for a queue pair of its
    /// own endpoint, and gives it to the worker that `owner` returns for the filled frame. A frame
    /// without an owner is lost, as on a network.
    ///
    /// # Errors
    /// [`EmitError::Full`] before `fill` is called, if all buffers are in use or enough payload is
    /// borrowed; [`EmitError::Aborted`] if `fill` aborts.
    ///
    /// # Panics
    /// If `frame_bytes` exceeds [`FRAME_BYTES_MAX`], or the owner does not exist.
    pub fn hand_over(
        &mut self,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
        owner: impl FnOnce(&Segments<'_>) -> Option<usize>,
    ) -> Result<(), EmitError> {
        assert!(frame_bytes <= FRAME_BYTES_MAX, "a frame of {frame_bytes} bytes is longer than any path MTU makes");
        let buffer =
            if self.borrowed_bytes < BORROWED_BYTES_PER_POLL { self.take_buffer(BufferKind::HandedOver) } else { None };
        let Some(mut packet_buffer) = buffer else {
            self.counters.hand_over_full += 1;
            return Err(EmitError::Full);
        };
        let PacketBuffer { bytes, borrowed, .. } = &mut packet_buffer;
        borrowed.clear();
        if fill(&mut FrameMut::with_borrowed(&mut bytes[..frame_bytes], borrowed)).is_err() {
            self.give_back(packet_buffer);
            return Err(EmitError::Aborted);
        }
        (packet_buffer.length, packet_buffer.group_of) = (frame_bytes, None);
        self.counters.handed_over += 1;
        match owner(&[packet_buffer.frame()]) {
            // Borrowed payload does not leave its worker.
            Some(to) if packet_buffer.borrowed.is_empty() || to == self.me => {
                self.borrowing += usize::from(!packet_buffer.borrowed.is_empty());
                self.borrowed_bytes += packet_buffer.borrowed_bytes();
                self.deliver(to, packet_buffer);
            }
            _ => {
                self.counters.hand_over_lost += 1;
                self.give_back(packet_buffer);
            }
        }
        Ok(())
    }

    /// Sends a frame to a multicast group by `send`, which leaves a copy of it in the buffer passed
    /// to it. This worker receives the copy as a frame for a group of `device`.
    ///
    /// # Errors
    /// [`EmitError::Full`] if all buffers are in use; errors of `send`.
    ///
    /// # Panics
    /// As [`Self::hand_over`].
    pub fn loop_back(
        &mut self,
        device: DeviceId,
        frame_bytes: usize,
        send: impl FnOnce(&mut [u8]) -> Result<(), EmitError>,
    ) -> Result<(), EmitError> {
        assert!(frame_bytes <= FRAME_BYTES_MAX, "a frame of {frame_bytes} bytes is longer than any path MTU makes");
        let Some(mut packet_buffer) = self.take_buffer(BufferKind::HandedOver) else {
            self.counters.hand_over_full += 1;
            return Err(EmitError::Full);
        };
        if let Err(error) = send(&mut packet_buffer.bytes[..frame_bytes]) {
            self.give_back(packet_buffer);
            return Err(error);
        }
        (packet_buffer.length, packet_buffer.group_of) = (frame_bytes, Some(device));
        packet_buffer.borrowed.clear();
        self.deliver(self.me, packet_buffer);
        Ok(())
    }

    /// Takes a frame of this worker to itself, while one of them has borrowed payload; the caller
    /// returns it afterward. The caller takes all of them before anything that could invalidate
    /// borrowed payload.
    pub fn take_borrowed(&mut self) -> Option<PacketBuffer> {
        if self.borrowing == 0 {
            return None;
        }
        self.take_own()
    }

    /// Takes the next frame for this worker; the caller returns it afterward. Its own frames and
    /// those of other workers alternate.
    pub fn take_in(&mut self) -> Option<PacketBuffer> {
        self.own_turn = !self.own_turn;
        if self.own_turn {
            self.take_own().or_else(|| self.take_from_others())
        } else {
            self.take_from_others().or_else(|| self.take_own())
        }
    }

    /// Returns a buffer to its worker.
    pub fn give_back(&mut self, packet_buffer: PacketBuffer) {
        if packet_buffer.home == self.me {
            self.keep(packet_buffer);
        } else if self.posts[packet_buffer.home].returns.push(packet_buffer).is_err() {
            unreachable!("there is room for every buffer that its owner has");
        }
    }

    /// Returns true if there are frames for this worker.
    pub fn has_arrivals(&self) -> bool {
        !self.own.is_empty() || !self.posts[self.me].inbox.is_empty()
    }

    /// Wakes sleeping workers with new frames since the last call. Called once per poll iteration,
    /// so that a burst costs one wake-up.
    pub fn wake_receivers(&mut self) {
        while self.touched != 0 {
            let to = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            self.posts[to].waker.wake();
        }
    }

    /// Counters so far.
    pub fn counters(&self) -> &HandoffCounters {
        &self.counters
    }

    fn take_own(&mut self) -> Option<PacketBuffer> {
        let packet_buffer = self.own.pop_front()?;
        self.borrowing -= usize::from(!packet_buffer.borrowed.is_empty());
        self.borrowed_bytes -= packet_buffer.borrowed_bytes();
        Some(packet_buffer)
    }

    fn take_from_others(&mut self) -> Option<PacketBuffer> {
        let inbox = &self.posts[self.me].inbox;
        if inbox.is_empty() {
            return None;
        }
        let packet_buffer = inbox.pop()?;
        match packet_buffer.kind {
            BufferKind::Forwarded => self.counters.forwarded_in += 1,
            BufferKind::HandedOver => self.counters.handed_over_in += 1,
        }
        Some(packet_buffer)
    }

    fn deliver(&mut self, to: usize, packet_buffer: PacketBuffer) {
        if to == self.me {
            self.own.push_back(packet_buffer);
            return;
        }
        self.touched |= 1 << to;
        if self.posts[to].inbox.push(packet_buffer).is_err() {
            unreachable!("an inbox has room for every buffer of every worker");
        }
    }

    fn take_buffer(&mut self, kind: BufferKind) -> Option<PacketBuffer> {
        if self.pool(kind).0.is_empty() {
            while let Some(packet_buffer) = self.posts[self.me].returns.pop() {
                self.keep(packet_buffer);
            }
        }
        self.pool(kind).0.pop()
    }

    fn keep(&mut self, packet_buffer: PacketBuffer) {
        self.pool(packet_buffer.kind).0.push(packet_buffer);
    }

    fn pool(&mut self, kind: BufferKind) -> &mut Pool {
        match kind {
            BufferKind::Forwarded => &mut self.forward,
            BufferKind::HandedOver => &mut self.over,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn ends(count: usize) -> Vec<Handoff> {
        let wakers: Vec<_> = (0..count).map(|_| Arc::new(Waker::new().expect("an eventfd"))).collect();
        handoffs(&wakers)
    }

    fn fill_with(bytes: &[u8]) -> impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort> {
        |frame| {
            frame.put(bytes);
            Ok(())
        }
    }

    #[test]
    fn a_frame_in_pieces_arrives_whole_at_the_other_worker() {
        let mut ends = ends(2);
        ends[0].forward(1, &[&[1, 2], &[], &[3; 9000]]).expect("room");
        let packet_buffer = ends[1].take_in().expect("it arrived");
        assert_eq!(
            (packet_buffer.kind(), packet_buffer.frame().len(), &packet_buffer.frame()[..4]),
            (BufferKind::Forwarded, 9002, &[1, 2, 3, 3][..])
        );
        ends[1].give_back(packet_buffer);
        assert!(!ends[0].has_arrivals() && !ends[1].has_arrivals());
    }

    #[test]
    fn arrivals_from_other_workers_are_counted_by_their_kind() {
        let mut ends = ends(2);
        ends[0].forward(1, &[&[1]]).expect("room");
        for to in [1, 1, 0] {
            ends[0].hand_over(1, fill_with(&[2]), |_| Some(to)).expect("room");
        }
        for end in &mut ends {
            while let Some(packet_buffer) = end.take_in() {
                end.give_back(packet_buffer);
            }
        }
        let arrived = [0, 1].map(|at: usize| (ends[at].counters().forwarded_in, ends[at].counters().handed_over_in));
        assert_eq!(arrived, [(0, 0), (1, 2)], "a frame to the own worker came from no other");
    }

    #[test]
    fn every_buffer_under_way_is_full_and_one_that_came_back_is_room() {
        let mut ends = ends(2);
        for _ in 0..PACKET_BUFFERS {
            ends[0].forward(1, &[&[7]]).expect("room");
        }
        assert_eq!(ends[0].forward(1, &[&[7]]), Err(Full));
        // The other kind has buffers of its own.
        assert_eq!(ends[0].hand_over(1, fill_with(&[1]), |_| Some(1)), Ok(()));
        let packet_buffer = ends[1].take_in().expect("it arrived");
        ends[1].give_back(packet_buffer);
        assert_eq!(ends[0].forward(1, &[&[7]]), Ok(()));
        assert_eq!((ends[0].counters().forwarded, ends[0].counters().forward_dropped), (PACKET_BUFFERS as u64 + 1, 1));
    }

    #[test]
    fn frames_to_the_own_worker_are_bounded_as_well() {
        let mut ends = ends(1);
        let end = &mut ends[0];
        for number in 0..PACKET_BUFFERS {
            end.hand_over(2, fill_with(&(number as u16).to_le_bytes()), |_| Some(0)).expect("room");
        }
        let never = |_: &mut FrameMut<'_>| panic!("fill is not called without room");
        assert_eq!(end.hand_over(2, never, |_| Some(0)), Err(EmitError::Full));
        for number in 0..PACKET_BUFFERS {
            let packet_buffer = end.take_in().expect("in order");
            assert_eq!(
                (packet_buffer.kind(), packet_buffer.frame()),
                (BufferKind::HandedOver, &(number as u16).to_le_bytes()[..])
            );
            end.give_back(packet_buffer);
        }
        assert!(end.take_in().is_none());
        assert_eq!(end.hand_over(1, fill_with(&[0]), |_| Some(0)), Ok(()));
    }

    #[test]
    fn an_aborted_or_undeliverable_frame_costs_no_buffer() {
        let mut ends = ends(1);
        for _ in 0..2 * PACKET_BUFFERS {
            assert_eq!(ends[0].hand_over(1, |_| Err(Abort), |_| Some(0)), Err(EmitError::Aborted));
            assert_eq!(ends[0].hand_over(1, fill_with(&[0]), |_| None), Ok(()));
        }
        assert!(!ends[0].has_arrivals());
        assert_eq!(ends[0].counters().hand_over_lost, 2 * PACKET_BUFFERS as u64);
    }

    #[test]
    fn a_frame_for_a_group_says_of_which_device_and_the_next_in_its_buffer_does_not() {
        let mut ends = ends(2);
        for _ in 0..PACKET_BUFFERS {
            ends[0].forward_to_group(1, DeviceId(5), FrameOrigin::Wire, &[&[1]]).expect("room");
            let sent = ends[0].loop_back(DeviceId(6), 2, |copy| {
                copy.fill(7);
                Ok(())
            });
            assert_eq!(sent, Ok(()));
        }
        assert_eq!(ends[0].loop_back(DeviceId(6), 2, |_| panic!("there is no room")), Err(EmitError::Full));
        for _ in 0..PACKET_BUFFERS {
            let packet_buffer = ends[1].take_in().expect("it arrived");
            assert_eq!(
                (packet_buffer.group_of(), packet_buffer.kind(), packet_buffer.frame()),
                (Some(DeviceId(5)), BufferKind::Forwarded, &[1][..])
            );
            ends[1].give_back(packet_buffer);
            let own = ends[0].take_in().expect("it came back");
            assert_eq!(
                (own.group_of(), own.kind(), own.frame()),
                (Some(DeviceId(6)), BufferKind::HandedOver, &[7, 7][..])
            );
            ends[0].give_back(own);
        }
        assert_eq!(ends[0].loop_back(DeviceId(6), 2, |_| Err(EmitError::Aborted)), Err(EmitError::Aborted));
        ends[0].forward(1, &[&[1]]).expect("room");
        ends[0].hand_over(1, fill_with(&[1]), |_| Some(0)).expect("room");
        let (forwarded, own) = (ends[1].take_in().expect("it arrived"), ends[0].take_in().expect("it came back"));
        assert_eq!((forwarded.group_of(), own.group_of()), (None, None));
    }

    #[test]
    fn a_frame_longer_than_any_buffer_is_dropped_and_counted() {
        let mut ends = ends(2);
        assert_eq!(ends[0].forward(1, &[&[0; FRAME_BYTES_MAX]]), Ok(()));
        assert_eq!(ends[0].forward(1, &[&[0; FRAME_BYTES_MAX], &[0]]), Err(Full));
        assert_eq!(ends[0].counters().forward_dropped, 1);
    }

    #[test]
    fn a_receiver_that_sleeps_is_woken_once_a_turn() {
        let wakers: Vec<_> = (0..2).map(|_| Arc::new(Waker::new().expect("an eventfd"))).collect();
        let mut ends = handoffs(&wakers);
        let pending = || {
            use std::os::fd::AsFd;
            let mut fds = [nix::poll::PollFd::new(wakers[1].as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, 0u8).expect("poll") == 1
        };
        ends[0].forward(1, &[&[1]]).expect("room");
        ends[0].wake_receivers();
        assert!(!pending(), "a worker that is awake is left alone");
        wakers[1].announce_sleep();
        ends[0].forward(1, &[&[1]]).expect("room");
        assert!(!pending(), "only the end of the poll iteration wakes");
        ends[0].wake_receivers();
        assert!(pending());
    }

    #[test]
    fn two_threads_exchange_frames_both_ways_without_loss_or_disorder() {
        const FRAMES: u32 = 20_000;
        fn run(mut end: Handoff) {
            let to = 1 - end.me;
            let (mut sent, mut seen) = (0u32, 0u32);
            while sent < FRAMES || seen < FRAMES {
                if sent < FRAMES && end.hand_over(4, fill_with(&sent.to_le_bytes()), |_| Some(to)).is_ok() {
                    sent += 1;
                }
                match end.take_in() {
                    Some(packet_buffer) => {
                        assert_eq!(packet_buffer.frame(), seen.to_le_bytes());
                        seen += 1;
                        end.give_back(packet_buffer);
                    }
                    None => thread::yield_now(),
                }
            }
        }
        let threads: Vec<_> = ends(2).into_iter().map(|end| thread::spawn(move || run(end))).collect();
        for thread in threads {
            thread.join().expect("every frame arrived in order");
        }
    }
}
