//! Memory of the program itself, whatever it is, made such that the daemon can map it.
//!
//! Private memory becomes pages of one memfd of this process, which is as large as the address space: **what lies at an address
//! lies in the file at that offset.** So each page has one place, however many registrations lie over it and whichever device they are of; a
//! registration of any range is one range of one file; the mappings that `/proc/self/maps` shows say what has become of an address
//! without any record of ours; and the program goes on using its memory as it did.
//!
//! ```text
//!   program   ── 0x7f.. ┌──────┐            memfd "roced-program", sparse, sealed      daemon
//!   threads             │ page │ ◄─ mapped ─ ... │ 0x7f.. │ ... ── mapped ──►  a region
//!                       └──────┘
//! ```
//!
//! When the last registration over a page is gone, its bytes go back to private memory and out of the file.
//!
//! Memory that the program itself shares, as a memfd or a tmpfs file, is left alone: its own file is what the daemon maps. What can neither be
//! exchanged nor mapped stays where it is, and the daemon has the kernel copy: by a descriptor of `/proc/self/mem`, so that it needs no right but ours.

mod areas;
mod counts;
mod exchange;
mod file;
mod fork;
mod helper;
mod pace;
mod turns;
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

use roced_shared::abi::control::origin;

pub use self::pace::ExchangeCost;
use self::{
    areas::{Area, Identity},
    counts::PageCounts,
    exchange::Exchange,
    helper::on_a_thread,
};
use crate::{
    error::{Error, Result},
    socket::lock,
};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Beyond this no program has memory, and the file ends: 2^47 is the end of user space on most machines.
const FILE_BYTES: usize = 1 << 48;

/// The pages of this process that are shared. Whoever holds it may exchange pages.
static PAGES: Mutex<Option<Pages>> = Mutex::new(None);

#[derive(Debug)]
struct Pages {
    /// The process that it is of: a forked child has its parent's until it looks.
    pid: u32,
    file: OwnedFd,
    identity: Identity,
    counts: PageCounts,
    /// Pages of which only a part is registered: the rest may be anybody's.
    edges: PageCounts,
}

/// How the daemon can map memory of the program.
#[derive(Debug)]
pub(crate) struct ProgramBacking {
    pub(crate) file: OwnedFd,
    /// The whole pages.
    pub(crate) pages: Range<usize>,
    /// Where they begin in the file.
    pub(crate) offset: u64,
    pub(crate) writable: bool,
    pub(crate) origin: u32,
    /// Keeps private memory shared.
    pub(crate) held: Option<Held>,
    /// Why nothing better could be done, for memory that stays where it is.
    pub(crate) because: Option<Error>,
}

/// Makes `range` such that the daemon can reach it, for writing if `write` says so.
///
/// # Errors
/// It is not mapped, or without the rights; the kernel said no. Then all is as it was.
pub(crate) fn reach(range: &Range<usize>, write: bool) -> Result<ProgramBacking> {
    let because = match Held::new(range, write) {
        Ok(held) => {
            let (file, pages) = (held.file()?, held.range());
            let (offset, origin) = (pages.start as u64, origin::REPLACED);
            return Ok(ProgramBacking { file, pages, offset, writable: true, origin, held: Some(held), because: None });
        }
        Err(other @ (Error::OtherMemory { .. } | Error::NoPageExchange { .. })) => other,
        Err(error) => return Err(error),
    };
    let (pages, areas) = (whole_pages(range)?, areas::all()?);
    // Memory that the program itself shares stays as it is.
    if let Some((file, offset)) = file::behind(&areas, &pages, write)? {
        return Ok(ProgramBacking {
            file,
            pages,
            offset,
            writable: write,
            origin: origin::SHARED,
            held: None,
            because: None,
        });
    }
    areas::check_rights(&areas::within(&areas, &pages)?, write)?;
    let Some(file) = file::own_memory() else { return Err(because) };
    // Else the daemon's first access to a page would be the one to bring it. What cannot be brought now is brought then.
    let _ = exchange::populate(&pages, write);
    let (offset, origin) = (pages.start as u64, origin::PROXIED);
    Ok(ProgramBacking { file, pages, offset, writable: write, origin, held: None, because: Some(because) })
}

/// Memory of the program that is shared for as long as this lives.
#[derive(Debug)]
pub(crate) struct Held {
    pid: u32,
    range: Range<usize>,
    edges: Vec<Range<usize>>,
    pub(crate) cost: ExchangeCost,
}

impl Held {
    /// Shares the whole pages on which `range` lies, where they are not yet. `write`: the program must be able to write there.
    ///
    /// # Errors
    /// There is memory of another kind, or none; the kernel said no. Then all is as it was.
    fn new(range: &Range<usize>, write: bool) -> Result<Self> {
        let pages = &mut *lock(&PAGES);
        if pages.as_ref().is_none_or(|pages| pages.pid != process::id()) {
            fork::watch();
            *pages = Some(Pages::new()?);
        }
        let pages = pages.as_mut().expect("made above");
        let (asked, range) = (range, whole_pages(range)?);
        let cost = pages.hold(&range, write)?;
        let edges = edges_of(asked, &range);
        edges.iter().for_each(|edge| pages.edges.add(edge));
        Ok(Self { pid: pages.pid, range, edges, cost })
    }

    /// The whole pages.
    fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The file in which they lie, each at the offset that is its address.
    fn file(&self) -> Result<OwnedFd> {
        let pages = lock(&PAGES);
        let pages = pages.as_ref().filter(|pages| pages.pid == self.pid).ok_or(Error::OtherProcess)?;
        pages
            .file
            .try_clone()
            .map_err(|error| Error::Kernel { call: "dup", errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) })
    }
}

impl Drop for Held {
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
        // The kernel would not only refuse but send a signal that ends the program.
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

    /// What it cost; nothing where all was shared already.
    fn hold(&mut self, range: &Range<usize>, write: bool) -> Result<ExchangeCost> {
        let areas = areas::all()?;
        let parts = areas::within(&areas, range)?;
        // The kernel makes the main stack longer below its first page, as long as that is what it was.
        if let Some(stack) = areas.iter().find(|area| area.name == "[stack]" && range.contains(&area.range.start)) {
            return Err(Error::OtherMemory { address: stack.range.start, name: "[stack], where it grows".into() });
        }
        if let Some(unfit) = parts.iter().find(|area| !(area.is_plain() || area.mirrors(self.identity))) {
            return Err(Error::OtherMemory { address: unfit.range.start, name: unfit.name.clone() });
        }
        areas::check_rights(&parts, write)?;
        let private: Vec<_> = parts.into_iter().filter(Area::is_plain).collect();
        self.counts.add(range);
        if private.is_empty() {
            return Ok(ExchangeCost::default());
        }
        let cost = on_a_thread(slice::from_ref(range), || {
            let mut exchange = Exchange::new(self.file.as_fd())?;
            private.iter().try_for_each(|area| exchange.share(area))?;
            Ok(exchange.cost())
        });
        cost.inspect_err(|_| self.release(range))
    }

    /// Undoes a [`Self::hold`].
    fn release(&mut self, range: &Range<usize>) {
        let free = self.counts.remove(range);
        if free.is_empty() {
            return;
        }
        // What cannot be made private again stays shared: the program does not see a difference, only its memory is counted otherwise.
        let _ = on_a_thread(&free, || {
            let areas = areas::all()?;
            let mut exchange = Exchange::new(self.file.as_fd())?;
            for range in &free {
                self.make_private(&mut exchange, &areas, range)?;
            }
            Ok(exchange.cost())
        });
    }

    /// What of `range` still shows the file becomes private. The program may have unmapped it meanwhile, or mapped something else there.
    fn make_private(&self, exchange: &mut Exchange<'_>, areas: &[Area], range: &Range<usize>) -> Result<()> {
        let overlap = |area: &Area| area.range.start.max(range.start)..area.range.end.min(range.end);
        for area in areas.iter().filter(|area| area.mirrors(self.identity)) {
            let part = overlap(area);
            if !part.is_empty() {
                exchange.unshare(&Area { range: part, ..area.clone() })?;
            }
        }
        // Memory that the program has moved shows the file elsewhere: that is all that is left of its bytes.
        let moved =
            areas.iter().filter(|area| area.shared && area.identity == self.identity && !area.mirrors(self.identity));
        let shown = |area: &Area| {
            area.offset < range.end as u64 && (range.start as u64) < area.offset + area.range.len() as u64
        };
        if moved.into_iter().any(shown) { Ok(()) } else { exchange::punch(self.file.as_fd(), range) }
    }
}

/// The first and the last page of `pages`, if `range` covers only a part of them.
fn edges_of(range: &Range<usize>, pages: &Range<usize>) -> Vec<Range<usize>> {
    let first = (range.start != pages.start).then_some(pages.start);
    let last = (range.end != pages.end).then_some(pages.end - PAGE_BYTES).filter(|last| Some(*last) != first);
    first.into_iter().chain(last).map(|page| page..page + PAGE_BYTES).collect()
}

/// The whole pages on which `range` lies.
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
