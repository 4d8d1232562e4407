//! A shared receive queue: four queue pairs take receives from one queue; its limit event tells
//! when it is nearly empty.
//!
//! The program with an address sends over four connections. The other has far fewer receives than
//! messages come, and posts more only at a limit event.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/shared_receive &
//! scripts/lab exec a -- target/debug/examples/shared_receive 10.10.0.2
//! ```

#[path = "support/peer.rs"]
mod peer;

use std::{env, os::fd::AsFd as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use peer::Peer;
use roced_client::{
    Access, Completion, CompletionChannel, ConnectOptions, CqOptions, Device, DeviceEvent, MemoryRegion, Notify,
    ProtectionDomain, QpBuilder, QueuePair, RecvRequest, SendRequest, SharedReceiveQueue,
};

const CONNECTIONS: usize = 4;
/// Messages over each connection.
const MESSAGES: u32 = 250;
/// Length of a message: its number, again and again.
const BYTES: usize = 256;
/// Messages of all connections under way, more than there are receives.
const WINDOW: usize = 48;
/// Receives for all connections together.
const RECEIVES: usize = 32;
/// The limit event comes when fewer receives are left.
const LIMIT: u32 = 12;
/// Time limit for the next completion.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let mut peer = Peer::meet(env::args().nth(1))?;
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon serves no device")?)?;
    let pd = device.protection_domain()?;
    if peer.waited { send(&mut peer, &pd) } else { receive(&mut peer, &pd) }
}

/// Makes one connection after the other.
fn connect(peer: &mut Peer, builder: QpBuilder<'_>, device: &Device) -> Result<Vec<QueuePair>> {
    let gid = device.gid_toward(peer.address.into())?;
    let connection = |_| {
        let qp = builder.create()?;
        let endpoint = peer.exchange(qp.address(gid.index)?)?.parse()?;
        qp.connect(&endpoint, &ConnectOptions::default())?;
        Ok(qp)
    };
    let qps = (0..CONNECTIONS).map(connection).collect::<Result<_>>()?;
    peer.exchange("connected")?;
    Ok(qps)
}

/// Sends over all connections in turn. A message that finds no receive is repeated by the transport
/// until there is one, for `rnr_retry` is 7.
fn send(peer: &mut Peer, pd: &ProtectionDomain) -> Result<()> {
    let cq = pd.device().completion_queue(2 * WINDOW as u32)?;
    let qps = connect(peer, pd.queue_pair(&cq, &cq).inline_bytes(BYTES as u32), &pd.device())?;
    let (total, mut posted, mut completed) = (CONNECTIONS * MESSAGES as usize, 0, 0);
    let mut done = [Completion::EMPTY; WINDOW];
    while completed < total {
        while posted < total && posted - completed < WINDOW {
            let (qp, number) = (&qps[posted % CONNECTIONS], (posted / CONNECTIONS) as u32);
            let message = number.to_be_bytes().repeat(BYTES / 4);
            qp.post_send(&SendRequest::send_inline(&message).signaled())?;
            posted += 1;
        }
        let taken = cq.wait(&mut done, TIMEOUT)?;
        ensure!(taken > 0, "no message arrived for {TIMEOUT:?}");
        done[..taken].iter().try_for_each(|done| done.ok().map(drop))?;
        completed += taken;
    }
    println!("sent {MESSAGES} messages over each of {CONNECTIONS} connections");
    println!("the peer says: {}", peer.hear()?);
    Ok(())
}

/// Makes the shared queue, fills it, and verifies the messages of every connection.
fn receive(peer: &mut Peer, pd: &ProtectionDomain) -> Result<()> {
    let device = pd.device();
    let channel = device.channel()?;
    let options = CqOptions { entries: 2 * RECEIVES as u32, channel: Some(&channel), ..CqOptions::default() };
    let cq = device.completion_queue_with(&options)?;
    let mut pool = Pool {
        // Deeper than needed: a place is free a moment after the completion of its receive.
        srq: pd.shared_receive_queue(2 * RECEIVES as u32, 1)?,
        memory: pd.allocate(RECEIVES * BYTES, Access::LOCAL_WRITE)?,
        free: (0..RECEIVES).collect(),
    };
    pool.post_all()?;
    let srq = pool.srq.clone();
    let qps = connect(peer, pd.queue_pair(&cq, &cq).shared_receives(&srq), &device)?;

    let (mut next, mut is_low, mut limit_events) = ([0; CONNECTIONS], false, 0);
    while next != [MESSAGES; CONNECTIONS] {
        // Arm first, then poll: a completion in between is reported by an event.
        cq.arm(Notify::Any);
        let mut done = [Completion::EMPTY; RECEIVES];
        let taken = cq.poll(&mut done)?;
        for done in &done[..taken] {
            let (done, of_connection) = (done.ok()?, |qp: &QueuePair| qp.qpn() == done.qpn);
            let number = &mut next[qps.iter().position(of_connection).context("of no queue pair")?];
            let slot = done.wr_id as usize;
            let arrived = pool.memory.to_vec(slot * BYTES, done.byte_len as usize);
            ensure!(arrived == number.to_be_bytes().repeat(BYTES / 4), "message {number} is not as sent");
            *number += 1;
            pool.free.push(slot);
        }
        while let Some(event) = device.next_event()? {
            if event == (DeviceEvent::SrqLimit { srqn: srq.srqn() }) {
                (is_low, limit_events) = (true, limit_events + 1);
            }
        }
        // The event may come before the completions of the receives that were taken.
        if is_low && pool.free.len() >= RECEIVES / 2 {
            pool.post_all()?;
            is_low = false;
        } else if taken == 0 {
            sleep(&channel, &device)?;
        }
    }
    println!("received {MESSAGES} messages over each of {CONNECTIONS} connections, verified");
    println!("{RECEIVES} receives for all of them, posted again at {limit_events} limit events");
    peer.say("all verified")
}

/// The shared receive queue and its buffers.
struct Pool {
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
    /// Buffers that are not posted.
    free: Vec<usize>,
}

impl Pool {
    /// Posts every free buffer, then asks for the next limit event: each request gives one.
    fn post_all(&mut self) -> Result<()> {
        for slot in self.free.drain(..) {
            let room = [self.memory.sge(slot * BYTES..(slot + 1) * BYTES)];
            self.srq.post_recv(&RecvRequest::new(&room).id(slot as u64))?;
        }
        Ok(self.srq.arm_limit(LIMIT)?)
    }
}

/// Sleeps until the channel reports a completion, or the device an event.
fn sleep(channel: &CompletionChannel, device: &Device) -> Result<()> {
    let mut fds = [channel.as_fd(), device.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let ready = poll(&mut fds, PollTimeout::try_from(TIMEOUT)?)?;
    ensure!(ready > 0, "no message for {TIMEOUT:?}");
    while channel.next_event()?.is_some() {}
    Ok(())
}
