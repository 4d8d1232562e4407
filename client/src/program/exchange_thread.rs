//! The thread that performs page exchange.
//!
//! It differs from the requesting thread, because the exchanged pages may be the stack of that
//! thread. Without privileges, a write by the kernel to a page under exchange is refused rather
//! than blocked. The kernel makes such writes on behalf of a thread in two places: the frame of a
//! signal handler, and the record of the processor that the thread runs on (rseq, near the thread
//! pointer). Either refusal would terminate the program. The requesting thread therefore takes no
//! signals and sleeps.
#![expect(unsafe_code, reason = "asks for the thread pointer")]

use std::{fs, ops::Range, thread};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, SigmaskHow, pthread_sigmask},
    unistd::{Pid, gettid},
};

use super::{PAGE_BYTES, pace::ExchangeCost};
use crate::error::{Error, Result};

/// Maximum distance of a thread's data from its thread pointer: the C library's record of the
/// thread, with the rseq area.
const THREAD_BYTES: usize = PAGE_BYTES;

/// Maximum number of checks whether the requesting thread sleeps. It was about to sleep, so waiting
/// is rare and short.
const LOOKS: u32 = 10_000;

/// Runs `work`, which exchanges `ranges`, on a thread of its own, and returns its cost.
pub(super) fn on_a_thread(
    ranges: &[Range<usize>],
    work: impl FnOnce() -> Result<ExchangeCost> + Send,
) -> Result<ExchangeCost> {
    // SAFETY: only a query.
    let record = unsafe { libc::pthread_self() } as usize;
    let record = record.saturating_sub(THREAD_BYTES)..record + THREAD_BYTES;
    let touched = ranges.iter().any(|range| range.start < record.end && record.start < range.end);
    let asking = touched.then(gettid);
    let work = move || {
        if let Some(asking) = asking {
            wait_until_asleep(asking);
        }
        work()
    };
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))
        .map_err(Error::kernel("pthread_sigmask"))?;
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().name("roced-memory".into()).spawn_scoped(scope, work);
        match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => {
                Err(Error::Kernel { call: "pthread_create", errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)) })
            }
        }
    });
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None).expect("a mask that the kernel gave can be set");
    result
}

/// Waits until the thread sleeps, as it does until the work is done.
fn wait_until_asleep(thread: Pid) {
    for _ in 0..LOOKS {
        // "number (name) state ...", and a name may contain brackets.
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
            Some('S') | None => return,
            Some(_) => thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Data beside the record of a thread is on the same page: a program that registers it
    /// survives.
    #[test]
    fn the_record_of_the_asking_thread_may_be_exchanged() {
        let _no_fork = super::super::tests::no_fork();
        let asking = thread::spawn(|| {
            let beside = [7u8; 16];
            let at = beside.as_ptr().expose_provenance();
            for _ in 0..200 {
                // SAFETY: only a query.
                let record = unsafe { libc::pthread_self() } as usize;
                let range = at..record.max(at) + 2000;
                drop(
                    super::super::SharedPages::new(&range, true, crate::PrivateMemory::Auto)
                        .expect("the stack of a thread"),
                );
            }
            beside.iter().all(|byte| *byte == 7)
        });
        assert!(asking.join().expect("it lives"));
    }

    #[test]
    fn a_thread_that_sleeps_is_told_from_one_that_runs() {
        let (here, there) = (mpsc::channel(), mpsc::channel::<()>());
        let sleeper = thread::spawn(move || {
            here.0.send(gettid()).expect("it is waited for");
            there.1.recv().expect_err("nothing is sent");
        });
        let thread = here.1.recv().expect("it says its number");
        wait_until_asleep(thread);
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it lives");
        assert!(stat.contains(") S "), "{stat}");
        drop(there.0);
        sleeper.join().expect("it ends well");
    }
}
