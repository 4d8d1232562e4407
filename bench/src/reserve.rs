//! Free memory that the host of a virtual machine cannot take back.
//!
//! With free page reporting the host takes the free pages of a guest, and brings a page again when
//! it is used, which takes several times as long as sending a frame. Most traffic has the same
//! pages again and again. But where one core takes pages and another frees them, as when the
//! receiver's NAPI is moved, it goes through all that is free, and the measured time is that of the
//! host to bring pages. A machine that has its memory has no such thing.
//!
//! So memory is touched before the first round and given back, but for a page of each block: pieces
//! that small are not told to the host. Those pages wait in pipes, because there the kernel cannot
//! move them together, as it does with the pages of a block that is in pieces.
#![expect(unsafe_code, reason = "maps memory, and gives it back in pieces")]

use std::{fs, io::IoSlice, num::NonZeroUsize, os::fd::OwnedFd, ptr::NonNull};

use anyhow::{Context, ensure};
use nix::{
    fcntl::{FcntlArg, SpliceFFlags, fcntl, vmsplice},
    libc::{c_int, c_void},
    sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap},
    unistd::pipe,
};

/// Of which one page is kept: the smallest blocks that were seen to be told are of order 5.
const BLOCK_BYTES: usize = 128 << 10;

const PAGE_BYTES: usize = 4096;
const GIB: usize = 1 << 30;

/// Pages that a pipe is given: the most that it has room for without privileges
/// (`fs.pipe-max-size`), and less than one call takes.
const PAGES_OF_PIPE: usize = 256;

/// Memory that is left for the rest of the machine, at least.
const LEFT_GIB: usize = 2;

/// Keeps a page of each block until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserve {
    base: NonNull<c_void>,
    bytes: usize,
    /// One end of each: it is there as long as that.
    pipes: Vec<OwnedFd>,
}

impl Reserve {
    /// Touches so many GiB, and gives back the pages that need not be kept. Says on stderr how far
    /// it is.
    pub(crate) fn take(gib: usize) -> anyhow::Result<Self> {
        let available = available_gib().context("/proc/meminfo does not say how much memory is available")?;
        let most = available.saturating_sub(LEFT_GIB);
        ensure!(
            (1..=most).contains(&gib),
            "--keep-memory {gib}: {available} GiB are available, so 1 to {most} may be kept"
        );
        let bytes = gib * GIB;
        let length = NonZeroUsize::new(bytes).expect("one at least");
        let (protection, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, length, protection, flags) }.context("mmap")?;
        let mut this = Self { base, bytes, pipes: Vec::new() };
        this.advise(0, bytes, MmapAdvise::MADV_NOHUGEPAGE)?;
        for at in (0..bytes).step_by(PAGE_BYTES) {
            if at % GIB == 0 {
                eprintln!("touching memory: {} of {gib} GiB", at / GIB);
            }
            // SAFETY: `at` lies in the mapping, which no other code knows.
            unsafe { this.base.byte_add(at).cast::<u8>().write_volatile(1) };
        }
        let blocks: Vec<usize> = (0..bytes).step_by(BLOCK_BYTES).collect();
        for some in blocks.chunks(PAGES_OF_PIPE) {
            let pipe = this.put_into_pipe(some)?;
            this.pipes.push(pipe);
        }
        for at in blocks {
            this.advise(at + PAGE_BYTES, BLOCK_BYTES - PAGE_BYTES, MmapAdvise::MADV_DONTNEED)?;
        }
        Ok(this)
    }

    /// Puts the pages at these places into a pipe.
    fn put_into_pipe(&self, places: &[usize]) -> anyhow::Result<OwnedFd> {
        let (out, into) = pipe().context("pipe")?;
        let bytes = (places.len() * PAGE_BYTES) as c_int;
        fcntl(&into, FcntlArg::F_SETPIPE_SZ(bytes)).context("a pipe of a mebibyte (fs.pipe-max-size)")?;
        // SAFETY: each page lies in the mapping, and no code writes there any more.
        let page =
            |at: &usize| unsafe { std::slice::from_raw_parts(self.base.byte_add(*at).cast().as_ptr(), PAGE_BYTES) };
        let pages: Vec<IoSlice<'_>> = places.iter().map(page).map(IoSlice::new).collect();
        let given = vmsplice(&into, &pages, SpliceFFlags::SPLICE_F_NONBLOCK).context("vmsplice")?;
        ensure!(given as c_int == bytes, "a pipe took {given} bytes of {bytes}");
        Ok(out)
    }

    fn advise(&self, at: usize, bytes: usize, advice: MmapAdvise) -> anyhow::Result<()> {
        // SAFETY: the range lies in the mapping, to which no reference exists.
        unsafe { madvise(self.base.byte_add(at), bytes, advice) }.context("madvise")
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: our own mapping. An error leaves it there until this process ends, which is soon.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

/// Memory that programs may have without swapping.
fn available_gib() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 20)
}
