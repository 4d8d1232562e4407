//! Pauses by the other end of a link (PFC, PAUSE), as the XDP program notes them: memory of a map,
//! which workers read without a system call.
#![expect(unsafe_code, reason = "mmap(2) of a map of the kernel, and its words as atomic ones")]

use std::{
    num::NonZeroUsize,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};
use roced_steering::{HONOR_GLOBAL_PAUSE, PAUSE_WORDS, PRIORITIES, PauseWord, PriorityPauseWord};
use roced_transport::clock::Nanos;

use crate::dcb::PrioritySet;

const BYTES: NonZeroUsize = NonZeroUsize::new(PAUSE_WORDS * size_of::<u64>()).expect("some words");

/// Tries to read words that belong together. Frames of one link seldom come within a microsecond.
const TRIES: usize = 100;

/// Longer than the longest pause of the slowest link, 335 ms at 100 Mbit/s.
const PAUSE_MAX: Nanos = Nanos::from_millis(500);

/// Bits of a quantum (IEEE 802.3 annex 31B.2).
const QUANTUM_BITS: u64 = 512;

/// Pauses that a device honors: frames that its MAC does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HonoredPauses {
    /// Priorities, by PFC frames (annex 31D).
    pub priorities: PrioritySet,
    /// PAUSE frames (annex 31B), which pause all priorities.
    pub global: bool,
    /// Rate of the link in Mbit/s, by which a pause has its time.
    pub link_mbit_per_s: u32,
}

impl HonoredPauses {
    /// Nothing is honored.
    pub fn is_empty(&self) -> bool {
        self.priorities.is_empty() && !self.global
    }

    /// Priorities that can be paused, a bit for each.
    pub fn bits(&self) -> u8 {
        if self.global { u8::MAX } else { self.priorities.bits() }
    }

    /// The value of the map before the first frame.
    pub(crate) fn words(&self) -> [u64; PAUSE_WORDS] {
        let mut words = [0; PAUSE_WORDS];
        let global = if self.global { HONOR_GLOBAL_PAUSE } else { 0 };
        words[PauseWord::Honored as usize] = u64::from(self.priorities.bits()) | global;
        words[PauseWord::QuantumPicoseconds as usize] = quantum_ps(self.link_mbit_per_s);
        words
    }
}

/// Duration of a quantum on a link of that rate.
pub(crate) fn quantum_ps(link_mbit_per_s: u32) -> u64 {
    (QUANTUM_BITS * 1_000_000 / u64::from(link_mbit_per_s.max(1))).max(1)
}

/// Counters of pauses, under the names of adapters: frames, pauses that have ended, and
/// microseconds of pauses.
type CounterNames = [&'static str; 3];

const GLOBAL_COUNTERS: CounterNames = ["rx_global_pause", "rx_global_pause_transition", "rx_global_pause_duration"];

const COUNTERS: [CounterNames; PRIORITIES] = [
    ["rx_prio0_pause", "rx_prio0_pause_transition", "rx_prio0_pause_duration"],
    ["rx_prio1_pause", "rx_prio1_pause_transition", "rx_prio1_pause_duration"],
    ["rx_prio2_pause", "rx_prio2_pause_transition", "rx_prio2_pause_duration"],
    ["rx_prio3_pause", "rx_prio3_pause_transition", "rx_prio3_pause_duration"],
    ["rx_prio4_pause", "rx_prio4_pause_transition", "rx_prio4_pause_duration"],
    ["rx_prio5_pause", "rx_prio5_pause_transition", "rx_prio5_pause_duration"],
    ["rx_prio6_pause", "rx_prio6_pause_transition", "rx_prio6_pause_duration"],
    ["rx_prio7_pause", "rx_prio7_pause_transition", "rx_prio7_pause_duration"],
];

/// The value of the map of pauses. It stays readable when the program is gone.
#[derive(Debug)]
pub struct PauseMap {
    words: NonNull<[AtomicU64; PAUSE_WORDS]>,
    honored: HonoredPauses,
}

// SAFETY: the words are atomic, and mapped until the owner is dropped.
unsafe impl Send for PauseMap {}
// SAFETY: likewise.
unsafe impl Sync for PauseMap {}

impl PauseMap {
    /// Maps the value of `map`, a map of that shape, with its pauses honored.
    pub(crate) fn new(map: BorrowedFd<'_>, honored: HonoredPauses) -> Result<Self, Errno> {
        // SAFETY: a new mapping, of memory that the map keeps; the kernel refuses maps that have
        // none to be mapped.
        let memory =
            unsafe { mmap(None, BYTES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, map, 0)? };
        Ok(Self { words: memory.cast(), honored })
    }

    /// The link has this rate from now on, Mbit/s; pauses of before keep their ends.
    pub fn set_link_rate(&self, mbit_per_s: u32) {
        self.word(PauseWord::QuantumPicoseconds as usize).store(quantum_ps(mbit_per_s), Ordering::Relaxed);
    }

    /// Pauses that are honored.
    pub const fn honored(&self) -> HonoredPauses {
        self.honored
    }

    /// Changes with each frame that is honored.
    #[inline]
    pub(crate) fn frames(&self) -> u64 {
        self.word(PauseWord::Frames as usize).load(Ordering::Acquire)
    }

    /// Until when each priority is paused, at `now`. A pause that is longer than a frame can say is
    /// none: its clock is another (a time namespace).
    pub(crate) fn until(&self, now: Nanos) -> [Nanos; PRIORITIES] {
        std::array::from_fn(|priority| {
            let until = Nanos(self.load(PriorityPauseWord::UntilNanoseconds.of(priority)));
            if until - now > PAUSE_MAX { Nanos(0) } else { until }
        })
    }

    /// Names each counter of pauses that are honored with its value at `now`.
    pub fn counters(&self, now: Nanos, count: &mut impl FnMut(&'static str, u64)) {
        let mut of = |[frames, ends, duration]: CounterNames, priority: usize| {
            let word = |word: PriorityPauseWord| self.load(word.of(priority));
            // The last pause counts as far as it has passed. Its words are read again if they
            // change meanwhile, a few times.
            let mut seen = self.frames();
            for _ in 0..TRIES {
                let [begin, until, before] = [
                    PriorityPauseWord::BeginNanoseconds,
                    PriorityPauseWord::UntilNanoseconds,
                    PriorityPauseWord::DurationNanoseconds,
                ]
                .map(|of| Nanos(word(of)));
                let ended = word(PriorityPauseWord::Ends);
                let is_last = seen == std::mem::replace(&mut seen, self.frames());
                if is_last {
                    let last = if until == Nanos(0) { Nanos(0) } else { until.min(now) - begin };
                    count(frames, word(PriorityPauseWord::Frames));
                    count(ends, ended + u64::from(until != Nanos(0) && until <= now));
                    count(duration, (before + last).0 / 1000);
                    return;
                }
            }
        };
        if self.honored.global {
            of(GLOBAL_COUNTERS, 0);
        } else {
            self.honored.priorities.iter().for_each(|priority| of(COUNTERS[usize::from(priority)], priority.into()));
        }
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: mapped as long as `self`, aligned to a page, and written by the kernel in whole
        // words.
        unsafe { &self.words.as_ref()[at] }
    }
}

impl Drop for PauseMap {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing refers to it any longer.
        let unmapped = unsafe { munmap(self.words.cast(), BYTES.get()) };
        debug_assert_eq!(unmapped, Ok(()), "it is mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantum_is_the_time_of_512_bits() {
        let quantum = |link_mbit_per_s| {
            let honored = HonoredPauses { link_mbit_per_s, ..HonoredPauses::default() };
            honored.words()[PauseWord::QuantumPicoseconds as usize]
        };
        assert_eq!([100, 10_000, 400_000].map(quantum), [5_120_000, 51_200, 1280]);
        let honored = HonoredPauses { priorities: [3, 4].into_iter().collect(), global: true, link_mbit_per_s: 1 };
        assert_eq!(honored.words()[PauseWord::Honored as usize], 256 + 16 + 8);
    }
}
