//! One end of a connection, and how two programs on two hosts meet: each prints a line that the other reads. Who carries the
//! lines is the test that started both.
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
    Access, Completion, CompletionQueue, ConnectOptions, Device, Endpoint, Gid, GidEntry, MemoryRegion,
    ProtectionDomain, QueuePair, RemoteMemory, ServiceType,
};

/// Longer than any run with losses takes, so that a test fails with a reason and not by its own time limit.
const PATIENCE: Duration = Duration::from_secs(110);

/// A queue pair and what belongs to it.
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
    pub(crate) fn toward(peer: Gid) -> Result<Self> {
        Self::make(peer, ServiceType::Rc)
    }

    fn make(peer: Gid, service: ServiceType) -> Result<Self> {
        let name = Device::list()?.into_iter().next().context("the daemon has no device")?;
        let device = Device::open(&name)?;
        let gid = device.gid_toward(peer)?;
        let pd = device.protection_domain()?;
        let cq = device.completion_queue(256)?;
        let qp = pd.queue_pair(&cq, &cq).service(service).create()?;
        qp.to_init(Access::ALL)?;
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

    /// What the peer must know of us.
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        Ok(self.qp.endpoint(self.gid.index)?)
    }

    /// Tells the peer of us and of `exposed`, hears of it, connects, and goes on when the peer has connected too: what is sent
    /// before would find a queue pair on its way to RTS. Receives are posted before.
    pub(crate) fn meet(&self, exposed: Option<&MemoryRegion>, options: &ConnectOptions) -> Result<RemoteMemory> {
        let memory = exposed.map(MemoryRegion::remote).unwrap_or_default();
        say(&format!("here {} {} {} {}", self.endpoint()?, memory.va, memory.length, memory.rkey))?;
        let line = hear()?;
        let (endpoint, memory) = read_here(&line).with_context(|| format!("the peer said '{line}'"))?;
        self.qp.connect(&endpoint, options)?;
        say("connected")?;
        ensure!(hear()? == "both connected", "the test says something else");
        Ok(memory)
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> Result<Completion> {
        let mut one = [Completion::EMPTY];
        let count = self.cq.wait(&mut one, PATIENCE)?;
        ensure!(count == 1, "no completion within {} s", PATIENCE.as_secs());
        Ok(one[0])
    }
}

fn read_here(line: &str) -> Result<(Endpoint, RemoteMemory)> {
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
