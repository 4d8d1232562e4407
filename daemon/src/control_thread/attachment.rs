//! The part of a device that comes and goes with its network interface: XDP program, NIC queues,
//! NAPI threads. Attaching loads a program and may wait for a busy queue, so a thread of its own
//! does it once the daemon serves ([`Attacher`](super::attacher::Attacher)).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use roced_transport::wire::largest_path_mtu;
use roced_types::{DeviceId, WorkerId};
use roced_xdp::{
    NicQueue, PauseMap, PausedNeighbor, ThreadedNapi, XdpError, XdpMode, XdpProgram, has_tx_queue, rx_queues,
};
use tracing::{info, warn};

use super::queue_watch::{LinkQueues, QueueWatch};
use crate::{
    config::{self, QueueOwner, Queues},
    dcb::{self, DcbState},
    net::Net,
};

const ETHERNET_BYTES: usize = 14;
const VLAN_TAG_BYTES: usize = 4;

/// The wait for a busy queue after another one has stayed busy for the whole time.
const FURTHER_BUSY_WAIT: Duration = Duration::from_millis(50);

/// XDP program, queues and NAPI threads of a device. Dropping it detaches.
#[derive(Debug)]
pub(super) struct NicAttachment {
    /// Declared before the program, so that it is dropped first.
    _napi: Option<ThreadedNapi>,
    pub(super) program: XdpProgram,
    pub(super) queues: Vec<ServedQueue>,
    /// Pauses by the other end of the link, if they are honored.
    pub(super) pauses: Option<Arc<PauseMap>>,
    pub(super) neighbor: PausedNeighbor,
    /// The longest IP packet that all queues take, bytes.
    pub(super) packet_bytes_max: u32,
    /// Watches for frames on other queues.
    pub(super) queue_watch: QueueWatch,
    /// The NIC beside the config, before the program was attached.
    pub(super) dcb: DcbState,
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

/// Owners of the queues of a device, checked against those of the interface, which has at least
/// `least` if its driver does not say.
pub(super) fn check_queues(
    device: &config::DeviceConfig,
    link: &LinkProperties,
    workers: u32,
    least: u32,
) -> anyhow::Result<Vec<QueueOwner>> {
    let there = queues_there(device, link, least)?;
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

fn queues_there(device: &config::DeviceConfig, link: &LinkProperties, least: u32) -> anyhow::Result<u32> {
    let listed = match &device.queues {
        Queues::Listed(owners) => owners.iter().map(|owner| owner.queue.saturating_add(1)).max().unwrap_or(0),
        Queues::All => 0,
    };
    let there = link.queues.in_use(&device.interface, least.max(listed), rx_queues);
    there.map(|there| there.count).with_context(|| format!("cannot ask {} for its queues", device.interface))
}

/// Workers that get queues of a device when the daemon starts: those that have one which sends. A
/// bridge may have 16 RX queues and one TX queue.
pub(super) fn workers_of(device: &config::DeviceConfig, link: &LinkProperties, workers: u32) -> anyhow::Result<u32> {
    if device.queues != Queues::All {
        return Ok(workers);
    }
    let there = queues_there(device, link, 1)?;
    let senders = (0..there).filter(|queue| has_tx_queue(&device.interface, *queue)).count() as u32;
    if senders < workers.min(there) {
        warn!(
            device = device.name,
            interface = device.interface,
            rx_queues = there,
            tx_queues = senders,
            workers,
            "the interface has fewer TX queues than roced has workers: as many workers serve it; \
             give it more (`ethtool -L`, or `numtxqueues` of `ip link add`) and restart roced"
        );
    }
    Ok(workers_with_a_sender(workers, senders))
}

/// Queues with a TX queue are the first ones and dealt in turn, so that each of these workers has
/// one.
fn workers_with_a_sender(workers: u32, senders: u32) -> u32 {
    workers.min(senders).max(1)
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
        warn_of_lost_frames(device, there, all.len());
    }
    all
}

/// Frames arrive on more queues than are served.
pub(super) fn warn_of_lost_frames(device: &config::DeviceConfig, queues: u32, served: usize) {
    warn!(
        device = device.name,
        interface = device.interface,
        queues,
        served,
        "RoCE frames that arrive on the other queues are the kernel's and lost to roced: list them, or steer with ethtool"
    );
}

/// Properties of an interface that decide how it is attached.
#[derive(Clone, Debug)]
pub(super) struct LinkProperties {
    pub(super) mtu_bytes: u32,
    /// 0 if the interface does not say.
    pub(super) speed_mbit_per_s: u32,
    pub(super) mac: [u8; 6],
    /// [`Net::has_ports`].
    pub(super) has_ports: bool,
    queues: LinkQueues,
}

impl LinkProperties {
    pub(super) fn of(net: &Net, device: DeviceId) -> Self {
        Self {
            mtu_bytes: net.device(device).link_mtu_bytes,
            speed_mbit_per_s: net.device(device).speed_mbit_per_s,
            mac: net.device(device).mac,
            has_ports: net.has_ports(device),
            queues: LinkQueues::of(net, device),
        }
    }

    #[cfg(test)]
    pub(super) fn without_ports(rx_queues_made: u32) -> Self {
        Self {
            mtu_bytes: 1500,
            speed_mbit_per_s: 0,
            mac: [0; 6],
            has_ports: false,
            queues: LinkQueues::without_ports(rx_queues_made),
        }
    }
}

/// The mode to ask for. The kernel runs a native program of a bond, and of a virtual NIC with a VF,
/// on the ports, and frames of a port do not reach AF_XDP sockets of another interface: they would
/// be lost behind the verdict.
fn xdp_mode(device: &config::DeviceConfig, has_ports: bool) -> anyhow::Result<XdpMode> {
    let interface = &device.interface;
    match device.xdp_mode {
        XdpMode::Native if has_ports => bail!(
            "native XDP of {interface} runs on its ports, and frames of these do not reach AF_XDP sockets of {interface}: \
             use xdp_mode = \"auto\", or a device for each port"
        ),
        XdpMode::Auto if has_ports => {
            warn!(device = device.name, interface, "the interface has ports, so generic XDP: slower");
            Ok(XdpMode::Generic)
        }
        mode => Ok(mode),
    }
}

/// Attaches to the interface of a device and binds its queues. If it was served last on
/// `served_before` queues, as many are enough.
pub(super) fn attach(
    device: &config::DeviceConfig,
    link: &LinkProperties,
    owners: &[QueueOwner],
    workers: &[config::WorkerConfig],
    served_before: usize,
) -> anyhow::Result<Attached> {
    let link_mtu_bytes = link.mtu_bytes;
    // Before anything else: drivers may take the link down for it.
    let dcb = dcb::settle(device, link_mtu_bytes);
    let mut program = XdpProgram::attach(&device.interface, xdp_mode(device, link.has_ports)?)?;
    let there = link
        .queues
        .in_use(&device.interface, owners.len() as u32, rx_queues)
        .with_context(|| format!("cannot read the number of queues of {}", device.interface))?;
    let (there, is_deduced) = (there.count, there.is_deduced);
    let owners = &owners_attached(device, owners, there);
    let queue_watch = QueueWatch::new(there.max(owners.len() as u32));
    let enough = enough_queues(device, owners, served_before, is_deduced);
    let OpenedQueues { mut opened, missing, problem } = open_queues(owners, enough, |owner, may_wait| {
        let mut config = device.nic_queue(owner.queue, link_mtu_bytes);
        if !may_wait {
            config.busy_deadline = config.busy_deadline.min(FURTHER_BUSY_WAIT);
        }
        let queue = NicQueue::open(&config)?;
        program.bind_socket(owner.queue, queue.socket())?;
        Ok(queue)
    })?;
    let senders: BTreeSet<_> =
        opened.iter().filter(|(_, queue)| queue.can_transmit()).map(|(owner, _)| owner.worker).collect();
    let checked = check_senders(device, owners, &senders);
    if let Some(problem) = problem {
        let problem = format!("{problem:#}");
        checked.with_context(|| problem.clone())?;
        warn_of_missing_queues(device, &missing, opened.len(), &problem, is_deduced);
    } else {
        checked?;
    }
    // Workers send on the first ones, see `Nic::can_transmit`.
    opened.sort_by_key(|(_, queue)| !queue.can_transmit());
    let (owners, mut queues): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let owners = &owners;
    let neighbor = PausedNeighbor::new(device.pfc.link_mbit_per_s(link.speed_mbit_per_s));
    let pauses = set_pauses(device, link, &neighbor, &mut program, &mut queues)?;
    let napi = match device.napi {
        config::NapiChoice::Driver => None,
        config::NapiChoice::Threaded => Some(ThreadedNapi::start(&device.interface, &cores(owners, workers))?),
    };
    let served = owners
        .iter()
        .zip(&queues)
        .map(|(owner, queue)| ServedQueue { owner: *owner, zerocopy: queue.is_zerocopy(), reason: queue.mode_reason() })
        .collect();
    info!(
        device = device.name,
        interface = device.interface,
        mode = %program.mode(),
        queues = queues.len(),
        ecn = %device.ecn,
        congestion_control = %device.congestion_control,
        pauses = %device.pfc,
        "serving"
    );
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
    Ok((
        NicAttachment { _napi: napi, program, queues: served, packet_bytes_max, pauses, neighbor, queue_watch, dcb },
        queues,
    ))
}

/// Has pauses of the link honored and asked for by its queues, as the config says.
fn set_pauses(
    device: &config::DeviceConfig,
    link: &LinkProperties,
    neighbor: &PausedNeighbor,
    program: &mut XdpProgram,
    queues: &mut [NicQueue],
) -> Result<Option<Arc<PauseMap>>, XdpError> {
    if let Some(generated) = device.pfc.generated(link.mac) {
        queues.iter_mut().for_each(|queue| queue.generate_pauses(generated, neighbor.clone()));
    }
    let honored = device.pfc.honored(link.speed_mbit_per_s);
    let pauses = if honored.is_empty() { return Ok(None) } else { Arc::new(program.honor_pauses(honored)?) };
    queues.iter_mut().for_each(|queue| queue.set_pauses(Arc::clone(&pauses)));
    Ok(Some(pauses))
}

/// The number of `owners` with queues that can be opened for a device to be served. Frames on other
/// queues are lost, so it is that of all, except where fewer have been enough, or the number is
/// that of ports: they have frames on some of these queues at most.
fn enough_queues(
    device: &config::DeviceConfig,
    owners: &[QueueOwner],
    served_before: usize,
    is_deduced: bool,
) -> usize {
    let all = owners.len();
    match device.queues {
        Queues::Listed(_) => all,
        // Each worker sends on one.
        Queues::All if is_deduced => owners.iter().map(|owner| owner.worker).collect::<BTreeSet<_>>().len(),
        Queues::All if served_before > 0 => served_before.min(all),
        Queues::All => all,
    }
}

/// Queues that were opened and those that were not.
struct OpenedQueues<Q> {
    opened: Vec<(QueueOwner, Q)>,
    /// Numbers of the others.
    missing: Vec<u32>,
    /// Why the first of them could not be opened.
    problem: Option<anyhow::Error>,
}

/// Opens queues in their order; a failure that is not of one queue alone ends that. `open` may
/// wait for busy queues until one stays busy.
///
/// # Errors
/// Fewer than `enough` could be opened.
fn open_queues<Q>(
    owners: &[QueueOwner],
    enough: usize,
    mut open: impl FnMut(QueueOwner, bool) -> anyhow::Result<Q>,
) -> anyhow::Result<OpenedQueues<Q>> {
    let mut result = OpenedQueues { opened: Vec::new(), missing: Vec::new(), problem: None };
    for (at, owner) in owners.iter().enumerate() {
        let failed = match open(*owner, result.problem.is_none()) {
            Ok(queue) => {
                result.opened.push((*owner, queue));
                continue;
            }
            Err(failed) => failed,
        };
        let goes_on = is_busy(&failed);
        let missing = if goes_on { &owners[at..=at] } else { &owners[at..] };
        result.missing.extend(missing.iter().map(|owner| owner.queue));
        if owners.len() - result.missing.len() < enough {
            return Err(result.problem.unwrap_or(failed));
        }
        result.problem.get_or_insert(failed);
        if !goes_on {
            break;
        }
    }
    Ok(result)
}

/// Another socket has the queue, which says nothing of further queues.
fn is_busy(problem: &anyhow::Error) -> bool {
    matches!(problem.downcast_ref(), Some(XdpError::QueueBusy { .. }))
}

/// Queues of the interface could not be opened.
fn warn_of_missing_queues(
    device: &config::DeviceConfig,
    missing: &[u32],
    served: usize,
    problem: &str,
    is_deduced: bool,
) {
    let restart = if is_deduced { "" } else { "; roced does not start again before that" };
    warn!(
        device = device.name,
        interface = device.interface,
        ?missing,
        served,
        problem,
        "further queues cannot be served, and RoCE frames that arrive on them are lost to roced: remove the cause, then \
         `rocectl device remove` and `add`; or give the interface and its ports fewer queues (`ethtool -L`){}",
        restart
    );
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

/// Each worker needs a queue that sends: these are `senders`.
fn check_senders(device: &config::DeviceConfig, owners: &[QueueOwner], senders: &BTreeSet<u32>) -> anyhow::Result<()> {
    let without = owners.iter().find(|owner| !senders.contains(&owner.worker));
    ensure!(
        without.is_none(),
        "none of the queues of worker {} on {} has a TX queue: give it another queue (device.queues), or the interface more \
         (`ethtool -L`, or `numtxqueues` of `ip link add`)",
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
pub(super) fn owners_again(owners: Vec<QueueOwner>, workers: &[WorkerId]) -> anyhow::Result<Vec<QueueOwner>> {
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
        let all = config::DeviceConfig::new("roce0", "lo");
        let queues = |device: &config::DeviceConfig, made, least| {
            check_queues(device, &LinkProperties::without_ports(made), 4, least)
        };
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

    fn numbers<Q>(result: &OpenedQueues<Q>) -> Vec<u32> {
        result.opened.iter().map(|(owner, _)| owner.queue).collect()
    }

    #[test]
    fn a_failure_beyond_the_queues_that_were_served_ends_only_further_ones() {
        let wanted = owners(&[(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]);
        let mut tried = Vec::new();
        let mut open = |enough, room: u32| {
            tried.clear();
            open_queues(&wanted, enough, |owner, _| {
                tried.push(owner.queue);
                ensure!(owner.queue < room, "no memory for queue {}", owner.queue);
                Ok(owner.queue)
            })
        };
        let partial = open(2, 3).expect("as many as before, and one more");
        assert_eq!((numbers(&partial), partial.missing), (vec![0, 1, 2], vec![3, 4]));
        assert_eq!(partial.problem.expect("of queue 3").to_string(), "no memory for queue 3");
        let all = open(2, 5).expect("all");
        assert!(all.problem.is_none() && all.missing.is_empty());
        let error = open(4, 3).err().expect("fewer than before").to_string();
        assert_eq!((error.as_str(), tried), ("no memory for queue 3", vec![0, 1, 2, 3]));
    }

    #[test]
    fn a_busy_queue_does_not_end_later_ones() {
        let wanted = owners(&(0..16).map(|queue| (queue, queue % 2)).collect::<Vec<_>>());
        let open = |enough, busy: &[u32], room| {
            let mut waits = Vec::new();
            let result = open_queues(&wanted, enough, |owner, may_wait| {
                let (interface, waited) = ("eth0".into(), Duration::ZERO);
                if busy.contains(&owner.queue) {
                    waits.push(may_wait);
                    bail!(XdpError::QueueBusy { interface, queue: owner.queue, waited });
                }
                ensure!(owner.queue < room, "no memory");
                Ok(owner.queue)
            });
            (result, waits)
        };
        let (result, waits) = open(2, &[2, 5], 16);
        let result = result.expect("queues of before, and more");
        assert_eq!((numbers(&result).len(), &result.missing), (14, &vec![2, 5]));
        assert!(result.opened.iter().all(|(owner, queue)| owner.queue == *queue), "owners are those of their queues");
        assert!(result.problem.expect("of queue 2").to_string().contains("queue 2 "));
        assert_eq!(waits, [true, false], "one wait for all");
        let (result, _) = open(2, &[0], 14);
        let result = result.expect("enough");
        assert_eq!((numbers(&result), result.missing), ((1..14).collect(), vec![0, 14, 15]));
        let (result, waits) = open(15, &[2, 5, 7], 16);
        assert!(result.err().expect("too few").to_string().contains("queue 2 "));
        assert_eq!(waits.len(), 2, "ends when it is sure");
    }

    #[test]
    fn queues_that_are_enough() {
        let all = config::DeviceConfig::new("roce0", "eth0");
        let dealt = owners(&[(0, 0), (1, 2), (2, 0), (3, 2), (4, 0)]);
        let enough = |before, is_deduced| enough_queues(&all, &dealt, before, is_deduced);
        assert_eq!(enough(0, false), 5, "all that its driver says");
        assert_eq!(enough(3, false), 3, "as many as before");
        assert_eq!(enough(8, false), 5, "it has fewer than before");
        assert_eq!((enough(0, true), enough(4, true)), (2, 2), "of ports: one for each worker");
        let listed = config::DeviceConfig { queues: Queues::Listed(dealt.clone()), ..all.clone() };
        assert_eq!((enough_queues(&listed, &dealt, 2, true)), 5);
    }

    #[test]
    fn a_worker_without_an_opened_queue_is_an_error() {
        let device = config::DeviceConfig::new("roce0", "eth0");
        let wanted = owners(&[(0, 0), (1, 1), (2, 0)]);
        assert!(check_senders(&device, &wanted, &BTreeSet::from([0, 1])).is_ok());
        let error = check_senders(&device, &wanted, &BTreeSet::from([0])).expect_err("worker 1").to_string();
        assert!(error.contains("worker 1 "), "{error}");
    }

    #[test]
    fn each_worker_of_a_device_has_a_queue_that_sends() {
        for (rx_queues, senders, workers, serving) in
            [(16, 1, 4, 1), (4, 4, 2, 2), (8, 3, 4, 3), (1, 1, 4, 1), (2, 0, 2, 1)]
        {
            let some = workers_with_a_sender(workers, senders);
            assert_eq!(some, serving);
            let dealt = Queues::All.owners(rx_queues, some);
            let sends = |worker| dealt.iter().any(|owner| owner.worker == worker && owner.queue < senders.max(1));
            assert!(dealt.iter().all(|owner| sends(owner.worker)), "{senders} of {rx_queues} send: {dealt:?}");
        }
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
