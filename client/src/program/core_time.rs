//! What a thread took itself, and what was taken from it by nobody whom the kernel counts: by the host of a virtual machine, or, on kernels that count them apart
//! (`CONFIG_IRQ_TIME_ACCOUNTING`), by interrupts.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use libc::c_long;
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};

/// The clocks of one thread.
#[derive(Debug)]
pub(super) struct CoreTime {
    /// What the kernel counts of its turns; not every kernel does.
    schedule: Option<File>,
}

/// What they say at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Before the counts were read, and after.
    around: [Instant; 2],
    ran: Option<Duration>,
    /// How long it has wanted a core that others had.
    waited: Option<Duration>,
    slept: Option<c_long>,
}

impl CoreTime {
    /// Of the calling thread, which alone may ask.
    pub(super) fn of_this_thread() -> Self {
        Self { schedule: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Now. Writes to nothing but the stack.
    pub(super) fn now(&self) -> Moment {
        let begin = Instant::now();
        let ran = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from);
        let (waited, slept) = (self.waited(), sleeps());
        Moment { ran, waited, slept, around: [begin, Instant::now()] }
    }

    /// Its turns: nanoseconds on a core, nanoseconds in wait for one, how many.
    fn waited(&self) -> Option<Duration> {
        let mut text = [0; 100];
        let length = self.schedule.as_ref()?.read_at(&mut text, 0).ok()?;
        let waited = std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().nth(1)?;
        waited.parse().ok().map(Duration::from_nanos)
    }
}

impl Moment {
    /// How long it is since `before`. Less than the counts are for: whoever comes between two of them is in a count that is too large, not in none.
    pub(super) fn since(&self, before: &Self) -> Duration {
        self.around[0] - before.around[1]
    }

    /// The same without the time in which the thread had its core and did not run. All of it where the thread has slept, for then nobody
    /// knows, or where the kernel does not count.
    pub(super) fn own_since(&self, before: &Self) -> Duration {
        let all = self.since(before);
        let (Some(ran), Some(waited)) = (difference(self.ran, before.ran), difference(self.waited, before.waited))
        else {
            return all;
        };
        if self.slept.is_none() || self.slept != before.slept { all } else { all.min(ran + waited) }
    }
}

fn difference(now: Option<Duration>, before: Option<Duration>) -> Option<Duration> {
    now?.checked_sub(before?)
}

/// How often this thread has waited for anything but a core.
pub(super) fn sleeps() -> Option<c_long> {
    getrusage(UsageWho::RUSAGE_THREAD).ok().map(|usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn moment(at: Instant, ran_ms: u64, waited_ms: u64, slept: c_long) -> Moment {
        let [ran, waited] = [ran_ms, waited_ms].map(|ms| Some(Duration::from_millis(ms)));
        Moment { around: [at; 2], ran, waited, slept: Some(slept) }
    }

    #[test]
    fn what_nobody_accounts_for_is_the_hosts() {
        let begin = Instant::now();
        let before = moment(begin, 100, 50, 7);
        let at = begin + Duration::from_millis(12);
        let own = |now: Moment| now.own_since(&before).as_millis();
        assert_eq!(own(moment(at, 101, 50, 7)), 1, "eleven are missing");
        assert_eq!(own(moment(at, 101, 58, 7)), 9, "for eight it wanted a core");
        assert_eq!(own(moment(at, 101, 50, 8)), 12, "it slept");
        assert_eq!(own(moment(at, 120, 50, 7)), 12, "clocks are not read all at once");
        assert_eq!(own(Moment { waited: None, ..moment(at, 101, 50, 7) }), 12, "the kernel does not say");
        assert_eq!(own(Moment { slept: None, ..moment(at, 101, 50, 7) }), 12);
        let late = Moment { around: [at, at + Duration::from_millis(9)], ..moment(at, 112, 50, 7) };
        assert_eq!(own(late), 12, "what comes while the counts are read is nobody's");
    }

    #[test]
    fn the_clocks_of_a_thread_go() {
        let clock = CoreTime::of_this_thread();
        let before = clock.now();
        while clock.now().own_since(&before) < Duration::from_millis(2) {}
        let worked = clock.now();
        assert!(worked.since(&before) >= Duration::from_millis(2));
        thread::sleep(Duration::from_millis(3));
        let slept = clock.now();
        assert_eq!(slept.own_since(&worked), slept.since(&worked), "a thread that sleeps knows nothing of the host");
    }
}
