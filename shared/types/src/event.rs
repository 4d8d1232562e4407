//! Kinds of asynchronous events, with the numbers of verbs (`ibv_event_type`). Of those about a
//! queue pair `handle` is its number, likewise of those about a completion queue.

/// A completion queue lost a completion: its CQ ring was full. The queue pair of that completion
/// has failed.
pub const CQ_ERROR: u32 = 0;
/// A queue pair went to the error state by itself, and no completion says why.
pub const QP_FATAL: u32 = 1;
/// As [`QP_FATAL`]: the peer sent a request that breaks the rules.
pub const QP_REQUEST_ERROR: u32 = 2;
/// As [`QP_FATAL`]: the peer sent a request with an invalid key, range or access right.
pub const QP_ACCESS_ERROR: u32 = 3;
/// The first request of the peer has come to a queue pair in state RTR: the peer is ready to
/// send.
pub const COMMUNICATION_ESTABLISHED: u32 = 4;
/// A queue pair in state SQD no longer has anything under way.
pub const SQ_DRAINED: u32 = 5;
/// The device's network interface is gone; its queue pairs fail. It can be used again when the
/// interface is back and the link is up.
pub const DEVICE_FATAL: u32 = 8;
/// The device's link came up.
pub const PORT_ACTIVE: u32 = 9;
/// The device's link went down.
pub const PORT_DOWN: u32 = 10;
/// A shared receive queue has fewer entries than its limit, which is disarmed by this.
pub const SRQ_LIMIT: u32 = 15;
/// A queue pair with a shared receive queue has failed; it takes no more receives, and those that
/// it had taken are flushed.
pub const QP_LAST_WQE: u32 = 16;
/// The GID table changed.
pub const GID_CHANGE: u32 = 18;

/// Subject of an event, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSubject {
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// The device or its port: the handle is 0.
    Device,
}

impl EventSubject {
    /// The subject of events of that kind.
    pub const fn of(kind: u32) -> Self {
        match kind {
            CQ_ERROR => Self::Cq,
            QP_FATAL | QP_REQUEST_ERROR | QP_ACCESS_ERROR | COMMUNICATION_ESTABLISHED | SQ_DRAINED | QP_LAST_WQE => {
                Self::Qp
            }
            SRQ_LIMIT => Self::Srq,
            _ => Self::Device,
        }
    }
}
