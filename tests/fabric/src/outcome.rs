//! Results of a run.

use std::ops::Add;

use hdrhistogram::Histogram;
use roced_transport::clock::Nanos;

use crate::switch::SwitchCounters;

/// Time between two samples of rates.
const RATE_SAMPLE: Nanos = Nanos::from_millis(1);

impl Add for SwitchCounters {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            received: self.received + more.received,
            sent: self.sent + more.sent,
            dropped: self.dropped + more.dropped,
            dropped_lossless: self.dropped_lossless + more.dropped_lossless,
            marked: self.marked + more.marked,
            pauses: self.pauses + more.pauses,
        }
    }
}

/// State of a run at one time.
#[derive(Clone, Debug)]
pub(crate) struct RateSample {
    pub(crate) time: Nanos,
    /// Bytes of each flow in memory.
    pub(crate) placed: Vec<u64>,
    pub(crate) total: SwitchCounters,
}

/// Queue and rates over time.
#[derive(Debug)]
pub(crate) struct Samples {
    /// Length of the queue, bytes.
    pub(crate) queue: Vec<(Nanos, u64)>,
    /// The same, in the measured time.
    pub(crate) lengths: Histogram<u64>,
    pub(crate) rates: Vec<RateSample>,
}

impl Samples {
    pub(crate) fn new(flows: usize) -> Self {
        let begin = RateSample { time: Nanos(0), placed: vec![0; flows], total: SwitchCounters::default() };
        let lengths = Histogram::new_with_bounds(1, 1 << 40, 3).expect("three digits");
        Self { queue: Vec::new(), lengths, rates: vec![begin] }
    }

    pub(crate) fn add_queue(&mut self, time: Nanos, bytes: u64, is_measured: bool) {
        self.queue.push((time, bytes));
        if is_measured {
            self.lengths.saturating_record(bytes);
        }
    }

    fn last(&self) -> &RateSample {
        self.rates.last().expect("there is one from the beginning")
    }

    pub(crate) fn is_rate_due(&self, now: Nanos) -> bool {
        now >= self.last().time + RATE_SAMPLE
    }

    pub(crate) fn add_rates(&mut self, time: Nanos, placed: Vec<u64>, total: SwitchCounters) {
        self.rates.push(RateSample { time, placed, total });
    }

    /// The last sample at `time` or before.
    fn at(&self, time: Nanos) -> &RateSample {
        let after = self.rates.partition_point(|sample| sample.time <= time);
        &self.rates[after.saturating_sub(1)]
    }

    /// Bytes of a flow in memory at `time`.
    pub(crate) fn placed_at(&self, time: Nanos, flow: usize) -> u64 {
        self.at(time).placed[flow]
    }
}

/// Result of a flow.
#[derive(Clone, Debug)]
pub(crate) struct FlowOutcome {
    /// Bytes that arrived in memory in the measured time.
    pub(crate) bytes: u64,
    /// Status of the first work request that failed.
    pub(crate) failure: Option<String>,
    /// Nanoseconds of its messages from the post to the completion, in the measured time.
    pub(crate) latencies: Histogram<u64>,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) flows: Vec<FlowOutcome>,
    pub(crate) measured: Nanos,
    /// Of all switches, from the beginning.
    pub(crate) total: SwitchCounters,
    /// Frames lost in the rings of hosts.
    pub(crate) overruns: u64,
    /// Frames that hosts sent.
    pub(crate) frames: u64,
    /// Frames that wait in switches at the end.
    pub(crate) waiting_frames: usize,
    pub(crate) events: u64,
    pub(crate) samples: Samples,
    /// The first rule that was broken.
    pub(crate) violation: Option<String>,
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

impl RunOutcome {
    /// Bytes of each flow in the measured time.
    pub(crate) fn shares(&self) -> Vec<f64> {
        self.flows.iter().map(|flow| flow.bytes as f64).collect()
    }

    /// Rate of all flows, Gbit/s of payload.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.shares().iter().sum::<f64>() * 8.0 / self.measured.0 as f64
    }

    /// Rate of one flow, Gbit/s of payload.
    pub(crate) fn flow_gbit_per_s(&self, flow: usize) -> f64 {
        self.flows[flow].bytes as f64 * 8.0 / self.measured.0 as f64
    }

    /// Latency of a flow's messages that one in a hundred exceeds, us.
    pub(crate) fn latency_p99_us(&self, flow: usize) -> f64 {
        self.flows[flow].latencies.value_at_quantile(0.99) as f64 / 1000.0
    }

    pub(crate) fn jain(&self) -> f64 {
        jain(&self.shares())
    }

    /// The smallest share of a flow to the largest.
    pub(crate) fn min_to_max(&self) -> f64 {
        let shares = self.shares();
        let (min, max) = shares.iter().fold((f64::MAX, 0.0_f64), |(min, max), it| (min.min(*it), max.max(*it)));
        if max == 0.0 { 0.0 } else { min / max }
    }

    /// Length of the queue that is exceeded in one percent of the measured time, bytes.
    pub(crate) fn queue_p99(&self) -> u64 {
        self.samples.lengths.value_at_quantile(0.99)
    }

    /// Frames that switches dropped after a time.
    pub(crate) fn drops_after(&self, time: Nanos) -> u64 {
        self.total.dropped - self.samples.at(time).total.dropped
    }

    /// Rates of all flows from one sample to the next, Gbit/s, with the time of the later one.
    pub(crate) fn rates(&self) -> impl Iterator<Item = (Nanos, Vec<f64>)> {
        self.samples.rates.windows(2).map(|pair| {
            let time = (pair[1].time - pair[0].time).0 as f64;
            let flows = pair[1].placed.iter().zip(&pair[0].placed);
            (pair[1].time, flows.map(|(after, before)| (after - before) as f64 * 8.0 / time).collect())
        })
    }

    /// Flows that failed.
    pub(crate) fn failures(&self) -> usize {
        self.flows.iter().filter(|flow| flow.failure.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equal_shares_and_small_for_one() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[4.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert!(jain(&[0.0]).abs() < 1e-9);
    }
}
