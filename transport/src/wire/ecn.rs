//! The ECN field, the two low bits of a traffic class (RFC 3168 5).

/// Its bits.
pub const MASK: u8 = 0b11;

/// The sender does not react to marks: a congested switch drops the packet.
pub const NOT_CAPABLE: u8 = 0b00;

/// A transport that reacts to marks, ECT(0): a congested switch marks the packet.
pub const CAPABLE: u8 = 0b10;

/// Congestion experienced (CE): the mark.
pub const MARKED: u8 = 0b11;
