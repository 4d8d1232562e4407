//! Memory windows: parts of memory regions that peers may reach for a while, under a key that changes with each binding.
//!
//! Binding and invalidating are work requests: they keep their place among the others of a queue pair, and cost no control call.

use std::{
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use roced_shared::abi::{
    control::{AllocMw, AllocMwRequest, DeallocMw, Handle, access},
    wqe,
};

use crate::{
    error::Result,
    mr::{Access, MemoryRegion, RemoteMemory, range_of},
    pd::PdInner,
};

/// To whom a memory window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Type 1: to peers of every queue pair of its protection domain. A new bind moves it; a bind of no bytes closes it.
    One,
    /// Type 2 (2B): to the peer of the queue pair that bound it. It is made invalid, by [`crate::SendRequest::local_invalidate`] or by the peer's
    /// SEND with invalidate, before it is bound again.
    Two,
}

/// A memory window. Dropping it closes it. A region to which a window is bound cannot be deregistered: drop or invalidate the window first.
#[derive(Debug)]
pub struct MemoryWindow {
    pd: Arc<PdInner>,
    handle: u32,
    kind: WindowKind,
    rkey: AtomicU32,
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

    /// To whom it opens.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The key of the last [`Self::bind`].
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Relaxed)
    }

    /// What binds it to a range of `region` with these rights of peers; [`crate::SendRequest::bind`] makes a work request of it. Its key is
    /// another each time, so that a peer with an old one is refused. The region needs [`Access::WINDOW_BIND`], and
    /// [`Access::LOCAL_WRITE`] when peers may write or use atomic operations.
    ///
    /// # Panics
    /// When the range lies outside the region, as slices do.
    pub fn bind(&self, region: &MemoryRegion, range: impl RangeBounds<usize>, access: Access) -> WindowBinding {
        let (start, end) = range_of(range, region.len());
        let window = wqe::BindWindow {
            va: region.remote().va + start as u64,
            length: (end - start) as u64,
            lkey: region.lkey(),
            // That peers may write includes that local work may: a window knows only peers.
            access: access.bits() & access::REMOTE,
        };
        let next = |key: u32| key & !0xff | key.wrapping_add(1) & 0xff;
        let old = self.rkey.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |key| Some(next(key)));
        WindowBinding { rkey: next(old.unwrap_or_else(|key| key)), window }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // Fails only when the session is over, and then the window is too.
        let _ = self.pd.device.session.call::<DeallocMw>(Handle { handle: self.handle });
    }
}

/// What a memory window is to open, under which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it does nothing until it is posted"]
pub struct WindowBinding {
    pub(crate) rkey: u32,
    pub(crate) window: wqe::BindWindow,
}

impl WindowBinding {
    /// A binding whose key and place the caller keeps account of: `rkey` is the window's, with other lower 8 bits than before; `lkey` and `va` are
    /// those of the region. Whether they fit, the work request's end tells.
    pub const fn new(rkey: u32, lkey: u32, va: u64, length: u64, access: Access) -> Self {
        let access = access.bits() & (access::REMOTE | access::ZERO_BASED);
        Self { rkey, window: wqe::BindWindow { va, length, lkey, access } }
    }

    /// Lets peers name its bytes from 0 on, not by their address. Only for a window of type 2.
    pub const fn zero_based(mut self) -> Self {
        self.window.access |= access::ZERO_BASED;
        self
    }

    /// What a peer needs to reach all of it, once it is bound.
    pub const fn remote(&self) -> RemoteMemory {
        let zero_based = self.window.access & access::ZERO_BASED != 0;
        let va = if zero_based { 0 } else { self.window.va };
        RemoteMemory { va, length: self.window.length, rkey: self.rkey }
    }
}
