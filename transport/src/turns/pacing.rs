//! A rate for one queue pair: each frame moves the moment of the next one.

use crate::clock::Nanos;

/// How far a sender that was idle, or was looked at late, may catch up.
pub(crate) const BURST: Nanos = Nanos::from_micros(50);

/// Spaces frames out to a rate in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// 0: no limit.
    rate_bytes_per_s: u64,
    next_send: Nanos,
}

impl Pacer {
    /// Sets the rate; 0 for no limit.
    pub(crate) fn set_rate(&mut self, rate_bytes_per_s: u64) {
        self.rate_bytes_per_s = rate_bytes_per_s;
        self.next_send = Nanos(0);
    }

    /// When the next frame may leave; not later than `now` means at once.
    pub(crate) const fn next_send(&self) -> Nanos {
        self.next_send
    }

    /// Nothing leaves before `time`.
    pub(crate) fn wait_until(&mut self, time: Nanos) {
        self.next_send = self.next_send.max(time);
    }

    /// A frame of `bytes` left at `now`.
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        if self.rate_bytes_per_s == 0 {
            return;
        }
        let cost = Nanos((bytes as u64).saturating_mul(1_000_000_000) / self.rate_bytes_per_s);
        let earliest = now - BURST;
        self.next_send = self.next_send.max(earliest) + cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_frames_is_a_second_of_rate() {
        let mut pacer = Pacer::default();
        pacer.set_rate(1_000_000);
        let (mut now, mut sent) = (Nanos::from_millis(5), 0);
        while now < Nanos::from_millis(1005) {
            if pacer.next_send() <= now {
                pacer.on_sent(now, 1000);
                sent += 1000;
            } else {
                now = now + Nanos::from_micros(10);
            }
        }
        assert!((990_000..=1_010_000).contains(&sent), "{sent}");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::default();
        pacer.on_sent(Nanos(5), 1 << 30);
        assert_eq!(pacer.next_send(), Nanos(0));
    }
}
