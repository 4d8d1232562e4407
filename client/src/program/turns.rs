//! When the thread that exchanges pages has its turns on a core.
//!
//! While it holds writers nothing should come between: a thread that is held waits for whoever has the core then, too. On 2 cores that ten other
//! threads wanted, writers to 1 GiB were held for 20 to 45 ms at most when nothing was done about it.
#![expect(unsafe_code, reason = "system calls with a structure of the kernel")]

use std::thread;

/// `linux/sched/types.h`, its first version.
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

/// How long a turn is to be: longer than what is urgent takes, and short, for who asks for short turns gets them soon.
const TURN_NS: u64 = 500_000;

/// The turns of this thread.
#[derive(Debug)]
pub(super) struct Turns {
    /// What it has when nothing is urgent. `None`: whoever made it has chosen a policy of another kind, and it is left alone.
    usual: Option<Attributes>,
    /// It has the right to go before all threads without such a policy.
    may_go_first: bool,
}

impl Turns {
    /// Asks for what this thread needs. Kernels before 6.12 do not listen to the length of turns.
    pub(super) fn take() -> Self {
        let mut now = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: the kernel fills the structure, which has the size that it is told, for this thread.
        let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) } == 0;
        if !known || now.policy != libc::SCHED_OTHER as u32 {
            return Self { usual: None, may_go_first: false };
        }
        let usual = Attributes { size, runtime_ns: TURN_NS, ..now };
        let asked = set(&usual);
        Self { usual: asked.then_some(usual), may_go_first: asked }
    }

    /// What follows, for about a millisecond, should not be interrupted: it takes locks that faults of other threads want.
    pub(super) fn go_first(&mut self) {
        let Some(usual) = self.usual.filter(|_| self.may_go_first) else { return };
        let first = Attributes { policy: libc::SCHED_FIFO as u32, priority: 1, nice: 0, runtime_ns: 0, ..usual };
        // Without the right it is asked once.
        self.may_go_first = set(&first);
    }

    /// From now on, for some tenths of a millisecond, others are held.
    pub(super) fn begin_urgent(&self) {
        if self.usual.is_some() && !self.may_go_first {
            // It begins with a whole turn.
            thread::yield_now();
        }
    }

    /// It is done.
    pub(super) fn end_urgent(&mut self) {
        if let Some(usual) = self.usual.filter(|_| self.may_go_first) {
            // Who may go first may go back: no right is needed for that.
            set(&usual);
        }
    }
}

fn set(attributes: &Attributes) -> bool {
    // SAFETY: the kernel reads the structure, which says its size, and changes only when this thread runs.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Attributes {
        let mut now = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: as in `Turns::take`.
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) }, 0);
        now
    }

    #[test]
    fn what_was_urgent_ends() {
        let on_its_own = thread::spawn(|| {
            let before = now();
            let mut turns = Turns::take();
            for _ in 0..3 {
                turns.go_first();
                turns.begin_urgent();
                let first = now().policy == libc::SCHED_FIFO as u32;
                assert_eq!(first, turns.may_go_first);
                turns.end_urgent();
                assert_eq!((now().policy, now().nice), (before.policy, before.nice));
            }
        });
        on_its_own.join().expect("no assertion failed");
    }
}
