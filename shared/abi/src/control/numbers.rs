//! Bits and numbers in control messages: those of verbs wherever verbs has them.

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

/// Kinds of memory that a client brings.
pub mod origin {
    /// Private memory of the program, with its pages moved to a file of the client
    /// library.
    pub const MIGRATED: u32 = 1;
    /// Memory that the program itself shares.
    pub const FILE_BACKED: u32 = 2;
    /// Memory of the program that no other process can map: it stays in place. The descriptor, of
    /// `/proc/self/mem`, goes with the first of a session alone.
    pub const PROXIED: u32 = 3;
}

/// Types of a GID, with the numbers of verbs (`ibv_gid_type`).
pub mod gid_type {
    /// RoCEv1.
    pub const ROCE_V1: u32 = 1;
    /// RoCEv2.
    pub const ROCE_V2: u32 = 2;
}
