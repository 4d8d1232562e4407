//! Traffic of programs that use the client library: aggressors of other users' shares.
#![expect(unsafe_code, reason = "registers memory of the program")]

use std::{collections::HashMap, path::Path};

use anyhow::{Context as _, Result};
use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, CqOptions, Device, GidEntry, MemoryRegion, PrivateMemory,
    ProtectionDomain, QueuePair, SendRequest, Sge,
};

use super::say;
use crate::actor::ActArguments;

/// Bytes of an ordinary message.
const BYTES: usize = 65_536;

/// Two queue pairs of one device that are connected to each other.
pub(super) fn connected_to_itself(device: &Device, cq: &CompletionQueue) -> Result<(QueuePair, QueuePair)> {
    let pd = device.protection_domain()?;
    let gid = ipv4(device)?;
    let (left, right) = (pd.queue_pair(cq, cq).create()?, pd.queue_pair(cq, cq).create()?);
    let (ours, theirs) = (left.address(gid.index)?, right.address(gid.index)?);
    left.connect(&theirs, &ConnectOptions::default())?;
    right.connect(&ours, &ConnectOptions::default())?;
    Ok((left, right))
}

fn ipv4(device: &Device) -> Result<GidEntry> {
    device.gids()?.into_iter().find(|entry| entry.gid.0[10..12] == [0xff; 2]).context("no IPv4 address")
}

/// One side of many connections.
struct Party {
    gid: GidEntry,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Party {
    fn open(socket: &Path, bytes: usize, entries: u32) -> Result<Self> {
        let name = Device::list_at(socket)?.into_iter().next().context("no device")?;
        let device = Device::open_at(socket, &name)?;
        let pd = device.protection_domain()?;
        let cq = device.completion_queue_with(&CqOptions { entries, silent: true, ..CqOptions::default() })?;
        let memory = pd.allocate(bytes, Access::ALL)?;
        Ok(Self { gid: ipv4(&device)?, pd, cq, memory })
    }

    /// Connects a queue pair of each side.
    fn connect(&self, peer: &Self, depth: u32) -> Result<(QueuePair, QueuePair)> {
        let make = |party: &Self| party.pd.queue_pair(&party.cq, &party.cq).send_wrs(depth).recv_wrs(1).create();
        let (left, right) = (make(self)?, make(peer)?);
        let (from, to) = (left.address(self.gid.index)?, right.address(peer.gid.index)?);
        right.connect(&from, &ConnectOptions::default())?;
        left.connect(&to, &ConnectOptions::default())?;
        Ok((left, right))
    }
}

/// Both sides: that of the attacked host first.
fn parties(arguments: &ActArguments, bytes: usize) -> Result<[Party; 2]> {
    let peer = arguments.peer.as_ref().context("--peer")?;
    Ok([Party::open(&arguments.socket, bytes, 4096)?, Party::open(peer, bytes, 4096)?])
}

/// Keeps `depth` requests under way on each of `count` connections from `from` to `to`.
fn storm<'a>(
    [from, to]: [&Party; 2],
    count: u32,
    depth: u32,
    request: impl Fn(&'a [Sge]) -> SendRequest<'a>,
    sges: &'a [Sge],
) -> Result<()> {
    let (mut ours, mut theirs) = (HashMap::new(), Vec::new());
    for _ in 0..count {
        let (left, right) = from.connect(to, depth.next_power_of_two())?;
        ours.insert(left.qpn(), left);
        theirs.push(right);
    }
    let request = request(sges).signaled();
    for qp in ours.values() {
        for _ in 0..depth {
            qp.post_send(&request)?;
        }
    }
    say("ready")?;
    let mut done = [Completion::EMPTY; 64];
    loop {
        let reaped = from.cq.poll(&mut done)?;
        for completion in &done[..reaped] {
            completion.ok()?;
            ours.get(&completion.qpn).context("one of ours")?.post_send(&request)?;
        }
        if reaped == 0 {
            std::thread::yield_now();
        }
    }
}

/// Writes to the peer from `count` queue pairs without end.
pub(super) fn many_queue_pairs(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    let target = there.memory.remote();
    storm([&here, &there], arguments.count, 2, |sges| SendRequest::write(sges, target), &[here.memory.sge(..)])
}

/// Writes 64 bytes at a time.
pub(super) fn small_messages(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    let target = there.memory.remote();
    storm([&here, &there], arguments.count, 128, |sges| SendRequest::write(sges, target), &[here.memory.sge(..64)])
}

/// Writes messages of `bytes`.
pub(super) fn huge_messages(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, usize::try_from(arguments.bytes)?)?;
    let target = there.memory.remote();
    storm([&here, &there], arguments.count, 2, |sges| SendRequest::write(sges, target), &[here.memory.sge(..)])
}

/// Has the peer read from this host.
pub(super) fn peer_reads(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    let source = here.memory.remote();
    storm([&there, &here], arguments.count, 8, |sges| SendRequest::read(sges, source), &[there.memory.sge(..)])
}

/// Has the peer write to this host from `count` queue pairs without end.
pub(super) fn peer_writes(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    let target = here.memory.remote();
    storm([&there, &here], arguments.count, 8, |sges| SendRequest::write(sges, target), &[there.memory.sge(..)])
}

/// Has the peer write to memory of this host that the daemon does not map, so that the kernel
/// copies each packet.
pub(super) fn proxied_memory(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    here.pd.device().set_private_memory(PrivateMemory::Proxied);
    let memory = vec![0_u8; BYTES].leak();
    let (start, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the memory is never freed, and never used as Rust memory again.
    let region = unsafe { here.pd.register_at(start, length, start as u64, Access::ALL) }?;
    let target = region.remote();
    storm([&there, &here], arguments.count, 8, |sges| SendRequest::write(sges, target), &[there.memory.sge(..)])
}

/// Has the peer add to a number of this host.
pub(super) fn atomics(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    let at = here.memory.remote();
    storm([&there, &here], arguments.count, 16, |sges| SendRequest::fetch_add(sges, at, 1), &[there.memory.sge(..8)])
}

/// Sends without reaping, until its queue overruns, and again.
pub(super) fn never_reaps(arguments: &ActArguments) -> Result<()> {
    let peer = arguments.peer.as_ref().context("--peer")?;
    let there = Party::open(peer, BYTES, 4096)?;
    say("ready")?;
    loop {
        let here = Party::open(&arguments.socket, BYTES, 16)?;
        let (left, _right) = here.connect(&there, 128)?;
        let sges = [here.memory.sge(..4096)];
        let request = SendRequest::write(&sges, there.memory.remote()).signaled();
        // Until its own queue is full.
        while left.post_send(&request).is_ok() {}
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Posts requests that fail, each on a new connection.
pub(super) fn posts_errors(arguments: &ActArguments) -> Result<()> {
    let [here, there] = parties(arguments, BYTES)?;
    say("ready")?;
    let mut done = [Completion::EMPTY; 16];
    loop {
        let (left, _right) = here.connect(&there, 16)?;
        let sges = [Sge { lkey: 1, ..here.memory.sge(..64) }];
        for _ in 0..16 {
            left.post_send(&SendRequest::send(&sges).signaled())?;
        }
        let mut reaped = 0;
        while reaped < 16 {
            reaped += here.cq.poll(&mut done)?;
        }
    }
}

/// Registers and deregisters memory.
pub(super) fn registers(arguments: &ActArguments) -> Result<()> {
    let here = Party::open(&arguments.socket, BYTES, 16)?;
    say("ready")?;
    loop {
        drop(here.pd.allocate(1 << 20, Access::ALL)?);
    }
}
