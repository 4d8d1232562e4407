//! Meaning of the figures: one contestant beside another, in the same round.

use crate::{
    apart::NEAR_NS,
    contest::Results,
    sample::{Sample, Spread},
};

/// Which figure of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Payload a second.
    Throughput,
    /// Messages or frames a second.
    Rate,
    /// Median round trip.
    P50,
    /// Round trip of 99 %.
    P99,
}

impl Figure {
    /// Of a sample.
    pub(crate) fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Throughput => sample.gbit_per_s,
            Self::Rate => sample.messages_per_s,
            Self::P50 => sample.rtt_us.as_ref().map(|rtt| rtt.p50),
            Self::P99 => sample.rtt_us.as_ref().map(|rtt| rtt.p99),
        }
    }
}

/// Where a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RatioGoal {
    /// At least that.
    AtLeast(f64),
    /// At most that.
    AtMost(f64),
    /// Between the two.
    Between(f64, f64),
    /// It is only told.
    Told,
}

impl RatioGoal {
    /// Whether a ratio is there; `None` where nothing is asked for.
    pub(crate) fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(ratio >= least),
            Self::AtMost(most) => Some(ratio <= most),
            Self::Between(least, most) => Some(ratio >= least && ratio <= most),
            Self::Told => None,
        }
    }

    /// For a person.
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("at least {least}"),
            Self::AtMost(most) => format!("at most {most}"),
            Self::Between(least, most) => format!("{least} to {most}"),
            Self::Told => "-".into(),
        }
    }
}

/// A ratio: its name, dividend and divisor, and its accepted range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    /// The key in the JSON.
    pub(crate) name: &'static str,
    top: (&'static str, Figure),
    bottom: (&'static str, Figure),
    /// Where it should be.
    pub(crate) goal: RatioGoal,
}

const fn ratio(name: &'static str, figure: Figure, top: &'static str, bottom: &'static str, goal: RatioGoal) -> Ratio {
    Ratio { name, top: (top, figure), bottom: (bottom, figure), goal }
}

use Figure::{P50, P99, Rate, Throughput};
use RatioGoal::{AtLeast, AtMost, Between, Told};

/// All of them, the most important first.
pub(crate) const RATIOS: &[Ratio] = &[
    ratio("write_1m_mtu4096_vs_raw", Throughput, "write_1m_mtu4096", "raw_4154", AtLeast(0.75)),
    ratio("read_1m_mtu4096_vs_raw", Throughput, "read_1m_mtu4096", "raw_4154", AtLeast(0.72)),
    ratio("write_1m_mtu1024_vs_raw", Throughput, "write_1m_mtu1024", "raw_1082", AtLeast(0.70)),
    ratio("write_1m_mtu4096_vs_tcp_no_offload", Throughput, "write_1m_mtu4096", "tcp_no_offload", AtLeast(1.0)),
    ratio("write_1m_mtu4096_vs_tcp", Throughput, "write_1m_mtu4096", "tcp", Told),
    ratio("napi_write_1m_vs_tcp_no_offload", Throughput, "napi_write_1m", "tcp_no_offload", AtLeast(1.4)),
    ratio("napi_write_1m_vs_tcp", Throughput, "napi_write_1m", "tcp", Told),
    ratio("napi_write_1m_vs_default", Throughput, "napi_write_1m", "write_1m_mtu4096", Told),
    ratio("napi_write_1m_vs_napi_raw", Throughput, "napi_write_1m", "napi_raw_4154", Told),
    ratio("napi_raw_vs_raw", Throughput, "napi_raw_4154", "raw_4154", Told),
    ratio("napi_raw_vs_tcp_no_offload", Throughput, "napi_raw_4154", "tcp_no_offload", Told),
    ratio("napi_ping64_p50_vs_default", P50, "napi_ping_send_64", "ping_send_64", Told),
    ratio("msg64_vs_raw", Rate, "write_64", "raw_64", AtLeast(0.6)),
    ratio("msg64_send_vs_raw", Rate, "send_64", "raw_64", Told),
    ratio("ping64_p50_vs_raw", P50, "ping_send_64", "raw_ping_64", AtMost(4.5)),
    ratio("ping64_p50_vs_tcp_blocking", P50, "ping_send_64", "tcp_ping_64", AtMost(0.3)),
    ratio("ping64_p50_vs_tcp_busy", P50, "ping_send_64", "tcp_ping_64_busy", Told),
    Ratio { name: "ping64_p99_over_p50", top: ("ping_send_64", P99), bottom: ("ping_send_64", P50), goal: AtMost(4.0) },
    ratio("samehost_1m_vs_memcpy", Throughput, "samehost_write_1m", "memcpy_1m", AtLeast(0.6)),
    ratio("samehost_1m_vs_tcp_loopback", Throughput, "samehost_write_1m", "tcp_loopback_1m", AtLeast(2.0)),
    ratio("qps1000_vs_1", Throughput, "qps_1000", "qps_1", AtLeast(0.85)),
    ratio("workers_2_vs_1", Throughput, "workers_2_write_1m", "qps_4_write_1m", Told),
    ratio("forwarded_vs_2_workers", Throughput, "workers_2_forwarded", "workers_2_write_1m", Told),
    ratio("perftest_vs_roce_perf", Throughput, "perftest_write_1m", "write_1m_mtu4096", Between(0.9, 1.1)),
    ratio("send_1m_mtu4096_vs_raw", Throughput, "send_1m_mtu4096", "raw_4154", Told),
    ratio("read_1m_mtu1024_vs_raw", Throughput, "read_1m_mtu1024", "raw_1082", Told),
    ratio("send_1m_mtu1024_vs_raw", Throughput, "send_1m_mtu1024", "raw_1082", Told),
    ratio("write_1m_mtu4096_vs_tcp_no_offload_busy", Throughput, "write_1m_mtu4096", "tcp_no_offload_busy", Told),
    ratio("write_1m_mtu4096_vs_tcp_busy", Throughput, "write_1m_mtu4096", "tcp_busy", Told),
];

impl Ratio {
    /// Over all rounds in which both took part.
    pub(crate) fn over(&self, results: &Results) -> Option<Spread> {
        self.over_those(results, |_| true)
    }

    /// Over those rounds in which the cores were near one another whenever one of both was
    /// measured.
    pub(crate) fn over_near(&self, results: &Results) -> Option<Spread> {
        self.over_those(results, |sample| sample.cores_apart_ns < NEAR_NS)
    }

    fn over_those(&self, results: &Results, counts: impl Fn(&Sample) -> bool) -> Option<Spread> {
        let (top, bottom) = (results.of(self.top.0)?, results.of(self.bottom.0)?);
        let in_round = |(top, bottom): (&Sample, &Sample)| Some(self.top.1.of(top)? / self.bottom.1.of(bottom)?);
        let those = top.iter().zip(bottom).filter(|(top, bottom)| counts(top) && counts(bottom));
        Spread::of(those.filter_map(in_round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ratio_is_of_contestants_that_are_there_even_in_a_quick_run() {
        let all = crate::contestants::all();
        for ratio in RATIOS {
            for (name, _) in [ratio.top, ratio.bottom] {
                let there = all.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}"));
                assert!(there.in_ratios || ratio.goal == Told, "{} needs {name}", ratio.name);
            }
        }
    }

    #[test]
    fn a_quick_run_measures_only_contestants_of_its_ratios() {
        for one in crate::contestants::all().iter().filter(|one| one.in_ratios) {
            let is_needed = RATIOS.iter().any(|ratio| [ratio.top.0, ratio.bottom.0].contains(&one.name.as_str()));
            assert!(is_needed, "{}", one.name);
        }
    }

    #[test]
    fn near_rounds_are_those_in_which_both_were_measured_near() {
        let sample = |speed, apart| Sample { gbit_per_s: Some(speed), cores_apart_ns: apart, ..Sample::default() };
        let mut results = Results::default();
        for (top, bottom) in [((2.0, 50.0), (1.0, 60.0)), ((3.0, 400.0), (1.0, 60.0)), ((4.0, 50.0), (1.0, 400.0))] {
            results.add("top", sample(top.0, top.1));
            results.add("bottom", sample(bottom.0, bottom.1));
        }
        let ratio = ratio("test", Throughput, "top", "bottom", Told);
        let median = |spread: Option<Spread>| spread.map(|it| (it.median, it.rounds));
        assert_eq!(median(ratio.over(&results)), Some((3.0, 3)));
        assert_eq!(median(ratio.over_near(&results)), Some((2.0, 1)));
    }

    #[test]
    fn goals_include_their_ends() {
        assert_eq!(AtLeast(0.75).is_met(0.75), Some(true));
        assert_eq!(AtMost(4.0).is_met(4.01), Some(false));
        assert_eq!(Between(0.9, 1.1).is_met(1.11), Some(false));
        assert_eq!(Told.is_met(0.0), None);
    }
}
