//! One RX and TX queue of an interface, as a worker uses it.

use std::{os::fd::BorrowedFd, sync::Arc};

use roced_steering::PRIORITIES;
use roced_transport::{
    clock::Nanos,
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
};
use tracing::info;

use super::{
    XdpError,
    receive::Receive,
    socket::{self, BoundSocket},
    transmit::Transmit,
};
use crate::{
    NicQueueConfig,
    pause_frames::{GeneratedPauses, PauseGenerator, PausedNeighbor},
    pauses::PauseMap,
    tx_queues::has_tx_queue,
};

/// A bound queue. Its worker owns it; nothing in it is shared with another thread.
#[derive(Debug)]
pub struct NicQueue {
    receive: Receive,
    transmit: Transmit,
    queue: u32,
    zerocopy: bool,
    reason: &'static str,
    frame_bytes_max: usize,
    can_transmit: bool,
    pauses: Option<Arc<PauseMap>>,
    /// [`PauseMap::frames`] when it was last looked at.
    pause_frames: u64,
    /// The words may have been those of before that frame: they are read once more.
    read_again: bool,
    /// Chunks that wait in the RX ring when the kernel has none left.
    rx_chunks: u32,
    generator: Option<PauseGenerator>,
}

impl NicQueue {
    /// Binds a socket to the queue. It gets frames once [`super::XdpProgram::bind_socket`] has it.
    ///
    /// Waits, but no longer than [`NicQueueConfig::busy_deadline`].
    ///
    /// # Errors
    /// [`XdpError`], when sizes do not fit each other, the kernel refuses or the queue stays busy.
    pub fn open(config: &NicQueueConfig) -> Result<Self, XdpError> {
        let BoundSocket { receive, transmit, zerocopy, reason, frame_bytes_max } = socket::bind(config)?;
        info!(interface = &*config.interface, queue = config.queue, zerocopy, reason, frame_bytes_max, "queue bound");
        let can_transmit = has_tx_queue(&config.interface, config.queue);
        Ok(Self {
            receive,
            transmit,
            queue: config.queue,
            zerocopy,
            reason,
            frame_bytes_max,
            can_transmit,
            pauses: None,
            pause_frames: 0,
            read_again: false,
            rx_chunks: config
                .rx_ring_entries
                .min(config.fill_ring_entries)
                .min(config.umem_frames - config.tx_ring_entries),
            generator: None,
        })
    }

    /// Its number.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Whether the driver reads and writes the frame memory itself.
    pub fn is_zerocopy(&self) -> bool {
        self.zerocopy
    }

    /// Why the frames are copied, or not.
    pub fn mode_reason(&self) -> &'static str {
        if self.can_transmit { self.reason } else { "receives only: the driver has no TX queue for it" }
    }

    /// Whether the kernel takes frames from this queue: it receives in any case.
    pub fn can_transmit(&self) -> bool {
        self.can_transmit
    }

    /// Has [`Self::take_pauses`] look at the pauses of its interface.
    pub fn set_pauses(&mut self, pauses: Arc<PauseMap>) {
        self.pauses = Some(pauses);
    }

    /// Until when each priority is paused by the other end of the link, if that has changed since
    /// this was last called;
    /// told twice, in two calls.
    #[inline]
    pub fn take_pauses(&mut self, now: Nanos) -> Option<[Nanos; PRIORITIES]> {
        let pauses = self.pauses.as_ref()?;
        let frames = pauses.frames();
        let has_changed = frames != self.pause_frames;
        self.pause_frames = frames;
        (std::mem::replace(&mut self.read_again, has_changed) || has_changed).then(|| pauses.until(now))
    }

    /// Has [`Self::pause_neighbor`] pause the other end of the link, if the queue sends.
    pub fn generate_pauses(&mut self, pauses: GeneratedPauses, neighbor: PausedNeighbor) {
        self.generator = self.can_transmit.then(|| PauseGenerator::new(pauses, neighbor, self.rx_chunks));
    }

    /// Pauses the other end of the link if many frames wait; returns true if a frame is to be
    /// flushed. Once per poll iteration.
    #[inline]
    pub fn pause_neighbor(&mut self, now: Nanos) -> bool {
        if let Some(generator) = &mut self.generator {
            let Some(pause) = generator.wanted(now, self.receive.waiting()) else { return false };
            let frame = generator.frame(pause);
            let emitted = self.transmit.emit(frame.len(), |bytes| {
                bytes.put(&frame);
                Ok(())
            });
            // Without room the next poll iteration tries again.
            if emitted.is_ok() {
                generator.on_sent(now, pause);
                return true;
            }
        }
        false
    }

    /// Readable when frames are there.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.transmit.socket()
    }

    /// The longest frame that may be given to [`Wire::emit`], and the longest that
    /// [`Self::rx_burst`] gives.
    pub fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Lends up to `budget` frames that arrived to `on_frame`, one after the other, and says how
    /// many there were. Fewer than `budget`: there were no more.
    pub fn rx_burst(&mut self, budget: usize, on_frame: impl FnMut(&Segments<'_>)) -> usize {
        self.receive.burst(budget, on_frame)
    }

    /// Makes the kernel send the emitted frames, and takes back sent chunks. Once per poll
    /// iteration; never waits.
    pub fn flush(&mut self) {
        self.transmit.flush();
        self.receive.wake_driver();
    }

    /// Whether emitted frames wait for another [`Self::flush`]: the kernel did not take all of
    /// them.
    pub fn has_pending_tx(&mut self) -> bool {
        self.transmit.has_pending()
    }

    /// The worker is about to block on [`Self::socket`]. True when there is work already: frames
    /// that arrived, or frames that wait for a flush or for others to leave, for which nothing would
    /// wake it.
    pub fn prepare_sleep(&mut self) -> bool {
        let waits = self.transmit.waits_for_ahead();
        self.flush();
        waits || self.receive.has_frames() || self.has_pending_tx()
    }

    /// Names every counter with its value: ours, and the kernel's of this socket.
    pub fn counters(&self, count: &mut impl FnMut(&'static str, u64)) {
        let (rx, tx) = (self.receive.counters(), self.transmit.counters());
        count("nic_rx_frames", rx.frames);
        count("nic_rx_bytes", rx.bytes);
        count("nic_rx_too_long", rx.too_long);
        count("nic_tx_frames", tx.frames);
        count("nic_tx_bytes", tx.bytes);
        count("nic_tx_full", tx.full);
        count("nic_tx_ahead_full", tx.ahead);
        count("nic_tx_kicks", tx.kicks);
        count("nic_tx_kicks_cut_short", tx.kicks_cut_short);
        count("nic_tx_kicks_failed", tx.kicks_failed);
        if let Some(generator) = &self.generator {
            count("nic_tx_pauses", generator.frames);
            count("nic_tx_pause_storms", generator.storms);
        }
        // Fails only when the socket is no AF_XDP socket.
        if let Ok(kernel) = self.receive.statistics() {
            count("nic_rx_dropped", kernel.rx_dropped());
            count("nic_rx_ring_full", kernel.rx_ring_full());
            count("nic_rx_fill_ring_empty", kernel.rx_fill_ring_empty_descs());
            count("nic_rx_invalid_descriptors", kernel.rx_invalid_descs());
            count("nic_tx_invalid_descriptors", kernel.tx_invalid_descs());
            count("nic_tx_ring_empty", kernel.tx_ring_empty_descs());
        }
    }
}

/// All frames leave by this queue, for any flow: the queue of a flow is decided before.
impl Wire for NicQueue {
    // The writer of a frame is inlined into its caller, or its captures are copied from function to
    // function.
    #[inline]
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        self.transmit.emit(frame_bytes, fill)
    }

    fn limit_ahead(&mut self, bytes: usize) {
        self.transmit.limit_ahead(bytes);
    }
}
