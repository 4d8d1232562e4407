//! Interface of a worker to a NIC queue. `xdp` has the real one; tests have others.

use std::os::fd::BorrowedFd;

use roced_steering::PRIORITIES;
use roced_transport::{
    clock::Nanos,
    io::{Segments, Wire},
};
use roced_xdp::NicQueue;

/// An RX and TX queue of one device, owned by one worker.
pub trait Nic: Wire {
    /// Number of the RX queue.
    fn queue(&self) -> u32;

    /// Lends up to `budget` frames that arrived to `on_frame`, one after the other, and says how
    /// many there were.
    fn rx_burst(&mut self, budget: usize, on_frame: impl FnMut(&Segments<'_>)) -> usize;

    /// Whether it sends; a queue that does not receives all the same. Those that send come first
    /// among the queues of an endpoint.
    fn can_transmit(&self) -> bool {
        true
    }

    /// Makes the kernel send the emitted frames, and takes back sent chunks. Once per poll
    /// iteration.
    fn flush(&mut self);

    /// The worker is about to block on [`Self::socket`]. True when frames are there already: do
    /// not.
    fn prepare_sleep(&mut self) -> bool;

    /// Until when each priority is paused by the other end of the link, if that has changed since
    /// this was last called.
    fn take_pauses(&mut self, _now: Nanos) -> Option<[Nanos; PRIORITIES]> {
        None
    }

    /// Pauses the other end of the link if many frames wait to be received; returns true if a frame
    /// is to be flushed.
    fn pause_neighbor(&mut self, _now: Nanos) -> bool {
        false
    }

    /// Readable when frames are there.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Names every counter with its value.
    fn counters(&self, count: &mut impl FnMut(&'static str, u64));
}

impl Nic for NicQueue {
    fn queue(&self) -> u32 {
        Self::queue(self)
    }

    fn rx_burst(&mut self, budget: usize, on_frame: impl FnMut(&Segments<'_>)) -> usize {
        Self::rx_burst(self, budget, on_frame)
    }

    fn can_transmit(&self) -> bool {
        Self::can_transmit(self)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn prepare_sleep(&mut self) -> bool {
        Self::prepare_sleep(self)
    }

    fn take_pauses(&mut self, now: Nanos) -> Option<[Nanos; PRIORITIES]> {
        Self::take_pauses(self, now)
    }

    fn pause_neighbor(&mut self, now: Nanos) -> bool {
        Self::pause_neighbor(self, now)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        Self::socket(self)
    }

    fn counters(&self, count: &mut impl FnMut(&'static str, u64)) {
        Self::counters(self, count);
    }
}
