//! Management datagrams from the control thread to workers, which send them from queue pair 1.
//!
//! ```text
//!   endpoint ── poll_management ──► MadSender ──────► MadReceiver      control thread
//!   endpoint ◄─ send_management ─── worker ◄── OutgoingMads ◄── Workers::send_mad
//! ```
//!
//! All queues are bounded and lock-free. One without room goes back to the control thread. The other
//! direction is in [`received_mads`](super::received_mads).

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use roced_transport::{clock::Nanos, management::MAD_BYTES, wire::Path};
use roced_types::DeviceId;

/// Datagrams that wait for a worker to send them: 110 KiB. A guess.
const OUTGOING: usize = 256;

/// How long an endpoint may have no room before its datagrams are dropped. A guess: a NIC that
/// sends at all has room sooner.
const HELD_MAX: Nanos = Nanos(20_000_000);

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
        if self.held.is_none() && self.queue.is_empty() {
            return None;
        }
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
    use roced_transport::{
        io::Egress,
        wire::{PathSpec, Roce},
    };

    use super::*;

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
}
