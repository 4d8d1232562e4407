//! When a core of the machine stood still: the host of a virtual machine had given it away.
//!
//! Each core is interrupted four thousand times a second, and the kernel notes when, and where the
//! core was (a software event of `perf_event_open(2)`). A core from which nothing comes for a
//! millisecond was not there, or let no interrupt in for as long, which the kernel avoids. One that
//! is interrupted late, and found where it was, had nothing of the time between but the interrupt:
//! some hosts give no more for some milliseconds, to all cores at once.
//!
//! The thread on such a core is not the only one that stops: a thread that changes mappings waits
//! until each other core has acknowledged. The kernel's times of threads do not show that. They
//! count such a wait as running, and a part of the host's time appears later, in another thread's.
#![expect(unsafe_code, reason = "opens events of the kernel, and reads the mapping that it writes to")]

use std::{
    fs,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    thread,
    time::Duration,
};

use nix::errno::Errno;

/// Between two interrupts of a core.
const PERIOD: Duration = Duration::from_micros(250);

/// Without an interrupt for longer, a core is not there.
const GONE: Duration = Duration::from_millis(1);

/// An interrupt this long after the previous one is late.
const LATE: Duration = Duration::from_micros(375);

/// Of a ring, without the page before it: some seconds of samples.
const RING_BYTES: usize = 256 << 10;

const PAGE_BYTES: usize = 4096;

/// Interval of the evaluation of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// `struct perf_event_attr` of `linux/perf_event.h`, its fifth version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack: u32,
    clock: i32,
    registers_intr: u64,
    aux_watermark: u32,
    max_stack: u32,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_SAMPLE_IP: u64 = 1 << 0;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_ATTR_USE_CLOCKID: u64 = 1 << 25;
const PERF_RECORD_SAMPLE: u32 = 9;

/// Where in the first page of a mapping the kernel tells how far it has written.
const DATA_HEAD: usize = 1024;
/// And is told how far was read.
const DATA_TAIL: usize = 1032;

/// A core, and its last sample.
#[derive(Debug)]
struct Core {
    _event: OwnedFd,
    base: *mut u8,
    read: u64,
    last: Option<Sample>,
}

/// When a core was interrupted, and where it was.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    instruction: u64,
    /// And its process.
    thread: u64,
}

impl Sample {
    /// Since `last` the core did not get on.
    fn still_since(&self, last: &Self) -> bool {
        let same = (self.instruction, self.thread) == (last.instruction, last.thread);
        self.at > last.at + GONE || same && self.at > last.at + LATE
    }
}

// SAFETY: the mapping belongs to the event alone, whichever thread reads it.
unsafe impl Send for Core {}

/// Times, by `CLOCK_MONOTONIC`, in which a core stood still.
#[derive(Debug, Default)]
pub(crate) struct Paused(Vec<Range<Duration>>);

impl Paused {
    /// The part of `time` in which some core stopped.
    pub(crate) fn part_of(&self, time: &Range<Duration>) -> Duration {
        let (mut sum, mut end) = (Duration::ZERO, time.start);
        for still in &self.0 {
            let part = still.start.max(end)..still.end.min(time.end);
            if part.start < part.end {
                sum += part.end - part.start;
                end = part.end;
            }
        }
        sum
    }

    /// How often, and for how long in all.
    pub(crate) fn told(&self) -> (usize, Duration) {
        (self.0.len(), self.0.iter().map(|still| still.end - still.start).sum())
    }
}

/// Watches all cores until `over`.
pub(crate) fn watch(over: &AtomicBool) -> Paused {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("it can be read");
    let cores: Result<Vec<Core>, Errno> = numbers(&online).map(Core::open).collect();
    let mut cores = cores.unwrap_or_else(|errno| {
        println!(
            "skipped: cores are not watched, and nothing is the host's (perf_event_open: {errno}; it needs CAP_PERFMON)"
        );
        Vec::new()
    });
    let mut paused = Paused::default();
    loop {
        let last = over.load(Ordering::SeqCst);
        for core in &mut cores {
            core.look(&mut paused.0);
        }
        if last {
            paused.0.sort_by_key(|still| still.start);
            return paused;
        }
        thread::sleep(SAMPLE_INTERVAL);
    }
}

/// Of a list like `0-1,4`.
fn numbers(list: &str) -> impl Iterator<Item = i32> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|number| number.parse().expect("a number"));
        first..=last
    })
}

impl Core {
    fn open(number: i32) -> Result<Self, Errno> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: PERIOD.as_nanos() as u64,
            sample_type: PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
            flags: PERF_ATTR_USE_CLOCKID,
            clock: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads the structure, which says its size.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, -1, number, -1, 0) };
        // SAFETY: the kernel made it for us.
        let event = unsafe { OwnedFd::from_raw_fd(Errno::result(fd)? as i32) };
        let (bytes, protection) = (PAGE_BYTES + RING_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Self { _event: event, base: base.cast(), read: 0, last: None })
    }

    /// Evaluates the samples.
    fn look(&mut self, paused: &mut Vec<Range<Duration>>) {
        let written = self.shared(DATA_HEAD).load(Ordering::Acquire);
        while self.read < written {
            let header = self.word(self.read);
            let (kind, bytes) = (header as u32, header >> 48);
            if kind == PERF_RECORD_SAMPLE {
                let [instruction, thread, at] = [8, 16, 24].map(|at| self.word(self.read + at));
                let now = Sample { at: Duration::from_nanos(at), instruction, thread };
                if let Some(last) = self.last.filter(|last| now.still_since(last)) {
                    paused.push(last.at..now.at);
                }
                self.last = Some(now);
            } else {
                // Samples were lost, or the kernel takes none for a while.
                self.last = None;
            }
            self.read += bytes;
        }
        fence(Ordering::SeqCst);
        self.shared(DATA_TAIL).store(self.read, Ordering::Release);
    }

    fn shared(&self, at: usize) -> &AtomicU64 {
        // SAFETY: it lies in the first page of the mapping, aligned, and is never unmapped.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Records and the ring consist of whole words and begin at a word boundary.
    fn word(&self, at: u64) -> u64 {
        self.shared(PAGE_BYTES + at as usize % RING_BYTES).load(Ordering::Relaxed)
    }
}

#[test]
fn simultaneous_pauses_of_several_cores_count_once() {
    let ms = Duration::from_millis;
    let paused = Paused(vec![ms(10)..ms(20), ms(12)..ms(15), ms(18)..ms(25), ms(30)..ms(40)]);
    assert_eq!(paused.part_of(&(ms(0)..ms(100))), ms(25));
    assert_eq!(paused.part_of(&(ms(13)..ms(32))), ms(14));
    assert_eq!(paused.part_of(&(ms(26)..ms(29))), ms(0));
}

#[test]
fn a_core_stood_still_that_was_away_or_is_late_where_it_was() {
    let sample = |us, instruction| Sample { at: Duration::from_micros(us), instruction, thread: 7 };
    let first = sample(0, 1);
    let still = [sample(250, 1), sample(600, 2), sample(600, 1), sample(1001, 2)].map(|it| it.still_since(&first));
    assert_eq!(still, [false, false, true, true]);
    assert!(!Sample { thread: 8, ..sample(600, 1) }.still_since(&first), "another thread had the core");
}
