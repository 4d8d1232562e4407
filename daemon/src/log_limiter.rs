//! Log lines that clients can cause: a few a second, then a number.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Lines of one kind in [`INTERVAL`].
const LINES: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(1);
/// Users beyond which those without a recent line are forgotten.
const USERS: usize = 64;

/// Counts lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    begin: Option<Instant>,
    lines: u32,
    held_back: u64,
}

impl LogLimiter {
    /// May a line be written now? Then: the number of lines held back since the last.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.begin.is_none_or(|begin| now.duration_since(begin) >= INTERVAL) {
            self.begin = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.held_back += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.held_back))
    }
}

/// Counts lines of one kind for each user: no user's lines hold back those of another.
#[derive(Debug, Default)]
pub(crate) struct UserLogLimiter(BTreeMap<u32, LogLimiter>);

impl UserLogLimiter {
    /// As [`LogLimiter::admit`], for lines that user `uid` caused.
    pub(crate) fn admit(&mut self, uid: u32, now: Instant) -> Option<u64> {
        if self.0.len() >= USERS && !self.0.contains_key(&uid) {
            // Their numbers of lines held back are lost with them, after a quiet interval.
            self.0.retain(|_, limiter| limiter.begin.is_some_and(|begin| now.duration_since(begin) < INTERVAL));
        }
        self.0.entry(uid).or_default().admit(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_in_the_next_line() {
        let mut log_limiter = LogLimiter::default();
        let begin = Instant::now();
        assert_eq!((0..25).filter_map(|_| log_limiter.admit(begin)).collect::<Vec<_>>(), [0; LINES as usize]);
        assert_eq!(log_limiter.admit(begin + INTERVAL), Some(15));
        assert_eq!(log_limiter.admit(begin + INTERVAL), Some(0));
    }

    #[test]
    fn lines_of_one_user_hold_back_none_of_another() {
        let mut limiter = UserLogLimiter::default();
        let begin = Instant::now();
        let of_one = (0..25).filter_map(|_| limiter.admit(1, begin)).count();
        assert_eq!((of_one, limiter.admit(2, begin)), (LINES as usize, Some(0)));
        for uid in 3..1000 {
            assert_eq!(limiter.admit(uid, begin + INTERVAL * 2 * uid), Some(0));
        }
        assert!(limiter.0.len() <= USERS, "{}", limiter.0.len());
    }
}
