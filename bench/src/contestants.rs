//! The contestants, and how each is measured.

use std::{net::IpAddr, time::Duration};

use anyhow::Context as _;

use crate::{
    network::{NetworkSide, Pair},
    programs::{BandwidthRun, Programs},
    raw::Raw,
    rdma::{BenchWork, Drive, Ends, Pairs, drive},
    samehost::{MESSAGE_BYTES, PLACES, SameHost},
    sample::Sample,
    tcp::{Stream, TcpConnection, Waiting, pingpong, stream},
};

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Raw frames one way, over a pair of theirs.
    Raw(Pair, usize),
    /// Raw frames there and back.
    RawPing(usize),
    /// TCP one way, 1 MiB at a time.
    Tcp(Pair, Waiting),
    /// TCP there and back, 64 bytes.
    TcpPing(Waiting),
    /// `roce-perf bw`, over the daemons of a pair.
    Bandwidth(Pair, BandwidthRun),
    /// `roce-perf ping` of 64 bytes, likewise.
    Ping(Pair, &'static str),
    /// Atomic operations.
    Atomics(BenchWork),
    /// perftest's WRITE: size, depth.
    Perftest(u64, u32),
    /// WRITE to the same host.
    SameHost,
    /// A copy in memory.
    Copy,
    /// TCP over the loopback.
    Loopback,
}

/// A contestant.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    /// By which it is named in ratios, JSON and tables.
    pub(crate) name: String,
    /// Its measurement.
    pub(crate) what: What,
    /// Some ratio needs it, so that it takes part with `--quick` as well.
    pub(crate) in_ratios: bool,
}

impl What {
    /// The pair that it goes over, if it is one of several that it could.
    pub(crate) const fn pair(self) -> Option<Pair> {
        match self {
            Self::Bandwidth(pair, _) | Self::Ping(pair, _) | Self::Raw(pair, _) => Some(pair),
            _ => None,
        }
    }
}

fn named(name: impl Into<String>, what: What, in_ratios: bool) -> Contestant {
    Contestant { name: name.into(), what, in_ratios }
}

fn bandwidth(op: &'static str, size: u64, mtu: u32, qps: u32, depth: u32) -> What {
    What::Bandwidth(Pair::Roce, BandwidthRun { op, size, mtu, qps, depth })
}

/// 1 MiB over daemons that are not the usual ones.
fn mebibyte(pair: Pair, op: &'static str, qps: u32) -> What {
    What::Bandwidth(pair, BandwidthRun { op, size: MIB, mtu: 4096, qps, depth: 0 })
}

/// All contestants, in the order of a round. Those that are compared with one another stand
/// together, because a machine is faster in one second than in the next.
pub(crate) fn all() -> Vec<Contestant> {
    use Waiting::{Blocking, Busy};
    let mut all = vec![
        named("raw_4154", What::Raw(Pair::Raw, 4154), true),
        named("write_1m_mtu4096", bandwidth("write", MIB, 4096, 1, 0), true),
        named("read_1m_mtu4096", bandwidth("read", MIB, 4096, 1, 0), true),
        named("tcp_no_offload", What::Tcp(Pair::TcpPlain, Blocking), true),
        named("tcp", What::Tcp(Pair::Tcp, Blocking), true),
        named("perftest_write_1m", What::Perftest(MIB, 16), true),
        named("send_1m_mtu4096", bandwidth("send", MIB, 4096, 1, 0), false),
        named("tcp_no_offload_busy", What::Tcp(Pair::TcpPlain, Busy), false),
        named("tcp_busy", What::Tcp(Pair::Tcp, Busy), false),
        named("napi_raw_4154", What::Raw(Pair::RawNapi, 4154), true),
        named("napi_write_1m", mebibyte(Pair::RoceNapi, "write", 1), true),
        named("qps_4_write_1m", mebibyte(Pair::Roce, "write", 4), false),
        named("workers_2_write_1m", mebibyte(Pair::RoceTwo, "write", 4), false),
        named("workers_2_forwarded", mebibyte(Pair::RoceCrossed, "write", 4), false),
        named("raw_1082", What::Raw(Pair::Raw, 1082), true),
        named("write_1m_mtu1024", bandwidth("write", MIB, 1024, 1, 0), true),
        named("read_1m_mtu1024", bandwidth("read", MIB, 1024, 1, 0), false),
        named("send_1m_mtu1024", bandwidth("send", MIB, 1024, 1, 0), false),
        named("raw_64", What::Raw(Pair::Raw, 64), true),
        named("write_64", bandwidth("write", 64, 4096, 1, 256), true),
        named("send_64", bandwidth("send", 64, 4096, 1, 256), true),
        named("fetch_add", What::Atomics(BenchWork::FetchAdd), false),
        named("compare_swap", What::Atomics(BenchWork::CompareSwap), false),
        named("raw_ping_64", What::RawPing(64), true),
        named("ping_send_64", What::Ping(Pair::Roce, "send"), true),
        named("napi_ping_send_64", What::Ping(Pair::RoceNapi, "send"), true),
        named("tcp_ping_64", What::TcpPing(Blocking), true),
        named("tcp_ping_64_busy", What::TcpPing(Busy), true),
        named("ping_write_64", What::Ping(Pair::Roce, "write"), false),
        named("samehost_write_1m", What::SameHost, true),
        named("memcpy_1m", What::Copy, true),
        named("tcp_loopback_1m", What::Loopback, true),
        // The same memory in both: 2000 messages of 16 KiB.
        named("qps_1000", bandwidth("write", 16 << 10, 4096, 1000, 2), true),
        named("qps_1", bandwidth("write", 16 << 10, 4096, 1, 2000), true),
        named("qps_10", bandwidth("write", 16 << 10, 4096, 10, 200), false),
        named("qps_100", bandwidth("write", 16 << 10, 4096, 100, 20), false),
        named("perftest_write_64k", What::Perftest(64 << 10, 64), false),
    ];
    for op in ["write", "read", "send"] {
        for (name, size) in [("64", 64), ("512", 512), ("4k", 4 << 10), ("64k", 64 << 10), ("8m", 8 << 20)] {
            for (mtu, suffix) in [(4096, ""), (1024, "_mtu1024")] {
                let full = format!("{op}_{name}{suffix}");
                // A message of one packet is the same at both.
                if size > 512 || mtu == 4096 && !all.iter().any(|there| there.name == full) {
                    all.push(named(full, bandwidth(op, size, mtu, 1, 0), false));
                }
            }
        }
    }
    all
}

/// The hosts and other resources of the contestants.
#[derive(Debug)]
pub(crate) struct Arena<'a> {
    /// Programs of their own.
    pub(crate) programs: Programs<'a>,
    /// As above, over daemons with other settings.
    others: Vec<Programs<'a>>,
    /// Raw frames.
    pub(crate) raw: Raw,
    /// Raw frames with the receiver's NAPI moved.
    raw_moved: Option<Raw>,
    /// Two queue pairs on one daemon.
    pub(crate) same_host: SameHost,
    /// For atomic operations.
    atomics: [Pairs; 1],
}

/// Bytes that most contestants move at a time.
const MIB: u64 = 1 << 20;

/// Atomic operations under way.
const ATOMICS_DEPTH: u32 = 64;

impl<'a> Arena<'a> {
    /// Opens the resources that stay open from the first round to the last.
    pub(crate) fn new(
        programs: Programs<'a>,
        others: Vec<Programs<'a>>,
        contestants: &[Contestant],
    ) -> anyhow::Result<Self> {
        let sockets = [programs.a.socket(), programs.b.socket()];
        let ends = Ends {
            sockets: [&sockets[0], &sockets[1]],
            addresses: NetworkSide::BOTH.map(|side| IpAddr::V4(Pair::Roce.address(side))),
        };
        Ok(Self {
            raw: Raw::new(programs.place.network, Pair::Raw)?,
            raw_moved: if contestants.iter().any(|one| one.what.pair() == Some(Pair::RawNapi)) {
                Some(Raw::new(programs.place.network, Pair::RawNapi)?)
            } else {
                None
            },
            same_host: SameHost::new(programs.a)?,
            atomics: [Pairs::new(ends, 1, ATOMICS_DEPTH, 4096)?],
            programs,
            others,
        })
    }

    /// Every process that takes part but for those that a round starts.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let programs = self.all_programs().flat_map(|it| it.a.pids().into_iter().chain(it.b.pids()));
        [std::process::id()].into_iter().chain(programs).collect()
    }

    fn all_programs(&self) -> impl Iterator<Item = &Programs<'a>> {
        [&self.programs].into_iter().chain(&self.others)
    }

    /// Those over the daemons of `pair`. A contestant that needs others than the usual takes part
    /// only where they exist.
    fn over(&self, pair: Pair) -> anyhow::Result<&Programs<'a>> {
        self.all_programs().find(|it| it.pair == pair).with_context(|| format!("no daemons serve {}", pair.interface()))
    }

    /// One round of one contestant.
    pub(crate) fn measure(&self, what: What, time: Duration) -> anyhow::Result<Sample> {
        const WRITE_BYTES: usize = 1 << 20;
        let (programs, network) = (&self.programs, self.programs.place.network);
        match what {
            What::Raw(Pair::RawNapi, bytes) => {
                self.raw_moved.as_ref().context("it was not opened")?.stream(bytes, time)
            }
            What::Raw(_, bytes) => self.raw.stream(bytes, time),
            What::RawPing(bytes) => self.raw.pingpong(bytes, time),
            What::Tcp(pair, waiting) => {
                let what = Stream { message_bytes: WRITE_BYTES, places: 1 };
                stream(TcpConnection::over(network, pair, waiting)?, what, time)
            }
            What::TcpPing(waiting) => pingpong(TcpConnection::over(network, Pair::Tcp, waiting)?, 64, time),
            What::Bandwidth(pair, run) => self.over(pair)?.bandwidth(run, time),
            What::Ping(pair, op) => self.over(pair)?.pingpong(op, 64, time),
            What::Atomics(work) => {
                let before = programs.a.cpu() + programs.b.cpu();
                let work = Drive { work, message_bytes: 8, depth: ATOMICS_DEPTH, time };
                let mut sample = drive(&self.atomics, work)?;
                let gigabytes = sample.gbit_per_s.unwrap_or_default() / 8.0 * time.as_secs_f64();
                let daemons = (programs.a.cpu() + programs.b.cpu() - before).as_secs_f64();
                sample.cpu_s_per_gb = sample.cpu_s_per_gb.map(|own| own + daemons / gigabytes);
                Ok(sample)
            }
            What::Perftest(size, depth) => programs.perftest_write(size, 4096, depth, time),
            What::SameHost => self.same_host.write(programs.a, time),
            What::Copy => Ok(self.same_host.copy(time)),
            What::Loopback => {
                let what = Stream { message_bytes: MESSAGE_BYTES, places: PLACES };
                stream(TcpConnection::over_loopback(network, Waiting::Blocking)?, what, time)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let all = all();
        let names: std::collections::BTreeSet<_> = all.iter().map(|one| &one.name).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn the_script_has_the_names() {
        let script = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bench"));
        let script = script.expect("the script is there");
        let (_, names) = script.split_once("\nnames='").expect("a list");
        let (names, _) = names.split_once('\'').expect("its end");
        let all = all();
        let known = all.iter().map(|one| one.name.as_str()).chain(["connections", "fairness"]);
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), known.collect::<Vec<_>>());
    }
}
