//! The part of a device that comes and goes with its network interface: XDP program, NIC queues,
//! NAPI threads. Attaching loads a program and may wait for a busy queue, so a thread of its own
//! does it once the daemon serves ([`Attacher`]).

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
    thread,
};

use anyhow::{Context, bail, ensure};
use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};
use roced_transport::wire::largest_path_mtu;
use roced_types::{DeviceId, WorkerId};
use roced_xdp::{NicQueue, ThreadedNapi, XdpMode, XdpProgram, rx_queues};
use tracing::{info, warn};

use crate::{
    config::{self, QueueOwner, Queues},
    net::Net,
};

const ETHERNET_BYTES: usize = 14;
const VLAN_TAG_BYTES: usize = 4;

/// XDP program, queues and NAPI threads of a device. Dropping it detaches.
#[derive(Debug)]
pub(super) struct NicAttachment {
    /// Declared before the program, so that it is dropped first.
    _napi: Option<ThreadedNapi>,
    pub(super) program: XdpProgram,
    pub(super) queues: Vec<ServedQueue>,
    /// The longest IP packet that all queues take, bytes.
    pub(super) packet_bytes_max: u32,
    /// Interfaces that received its frames then: [`LinkProperties::below`].
    pub(super) below: Vec<String>,
}

/// One of a device's queues, which a worker has.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedQueue {
    pub(super) owner: QueueOwner,
    pub(super) zerocopy: bool,
    /// Why, or why not.
    pub(super) reason: &'static str,
}

/// An attachment with its queues, before workers have them.
pub(super) type Attached = (NicAttachment, Vec<NicQueue>);

/// An interface carries RoCE if it carries the smallest path MTU.
pub(super) fn check_mtu(device: &config::DeviceConfig, link_mtu_bytes: u32) -> anyhow::Result<()> {
    ensure!(
        largest_path_mtu(link_mtu_bytes, true).is_some(),
        "the MTU of {}, {link_mtu_bytes} bytes, is too small for RoCE: the smallest path MTU, 256, needs a link MTU of {}",
        device.interface,
        (256..1024).find(|mtu| largest_path_mtu(*mtu, true).is_some()).expect("1024 is plenty for 256")
    );
    Ok(())
}

/// Owners of the queues of a device, checked against those of the interface.
pub(super) fn check_queues(
    device: &config::DeviceConfig,
    link: &LinkProperties,
    workers: u32,
    least: u32,
) -> anyhow::Result<Vec<QueueOwner>> {
    let listed = match &device.queues {
        Queues::Listed(owners) => owners.iter().map(|owner| owner.queue.saturating_add(1)).max().unwrap_or(0),
        Queues::All => 0,
    };
    let there = link
        .rx_queues(&device.interface, least.max(listed))
        .with_context(|| format!("cannot ask {} for its queues", device.interface))?;
    let owners = device.queues.owners(there, workers);
    if let Some(owner) = owners.iter().find(|owner| owner.queue >= there) {
        bail!(
            "{} has no queue {}, only {there} (numbered from 0): `ethtool -l {}` shows them",
            device.interface,
            owner.queue,
            device.interface
        );
    }
    Ok(owners)
}

/// Owners once the program is attached. Some drivers have more queues from then on (virtio-net: one
/// more for each CPU), and receive on all of them.
fn owners_attached(device: &config::DeviceConfig, owners: &[QueueOwner], there: u32) -> Vec<QueueOwner> {
    let mut all = owners.to_vec();
    if device.queues == Queues::All {
        let worker_of = |queue: u32| owners[queue as usize % owners.len()].worker;
        all.extend((owners.len() as u32..there).map(|queue| QueueOwner { queue, worker: worker_of(queue) }));
    }
    if (all.len() as u32) < there {
        warn!(
            device = device.name,
            interface = device.interface,
            queues = there,
            served = all.len(),
            "RoCE frames that arrive on the other queues are the kernel's and lost to roced: list them, or steer with ethtool"
        );
    }
    all
}

/// Properties of an interface that decide how it is attached.
#[derive(Clone, Debug)]
pub(super) struct LinkProperties {
    pub(super) mtu_bytes: u32,
    /// [`Net::has_ports`].
    pub(super) has_ports: bool,
    /// [`Net::below`].
    pub(super) below: Vec<String>,
    /// [`Net::rx_queues_made`].
    rx_queues_made: u32,
}

impl LinkProperties {
    pub(super) fn of(net: &Net, device: DeviceId) -> Self {
        Self {
            mtu_bytes: net.device(device).link_mtu_bytes,
            has_ports: net.has_ports(device),
            below: net.below(device),
            rx_queues_made: net.rx_queues_made(device),
        }
    }

    /// RX queues on which frames arrive at `interface`. Where its driver does not say: a frame keeps
    /// the number of the queue on which a port received it, unless the interface has fewer queues. Of
    /// those that it has, at least `least` are served: its ports may come later.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn rx_queues(&self, interface: &str, least: u32) -> io::Result<u32> {
        if let Some(said) = rx_queues(interface)? {
            return Ok(said);
        }
        // A port may be gone already.
        let of_ports = self.below.iter().filter_map(|port| rx_queues(port).ok().flatten()).max();
        Ok(of_ports.unwrap_or(1).max(least).clamp(1, self.rx_queues_made.max(1)))
    }
}

/// The mode to ask for. The kernel runs a native program of a bond, and of a virtual NIC with a VF,
/// on the ports, and frames of a port do not reach AF_XDP sockets of another interface: they would
/// be lost behind the verdict.
fn xdp_mode(device: &config::DeviceConfig, has_ports: bool) -> anyhow::Result<XdpMode> {
    let interface = &device.interface;
    match device.xdp_mode {
        XdpMode::Native if has_ports => bail!(
            "native XDP of {interface} runs on its ports, whose frames do not reach AF_XDP sockets of {interface}: \
             use xdp_mode = \"auto\", or a device for each port"
        ),
        XdpMode::Auto if has_ports => {
            warn!(device = device.name, interface, "the interface has ports, so generic XDP: slower");
            Ok(XdpMode::Generic)
        }
        mode => Ok(mode),
    }
}

/// Attaches to the interface of a device and binds its queues.
pub(super) fn attach(
    device: &config::DeviceConfig,
    link: &LinkProperties,
    owners: &[QueueOwner],
    workers: &[config::WorkerConfig],
) -> anyhow::Result<Attached> {
    let link_mtu_bytes = link.mtu_bytes;
    let mut program = XdpProgram::attach(&device.interface, xdp_mode(device, link.has_ports)?)?;
    let there = link
        .rx_queues(&device.interface, owners.len() as u32)
        .with_context(|| format!("cannot read the number of queues of {}", device.interface))?;
    let owners = &owners_attached(device, owners, there);
    let mut opened = Vec::new();
    for owner in owners {
        let queue = NicQueue::open(&device.nic_queue(owner.queue, link_mtu_bytes))?;
        program.bind_socket(owner.queue, queue.socket())?;
        opened.push((*owner, queue));
    }
    // Workers send on the first ones, see `Nic::can_transmit`.
    opened.sort_by_key(|(_, queue)| !queue.can_transmit());
    let (owners, queues): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let owners = &owners;
    check_senders(device, owners, &queues)?;
    let napi = match device.napi {
        config::NapiChoice::Driver => None,
        config::NapiChoice::Threaded => Some(ThreadedNapi::start(&device.interface, &cores(owners, workers))?),
    };
    let served = owners
        .iter()
        .zip(&queues)
        .map(|(owner, queue)| ServedQueue { owner: *owner, zerocopy: queue.is_zerocopy(), reason: queue.mode_reason() })
        .collect();
    info!(device = device.name, interface = device.interface, mode = %program.mode(), queues = queues.len(), "serving");
    let packet_bytes_max = packet_bytes_max(&queues);
    let path_mtu = largest_path_mtu(packet_bytes_max.min(link_mtu_bytes), false);
    if path_mtu < largest_path_mtu(link_mtu_bytes, false) {
        warn!(
            device = device.name,
            interface = device.interface,
            path_mtu = path_mtu.unwrap_or(0),
            "the kernel (before Linux 6.6) or the driver takes no frame in several chunks: path MTUs up to this one"
        );
    }
    Ok((NicAttachment { _napi: napi, program, queues: served, packet_bytes_max, below: link.below.clone() }, queues))
}

/// The core of each queue's worker, by queue.
fn cores(owners: &[QueueOwner], workers: &[config::WorkerConfig]) -> Vec<Option<u32>> {
    let queues = owners.iter().map(|owner| owner.queue.saturating_add(1)).max().unwrap_or(0);
    let core = |queue| {
        let owner = owners.iter().find(|owner| owner.queue == queue)?;
        workers.get(owner.worker as usize)?.core
    };
    (0..queues).map(core).collect()
}

/// Each worker needs a queue that sends.
fn check_senders(device: &config::DeviceConfig, owners: &[QueueOwner], queues: &[NicQueue]) -> anyhow::Result<()> {
    let sends = |worker| owners.iter().zip(queues).any(|(owner, queue)| owner.worker == worker && queue.can_transmit());
    let without = owners.iter().find(|owner| !sends(owner.worker));
    ensure!(
        without.is_none(),
        "none of the queues of worker {} on {} has a TX queue: give it another queue (device.queues), or the interface more \
         (`ethtool -L`)",
        without.map_or(0, |owner| owner.worker),
        device.interface
    );
    Ok(())
}

/// The longest IP packet that all queues take, behind an Ethernet header with one VLAN tag.
fn packet_bytes_max(queues: &[NicQueue]) -> u32 {
    let frame_bytes = queues.iter().map(NicQueue::frame_bytes_max).min().unwrap_or(0);
    frame_bytes.saturating_sub(ETHERNET_BYTES + VLAN_TAG_BYTES) as u32
}

/// Owners of the queues of an interface that returned. The workers that have an endpoint of the
/// device are those of the daemon's start, so each of them needs a queue, and no other gets one.
fn owners_again(owners: Vec<QueueOwner>, workers: &[WorkerId]) -> anyhow::Result<Vec<QueueOwner>> {
    let again = |owner: QueueOwner| match workers.contains(&WorkerId(owner.worker)) {
        true => owner,
        false => QueueOwner { worker: workers[owner.queue as usize % workers.len()].0, ..owner },
    };
    let owners: Vec<_> = owners.into_iter().map(again).collect();
    let without = workers.iter().find(|worker| !owners.iter().any(|owner| owner.worker == worker.0));
    ensure!(
        without.is_none(),
        "the interface has {} queue(s) now, too few for its {} workers: give it more (`ethtool -L`), or restart roced",
        owners.len(),
        workers.len()
    );
    Ok(owners)
}

/// An attempt to attach to the interface of a device.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) device: DeviceId,
    pub(super) config: config::DeviceConfig,
    /// Of the interface.
    pub(super) link: LinkProperties,
    /// The workers that have an endpoint of the device.
    pub(super) endpoints: Vec<WorkerId>,
    /// All workers.
    pub(super) workers: Vec<config::WorkerConfig>,
}

impl Attempt {
    fn make(&self) -> anyhow::Result<Attached> {
        check_mtu(&self.config, self.link.mtu_bytes)?;
        let (workers, endpoints) = (self.workers.len() as u32, self.endpoints.len() as u32);
        let owners = check_queues(&self.config, &self.link, workers, endpoints)?;
        attach(&self.config, &self.link, &owners_again(owners, &self.endpoints)?, &self.workers)
    }
}

/// Makes attempts in threads of their own, and collects the results.
#[derive(Debug)]
pub(super) struct Attacher {
    results: mpsc::Receiver<(DeviceId, anyhow::Result<Attached>)>,
    sender: mpsc::Sender<(DeviceId, anyhow::Result<Attached>)>,
    doorbell: Arc<EventFd>,
}

impl Attacher {
    pub(super) fn new() -> Result<Self, Errno> {
        let (sender, results) = mpsc::channel();
        let doorbell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { results, sender, doorbell: Arc::new(doorbell) })
    }

    /// Begins an attempt; at most one for each device at a time.
    pub(super) fn begin(&self, attempt: Attempt) -> anyhow::Result<()> {
        let (sender, doorbell) = (self.sender.clone(), Arc::clone(&self.doorbell));
        thread::Builder::new()
            .name("roced-attach".into())
            .spawn(move || {
                // Without a receiver the daemon stops: the attachment is undone.
                if sender.send((attempt.device, attempt.make())).is_ok() {
                    let _ = doorbell.write(1);
                }
            })
            .context("no thread to attach the XDP program")?;
        Ok(())
    }

    /// The next result.
    pub(super) fn next(&self) -> Option<(DeviceId, anyhow::Result<Attached>)> {
        // EAGAIN when the doorbell was not rung since.
        let _ = self.doorbell.read();
        self.results.try_recv().ok()
    }
}

impl AsFd for Attacher {
    /// Readable when there is a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(of: &[(u32, u32)]) -> Vec<QueueOwner> {
        of.iter().map(|(queue, worker)| QueueOwner { queue: *queue, worker: *worker }).collect()
    }

    #[test]
    fn an_interface_that_returns_with_more_queues_keeps_its_workers() {
        let dealt = owners(&[(0, 0), (1, 1), (2, 2), (3, 0)]);
        let again = owners_again(dealt, &[WorkerId(0), WorkerId(2)]).expect("both have queues");
        assert_eq!(again, owners(&[(0, 0), (1, 2), (2, 2), (3, 0)]));
    }

    #[test]
    fn queues_that_come_with_the_program_are_served_by_the_same_workers() {
        let all = config::DeviceConfig::new("roce0", "eth0");
        let dealt = owners(&[(0, 0), (1, 2)]);
        assert_eq!(owners_attached(&all, &dealt, 5), owners(&[(0, 0), (1, 2), (2, 0), (3, 2), (4, 0)]));
        assert_eq!(owners_attached(&all, &dealt, 2), dealt);
        let listed = config::DeviceConfig { queues: Queues::Listed(dealt.clone()), ..all };
        assert_eq!(owners_attached(&listed, &dealt, 5), dealt);
    }

    /// The loopback does not say how many queues it has, as a bond.
    #[test]
    fn an_interface_that_returns_before_its_ports_has_queues_for_its_workers() {
        let link = |made| LinkProperties { mtu_bytes: 1500, has_ports: false, below: Vec::new(), rx_queues_made: made };
        let all = config::DeviceConfig::new("roce0", "lo");
        let queues = |device: &config::DeviceConfig, made, least| check_queues(device, &link(made), 4, least);
        assert_eq!(queues(&all, 16, 1).expect("there").len(), 1);
        assert_eq!(queues(&all, 16, 4).expect("there").len(), 4);
        assert_eq!(queues(&all, 2, 4).expect("there").len(), 2);
        let listed = config::DeviceConfig { queues: Queues::Listed(owners(&[(3, 1)])), ..all };
        assert_eq!(queues(&listed, 16, 1).expect("a queue that the interface has"), owners(&[(3, 1)]));
        assert!(queues(&listed, 2, 1).is_err());
    }

    #[test]
    fn an_interface_that_returns_with_too_few_queues_is_refused_with_a_remedy() {
        let error = owners_again(owners(&[(0, 0)]), &[WorkerId(0), WorkerId(1)]).expect_err("worker 1 has none");
        assert!(error.to_string().contains("ethtool -L"), "{error}");
    }
    #[test]
    fn a_program_never_runs_on_the_ports_of_an_interface() {
        let device = |mode| config::DeviceConfig { xdp_mode: mode, ..config::DeviceConfig::new("roce0", "bond0") };
        let mode = |asked, has_ports| xdp_mode(&device(asked), has_ports).map_err(|error| error.to_string());
        assert_eq!(mode(XdpMode::Auto, true), Ok(XdpMode::Generic));
        assert_eq!(mode(XdpMode::Auto, false), Ok(XdpMode::Auto));
        assert_eq!(mode(XdpMode::Native, false), Ok(XdpMode::Native));
        let refused = mode(XdpMode::Native, true).expect_err("its frames would be lost");
        assert!(refused.contains("bond0") && refused.contains("xdp_mode = \"auto\""), "{refused}");
    }
}
