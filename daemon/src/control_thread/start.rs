//! From a config to running workers: everything is checked before anything is changed, and errors
//! name a remedy.

use std::{
    sync::{Arc, atomic::AtomicU64},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, ensure};
use caps::{CapSet, Capability};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use roced_memory::{first_touch, queues::SleepBoard};
use roced_transport::{
    clock::Nanos,
    congestion::{control::CongestionControl, notification::NotificationConfig},
    endpoint::{Endpoint, EndpointConfig},
    partition::Partitions,
    recovery::{Recovery, RecoveryConfig},
};
use roced_types::{DeviceId, WorkerId};
use roced_xdp::{NicQueue, rx_ring_entries};
use tracing::{info, warn};

use super::{
    attachment::{LinkProperties, ServedQueue, attach, check_mtu, check_queues, workers_of},
    network_view::gid_prefix,
    served_device::{AttachedDevice, ServedDevice},
};
use crate::{
    config::{self, Config, IdleChoice, QueueOwner},
    net::{DeviceInterface, Net},
    sandbox::{Sandbox, ThreadKind},
    worker::{
        command::QueueMailbox,
        endpoints::{EndpointLocation, Endpoints},
        events::{EventReceiver, EventSender, events},
        handoff::{Handoff, handoffs},
        idle::Policy,
        mailbox::mailbox,
        pin,
        poll_loop::{Worker, WorkerEndpoint, WorkerParts},
        received_mads::{MadReceiver, MadSender, mads},
        sent_mads::OutgoingMads,
        wake::Waker,
        workers::{WorkerHandle, Workers, spawn},
    },
};

/// Completion queues that a worker can complete into, at most: beyond it a client is told that a
/// limit is reached. The table's memory is touched only as far as it is used.
const CQ_RINGS_MAX: u32 = 1 << 16;

/// Capabilities that roced needs, and their purposes.
const CAPABILITIES: [(Capability, &str); 4] = [
    (Capability::CAP_NET_ADMIN, "to attach the XDP program and to ask the kernel for neighbors"),
    (Capability::CAP_NET_RAW, "to open AF_XDP sockets"),
    (Capability::CAP_BPF, "to load the XDP program"),
    (
        Capability::CAP_IPC_LOCK,
        "to lock the memory that frames and clients' data lie in, or else LimitMEMLOCK=infinity",
    ),
];

/// The kernel's network, looked at and found good enough.
pub(super) struct Checked {
    pub(super) net: Net,
    /// Owners of the queues, device by device.
    owners: Vec<Vec<QueueOwner>>,
    endpoints: Arc<Endpoints>,
}

/// Workers that run.
pub(super) struct Started {
    pub(super) devices: Vec<ServedDevice>,
    pub(super) workers: Workers,
    pub(super) queue_mailboxes: Vec<QueueMailbox<NicQueue>>,
    pub(super) threads: Vec<JoinHandle<Worker<NicQueue>>>,
    pub(super) events: EventReceiver,
    pub(super) mads: MadReceiver,
    pub(super) board: SleepBoard,
}

/// Looks at everything that the config names; changes nothing.
pub(super) fn check(config: &Config) -> anyhow::Result<Checked> {
    check_capabilities()?;
    for (number, worker) in config.workers.iter().enumerate() {
        if let Some(core) = worker.core {
            pin::check_core(core).with_context(|| format!("worker {number} cannot be pinned"))?;
        }
    }
    let interfaces: Vec<_> =
        devices(config).map(|(device, config)| DeviceInterface { device, name: config.interface.clone() }).collect();
    let timeout = Duration::from_millis(config.net.resolve_timeout_ms.into());
    let net = Net::open(&interfaces, timeout).context("cannot follow the network")?;
    let mut owners = Vec::new();
    for (id, device) in devices(config) {
        check_link(&net, id, device)?;
        let link = LinkProperties::of(&net, id);
        let checked = workers_of(device, &link, config.workers.len() as u32)
            .and_then(|workers| check_queues(device, &link, workers, 1));
        owners.push(checked.with_context(|| format!("device {}", device.name))?);
    }
    let served = devices(config).zip(&owners).flat_map(|((id, _), owners)| {
        let mut workers: Vec<u32> = owners.iter().map(|owner| owner.worker).collect();
        workers.sort_unstable();
        workers.dedup();
        workers.into_iter().map(move |worker| (id, WorkerId(worker)))
    });
    let endpoints = Endpoints::new(served)
        .context("more than 64 pairs of device and worker: give the devices' queues to fewer workers")?;
    Ok(Checked { net, owners, endpoints: Arc::new(endpoints) })
}

/// Devices by number.
pub(super) fn devices(config: &Config) -> impl Iterator<Item = (DeviceId, &config::DeviceConfig)> {
    (0..).map(DeviceId).zip(&config.devices)
}

fn check_capabilities() -> anyhow::Result<()> {
    let held = caps::read(None, CapSet::Effective).context("cannot read this process's capabilities")?;
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(capability, _)| !held.contains(capability))
        .filter(|(capability, _)| *capability != Capability::CAP_IPC_LOCK || !locks_without_limit())
        .map(|(capability, why)| format!("{capability} ({why})"))
        .collect();
    ensure!(
        missing.is_empty(),
        "missing {}: run roced as root, or let its unit grant them (AmbientCapabilities=)",
        missing.join(", ")
    );
    Ok(())
}

/// The process may lock any memory without a capability.
fn locks_without_limit() -> bool {
    getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(limit, _)| limit == RLIM_INFINITY)
}

fn check_link(net: &Net, id: DeviceId, device: &config::DeviceConfig) -> anyhow::Result<()> {
    let link = net.device(id);
    check_mtu(device, link.link_mtu_bytes).with_context(|| format!("device {}", device.name))?;
    if !link.link_up {
        warn!(device = device.name, interface = device.interface, "the link is down; served when it comes up");
    }
    if link.gids.is_empty() {
        warn!(device = device.name, interface = device.interface, "no address yet, so no GID");
    }
    Ok(())
}

/// Attaches, binds and starts. A failure halfway undoes the completed part.
pub(super) fn start(config: &Config, checked: &Checked, sandbox: &Sandbox) -> anyhow::Result<Started> {
    if let Err(errno) = first_touch::clients_pay() {
        warn!(
            %errno,
            "no userfaultfd here: pages that clients register and never touch count as memory of roced's own"
        );
    }
    let mut worker_endpoints: Vec<Vec<WorkerEndpoint<NicQueue>>> = config.workers.iter().map(|_| Vec::new()).collect();
    let mut served = Vec::new();
    for ((id, device), owners) in devices(config).zip(&checked.owners) {
        let device = &with_bounded_windows(device, rx_ring_entries(&device.interface));
        let link = LinkProperties::of(&checked.net, id);
        let attached = attach(device, &link, owners, &config.workers, 0);
        let (attachment, queues) = attached.with_context(|| format!("device {}", device.name))?;
        add_endpoint_slots(&mut worker_endpoints, config, checked, (id, device), attachment.queues.iter().zip(queues));
        let workers = checked.endpoints.of_device(id).map(|place| place.worker).collect();
        let attached = AttachedDevice::new(attachment, link.mtu_bytes);
        served.push(ServedDevice::new(id, device.clone(), workers, attached));
    }
    let count = config.workers.len() as u32;
    let board = SleepBoard::create(count).context("no memory for the workers' states")?;
    let wakers: Vec<_> = (0..count).map(|_| Waker::new().map(Arc::new)).collect::<Result<_, _>>()?;
    let (receiver, senders) = events(wakers.len())?;
    let (mad_receiver, mad_senders) = mads(wakers.len(), config.limits.cm.connections as usize)?;
    let (mut handles, mut queue_mailboxes, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    let parts =
        worker_endpoints.into_iter().zip(&wakers).zip(handoffs(&wakers)).zip(senders.into_iter().zip(mad_senders));
    for (number, (((worker_endpoints, waker), handoff), senders)) in (0..).zip(parts) {
        let make = Make { config, checked, board: &board, id: WorkerId(number) };
        let (handle, queue_mailbox, worker) = make.worker(worker_endpoints, Arc::clone(waker), handoff, senders)?;
        handles.push(handle);
        queue_mailboxes.push(queue_mailbox);
        workers.push(worker);
    }
    let mut threads = Vec::new();
    for (worker, config) in workers.into_iter().zip(&config.workers) {
        let sandbox = sandbox.clone();
        let confine = move || sandbox.enter_or_abort(ThreadKind::Worker);
        threads.push(spawn(worker, config.core, confine).context("no thread for a worker")?);
    }
    let workers = Workers::new(handles, Arc::clone(&checked.endpoints));
    Ok(Started { devices: served, workers, queue_mailboxes, threads, events: receiver, mads: mad_receiver, board })
}

/// Bounds the windows by half of the NIC's receive ring, where the driver tells its size: responses
/// to READs are received there, and the NICs of peers are mostly of the same kind. The other half
/// is for frames that the driver has not taken off the ring yet, and for other traffic (rtl8139
/// with 64 descriptors and windows of 128 packets lost two packets of five, with 32 one of two
/// thousand).
fn with_bounded_windows(device: &config::DeviceConfig, rx_ring_entries: Option<u32>) -> config::DeviceConfig {
    let mut bounded = device.clone();
    let Some(ring) = rx_ring_entries else { return bounded };
    let most = (ring / 2).max(1);
    bounded.window_packets = device.window_packets.min(most);
    bounded.total_window_packets = device.total_window_packets.min(most);
    if bounded.total_window_packets < device.total_window_packets {
        info!(
            device = device.name,
            interface = device.interface,
            rx_ring_entries = ring,
            window_packets = bounded.window_packets,
            total_window_packets = bounded.total_window_packets,
            "windows are bounded by half of the NIC's receive ring; `ethtool -G` may enlarge it, then restart roced"
        );
    }
    bounded
}

/// Gives each worker its endpoint of `device` with its share of `queues`.
fn add_endpoint_slots<'a>(
    worker_endpoints: &mut [Vec<WorkerEndpoint<NicQueue>>],
    config: &Config,
    checked: &Checked,
    (id, device): (DeviceId, &config::DeviceConfig),
    queues: impl Iterator<Item = (&'a ServedQueue, NicQueue)>,
) {
    let speed_mbit_per_s = checked.net.device(id).speed_mbit_per_s;
    let mut classes = device.classes.classes(speed_mbit_per_s, device.max_rate_mbit);
    if let Some(classes) = &mut classes {
        classes.watchdog = device.pfc.watchdog(speed_mbit_per_s);
        classes.paused_priorities = device.pfc.honored(speed_mbit_per_s).bits();
    }
    for place in checked.endpoints.of_device(id) {
        let mut worker_endpoint = worker_endpoint(place, device, config, speed_mbit_per_s);
        if let Some(classes) = &classes {
            worker_endpoint.endpoint.set_classes(classes.clone());
        }
        worker_endpoints[place.worker.0 as usize].push(worker_endpoint);
    }
    for (served, queue) in queues {
        let mut of_worker = worker_endpoints[served.owner.worker as usize].iter_mut();
        let worker_endpoint = of_worker.find(|worker_endpoint| worker_endpoint.place.device == id);
        worker_endpoint.expect("an owner of a queue has an endpoint of its device").queues.push(queue);
    }
}

fn worker_endpoint(
    place: EndpointLocation,
    device: &config::DeviceConfig,
    config: &Config,
    speed_mbit_per_s: u32,
) -> WorkerEndpoint<NicQueue> {
    let limits = &config.limits.device;
    let mut endpoint = Endpoint::new(EndpointConfig {
        id: place.endpoint,
        max_mrs: limits.mrs,
        max_ahs: limits.ahs + 1, // Their numbers begin at 1.
        max_srqs: limits.srq_places(),
        max_attachments: limits.attachments,
        max_qps: limits.qps_per_endpoint(),
        total_window_packets: device.total_window_packets,
        recovery: recovery(device),
        partitions: Partitions::new(&device.pkeys),
    })
    .with_ids(place.ids);
    endpoint.set_notifications(notifications(device));
    let control = match device.congestion_control {
        config::CongestionChoice::Window => CongestionControl::Window,
        config::CongestionChoice::Dcqcn => CongestionControl::Dcqcn,
        config::CongestionChoice::Off => CongestionControl::Off,
    };
    endpoint.set_congestion_control(control, device.dcqcn.parameters(speed_mbit_per_s));
    endpoint.set_delay_guard(Nanos::from_micros(device.delay_guard_us.into()));
    WorkerEndpoint { place, endpoint, queues: Vec::new(), max_qps: limits.qps_per_endpoint() }
}

fn recovery(device: &config::DeviceConfig) -> RecoveryConfig {
    RecoveryConfig {
        kind: match device.recovery {
            config::RecoveryChoice::Selective => Recovery::Selective,
            config::RecoveryChoice::GoBackN => Recovery::GoBackN,
        },
        reorder_delay: Nanos::from_micros(device.reorder_delay_us.into()),
        probe_floor: Nanos::from_micros(device.probe_floor_us.into()),
        out_of_order_packets: device.out_of_order_packets,
    }
}

fn notifications(device: &config::DeviceConfig) -> NotificationConfig {
    NotificationConfig {
        is_enabled: device.cnp == config::CnpChoice::On,
        interval: Nanos::from_micros(device.min_time_between_cnps_us.into()),
        dscp: device.cnp_dscp,
        priority: device.cnp_802p_prio,
        except: device.cnp_except.iter().map(gid_prefix).collect(),
    }
}

/// Parts of one worker.
struct Make<'a> {
    config: &'a Config,
    checked: &'a Checked,
    board: &'a SleepBoard,
    id: WorkerId,
}

impl Make<'_> {
    fn worker(
        &self,
        worker_endpoints: Vec<WorkerEndpoint<NicQueue>>,
        waker: Arc<Waker>,
        handoff: Handoff,
        (events, mads): (EventSender, MadSender),
    ) -> anyhow::Result<(WorkerHandle, QueueMailbox<NicQueue>, Worker<NicQueue>)> {
        let limits = &self.config.limits;
        let (queue_mailbox, queue_inbox) = mailbox(Arc::clone(&waker));
        let (mailbox, inbox) = mailbox(Arc::clone(&waker));
        let heartbeat = Arc::new(AtomicU64::new(0));
        let outgoing = OutgoingMads::new();
        let handle = WorkerHandle {
            mailbox,
            outgoing: Arc::clone(&outgoing),
            waker: Arc::clone(&waker),
            heartbeat: Arc::clone(&heartbeat),
        };
        let worker = Worker::new(WorkerParts {
            id: self.id,
            policy: policy(&self.config.workers[self.id.0 as usize]),
            worker_endpoints,
            endpoints: Arc::clone(&self.checked.endpoints),
            inbox,
            queue_inbox,
            handoff,
            events,
            mads,
            outgoing,
            waker,
            state: self.board.worker(self.id.0),
            heartbeat,
            max_sessions: limits.clients,
            // One more: a region that is registered again has both memories for a moment.
            max_objects: limits.device.mrs.saturating_mul(self.config.devices.len() as u32).saturating_add(1),
            max_cq_rings: limits.clients.saturating_mul(limits.client.cqs).min(CQ_RINGS_MAX),
        })
        .context("a worker cannot watch its sockets")?;
        Ok((handle, queue_mailbox, worker))
    }
}

fn policy(worker: &config::WorkerConfig) -> Policy {
    match worker.idle {
        IdleChoice::Spin => Policy::Spin,
        IdleChoice::Yield => Policy::Yield,
        IdleChoice::Sleep => Policy::Sleep { spin: Nanos::from_micros(worker.spin_us.into()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The transport has defaults of its own, for its users without a config.
    #[test]
    fn defaults_of_loss_recovery_are_those_of_the_transport() {
        assert_eq!(recovery(&config::DeviceConfig::new("roce0", "eth0")), RecoveryConfig::default());
    }

    #[test]
    fn defaults_of_the_notification_point_are_those_of_the_transport() {
        assert_eq!(notifications(&config::DeviceConfig::new("roce0", "eth0")), NotificationConfig::default());
    }

    #[test]
    fn windows_are_bounded_by_half_of_a_small_ring() {
        let device = config::DeviceConfig::new("roce0", "eth0");
        let windows = |ring| {
            let bounded = with_bounded_windows(&device, ring);
            (bounded.window_packets, bounded.total_window_packets)
        };
        assert_eq!(windows(None), (128, 192), "the driver does not say");
        assert_eq!(windows(Some(4096)), (128, 192));
        assert_eq!(windows(Some(256)), (128, 128));
        assert_eq!(windows(Some(64)), (32, 32));
        assert_eq!(windows(Some(1)), (1, 1));
    }
}
