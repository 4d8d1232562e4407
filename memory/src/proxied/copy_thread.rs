//! The thread that accesses proxied memory in place of workers, and the state that it shares with
//! them.

use std::{
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    sys::{
        resource::{UsageWho, getrusage},
        statfs::{PROC_SUPER_MAGIC, fstatfs},
        uio::{pread, pwrite},
    },
    time::{ClockId, clock_gettime},
    unistd::{Pid, gettid},
};

use super::{ROOM, wait::FIRST_LOOK_AFTER};
use crate::{
    accounts::OF_A_THREAD,
    descriptor::Descriptor,
    sigbus,
    stall_budget::AbandonedThread,
    thread_start::{self, HelperThread},
};

/// How long the copy thread looks for more to do before it sleeps; waking it costs up to 20 us.
const LINGER: Duration = Duration::from_micros(50);

/// Values of [`SharedRequests::stage`]: the worker owns the slot, or the copy thread.
pub(super) const OURS: u32 = 0;
pub(super) const COPY_THREADS: u32 = 1;

#[derive(Debug)]
pub(super) struct SharedRequests {
    /// [`OURS`] or [`COPY_THREADS`].
    pub(super) stage: AtomicU32,
    slot: Mutex<RequestSlot>,
    lost: AtomicBool,
    pub(super) ending: AtomicBool,
    /// Set when the copy thread is given up, until its thread comes back.
    given_up: Mutex<Option<AbandonedThread>>,
    /// The copy thread, to observe its state.
    tid: AtomicI32,
    /// Cores that it may use when none is lent to it.
    cores: OnceLock<CpuSet>,
}

/// An access and its result.
#[derive(Debug)]
pub(super) struct RequestSlot {
    pub(super) writes: bool,
    pub(super) address: u64,
    pub(super) length: usize,
    /// Bytes that were read or written.
    pub(super) outcome: Result<usize, Errno>,
    /// How long it blocked, or else computed, if that was long.
    pub(super) took: Duration,
    pub(super) bytes: Box<[u8]>,
}

impl SharedRequests {
    /// Starts a thread with this descriptor; its first report is its verdict on the descriptor.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn begin(descriptor: Descriptor) -> Result<(Arc<Self>, Thread), Errno> {
        let shared = Arc::new(Self {
            stage: AtomicU32::new(COPY_THREADS),
            slot: Mutex::new(RequestSlot {
                writes: false,
                address: 0,
                length: 0,
                outcome: Ok(0),
                took: Duration::ZERO,
                bytes: vec![0; ROOM].into_boxed_slice(),
            }),
            lost: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            given_up: Mutex::new(None),
            tid: AtomicI32::new(ITSELF),
            cores: OnceLock::new(),
        });
        let copy_threads = Arc::clone(&shared);
        let work = move || {
            thread_start::begin(HelperThread::Copy);
            carry(&copy_threads, descriptor);
        };
        let spawned = thread::Builder::new().name("roced-copy".into()).stack_size(128 << 10).spawn(work);
        let thread = spawned.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?.thread().clone();
        Ok((shared, thread))
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// From now on nothing of it is touched; the control thread ends the session.
    pub(super) fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            sigbus::ring();
        }
    }

    /// Workers no longer wait for its thread.
    pub(super) fn give_up(&self, given_up: AbandonedThread) {
        *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(given_up);
        self.lose();
    }

    /// Has its thread come to the core of the caller, which offers it: where others compute on the
    /// core that it was on, it would wait there for long.
    pub(super) fn lend_core(&self) {
        let mut core = CpuSet::new();
        if self.cores.get().is_some() && sched_getcpu().and_then(|number| core.set(number)).is_ok() {
            self.move_to(&core);
        }
    }

    /// It may go where it likes again.
    pub(super) fn take_core_back(&self) {
        if let Some(cores) = self.cores.get() {
            self.move_to(cores);
        }
    }

    fn move_to(&self, cores: &CpuSet) {
        // Where that fails it stays, and gets on more slowly.
        let _ = sched_setaffinity(Pid::from_raw(self.tid()), cores);
    }

    /// Its thread, or [`ITSELF`] if it has not begun.
    pub(super) fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// For the owner according to [`Self::stage`]: the lock is free then.
    pub(super) fn slot(&self) -> MutexGuard<'_, RequestSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The copy thread itself.
fn carry(shared: &SharedRequests, descriptor: Descriptor) {
    shared.tid.store(gettid().as_raw(), Ordering::Relaxed);
    if let Ok(cores) = sched_getaffinity(Pid::from_raw(ITSELF)) {
        // A reader that sees this knows the thread; only one writer sets it.
        let _ = shared.cores.set(cores);
    }
    let (memory, account) = descriptor.into_any_file();
    let is_memory = check(&memory);
    shared.slot().outcome = is_memory.map(|()| 0);
    shared.stage.store(OURS, Ordering::Release);
    let mut idle_since = Instant::now();
    while is_memory.is_ok() && !shared.is_lost() {
        if shared.stage.load(Ordering::Acquire) == COPY_THREADS {
            access(&mut shared.slot(), &memory);
            shared.stage.store(OURS, Ordering::Release);
            idle_since = Instant::now();
        } else if shared.ending.load(Ordering::Acquire) {
            break;
        } else if idle_since.elapsed() < LINGER {
            thread::yield_now();
        } else {
            thread::park();
        }
    }
    // For any kind of file: closing it may take long.
    let _closing = account.begin_closing(OF_A_THREAD);
    drop(memory);
}

/// Is it the memory of a process, open for reading and writing? That it is no other file of procfs
/// shows when bytes are found where such have none.
fn check(memory: &impl std::os::fd::AsFd) -> Result<(), Errno> {
    let mode = OFlag::from_bits_retain(fcntl(memory, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let is_memory = mode == OFlag::O_RDWR && fstatfs(memory)?.filesystem_type() == PROC_SUPER_MAGIC;
    if is_memory { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Performs the access in the slot.
fn access(slot: &mut RequestSlot, memory: &(impl std::os::fd::AsFd + AsRawFd)) {
    let waits = || getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches());
    let (begin, computed, before) = (Instant::now(), computed_by(ITSELF), waits());
    let bytes = &mut slot.bytes[..slot.length];
    // Below i64::MAX, as was looked at when the memory was registered.
    let at = slot.address as i64;
    slot.outcome = if slot.writes {
        let (body, tail) = bytes.split_at(bytes.len().saturating_sub(8));
        // A program that polls the last bytes sees all others once it sees those: they go by a call
        // of their own.
        let all = |bytes: &[u8], at| match bytes {
            [] => Ok(0),
            bytes => pwrite(memory, bytes, at),
        };
        all(body, at).and_then(|count| {
            if count < body.len() || tail.is_empty() {
                return Ok(count);
            }
            // If the process has gone in between, nothing was written: no program is left to see
            // it.
            Ok(match all(tail, at + body.len() as i64)? {
                0 => 0,
                rest => count + rest,
            })
        })
    } else {
        pread(memory, bytes, at)
    };
    slot.took = match begin.elapsed() {
        elapsed if waits() != before => elapsed,
        elapsed if elapsed <= FIRST_LOOK_AFTER => Duration::ZERO,
        _ => computed_by(ITSELF).saturating_sub(computed),
    };
}

/// The calling thread.
pub(super) const ITSELF: i32 = 0;

/// How long threads of ours have had a core, whichever had it longer.
pub(super) struct Used {
    tids: [i32; 2],
    since: Option<[Duration; 2]>,
}

impl Used {
    pub(super) fn by(tids: [i32; 2]) -> Self {
        Self { tids, since: None }
    }

    /// Since this was first called.
    pub(super) fn so_far(&mut self) -> Duration {
        let now = self.tids.map(computed_by);
        let since = self.since.get_or_insert(now);
        now[0].saturating_sub(since[0]).max(now[1].saturating_sub(since[1]))
    }
}

/// How long a thread of ours has had a core.
fn computed_by(tid: i32) -> Duration {
    // As pthread_getcpuclockid makes it: a thread's clock, of the time that the scheduler has given
    // it.
    let clock = ClockId::from_raw((!tid << 3) | 6);
    // One that has ended no longer has a clock.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Returns true if thread `tid` of this process waits for something other than a core.
pub(super) fn is_blocked(tid: i32) -> bool {
    // One that has not begun is ready to.
    if tid == ITSELF {
        return false;
    }
    // "number (name) state ...", and the name is ours.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}
