//! Immediate data: four bytes without meaning to the transport (IBTA v1 9.3.6).

/// Immediate data in wire order, as work requests and completions keep it.
pub type Imm = [u8; IMM_BYTES];

/// Bytes on the wire.
pub const IMM_BYTES: usize = 4;
