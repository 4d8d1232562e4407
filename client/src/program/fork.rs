//! A forked child has memory of its own, as if nothing had been shared.
//!
//! Shared pages stay shared across fork: parent and child would see each other's writes. So whoever forks, by the C library, first copies what is
//! shared, and the child puts the copies in its place before anything of the program runs there. The child has nothing of the parent's
//! registrations; what it opens it opens anew. (vfork, posix_spawn and what is built on them have no such copy and need none: the child shares all
//! memory with its parent until it is another program.)
//!
//! What the C library writes to in the child before it asks us cannot be shared while it does, for it would write to the parent's: the stack on which fork
//! runs, and what may lie beside a registered buffer on the same page. Those pages are private until the parent goes on, and what peers write there meanwhile
//! is lost.
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
    helper::on_a_thread,
};
use crate::{error::Result, socket::lock};

/// Bytes on both sides of the stack pointer that fork and its handlers may use.
const STACK_BYTES: usize = 4 * PAGE_BYTES;

/// What goes on between the calls of the C library.
struct Forking {
    /// Nobody exchanges pages meanwhile, and the child finds the lock free.
    pages: MutexGuard<'static, Option<Pages>>,
    /// For the child.
    copies: Vec<(Fresh, Area)>,
    /// What there was no memory to copy: the child has nothing there.
    withheld: Vec<Range<usize>>,
    /// What the C library may write to in the child before we are asked: private meanwhile.
    in_use: Vec<Range<usize>>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// From now on children have memory of their own.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions are there as long as the process, or this library.
        // It fails only without memory, and then children share: no other call here would have told.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    let pages = lock(&PAGES);
    let mut forking = Forking { pages, copies: Vec::new(), withheld: Vec::new(), in_use: Vec::new() };
    if let Some(pages) = forking.pages.as_ref().filter(|pages| pages.pid == std::process::id()) {
        // First, so that no copy of them is taken, which would be older than what the child finds there.
        forking.in_use = in_use(pages);
        if !forking.in_use.is_empty() {
            // What fails leaves them shared, as they were: there is nobody to tell.
            let _ = exchange_all(pages, &forking.in_use, |exchange, area| exchange.unshare(area));
        }
        // Without a look at what is mapped nothing can be copied; so it is withheld.
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
        // What fails leaves them private: peers write to what nobody sees. There is nobody to tell.
        let _ = exchange_all(pages, &forking.in_use, |exchange, area| exchange.share(area));
    }
}

extern "C" fn in_child() {
    let Some(mut forking) = FORKING.take() else { return };
    for (fresh, area) in forking.copies.drain(..) {
        let range = area.range.clone();
        // It cannot fail: no mapping is split or added by it. If it did, the child would share with its parent what it must not.
        fresh.move_to(&range, &area).expect("a mapping can be moved over another of the same size");
    }
    // Descriptors and registrations are the parent's.
    *forking.pages = None;
}

/// Shared pages that the C library itself may use, which it does in the child before we are asked: the stack on which fork runs, and pages of which only
/// a part is registered, for on the rest its own records may lie, of heaps, threads or streams.
fn in_use(pages: &Pages) -> Vec<Range<usize>> {
    let here = 0u8;
    let sp = (&raw const here).addr() / PAGE_BYTES * PAGE_BYTES;
    let used = sp.saturating_sub(STACK_BYTES)..sp + STACK_BYTES;
    let stack = pages.counts.all().map(|range| range.start.max(used.start)..range.end.min(used.end));
    stack.filter(|range| !range.is_empty()).chain(pages.edges.all()).collect()
}

/// Parts of the program that show the file and that registrations lie over.
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
    // SAFETY: the area is mapped and may be read, as was looked up, for the caller of `register_at` promised that it stays.
    unsafe { fresh.copy_from(area.range.start) };
    Ok(fresh)
}
