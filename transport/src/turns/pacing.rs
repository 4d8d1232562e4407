//! A rate for one queue pair: each frame moves the moment of the next one.

use roced_types::QpAttributes;

use crate::clock::Nanos;

/// How far a sender that was idle, or was looked at late, may catch up.
pub(crate) const BURST: Nanos = Nanos::from_micros(50);

/// 1 kbit/s, in bytes per second.
const KILOBIT_BYTES: u64 = 125;

/// Rate of a queue pair, kbit/s, 0 for no limit: the lower one of its own and that of its path.
pub(crate) const fn rate_of(attributes: &QpAttributes) -> u32 {
    lower(attributes.rate_limit_kbit_per_s, attributes.static_rate_kbit_per_s)
}

/// The lower of two rates, of which 0 is no limit.
const fn lower(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, rate) | (rate, 0) => rate,
        _ if a < b => a,
        _ => b,
    }
}

/// A frame, and the limits that it has beside the rate of its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacedFrame {
    /// Its length.
    pub(crate) bytes: usize,
    /// Bytes by which a sender that was idle may catch up; 0 for those of [`BURST`].
    pub(crate) burst_bytes: u32,
    /// Highest rate of its path, 0 for none.
    pub(crate) kbit_per_s: u32,
}

/// Spaces frames out to a rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// 0: no limit.
    kbit_per_s: u32,
    next_send: Nanos,
}

impl Pacer {
    /// Sets the rate; 0 for no limit.
    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        *self = Self { kbit_per_s, next_send: Nanos(0) };
    }

    /// Frames are spaced out.
    #[inline]
    pub(crate) const fn is_limited(&self) -> bool {
        self.kbit_per_s > 0
    }

    /// When the next frame may leave; not later than `now` means at once.
    #[inline]
    pub(crate) const fn next_send(&self) -> Nanos {
        self.next_send
    }

    /// Nothing leaves before `time`.
    pub(crate) fn wait_until(&mut self, time: Nanos) {
        self.next_send = self.next_send.max(time);
    }

    /// A frame left at `now`.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, frame: PacedFrame) {
        let rate = u64::from(lower(self.kbit_per_s, frame.kbit_per_s)) * KILOBIT_BYTES;
        if rate == 0 {
            return;
        }
        let time_of = |bytes: u64| Nanos(bytes.saturating_mul(1_000_000_000) / rate);
        let burst = if frame.burst_bytes == 0 { BURST } else { time_of(frame.burst_bytes.into()) };
        self.next_send = self.next_send.max(now - burst) + time_of(frame.bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 MB/s.
    const MEGABYTE: u32 = 8000;

    fn frame(bytes: usize, burst_bytes: u32, kbit_per_s: u32) -> PacedFrame {
        PacedFrame { bytes, burst_bytes, kbit_per_s }
    }

    #[test]
    fn a_second_of_frames_is_a_second_of_rate() {
        let mut pacer = Pacer::default();
        pacer.set_rate(MEGABYTE);
        let (mut now, mut sent) = (Nanos::from_millis(5), 0);
        while now < Nanos::from_millis(1005) {
            if pacer.next_send() <= now {
                pacer.on_sent(now, frame(1000, 0, 0));
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
        pacer.on_sent(Nanos(5), frame(1 << 30, 0, 0));
        assert_eq!(pacer.next_send(), Nanos(0));
    }

    #[test]
    fn after_a_pause_as_many_bytes_leave_at_once_as_the_burst_has() {
        for (burst_bytes, at_once) in [(0, 1), (1000, 2), (64_000, 65)] {
            let mut pacer = Pacer::default();
            pacer.set_rate(MEGABYTE);
            let now = Nanos::from_millis(500);
            let mut sent = 0;
            while pacer.next_send() <= now {
                pacer.on_sent(now, frame(1000, burst_bytes, 0));
                sent += 1;
            }
            assert_eq!(sent, at_once, "{burst_bytes}");
        }
    }

    #[test]
    fn the_lower_one_of_two_rates_counts() {
        const HALF: u32 = MEGABYTE / 2;
        for (own, path, wait_us) in [(0, 0, 0), (MEGABYTE, 0, 1000), (0, HALF, 2000), (MEGABYTE, HALF, 2000)] {
            let (mut pacer, now) = (Pacer::default(), Nanos::from_millis(500));
            pacer.set_rate(own);
            pacer.on_sent(now, frame(1000, 0, path));
            let waits = if wait_us == 0 { Nanos(0) } else { now + Nanos::from_micros(wait_us) - BURST };
            assert_eq!(pacer.next_send(), waits, "{own} and {path}");
            let both = QpAttributes { rate_limit_kbit_per_s: own, static_rate_kbit_per_s: path, ..Default::default() };
            pacer.set_rate(rate_of(&both));
            pacer.on_sent(now, frame(1000, 0, 0));
            assert_eq!(pacer.next_send(), waits, "{own} and {path} of a queue pair");
        }
    }
}
