//! Memory of the test that cannot be mapped by others: a private mapping of a file.

use std::{io::Write as _, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use roced_client::{Access, Error, MemoryRegion, ProtectionDomain};

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// A private mapping, of a file unless it says otherwise.
pub(crate) struct Private {
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
}

impl Private {
    pub(crate) fn of_file(bytes: usize) -> Self {
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
        file.write_all(&vec![0x55; bytes]).expect("room");
        let length = NonZeroUsize::new(bytes).expect("some");
        // SAFETY: a new mapping touches nothing that exists.
        let base = unsafe { mmap(None, length, READ_WRITE, MapFlags::MAP_PRIVATE, &file, 0) };
        Self { base: base.expect("it can be mapped").cast(), bytes }
    }

    /// Another mapping in its place from `offset` on: of an empty file, so that there is nothing,
    /// or of no file. (An unmapped range could be taken by any other mapping: the daemon runs in
    /// this process.)
    pub(crate) fn replace(&self, offset: usize, there: bool) {
        let at = NonZeroUsize::new(self.base.as_ptr().addr() + offset);
        let length = NonZeroUsize::new(self.bytes - offset).expect("some");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        let empty = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
        // SAFETY: over our own mapping, which only the daemon reaches.
        let mapped = unsafe {
            if there {
                nix::sys::mman::mmap_anonymous(at, length, READ_WRITE, flags)
            } else {
                mmap(at, length, READ_WRITE, flags, &empty, 0)
            }
        };
        mapped.expect("it can be mapped");
    }

    pub(crate) fn register(&self, pd: &ProtectionDomain, access: Access) -> Result<MemoryRegion, Error> {
        let address = self.base.as_ptr().expose_provenance() as u64;
        // SAFETY: each test drops its regions before its mappings, or has the daemon alone touch
        // them.
        unsafe { pd.register_at(self.base.as_ptr(), self.bytes, address, access) }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is unused from here on.
        unsafe { munmap(self.base.cast(), self.bytes) }.expect("it is mapped");
    }
}
