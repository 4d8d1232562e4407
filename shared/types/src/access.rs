//! Access rights, with the bits of verbs (`ibv_access_flags`).

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
/// Peers may flush their writes, so that all processors see them.
pub const FLUSH_GLOBAL: u32 = 1 << 8;
/// Rights that peers can have.
pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;
/// All that a memory region can have.
pub const ALL: u32 = LOCAL_WRITE | REMOTE | WINDOW_BIND;
