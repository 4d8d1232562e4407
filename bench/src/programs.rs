//! Contestants that are programs of their own: `roce-perf`, and perftest over our libibverbs.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    cpu,
    host::{Host, start, within},
    network::{Network, Pair, Side},
    sample::{Rtt, Sample},
};

/// Where perftest's servers listen: not where `roce-perf` does.
const PERFTEST_PORT: &str = "18516";

/// The GID of IPv4; that of index 0 is link-local.
const GID: &str = "1";

/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// A throughput run of `roce-perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bandwidth {
    /// "write", "read" or "send".
    pub(crate) op: &'static str,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Path MTU.
    pub(crate) mtu: u32,
    /// Queue pairs.
    pub(crate) qps: u32,
    /// Messages under way on each; 0 for what `roce-perf` chooses.
    pub(crate) depth: u32,
}

/// Both hosts and their programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs<'a> {
    /// Between the hosts.
    pub(crate) network: &'a Network,
    /// Where clients run.
    pub(crate) a: &'a Host,
    /// Where servers run.
    pub(crate) b: &'a Host,
    /// Where the programs lie.
    pub(crate) built: &'a Path,
    /// Where logs go.
    pub(crate) folder: &'a Path,
}

impl Programs<'_> {
    /// Throughput by `roce-perf`. The data is not compared: nobody else in the comparison looks at it.
    pub(crate) fn bandwidth(&self, run: Bandwidth, time: Duration) -> anyhow::Result<Sample> {
        let Bandwidth { op, size, mtu, qps, depth } = run;
        let mut options = vec!["bw".to_owned(), "--no-verify".into(), "--op".into(), op.into()];
        for (name, value) in [("--size", size), ("--mtu", mtu.into()), ("--qps", qps.into())] {
            options.extend([name.to_owned(), value.to_string()]);
        }
        if depth > 0 {
            options.extend(["--depth".to_owned(), depth.to_string()]);
        }
        options.extend(["--seconds".to_owned(), time.as_secs_f64().to_string()]);
        let (report, cpu) = self.perf(&options)?;
        let number = |name: &str| report[name].as_f64().with_context(|| format!("roce-perf says no {name}"));
        let bytes = number("bytes")?;
        Ok(Sample {
            gbit_per_s: Some(number("gbit_per_s")?),
            messages_per_s: Some(number("messages_per_s")?),
            cpu_s_per_gb: Some(cpu.as_secs_f64() / (bytes * 1e-9)),
            retransmitted: report["retransmitted_packets"].as_u64(),
            ..Sample::default()
        })
    }

    /// Round trips by `roce-perf`: about as many as go in `time`.
    pub(crate) fn pingpong(&self, op: &str, size: u64, time: Duration) -> anyhow::Result<Sample> {
        // At 25 us each; on a slower machine it takes longer.
        let count = (time.as_secs_f64() / 25e-6) as u64;
        let options = ["ping", "--op", op, "--size", &size.to_string(), "--count", &count.to_string()];
        let (report, _) = self.perf(&options.map(str::to_owned))?;
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

    /// `roce-perf` on host a against the server on host b: what it says, and the processor time of all who took part.
    fn perf(&self, options: &[String]) -> anyhow::Result<(Value, Duration)> {
        let mut command = self.network.command(Side::A, self.built.join("roce-perf"));
        let (mode, options) = options.split_first().context("a command")?;
        command.arg(mode).arg(Pair::Roce.address(Side::B).to_string()).args(options).arg("--json");
        command.env("ROCED_SOCKET", self.a.socket());
        let (text, cpu) = self.measured(command)?;
        Ok((serde_json::from_str(&text).context("roce-perf's report")?, cpu))
    }

    /// Runs a client to its end; what it printed, and the processor time of it and the hosts.
    fn measured(&self, mut client: Command) -> anyhow::Result<(String, Duration)> {
        let before = self.a.cpu() + self.b.cpu() + cpu::of_ended_children();
        let output = client.output().with_context(|| format!("starting {client:?}"))?;
        let cpu = self.a.cpu() + self.b.cpu() + cpu::of_ended_children() - before;
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{client:?}: {text}{errors}");
        Ok((text.into_owned(), cpu))
    }

    /// WRITE by perftest: as much as should take about `time` at 1.25 GB/s.
    pub(crate) fn perftest_write(&self, size: u64, mtu: u32, depth: u32, time: Duration) -> anyhow::Result<Sample> {
        let count = (time.as_secs_f64() * 1.25e9 / size as f64).max(f64::from(2 * depth)) as u64;
        let numbers = [size.to_string(), mtu.to_string(), depth.to_string(), count.to_string()];
        let [size_text, mtu, depth, count] = &numbers;
        let options = [
            ["-s", size_text, "-m", mtu],
            ["-t", depth, "-n", count],
            ["-x", GID, "-p", PERFTEST_PORT],
            ["-F", "--report_gbits", "-Q", "1"],
        ];
        let on = |host: &Host, side| {
            let mut command = self.network.command(side, self.built.join("roce-run"));
            command.arg("ib_write_bw").args(options.concat()).env("ROCED_SOCKET", host.socket());
            command
        };
        let mut server = start(on(self.b, Side::B), &self.folder.join("perftest.log"))?;
        let begin = Instant::now();
        ensure!(within(PATIENCE, || self.listens() || !server.runs()) && server.runs(), "ib_write_bw does not listen");
        let mut client = on(self.a, Side::A);
        client.arg(Pair::Roce.address(Side::B).to_string());
        let (text, _) = self.measured(client).with_context(|| format!("after {:?}", begin.elapsed()))?;
        within(PATIENCE, || !server.runs());
        let gbit_per_s = average_of_perftest(&text).with_context(|| format!("ib_write_bw says no average: {text}"))?;
        let messages_per_s = Some(gbit_per_s * 1e9 / 8.0 / size as f64);
        Ok(Sample { gbit_per_s: Some(gbit_per_s), messages_per_s, ..Sample::default() })
    }

    fn listens(&self) -> bool {
        let mut command = self.network.command(Side::B, "ss");
        let output = command.args(["-Hltn", &format!("sport = :{PERFTEST_PORT}")]).output();
        output.is_ok_and(|output| !output.stdout.is_empty())
    }
}

/// The average in a table of perftest's: the fourth column (bytes, iterations, peak, average, rate of messages).
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
