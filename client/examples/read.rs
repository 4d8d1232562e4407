//! RDMA READ of a remote table: one program reads another's memory without its help.
//!
//! The program without an address exposes a table of numbers, with a counter in front that says
//! how often the table changed. The other reads the table, polls the counter until it changes, and
//! reads the table again. Memory address and key come over TCP.
//!
//! ```text
//! cargo build -p roced-client --examples && scripts/lab up
//! scripts/lab exec b -- target/debug/examples/read &
//! scripts/lab exec a -- target/debug/examples/read 10.10.0.2
//! ```

#[path = "support/peer.rs"]
mod peer;

use std::{env, ops::Range, sync::atomic::Ordering, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use peer::Peer;
use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, MemoryRegion, QpAddress, QueuePair, RemoteMemory,
    SendRequest,
};

/// Numbers in the table, each of eight bytes, little-endian on the wire.
const ENTRIES: usize = 512;
const ENTRY_BYTES: usize = 8;
/// Where the table begins: behind the counter.
const TABLE: usize = ENTRY_BYTES;
const BYTES: usize = TABLE + ENTRIES * ENTRY_BYTES;
/// Time between two looks at the counter.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const POLLS_MAX: u32 = 20_000;
/// Time until the table changes.
const CHANGE_DELAY: Duration = Duration::from_millis(200);
/// Time limit for a READ.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let mut peer = Peer::meet(env::args().nth(1))?;
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon serves no device")?)?;
    let gid = device.gid_toward(peer.address.into())?;
    let pd = device.protection_domain()?;
    let cq = device.completion_queue(16)?;
    let qp = pd.queue_pair(&cq, &cq).create()?;
    let endpoint = qp.address(gid.index)?;

    if peer.waited {
        // Memory for the data of READs; the peer needs no right to it.
        let memory = pd.allocate(BYTES, Access::LOCAL_WRITE)?;
        let theirs = peer.exchange(endpoint)?;
        let (endpoint, remote) = parse(&theirs).with_context(|| format!("the peer sent '{theirs}'"))?;
        ensure!(remote.length as usize >= BYTES, "the peer exposes only {} bytes", remote.length);
        qp.connect(&endpoint, &ConnectOptions { access: Access::NONE, ..ConnectOptions::default() })?;
        peer.exchange("connected")?;
        Reader { qp, cq, memory, remote }.watch(&mut peer)
    } else {
        // Memory that the peer may read and not write; the queue pair has the same rights.
        let access = Access::REMOTE_READ;
        let memory = pd.allocate(BYTES, access)?;
        fill(&memory, 0);
        let RemoteMemory { va, length, rkey } = memory.remote();
        let endpoint = peer.exchange(format!("{endpoint} {va} {length} {rkey}"))?.parse()?;
        qp.connect(&endpoint, &ConnectOptions { access, ..ConnectOptions::default() })?;
        peer.exchange("connected")?;

        println!("the peer {} the table", peer.hear()?);
        thread::sleep(CHANGE_DELAY);
        fill(&memory, 1);
        // The counter changes last: a reader that sees it change finds the new table.
        memory.atomic(0).store(1u64.to_le(), Ordering::Release);
        // The memory stays registered until the peer is done.
        println!("the peer {} the table again", peer.hear()?);
        Ok(())
    }
}

/// The peer's memory, and room for a copy of it.
struct Reader {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    remote: RemoteMemory,
}

impl Reader {
    /// Reads the table before and after the counter changes.
    fn watch(&self, peer: &mut Peer) -> Result<()> {
        self.read(0..BYTES)?;
        self.verify(0)?;
        println!("read {ENTRIES} numbers");
        peer.say("has read")?;

        let mut reads = 0;
        while self.number(0) == 0 {
            ensure!(reads < POLLS_MAX, "the counter did not change after {reads} READs of it");
            thread::sleep(POLL_INTERVAL);
            self.read(0..ENTRY_BYTES)?;
            reads += 1;
        }
        println!("the counter is {} after {reads} READs of it", self.number(0));
        self.read(TABLE..BYTES)?;
        self.verify(1)?;
        println!("read the changed {ENTRIES} numbers");
        peer.say("has read")
    }

    /// Copies a range of the peer's memory to the same place in ours.
    fn read(&self, range: Range<usize>) -> Result<()> {
        let into = [self.memory.sge(range.clone())];
        self.qp.post_send(&SendRequest::read(&into, self.remote.at(range.start as u64)).signaled())?;
        let mut done = [Completion::EMPTY];
        ensure!(self.cq.wait(&mut done, TIMEOUT)? == 1, "the READ is not done after {TIMEOUT:?}");
        done[0].ok()?;
        Ok(())
    }

    fn number(&self, offset: usize) -> u64 {
        let bytes = self.memory.to_vec(offset, ENTRY_BYTES);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn verify(&self, changes: u64) -> Result<()> {
        for index in 0..ENTRIES {
            let (is, wanted) = (self.number(TABLE + index * ENTRY_BYTES), entry(index, changes));
            ensure!(is == wanted, "number {index} of the table is {is}, not {wanted}");
        }
        Ok(())
    }
}

/// Writes the whole table, as it is after so many changes.
fn fill(memory: &MemoryRegion, changes: u64) {
    for index in 0..ENTRIES {
        memory.write_at(TABLE + index * ENTRY_BYTES, &entry(index, changes).to_le_bytes());
    }
}

fn entry(index: usize, changes: u64) -> u64 {
    index as u64 * 1_000_003 + changes
}

/// Parses `ENDPOINT VA LENGTH RKEY`.
fn parse(line: &str) -> Result<(QpAddress, RemoteMemory)> {
    let words: Vec<_> = line.split(' ').collect();
    let [endpoint, va, length, rkey] = words[..] else { bail!("endpoint, address, length and key are expected") };
    let remote = RemoteMemory { va: va.parse()?, length: length.parse()?, rkey: rkey.parse()? };
    Ok((endpoint.parse()?, remote))
}
