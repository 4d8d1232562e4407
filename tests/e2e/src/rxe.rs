//! Against Linux's rdma_rxe: `rxe-peer.c` of `tests/interop` on a host that has it. Each connection
//! to it is a queue pair, driven by lines of text; everything that one side sends the other
//! compares.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{
    Access, ConnectOptions, Gid, MemoryRegion, QpAddress, RecvRequest, RemoteMemory, SendRequest, ServiceType, Status,
};

use crate::end::{End, say};

/// Under an emulator with frames lost an answer can take a while.
const TIMEOUT: Duration = Duration::from_secs(60);

const BYTES_MAX: usize = 1 << 20;

/// Around the sizes that matter: nothing, padding, one packet and one more byte for each path MTU,
/// many packets.
const SIZES: [usize; 14] = [0, 1, 2, 3, 4, 255, 256, 257, 1024, 1025, 4096, 4097, 10_000, 100_003];

/// Receives that we keep posted.
const RECEIVES: usize = 4;

/// Byte `at` of message `seed`, as `rxe-peer.c` has it.
fn pattern(seed: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (seed * 29 + at * 7 + (at >> 8) * 3 + 1) as u8).collect()
}

/// All operations in both directions, by IPv4 and IPv6, at three path MTUs.
pub(crate) fn run(address: IpAddr, port: u16, with_wrong_keys: bool) -> Result<()> {
    let v6: IpAddr = Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 3).into();
    for gid in [Gid::from(address), Gid::from(v6)] {
        for path_mtu_bytes in [256, 1024, 4096] {
            let title = format!("{gid}, path MTU {path_mtu_bytes}");
            let mut pair =
                Pair::connect(SocketAddr::new(address, port), gid, path_mtu_bytes).with_context(|| title.clone())?;
            for (seed, size) in SIZES.into_iter().enumerate() {
                pair.all_operations(size, seed + 1).with_context(|| format!("{title}, {size} bytes"))?;
            }
            say(&format!("  {title}: SEND, WRITE, READ in both directions, {} sizes", SIZES.len()))?;
        }
        if with_wrong_keys {
            wrong_keys(SocketAddr::new(address, port), gid)?;
            say(&format!("  {gid}: wrong keys are refused, in both directions"))?;
        }
    }
    Ok(())
}

/// A queue pair here and one there.
struct Pair {
    end: End,
    local: MemoryRegion,
    exposed: MemoryRegion,
    theirs: RemoteMemory,
    peer: BufReader<TcpStream>,
}

impl Pair {
    fn connect(address: SocketAddr, gid: Gid, path_mtu_bytes: u32) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("rxe-peer at {address}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        // Each line waits for its answer.
        stream.set_nodelay(true)?;
        let end = End::toward(gid, ServiceType::Rc)?;
        let local = end.pd.allocate(BYTES_MAX, Access::LOCAL_WRITE)?;
        let exposed = end.pd.allocate(BYTES_MAX, Access::ALL)?;
        let mut pair = Self { end, local, exposed, theirs: RemoteMemory::default(), peer: BufReader::new(stream) };
        for _ in 0..RECEIVES {
            pair.post_receive()?;
        }
        let (us, memory) = (pair.end.address()?, pair.exposed.remote());
        let ours = Ipv6Addr::from(us.gid.0);
        let answer =
            pair.ask(&format!("connect {ours} {} {} {path_mtu_bytes} {} {}", us.qpn, us.psn, memory.va, memory.rkey))?;
        let words: Vec<_> = answer.split(' ').collect();
        let [gid, qpn, psn, _, va, rkey] = words[..] else { anyhow::bail!("it answers '{answer}'") };
        pair.theirs = RemoteMemory { va: va.parse()?, length: BYTES_MAX as u64, rkey: rkey.parse()? };
        let them = QpAddress { gid: gid.parse()?, qpn: qpn.parse()?, psn: psn.parse()?, mtu_bytes: path_mtu_bytes };
        // A guest in an emulator is slow: 537 ms until a packet counts as lost.
        let options = ConnectOptions { path_mtu_bytes: Some(path_mtu_bytes), timeout: 17, ..ConnectOptions::default() };
        pair.end.qp.connect(&them, &options)?;
        Ok(pair)
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.peer.get_mut(), "{line}")?;
        let mut answer = String::new();
        self.peer.read_line(&mut answer).with_context(|| format!("no answer to '{line}'"))?;
        ensure!(!answer.starts_with("failed") && !answer.is_empty(), "'{line}': {}", answer.trim());
        Ok(answer.trim().to_owned())
    }

    fn order(&mut self, line: &str) -> Result<()> {
        let answer = self.ask(line)?;
        ensure!(answer == "ok", "'{line}': {answer}");
        Ok(())
    }

    fn post_receive(&self) -> Result<()> {
        Ok(self.end.qp.post_recv(&RecvRequest::new(&[self.exposed.sge(..)]))?)
    }

    /// Posts a request of ours and sees it through.
    fn request(&self, request: SendRequest<'_>) -> Result<()> {
        self.end.qp.post_send(&request.signaled())?;
        self.end.completion()?.ok()?;
        Ok(())
    }

    /// A receive of ours that has completed.
    fn received(&self, size: usize, seed: usize, imm: Option<[u8; 4]>) -> Result<()> {
        let completion = self.end.completion()?.ok()?;
        ensure!(completion.byte_len as usize == size, "{} bytes were received", completion.byte_len);
        ensure!(completion.imm == imm, "immediate data is {:?}, not {imm:?}", completion.imm);
        ensure!(self.exposed.to_vec(0, size) == pattern(seed, size), "other bytes were received");
        self.post_receive()
    }

    fn all_operations(&mut self, size: usize, seed: usize) -> Result<()> {
        let imm = (0xa000_0000 + size as u32).to_be_bytes();
        let number = u32::from_be_bytes(imm);
        self.ours(size, seed, imm, number).context("our requests")?;
        self.theirs(size, seed, imm, number).context("requests of rdma_rxe")
    }

    fn ours(&mut self, size: usize, seed: usize, imm: [u8; 4], number: u32) -> Result<()> {
        self.local.write_at(0, &pattern(seed, size));
        let data = [self.local.sge(..size)];
        self.request(SendRequest::send(&data)).context("SEND")?;
        self.order(&format!("receive {size} {seed}"))?;
        self.request(SendRequest::send(&data).imm(imm)).context("SEND with immediate")?;
        self.order(&format!("receive {size} {seed} {number}"))?;
        self.order(&format!("fill {size} {}", seed + 50))?;
        self.request(SendRequest::write(&data, self.theirs)).context("WRITE")?;
        self.order(&format!("check {size} {seed}"))?;
        self.request(SendRequest::write(&data, self.theirs).imm(imm)).context("WRITE with immediate")?;
        self.order(&format!("notice {size} {number}"))?;
        self.order(&format!("fill {size} {}", seed + 100))?;
        self.request(SendRequest::read(&data, self.theirs)).context("READ")?;
        ensure!(self.local.to_vec(0, size) == pattern(seed + 100, size), "READ brought other bytes");
        Ok(())
    }

    fn theirs(&mut self, size: usize, seed: usize, imm: [u8; 4], number: u32) -> Result<()> {
        self.order(&format!("send {size} {seed}"))?;
        self.received(size, seed, None).context("SEND")?;
        self.order(&format!("send {size} {seed} {number}"))?;
        self.received(size, seed, Some(imm)).context("SEND with immediate")?;
        self.exposed.fill(0, size, 0);
        self.order(&format!("write {size} {seed}"))?;
        ensure!(self.exposed.to_vec(0, size) == pattern(seed, size), "WRITE brought other bytes");
        self.order(&format!("write {size} {seed} {number}"))?;
        self.received(size, seed, Some(imm)).context("WRITE with immediate")?;
        self.exposed.write_at(0, &pattern(seed + 100, size));
        self.order(&format!("read {size} {}", seed + 100))
    }
}

/// A key that opens nothing ends the queue pair of its user, with a remote access error.
fn wrong_keys(address: SocketAddr, gid: Gid) -> Result<()> {
    for bad in ["badwrite", "badread"] {
        Pair::connect(address, gid, 1024)?.order(bad).with_context(|| format!("{bad} of rdma_rxe"))?;
    }
    for read in [false, true] {
        let pair = Pair::connect(address, gid, 1024)?;
        let theirs = RemoteMemory { rkey: pair.theirs.rkey ^ 0x100, ..pair.theirs };
        let data = [pair.local.sge(..64)];
        let request = if read { SendRequest::read(&data, theirs) } else { SendRequest::write(&data, theirs) };
        pair.end.qp.post_send(&request.signaled())?;
        let status = pair.end.completion()?.status;
        ensure!(status == Status::RemoteAccess, "a wrong key of ours ends in {status:?}");
    }
    Ok(())
}
