//! Processor time, of threads of ours and of other processes.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

/// Processor time of the calling thread.
pub(crate) fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Processor time of a process, all its threads together; zero when it is gone.
pub(crate) fn of_process(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    clock.and_then(clock_gettime).map_or(Duration::ZERO, Duration::from)
}

/// Processor time of the children that have ended and were waited for.
pub(crate) fn of_ended_children() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_or(Duration::ZERO, |usage| {
        let both = [usage.user_time(), usage.system_time()];
        both.iter().map(|time| Duration::from_micros(time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64)).sum()
    })
}

/// Processor time of a process in the next second, in parts of it.
pub(crate) fn idle_share(pid: u32) -> f64 {
    let (begin, before) = (Instant::now(), of_process(pid));
    thread::sleep(Duration::from_secs(1));
    (of_process(pid) - before).as_secs_f64() / begin.elapsed().as_secs_f64()
}

/// Keeps the calling thread on a core, as `worker.core` keeps a worker. Where that cannot be had it
/// runs as before.
pub(crate) fn run_on(core: usize) {
    let mut only = CpuSet::new();
    let pinned = only.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
    if let Err(errno) = pinned {
        eprintln!("a thread cannot be pinned to core {core}: {errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_uses_time_and_a_process_that_is_not_there_none() {
        let before = of_this_thread();
        let mut sum = 0u64;
        while of_this_thread() - before < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of_process(std::process::id()) >= Duration::from_millis(2));
        // Above the largest number that Linux gives to a process.
        assert_eq!(of_process((1 << 22) + 1), Duration::ZERO);
    }
}
