//! Region memory: memory allocated by the daemon and mapped by both sides.

use std::{ops::Range, os::fd::OwnedFd, sync::Arc};

use roced_abi::control::{AllocMemory, FreeMemory, Handle, MemoryRequest};

use crate::{
    device::{Device, DeviceInner},
    error::{Error, Result},
    mapping::{ClientMapping, Mode},
    pd::PdInner,
    socket::lock,
};

/// Memory that this process and the daemon map. Clones name the same memory, which is freed when
/// the last clone and every region in it are gone.
///
/// ```no_run
/// # use roced_client::{Access, Device};
/// # fn main() -> roced_client::Result<()> {
/// let device = Device::open("roce0")?;
/// let pd = device.protection_domain()?;
/// // One allocation, two regions: peers write to the first half and read from the second.
/// let memory = device.allocate(8192)?;
/// let inbox = pd.register(&memory, 0, 4096, Access::REMOTE_WRITE)?;
/// let outbox = pd.register(&memory, 4096, 4096, Access::REMOTE_READ)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RegionMemory {
    pub(crate) inner: Arc<MemoryInner>,
}

#[derive(Debug)]
pub(crate) struct MemoryInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) handle: u32,
    pub(crate) mapping: Arc<ClientMapping>,
    /// Requested size; the mapping consists of whole pages.
    bytes: usize,
}

impl Device {
    /// Allocates at least `bytes` of zeroed memory that the daemon maps as well.
    ///
    /// # Errors
    /// The session's limit; no memory; the daemon is gone.
    pub fn allocate(&self, bytes: usize) -> Result<RegionMemory> {
        let request = MemoryRequest { bytes: bytes as u64 };
        let (reply, [fd]) = self.inner.session.call_with_fds::<AllocMemory, 1>(request)?;
        RegionMemory::new(&self.inner, reply.handle, &fd, bytes)
    }
}

impl RegionMemory {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32, fd: &OwnedFd, bytes: usize) -> Result<Self> {
        let whole = bytes.next_multiple_of(4096);
        let mapping = ClientMapping::new(fd, whole, Mode::Populated).inspect_err(|_| {
            // The session goes on, so the daemon must not keep the memory.
            let _ = device.session.call::<FreeMemory>(Handle { handle });
        })?;
        let inner = Arc::new(MemoryInner { device: Arc::clone(device), handle, mapping, bytes });
        lock(&device.memories).insert(inner.start(), Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Finds the memory of this device that contains `range`, and the offset of the range in it.
    pub(crate) fn around(device: &DeviceInner, range: &Range<usize>) -> Option<(Self, usize)> {
        // The lock is released before the memory found here may be dropped, because its drop takes
        // the lock.
        let found =
            |range| lock(&device.memories).range(range).next_back().map(|(start, inner)| (*start, inner.upgrade()));
        let (start, inner) = found(..=range.start)?;
        let (offset, inner) = (range.start - start, inner?);
        let inside = offset.checked_add(range.len()).is_some_and(|end| end <= inner.bytes);
        inside.then_some((Self { inner }, offset))
    }

    /// Returns the address of a range to be registered.
    pub(crate) fn address(&self, pd: &PdInner, offset: usize, length: usize) -> Result<u64> {
        if !Arc::ptr_eq(&pd.device, &self.inner.device) {
            return Err(Error::OtherDevice { object: "the memory", owner: "the protection domain" });
        }
        let size = self.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, length, size });
        }
        Ok(self.inner.mapping.at(offset, length).as_ptr().addr() as u64)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.inner.bytes
    }

    /// True if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.inner.bytes == 0
    }
}

impl MemoryInner {
    fn start(&self) -> usize {
        self.mapping.at(0, self.bytes).as_ptr().addr()
    }
}

impl Drop for MemoryInner {
    fn drop(&mut self) {
        // Before unmapping, so that no lookup finds other memory in its place.
        lock(&self.device.memories).remove(&self.start());
        // Fails only if the session has ended; the daemon has dropped the memory in that case.
        let _ = self.device.session.call::<FreeMemory>(Handle { handle: self.handle });
    }
}
