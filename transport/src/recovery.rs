//! Loss recovery: the options of an endpoint.
//!
//! The wire protocol is the standard's in both cases. With [`Recovery::GoBackN`] a packet ahead of
//! its turn is dropped, and after a loss everything is retransmitted from the lost packet on; only
//! a NAK or the ACK timer detects a loss. With [`Recovery::Selective`] out-of-order packets are
//! buffered (`out_of_order.rs`) and executed in their turn, a peer that was seen to do the same is
//! sent only lost packets, and a probe detects the loss of a last packet within a few round trips
//! (`qp/probe.rs`).

use crate::clock::Nanos;

/// Kind of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Out-of-order packets are buffered, only missing packets are retransmitted, probes detect
    /// lost last packets.
    Selective,
    /// As most adapters by default: out-of-order packets are dropped, everything behind a loss is
    /// retransmitted. For comparison.
    GoBackN,
}

/// Options of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Kind of loss recovery. With [`Recovery::GoBackN`] the other options have no effect.
    pub kind: Recovery,
    /// How long a packet may come late before it counts as lost. 0 asks for it at once, as adapters
    /// do; on a network that takes several paths to a peer, the difference between them.
    pub reorder_delay: Nanos,
    /// The least time without an answer before a probe is sent; anything above is measured. Answers
    /// of a peer with threads that sleep or wait for a core come late without being lost.
    pub probe_floor: Nanos,
    /// Out-of-order packets that the endpoint can buffer. Their memory is reserved at once and used
    /// when it is needed.
    pub out_of_order_packets: u32,
}

impl RecoveryConfig {
    /// Plain go-back-N.
    pub const GO_BACK_N: Self = Self { kind: Recovery::GoBackN, ..Self::SELECTIVE };

    /// The default.
    const SELECTIVE: Self = Self {
        kind: Recovery::Selective,
        reorder_delay: Nanos(0),
        // A guess: some round trips of a software peer, and little beside the shortest ACK timeout
        // (16.8 ms).
        probe_floor: Nanos::from_micros(100),
        // Half of them may be one queue pair's: four windows of the usual 128 packets.
        out_of_order_packets: 1024,
    };

    pub(crate) const fn is_selective(&self) -> bool {
        matches!(self.kind, Recovery::Selective)
    }
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self::SELECTIVE
    }
}
