//! What happened to a queue pair that its client did not ask for.

use roced_types::{Cqn, Qpn, event};

use super::QpConfig;

/// Something that a client must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpEvent {
    /// The queue pair that it happened to.
    pub qpn: Qpn,
    /// What it is about.
    pub subject: Subject,
    /// An `abi::control::event`.
    pub kind: u32,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The queue pair.
    Qp(Qpn),
    /// A completion queue of it.
    Cq(Cqn),
}

impl Subject {
    /// The number by which a client knows it.
    pub const fn number(self) -> u32 {
        match self {
            Self::Qp(qpn) => qpn.get(),
            Self::Cq(cqn) => cqn.0,
        }
    }
}

/// Stands for [`event::CQ_ERROR`] of the receive queue's completion queue; no kind of event has
/// this number.
const RECV_CQ_ERROR: u32 = 31;

/// Events that nobody was told of yet, a bit for each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpEvents(u32);

impl QpEvents {
    /// An event about the queue pair.
    pub(super) const fn add(&mut self, kind: u32) {
        self.0 |= 1 << kind;
    }

    /// The completion queue of sends, or that of receives, lost a completion.
    pub(super) const fn add_cq_error(&mut self, of_sends: bool) {
        self.add(if of_sends { event::CQ_ERROR } else { RECV_CQ_ERROR });
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The next one.
    pub(super) fn take(&mut self, config: &QpConfig) -> Option<QpEvent> {
        let bit = (self.0 != 0).then(|| self.0.trailing_zeros())?;
        self.0 &= !(1 << bit);
        let (kind, subject) = match bit {
            event::CQ_ERROR => (event::CQ_ERROR, Subject::Cq(config.send_cq)),
            RECV_CQ_ERROR => (event::CQ_ERROR, Subject::Cq(config.recv_cq)),
            kind => (kind, Subject::Qp(config.qpn)),
        };
        Some(QpEvent { qpn: config.qpn, subject, kind })
    }
}
