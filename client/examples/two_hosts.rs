//! RDMA WRITE between two hosts: one program writes into the memory of the other.
//!
//! The programs exchange queue pair numbers and memory keys over TCP. The one with an address
//! writes; the other takes no part in that, and verifies every byte afterward.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/two_hosts &
//! scripts/lab exec a -- target/debug/examples/two_hosts 10.10.0.2
//! ```

#[path = "support/peer.rs"]
mod peer;

use std::{env, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use peer::Peer;
use roced_client::{Access, Completion, ConnectOptions, Device, QpAddress, RemoteMemory, SendRequest};

/// Length of the message. The transport cuts it into packets of the path MTU.
const BYTES: usize = 1 << 20;
/// Time limit for the WRITE. A peer that does not answer fails it earlier, after the retries.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let mut peer = Peer::meet(env::args().nth(1))?;

    // The device, and its address in the network of the peer.
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon serves no device")?)?;
    let gid = device.gid_toward(peer.address.into())?;

    // A protection domain joins memory and queue pairs; a completion queue reports finished work.
    let pd = device.protection_domain()?;
    let cq = device.completion_queue(16)?;
    let qp = pd.queue_pair(&cq, &cq).create()?;

    // Memory open to WRITEs by the peer, through a queue pair that lets WRITEs in.
    let memory = pd.allocate(BYTES, Access::REMOTE_WRITE)?;
    let options = ConnectOptions { access: Access::REMOTE_WRITE, ..ConnectOptions::default() };

    // Each program sends its QP address and the address, length and key of its memory.
    let RemoteMemory { va, length, rkey } = memory.remote();
    let theirs = peer.exchange(format!("{} {va} {length} {rkey}", qp.address(gid.index)?))?;
    let (address, remote) = parse(&theirs).with_context(|| format!("the peer sent '{theirs}'"))?;
    qp.connect(&address, &options)?;
    // A WRITE to a queue pair that is not connected yet would be lost and repeated.
    peer.exchange("connected")?;

    if peer.waited {
        ensure!(remote.length as usize >= BYTES, "the peer exposes only {} bytes", remote.length);
        memory.write_at(0, &pattern());
        let data = [memory.sge(..)];
        qp.post_send(&SendRequest::write(&data, remote).id(1).signaled())?;
        let mut done = [Completion::EMPTY];
        ensure!(cq.wait(&mut done, TIMEOUT)? == 1, "the WRITE is not done after {TIMEOUT:?}");
        // Success means that the peer's memory has all of it.
        let done = done[0].ok()?;
        println!("wrote {BYTES} bytes to {address}: {:?} {}", done.op, done.wr_id);
        peer.say("written")?;
        println!("the peer says: {}", peer.hear()?);
    } else {
        peer.hear()?;
        let arrived = memory.to_vec(0, BYTES);
        if let Some(at) = std::iter::zip(&arrived, pattern()).position(|(is, wanted)| *is != wanted) {
            bail!("byte {at} is 0x{:02x}, which is not as written", arrived[at]);
        }
        println!("verified {BYTES} bytes written by {address}");
        peer.say("verified")?;
    }
    Ok(())
}

/// Parses `ENDPOINT VA LENGTH RKEY`.
fn parse(line: &str) -> Result<(QpAddress, RemoteMemory)> {
    let words: Vec<_> = line.split(' ').collect();
    let [address, va, length, rkey] = words[..] else { bail!("QP address, address, length and key are expected") };
    let remote = RemoteMemory { va: va.parse()?, length: length.parse()?, rkey: rkey.parse()? };
    Ok((address.parse()?, remote))
}

/// Bytes that both programs know, different in each packet.
fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251) as u8).collect()
}
