//! Memory of the test that is a shared mapping of a file.

use std::{num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use roced_client::{Access, Error, MemoryRegion, ProtectionDomain};

/// Memory that the program maps.
pub(crate) struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    pub(crate) fn new(fd: impl AsFd, offset: i64, bytes: usize, protection: ProtFlags) -> Self {
        let length = NonZeroUsize::new(bytes).expect("some");
        // SAFETY: a new mapping touches nothing that exists.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, offset) };
        Self { base: base.expect("it can be mapped").cast(), bytes }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Registers some of it.
    pub(crate) fn register(
        &self,
        pd: &ProtectionDomain,
        range: std::ops::Range<usize>,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: each test drops its regions before its mappings, and looks at the bytes by the
        // regions.
        unsafe { pd.register_at(self.at(range.start), range.len(), self.at(range.start).addr() as u64, access) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is unused from here on.
        unsafe { munmap(self.base.cast(), self.bytes) }.expect("it is mapped");
    }
}
