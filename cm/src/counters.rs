//! Counters of messages, by their kind, and of those that were dropped, by the reason.

use crate::wire::Attribute;

/// Messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Sent, repetitions not included.
    pub sent: u64,
    /// Repetitions sent.
    pub repeated: u64,
    /// Received.
    pub received: u64,
    /// Received again.
    pub duplicates: u64,
}

/// Counters of a connection manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    messages: [MessageCounts; Attribute::ALL.len()],
    /// Datagrams that are no message.
    pub discarded: u64,
    /// Messages about no connection of ours.
    pub unknown: u64,
    /// Messages about a connection of another peer.
    pub other_peer: u64,
    /// Messages that do not fit the connection's state.
    pub out_of_state: u64,
    /// REQs and SIDR_REQs beyond a listener's backlog, or beyond a limit: of connections, of those
    /// that peers have not confirmed, or of a user's identifiers.
    pub no_room: u64,
}

impl CmCounters {
    /// Of one kind.
    pub const fn of(&self, attribute: Attribute) -> &MessageCounts {
        &self.messages[Self::place(attribute)]
    }

    pub(crate) const fn of_mut(&mut self, attribute: Attribute) -> &mut MessageCounts {
        &mut self.messages[Self::place(attribute)]
    }

    const fn place(attribute: Attribute) -> usize {
        attribute as usize - Attribute::Req as usize
    }
}
