//! Connected queue pairs between two daemons, or on one.

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use roced_client::{
    Access, CompletionQueue, ConnectOptions, Device, Gid, MemoryRegion, ProtectionDomain, QpAddress, QueuePair,
};

/// Both ends of the connection to be made: the daemons' sockets, and their addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<'a> {
    /// The end that posts, and the end that is posted to.
    pub(crate) sockets: [&'a Path; 2],
    /// In the same order.
    pub(crate) addresses: [IpAddr; 2],
}

/// One end: a session of its own.
#[derive(Debug)]
struct PairEnd {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    memory: MemoryRegion,
    sgid_index: u32,
    gid: Gid,
}

/// Queue pairs, connected, in two sessions.
#[derive(Debug)]
pub(crate) struct Pairs {
    here: PairEnd,
    there: PairEnd,
    /// How long making and connecting one end's queue pairs took: the end that posts.
    pub(crate) made_in: Duration,
}

impl Pairs {
    /// Makes `count` pairs, `depth` work requests deep, with `memory_bytes` at each end.
    pub(crate) fn new(ends: Ends<'_>, count: usize, depth: u32, memory_bytes: usize) -> anyhow::Result<Self> {
        let end = |at: usize| {
            let (socket, address) = (ends.sockets[at], ends.addresses[at]);
            PairEnd::new(socket, address, count, depth, memory_bytes)
                .with_context(|| format!("at {}", socket.display()))
        };
        // The other end first, so that this one's can be connected as soon as they are made.
        let there = end(1)?;
        let begin = Instant::now();
        let here = end(0)?;
        here.connect(&there)?;
        let made_in = begin.elapsed();
        there.connect(&here)?;
        Ok(Self { here, there, made_in })
    }

    /// The queue pairs that post.
    pub(crate) fn qps(&self) -> &[QueuePair] {
        &self.here.qps
    }

    /// Where they complete.
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.here.cq
    }

    /// Their memory.
    pub(crate) fn local(&self) -> &MemoryRegion {
        &self.here.memory
    }

    /// The memory at the other end.
    pub(crate) fn remote(&self) -> &MemoryRegion {
        &self.there.memory
    }

    /// Packets that either end sent again.
    pub(crate) fn retransmitted(&self) -> anyhow::Result<u64> {
        let qps = self.here.qps.iter().chain(&self.there.qps);
        qps.map(|qp| Ok(qp.statistics()?.retransmitted_packets)).sum()
    }
}

impl PairEnd {
    fn new(socket: &Path, address: IpAddr, count: usize, depth: u32, memory_bytes: usize) -> anyhow::Result<Self> {
        let name = Device::list_at(socket)?.into_iter().next().context("roced has a device")?;
        let device = Device::open_at(socket, &name)?;
        let gid = Gid::from(address);
        let entries = device.gids()?;
        let sgid_index = entries.iter().find(|entry| entry.gid == gid).context("the address is a GID")?.index;
        let pd: ProtectionDomain = device.protection_domain()?;
        let memory = pd.allocate(memory_bytes, Access::ALL)?;
        let entries = count * 2 * depth.next_power_of_two() as usize;
        let cq = device.completion_queue(u32::try_from(entries)?)?;
        let make = || {
            let builder = pd.queue_pair(&cq, &cq).send_sges(1).recv_sges(1).inline_bytes(0).signal_all();
            builder.send_wrs(depth).recv_wrs(1).create()
        };
        let qps = (0..count).map(|_| make()).collect::<Result<_, _>>()?;
        Ok(Self { qps, cq, memory, sgid_index, gid })
    }

    fn connect(&self, peer: &Self) -> anyhow::Result<()> {
        let options = ConnectOptions { sgid_index: Some(self.sgid_index), ..ConnectOptions::default() };
        for (mine, other) in self.qps.iter().zip(&peer.qps) {
            let remote: QpAddress = other.address(peer.sgid_index)?;
            mine.connect(&remote, &options).with_context(|| format!("connecting to {}", peer.gid))?;
        }
        Ok(())
    }
}
