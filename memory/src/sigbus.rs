//! Memory of clients that is not there when we touch it.
//!
//! A file that a client shares may be truncated, and for a hole in any of its memory the kernel may
//! have no page: an access is then a SIGBUS, which would end the daemon. Instead, the handler
//! replaces the whole mapping by zero pages: the access continues, its writes are lost, and the
//! control thread, which is notified, ends the session of the memory.
//!
//! ```text
//!   worker ── access ──► no page ── SIGBUS ──► zeros mapped there, place marked ──► worker continues
//!                                                        └──► control thread ends the session
//! ```
#![expect(unsafe_code, reason = "handles a signal, and maps memory over memory of clients")]

use std::{
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

use libc::{c_int, c_void};
use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};

use super::stall_meter;

/// Mappings that can be watched: no fewer than a process usually may have (`vm.max_map_count`).
pub(super) const PLACES: usize = 1 << 16;

/// Where a mapping is; the handler looks here, so there are only atomics. Never touched, it costs
/// no memory.
struct MappingRange {
    /// How often it was taken and left: odd while it is taken. Both ends are of one mapping only if
    /// this is the same before and after they were read.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [MappingRange; PLACES] = [const { MappingRange::new() }; PLACES];

/// Places from this one on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Used once and free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The handler and its data, created with the first watch.
static HANDLER: OnceLock<Handler> = OnceLock::new();

struct Handler {
    /// Counts losses. Never read, so that each is an edge for every epoll set that watches it.
    doorbell: EventFd,
    /// The previous handling of SIGBUS.
    before: libc::sigaction,
}

impl MappingRange {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// For the only owner of this place.
    fn take(&self, range: &Range<usize>) {
        self.lost.store(false, Ordering::Relaxed);
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
        // A reader that sees this sees the rest.
        self.version.fetch_add(1, Ordering::Release);
    }

    fn leave(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
        // A reader that sees the location of the next mapping sees that this one has left.
        fence(Ordering::Release);
    }

    /// Where its mapping is, if there is one that has not left meanwhile.
    fn range(&self) -> Option<Range<usize>> {
        let version = self.version.load(Ordering::Acquire);
        let range = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        // Before the version is read again.
        fence(Ordering::Acquire);
        (version % 2 == 1 && self.version.load(Ordering::Relaxed) == version).then_some(range)
    }
}

/// Keeps a loss of a mapping from being the end of the daemon, for as long as this lives.
#[derive(Debug)]
pub(super) struct Watch {
    place: usize,
}

impl Watch {
    /// Watches a mapping of clients' memory, which must be unmapped after this is dropped.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many; the kernel's when installing the handler.
    pub(super) fn new(range: &Range<usize>) -> Result<Self, Errno> {
        install()?;
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let place = match free {
            Some(place) => place,
            None => {
                let next = |used| (used < PLACES).then_some(used + 1);
                USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).map_err(|_| Errno::ENOMEM)?
            }
        };
        TABLE[place].take(range);
        Ok(Self { place })
    }

    /// Returns true if pages of the range were lost.
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.place].lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Threads no longer access the mapping, so no handler looks for it; a handler that looks
        // for another mapping may read this entry.
        TABLE[self.place].leave();
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
    }
}

/// Tells the control thread that memory is lost.
pub(super) fn ring() {
    // A mapping is watched, or the control thread listens: it was made before.
    if let Some(handler) = HANDLER.get() {
        // It fails only when it counts more than it can, and then it was readable long before.
        let _ = handler.doorbell.write(ONE);
    }
}

/// Turns readable, as an edge, with each loss.
///
/// # Errors
/// The kernel's.
pub fn doorbell() -> Result<BorrowedFd<'static>, Errno> {
    install().map(|handler| handler.doorbell.as_fd())
}

fn install() -> Result<&'static Handler, Errno> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handler) = HANDLER.get() {
        return Ok(handler);
    }
    let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    // SAFETY: all zeros is an action: the default one, without flags and with an empty mask.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both live through the call.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) })?;
    // Before the handler is there, because it looks here.
    let handler = HANDLER.get_or_init(|| Handler { doorbell, before });
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler uses only operations that a signal handler may: loads, stores, system
    // calls.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) })?;
    Ok(handler)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel provides the arguments that SA_SIGINFO promises, and SIGBUS has an
    // address.
    let address = unsafe { (*info).si_addr() }.addr();
    // The mapping that was touched stays where it is while its thread is here, and lies over no
    // other.
    let hit = |place| Some((place, MappingRange::range(place).filter(|range| range.contains(&address))?));
    let found = TABLE[..USED.load(Ordering::Acquire)].iter().find_map(hit);
    if !found.is_some_and(|(place, range)| replace(place, &range)) {
        pass_on(signal, info, context);
    }
}

/// Puts zeros to where the mapping of `place` is, and says so.
fn replace(place: &MappingRange, range: &Range<usize>) -> bool {
    // Shared, although with no other process: adjacent private pages would merge into one mapping,
    // and at the limit of mappings none can be split off. This replaces one mapping by one, so that
    // the limit cannot prevent it.
    let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let flags = kind | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: a whole mapping of clients' memory, which stays mapped while the thread that received
    // the signal uses it; its bytes may change at any time anyway.
    let mapped =
        unsafe { libc::mmap(ptr::with_exposed_provenance_mut(range.start), range.len(), protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    place.lost.store(true, Ordering::Release);
    stall_meter::on_loss();
    if let Some(handler) = HANDLER.get() {
        // SAFETY: eight bytes that live through the call. It fails only when it counts more than it
        // can, and then it was readable long before.
        unsafe { libc::write(handler.doorbell.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
    }
    true
}

static ONE: u64 = 1;

/// Not ours: the previous handler decides.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = HANDLER.get().map(|handler| handler.before);
    match before {
        Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 && before.sa_sigaction > libc::SIG_IGN => {
            // SAFETY: with SA_SIGINFO, and neither default nor ignored, it is a function of this
            // type.
            let handle: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(before.sa_sigaction) };
            handle(signal, info, context);
        }
        _ => {
            // SAFETY: the default action; the access is tried again, and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use nix::{
        sys::memfd::{MFdFlags, memfd_create},
        time::ClockId,
        unistd::ftruncate,
    };
    use roced_transport::clock::Nanos;
    use roced_types::{SessionId, WORKERS_MAX, WorkerId};

    use super::*;
    use crate::{access_log, clock::nanos_of, mapping::Mapping, quota::Room};

    const PAGE: usize = 4096;

    /// The kernel counts no page fault of an access that ends with SIGBUS.
    #[test]
    fn an_access_that_waits_and_meets_no_page_is_a_stall_of_its_session() {
        const WAIT: Duration = Duration::from_millis(3);
        let now = || Nanos(nanos_of(ClockId::CLOCK_MONOTONIC));
        // It waits as for a thread that punches a hole, and finds the hole.
        let lose = |session: u32| {
            let file = memfd_create(c"lost", MFdFlags::MFD_CLOEXEC).expect("a memfd");
            ftruncate(&file, PAGE as i64).expect("a page");
            let mapping = Mapping::of(&file, 0..PAGE as u64, true, Room::default()).expect("a mapping");
            ftruncate(&file, 0).expect("no page");
            access_log::touch(SessionId(session), SessionId(session));
            thread::sleep(WAIT);
            // SAFETY: a byte of the mapping; the handler puts a page there.
            assert_eq!(unsafe { mapping.at(0, 1).read_volatile() }, 0);
            assert!(mapping.is_lost());
        };
        let worker = move || {
            access_log::i_am(WorkerId(WORKERS_MAX - 1));
            access_log::on_poll(now());
            lose(7);
            access_log::on_rest(now());
            let stall = access_log::take_stall();
            assert!(stall.is_some_and(|(who, time)| who == [SessionId(7); 2] && time >= WAIT), "{stall:?}");
            // It measures each access now.
            access_log::on_poll(now());
            lose(8);
            lose(9);
            access_log::on_rest(now());
            let mut stalls: Vec<_> = std::iter::from_fn(access_log::take_stall).collect();
            stalls.sort_by_key(|(who, _)| who[0].0);
            let who: Vec<_> = stalls.iter().map(|(who, _)| who[0].0).collect();
            assert_eq!(who, [8, 9], "{stalls:?}");
            assert!(stalls.iter().all(|(_, time)| *time >= WAIT), "{stalls:?}");
        };
        thread::spawn(worker).join().expect("each is charged");
    }

    /// One thread has a place for mappings in turn, as sessions that come and go have; another
    /// looks there meanwhile.
    #[test]
    fn a_place_never_holds_one_ones_start_and_another_ones_end() {
        const LOOKS: usize = 10_000_000;
        let (place, stop) = (MappingRange::new(), AtomicBool::new(false));
        let ranges = [0x1000..0x2000, 0x8000..0x9000];
        assert_eq!(place.range(), None);
        thread::scope(|scope| {
            scope.spawn(|| {
                for range in ranges.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    place.take(range);
                    place.leave();
                }
            });
            let mut looks = (0..LOOKS).filter_map(|_| place.range());
            let wrong = looks.find(|range| !ranges.contains(range));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "it has no owner");
        });
        place.take(&ranges[1]);
        assert_eq!(place.range(), Some(0x8000..0x9000));
    }
}
