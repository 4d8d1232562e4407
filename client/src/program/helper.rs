//! The thread that exchanges pages.
//!
//! It is not the one that asks, for what is exchanged may be the stack of that one. Without privileges the kernel is not held but refused when it
//! writes to a page under exchange, and it does so on behalf of a thread in two places: where a signal handler's frame goes, and where it notes the
//! processor that the thread runs on (rseq, near the thread pointer); either would be the end of the program. So the thread that asks takes no signals and sleeps.
#![expect(unsafe_code, reason = "asks for the thread pointer")]

use std::{fs, ops::Range, thread};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, SigmaskHow, pthread_sigmask},
    unistd::{Pid, gettid},
};

use super::{PAGE_BYTES, pace::ExchangeCost};
use crate::error::{Error, Result};

/// What of a thread lies at most this far from its thread pointer: the C library's record of it, with the place for rseq.
const THREAD_BYTES: usize = PAGE_BYTES;

/// How often it is looked whether the asking thread sleeps. It was about to, so this is seldom needed and never long.
const LOOKS: u32 = 10_000;

/// Does `work`, which exchanges `ranges`, on a thread of its own; it says what it cost.
pub(super) fn on_a_thread(
    ranges: &[Range<usize>],
    work: impl FnOnce() -> Result<ExchangeCost> + Send,
) -> Result<ExchangeCost> {
    // SAFETY: it only tells.
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
        // "number (name) state ...", and a name may have brackets.
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

    /// What lies beside a thread's own record is on its page: a program that registers it lives on.
    #[test]
    fn the_record_of_the_asking_thread_may_be_exchanged() {
        let _no_fork = super::super::tests::no_fork();
        let asking = thread::spawn(|| {
            let beside = [7u8; 16];
            let at = beside.as_ptr().expose_provenance();
            for _ in 0..200 {
                // SAFETY: it only tells.
                let record = unsafe { libc::pthread_self() } as usize;
                let range = at..record.max(at) + 2000;
                drop(super::super::Held::new(&range, true).expect("the stack of a thread"));
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
            there.1.recv().expect_err("nobody sends");
        });
        let thread = here.1.recv().expect("it says who it is");
        wait_until_asleep(thread);
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it lives");
        assert!(stat.contains(") S "), "{stat}");
        drop(there.0);
        sleeper.join().expect("it ends well");
    }
}
