//! Session of the memory that each worker accessed last: the cause of a stall, if the worker
//! stalls.
//!
//! A page of a client's file may take long to arrive: the kernel delays an access to a hole while
//! another thread punches it, and the client has the file open. The daemon cannot bring such a
//! worker back earlier. But the worker records, with one store per access, the session of the
//! memory that it accesses, rings and doorbells included, so that the control thread, which sees
//! the worker stall, knows the session to end when it continues. Shorter stalls are measured
//! (`stall_meter.rs`).

use std::{
    cell::Cell,
    fs,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
    time::Duration,
};

use nix::unistd::gettid;
use roced_transport::clock::Nanos;
use roced_types::{SessionId, WORKERS_MAX, WorkerId};

use super::stall_meter;

/// Record of one worker.
struct Last {
    /// Two sessions: of the memory that is read and of the memory that is written, or one session
    /// twice.
    sessions: AtomicU64,
    /// Its thread.
    tid: AtomicI32,
}

/// Static, because accesses record themselves without a handle: every copy of client memory would
/// have to carry one.
static WORKERS: [Last; WORKERS_MAX as usize] =
    [const { Last { sessions: AtomicU64::new(0), tid: AtomicI32::new(0) } }; WORKERS_MAX as usize];

thread_local! {
    /// This thread's place, if it is a worker's and does not measure.
    static MINE: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };

    /// The same, whether it measures or not.
    static PLACE: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// This thread is that worker's.
pub fn i_am(worker: WorkerId) {
    let Some(last) = WORKERS.get(worker.0 as usize) else { return };
    last.tid.store(gettid().as_raw(), Ordering::Relaxed);
    MINE.set(Some(&last.sessions));
    stall_meter::begin(&last.sessions);
    PLACE.set(Some(&last.sessions));
}

/// A poll iteration of this thread's worker begins.
pub fn on_poll(now: Nanos) {
    measure(stall_meter::on_poll(now.0));
}

/// A poll iteration is over, and the worker is about to sleep.
pub fn on_rest(now: Nanos) {
    measure(stall_meter::on_rest(now.0));
}

fn measure(is_measured: bool) {
    // It changes at most once in a tenth of a second.
    if is_measured == MINE.get().is_some() {
        MINE.set(if is_measured { None } else { PLACE.get() });
    }
}

/// This thread goes to something other than mapped memory of clients.
pub fn pause() {
    if MINE.get().is_none() {
        stall_meter::on_pause();
    }
}

/// The next stall of the last poll iterations: sessions, as [`blocking_sessions`] has them, and how
/// long it was.
pub fn take_stall() -> Option<([SessionId; 2], Duration)> {
    let (sessions, time) = stall_meter::take_stall()?;
    Some((unpacked(sessions), Duration::from_nanos(time)))
}

fn unpacked(sessions: u64) -> [SessionId; 2] {
    [SessionId((sessions >> 32) as u32), SessionId(sessions as u32)]
}

/// This thread goes to memory of these two.
#[inline]
pub fn touch(reads: SessionId, writes: SessionId) {
    let sessions = u64::from(reads.0) << 32 | u64::from(writes.0);
    match MINE.get() {
        Some(mine) => mine.store(sessions, Ordering::Relaxed),
        None => stall_meter::on_access(sessions),
    }
}

/// Session of the memory that this worker waits for, if it waits for a page, and not for a core or
/// in a system call.
pub fn blocking_sessions(worker: WorkerId) -> Option<[SessionId; 2]> {
    let last = WORKERS.get(worker.0 as usize)?;
    if !waits_for_a_page(last.tid.load(Ordering::Relaxed)) {
        return None;
    }
    Some(unpacked(last.sessions.load(Ordering::Relaxed)))
}

/// The kernel says `running`, or the number of the system call that the thread is blocked in, or -1
/// when it is blocked in none.
fn waits_for_a_page(tid: i32) -> bool {
    fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).is_ok_and(|text| text.starts_with("-1 "))
}
