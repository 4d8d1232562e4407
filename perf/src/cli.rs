//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::RangedU64ValueParser};
use serde::{Deserialize, Serialize};

use crate::size;

/// Longest message that RDMA knows.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Most messages of a queue pair under way at a time.
pub(crate) const DEPTH_MAX: u32 = 4096;

/// Most queue pairs of a run.
pub(crate) const QPS_MAX: u32 = 1024;

const EXIT_CODES: &str = "Exit code: 0 all went well; 1 it did not, for the reason in the message; 2 wrong command line; \
                          3 data arrived wrong.";

/// Measures latency and throughput of RDMA over roced, and verifies the data.
///
/// One side runs `roce-perf serve`, the other `ping` or `bw`. The local roced is the one named by
/// $ROCED_SOCKET.
#[derive(Debug, Parser)]
#[command(name = "roce-perf", version, after_help = EXIT_CODES)]
pub(crate) struct PerfArgs {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: PerfCommand,
}

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Be the other side of a measurement.
    Serve(Serve),
    /// Measure the time of round trips, one message at a time.
    Ping(Ping),
    /// Measure throughput, many messages at a time.
    Bw(BandwidthArgs),
}

/// `roce-perf serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// End after one run; the exit code is that run's.
    #[arg(long)]
    pub(crate) once: bool,

    /// Address, or address and port, where peers find this server [default: any, port 18511].
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<String>,

    /// RDMA device [default: the first one that roced has].
    #[arg(long, value_name = "NAME", conflicts_with = "cm")]
    pub(crate) device: Option<String>,

    /// Be found by the connection manager (rdma_cm) instead of TCP: the port is one of its own.
    #[arg(long)]
    pub(crate) cm: bool,
}

/// `roce-perf ping`.
#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// Where `roce-perf serve` runs: HOST, HOST:PORT, an IPv4 or IPv6 address, or `[IPv6]:PORT`.
    pub(crate) peer: String,

    /// How a message travels: by SEND, or by WRITE into memory that the other side polls.
    #[arg(long, value_enum, default_value = "send")]
    pub(crate) op: PingOp,

    /// Bytes of a message.
    #[arg(long, value_name = "N", default_value = "64", value_parser = message_size)]
    pub(crate) size: u64,

    /// Round trips.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub(crate) count: u64,

    /// Options of both commands.
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `roce-perf bw`.
#[derive(Debug, Args)]
pub(crate) struct BandwidthArgs {
    /// Where `roce-perf serve` runs: HOST, HOST:PORT, an IPv4 or IPv6 address, or `[IPv6]:PORT`.
    pub(crate) peer: String,

    /// The operation: WRITE to the peer, READ from the peer, or SEND to the peer.
    #[arg(long, value_enum)]
    pub(crate) op: Op,

    /// Bytes of a message; K, M, G are powers of 1024.
    #[arg(long, value_name = "N", default_value = "64K", value_parser = message_size)]
    pub(crate) size: u64,

    /// Queue pairs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(QPS_MAX)))]
    pub(crate) qps: u32,

    /// Messages under way on each queue pair [default: 64, fewer when messages are large].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(DEPTH_MAX)))]
    pub(crate) depth: Option<u32>,

    /// For how long, seconds.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds, conflicts_with = "bytes")]
    pub(crate) seconds: Duration,

    /// How much instead, all queue pairs together; rounded up to whole messages.
    #[arg(long, value_name = "N", value_parser = at_least_one_byte)]
    pub(crate) bytes: Option<u64>,

    /// Do not compare the data that arrives. The report then says `verified: false`.
    #[arg(long)]
    pub(crate) no_verify: bool,

    /// Options of both commands.
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Options of `ping` and `bw`.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Path MTU, bytes [default: the largest that both links carry].
    #[arg(long, value_name = "N", value_parser = path_mtu)]
    pub(crate) mtu: Option<u32>,

    /// Print the report as JSON; nothing else goes to stdout.
    #[arg(long)]
    pub(crate) json: bool,

    /// Connect by the connection manager (rdma_cm) instead of TCP, to `roce-perf serve --cm`. It
    /// finds device, GID, path MTU and timeout.
    #[arg(long, conflicts_with_all = [
        "device", "gid_index", "mtu", "rocev1", "traffic_class", "hop_limit", "service_level", "flow_label", "timeout",
    ])]
    pub(crate) cm: bool,

    /// RDMA device [default: the first one that roced has].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Local GID [default: the GID of the address that the control connection uses].
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u32>,

    /// How packets travel.
    #[command(flatten)]
    pub(crate) path: PathOptions,
}

/// How packets travel, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct PathOptions {
    /// By RoCEv1, which both devices must have been given (`device.roce`); else by RoCEv2.
    #[arg(long)]
    #[serde(default)]
    pub(crate) rocev1: bool,

    /// IP traffic class: DSCP in the upper six bits, 0 to 255.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<0xff>)]
    pub(crate) traffic_class: u32,

    /// IP time to live or hop limit, 1 to 255.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = hop_limit)]
    pub(crate) hop_limit: u32,

    /// Priority in the VLAN tag, where there is one, 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<7>)]
    pub(crate) service_level: u32,

    /// Flow label, 20 bits; also makes the UDP source port when not 0.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<0xf_ffff>)]
    pub(crate) flow_label: u32,

    /// ACK timeout code: 4.096 us * 2^N, 0 for none, up to 31; 14 is 67 ms.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = number::<31>)]
    pub(crate) timeout: u32,

    /// Retries after a timeout or a lost packet before the queue pair fails, 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = number::<7>)]
    pub(crate) retry: u32,
}

/// How a `ping` travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PingOp {
    /// By SEND.
    Send,
    /// By WRITE into memory that the other side polls.
    Write,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
}

impl From<PingOp> for Op {
    fn from(op: PingOp) -> Self {
        match op {
            PingOp::Send => Self::Send,
            PingOp::Write => Self::Write,
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        })
    }
}

/// The depth of a run that names none: as many messages as lie in 16 MiB, 2 to 64. More than 64
/// under way gains nothing (a guess until `scripts/bench` shows the curve), and buffers that do not
/// fit a cache cost.
pub(crate) fn default_depth(size: u64) -> u32 {
    ((16 << 20) / size.max(1)).clamp(2, 64) as u32
}

fn message_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes == 0 || bytes > MESSAGE_BYTES_MAX {
        return Err(format!("a message has 1 byte to 2G, not {}", size::show(bytes)));
    }
    Ok(bytes)
}

fn at_least_one_byte(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("at least 1 byte".into()),
        bytes => Ok(bytes),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, such as 10 or 0.5".to_owned())?;
    // A day: longer runs are not intended, and no sum of times overflows.
    if !(seconds > 0.0 && seconds <= 86_400.0) {
        return Err("more than 0 and at most 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn path_mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("a path MTU is 256, 512, 1024, 2048 or 4096".into()),
    }
}

fn hop_limit(text: &str) -> Result<u32, String> {
    match number::<255>(text)? {
        0 => Err("1 to 255".into()),
        limit => Ok(limit),
    }
}

/// A number up to `MAX`, decimal or with 0x.
fn number<const MAX: u32>(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(value) if value <= MAX => Ok(value),
        _ => Err(format!("a number from 0 to {MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bw(args: &[&str]) -> Result<BandwidthArgs, String> {
        let all = ["roce-perf", "bw", "10.0.0.1", "--op", "write"].iter().chain(args);
        match PerfArgs::try_parse_from(all).map_err(|error| error.to_string())?.command {
            PerfCommand::Bw(bw) => Ok(bw),
            other => panic!("bw was asked for, not {other:?}"),
        }
    }

    #[test]
    fn sizes_and_numbers_are_read() {
        let run =
            bw(&["--size", "1M", "--bytes", "1G", "--flow-label", "0xfffff", "--mtu", "4096"]).expect("all valid");
        assert_eq!((run.size, run.bytes), (1 << 20, Some(1 << 30)));
        assert_eq!((run.common.path.flow_label, run.common.mtu), (0xf_ffff, Some(4096)));
        assert_eq!(bw(&["--seconds", "0.5"]).expect("valid").seconds, Duration::from_millis(500));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (option, value) in [
            ("--size", "0"),
            ("--size", "2147483649"),
            ("--bytes", "0"),
            ("--seconds", "0"),
            ("--seconds", "nan"),
            ("--seconds", "inf"),
            ("--mtu", "1500"),
            ("--qps", "0"),
            ("--depth", "4097"),
            ("--traffic-class", "256"),
            ("--hop-limit", "0"),
            ("--service-level", "8"),
            ("--flow-label", "0x100000"),
            ("--timeout", "32"),
            ("--retry", "8"),
        ] {
            let message = bw(&[option, value]).expect_err("out of range");
            assert!(message.contains(option) && message.contains(value), "{message}");
        }
        assert!(bw(&["--seconds", "1", "--bytes", "1"]).is_err(), "one or the other");
        assert!(bw(&["--cm", "--retry", "3"]).expect("valid").common.cm);
        assert!(bw(&["--cm", "--mtu", "1024"]).is_err(), "the connection manager finds it");
    }

    #[test]
    fn large_messages_have_less_depth_by_default() {
        assert_eq!([1, 1 << 16, 1 << 20, 1 << 31].map(default_depth), [64, 64, 16, 2]);
    }
}
