//! A run's RDMA objects: one device, one memory region, one completion queue, some queue pairs.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, bail};
use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, Connection, ConnectionOptions, Device, Listener,
    MemoryRegion, QpAddress, QueuePair, RecvRequest, RemoteMemory, RoceVersion, Route,
};

use crate::{
    cli::PathOptions,
    control::{self, QpInfo, Run},
    gid::{self, GidChoice},
    size,
    statistics::Statistics,
};

/// How long a loop waits for completions before it looks after everything else.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// How long the connection manager may take to connect a queue pair.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Completions taken at a time.
const REAPED_MAX: usize = 64;

/// Most completions that a queue of roced holds.
const COMPLETIONS_MAX: u64 = 1 << 20;

/// An opened device.
#[derive(Debug)]
pub(crate) struct Opened {
    device: Device,
    /// Its name.
    pub(crate) name: String,
    /// Largest path MTU that its link carries, bytes.
    pub(crate) mtu: u32,
    gids: Vec<GidChoice>,
}

impl Opened {
    /// Opens the device `name`, or the first one of the daemon.
    pub(crate) fn new(name: Option<&str>) -> anyhow::Result<Self> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => Device::list()?.into_iter().next().context("this roced has no device")?,
        };
        let device = Device::open(&name).with_context(|| format!("opening the device {name}"))?;
        let port = device.port()?;
        if !port.active {
            bail!("the link of {name} is down");
        }
        if port.active_mtu_bytes == 0 {
            bail!("the link of {name} carries not even 256 bytes of payload: raise the MTU of its interface");
        }
        let gids = device
            .gids()?
            .iter()
            .map(|entry| GidChoice {
                index: entry.index,
                address: entry.gid.address(),
                rocev1: entry.roce == RoceVersion::V1,
            })
            .collect();
        Ok(Self { device, name, mtu: port.active_mtu_bytes, gids })
    }

    /// The GID that the user named, or the one that [`gid::choose`] finds.
    pub(crate) fn gid(
        &self,
        asked: Option<u32>,
        rocev1: bool,
        local: IpAddr,
        remote: IpAddr,
    ) -> anyhow::Result<GidChoice> {
        let name = &self.name;
        if let Some(index) = asked {
            let found = self.gids.iter().find(|gid| gid.index == index).copied();
            return found.with_context(|| format!("{name} has no GID {index}: `rocectl status` lists them"));
        }
        let family = if remote.is_ipv4() { "IPv4" } else { "IPv6" };
        let version = if rocev1 { " and RoCEv1 (`roce` in its config names its versions)" } else { "" };
        gid::choose(&self.gids, rocev1, local, remote)
            .with_context(|| format!("{name} has no GID of {family}{version} from which {remote} could be reached"))
    }

    /// Refuses a path MTU that the link does not carry.
    pub(crate) fn check_mtu(&self, asked: u32) -> anyhow::Result<()> {
        if asked > self.mtu {
            bail!("path MTU {asked} is more than the {} that the link of {} carries", self.mtu, self.name);
        }
        Ok(())
    }
}

/// Resources of one side of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Queue pairs.
    pub(crate) qps: u32,
    /// Sends under way on each.
    pub(crate) sends: u32,
    /// Receives posted on each.
    pub(crate) receives: u32,
    /// Bytes of memory, all queue pairs together.
    pub(crate) memory_bytes: u64,
    /// Permitted access.
    pub(crate) access: Access,
}

impl Needs {
    /// Completions that may wait to be taken.
    fn completions(&self) -> anyhow::Result<u32> {
        // Queues are made with powers of two, and a completion that finds no room ends its queue
        // pair.
        let per_qp = u64::from(self.sends.next_power_of_two()) + u64::from(self.receives.next_power_of_two());
        let all = per_qp * u64::from(self.qps);
        if all > COMPLETIONS_MAX {
            bail!(
                "{} queue pairs with {} messages under way each are too many for one completion queue \
                 ({COMPLETIONS_MAX} entries): lower --qps or --depth",
                self.qps,
                self.sends.max(self.receives)
            );
        }
        Ok(all as u32)
    }
}

/// Private data of a request for the connection of a queue pair: of which run, and which of its
/// queue pairs.
struct RunTag {
    seed: u64,
    qp: u32,
}

impl RunTag {
    fn to_bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.seed.to_be_bytes());
        bytes[8..].copy_from_slice(&self.qp.to_be_bytes());
        bytes
    }
}

fn connection_options<'a>(run: &Run, private_data: &'a [u8]) -> ConnectionOptions<'a> {
    let retry_count = run.path.retry as u8;
    ConnectionOptions { retry_count, timeout: CONNECT_TIMEOUT, private_data, ..ConnectionOptions::default() }
}

/// An event of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEvent {
    /// The oldest send of a queue pair that was not complete is.
    Sent {
        /// Which queue pair of the run.
        qp: usize,
    },
    /// A message arrived.
    Received {
        /// Which queue pair of the run.
        qp: usize,
        /// Of the receive, as it was posted.
        id: u64,
        /// Bytes.
        bytes: u32,
        /// Its immediate.
        imm: Option<u32>,
    },
}

/// The objects of one side of a run.
#[derive(Debug)]
pub(crate) struct RunSession {
    device: Device,
    device_name: String,
    /// The queue pairs.
    pub(crate) qps: Vec<QueuePair>,
    /// The memory.
    pub(crate) memory: MemoryRegion,
    gid: GidChoice,
    cq: CompletionQueue,
    numbers: HashMap<u32, usize>,
    reaped: Vec<Completion>,
}

impl RunSession {
    /// Creates the resources named by `needs`. Afterward receives may be posted.
    pub(crate) fn new(opened: &Opened, gid: GidChoice, needs: &Needs) -> anyhow::Result<Self> {
        let pd = opened.device.protection_domain()?;
        let bytes = usize::try_from(needs.memory_bytes)?;
        let memory = pd
            .allocate(bytes, needs.access)
            .with_context(|| format!("making {} of memory for the messages", size::about(needs.memory_bytes)))?;
        let cq = opened.device.completion_queue(needs.completions()?)?;
        let qps = (0..needs.qps)
            .map(|_| {
                let builder = pd.queue_pair(&cq, &cq).send_sges(1).recv_sges(1).inline_bytes(0);
                let qp = builder.send_wrs(needs.sends).recv_wrs(needs.receives).create()?;
                // Access that the peer may have to the memory.
                qp.to_init(Access::ALL)?;
                Ok(qp)
            })
            .collect::<roced_client::Result<Vec<QueuePair>>>()
            .with_context(|| format!("making {} queue pairs", needs.qps))?;
        let numbers = qps.iter().enumerate().map(|(index, qp)| (qp.qpn(), index)).collect();
        let (device, device_name) = (opened.device.clone(), opened.name.clone());
        let reaped = vec![Completion::EMPTY; REAPED_MAX];
        Ok(Self { device, device_name, qps, memory, gid, cq, numbers, reaped })
    }

    /// Description of each queue pair for the peer. `offers` selects the part of the memory that
    /// the peer of a queue pair may access.
    pub(crate) fn addresses(&self, offers: impl Fn(usize) -> Option<(u64, u64)>) -> roced_client::Result<Vec<QpInfo>> {
        let address = |(index, qp): (usize, &QueuePair)| {
            let QpAddress { qpn, psn, .. } = qp.address(self.gid.index)?;
            let memory = offers(index).map(|(offset, bytes)| {
                let RemoteMemory { va, rkey, .. } = self.memory.remote().at(offset);
                control::RemoteMemoryInfo { va, rkey, bytes }
            });
            Ok(QpInfo { qpn, psn, memory })
        };
        self.qps.iter().enumerate().map(address).collect()
    }

    /// Connects every queue pair to `peer`, the server's listener for this run, by the connection
    /// manager. The connections end with their values.
    pub(crate) fn connect_to(&self, peer: SocketAddr, run: &Run) -> anyhow::Result<Vec<Connection>> {
        let connect = |(index, qp): (usize, &QueuePair)| {
            let tag = RunTag { seed: run.seed, qp: index as u32 }.to_bytes();
            let options = connection_options(run, &tag);
            let route = Route::to(peer, CONNECT_TIMEOUT)?;
            route.connect(qp, &options).with_context(|| format!("connecting queue pair {index} to {peer}"))
        };
        self.qps.iter().enumerate().map(connect).collect()
    }

    /// Accepts a connection for every queue pair: those of others than `peer`, or of another run,
    /// are refused.
    pub(crate) fn accept(&self, listener: &Listener, peer: IpAddr, run: &Run) -> anyhow::Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(self.qps.len());
        while connections.len() < self.qps.len() {
            let request = listener.next(CONNECT_TIMEOUT)?.context("the client does not connect its queue pairs")?;
            let tag = RunTag { seed: run.seed, qp: connections.len() as u32 };
            if request.peer()?.ip().to_canonical() != peer || !request.private_data().starts_with(&tag.to_bytes()) {
                request.reject(&[])?;
                continue;
            }
            let qp = &self.qps[connections.len()];
            connections.push(request.accept(qp, &connection_options(run, &[])).context("accepting a queue pair")?);
        }
        Ok(connections)
    }

    /// Path MTU of the connected queue pairs, bytes.
    pub(crate) fn mtu(&self) -> anyhow::Result<u32> {
        Ok(self.qps.first().context("a run has a queue pair")?.query()?.path_mtu_bytes)
    }

    /// Connects every queue pair to its peer, by their numbers.
    pub(crate) fn connect(
        &self,
        peers: &[QpInfo],
        peer_gid: IpAddr,
        mtu: u32,
        path: &PathOptions,
    ) -> anyhow::Result<()> {
        let options = ConnectOptions {
            sgid_index: Some(self.gid.index),
            path_mtu_bytes: Some(mtu),
            access: Access::ALL,
            timeout: path.timeout,
            retry_cnt: path.retry,
            hop_limit: u8::try_from(path.hop_limit)?,
            traffic_class: u8::try_from(path.traffic_class)?,
            flow_label: path.flow_label,
            service_level: u8::try_from(path.service_level)?,
            ..ConnectOptions::default()
        };
        for (qp, peer) in self.qps.iter().zip(peers) {
            let remote = QpAddress { gid: peer_gid.into(), qpn: peer.qpn, psn: peer.psn, mtu_bytes: mtu };
            qp.connect(&remote, &options).with_context(|| format!("connecting to {peer_gid}"))?;
        }
        Ok(())
    }

    /// Posts receives without buffers: for credits and notices, which bring four bytes of immediate
    /// and no data.
    pub(crate) fn post_empty_receives(&self, each: u32) -> roced_client::Result<()> {
        self.qps.iter().try_for_each(|qp| (0..each).try_for_each(|_| qp.post_recv(&RecvRequest::new(&[]))))
    }

    /// Returns the next event; waits for it for at most a [`TICK`].
    ///
    /// # Errors
    /// When work failed, or the daemon is gone.
    pub(crate) fn reap(&mut self, events: &mut Vec<SessionEvent>) -> anyhow::Result<()> {
        let taken = self.cq.wait(&mut self.reaped, TICK)?;
        self.translate(taken, events)
    }

    /// As [`Self::reap`], without waiting.
    pub(crate) fn reap_now(&mut self, events: &mut Vec<SessionEvent>) -> anyhow::Result<()> {
        let taken = self.cq.poll(&mut self.reaped)?;
        self.translate(taken, events)
    }

    /// Where work failed, and whether that was the device.
    fn failure(&self, qp: usize, status: roced_client::Status) -> String {
        let link_is_down = self.device.port().is_ok_and(|port| !port.active);
        let link = if link_is_down {
            format!("; the link of {} is down: `rocectl status` says more", self.device_name)
        } else {
            String::new()
        };
        format!("queue pair {qp} of the run: {status:?}{link}")
    }

    fn translate(&self, taken: usize, events: &mut Vec<SessionEvent>) -> anyhow::Result<()> {
        events.clear();
        for completion in &self.reaped[..taken] {
            let qp = *self.numbers.get(&completion.qpn).context("a completion of a queue pair that is not ours")?;
            // The status by its verbs name; the error itself describes it.
            completion.ok().with_context(|| self.failure(qp, completion.status))?;
            events.push(match completion.op {
                CompletionOp::Recv | CompletionOp::RecvWriteImm => SessionEvent::Received {
                    qp,
                    id: completion.wr_id,
                    bytes: completion.byte_len,
                    imm: completion.imm.map(u32::from_be_bytes),
                },
                // Everything else is a send of its own kind.
                _ => SessionEvent::Sent { qp },
            });
        }
        Ok(())
    }

    /// Statistics of the queue pairs.
    pub(crate) fn statistics(&self) -> roced_client::Result<Statistics> {
        let mut sum = Statistics::default();
        for qp in &self.qps {
            sum.add(&qp.statistics()?);
        }
        Ok(sum)
    }
}
