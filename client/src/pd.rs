//! Protection domains: memory regions and queue pairs of one go together.

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

/// A protection domain. Clones name the same one; it ends when the last clone and everything made from it are gone.
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

    /// The device that it was made on.
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    /// Its number in this session.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Makes `bytes` of zeroed memory and registers all of it.
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

    /// Registers `length` bytes of this program's own memory from `address`, whatever they lie in: heap, stack, a large allocation. Work requests and
    /// peers name the first byte by `iova`, which is usually `address`. `docs/memory.md` says what happens to the pages.
    ///
    /// # Safety
    /// Until the region is dropped, the range stays mapped, as it is now, and nobody has a Rust reference there that rules out what peers and
    /// work requests may do with these rights, or that [`MemoryRegion`]'s methods do.
    ///
    /// # Errors
    /// No bytes; memory that is not mapped, or is a device's or the kernel's own; rights that the program itself does not have;
    /// [`Access::REMOTE_ATOMIC`] on memory that stays where it is ("kept" in `docs/memory.md`); the session's limits; the daemon is gone.
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

    /// Makes a memory window, bound to nothing.
    ///
    /// # Errors
    /// The session's limit, which regions and windows share; the daemon is gone.
    pub fn memory_window(&self, kind: WindowKind) -> Result<MemoryWindow> {
        MemoryWindow::allocate(&self.inner, kind)
    }

    /// Makes an address handle, by which datagrams say where they go.
    ///
    /// # Errors
    /// No route; no GID to come from; the session's limit; the daemon is gone. Whether anybody is there never shows.
    pub fn address_handle(&self, options: &AddressOptions) -> Result<AddressHandle> {
        AddressHandle::create(self, options)
    }

    /// Makes a shared receive queue for at least `wrs` receives of at most `sges` scatter/gather entries (32 at most), whose memory is of
    /// this domain.
    ///
    /// # Errors
    /// Sizes or the session's limits; no memory; the daemon is gone.
    pub fn shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::create(self, wrs, sges, Exclusive::locked)
    }

    /// As [`Self::shared_receive_queue`], without the lock of those who post.
    ///
    /// # Safety
    /// One thread at a time posts to it. (Any may take completions meanwhile.)
    ///
    /// # Errors
    /// As [`Self::shared_receive_queue`].
    #[expect(unsafe_code, reason = "the caller promises what no type can show")]
    pub unsafe fn single_threaded_shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        // SAFETY: the caller promised it; posting gives it up before it returns.
        SharedReceiveQueue::create(self, wrs, sges, |side| unsafe { Exclusive::promised(side) })
    }

    /// Begins a queue pair whose sends complete into `send_cq` and whose receives into `recv_cq`.
    pub fn queue_pair<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QpBuilder<'a> {
        QpBuilder::new(self, send_cq, recv_cq)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Fails only when the session is over, and then the domain is too.
        let _ = self.device.session.call::<DeallocPd>(Handle { handle: self.handle });
    }
}
