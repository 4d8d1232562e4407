//! Memory of clients that is not there when we touch it.
//!
//! A file that a client shares may be cut short, and a hole in any of its memory may find the kernel without a page to fill it: then an access
//! of ours is a SIGBUS, which would be the end of the daemon. Instead, the whole mapping is replaced by private zeros on the spot: the access
//! goes on, what it writes nobody sees, and the control thread, which is told, ends the session whose memory it was.
//!
//! ```text
//!   worker ── touches ──► no page ── SIGBUS ──► zeros mapped there, place marked, bell rung ──► worker goes on
//!                                                                                  └──► control thread ends the session
//! ```
#![expect(unsafe_code, reason = "handles a signal, and maps memory over memory of clients")]

use std::{
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use libc::{c_int, c_void};
use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};

/// Mappings that can be watched: about as many as a process may have (`vm.max_map_count`).
const PLACES: usize = 1 << 16;

/// Where a mapping is; the handler looks here, so there are only atomics. Never touched, it costs no memory.
struct Place {
    /// 0: none.
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Place; PLACES] =
    [const { Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) } }; PLACES];

/// Places from this one on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Used once and free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The handler and what it needs, made with the first watch.
static HANDLER: OnceLock<Handler> = OnceLock::new();

struct Handler {
    /// Counts losses. Never read, so that each is an edge for every epoll set that watches it.
    bell: EventFd,
    /// What was done about SIGBUS before.
    before: libc::sigaction,
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
    /// `ENOMEM` when there are too many; what the kernel said to the handler.
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
        let entry = &TABLE[place];
        entry.lost.store(false, Ordering::Relaxed);
        entry.end.store(range.end, Ordering::Relaxed);
        // Whoever sees the start sees the rest.
        entry.start.store(range.start, Ordering::Release);
        Ok(Self { place })
    }

    /// Was it lost?
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.place].lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Nobody touches the mapping any more, so no handler looks for it.
        TABLE[self.place].start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
    }
}

/// Tells the control thread that memory is lost.
pub(super) fn ring() {
    // A mapping is watched, or the control thread listens: it was made before.
    if let Some(handler) = HANDLER.get() {
        // It fails only when it counts more than it can, and then it was readable long before.
        let _ = handler.bell.write(ONE);
    }
}

/// Turns readable, as an edge, with each loss.
///
/// # Errors
/// What the kernel said.
pub(super) fn bell() -> Result<BorrowedFd<'static>, Errno> {
    install().map(|handler| handler.bell.as_fd())
}

fn install() -> Result<&'static Handler, Errno> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handler) = HANDLER.get() {
        return Ok(handler);
    }
    let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    // SAFETY: all zeros is an action: the default one, without flags and with an empty mask.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both live through the call.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) })?;
    // Before the handler is there, for it looks here.
    let handler = HANDLER.get_or_init(|| Handler { bell, before });
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what a signal handler may: loads, stores, system calls.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) })?;
    Ok(handler)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives what SA_SIGINFO promises, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let hit = |place: &&Place| {
        let start = place.start.load(Ordering::Acquire);
        start != 0 && start <= address && address < place.end.load(Ordering::Relaxed)
    };
    let place = TABLE[..USED.load(Ordering::Acquire)].iter().find(hit);
    if !place.is_some_and(replace) {
        pass_on(signal, info, context);
    }
}

/// Puts zeros there, and says so.
fn replace(place: &Place) -> bool {
    let start = place.start.load(Ordering::Relaxed);
    let bytes = place.end.load(Ordering::Relaxed) - start;
    let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = kind | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: a whole mapping of clients' memory, which stays mapped while the thread that met the signal uses it; what lies there may change at
    // any time anyway.
    let mapped = unsafe { libc::mmap(ptr::with_exposed_provenance_mut(start), bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    place.lost.store(true, Ordering::Release);
    if let Some(handler) = HANDLER.get() {
        // SAFETY: eight bytes that live through the call. It fails only when it counts more than it can, and then it was readable long before.
        unsafe { libc::write(handler.bell.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
    }
    true
}

static ONE: u64 = 1;

/// None of ours: whoever was there before decides.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = HANDLER.get().map(|handler| handler.before);
    match before {
        Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 && before.sa_sigaction > libc::SIG_IGN => {
            // SAFETY: with SA_SIGINFO, and neither default nor ignored, it is a function of this type.
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
