//! Round-trip time of a queue pair, measured on its regular traffic: one packet at a time that asks
//! for an ACK and was sent only once, or was sent again because the peer missed it. Both ends of a
//! measurement use the time of the poll iteration, so a measurement needs no extra clock read.

use crate::clock::Nanos;

/// Smoothed round-trip time and its variation, in nanoseconds: one of more than 4 s counts as 4 s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smooth: u32,
    variation: u32,
    /// Recent minimum, and minimum of this epoch.
    least: u32,
    epoch_least: u32,
    /// Measurements of this epoch.
    samples: u8,
    /// Answers in a row that came too soon to be believed.
    doubts: u8,
}

/// Measurements in an epoch. Each epoch moves the recent minimum a quarter of the way toward the
/// minimum of that epoch. When a path becomes longer, the all-time minimum is useless; a queue's
/// delay, on the other hand, disappears as soon as the traffic pauses.
const EPOCH: u8 = 64;

/// Maximum number of doubts that lower the bound: to a thousandth of a thousandth.
const DOUBTS_MAX: u8 = 20;

/// Estimate before the first measurement: longer than a round trip in one building, busy hosts
/// included. A guess.
const UNKNOWN: Nanos = Nanos::from_millis(1);

impl RoundTrip {
    /// Adds a measurement.
    pub(crate) fn add(&mut self, sample: Nanos) {
        // At least 1, because 0 means "none yet".
        let sample = u32::try_from(sample.0.max(1)).unwrap_or(u32::MAX);
        self.doubts = 0;
        if self.smooth == 0 {
            let (variation, least) = (sample / 2, sample);
            *self = Self { smooth: sample, variation, least, epoch_least: sample, samples: 1, doubts: 0 };
            return;
        }
        // The weights are those of TCP (RFC 6298): an eighth of the new for the mean, a quarter for
        // the variation.
        let off = sample.abs_diff(self.smooth);
        self.variation = self.variation - self.variation / 4 + off / 4;
        self.smooth = self.smooth - self.smooth / 8 + sample / 8;
        if self.samples == EPOCH {
            self.least += (self.epoch_least - self.least) / 4;
            (self.epoch_least, self.samples) = (sample, 0);
        }
        self.epoch_least = self.epoch_least.min(sample);
        self.least = self.least.min(sample);
        self.samples += 1;
    }

    /// Notes an answer that came sooner than [`Self::soonest`]: either it is that of an earlier
    /// transmission, or the path has become shorter. Until one is measured, each lowers the bound to a
    /// half: if it was the path, further answers are as early, and soon one is believed.
    pub(crate) fn doubt(&mut self) {
        self.doubts = self.doubts.saturating_add(1);
    }

    /// Mean of recent measurements, the later ones with more weight; 0 before the first.
    pub(crate) const fn smooth(&self) -> Nanos {
        Nanos(self.smooth as u64)
    }

    /// Recent minimum; 0 before the first measurement. An answer that arrives sooner after a packet
    /// does not answer that packet.
    pub(crate) fn least(&self) -> Nanos {
        Nanos(self.least.into())
    }

    /// A lower bound for any answer, 0 before the first measurement: half of the minimum, because
    /// the measured packets may have waited in queues, and half of that for each
    /// [doubt](Self::doubt).
    pub(crate) fn soonest(&self) -> Nanos {
        let bound = (self.least / 2) >> self.doubts.min(DOUBTS_MAX);
        Nanos(bound.max(u32::from(self.least > 0)).into())
    }

    /// Time within which most answers arrive.
    pub(crate) fn usual(&self) -> Nanos {
        Nanos(u64::from(self.smooth) + 2 * u64::from(self.variation))
    }

    /// Time without an answer after which the packet, or its answer, was probably lost.
    pub(crate) fn patience(&self) -> Nanos {
        if self.smooth == 0 {
            return UNKNOWN;
        }
        let smooth = u64::from(self.smooth);
        Nanos(smooth + smooth.max(4 * u64::from(self.variation)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_two_steady_round_trips() {
        let mut rtt = RoundTrip::default();
        assert_eq!((rtt.patience(), rtt.least()), (UNKNOWN, Nanos(0)));
        for _ in 0..100 {
            rtt.add(Nanos(50_000));
        }
        assert_eq!((rtt.patience(), rtt.least()), (Nanos(100_000), Nanos(50_000)));
    }

    #[test]
    fn answers_that_come_too_soon_are_believed_after_a_few_and_forgotten_at_a_measurement() {
        let mut rtt = RoundTrip::default();
        rtt.doubt();
        assert_eq!(rtt.soonest(), Nanos(0), "nothing was measured");
        rtt.add(Nanos(800_000));
        for bound in [400_000, 200_000, 100_000] {
            assert_eq!(rtt.soonest(), Nanos(bound));
            rtt.doubt();
        }
        rtt.add(Nanos(800_000));
        assert_eq!(
            (rtt.soonest(), rtt.least()),
            (Nanos(400_000), Nanos(800_000)),
            "a packet was late, no path shorter"
        );
        for _ in 0..1000 {
            rtt.doubt();
        }
        assert_eq!(rtt.soonest(), Nanos(1), "0 means that nothing was measured");
    }

    #[test]
    fn the_least_follows_a_path_that_becomes_longer() {
        let mut rtt = RoundTrip::default();
        rtt.add(Nanos(10_000));
        for _ in 1..2 * u32::from(EPOCH) {
            rtt.add(Nanos(400_000));
            assert_eq!(rtt.least(), Nanos(10_000));
        }
        for _ in 0..16 * u32::from(EPOCH) {
            rtt.add(Nanos(400_000));
        }
        assert!((390_000..=400_000).contains(&rtt.least().0), "{:?}", rtt.least());
        rtt.add(Nanos(20_000));
        assert_eq!(rtt.least(), Nanos(20_000));
    }

    #[test]
    fn patience_grows_with_variance_and_recovers() {
        let mut rtt = RoundTrip::default();
        for at in 0..100 {
            rtt.add(Nanos(if at % 2 == 0 { 20_000 } else { 180_000 }));
        }
        assert!((300_000..600_000).contains(&rtt.patience().0), "{:?}", rtt.patience());
        for _ in 0..100 {
            rtt.add(Nanos(20_000));
        }
        assert!(rtt.patience() < Nanos(45_000), "{:?}", rtt.patience());
    }
}
