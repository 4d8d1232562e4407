//! Removed reliable queue pairs: they acknowledge repetitions of executed requests.
//!
//! Programs end when their data has arrived, and then the last ACK may be lost. Its receiver would
//! repeat an executed request until it gives up, and report it as failed; Linux's `rdma_rxe`, for
//! which a retry count of 7 has no end, would repeat it for ever. As in TCP's state of this name,
//! the end that leaves first answers for a while. A request that was not executed gets no answer,
//! and neither does a READ or an atomic operation: its result is gone.
//!
//! A packet may also belong to another connection, of a peer that believes in a queue pair that is
//! gone. It is no repetition if its PSN is before the first of the life that has ended, or if it
//! comes from another UDP source port than all packets of that life. PSNs alone tell nothing where
//! the other connection begins among those of the life, and where that had 2^23 of them or more.
//! As a rule the ports differ: roced uses another one in each life, adapters and `rdma_rxe` derive
//! it from the queue pair numbers.
//!
//! There is no timer: an entry ends when its time is over, its number is in use again, another
//! queue pair takes its place, or the port is gone. It is only reached by packets to numbers
//! without a queue pair.

use alloc::{boxed::Box, vec};

use roced_types::Qpn;

use crate::{
    clock::Nanos,
    io::FrameOrigin,
    qp::{LastAcknowledgment, Qp, ends, is_plain},
    reject::DropReason,
    wire::{
        frame::Packet,
        headers::Headers,
        opcode::{Operation, Service},
        path::Path,
    },
};

/// Maximum number of entries, of 304 bytes each. A guess: as many queue pairs as end within one
/// second, at three connections a millisecond, find their place taken in one of seven cases.
const ENTRIES_MAX: u32 = 1024;

/// How long a removed queue pair answers. A guess: an adapter with an ACK timeout of a second has
/// repeated a request seven times by then. Not longer, because an ACK names no sender: a peer that
/// uses its own number again could take it for one of its next life.
const LIFETIME: Nanos = Nanos::from_millis(10_000);

/// Last acknowledgment of a removed queue pair.
#[derive(Clone, Copy, Debug)]
struct RemovedQp {
    until: Nanos,
    qpn: Qpn,
    path: Path,
    acknowledgment: LastAcknowledgment,
}

const _: () = assert!(size_of::<Option<RemovedQp>>() <= 304);

/// Last acknowledgments of removed queue pairs, by the low bits of their numbers.
#[derive(Debug)]
pub(super) struct TimeWait {
    entries: Box<[Option<RemovedQp>]>,
    /// Time of the last transmission.
    now: Nanos,
}

impl TimeWait {
    /// Creates an empty table for an endpoint with at most `max_qps` queue pairs.
    pub(super) fn new(max_qps: u32) -> Self {
        let entries = max_qps.clamp(1, ENTRIES_MAX).next_power_of_two() as usize;
        Self { entries: vec![None; entries].into_boxed_slice(), now: Nanos(0) }
    }

    /// Tells the time, for queue pairs that are removed from now on.
    pub(super) const fn on_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Keeps the last acknowledgment of a queue pair about to be removed, if it has executed a
    /// request.
    pub(super) fn keep(&mut self, qp: &Qp) {
        if let Some((path, acknowledgment)) = qp.last_acknowledgment() {
            *self.place(qp.qpn()) = Some(RemovedQp { until: self.now + LIFETIME, qpn: qp.qpn(), path, acknowledgment });
        }
    }

    /// A new queue pair has this number.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.place(qpn).take_if(|removed| removed.qpn == qpn);
    }

    /// The port that they would answer by is gone.
    pub(super) fn clear(&mut self) {
        self.entries.fill(None);
    }

    /// Checks a packet for a number without a queue pair: it is answered if it repeats an executed
    /// SEND or WRITE, and asks for an answer or ends its message.
    ///
    /// # Errors
    /// [`DropReason`]: there is no answer.
    pub(super) fn admit(&self, packet: &Packet<'_>, origin: FrameOrigin, now: Nanos) -> Result<(), DropReason> {
        let removed = self.get(packet.bth.dest_qpn).filter(|removed| now < removed.until);
        let RemovedQp { path, acknowledgment, .. } = removed.ok_or(DropReason::NoSuchQp)?;
        let from_peer = packet.info.service == Service::Rc
            && packet.bth.pkey.may_speak_to(acknowledgment.headers.bth.pkey)
            && (packet.source, packet.destination) == (*path.destination(), *path.source())
            && packet.roce.is_same_version(path.roce())
            && path.takes_vlan(packet.vlan_id())
            && path.via().is_local() == (origin == FrameOrigin::Local);
        let repeats =
            matches!(packet.info.operation, Operation::Send | Operation::Write) && acknowledgment.covers(packet);
        let asks = packet.bth.ack_request || ends(packet);
        if !(from_peer && repeats && asks) {
            return Err(DropReason::NoSuchQp);
        }
        packet.check_integrity()
    }

    /// Answer to an admitted packet, and the path to its sender. A plain peer that asks within a
    /// message is told of the packets that it has sent again, and of no more.
    pub(super) fn answer(&self, packet: &Packet<'_>) -> Option<(Path, Headers)> {
        let RemovedQp { path, acknowledgment: LastAcknowledgment { mut headers, .. }, .. } =
            *self.get(packet.bth.dest_qpn)?;
        if is_plain(packet) && !ends(packet) {
            headers.bth.psn = packet.bth.psn;
        }
        Some((path, headers))
    }

    fn get(&self, qpn: Qpn) -> Option<&RemovedQp> {
        self.entries[self.index(qpn)].as_ref().filter(|removed| removed.qpn == qpn)
    }

    fn place(&mut self, qpn: Qpn) -> &mut Option<RemovedQp> {
        &mut self.entries[self.index(qpn)]
    }

    fn index(&self, qpn: Qpn) -> usize {
        qpn.index() as usize & (self.entries.len() - 1)
    }
}
