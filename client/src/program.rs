//! Registration of the program's own memory: makes it accessible to the daemon.
//!
//! Private memory becomes pages of one memfd of this process, which is as large as the address
//! space: **the file offset of a page equals its address.** Each page therefore has one location,
//! regardless of the number of registrations over it and of their devices; a registration of any
//! range is one range of one file; the mappings in `/proc/self/maps` show the state of an address
//! without a separate record; and the program goes on using its memory as before.
//!
//! ```text
//!   program   ── 0x7f.. ┌──────┐            memfd "roced-program", sparse, sealed      daemon
//!   threads             │ page │ ◄─ mapped ─ ... │ 0x7f.. │ ... ── mapped ──►  a region
//!                       └──────┘
//! ```
//!
//! When the last registration over a page ends, its bytes return to private memory and leave the
//! file.
//!
//! Memory that the program itself shares, as a memfd or a tmpfs file, is unchanged: the daemon maps
//! its own file. Memory that can neither be exchanged nor mapped stays in place, and the daemon has
//! the kernel copy, by a descriptor of `/proc/self/mem`, so that it needs no rights beyond those of
//! this process.

mod areas;
mod counts;
mod exchange;
mod exchange_thread;
mod file;
mod fork;
mod pace;
mod pinned;
mod scheduling;
mod userfaultfd;

use std::{
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    process, slice,
    sync::Mutex,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        resource::{RLIM_INFINITY, Resource, getrlimit},
    },
    unistd::ftruncate,
};
use roced_abi::control::origin;

pub use self::pace::ExchangeCost;
use self::{
    areas::{Area, Identity},
    counts::PageCounts,
    exchange::Exchange,
    exchange_thread::on_a_thread,
};
use crate::{
    error::{Error, Result},
    private_memory::PrivateMemory,
    socket::lock,
};

/// Bytes per page.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Size of the file, beyond the end of the address space: user space ends at 2^47 on most machines.
const FILE_BYTES: usize = 1 << 48;

/// Shared pages of this process. The lock holder may exchange pages.
static PAGES: Mutex<Option<Pages>> = Mutex::new(None);

#[derive(Debug)]
struct Pages {
    /// Process that the record belongs to: a forked child has the record of its parent until it
    /// checks.
    pid: u32,
    file: OwnedFd,
    identity: Identity,
    counts: PageCounts,
    /// Pages that are registered only in part: the rest may contain any data.
    edges: PageCounts,
}

/// A way for the daemon to access memory of the program.
#[derive(Debug)]
pub(crate) struct ProgramBacking {
    pub(crate) file: OwnedFd,
    /// The whole pages.
    pub(crate) pages: Range<usize>,
    /// Offset of the pages in the file.
    pub(crate) offset: u64,
    pub(crate) writable: bool,
    pub(crate) origin: u32,
    /// Keeps private memory shared.
    pub(crate) held: Option<SharedPages>,
    /// For memory that stays in place, the reason why it could not be exchanged.
    pub(crate) because: Option<Error>,
}

/// Makes `range` accessible to the daemon, for writing if `write` is set; private memory in the way
/// that `private` chooses.
///
/// # Errors
/// The range is not mapped, or lacks the rights; an error of the kernel. The memory is unchanged on
/// error.
pub(crate) fn reach(range: &Range<usize>, write: bool, private: PrivateMemory) -> Result<ProgramBacking> {
    let because = match SharedPages::new(range, write, private) {
        Ok(held) => {
            let (file, pages) = (held.file()?, held.range());
            let (offset, origin) = (pages.start as u64, origin::MIGRATED);
            return Ok(ProgramBacking { file, pages, offset, writable: true, origin, held: Some(held), because: None });
        }
        Err(other @ (Error::OtherMemory { .. } | Error::NoPageExchange { .. } | Error::StaysInPlace { .. })) => other,
        Err(error) => return Err(error),
    };
    let (pages, areas) = (whole_pages(range)?, areas::all()?);
    // Memory that the program itself shares is used unchanged.
    if let Some((file, offset)) = file::behind(&areas, &pages, write)? {
        // Its pages belong to the control group of this process, not to that of the daemon, which
        // makes none.
        exchange::populate(&pages, write)?;
        return Ok(ProgramBacking {
            file,
            pages,
            offset,
            writable: write,
            origin: origin::FILE_BACKED,
            held: None,
            because: None,
        });
    }
    in_place(pages, &areas, write, because)
}

/// Makes `range` accessible to the daemon where it is, because the daemon maps no memory of this
/// kind.
///
/// # Errors
/// As for [`reach`].
pub(crate) fn stay(range: &Range<usize>, write: bool, because: Error) -> Result<ProgramBacking> {
    let (pages, areas) = (whole_pages(range)?, areas::all()?);
    in_place(pages, &areas, write, because)
}

fn in_place(pages: Range<usize>, areas: &[Area], write: bool, because: Error) -> Result<ProgramBacking> {
    areas::check_rights(&areas::within(areas, &pages)?, write)?;
    let Some(file) = file::own_memory() else { return Err(because) };
    // Otherwise the daemon's first access to a page would fault it in, which still happens for
    // pages that cannot be populated now.
    let _ = exchange::populate(&pages, write);
    let (offset, origin) = (pages.start as u64, origin::PROXIED);
    Ok(ProgramBacking { file, pages, offset, writable: write, origin, held: None, because: Some(because) })
}

/// Memory of the program, shared until this value is dropped.
#[derive(Debug)]
pub(crate) struct SharedPages {
    pid: u32,
    range: Range<usize>,
    edges: Vec<Range<usize>>,
    pub(crate) cost: ExchangeCost,
}

impl SharedPages {
    /// Shares the whole pages that contain `range`, unless they are shared already. With `write`,
    /// the program must be able to write there.
    ///
    /// # Errors
    /// Memory of another kind, or unmapped; an error of the kernel. The memory is unchanged on
    /// error.
    fn new(range: &Range<usize>, write: bool, choice: PrivateMemory) -> Result<Self> {
        let pages = &mut *lock(&PAGES);
        if pages.as_ref().is_none_or(|pages| pages.pid != process::id()) {
            fork::watch();
            *pages = Some(Pages::new()?);
        }
        let pages = pages.as_mut().expect("made above");
        let (asked, range) = (range, whole_pages(range)?);
        let cost = pages.hold(&range, write, choice)?;
        let edges = edges_of(asked, &range);
        edges.iter().for_each(|edge| pages.edges.add(edge));
        Ok(Self { pid: pages.pid, range, edges, cost })
    }

    /// The whole pages.
    fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The file that contains the pages, each at the offset that equals its address.
    fn file(&self) -> Result<OwnedFd> {
        let pages = lock(&PAGES);
        let pages = pages.as_ref().filter(|pages| pages.pid == self.pid).ok_or(Error::OtherProcess)?;
        pages
            .file
            .try_clone()
            .map_err(|error| Error::Kernel { call: "dup", errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) })
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        let pages = &mut *lock(&PAGES);
        if let Some(pages) = pages.as_mut().filter(|pages| pages.pid == self.pid && self.pid == process::id()) {
            self.edges.iter().for_each(|edge| drop(pages.edges.remove(edge)));
            pages.release(&self.range);
        }
    }
}

impl Pages {
    fn new() -> Result<Self> {
        let limit = getrlimit(Resource::RLIMIT_FSIZE).map_err(Error::kernel("getrlimit"))?.0;
        // The kernel would not only refuse, but send a signal that terminates the program.
        if limit != RLIM_INFINITY && limit < FILE_BYTES as u64 {
            return Err(Error::NoPageExchange { errno: Errno::EFBIG });
        }
        let file = memfd_create(c"roced-program", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(Error::kernel("memfd_create"))?;
        ftruncate(&file, FILE_BYTES as i64).map_err(Error::kernel("ftruncate"))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(Error::kernel("fcntl"))?;
        let identity = Identity::of(&file)?;
        Ok(Self { pid: process::id(), file, identity, counts: PageCounts::new(), edges: PageCounts::new() })
    }

    /// Shares the pages and returns the cost, which is zero if all were shared already.
    fn hold(&mut self, range: &Range<usize>, write: bool, choice: PrivateMemory) -> Result<ExchangeCost> {
        let areas = areas::all()?;
        let parts = areas::within(&areas, range)?;
        // The kernel extends the main stack below its first page, provided that the mapping there
        // is unchanged.
        if let Some(stack) = areas.iter().find(|area| area.name == "[stack]" && range.contains(&area.range.start)) {
            return Err(Error::OtherMemory { address: stack.range.start, name: "[stack], where it grows".into() });
        }
        if let Some(unfit) = parts.iter().find(|area| !(area.is_plain() || area.mirrors(self.identity))) {
            return Err(Error::OtherMemory { address: unfit.range.start, name: unfit.name.clone() });
        }
        areas::check_rights(&parts, write)?;
        let private: Vec<_> = parts.into_iter().filter(Area::is_plain).collect();
        if private.is_empty() {
            self.counts.add(range);
            return Ok(ExchangeCost::default());
        }
        check_movable(&private, choice)?;
        self.counts.add(range);
        let cost = on_a_thread(slice::from_ref(range), || {
            let mut exchange = Exchange::new(self.file.as_fd())?;
            private.iter().try_for_each(|area| exchange.share(area))?;
            Ok(exchange.cost())
        });
        cost.inspect_err(|_| self.release(range))
    }

    /// Undoes [`Self::hold`].
    fn release(&mut self, range: &Range<usize>) {
        let free = self.counts.remove(range);
        if free.is_empty() {
            return;
        }
        // Pages that cannot be made private again stay shared: the program sees no difference,
        // except in the accounting of its memory.
        let _ = on_a_thread(&free, || {
            let areas = areas::all()?;
            let mut exchange = Exchange::new(self.file.as_fd())?;
            for range in &free {
                self.make_private(&mut exchange, &areas, range)?;
            }
            Ok(exchange.cost())
        });
    }

    /// Makes private the part of `range` that still shows the file. The program may have unmapped
    /// it meanwhile, or mapped other memory there. Pages that may have been pinned meanwhile stay.
    fn make_private(&self, exchange: &mut Exchange<'_>, areas: &[Area], range: &Range<usize>) -> Result<()> {
        let overlap = |area: &Area| area.range.start.max(range.start)..area.range.end.min(range.end);
        for area in areas.iter().filter(|area| area.mirrors(self.identity)) {
            let part = overlap(area);
            let part = Area { range: part, ..area.clone() };
            if part.range.is_empty() {
                continue;
            }
            if pinned::cause(slice::from_ref(&part)).is_some() {
                return Ok(());
            }
            exchange.unshare(&part)?;
        }
        // Memory moved by the program shows the file at another address: the file is the only copy
        // of its bytes.
        let moved =
            areas.iter().filter(|area| area.shared && area.identity == self.identity && !area.mirrors(self.identity));
        let shown = |area: &Area| {
            area.offset < range.end as u64 && (range.start as u64) < area.offset + area.range.len() as u64
        };
        if moved.into_iter().any(shown) { Ok(()) } else { exchange::punch(self.file.as_fd(), range) }
    }
}

/// Checks that the pages of `parts`, which are private, may be exchanged.
fn check_movable(parts: &[Area], choice: PrivateMemory) -> Result<()> {
    let because = match choice {
        PrivateMemory::Migrated => None,
        PrivateMemory::Proxied => Some("the program asks for it (PrivateMemory::Proxied)"),
        PrivateMemory::Auto => pinned::cause(parts),
    };
    because.map_or(Ok(()), |because| Err(Error::StaysInPlace { because }))
}

/// Returns the first and the last page of `pages` if `range` covers only a part of them.
fn edges_of(range: &Range<usize>, pages: &Range<usize>) -> Vec<Range<usize>> {
    let first = (range.start != pages.start).then_some(pages.start);
    let last = (range.end != pages.end).then_some(pages.end - PAGE_BYTES).filter(|last| Some(*last) != first);
    first.into_iter().chain(last).map(|page| page..page + PAGE_BYTES).collect()
}

/// Returns the whole pages that contain `range`.
fn whole_pages(range: &Range<usize>) -> Result<Range<usize>> {
    let end = range.end.checked_next_multiple_of(PAGE_BYTES).filter(|end| *end <= FILE_BYTES);
    let end = end.ok_or(Error::NotMapped { address: range.end })?;
    if range.is_empty() {
        return Err(Error::NotMapped { address: range.start });
    }
    Ok(range.start / PAGE_BYTES * PAGE_BYTES..end)
}

#[cfg(test)]
mod tests;
