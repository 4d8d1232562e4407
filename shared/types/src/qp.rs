//! Queue pairs: sizes, attributes, services, states.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most scatter/gather entries of one work request.
pub const SGE_MAX: u32 = 32;

/// Most bytes of inline data of one work request: the space of [`SGE_MAX`] entries.
pub const INLINE_BYTES_MAX: u32 = SGE_MAX * 16;

/// Most entries of a send or receive queue.
pub const WORK_REQUESTS_MAX: u32 = 32_768;

/// Most entries of a port's table of partition keys.
pub const PKEYS_MAX: usize = 16;

/// Sizes of a queue pair, requested or granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSizes {
    /// Send work requests outstanding.
    pub send_wrs: u32,
    /// Receive work requests outstanding.
    pub recv_wrs: u32,
    /// Scatter/gather entries of a send.
    pub send_sges: u32,
    /// Scatter/gather entries of a receive.
    pub recv_sges: u32,
    /// Bytes of inline data of a send.
    pub inline_bytes: u32,
}

impl QpSizes {
    /// Sizes granted for a request: powers of two and whole slots. `None` if a limit of the ABI is
    /// exceeded.
    pub const fn granted(self) -> Option<Self> {
        if self.send_wrs > WORK_REQUESTS_MAX
            || self.recv_wrs > WORK_REQUESTS_MAX
            || self.send_sges > SGE_MAX
            || self.recv_sges > SGE_MAX
            || self.inline_bytes > INLINE_BYTES_MAX
        {
            return None;
        }
        Some(Self {
            send_wrs: self.send_wrs.next_power_of_two(),
            recv_wrs: self.recv_wrs.next_power_of_two(),
            send_sges: at_least_one(self.send_sges),
            recv_sges: at_least_one(self.recv_sges),
            inline_bytes: self.inline_bytes.next_multiple_of(8),
        })
    }
}

const fn at_least_one(number: u32) -> u32 {
    if number == 0 { 1 } else { number }
}

/// A Q_Key with this bit is a privileged one: that of connection managers and of subnet management.
/// In a work request it stands for the queue pair's own Q_Key, so that a program without privilege
/// can use one that its queue pair was given.
pub const PRIVILEGED_QKEY: u32 = 1 << 31;

/// Attributes of a queue pair; verbs names (`ibv_qp_attr`) where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpAttributes {
    /// A [`state`].
    pub state: u32,
    /// [`access`](crate::access) bits that the peer has, besides those of each region.
    pub access: u32,
    /// Path MTU, bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu_bytes: u32,
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// READs and atomic operations that we have outstanding at most, 0 to 128.
    pub max_rd_atomic: u32,
    /// READs and atomic operations that we answer at a time, 0 to 128.
    pub max_dest_rd_atomic: u32,
    /// Code of the RNR NAK timer that we ask of the peer, 0 to 31.
    pub min_rnr_timer: u32,
    /// ACK timeout code: 4.096 us * 2^code, 0 for none, up to 31.
    pub timeout: u32,
    /// Retries after timeout or sequence error, 0 to 7.
    pub retry_cnt: u32,
    /// Retries after RNR NAK, 0 to 6, 7 for ever.
    pub rnr_retry: u32,
    /// Index in the port's table of partition keys.
    pub pkey_index: u32,
    /// Flow label, 20 bits; also makes the UDP source port when not 0.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u32,
    /// IP time to live or hop limit; 0 means 64.
    pub hop_limit: u32,
    /// IP traffic class: DSCP in the upper six bits.
    pub traffic_class: u32,
    /// Service level, 0 to 7: the priority in the VLAN tag, where there is one.
    pub service_level: u32,
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// Rate limit, kbit/s, 0 for none.
    pub rate_limit_kbit_per_s: u32,
    /// In a query: 1 while the next hop's address is still being resolved.
    pub path_resolving: u32,
    /// Q_Key that datagrams must have to be let in, of a UD queue pair.
    pub qkey: u32,
    /// Of a change: the state that the client takes the queue pair to be in; another one
    /// refuses the change.
    pub current_state: u32,
    /// In a query: 1 in state SQD while requests that were begun are not done.
    pub sq_draining: u32,
    /// Of a change to SQD: 1 asks for the event
    /// [`event::SQ_DRAINED`](crate::event::SQ_DRAINED).
    pub sq_drained_event: u32,
    /// Of a rate limit: bytes that may leave at once after a pause; 0 for those of 50 us.
    pub rate_limit_burst_bytes: u32,
    /// Highest rate of the path, kbit/s, 0 for none: `static_rate` of verbs.
    pub static_rate_kbit_per_s: u32,
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

/// Bits of the mask of a change, with those of verbs
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
    /// `dgid`, `sgid_index`, `flow_label`, `hop_limit`, `traffic_class`, `service_level`,
    /// `static_rate_kbit_per_s`.
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
    /// `rate_limit_kbit_per_s`, `rate_limit_burst_bytes`.
    pub const RATE_LIMIT: u32 = 1 << 25;
}
