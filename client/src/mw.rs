//! Memory windows: parts of memory regions with temporary remote access, under a key that changes
//! with each binding.
//!
//! Binding and invalidating are work requests: they execute in order with the others of a queue
//! pair, and cost no control call.

use std::{
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use roced_abi::control::{AllocMw, AllocMwRequest, DeallocMw, Handle};
use roced_types::{BindWindow, access};

use crate::{
    access::Access,
    error::Result,
    mr::{MemoryRegion, RemoteMemory, range_of},
    pd::{PdInner, ProtectionDomain},
};

/// Type of a memory window, which determines the peers that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Type 1: for the peers of every queue pair of its protection domain. A new bind moves the
    /// window; a bind of zero bytes closes it.
    One,
    /// Type 2 (2B): for the peer of the queue pair that bound it. The window must be invalidated,
    /// by [`crate::SendRequest::local_invalidate`] or by a SEND with invalidate from the peer,
    /// before it is bound again.
    Two,
}

/// A memory window. Dropping it closes it. A region to which a window is bound cannot be
/// deregistered: drop or invalidate the window first.
///
/// ```no_run
/// # use roced_client::{Access, Device, SendRequest, WindowKind};
/// # fn main() -> roced_client::Result<()> {
/// # let device = Device::open("roce0")?;
/// # let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
/// # let qp = pd.queue_pair(&cq, &cq).create()?;
/// let region = pd.allocate(8192, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = pd.memory_window(WindowKind::Two)?;
/// // Opens the first page to the peer; the key is valid when the request has completed.
/// let binding = window.bind(&region, ..4096, Access::REMOTE_READ);
/// qp.post_send(&SendRequest::bind(&binding).signaled())?;
/// println!("{:?}", binding.remote());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryWindow {
    pd: Arc<PdInner>,
    handle: u32,
    kind: WindowKind,
    rkey: AtomicU32,
}

impl ProtectionDomain {
    /// Allocates a memory window, bound to no memory.
    ///
    /// # Errors
    /// The session's limit, which regions and windows share; the daemon is gone.
    pub fn memory_window(&self, kind: WindowKind) -> Result<MemoryWindow> {
        MemoryWindow::allocate(&self.inner, kind)
    }
}

impl MemoryWindow {
    pub(crate) fn allocate(pd: &Arc<PdInner>, kind: WindowKind) -> Result<Self> {
        let number = match kind {
            WindowKind::One => 1,
            WindowKind::Two => 2,
        };
        let reply = pd.device.session.call::<AllocMw>(AllocMwRequest { pd: pd.handle, kind: number })?;
        Ok(Self { pd: Arc::clone(pd), handle: reply.handle, kind, rkey: AtomicU32::new(reply.rkey) })
    }

    /// Type of the window.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Key of the last [`Self::bind`].
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Relaxed)
    }

    /// Prepares a binding of the window to a range of `region` with the remote rights of `access`,
    /// to be posted with [`crate::SendRequest::bind`].
    ///
    /// Each binding has a new key, so that a peer with an old key is refused. The region needs
    /// [`Access::WINDOW_BIND`], and [`Access::LOCAL_WRITE`] if peers may write or use atomic
    /// operations.
    ///
    /// # Panics
    /// If the range lies outside the region, as for slices.
    pub fn bind(&self, region: &MemoryRegion, range: impl RangeBounds<usize>, access: Access) -> WindowBinding {
        let (start, end) = range_of(range, region.len());
        let window = BindWindow {
            va: region.remote().va + start as u64,
            length: (end - start) as u64,
            lkey: region.lkey(),
            // Remote write access includes local write access, but a window has only remote rights.
            access: access.bits() & access::REMOTE,
        };
        let next = |key: u32| key & !0xff | key.wrapping_add(1) & 0xff;
        let old = self.rkey.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |key| Some(next(key)));
        WindowBinding { rkey: next(old.unwrap_or_else(|key| key)), window }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // Fails only if the session has ended, which destroys the window as well.
        let _ = self.pd.device.session.call::<DeallocMw>(Handle { handle: self.handle });
    }
}

/// A range, rights and key to bind to a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it does nothing until it is posted"]
pub struct WindowBinding {
    pub(crate) rkey: u32,
    pub(crate) window: BindWindow,
}

impl WindowBinding {
    /// Creates a binding with a key and location managed by the caller: `rkey` is that of the
    /// window with new lower 8 bits; `lkey` and `va` are those of the region. Invalid values fail
    /// the work request.
    pub const fn new(rkey: u32, lkey: u32, va: u64, length: u64, access: Access) -> Self {
        let access = access.bits() & (access::REMOTE | access::ZERO_BASED);
        Self { rkey, window: BindWindow { va, length, lkey, access } }
    }

    /// Makes peers address the bytes of the window from 0, rather than by their address. Only for a
    /// window of type 2.
    pub const fn zero_based(mut self) -> Self {
        self.window.access |= access::ZERO_BASED;
        self
    }

    /// Location of the whole window, to be sent to a peer once the window is bound.
    pub const fn remote(&self) -> RemoteMemory {
        let zero_based = self.window.access & access::ZERO_BASED != 0;
        let va = if zero_based { 0 } else { self.window.va };
        RemoteMemory { va, length: self.window.length, rkey: self.rkey }
    }
}
