//! Access rights of memory regions and memory windows.

use std::ops::BitOr;

use roced_types::access;

/// Access rights of a memory region, or of a peer over a queue pair. Local work requests may always
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(pub(crate) u32);

impl Access {
    /// Only local work requests may read.
    pub const NONE: Self = Self(0);
    /// Local work requests may write: receives, and the data of READs.
    pub const LOCAL_WRITE: Self = Self(access::LOCAL_WRITE);
    /// Peers may write. Includes [`Self::LOCAL_WRITE`], as verbs require.
    pub const REMOTE_WRITE: Self = Self(access::REMOTE_WRITE | access::LOCAL_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(access::REMOTE_READ);
    /// Peers may use atomic operations. Includes [`Self::LOCAL_WRITE`], as verbs require.
    pub const REMOTE_ATOMIC: Self = Self(access::REMOTE_ATOMIC | access::LOCAL_WRITE);
    /// Peers may flush their writes.
    pub const FLUSH_GLOBAL: Self = Self(access::FLUSH_GLOBAL);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(access::WINDOW_BIND);
    /// All of these rights.
    pub const ALL: Self = Self(access::ALL);

    /// The bits of verbs (`ibv_access_flags`).
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Converts bits of verbs; `None` if one of them has no meaning here. Adds no right that is not
    /// requested.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !(access::ALL | access::ZERO_BASED) == 0 { Some(Self(bits)) } else { None }
    }

    /// True if the rights include any right to write.
    pub(crate) const fn writes(self) -> bool {
        self.0 & access::LOCAL_WRITE != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
