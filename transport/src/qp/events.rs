//! Asynchronous events of queue pairs.

use core::fmt;

use roced_types::{Cqn, Qpn, Status, event};

use super::QpConfig;
use crate::counters::{QpCount, QpCounters};

/// Event for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpEvent {
    /// Queue pair of the event.
    pub qpn: Qpn,
    /// Object of the event.
    pub subject: Subject,
    /// An `roced_types::event`.
    pub kind: u32,
}

/// Object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The queue pair.
    Qp(Qpn),
    /// One of the queue pair's completion queues.
    Cq(Cqn),
}

impl Subject {
    /// Number by which the client knows the object.
    pub const fn number(self) -> u32 {
        match self {
            Self::Qp(qpn) => qpn.get(),
            Self::Cq(cqn) => cqn.0,
        }
    }
}

/// Failure of a queue pair, for operators; its client learns of it by a completion or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFailure {
    /// The queue pair.
    pub qpn: Qpn,
    /// GID of its peer; zeros for a datagram queue pair.
    pub peer: [u8; 16],
    /// Queue pair of its peer.
    pub peer_qpn: Qpn,
    /// Cause.
    pub cause: FailureCause,
    /// Counts of the queue pair that show losses.
    pub losses: LossCounts,
}

/// Counts that show losses on the path, or a receiver that was not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// Retransmitted packets.
    pub retransmitted_packets: u64,
    /// Times that the ACK timer ran out.
    pub ack_timeouts: u64,
    /// NAKs "PSN sequence error" received.
    pub sequence_naks: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
}

impl LossCounts {
    /// Those of `counters`.
    pub(super) fn of(counters: &QpCounters) -> Self {
        Self {
            retransmitted_packets: counters.get(QpCount::RetransmittedPackets),
            ack_timeouts: counters.get(QpCount::AckTimeout),
            sequence_naks: counters.get(QpCount::SequenceNakReceived),
            rnr_naks: counters.get(QpCount::RnrNakReceived),
        }
    }
}

/// Cause of the failure of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// A send failed with this status.
    Send(Status),
    /// An event of this kind ([`roced_types::event`]) tells the client.
    Event(u32),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(status) => write!(f, "send failed: {status:?}"),
            Self::Event(event::CQ_ERROR) => f.write_str("completion queue overrun"),
            Self::Event(event::QP_FATAL) => f.write_str("local error at the receive side"),
            Self::Event(event::QP_REQUEST_ERROR) => f.write_str("invalid request of the peer"),
            Self::Event(event::QP_ACCESS_ERROR) => f.write_str("access error of the peer"),
            Self::Event(event::DEVICE_FATAL) => f.write_str("network interface gone"),
            Self::Event(kind) => write!(f, "event {kind}"),
        }
    }
}

/// Bit for [`event::CQ_ERROR`] of the receive queue's completion queue; no kind of event has this
/// number.
const RECV_CQ_ERROR: u32 = 31;

/// Bit of the set that says that [`event::QP_LAST_WQE`] was added: it stays until the queue pair
/// is reset.
const LAST_WQE_TOLD: u32 = 30;

/// Pending events, one bit for each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpEvents(u32);

impl QpEvents {
    /// Adds an event about the queue pair.
    pub(super) const fn add(&mut self, kind: u32) {
        self.0 |= 1 << kind;
    }

    /// Records a lost completion of the send or the receive completion queue.
    pub(super) const fn add_cq_error(&mut self, of_sends: bool) {
        self.add(if of_sends { event::CQ_ERROR } else { RECV_CQ_ERROR });
    }

    /// Adds the event that the queue pair takes no more receives from its shared queue, unless it
    /// was added before.
    pub(super) const fn add_last_wqe(&mut self) {
        if self.0 & 1 << LAST_WQE_TOLD == 0 {
            self.add(LAST_WQE_TOLD);
            self.add(event::QP_LAST_WQE);
        }
    }

    const fn pending(self) -> u32 {
        self.0 & !(1 << LAST_WQE_TOLD)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.pending() == 0
    }

    /// Removes and returns the next event.
    pub(super) fn take(&mut self, config: &QpConfig) -> Option<QpEvent> {
        let bit = (!self.is_empty()).then(|| self.pending().trailing_zeros())?;
        self.0 &= !(1 << bit);
        let (kind, subject) = match bit {
            event::CQ_ERROR => (event::CQ_ERROR, Subject::Cq(config.send_cq)),
            RECV_CQ_ERROR => (event::CQ_ERROR, Subject::Cq(config.recv_cq)),
            kind => (kind, Subject::Qp(config.qpn)),
        };
        Some(QpEvent { qpn: config.qpn, subject, kind })
    }
}
