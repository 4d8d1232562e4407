//! Log lines that clients can cause: a few a second, then a number.

use std::time::{Duration, Instant};

/// Lines of one kind in [`INTERVAL`].
const LINES: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(1);

/// Counts lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    begin: Option<Instant>,
    lines: u32,
    held_back: u64,
}

impl LogLimiter {
    /// May a line be written now? Then: how many were held back since the last.
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
}
