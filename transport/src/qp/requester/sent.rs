//! Facts about a packet that was sent, as the completer is told.

use crate::psn::Psn;

/// Reason to send the oldest packet again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The packet is missing.
    Missing,
    /// Its answer is late.
    Probe,
    /// The answer to the packet before it did not cover it.
    Presumed,
}

/// A packet that was sent.
pub(crate) struct SentRequest {
    pub(crate) psn: Psn,
    /// Number of its PSNs.
    pub(crate) packets: u32,
    /// Sent for the first time.
    pub(crate) is_new: bool,
    /// A READ, or an operation with one answer.
    pub(crate) wants_answer: bool,
    /// Not the first packet of its work request.
    pub(crate) continues: bool,
    pub(crate) asks: AckRequest,
}

/// The oldest request, or a part of it, sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAgain {
    /// Number of its PSNs.
    pub(crate) packets: u32,
    /// A READ, or an operation with one answer.
    pub(crate) wants_answer: bool,
    pub(crate) reason: Reason,
    /// Part of a READ that ends before both the READ and its original request.
    pub(crate) is_part: bool,
}

/// ACK request of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckRequest {
    /// The packet asks.
    Now,
    /// The packet ends an unsignaled message and leaves asking to a later one.
    Later,
    /// A later packet of the same message asks.
    Not,
}
