//! Results of work requests.

use roced_types::{CompletionOp, Status};

use crate::error::WorkError;

/// Result of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the work request, chosen by the program.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qpn: u32,
    /// Status of the work request.
    pub status: Status,
    /// Operation of the work request. A failed receive has [`CompletionOp::Recv`].
    pub op: CompletionOp,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data of the message, in wire order.
    pub imm: Option<[u8; 4]>,
    /// Local key that was invalidated by a SEND with invalidate from the peer.
    pub invalidated: Option<u32>,
    /// True if the peer marked the message as solicited.
    pub solicited: bool,
    /// Number of the remote queue pair.
    pub src_qpn: u32,
    /// True for a datagram: the first [`crate::GRH_BYTES`] of its buffer contain the header it
    /// arrived with.
    pub has_grh: bool,
    /// True if that header is an IPv4 header.
    pub has_ipv4: bool,
    /// Time at which the daemon saw the work request end, in nanoseconds of `CLOCK_MONOTONIC`; 0 if
    /// it did not see it.
    pub timestamp_ns: u64,
    /// Further detail of an error, for support; 0 if none.
    pub vendor_error: u32,
}

impl Completion {
    /// Placeholder that a poll overwrites.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        qpn: 0,
        status: Status::Fatal,
        op: CompletionOp::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        solicited: false,
        src_qpn: 0,
        has_grh: false,
        has_ipv4: false,
        timestamp_ns: 0,
        vendor_error: 0,
    };

    /// Returns the completion if it is a success.
    ///
    /// # Errors
    /// [`WorkError`], which tells the responsible side.
    pub fn ok(self) -> Result<Self, WorkError> {
        match self.status {
            Status::Success => Ok(self),
            status => Err(WorkError { wr_id: self.wr_id, status }),
        }
    }
}

impl Default for Completion {
    fn default() -> Self {
        Self::EMPTY
    }
}
