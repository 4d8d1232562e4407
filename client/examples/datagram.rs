//! Unreliable datagrams: an address handle, a Q_Key, and 40 bytes in front of each message.
//!
//! The program with an address asks; the other answers every datagram, whichever queue pair it
//! comes from. The network may lose datagrams, so a question is repeated until it is answered.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/datagram &
//! scripts/lab exec a -- target/debug/examples/datagram 10.10.0.2
//! ```

#[path = "support/peer.rs"]
mod peer;

use std::{
    collections::{HashMap, hash_map::Entry},
    env,
    net::{IpAddr, Ipv4Addr},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use peer::Peer;
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionOp, CompletionQueue, Device, GRH_BYTES, Gid,
    MemoryRegion, QueuePair, RecvRequest, SendRequest, ServiceType,
};

/// Datagrams with another Q_Key are dropped by the receiver.
const QKEY: u32 = 0x1234_5678;
/// Length of the longest message: one packet of the smallest path MTU.
const BYTES_MAX: usize = 256;
/// Room for a message and for the header in front of it.
const ROOM: usize = GRH_BYTES + BYTES_MAX;
/// Receives posted. A datagram that finds none is lost.
const RECEIVES: usize = 8;
/// Time between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const TRIES: usize = 25;

fn main() -> Result<()> {
    let mut peer = Peer::meet(env::args().nth(1))?;
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon serves no device")?)?;
    let pd = device.protection_domain()?;
    let cq = device.completion_queue(2 * RECEIVES as u32)?;
    let qp = pd.queue_pair(&cq, &cq).service(ServiceType::Ud).inline_bytes(BYTES_MAX as u32).create()?;
    let memory = pd.allocate(RECEIVES * ROOM, Access::LOCAL_WRITE)?;
    // No connection: from here on the queue pair takes datagrams with this Q_Key.
    qp.activate(QKEY)?;
    let socket = Socket { qp, cq, memory };
    (0..RECEIVES).try_for_each(|slot| socket.post_receive(slot))?;

    // The queue pair number is all that the peer must know besides the address and the Q_Key.
    let qpn: u32 = peer.exchange(socket.qp.qpn())?.parse().context("the peer sent no queue pair number")?;
    if peer.waited {
        let to = pd.address_handle(&AddressOptions::new(peer.address.into()))?;
        for question in ["hello", "datagrams", "good-bye"] {
            println!("{question}: {}", socket.ask(&to, qpn, question)?);
        }
        peer.say("done")
    } else {
        let done = thread::spawn(move || peer.hear());
        let (mut handles, mut answered) = (HashMap::new(), 0);
        while !done.is_finished() {
            let Some((question, from, qpn)) = socket.receive(RETRY_INTERVAL)? else { continue };
            println!("{question} from {from}, queue pair 0x{qpn:06x}");
            // The sender's address is in the header in front of the message. Its handle is kept:
            // sends with a handle that is dropped before they complete fail.
            let to = match handles.entry(from) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(pd.address_handle(&AddressOptions::new(from))?),
            };
            socket.send(to, qpn, &question.to_uppercase())?;
            answered += 1;
        }
        done.join().expect("hearing a line does not panic")?;
        println!("answered {answered} datagrams");
        Ok(())
    }
}

/// A datagram queue pair, its completions, and memory to receive into.
struct Socket {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Socket {
    fn post_receive(&self, slot: usize) -> Result<()> {
        let room = [self.memory.sge(slot * ROOM..(slot + 1) * ROOM)];
        Ok(self.qp.post_recv(&RecvRequest::new(&room).id(slot as u64))?)
    }

    /// Sends `text`, copied when it is posted. Completion means that it left, not that it arrived.
    fn send(&self, to: &AddressHandle, qpn: u32, text: &str) -> Result<()> {
        Ok(self.qp.post_send(&SendRequest::send_inline(text.as_bytes()).to(to, qpn, QKEY).signaled())?)
    }

    /// Sends a question until its answer arrives.
    fn ask(&self, to: &AddressHandle, qpn: u32, question: &str) -> Result<String> {
        for _ in 0..TRIES {
            self.send(to, qpn, question)?;
            while let Some((answer, ..)) = self.receive(RETRY_INTERVAL)? {
                // Else a late answer to an earlier question.
                if answer == question.to_uppercase() {
                    return Ok(answer);
                }
            }
        }
        bail!("no answer to '{question}' after {TRIES} tries")
    }

    /// Waits for a datagram: its text, the address and the queue pair that it comes from.
    fn receive(&self, timeout: Duration) -> Result<Option<(String, Gid, u32)>> {
        let mut done = [Completion::EMPTY];
        while self.cq.wait(&mut done, timeout)? == 1 {
            let done = done[0].ok()?;
            if done.op == CompletionOp::Recv {
                // The length counts the header.
                let bytes = self.memory.to_vec(done.wr_id as usize * ROOM, done.byte_len as usize);
                self.post_receive(done.wr_id as usize)?;
                let (grh, text) = bytes.split_at_checked(GRH_BYTES).context("a datagram without its header")?;
                return Ok(Some((String::from_utf8(text.to_vec())?, source(grh)?, done.src_qpn)));
            }
        }
        Ok(None)
    }
}

/// The source address in the 40 bytes in front of a message: an IPv6 header, or an IPv4 header in
/// the last 20 of them.
fn source(grh: &[u8]) -> Result<Gid> {
    if grh[0] >> 4 == 6 {
        return Ok(Gid(grh[8..24].try_into().expect("16 bytes")));
    }
    ensure!(grh[20] >> 4 == 4, "neither an IPv6 nor an IPv4 header: {grh:02x?}");
    let address: [u8; 4] = grh[32..36].try_into().expect("4 bytes");
    Ok(Gid::from(IpAddr::from(Ipv4Addr::from(address))))
}
