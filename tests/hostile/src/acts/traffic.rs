//! Traffic of programs that use the client library.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use roced_client::{Access, Completion, CompletionQueue, ConnectOptions, CqOptions, Device, QueuePair, SendRequest};

use super::say;
use crate::actor::ActArguments;

/// Bytes of a message.
const BYTES: usize = 65_536;

/// Two queue pairs of one device that are connected to each other.
pub(super) fn connected_to_itself(device: &Device, cq: &CompletionQueue) -> Result<(QueuePair, QueuePair)> {
    let pd = device.protection_domain()?;
    let gid = device.gids()?.into_iter().find(|entry| entry.gid.0[10..12] == [0xff; 2]).context("no IPv4 address")?;
    let (left, right) = (pd.queue_pair(cq, cq).create()?, pd.queue_pair(cq, cq).create()?);
    let (ours, theirs) = (left.address(gid.index)?, right.address(gid.index)?);
    left.connect(&theirs, &ConnectOptions::default())?;
    right.connect(&ours, &ConnectOptions::default())?;
    Ok((left, right))
}

/// Writes to the peer from `count` queue pairs without end.
pub(super) fn many_queue_pairs(arguments: &ActArguments) -> Result<()> {
    let peer = arguments.peer.as_ref().context("--peer")?;
    let open = |socket| {
        let name = Device::list_at(socket)?.into_iter().next().context("no device")?;
        anyhow::Ok(Device::open_at(socket, &name)?)
    };
    let (here, there) = (open(&arguments.socket)?, open(peer)?);
    let ipv4 = |device: &Device| {
        device.gids()?.into_iter().find(|entry| entry.gid.0[10..12] == [0xff; 2]).context("no IPv4 address")
    };
    let (our_gid, their_gid) = (ipv4(&here)?, ipv4(&there)?);
    let (our_pd, their_pd) = (here.protection_domain()?, there.protection_domain()?);
    let silent = CqOptions { entries: 2048, silent: true, ..CqOptions::default() };
    let (our_cq, their_cq) = (here.completion_queue_with(&silent)?, there.completion_queue_with(&silent)?);
    let source = our_pd.allocate(BYTES, Access::NONE)?;
    let target = their_pd.allocate(BYTES, Access::REMOTE_WRITE)?;
    let (mut ours, mut theirs) = (HashMap::new(), Vec::new());
    for _ in 0..arguments.count {
        let left = our_pd.queue_pair(&our_cq, &our_cq).send_wrs(4).recv_wrs(1).create()?;
        let right = their_pd.queue_pair(&their_cq, &their_cq).send_wrs(1).recv_wrs(1).create()?;
        let (from, to) = (left.address(our_gid.index)?, right.address(their_gid.index)?);
        right.connect(&from, &ConnectOptions::default())?;
        left.connect(&to, &ConnectOptions::default())?;
        ours.insert(left.qpn(), left);
        theirs.push(right);
    }
    let sges = [source.sge(..)];
    let request = SendRequest::write(&sges, target.remote()).signaled();
    for qp in ours.values() {
        for _ in 0..2 {
            qp.post_send(&request)?;
        }
    }
    say("ready")?;
    let mut done = [Completion::EMPTY; 64];
    loop {
        let count = our_cq.poll(&mut done)?;
        for completion in &done[..count] {
            completion.ok()?;
            ours.get(&completion.qpn).context("one of ours")?.post_send(&request)?;
        }
        if count == 0 {
            std::thread::yield_now();
        }
    }
}
