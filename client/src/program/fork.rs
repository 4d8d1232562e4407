//! Fork handling: a child has memory of its own, as if no page had been shared.
//!
//! Shared pages stay shared across fork: parent and child would see each other's writes. A fork by
//! the C library therefore first copies the shared pages, and the child maps the copies in their
//! place before any code of the program runs there. The child has none of the parent's
//! registrations, and must open devices anew. (vfork, posix_spawn and functions built on them make
//! no such copy and need none: the child shares all memory with its parent until it executes
//! another program.)
//!
//! Pages that the C library writes in the child before it calls the handler here cannot be shared
//! during the fork, because the write would reach the parent: the stack on which fork runs, and
//! data beside a registered buffer on the same page. Those pages are private until the parent
//! resumes, and writes of peers to them meanwhile are lost.
#![expect(unsafe_code, reason = "registers functions with the C library, and copies memory that is mapped")]

use std::{
    cell::RefCell,
    ops::Range,
    os::fd::AsFd,
    sync::{MutexGuard, Once},
};

use super::{
    PAGE_BYTES, PAGES, Pages,
    areas::{self, Area},
    exchange::{Exchange, Fresh, fork_with},
    exchange_thread::on_a_thread,
};
use crate::{error::Result, socket::lock};

/// Bytes on both sides of the stack pointer that fork and its handlers may use.
const STACK_BYTES: usize = 4 * PAGE_BYTES;

/// State kept between the calls of the C library.
struct Forking {
    /// No thread exchanges pages meanwhile, and the child finds the lock free.
    pages: MutexGuard<'static, Option<Pages>>,
    /// Copies for the child.
    copies: Vec<(Fresh, Area)>,
    /// Ranges that could not be copied for lack of memory; unmapped in the child.
    withheld: Vec<Range<usize>>,
    /// Pages that the C library may write in the child before the handler runs: private meanwhile.
    in_use: Vec<Range<usize>>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// Installs the fork handlers: from now on children have memory of their own.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions exist for the lifetime of the process, or of this library. The call
        // fails only without memory; children share memory in that case, and no other call here
        // would report it.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    let pages = lock(&PAGES);
    let mut forking = Forking { pages, copies: Vec::new(), withheld: Vec::new(), in_use: Vec::new() };
    if let Some(pages) = forking.pages.as_ref().filter(|pages| pages.pid == std::process::id()) {
        // First, so that no copy of these pages is taken, which would be older than the pages that
        // the child finds there.
        forking.in_use = in_use(pages);
        if !forking.in_use.is_empty() {
            // A failure leaves the pages shared, as before, and cannot be reported here.
            let _ = exchange_all(pages, &forking.in_use, |exchange, area| exchange.unshare(area));
        }
        // Without the list of mappings no page can be copied, so all of them are withheld.
        let shared = areas::all().map(|areas| shared_of(pages, &areas));
        match shared {
            Ok(shared) => shared.into_iter().for_each(|area| match copy(&area) {
                Ok(fresh) => forking.copies.push((fresh, area)),
                Err(_) => forking.withheld.push(area.range),
            }),
            Err(_) => forking.withheld.extend(pages.counts.all()),
        }
        forking.withheld.iter().for_each(|range| fork_with(range, false));
    }
    FORKING.with_borrow_mut(|slot| *slot = Some(forking));
}

extern "C" fn in_parent() {
    let Some(forking) = FORKING.take() else { return };
    forking.withheld.iter().for_each(|range| fork_with(range, true));
    if let Some(pages) = forking.pages.as_ref().filter(|_| !forking.in_use.is_empty()) {
        // A failure leaves the pages private, with writes of peers invisible to the program. It
        // cannot be reported here.
        let _ = exchange_all(pages, &forking.in_use, |exchange, area| exchange.share(area));
    }
}

extern "C" fn in_child() {
    let Some(mut forking) = FORKING.take() else { return };
    for (fresh, area) in forking.copies.drain(..) {
        let range = area.range.clone();
        // Cannot fail, because it splits and adds no mapping. After a failure the child would share
        // memory with its parent.
        fresh.move_to(&range, &area).expect("a mapping can be moved over another of the same size");
    }
    // Descriptors and registrations belong to the parent.
    *forking.pages = None;
}

/// Returns the shared pages that the C library itself may use, in the child before the handler
/// runs: the stack on which fork runs, and partly registered pages, because the rest of such a page
/// may contain records of heaps, threads or streams.
fn in_use(pages: &Pages) -> Vec<Range<usize>> {
    let here = 0u8;
    let sp = (&raw const here).addr() / PAGE_BYTES * PAGE_BYTES;
    let used = sp.saturating_sub(STACK_BYTES)..sp + STACK_BYTES;
    let stack = pages.counts.all().map(|range| range.start.max(used.start)..range.end.min(used.end));
    stack.filter(|range| !range.is_empty()).chain(pages.edges.all()).collect()
}

/// Returns the parts of the program that show the file and are registered.
fn shared_of(pages: &Pages, areas: &[Area]) -> Vec<Area> {
    let cut = |range: &Range<usize>, area: &Area| {
        let part = area.range.start.max(range.start)..area.range.end.min(range.end);
        (!part.is_empty()).then(|| Area { range: part, ..area.clone() })
    };
    let mirrors = areas.iter().filter(|area| area.mirrors(pages.identity));
    mirrors.flat_map(|area| pages.counts.all().filter_map(|range| cut(&range, area)).collect::<Vec<_>>()).collect()
}

fn exchange_all(
    pages: &Pages,
    ranges: &[Range<usize>],
    act: impl Fn(&mut Exchange<'_>, &Area) -> Result<()> + Sync,
) -> Result<()> {
    let areas = areas::all()?;
    on_a_thread(ranges, || {
        let mut exchange = Exchange::new(pages.file.as_fd())?;
        for range in ranges {
            let parts = areas::within(&areas, range)?;
            let fit = parts.iter().filter(|area| area.is_plain() || area.mirrors(pages.identity));
            fit.into_iter().try_for_each(|area| act(&mut exchange, area))?;
        }
        Ok(exchange.cost())
    })
    .map(drop)
}

fn copy(area: &Area) -> Result<Fresh> {
    let fresh = Fresh::private(area.range.len())?;
    // SAFETY: the area is readable, as was checked, and stays mapped, as the caller of
    // `register_at` promised.
    unsafe { fresh.copy_from(area.range.start) };
    Ok(fresh)
}
