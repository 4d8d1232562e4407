//! Measurements of one contestant in one round.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// One measurement. Values that do not apply are absent.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Payload in one direction, 10^9 bits per second. Of raw frames, the part of them that would
    /// be RoCE payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbit_per_s: Option<f64>,
    /// Messages, raw frames or round trips a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_s: Option<f64>,
    /// Round trips.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_us: Option<Rtt>,
    /// Processor seconds of all participants (both daemons, both programs) for 10^9 bytes of
    /// payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// Packets that the payload went in; for a payload without packets, as many as it would be at
    /// path MTU 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_packets: Option<f64>,
    /// Packets sent again, or raw frames lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retransmitted: Option<u64>,
    /// Time of a cache line from one core to the other and back, nanoseconds: the worse of just
    /// before and just after.
    pub(crate) cores_apart_ns: f64,
}

/// How round trips are spread, microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Rtt {
    /// Half of all took no longer.
    pub(crate) p50: f64,
    /// 90 %.
    pub(crate) p90: f64,
    /// 99 %.
    pub(crate) p99: f64,
    /// 99.9 %.
    pub(crate) p999: f64,
    /// Steps of the distribution: a share of all round trips, and the time that it took at most.
    pub(crate) quantiles: Vec<(f64, f64)>,
}

/// Collects round trips.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    /// None yet.
    pub(crate) fn new() -> Self {
        // 1 ns to 10 s at three digits.
        Self(Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds that make sense"))
    }

    /// One more.
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().max(1) as u64);
    }

    /// As a round is reported.
    pub(crate) fn sample(&self, elapsed: Duration) -> Sample {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        let steps = self.0.iter_quantiles(4);
        let rtt = Rtt {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            quantiles: steps.map(|step| (step.quantile(), step.value_iterated_to() as f64 / 1000.0)).collect(),
        };
        let messages_per_s = Some(self.0.len() as f64 / elapsed.as_secs_f64());
        Sample { messages_per_s, rtt_us: Some(rtt), ..Sample::default() }
    }
}

impl Sample {
    /// Of so many `messages` of `bytes` payload each in `elapsed`, on which `cpu` was spent.
    pub(crate) fn stream(messages: u64, bytes: u64, elapsed: Duration, cpu: Duration) -> Self {
        const PACKET: u64 = 4096;
        let (seconds, total) = (elapsed.as_secs_f64().max(1e-9), (messages * bytes) as f64);
        Self {
            gbit_per_s: Some(total * 8e-9 / seconds),
            messages_per_s: Some(messages as f64 / seconds),
            cpu_s_per_gb: (total > 0.0).then(|| cpu.as_secs_f64() / (total * 1e-9)),
            payload_packets: Some((messages * bytes.div_ceil(PACKET).max(1)) as f64),
            ..Self::default()
        }
    }
}

/// The middle of some figures, and how far they are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The most.
    pub(crate) max: f64,
    /// How many.
    pub(crate) rounds: usize,
}

impl Spread {
    /// Of `figures`; none of none.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let (&min, &max) = (all.first()?, all.last()?);
        let half = all.len() / 2;
        let median = if all.len() % 2 == 1 { all[half] } else { (all[half - 1] + all[half]) / 2.0 };
        Some(Self { median, min, max, rounds: all.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[f64::NAN]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).map(|it| it.median), Some(2.5));
    }

    #[test]
    fn figures_have_the_units_they_say() {
        let sample = Sample::stream(1000, 1_000_000, Duration::from_secs(2), Duration::from_secs(3));
        assert_eq!(sample.gbit_per_s, Some(4.0));
        assert_eq!(sample.messages_per_s, Some(500.0));
        assert_eq!(sample.cpu_s_per_gb, Some(3.0));
        assert_eq!(sample.payload_packets, Some(245_000.0));
    }

    #[test]
    fn a_distribution_rises_to_one() {
        let mut times = Times::new();
        (1..=1000).for_each(|us| times.record(Duration::from_micros(us)));
        let rtt = times.sample(Duration::from_secs(1)).rtt_us.expect("round trips");
        assert!((rtt.p50 - 500.0).abs() < 1.0 && (rtt.p99 - 990.0).abs() < 1.0, "{rtt:?}");
        assert!(rtt.quantiles.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 <= two[1].1));
        assert_eq!(rtt.quantiles.last().map(|step| step.0), Some(1.0));
    }
}
