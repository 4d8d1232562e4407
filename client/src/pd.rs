//! Protection domains: groups of memory regions and queue pairs that work together.

use std::sync::Arc;

use roced_shared::abi::control::{DeallocPd, Handle};

use crate::{
    ah::{AddressHandle, AddressOptions},
    cq::CompletionQueue,
    device::{Device, DeviceInner},
    error::Result,
    exclusive::Exclusive,
    mr::{Access, MemoryRegion, RegionMemory},
    mw::{MemoryWindow, WindowKind},
    qp::QpBuilder,
    srq::SharedReceiveQueue,
};

/// A protection domain. Clones name the same domain, which is deallocated when the last clone and
/// every object created from it are gone.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) handle: u32,
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32) -> Self {
        Self { inner: Arc::new(PdInner { device: Arc::clone(device), handle }) }
    }

    /// Device of the domain.
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    /// Number of the domain in this session.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Allocates `bytes` of zeroed memory and registers all of it.
    ///
    /// # Errors
    /// The session's limits; no memory; the daemon is gone.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion> {
        self.register(&self.device().allocate(bytes)?, 0, bytes, access)
    }

    /// Registers `length` bytes from `offset` of `memory`.
    ///
    /// # Errors
    /// A range outside the memory; the session's limit; the daemon is gone.
    pub fn register(
        &self,
        memory: &RegionMemory,
        offset: usize,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        MemoryRegion::register(&self.inner, memory, offset, length, access)
    }

    /// Registers `length` bytes of the program's own memory from `address`, of any kind: heap,
    /// stack, a large allocation. Work requests and peers name the first byte by `iova`, which is
    /// usually `address`. `docs/memory.md` describes the treatment of the pages.
    ///
    /// # Safety
    /// Until the region is dropped, the range stays mapped unchanged, and no Rust reference exists
    /// there that rules out the accesses that these rights allow to peers and work requests, or
    /// those of the methods of [`MemoryRegion`].
    ///
    /// # Errors
    /// No bytes; memory that is not mapped, or belongs to a device or the kernel; rights that the
    /// program itself does not have; [`Access::REMOTE_ATOMIC`] on memory that stays in place
    /// ("kept" in `docs/memory.md`); the session's limits; the daemon is gone.
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that the memory stays mapped")]
    pub unsafe fn register_at(
        &self,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller vouches for the same.
        unsafe { MemoryRegion::register_program(&self.inner, address, length, iova, access) }
    }

    /// Allocates a memory window, bound to no memory.
    ///
    /// # Errors
    /// The session's limit, which regions and windows share; the daemon is gone.
    pub fn memory_window(&self, kind: WindowKind) -> Result<MemoryWindow> {
        MemoryWindow::allocate(&self.inner, kind)
    }

    /// Creates an address handle, which names the destination of datagrams. Keep it until the sends
    /// that use it have completed, see [`AddressHandle`].
    ///
    /// # Errors
    /// No route; no source GID; the session's limit; the daemon is gone. The presence of the
    /// destination is never checked.
    pub fn address_handle(&self, options: &AddressOptions) -> Result<AddressHandle> {
        AddressHandle::create(self, options)
    }

    /// Creates a shared receive queue for at least `wrs` receives of at most `sges` scatter/gather
    /// entries (32 at most), into memory of this domain.
    ///
    /// A full queue can refuse a receive directly after a completion was reaped: see
    /// [`SharedReceiveQueue::post_recv`] for the size to choose.
    ///
    /// # Errors
    /// Sizes or the session's limits; no memory; the daemon is gone.
    pub fn shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::create(self, wrs, sges, Exclusive::locked)
    }

    /// Creates a shared receive queue as [`Self::shared_receive_queue`], but without the lock for
    /// posting.
    ///
    /// # Safety
    /// At any time, at most one thread posts to the queue. (Any thread may reap completions
    /// meanwhile.)
    ///
    /// # Errors
    /// Those of [`Self::shared_receive_queue`].
    #[expect(unsafe_code, reason = "the caller promises what no type can show")]
    pub unsafe fn single_threaded_shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        // SAFETY: the caller promised it; posting releases its access before it returns.
        SharedReceiveQueue::create(self, wrs, sges, |side| unsafe { Exclusive::promised(side) })
    }

    /// Starts to configure a queue pair; its sends complete into `send_cq` and its receives into
    /// `recv_cq`.
    pub fn queue_pair<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QpBuilder<'a> {
        QpBuilder::new(self, send_cq, recv_cq)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Fails only if the session has ended, which deallocates the domain as well.
        let _ = self.device.session.call::<DeallocPd>(Handle { handle: self.handle });
    }
}
