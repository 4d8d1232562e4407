//! Contestants that are programs of their own: `roce-perf`, and perftest over our libibverbs.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    cpu,
    host::{Host, run, start, within},
    network::{BenchNetwork, NetworkSide, Pair},
    sample::{Rtt, Sample},
};

/// Where perftest's servers listen: not where `roce-perf` does.
const PERFTEST_PORT: &str = "18516";

/// The GID of IPv4; that of index 0 is link-local.
const GID: &str = "1";

/// How long a server may take until it listens.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client that is to run for `time` may take. A run with a number of messages instead of
/// a time is slower on a slow machine: a guess.
fn limit(time: Duration) -> Duration {
    Duration::from_secs(120) + 10 * time
}

/// A throughput run of `roce-perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BandwidthRun {
    /// "write", "read" or "send".
    pub(crate) op: &'static str,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Path MTU.
    pub(crate) mtu: u32,
    /// Queue pairs.
    pub(crate) qps: u32,
    /// Messages under way on each; 0 for the choice of `roce-perf`.
    pub(crate) depth: u32,
}

/// Environment of the programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramPlace<'a> {
    /// Between the hosts.
    pub(crate) network: &'a BenchNetwork,
    /// Where the programs lie.
    pub(crate) built: &'a Path,
    /// Where logs go.
    pub(crate) folder: &'a Path,
}

/// Both hosts and their programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs<'a> {
    /// Their environment.
    pub(crate) place: ProgramPlace<'a>,
    /// Where clients run.
    pub(crate) a: &'a Host,
    /// Where servers run.
    pub(crate) b: &'a Host,
    /// The pair of interfaces that their daemons serve.
    pub(crate) pair: Pair,
}

impl<'a> Programs<'a> {
    /// The programs of these hosts; their daemons serve that pair.
    pub(crate) const fn new(place: ProgramPlace<'a>, pair: Pair, [a, b]: &'a [Host; 2]) -> Self {
        Self { place, a, b, pair }
    }
}

impl Programs<'_> {
    /// Throughput by `roce-perf`. The data is not compared: no other contestant looks at it.
    pub(crate) fn bandwidth(&self, what: BandwidthRun, time: Duration) -> anyhow::Result<Sample> {
        let BandwidthRun { op, size, mtu, qps, depth } = what;
        let mut options = vec!["bw".to_owned(), "--no-verify".into(), "--op".into(), op.into()];
        for (name, value) in [("--size", size), ("--mtu", mtu.into()), ("--qps", qps.into())] {
            options.extend([name.to_owned(), value.to_string()]);
        }
        if depth > 0 {
            options.extend(["--depth".to_owned(), depth.to_string()]);
        }
        options.extend(["--seconds".to_owned(), time.as_secs_f64().to_string()]);
        let (report, cpu) = self.perf(&options, limit(time))?;
        let number = |name: &str| report[name].as_f64().with_context(|| format!("roce-perf says no {name}"));
        let bytes = number("bytes")?;
        Ok(Sample {
            gbit_per_s: Some(number("gbit_per_s")?),
            messages_per_s: Some(number("messages_per_s")?),
            cpu_s_per_gb: Some(cpu.as_secs_f64() / (bytes * 1e-9)),
            retransmitted: report["retransmitted_packets"].as_u64(),
            payload_packets: Some(bytes / size as f64 * size.div_ceil(mtu.into()) as f64),
            ..Sample::default()
        })
    }

    /// Round trips by `roce-perf`: about as many as go in `time`.
    pub(crate) fn pingpong(&self, op: &str, size: u64, time: Duration) -> anyhow::Result<Sample> {
        // At 25 us each; on a slower machine it takes longer.
        let count = (time.as_secs_f64() / 25e-6) as u64;
        let options = ["ping", "--op", op, "--size", &size.to_string(), "--count", &count.to_string()];
        let (report, _) = self.perf(&options.map(str::to_owned), limit(time))?;
        let percentiles = &report["rtt_us"];
        let at = |name: &str| percentiles[name].as_f64().with_context(|| format!("roce-perf says no {name}"));
        let (p50, p90, p99, p999) = (at("p50")?, at("p90")?, at("p99")?, at("p999")?);
        let quantiles = serde_json::from_value(report["rtt_quantiles_us"].clone()).unwrap_or_default();
        Ok(Sample {
            messages_per_s: report["messages_per_s"].as_f64(),
            rtt_us: Some(Rtt { p50, p90, p99, p999, quantiles }),
            retransmitted: report["retransmitted_packets"].as_u64(),
            ..Sample::default()
        })
    }

    /// `roce-perf` on host a against the server on host b: its result, and the processor time of
    /// all participants.
    fn perf(&self, options: &[String], limit: Duration) -> anyhow::Result<(Value, Duration)> {
        let mut command = self.place.network.command(NetworkSide::A, self.place.built.join("roce-perf"));
        let (mode, options) = options.split_first().context("a command")?;
        command.arg(mode).arg(self.pair.address(NetworkSide::B).to_string()).args(options).arg("--json");
        command.env("ROCED_SOCKET", self.a.socket());
        let before = self.cpu();
        let text = run(command, limit)?;
        let cpu = self.cpu() - before;
        Ok((serde_json::from_str(&text).context("roce-perf's report")?, cpu))
    }

    /// Processor time of both hosts and of the programs that have ended.
    fn cpu(&self) -> Duration {
        self.a.cpu() + self.b.cpu() + cpu::of_ended_children()
    }

    /// WRITE by perftest: as much as should take about `time` at 1.25 GB/s.
    pub(crate) fn perftest_write(&self, size: u64, mtu: u32, depth: u32, time: Duration) -> anyhow::Result<Sample> {
        let messages = (time.as_secs_f64() * 1.25e9 / size as f64).max(f64::from(2 * depth)) as u64;
        let numbers = [size, mtu.into(), depth.into(), messages].map(|number| number.to_string());
        let [size_text, mtu_text, depth_text, messages_text] = &numbers;
        let options = [
            ["-s", size_text, "-m", mtu_text],
            ["-t", depth_text, "-n", messages_text],
            ["-x", GID, "-p", PERFTEST_PORT],
            ["-F", "--report_gbits", "-Q", "1"],
        ];
        let on = |host: &Host, side| {
            let mut command = self.place.network.command(side, self.place.built.join("roce-run"));
            command.arg("ib_write_bw").args(options.concat()).env("ROCED_SOCKET", host.socket());
            command
        };
        let before = self.cpu();
        let mut server = start(on(self.b, NetworkSide::B), &self.place.folder.join("perftest.log"))?;
        ensure!(within(TIMEOUT, || self.listens() || !server.runs()) && server.runs(), "ib_write_bw does not listen");
        let mut client = on(self.a, NetworkSide::A);
        client.arg(self.pair.address(NetworkSide::B).to_string());
        let text = run(client, limit(time))?;
        ensure!(within(TIMEOUT, || !server.runs()), "the server of ib_write_bw does not end");
        let cpu = self.cpu() - before;
        let gbit_per_s = average_of_perftest(&text).with_context(|| format!("ib_write_bw says no average: {text}"))?;
        let (bytes, packets) = ((messages * size) as f64, messages * size.div_ceil(mtu.into()));
        Ok(Sample {
            gbit_per_s: Some(gbit_per_s),
            messages_per_s: Some(gbit_per_s * 1e9 / 8.0 / size as f64),
            cpu_s_per_gb: Some(cpu.as_secs_f64() / (bytes * 1e-9)),
            payload_packets: Some(packets as f64),
            ..Sample::default()
        })
    }

    fn listens(&self) -> bool {
        let mut command = self.place.network.command(NetworkSide::B, "ss");
        let output = command.args(["-Hltn", &format!("sport = :{PERFTEST_PORT}")]).output();
        output.is_ok_and(|output| !output.stdout.is_empty())
    }
}

/// The average in a table of perftest's: the fourth column (bytes, iterations, peak, average, rate
/// of messages).
fn average_of_perftest(text: &str) -> Option<f64> {
    let is_figures = |line: &&str| line.trim_start().starts_with(|it: char| it.is_ascii_digit());
    text.lines().rfind(is_figures)?.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_read_from_the_table() {
        let text = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                    1048576    1000             0.00               11.87              0.001415\n---\n";
        assert_eq!(average_of_perftest(text), Some(11.87));
        assert_eq!(average_of_perftest("nothing\n"), None);
    }
}
