//! Scheduling of the thread that performs page exchange.
//!
//! While the thread blocks writers it should not be preempted: a blocked writer also waits for the
//! thread that gets the core. On 2 cores wanted by ten other threads, writers to 1 GiB were blocked
//! for at most 20 to 45 ms without these measures.
#![expect(unsafe_code, reason = "system calls with a structure of the kernel")]

use std::thread;

/// Scheduling attributes: `linux/sched/types.h`, first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Requested time slice: longer than the urgent section, and short, because a thread that requests
/// short time slices is scheduled soon.
const SLICE_NS: u64 = 500_000;

/// Time slices and policy of this thread.
#[derive(Debug)]
pub(super) struct Scheduling {
    /// Attributes outside urgent sections. `None`: the creator of the thread chose another kind of
    /// policy, which is not changed.
    usual: Option<Attributes>,
    /// True if the thread has the right to precede all threads without a real-time policy.
    may_go_first: bool,
}

impl Scheduling {
    /// Requests the attributes that this thread needs. Kernels before 6.12 ignore the length of
    /// time slices.
    pub(super) fn take() -> Self {
        let mut now = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: the kernel fills the structure, up to the size passed to it, for this thread.
        let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) } == 0;
        if !known || now.policy != libc::SCHED_OTHER as u32 {
            return Self { usual: None, may_go_first: false };
        }
        let usual = Attributes { size, runtime_ns: SLICE_NS, ..now };
        let asked = set(&usual);
        Self { usual: asked.then_some(usual), may_go_first: asked }
    }

    /// Starts a section of about a millisecond that should not be preempted: it takes locks that
    /// faults of other threads need.
    pub(super) fn go_first(&mut self) {
        let Some(usual) = self.usual.filter(|_| self.may_go_first) else { return };
        let first = Attributes { policy: libc::SCHED_FIFO as u32, priority: 1, nice: 0, runtime_ns: 0, ..usual };
        // Without the right, it is requested only once.
        self.may_go_first = set(&first);
    }

    /// Starts a section of some tenths of a millisecond in which other threads are blocked.
    pub(super) fn begin_urgent(&self) {
        if self.usual.is_some() && !self.may_go_first {
            // Starts with a full time slice.
            thread::yield_now();
        }
    }

    /// Ends the section.
    pub(super) fn end_urgent(&mut self) {
        if let Some(usual) = self.usual.filter(|_| self.may_go_first) {
            // Returning from the real-time policy needs no right.
            set(&usual);
        }
    }
}

fn set(attributes: &Attributes) -> bool {
    // SAFETY: the kernel reads the structure, which contains its size, and changes only the
    // scheduling of this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Attributes {
        let mut now = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: as in `Scheduling::take`.
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) }, 0);
        now
    }

    #[test]
    fn an_urgent_state_ends() {
        let on_its_own = thread::spawn(|| {
            let before = now();
            let mut scheduling = Scheduling::take();
            for _ in 0..3 {
                scheduling.go_first();
                scheduling.begin_urgent();
                let first = now().policy == libc::SCHED_FIFO as u32;
                assert_eq!(first, scheduling.may_go_first);
                scheduling.end_urgent();
                assert_eq!((now().policy, now().nice), (before.policy, before.nice));
            }
        });
        on_its_own.join().expect("no assertion failed");
    }
}
