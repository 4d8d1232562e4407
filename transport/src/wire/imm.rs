//! Immediate data: four bytes without meaning to the transport (IBTA v1 9.3.6).

/// Immediate data in wire order, which is how work requests and completions keep it too.
pub type Imm = [u8; IMM_BYTES];

/// Bytes on the wire.
pub const IMM_BYTES: usize = 4;
