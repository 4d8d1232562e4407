//! Whose memory each worker touched last: who has it wait, if it waits.
//!
//! A page of a client's file may be long in coming: the kernel holds up whoever touches a hole
//! while somebody punches it, and its client has the file open. Nothing that we do brings such a
//! worker back earlier. But it leaves word, by one store for each access, of whose memory it goes
//! to, rings and bells included, so that the control thread, which sees it stand still, knows whose
//! session to end when it goes on.

use std::{
    cell::Cell,
    fs,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use nix::unistd::gettid;
use roced_types::{SessionId, WORKERS_MAX, WorkerId};

/// What a worker leaves word of.
struct Last {
    /// Two sessions: whose memory it reads and whose it writes, or one twice.
    sessions: AtomicU64,
    /// Its thread.
    tid: AtomicI32,
}

static WORKERS: [Last; WORKERS_MAX as usize] =
    [const { Last { sessions: AtomicU64::new(0), tid: AtomicI32::new(0) } }; WORKERS_MAX as usize];

thread_local! {
    /// This thread's place, if it is a worker's.
    static MINE: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// This thread is that worker's.
pub fn i_am(worker: WorkerId) {
    let Some(last) = WORKERS.get(worker.0 as usize) else { return };
    last.tid.store(gettid().as_raw(), Ordering::Relaxed);
    MINE.set(Some(&last.sessions));
}

/// This thread goes to memory of these two.
#[inline]
pub fn touch(reads: SessionId, writes: SessionId) {
    if let Some(mine) = MINE.get() {
        mine.store(u64::from(reads.0) << 32 | u64::from(writes.0), Ordering::Relaxed);
    }
}

/// Whose memory this worker waits for, if it does: for a page, and not for a core or in a system
/// call.
pub fn the_blocked_user(worker: WorkerId) -> Option<[SessionId; 2]> {
    let last = WORKERS.get(worker.0 as usize)?;
    if !waits_for_a_page(last.tid.load(Ordering::Relaxed)) {
        return None;
    }
    let sessions = last.sessions.load(Ordering::Relaxed);
    Some([SessionId((sessions >> 32) as u32), SessionId(sessions as u32)])
}

/// The kernel says `running`, or the number of the system call that the thread is blocked in, or -1
/// when it is blocked in none.
fn waits_for_a_page(tid: i32) -> bool {
    fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).is_ok_and(|text| text.starts_with("-1 "))
}
