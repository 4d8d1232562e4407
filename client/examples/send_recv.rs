//! SEND and RECV with a completion channel: both programs sleep until a completion comes.
//!
//! The program with an address sends numbered messages (1000, or as many as its second argument
//! says); the other has receives posted and verifies each message.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/send_recv &
//! scripts/lab exec a -- target/debug/examples/send_recv 10.10.0.2 1000
//! ```

#[path = "support/peer.rs"]
mod peer;

use std::{env, time::Duration};

use anyhow::{Context as _, Result, ensure};
use peer::Peer;
use roced_client::{
    Access, Completion, CompletionChannel, CompletionQueue, ConnectOptions, CqOptions, Device, MemoryRegion, Notify,
    QueuePair, RecvRequest, SendRequest,
};

/// Length of the longest message.
const BYTES_MAX: usize = 1024;
/// Messages under way: buffers of the sender, receives of the receiver.
const SLOTS: usize = 32;
/// Time limit for the next completion.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let (address, messages) = (arguments.next(), arguments.next().unwrap_or_else(|| "1000".into()));
    let mut peer = Peer::meet(address)?;
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon serves no device")?)?;
    let gid = device.gid_toward(peer.address.into())?;
    let pd = device.protection_domain()?;

    // A channel may serve many completion queues; this one serves one, with room for all slots.
    let channel = device.channel()?;
    let options = CqOptions { entries: 2 * SLOTS as u32, channel: Some(&channel), ..CqOptions::default() };
    let completions = Completions { cq: device.completion_queue_with(&options)?, channel };
    let cq = &completions.cq;
    // The queues hold 64 requests, the default: a place is free a moment after its completion, so
    // one for `SLOTS` requests could be full for that moment.
    let qp = pd.queue_pair(cq, cq).create()?;
    let memory = pd.allocate(SLOTS * BYTES_MAX, Access::LOCAL_WRITE)?;

    // INIT is the first state with receives: they are there before the peer can send.
    qp.to_init(Access::NONE)?;
    for slot in 0..SLOTS {
        post_receive(&qp, &memory, slot)?;
    }
    let endpoint = peer.exchange(qp.address(gid.index)?)?.parse()?;
    qp.connect(&endpoint, &ConnectOptions::default())?;
    peer.exchange("connected")?;

    if peer.waited {
        let messages: u32 = messages.parse().with_context(|| format!("'{messages}' is no number of messages"))?;
        peer.say(messages)?;
        send(&qp, &memory, &completions, messages)?;
        println!("sent {messages} messages; the peer says: {}", peer.hear()?);
    } else {
        let messages = peer.hear()?.parse()?;
        receive(&qp, &memory, &completions, messages)?;
        println!("received {messages} messages, verified");
        peer.say("all verified")?;
    }
    Ok(())
}

/// Sends messages, as many at a time as there are slots.
fn send(qp: &QueuePair, memory: &MemoryRegion, completions: &Completions, messages: u32) -> Result<()> {
    let mut done = [Completion::EMPTY; SLOTS];
    let (mut free, mut sent, mut completed): (Vec<usize>, _, _) = ((0..SLOTS).collect(), 0, 0);
    while completed < messages {
        while sent < messages
            && let Some(slot) = free.pop()
        {
            let (bytes, at) = (contents(sent), slot * BYTES_MAX);
            memory.write_at(at, &bytes);
            let data = [memory.sge(at..at + bytes.len())];
            qp.post_send(&SendRequest::send(&data).imm(sent.to_be_bytes()).id(slot as u64).signaled())?;
            sent += 1;
        }
        for done in completions.take(&mut done)? {
            // Acknowledged: the peer has it, and the slot may be used again.
            free.push(done.ok()?.wr_id as usize);
            completed += 1;
        }
    }
    Ok(())
}

/// Verifies messages as they come, and posts each receive again.
fn receive(qp: &QueuePair, memory: &MemoryRegion, completions: &Completions, messages: u32) -> Result<()> {
    let mut done = [Completion::EMPTY; SLOTS];
    let mut next = 0;
    while next < messages {
        for done in completions.take(&mut done)? {
            let (done, slot) = (done.ok()?, done.wr_id as usize);
            ensure!(done.imm == Some(next.to_be_bytes()), "message {:?} in place of {next}", done.imm);
            let arrived = memory.to_vec(slot * BYTES_MAX, done.byte_len as usize);
            ensure!(arrived == contents(next), "message {next} is not as sent");
            post_receive(qp, memory, slot)?;
            next += 1;
        }
    }
    Ok(())
}

fn post_receive(qp: &QueuePair, memory: &MemoryRegion, slot: usize) -> Result<()> {
    let room = [memory.sge(slot * BYTES_MAX..(slot + 1) * BYTES_MAX)];
    Ok(qp.post_recv(&RecvRequest::new(&room).id(slot as u64))?)
}

/// A completion queue and the channel that it reports to.
struct Completions {
    cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Completions {
    /// Takes the completions that are there, asleep until there is one.
    fn take<'a>(&self, into: &'a mut [Completion]) -> Result<&'a [Completion]> {
        loop {
            // One event is reported for each `arm`, and only of completions after it: so arm first,
            // then poll, then sleep. An event of an earlier `arm` costs one more round.
            self.cq.arm(Notify::Any);
            let taken = self.cq.poll(into)?;
            if taken > 0 {
                return Ok(&into[..taken]);
            }
            self.channel.wait(TIMEOUT)?.with_context(|| format!("no completion for {TIMEOUT:?}"))?;
        }
    }
}

/// The bytes of a message: length and contents follow from its number.
fn contents(message: u32) -> Vec<u8> {
    let length = 1 + message as usize * 389 % BYTES_MAX;
    (0..length).map(|at| at as u8 ^ message as u8).collect()
}
