//! Paces packets that no acknowledgment opens a window for, by CNPs alone: READ responses, packets
//! of unreliable connections, and with DCQCN requests as well.

use alloc::sync::Arc;

use super::dcqcn::{Dcqcn, DcqcnParameters};
use crate::{clock::Nanos, turns::pacing::BURST};

/// Longest gap between packets: losses are repaired within it.
const GAP_MAX: Nanos = Nanos::from_millis(10);

/// Rate of one queue pair, and the time of its next packet.
#[derive(Clone, Debug)]
pub(crate) struct SendRate {
    parameters: Arc<DcqcnParameters>,
    dcqcn: Dcqcn,
    next_send: Nanos,
    /// A packet was sent since the last CNP: else the next one is of packets that windows limit.
    has_sent: bool,
    /// A packet waits for its time.
    is_waiting: bool,
}

impl SendRate {
    pub(crate) const fn new(parameters: Arc<DcqcnParameters>) -> Self {
        Self { parameters, dcqcn: Dcqcn::new(), next_send: Nanos(0), has_sent: false, is_waiting: false }
    }

    /// Begins a new life.
    pub(crate) const fn reset(&mut self) {
        self.dcqcn = Dcqcn::new();
        (self.next_send, self.has_sent, self.is_waiting) = (Nanos(0), false, false);
    }

    /// A CNP came at `now`; false if nothing was sent that it can be of.
    pub(crate) fn on_notification(&mut self, now: Nanos) -> bool {
        if !core::mem::take(&mut self.has_sent) {
            return false;
        }
        self.dcqcn.on_notification(now, self.next_send, &self.parameters);
        true
    }

    /// Whether no packet may leave at `now`. If so, [`Self::deadline`] says until when.
    #[inline]
    pub(crate) fn is_closed(&mut self, now: Nanos) -> bool {
        if self.dcqcn.rate().is_none() {
            return false;
        }
        self.dcqcn.follow(now, self.next_send, &self.parameters);
        self.is_waiting = self.dcqcn.rate().is_some() && self.next_send > now;
        if self.is_waiting {
            self.dcqcn.on_waiting();
        }
        self.is_waiting
    }

    /// A frame of `bytes` left at `now`.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        self.has_sent = true;
        let Some(rate) = self.dcqcn.rate() else { return };
        let cost = Nanos((bytes as u64).saturating_mul(1_000_000_000) / rate).min(GAP_MAX);
        self.next_send = self.next_send.max(now - BURST) + cost;
        self.dcqcn.on_sent(bytes, &self.parameters);
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.is_waiting &= self.next_send > now;
    }

    /// Time at which the waiting packet may leave; [`Nanos::NEVER`] if none waits.
    pub(crate) const fn deadline(&self) -> Nanos {
        if self.is_waiting { self.next_send } else { Nanos::NEVER }
    }

    /// In bytes per second; `None` if nothing limits the sender.
    pub(crate) const fn bytes_per_s(&self) -> Option<u64> {
        self.dcqcn.rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 1_250_000_000;

    fn limited(now: Nanos) -> SendRate {
        let mut rate = SendRate::new(Arc::new(DcqcnParameters::paper(LINE)));
        assert!(!rate.on_notification(now), "nothing was sent");
        rate.on_sent(now, 4096);
        assert!(rate.on_notification(now));
        rate
    }

    #[test]
    fn packets_leave_at_the_rate_and_the_deadline_says_when() {
        let begin = Nanos::from_millis(5);
        let mut rate = limited(begin);
        let (mut now, mut bytes) = (begin, 0_u64);
        let end = begin + Nanos::from_micros(55);
        while now < end {
            if rate.is_closed(now) {
                assert!(rate.deadline() > now);
                now = rate.deadline();
                rate.on_timeout(now);
                assert_eq!(rate.deadline(), Nanos::NEVER);
            } else {
                rate.on_sent(now, 1000);
                bytes += 1000;
            }
        }
        // Half of 10 Gbit/s for 55 us, and the burst of 50 us.
        assert!((62_000..68_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn without_a_notification_nothing_waits() {
        let mut rate = SendRate::new(Arc::new(DcqcnParameters::paper(LINE)));
        rate.on_sent(Nanos(5), 1 << 30);
        assert!(!rate.is_closed(Nanos(5)));
        assert_eq!((rate.deadline(), rate.bytes_per_s()), (Nanos::NEVER, None));
    }

    #[test]
    fn no_gap_is_longer_than_ten_milliseconds() {
        let with = DcqcnParameters { rate_to_set_on_first_cnp: 1, rpg_min_rate: 1, ..DcqcnParameters::mlx(LINE) };
        let (mut rate, now) = (SendRate::new(Arc::new(with)), Nanos::from_millis(5));
        rate.on_sent(now, 4096);
        assert!(rate.on_notification(now));
        rate.on_sent(now, 4096);
        assert!(rate.is_closed(now));
        let gap = rate.deadline() - now;
        assert!((9_900_000..=10_000_000).contains(&gap.0), "{gap:?}");
    }

    /// A thousandth of the link is 1.25 MB/s: packets of 4 KiB are 60 increases apart.
    #[test]
    fn the_lowest_rate_limits_packets_that_wait() {
        let mut now = Nanos::from_millis(5);
        let mut rate = limited(now);
        for _ in 0..2000 {
            now = now + Nanos::from_micros(50);
            rate.on_sent(now, 1);
            assert!(rate.on_notification(now));
        }
        assert_eq!(rate.bytes_per_s(), Some(LINE / 1000));
        for _ in 0..4 {
            while !rate.is_closed(now) {
                rate.on_sent(now, 4096);
            }
            now = rate.deadline();
            rate.on_timeout(now);
            assert!(!rate.is_closed(now), "its time has come");
            assert!(rate.bytes_per_s().is_some_and(|rate| rate < LINE / 8), "{:?}", rate.bytes_per_s());
        }
    }

    #[test]
    fn a_new_life_has_no_rate() {
        let mut rate = limited(Nanos::from_millis(5));
        rate.reset();
        assert_eq!(rate.bytes_per_s(), None);
        assert!(!rate.on_notification(Nanos::from_millis(6)));
    }
}
