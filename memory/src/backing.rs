//! How memory that regions lie in is reached: by a mapping of ours, or by the kernel's copies.

use std::sync::Arc;

use roced_transport::io::{AtomicOperation, MemoryFault};

use super::{
    client_memory::{ClientMemory, MemoryKind},
    poll_id::PollId,
    proxied::ProxiedMemory,
};

/// Memory that regions lie in. Clones are the same.
#[derive(Clone, Debug)]
pub enum Backing {
    /// We map it.
    Mapped(Arc<ClientMemory>),
    /// It stays where it is.
    Proxied(Arc<ProxiedMemory>),
}

impl From<Arc<ClientMemory>> for Backing {
    fn from(memory: Arc<ClientMemory>) -> Self {
        Self::Mapped(memory)
    }
}

impl Backing {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(memory) => memory.len(),
            Self::Proxied(memory) => memory.len(),
        }
    }

    /// Kind of the memory.
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Mapped(memory) => memory.kind(),
            Self::Proxied(_) => MemoryKind::Proxied,
        }
    }

    /// True if an access failed, because the memory or its process is gone.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Mapped(memory) => memory.is_lost(),
            Self::Proxied(memory) => memory.is_lost(),
        }
    }

    /// Returns true if the memory may be written.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Mapped(memory) => memory.is_writable(),
            Self::Proxied(memory) => memory.is_writable(),
        }
    }

    /// As [`ClientMemory::atomic`] and [`ProxiedMemory::atomic`].
    ///
    /// # Errors
    /// Proxied memory cannot be accessed; nothing has changed.
    pub fn atomic(&self, offset: u64, operation: AtomicOperation, poll: PollId) -> Result<u64, MemoryFault> {
        match self {
            Self::Mapped(memory) => Ok(memory.atomic(offset, operation)),
            Self::Proxied(memory) => memory.atomic(offset, operation, poll),
        }
    }
}
