//! The scheduling class in which roced runs, for threads of the kernel that work for it.
#![expect(unsafe_code, reason = "sched_getscheduler(2) and its kin, which no crate wraps")]

use nix::{errno::Errno, unistd::Pid};

/// A real-time class with its priority: a thread of another class never runs beside a busy thread
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RealTime {
    policy: libc::c_int,
    priority: libc::c_int,
}

impl RealTime {
    /// That of this thread, if it has one. Threads that it makes have it as well.
    pub(super) fn ours() -> Option<Self> {
        Self::of(Pid::from_raw(0))
    }

    /// That of a thread, if it has one; 0 is the one that asks.
    fn of(thread: Pid) -> Option<Self> {
        // SAFETY: it reads a number of a thread.
        let policy = unsafe { libc::sched_getscheduler(thread.as_raw()) };
        if ![libc::SCHED_FIFO, libc::SCHED_RR].contains(&policy) {
            return None;
        }
        let mut param = libc::sched_param { sched_priority: 0 };
        // SAFETY: `param` is writable and lives across the call.
        let asked = unsafe { libc::sched_getparam(thread.as_raw(), &raw mut param) };
        (asked == 0).then_some(Self { policy, priority: param.sched_priority })
    }

    /// Puts a thread into it.
    ///
    /// # Errors
    /// The kernel's: it takes CAP_SYS_NICE.
    pub(super) fn give_to(self, thread: Pid) -> Result<(), Errno> {
        let param = libc::sched_param { sched_priority: self.priority };
        // SAFETY: `param` is readable and lives across the call.
        Errno::result(unsafe { libc::sched_setscheduler(thread.as_raw(), self.policy, &raw const param) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use nix::unistd::gettid;

    use super::*;

    #[test]
    fn a_thread_gets_the_class_that_another_has() {
        let ((tell, told), (end, ended)) = (channel(), channel::<()>());
        let other = thread::spawn(move || {
            tell.send(gettid()).expect("a thread waits");
            let _ = ended.recv();
        });
        let other_thread = told.recv().expect("it began");
        assert_eq!(RealTime::of(other_thread), RealTime::ours(), "it is as we are");
        let class = RealTime { policy: libc::SCHED_RR, priority: 1 };
        match class.give_to(other_thread) {
            Ok(()) => assert_eq!(RealTime::of(other_thread), Some(class)),
            Err(errno) => println!("skipped in part: this process may not give real-time classes ({errno})"),
        }
        drop(end);
        other.join().expect("it ends");
    }
}
