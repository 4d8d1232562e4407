//! Many queue pairs and many clients.

use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

use crate::{
    cpu,
    host::HostMemory,
    network::{NetworkSide, Pair},
    programs::{BandwidthRun, Programs},
    rdma::{BenchWork, Drive, Ends, Pairs, drive},
    sample::Spread,
};

/// Sessions, and queue pairs of each: within the default limits of a client.
const SESSIONS: usize = 10;
const QPS: usize = 1000;

/// Clients at a time, each with a session of its own.
const CLIENTS: usize = 100;

/// Until memory that is freed is given back, and idle workers sleep.
const SETTLE: Duration = Duration::from_millis(500);

/// The results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Scale {
    /// Connected queue pairs on each daemon.
    pub(crate) qps: usize,
    /// Seconds in which one side made and connected them: create, INIT, RTR, RTS.
    pub(crate) made_in_s: f64,
    /// Seconds for both sides.
    pub(crate) both_made_in_s: f64,
    /// Daemon memory for each of them, bytes.
    pub(crate) bytes_per_qp: HostMemory,
    /// Processor time of a daemon that has them all and nothing to do, in parts of a second.
    pub(crate) idle_cpu_share: f64,
    /// WRITE of 1 MiB on one queue pair beside them, to the same without them.
    pub(crate) throughput_beside_idle_qps: Option<Spread>,
    /// WRITE of 64 KiB by so many clients at a time, to one client that does it alone with as much
    /// under way.
    pub(crate) clients: usize,
    /// The ratio.
    pub(crate) throughput_of_clients_vs_one: Option<Spread>,
}

/// Measures it all.
pub(crate) fn measure(programs: &Programs<'_>, rounds: usize, time: Duration) -> anyhow::Result<Scale> {
    let (a, b) = (programs.a, programs.b);
    let sockets = [a.socket(), b.socket()];
    let ends = Ends {
        sockets: [&sockets[0], &sockets[1]],
        addresses: NetworkSide::BOTH.map(|side| IpAddr::V4(Pair::Roce.address(side))),
    };
    let write = BandwidthRun { op: "write", size: 1 << 20, mtu: 4096, qps: 1, depth: 0 };
    let mut with = Vec::new();
    let mut without = Vec::new();
    thread::sleep(SETTLE);
    let before = a.memory()?;
    let begin = Instant::now();
    let idle = (0..SESSIONS).map(|_| Pairs::new(ends, QPS, 16, 4096)).collect::<anyhow::Result<Vec<_>>>();
    let mut idle = Some(idle.context("10,000 queue pairs")?);
    let both_made_in_s = begin.elapsed().as_secs_f64();
    let made_in_s = idle.iter().flatten().map(|pairs| pairs.made_in.as_secs_f64()).sum();
    thread::sleep(SETTLE);
    let bytes_per_qp = before.each(a.memory()?, SESSIONS * QPS);
    let idle_cpu_share = cpu::idle_share(a.daemon_pid());
    // First all rounds with them, then all without: making them takes longer than a round.
    for _ in 0..rounds {
        with.push(programs.bandwidth(write, time)?.gbit_per_s.unwrap_or_default());
    }
    drop(idle.take());
    thread::sleep(SETTLE);
    for _ in 0..rounds {
        without.push(programs.bandwidth(write, time)?.gbit_per_s.unwrap_or_default());
    }
    Ok(Scale {
        qps: SESSIONS * QPS,
        made_in_s,
        both_made_in_s,
        bytes_per_qp,
        idle_cpu_share,
        throughput_beside_idle_qps: Spread::of(with.iter().zip(&without).map(|(with, without)| with / without)),
        clients: CLIENTS,
        throughput_of_clients_vs_one: clients(ends, rounds, time)?,
    })
}

/// Each client one queue pair, two messages under way; and one client with one queue pair that has
/// all of it under way.
fn clients(ends: Ends<'_>, rounds: usize, time: Duration) -> anyhow::Result<Option<Spread>> {
    const MESSAGE: usize = 64 << 10;
    let many = (0..CLIENTS).map(|_| Pairs::new(ends, 1, 2, 2 * MESSAGE)).collect::<anyhow::Result<Vec<_>>>();
    let many = many.with_context(|| format!("{CLIENTS} clients"))?;
    let one = [Pairs::new(ends, 1, 2 * CLIENTS as u32, 2 * MESSAGE * CLIENTS)?];
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let speed = |pairs: &[Pairs], depth| {
            let sample = drive(pairs, Drive { work: BenchWork::Write, message_bytes: MESSAGE, depth, time })?;
            anyhow::Ok(sample.gbit_per_s.unwrap_or_default())
        };
        ratios.push(speed(&many, 2)? / speed(&one, 2 * CLIENTS as u32)?);
    }
    Ok(Spread::of(ratios))
}
