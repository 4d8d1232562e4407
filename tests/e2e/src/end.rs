//! One end of a connection or of datagrams, and how two programs on two hosts meet: each prints a
//! line that the other reads. The test that started both carries the lines.
//!
//! ```text
//!   here 10.10.0.1/0x040005/123456/4096 140000000 1048576 77     endpoint, then address, length and key of exposed memory
//! ```

use std::{
    io::{self, BufRead as _, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionQueue, ConnectOptions, Device, Gid, GidEntry,
    MemoryRegion, ProtectionDomain, QpAddress, QueuePair, RemoteMemory, SendRequest, ServiceType, SharedReceiveQueue,
};

/// Longer than any run with losses takes, so that a test fails with a reason and not by its own
/// time limit.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(110);

/// The key that lets datagrams in.
const QKEY: u32 = 0x1111_1111;

/// A queue pair and its resources.
pub(crate) struct End {
    gid: GidEntry,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

impl End {
    /// On the first device, toward the lab's other host.
    pub(crate) fn open() -> Result<Self> {
        Self::of(ServiceType::Rc)
    }

    /// As [`Self::open`], of another service.
    pub(crate) fn of(service: ServiceType) -> Result<Self> {
        Self::make(std::env::var("LAB_PEER_IPV4").context("run by scripts/lab exec")?.parse()?, service)
    }

    /// On the first device, with its address in the network of `peer`.
    pub(crate) fn toward(peer: Gid, service: ServiceType) -> Result<Self> {
        Self::make(peer, service)
    }

    fn make(peer: Gid, service: ServiceType) -> Result<Self> {
        let name = Device::list()?.into_iter().next().context("the daemon has no device")?;
        let device = Device::open(&name)?;
        let gid = device.gid_toward(peer)?;
        let pd = device.protection_domain()?;
        let cq = device.completion_queue(256)?;
        let qp = pd.queue_pair(&cq, &cq).service(service).create()?;
        prepare(&qp, service)?;
        Ok(Self { gid, pd, cq, qp })
    }

    /// A queue pair more in the same protection domain, with a completion queue of its own.
    pub(crate) fn another(&self) -> Result<Self> {
        let (gid, pd) = (self.gid, self.pd.clone());
        let cq = pd.device().completion_queue(256)?;
        let qp = pd.queue_pair(&cq, &cq).create()?;
        qp.to_init(Access::ALL)?;
        Ok(Self { gid, pd, cq, qp })
    }

    /// A queue pair more in the same protection domain and on the same completion queue, which
    /// takes its receives from `srq`.
    pub(crate) fn sharing(&self, srq: &SharedReceiveQueue, service: ServiceType) -> Result<Self> {
        let (gid, pd, cq) = (self.gid, self.pd.clone(), self.cq.clone());
        let qp = pd.queue_pair(&cq, &cq).service(service).shared_receives(srq).create()?;
        prepare(&qp, service)?;
        Ok(Self { gid, pd, cq, qp })
    }

    /// A queue pair more for datagrams, with the same completion queue.
    pub(crate) fn another_for_datagrams(&self) -> Result<QueuePair> {
        let qp = self.pd.queue_pair(&self.cq, &self.cq).service(ServiceType::Ud).create()?;
        qp.activate(QKEY)?;
        Ok(qp)
    }

    /// The address that the peer must know of us.
    pub(crate) fn address(&self) -> Result<QpAddress> {
        Ok(self.qp.address(self.gid.index)?)
    }

    /// Tells the peer of us and of `exposed`, hears of it, connects, and goes on when the peer has
    /// connected as well: a packet that is sent before would find a queue pair on its way to RTS.
    /// Receives are posted before.
    pub(crate) fn meet(&self, exposed: Option<&MemoryRegion>, options: &ConnectOptions) -> Result<RemoteMemory> {
        let (peer, memory) = self.introduce(exposed)?;
        self.qp.connect(&peer, options)?;
        wait_for_peer()?;
        Ok(memory)
    }

    /// As [`Self::meet`], of datagrams.
    pub(crate) fn meet_for_datagrams(&self) -> Result<Address> {
        let (peer, _) = self.introduce(None)?;
        let address = Address { handle: self.address_handle(peer.gid)?, gid: peer.gid, qpn: peer.qpn };
        // A worker that answers has taken the receives that were posted before.
        self.qp.query()?;
        wait_for_peer()?;
        Ok(address)
    }

    /// To where datagrams go.
    pub(crate) fn address_handle(&self, gid: Gid) -> Result<AddressHandle> {
        Ok(self.pd.address_handle(&AddressOptions::new(gid))?)
    }

    fn introduce(&self, exposed: Option<&MemoryRegion>) -> Result<(QpAddress, RemoteMemory)> {
        let memory = exposed.map(MemoryRegion::remote).unwrap_or_default();
        say(&format!("here {} {} {} {}", self.address()?, memory.va, memory.length, memory.rkey))?;
        let line = hear()?;
        read_here(&line).with_context(|| format!("the peer said '{line}'"))
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> Result<Completion> {
        let mut one = [Completion::EMPTY];
        let count = self.cq.wait(&mut one, TIMEOUT)?;
        ensure!(count == 1, "no completion within {} s", TIMEOUT.as_secs());
        Ok(one[0])
    }
}

/// Lets it take receives, and datagrams.
fn prepare(qp: &QueuePair, service: ServiceType) -> Result<()> {
    match service {
        ServiceType::Ud => qp.activate(QKEY)?,
        ServiceType::Rc | ServiceType::Uc => qp.to_init(Access::ALL)?,
    }
    Ok(())
}

/// Where datagrams for a peer go.
pub(crate) struct Address {
    pub(crate) handle: AddressHandle,
    pub(crate) gid: Gid,
    pub(crate) qpn: u32,
}

impl Address {
    /// A request that goes there.
    pub(crate) fn of<'a>(&self, request: SendRequest<'a>) -> SendRequest<'a> {
        to(&self.handle, self.qpn, request)
    }
}

/// A request that goes to a queue pair that [`End::of`] made.
pub(crate) fn to<'a>(handle: &AddressHandle, qpn: u32, request: SendRequest<'a>) -> SendRequest<'a> {
    request.to(handle, qpn, QKEY)
}

fn wait_for_peer() -> Result<()> {
    say("connected")?;
    ensure!(hear()? == "both connected", "the test says something else");
    Ok(())
}

fn read_here(line: &str) -> Result<(QpAddress, RemoteMemory)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let ["here", endpoint, va, length, rkey] = words[..] else { bail!("that is not where it is") };
    let memory = RemoteMemory { va: va.parse()?, length: length.parse()?, rkey: rkey.parse()? };
    Ok((endpoint.parse()?, memory))
}

/// Prints a line for the test.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The next line from the test.
pub(crate) fn hear() -> Result<String> {
    let mut line = String::new();
    ensure!(io::stdin().lock().read_line(&mut line)? > 0, "the test has gone");
    Ok(line.trim().to_owned())
}
