//! Numbers of descriptors that are kept for messages from clients, below the hard limit.

use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors of a message, at most: `SCM_MAX_FD` of Linux.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Numbers for descriptors that only a message's descriptors get, until they are closed, when all
/// others are in use: the soft limit of this process is that much lower.
#[derive(Debug)]
pub(crate) struct SpareNumbers {
    /// The limit but for a receive.
    pub(crate) usual: u64,
    spare: u64,
    hard: u64,
}

/// Receives of messages with descriptors that are under way.
#[derive(Debug)]
struct Lent {
    all: u32,
    /// Of users with messages that take long.
    slow: u32,
}

/// Descriptors with such a number.
pub(crate) static SPARE_HELD: AtomicU64 = AtomicU64::new(0);

impl SpareNumbers {
    pub(crate) fn get() -> &'static Self {
        static NUMBERS: OnceLock<SpareNumbers> = OnceLock::new();
        NUMBERS.get_or_init(|| {
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
            let spare = (4 * DESCRIPTORS_MAX as u64).min(hard / 4).max(DESCRIPTORS_MAX as u64);
            let usual = soft.min(hard.saturating_sub(spare));
            // A limit that cannot be set is as it was: there is less room.
            let _ = setrlimit(Resource::RLIMIT_NOFILE, usual, hard);
            Self { usual, spare, hard }
        })
    }

    fn held() -> u64 {
        SPARE_HELD.load(Ordering::Relaxed)
    }

    /// Does something with as many of these numbers at hand as a message needs, if there are as
    /// many. Of those that may take long there is one at a time: it leaves numbers to others.
    pub(crate) fn lend<T>(&self, is_slow: bool, act: impl FnOnce() -> T) -> Option<T> {
        static LENT: Mutex<Lent> = Mutex::new(Lent { all: 0, slow: 0 });
        let lent = || LENT.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = lent();
        let wanted = (u64::from(before.all) + 1) * DESCRIPTORS_MAX as u64;
        if Self::held() + wanted > self.spare || is_slow && before.slow > 0 {
            return None;
        }
        before.all += 1;
        before.slow += u32::from(is_slow);
        if before.all == 1 {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, self.usual + self.spare, self.hard);
        }
        drop(before);
        let result = act();
        let mut after = lent();
        after.all -= 1;
        after.slow -= u32::from(is_slow);
        if after.all == 0 {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, self.usual, self.hard);
        }
        Some(result)
    }
}

/// Descriptors that this process may have, but for those of messages.
pub(crate) fn usual_limit() -> u64 {
    SpareNumbers::get().usual
}
