//! The sending half of a queue: TX ring, completion ring, and the chunks that go round between
//! them.
#![expect(unsafe_code, reason = "writes chunks and gives them to the kernel")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, send},
};
use roced_transport::io::{Abort, EmitError, FrameMut, SEGMENTS_MAX};
use xsk_rs::{CompQueue, TxQueue, umem::frame::FrameDesc};

use super::umem::Umem;

/// System calls that one flush makes at most. In copy mode a kernel that does not know
/// `XDP_MAX_TX_SKB_BUDGET` sends 32 descriptors in each: this many empty a burst of 512.
const KICKS_MAX: usize = 16;

/// Counters of transmission since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransmitCounters {
    /// Frames written and queued for the TX ring.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Times that a frame found no free chunk.
    pub full: u64,
    /// Times that a frame found too many bytes before it.
    pub ahead: u64,
    /// System calls made to have frames sent.
    pub kicks: u64,
    /// Those of them after which the kernel left frames for later.
    pub kicks_cut_short: u64,
    /// Those that failed: the interface is down or gone.
    pub kicks_failed: u64,
}

/// Sending chunks owned by roced; the kernel has the others.
#[derive(Debug)]
pub(super) struct Transmit {
    umem: Umem,
    tx: TxQueue,
    completion: CompQueue,
    ring_entries: u32,
    /// The first `free_count` are chunks to be written; the last one freed is the first one used
    /// again, while it is in the cache.
    free: Box<[FrameDesc]>,
    free_count: usize,
    /// Written, not in the TX ring yet.
    queued: Vec<FrameDesc>,
    /// Bytes of frames that were written and have not come back, and the most with which a frame
    /// finds room.
    ahead_bytes: usize,
    ahead_max: usize,
    /// A frame has found too many since the last flush, or between the two before it.
    found_ahead: bool,
    waits_for_ahead: bool,
    /// Bytes in each sending chunk, by its number.
    written: Box<[u16]>,
    /// The last system call failed, and trying again without a new frame would only burn time.
    stalled: bool,
    counters: TransmitCounters,
}

impl Transmit {
    /// Takes `chunks` over.
    ///
    /// # Panics
    /// With more chunks than the TX ring has entries: a written frame might find no room.
    ///
    /// # Safety
    /// `tx` and `completion` belong to a socket on `umem`, `chunks` are its sending chunks,
    /// `ring_entries` is the size of the TX ring, and no other code has any of them.
    pub(super) unsafe fn new(
        umem: Umem,
        tx: TxQueue,
        completion: CompQueue,
        ring_entries: u32,
        chunks: Vec<FrameDesc>,
    ) -> Self {
        assert!(chunks.len() <= ring_entries as usize, "every chunk finds room in the TX ring");
        let written = chunks.iter().map(|chunk| umem.number(chunk) + 1).max().unwrap_or(0);
        Self {
            umem,
            tx,
            completion,
            ring_entries,
            free_count: chunks.len(),
            queued: Vec::with_capacity(chunks.len()),
            ahead_bytes: 0,
            ahead_max: usize::MAX,
            found_ahead: false,
            waits_for_ahead: false,
            written: vec![0; written].into_boxed_slice(),
            free: chunks.into_boxed_slice(),
            stalled: false,
            counters: TransmitCounters::default(),
        }
    }

    /// Has `fill` write a frame of `frame_bytes`; [`Self::flush`] sends it.
    ///
    /// # Errors
    /// [`EmitError::Full`] before `fill` ran, [`EmitError::Aborted`] when it gave up.
    ///
    /// # Panics
    /// When the frame needs more than [`SEGMENTS_MAX`] chunks, or `fill` leaves some of it
    /// unwritten.
    #[inline]
    pub(super) fn emit(
        &mut self,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let usable = self.umem.usable_bytes();
        let chunks = frame_bytes.div_ceil(usable);
        assert!((1..=SEGMENTS_MAX).contains(&chunks), "a frame of {frame_bytes} bytes in chunks of {usable}");
        if self.free_count < chunks || self.ahead_bytes >= self.ahead_max {
            self.reclaim();
            // Behind a call that failed only a new frame has those in the ring sent.
            if self.ahead_bytes >= self.ahead_max && !self.stalled {
                self.found_ahead = true;
                self.counters.ahead += 1;
                return Err(EmitError::Full);
            } else if self.free_count < chunks {
                self.counters.full += 1;
                return Err(EmitError::Full);
            }
        }
        let (umem, written) = (&self.umem, &mut self.written);
        let descriptors = &mut self.free[self.free_count - chunks..self.free_count];
        let mut left = frame_bytes;
        let mut frame = FrameMut::over(descriptors.iter_mut().map(|descriptor| {
            let now = left.min(usable);
            left -= now;
            written[umem.number(descriptor)] = now as u16;
            // SAFETY: a free descriptor is that of a sending chunk (`new`) that was never sent or
            // came back by the completion ring (`reclaim`), and it is in the TX ring only after
            // `frame` is gone (`flush`).
            unsafe { umem.to_send(descriptor, now, left > 0) }
        }));
        fill(&mut frame).map_err(|Abort| EmitError::Aborted)?;
        assert_eq!(frame.remaining(), 0, "a frame is written to its end: bytes of an earlier frame must not leave");
        self.queued.extend_from_slice(&self.free[self.free_count - chunks..self.free_count]);
        self.free_count -= chunks;
        self.ahead_bytes += frame_bytes;
        self.counters.frames += 1;
        self.counters.bytes += frame_bytes as u64;
        Ok(())
    }

    /// A frame waits until those before it have left, as of the last flush: nothing tells when.
    pub(super) const fn waits_for_ahead(&self) -> bool {
        self.waits_for_ahead && self.ahead_bytes > 0 && !self.stalled
    }

    /// See [`Wire::limit_ahead`](roced_transport::io::Wire::limit_ahead).
    pub(super) fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_max = bytes;
    }

    /// Puts written frames into the TX ring, makes the kernel send them if it asks for that, and
    /// takes back sent chunks.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.waits_for_ahead = core::mem::take(&mut self.found_ahead);
        if !self.queued.is_empty() {
            // SAFETY: these are written chunks of this socket's UMEM, no slice of them lives, and
            // they are forgotten below.
            let taken = unsafe { self.tx.produce(&self.queued) };
            assert_eq!(taken, self.queued.len(), "the TX ring has an entry for every chunk");
            self.queued.clear();
            self.stalled = false;
        }
        if self.is_waiting() {
            self.kick();
        }
        if self.free_count < self.free.len() {
            self.reclaim();
        }
    }

    /// Whether frames wait for a system call of ours. False, too, when that call failed: then only
    /// a new frame tries again.
    pub(super) fn has_pending(&mut self) -> bool {
        !self.queued.is_empty() || self.is_waiting()
    }

    /// Counters so far.
    pub(super) fn counters(&self) -> &TransmitCounters {
        &self.counters
    }

    /// Whether descriptors are in the TX ring that the kernel will not look at by itself.
    fn is_waiting(&mut self) -> bool {
        !self.stalled && self.in_ring() > 0 && self.tx.needs_wakeup()
    }

    /// Descriptors in the TX ring that the kernel has not taken.
    fn in_ring(&mut self) -> u32 {
        self.ring_entries - self.tx.nb_free_exact()
    }

    /// Has the kernel send. It stops early when it has sent enough for one call (then it is called
    /// again), when the socket's send buffer is full of frames that the driver has not sent yet, or
    /// the driver is (then the next poll iteration calls again).
    fn kick(&mut self) {
        for _ in 0..KICKS_MAX {
            let before = self.in_ring();
            self.counters.kicks += 1;
            match send(self.tx.fd().as_raw_fd(), &[], MsgFlags::MSG_DONTWAIT) {
                Ok(_) => return,
                Err(Errno::EAGAIN) if self.in_ring() < before => {}
                Err(Errno::EAGAIN | Errno::EBUSY | Errno::ENOBUFS | Errno::EINTR) => {
                    self.counters.kicks_cut_short += 1;
                    return;
                }
                Err(_) => {
                    self.counters.kicks_failed += 1;
                    self.stalled = true;
                    return;
                }
            }
        }
    }

    /// Takes back the chunks of frames that were sent.
    fn reclaim(&mut self) {
        let room = &mut self.free[self.free_count..];
        // SAFETY: a returned chunk is ours again, and checked to be a sending chunk of `self.umem`
        // before it is used.
        let count = unsafe { self.completion.consume(room) };
        self.umem.check_sent(&room[..count]);
        let bytes = room[..count].iter().map(|sent| usize::from(self.written[self.umem.number(sent)]));
        self.ahead_bytes -= bytes.sum::<usize>();
        self.free_count += count;
    }

    /// Readable when frames are there.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the socket's, which lives as long as `self.tx`, and the borrow
        // ends before that.
        unsafe { BorrowedFd::borrow_raw(self.tx.fd().as_raw_fd()) }
    }
}
