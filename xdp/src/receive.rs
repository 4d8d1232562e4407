//! The receiving half of a queue: fill ring, RX ring, and the chunks that go round between them.
#![expect(unsafe_code, reason = "gives chunks to the kernel and reads the ones it gives back")]

use roced_transport::io::{SEGMENTS_MAX, Segments};
use xsk_rs::{FillQueue, RxQueue, umem::frame::FrameDesc};

use super::umem::Umem;

/// Descriptors taken from the RX ring at a time. A guess: enough to make a ring operation cheap,
/// few enough for the frames to be in the cache still when they are read.
const BATCH: usize = 64;

/// Counters of reception since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceiveCounters {
    /// Frames handed on.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames dropped for lying in more than [`SEGMENTS_MAX`] chunks.
    pub too_long: u64,
}

/// Receiving chunks owned by roced; the kernel has the others.
#[derive(Debug)]
pub(super) struct Receive {
    umem: Umem,
    fill: FillQueue,
    rx: RxQueue,
    /// Descriptors in order of arrival. The first `held` are the beginning of an incomplete frame.
    batch: Box<[FrameDesc; BATCH]>,
    held: usize,
    /// The frame under way is too long: its chunks go back unread until it ends.
    skipping: bool,
    /// Chunks that wait for room in the fill ring.
    spare: Vec<FrameDesc>,
    counters: ReceiveCounters,
}

impl Receive {
    /// Takes `chunks` over and gives as many as it takes to the fill ring.
    ///
    /// # Safety
    /// `fill` and `rx` belong to a socket on `umem`, `chunks` are its receiving chunks, and no
    /// other code has any of them.
    pub(super) unsafe fn new(umem: Umem, fill: FillQueue, rx: RxQueue, chunks: Vec<FrameDesc>) -> Self {
        let mut this = Self {
            umem,
            fill,
            rx,
            batch: Box::new([FrameDesc::default(); BATCH]),
            held: 0,
            skipping: false,
            spare: chunks,
            counters: ReceiveCounters::default(),
        };
        this.refill();
        this
    }

    /// Lends up to `budget` frames to `on_frame`, one after the other, and says how many. Fewer
    /// than `budget` means that the ring was empty.
    pub(super) fn burst(&mut self, budget: usize, mut on_frame: impl FnMut(&Segments<'_>)) -> usize {
        let mut frames = 0;
        while frames < budget {
            let end = self.held + self.take(budget - frames);
            if end == self.held {
                break;
            }
            frames += self.hand_on(end, &mut on_frame);
        }
        frames
    }

    /// Takes up to `limit` descriptors from the RX ring and puts them behind the held ones. Says
    /// how many.
    fn take(&mut self, limit: usize) -> usize {
        let until = (self.held + limit).min(BATCH);
        // SAFETY: the socket is on `self.umem` (`new`), and that is where the chunks are looked at.
        unsafe { self.rx.consume(&mut self.batch[self.held..until]) }
    }

    /// Hands the whole frames among the first `end` descriptors on, gives their chunks back and
    /// keeps the rest. Says how many frames there were.
    fn hand_on(&mut self, end: usize, on_frame: &mut impl FnMut(&Segments<'_>)) -> usize {
        let mut frames = 0;
        let mut first = 0; // of the frame under way
        for at in self.held..end {
            let more_follows = self.batch[at].has_more_frames();
            if self.skipping {
                self.skipping = more_follows;
                first = at + 1;
            } else if !more_follows {
                self.lend(first, at, on_frame);
                frames += 1;
                first = at + 1;
            } else if at + 1 - first == SEGMENTS_MAX {
                self.counters.too_long += 1;
                self.skipping = true;
                first = at + 1;
            }
        }
        self.spare.extend_from_slice(&self.batch[..first]);
        self.batch.copy_within(first..end, 0);
        self.held = end - first;
        self.refill();
        frames
    }

    /// Lends the frame in the descriptors `first` to `last`, at most [`SEGMENTS_MAX`].
    #[inline]
    fn lend(&mut self, first: usize, last: usize, on_frame: &mut impl FnMut(&Segments<'_>)) {
        let mut segments: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
        let descriptors = &self.batch[first..=last];
        for (segment, descriptor) in segments.iter_mut().zip(descriptors) {
            // SAFETY: the descriptor came from the RX ring of this UMEM's socket (`take`) and goes
            // to the fill ring only after the whole batch was handed on (`hand_on`), when
            // segments no longer live.
            *segment = unsafe { self.umem.received(descriptor) };
            self.counters.bytes += segment.len() as u64;
        }
        self.counters.frames += 1;
        on_frame(&segments[..descriptors.len()]);
    }

    /// Gives spare chunks to the kernel, as many as the fill ring has room for.
    fn refill(&mut self) {
        let wanted = self.spare.len() as u32;
        if wanted == 0 {
            return;
        }
        // The ring takes all offered descriptors or none, so it is offered as many as it has room
        // for.
        let room = self.fill.nb_free(wanted).min(wanted) as usize;
        let keep = self.spare.len() - room;
        // SAFETY: the chunks are this socket's UMEM's and ours (`new`, `take`), no slice of them
        // lives (`hand_on`), and they are forgotten in the next line.
        let given = unsafe { self.fill.produce(&self.spare[keep..]) };
        assert_eq!(given, room, "the fill ring had room for {room} chunks");
        self.spare.truncate(keep);
    }

    /// Asks the driver to look at the fill ring again, if it wants to be asked: zero-copy drivers
    /// do when it ran empty.
    pub(super) fn wake_driver(&mut self) {
        if self.fill.needs_wakeup() {
            // An error here is one of poll(2) itself, and the next poll iteration asks again.
            let _ = self.fill.wakeup(self.rx.fd_mut(), 0);
        }
    }

    /// Whether descriptors wait in the RX ring.
    pub(super) fn has_frames(&mut self) -> bool {
        self.rx.nb_avail(1) > 0
    }

    /// Chunks that wait in the RX ring.
    pub(super) fn waiting(&mut self) -> u32 {
        self.rx.nb_avail_exact()
    }

    /// The kernel's own counters of this socket.
    pub(super) fn statistics(&self) -> std::io::Result<xsk_rs::socket::XdpStatistics> {
        self.rx.fd().xdp_statistics()
    }

    /// Counters so far.
    pub(super) fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }
}
