//! Findings of a run, as text or as JSON.

use std::{fmt::Write, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    cli::Op,
    control::{Run, RunKind},
    size,
    statistics::Statistics,
};

/// The result of a run. Its JSON has these fields, and may get more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunReport {
    /// "ping" or "bw".
    pub(crate) kind: RunKind,
    /// "write", "read" or "send".
    pub(crate) op: Op,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Path MTU, bytes.
    pub(crate) mtu: u32,
    /// Queue pairs.
    pub(crate) qps: u32,
    /// Messages under way on each queue pair, at most.
    pub(crate) depth: u32,
    /// Messages, or round trips.
    pub(crate) messages: u64,
    /// Payload bytes, in one direction.
    pub(crate) bytes: u64,
    /// From the first message posted to the last one complete.
    pub(crate) seconds: f64,
    /// Payload, in one direction, 10^9 bits per second.
    pub(crate) gbit_per_s: f64,
    /// Messages, or round trips, per second.
    pub(crate) messages_per_s: f64,
    /// Time of a message: for `ping` of the round trip, for `bw` from posting to completion under
    /// load.
    pub(crate) rtt_us: Percentiles,
    /// Steps of their distribution: a share of all, and the microseconds that it took at most.
    pub(crate) rtt_quantiles_us: Vec<(f64, f64)>,
    /// True if every received byte was compared with the sent one and was equal.
    pub(crate) verified: bool,
    /// Packets sent again, both sides together.
    pub(crate) retransmitted_packets: u64,
    /// Statistics of the client's queue pairs.
    pub(crate) client: Statistics,
    /// Statistics of the server's queue pairs.
    pub(crate) server: Statistics,
}

/// How times are spread, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    /// Half of all took no longer.
    pub(crate) p50: f64,
    /// 90 %.
    pub(crate) p90: f64,
    /// 99 %.
    pub(crate) p99: f64,
    /// 99.9 %.
    pub(crate) p999: f64,
    /// All.
    pub(crate) max: f64,
}

/// Times of messages.
#[derive(Clone, Debug)]
pub(crate) struct LatencyTimes(Histogram<u64>);

impl LatencyTimes {
    /// No times yet.
    pub(crate) fn new() -> Self {
        // 1 ns to 10 minutes at three digits: no message takes longer, because the transport gives
        // up before.
        Self(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds that make sense"))
    }

    /// One more.
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().max(1) as u64);
    }

    /// Four steps from each halving of the rest to the next.
    fn quantiles(&self) -> Vec<(f64, f64)> {
        let steps = self.0.iter_quantiles(4);
        steps.map(|step| (step.quantile(), step.value_iterated_to() as f64 / 1000.0)).collect()
    }

    fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: self.0.max() as f64 / 1000.0 }
    }
}

/// Measured values before they become a report.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Messages, or round trips.
    pub(crate) messages: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Time of each.
    pub(crate) times: LatencyTimes,
    /// Bytes that the receiver compared and found equal.
    pub(crate) verified_bytes: u64,
    /// Of the client's queue pairs.
    pub(crate) client: Statistics,
    /// Of the server's.
    pub(crate) server: Statistics,
}

impl RunReport {
    /// The report of `run`.
    pub(crate) fn new(run: &Run, mtu: u32, qps: u32, measured: &Measured) -> Self {
        let seconds = measured.elapsed.as_secs_f64().max(1e-9);
        let bytes = measured.messages * run.size;
        Self {
            kind: run.kind,
            op: run.op,
            size: run.size,
            mtu,
            qps,
            depth: run.depth,
            messages: measured.messages,
            bytes,
            seconds,
            gbit_per_s: bytes as f64 * 8e-9 / seconds,
            messages_per_s: measured.messages as f64 / seconds,
            rtt_us: measured.times.percentiles(),
            rtt_quantiles_us: measured.times.quantiles(),
            // States the result and not the request: data is verified only if every byte was
            // compared.
            verified: run.verify && bytes > 0 && measured.verified_bytes == bytes,
            retransmitted_packets: measured.client.retransmitted_packets + measured.server.retransmitted_packets,
            client: measured.client,
            server: measured.server,
        }
    }

    /// For a program.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, strings and booleans are JSON") + "\n"
    }

    /// For a person.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| writeln!(text, "  {name:<14}{value}").expect("a string takes all");
        let (op, size, mtu) = (self.op, size::show(self.size), self.mtu);
        match self.kind {
            RunKind::Ping => line("ping", format!("{op} of {size}, path MTU {mtu}")),
            RunKind::Bw => {
                let (qps, depth) = (self.qps, self.depth);
                let plural = if qps == 1 { "" } else { "s" };
                line("bandwidth", format!("{op} of {size}, path MTU {mtu}, {qps} queue pair{plural}, depth {depth}"));
            }
        }
        let Percentiles { p50, p90, p99, p999, max } = self.rtt_us;
        let times = format!("p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  p99.9 {p999:.1}  max {max:.1} us");
        match self.kind {
            RunKind::Ping => {
                line("round trip", times);
                line("round trips", format!("{} in {:.2} s", self.messages, self.seconds));
            }
            RunKind::Bw => {
                line("throughput", format!("{:.2} Gbit/s, {:.0} messages/s", self.gbit_per_s, self.messages_per_s));
                line("moved", format!("{} messages in {:.2} s", self.messages, self.seconds));
                line("completion", times);
            }
        }
        line("data", if self.verified { "verified, every byte".into() } else { "NOT verified".into() });
        line("sent again", self.losses());
        text
    }

    fn losses(&self) -> String {
        let sum = |of: fn(&Statistics) -> u64| of(&self.client) + of(&self.server);
        let mut text = format!("{} packets", self.retransmitted_packets);
        for (name, count) in [
            ("ACK timeouts", sum(|side| side.ack_timeouts)),
            ("sequence NAKs", sum(|side| side.sequence_naks_received)),
            ("lost READ responses", sum(|side| side.implied_naks)),
            ("RNR NAKs", sum(|side| side.rnr_naks_received)),
            ("duplicate requests", sum(|side| side.duplicate_requests)),
        ] {
            if count > 0 {
                write!(text, ", {count} {name}").expect("a string takes all");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PathOptions;

    const PATH: PathOptions = PathOptions {
        rocev1: false,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
        flow_label: 0,
        timeout: 14,
        retry: 7,
    };

    fn run(verify: bool) -> Run {
        Run { kind: RunKind::Bw, op: Op::Read, size: 1000, depth: 4, verify, seed: 1, path: PATH }
    }

    fn measured(verified_bytes: u64) -> Measured {
        let mut times = LatencyTimes::new();
        (1..=1000).for_each(|us| times.record(Duration::from_micros(us)));
        let client = Statistics { retransmitted_packets: 3, ack_timeouts: 1, ..Statistics::default() };
        let server = Statistics { retransmitted_packets: 4, ..Statistics::default() };
        Measured { messages: 1000, elapsed: Duration::from_millis(500), times, verified_bytes, client, server }
    }

    #[test]
    fn json_has_the_keys_that_scripts_use() {
        let report = RunReport::new(&run(true), 4096, 2, &measured(1_000_000));
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(json["gbit_per_s"], 0.016);
        assert_eq!(json["messages_per_s"], 2000.0);
        assert_eq!(json["verified"], true);
        assert_eq!(json["retransmitted_packets"], 7);
        for (field, value) in [("op", "read"), ("kind", "bw")] {
            assert_eq!(json[field], value);
        }
        for (field, value) in [("size", 1000), ("mtu", 4096), ("qps", 2)] {
            assert_eq!(json[field], value);
        }
        for (field, us) in [("p50", 500.0), ("p90", 900.0), ("p99", 990.0), ("p999", 999.0), ("max", 1000.0)] {
            let value = json["rtt_us"][field].as_f64().expect("a number");
            assert!((value - us).abs() <= us * 0.002, "{field}: {value}");
        }
        let steps = json["rtt_quantiles_us"].as_array().expect("steps");
        assert!(steps.len() > 10 && steps.last().expect("one")[0] == 1.0, "{steps:?}");
    }

    #[test]
    fn nothing_is_verified_unless_every_byte_was_compared() {
        let verified = |verify, bytes| RunReport::new(&run(verify), 4096, 1, &measured(bytes)).verified;
        assert!(verified(true, 1_000_000));
        assert!(!verified(true, 999_999), "one byte was not looked at");
        assert!(!verified(true, 0));
        assert!(!verified(false, 1_000_000), "not asked for");
        let nothing = Measured { messages: 0, ..measured(0) };
        assert!(!RunReport::new(&run(true), 4096, 1, &nothing).verified, "nothing was sent");
    }

    #[test]
    fn the_report_lists_lost_packets() {
        let text = RunReport::new(&run(false), 1024, 1, &measured(0)).table();
        assert!(text.contains("sent again    7 packets, 1 ACK timeouts\n"), "{text}");
        assert!(
            text.contains("NOT verified") && text.contains("read of 1000 B, path MTU 1024, 1 queue pair,"),
            "{text}"
        );
    }
}
