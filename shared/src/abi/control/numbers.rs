//! Bits and numbers in control messages: those of verbs wherever verbs has them.

/// Access rights, with the bits of verbs (`ibv_access_flags`).
pub mod access {
    /// Local work requests may write to it. Local reading is always allowed.
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// Peers may write to it.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// Peers may read it.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Peers may use atomic operations on it.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound to it.
    pub const WINDOW_BIND: u32 = 1 << 4;
    /// Of a memory window of type 2: peers name its bytes from 0 on, not by their address.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// Peers may flush what they wrote to it, so that all processors see it.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// What peers may be given.
    pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;
    /// All that a memory region can have.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE | WINDOW_BIND;
}

/// Bits of [`ReregMrRequest::changes`](super::ReregMrRequest::changes), with those of verbs
/// (`ibv_rereg_mr_flags`).
pub mod rereg {
    /// `memory`, `offset`, `length`, `va`.
    pub const TRANSLATION: u32 = 1 << 0;
    /// `pd`.
    pub const PD: u32 = 1 << 1;
    /// `access`.
    pub const ACCESS: u32 = 1 << 2;
    /// All that exist.
    pub const ALL: u32 = TRANSLATION | PD | ACCESS;
}

/// Which limit is reached: the second number of [`Refusal::Limit`](super::Refusal::Limit).
pub mod limit {
    /// One under `[limits]` in the daemon's config.
    pub const CONFIG: u64 = 0;
    /// Mappings that the daemon has for all clients of the user: each memory, queue and queue pair
    /// is one.
    pub const MAPPINGS_OF_USER: u64 = 1;
    /// Mappings that the daemon has for clients of all users.
    pub const MAPPINGS: u64 = 2;
}

/// A Q_Key with this bit is a privileged one: that of connection managers and of subnet management.
/// In a work request it stands for the queue pair's own Q_Key, so that a program without privilege
/// can use one that its queue pair was given.
pub const PRIVILEGED_QKEY: u32 = 1 << 31;

/// What memory that a client brings is to it.
pub mod origin {
    /// Private memory of the program, whose pages the client library has replaced by those of its
    /// own file.
    pub const REPLACED: u32 = 1;
    /// Memory that the program itself shares.
    pub const SHARED: u32 = 2;
    /// Memory of the program that nobody else can map: it stays where it is. The descriptor is of
    /// `/proc/self/mem`.
    pub const PROXIED: u32 = 3;
}

/// Types of a GID, with the numbers of verbs (`ibv_gid_type`).
pub mod gid_type {
    /// RoCEv1.
    pub const ROCE_V1: u32 = 1;
    /// RoCEv2.
    pub const ROCE_V2: u32 = 2;
}

/// Transport services, with the numbers of verbs (`ibv_qp_type`).
pub mod service {
    /// Reliable connection.
    pub const RC: u32 = 2;
    /// Unreliable connection.
    pub const UC: u32 = 3;
    /// Unreliable datagram.
    pub const UD: u32 = 4;
}

/// States of a queue pair, with the numbers of verbs (`ibv_qp_state`).
pub mod state {
    /// Made, or emptied.
    pub const RESET: u32 = 0;
    /// May receive work requests.
    pub const INIT: u32 = 1;
    /// Ready to receive.
    pub const RTR: u32 = 2;
    /// Ready to send.
    pub const RTS: u32 = 3;
    /// Sends that were begun go on to their end, no other begins.
    pub const SQD: u32 = 4;
    /// A send of a UC or UD queue pair failed: sends are flushed, receives go on.
    pub const SQE: u32 = 5;
    /// Failed; all work is flushed.
    pub const ERR: u32 = 6;
}

/// Bits of [`ModifyQpRequest::mask`](super::ModifyQpRequest::mask), with those of verbs
/// (`ibv_qp_attr_mask`).
pub mod attribute {
    /// `state`.
    pub const STATE: u32 = 1 << 0;
    /// `current_state`.
    pub const CURRENT_STATE: u32 = 1 << 1;
    /// `sq_drained_event`.
    pub const SQ_DRAINED_EVENT: u32 = 1 << 2;
    /// `access`.
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Port; there is one.
    pub const PORT: u32 = 1 << 5;
    /// `qkey`.
    pub const QKEY: u32 = 1 << 6;
    /// `dgid`, `sgid_index`, `flow_label`, `hop_limit`, `traffic_class`, `service_level`.
    pub const AV: u32 = 1 << 7;
    /// `path_mtu_bytes`.
    pub const PATH_MTU: u32 = 1 << 8;
    /// `timeout`.
    pub const TIMEOUT: u32 = 1 << 9;
    /// `retry_cnt`.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `rq_psn`.
    pub const RQ_PSN: u32 = 1 << 12;
    /// `max_rd_atomic`.
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// `min_rnr_timer`.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `sq_psn`.
    pub const SQ_PSN: u32 = 1 << 16;
    /// `max_dest_rd_atomic`.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `dest_qpn`.
    pub const DEST_QPN: u32 = 1 << 20;
    /// `rate_limit_bytes_per_s`.
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// Kinds of [`Event`](super::Event), with the numbers of verbs (`ibv_event_type`). Of those about a
/// queue pair `handle` is its number, likewise of those about a completion queue.
pub mod event {
    /// A completion queue lost a completion: its lane was full. The queue pair of that completion
    /// has failed.
    pub const CQ_ERROR: u32 = 0;
    /// A queue pair went to the error state by itself, and no completion says why.
    pub const QP_FATAL: u32 = 1;
    /// As [`QP_FATAL`]: the peer sent a request that breaks the rules.
    pub const QP_REQUEST_ERROR: u32 = 2;
    /// As [`QP_FATAL`]: the peer sent a request whose key, range or right does not hold.
    pub const QP_ACCESS_ERROR: u32 = 3;
    /// The first request of the peer has come to a queue pair in state RTR: the peer is ready to
    /// send.
    pub const COMMUNICATION_ESTABLISHED: u32 = 4;
    /// A queue pair in state SQD has nothing under way any more.
    pub const SQ_DRAINED: u32 = 5;
    /// The device's link came up.
    pub const PORT_ACTIVE: u32 = 9;
    /// The device's link went down.
    pub const PORT_DOWN: u32 = 10;
    /// A shared receive queue has fewer entries than its limit, which is disarmed by this.
    pub const SRQ_LIMIT: u32 = 15;
    /// A queue pair with a shared receive queue has failed; it takes no more from there, and what
    /// it had taken is flushed.
    pub const QP_LAST_WQE: u32 = 16;
    /// The GID table changed.
    pub const GID_CHANGE: u32 = 18;
}
