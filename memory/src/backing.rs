//! How memory that regions lie in is reached: by a mapping of ours, or by the kernel's copies.

use std::sync::Arc;

use roced_transport::io::{AtomicOperation, MemoryFault};
use roced_types::access;

use super::{
    client_memory::{ClientMemory, MemoryKind},
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

    /// May anything be written there?
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Mapped(memory) => memory.is_writable(),
            Self::Proxied(memory) => memory.is_writable(),
        }
    }

    /// Are there atomic operations, if these rights need any? The kernel copies, and no copy is
    /// atomic.
    pub fn supports(&self, bits: u32) -> bool {
        matches!(self, Self::Mapped(_)) || bits & access::REMOTE_ATOMIC == 0
    }

    /// As `ClientMemory::atomic`.
    ///
    /// # Errors
    /// There are none.
    pub fn atomic(&self, offset: u64, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        match self {
            Self::Mapped(memory) => Ok(memory.atomic(offset, operation)),
            Self::Proxied(_) => Err(MemoryFault),
        }
    }
}
