//! The life of devices: interfaces that disappear and return, drivers that stop to run the XDP
//! program.
//!
//! ```text
//!             interface gone, or cannot be attached to any more
//!   Attached ───────────────────────────────────────────────────► Gone, Failed
//!    │ ▲  │ program not run, MTU raised                              │ interface there
//!    │ │  └───────────► Attaching ◄──────────────────────────────────┘
//!    │ └────────────────────┘ ▲ operator adds
//!    └───────────────────► Removed
//!       operator removes
//! ```
//!
//! Queue pairs fail with their interface ([`Clients::on_changes`](crate::clients::Clients)); while
//! a program is only attached again they wait, and retransmit lost packets.

use std::{
    cell::Cell,
    mem,
    time::{Duration, Instant},
};

use roced_types::{DeviceId, WorkerId};
use roced_xdp::{AttachedMode, NicQueue, XdpMode, rx_queues, strips_vlan_tags};
use tracing::{error, info, warn};

use super::{
    Daemon,
    attachment::{Attached, Attempt, LinkProperties, NicAttachment, check_mtu, warn_of_lost_frames},
    network_view::NetworkView,
    queue_watch::Surroundings,
    watchdog,
    xdp_watch::XdpWatch,
};
use crate::{
    config,
    dcb::DcbState,
    net::NetworkChange,
    worker::{command::SetQueues, workers::ANSWER_TIMEOUT},
};

/// The pause before an interface that could not be attached to is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Time after a change of its link in which an interface is watched closely, because drivers stop
/// to run the program at such a change: connections with usual time-outs survive until it is
/// attached again.
const CLOSE_WATCH_TIME: Duration = Duration::from_secs(5);

/// Interval of looks at an interface in [`CLOSE_WATCH_TIME`]; otherwise a second.
const CLOSE_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A driver that stops to run the program this soon after it was attached again does not recover
/// that way.
const RECOVERY_TIME_MIN: Duration = Duration::from_secs(30);

/// A device that is served, now or when its interface is there.
#[derive(Debug)]
pub(super) struct ServedDevice {
    pub(super) id: DeviceId,
    /// `interface` is the present name of the interface.
    pub(super) config: config::DeviceConfig,
    /// The options that it was served with, while those of a reload are tried.
    proven: Option<config::DeviceConfig>,
    /// The workers that have an endpoint of it.
    pub(super) workers: Vec<WorkerId>,
    pub(super) state: AttachState,
    /// Queues that it was served on when it was attached last, until it is again.
    served_before: usize,
    /// Queues on which frames arrive, if it is attached again for them.
    wanted_queues: u32,
    /// It is attached again because the driver did not run the program.
    recovering: bool,
    /// Why it could not be attached last, so that the log says it once.
    last_problem: Option<String>,
    /// The driver's answer whether it takes VLAN tags off received frames, and its time.
    strips_vlan_tags: Cell<Option<(Instant, bool)>>,
    /// The NIC beside the config, when it was attached last.
    pub(super) dcb: DcbState,
}

/// How long that answer holds. It is needed for each path and datagram, and asking costs a socket.
const DRIVER_ANSWER_KEPT: Duration = Duration::from_millis(100);

/// How a device is connected to its interface.
#[derive(Debug)]
pub(super) enum AttachState {
    /// Frames come and go.
    Attached(Box<AttachedDevice>),
    /// A thread attaches.
    Attaching {
        /// The device was served until now, and its queue pairs live.
        again: bool,
        /// The interface changed meanwhile: the result is of no use.
        stale: bool,
    },
    /// There is no interface.
    Gone,
    /// The interface is there, but cannot be attached to.
    Failed {
        /// The reason, and a remedy.
        problem: String,
        /// When it is tried again.
        retry_at: Instant,
    },
    /// An operator took it off its interface.
    Removed,
}

/// Change of a device by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceOrder {
    Add,
    Remove,
}

impl DeviceOrder {
    /// Whether a device in `state` can be changed so.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check(self, state: &AttachState) -> Result<(), &'static str> {
        match (self, state) {
            (_, AttachState::Attaching { .. }) => Err("it is being attached: try again in a moment"),
            (Self::Add, AttachState::Removed) => Ok(()),
            (Self::Add, _) => Err("it was not removed"),
            (Self::Remove, AttachState::Removed) => Err("it is removed already"),
            (Self::Remove, _) => Ok(()),
        }
    }
}

/// A device attached to its interface: its frames come and go.
#[derive(Debug)]
pub(super) struct AttachedDevice {
    pub(super) attachment: NicAttachment,
    /// MTU of the link when it was attached.
    link_mtu_bytes: u32,
    since: Instant,
    /// It was attached again because the driver did not run the program.
    recovered: bool,
    watch: XdpWatch,
    watched_closely_until: Instant,
}

impl AttachedDevice {
    pub(super) fn new(attachment: NicAttachment, link_mtu_bytes: u32) -> Self {
        let (since, watch) = (Instant::now(), XdpWatch::default());
        Self {
            attachment,
            link_mtu_bytes,
            since,
            recovered: false,
            watch,
            watched_closely_until: since + CLOSE_WATCH_TIME,
        }
    }
}

impl ServedDevice {
    pub(super) fn new(
        id: DeviceId,
        config: config::DeviceConfig,
        workers: Vec<WorkerId>,
        attached: AttachedDevice,
    ) -> Self {
        let dcb = attached.attachment.dcb.clone();
        dcb.log(&config);
        let state = AttachState::Attached(Box::new(attached));
        let strips_vlan_tags = Cell::new(None);
        Self {
            id,
            config,
            proven: None,
            workers,
            state,
            served_before: 0,
            wanted_queues: 0,
            recovering: false,
            last_problem: None,
            strips_vlan_tags,
            dcb,
        }
    }

    /// Takes over the look at the NIC of a further attachment. It is told if it differs from the
    /// last one: a driver without DCB, and differences that stay, are told once.
    fn take_dcb(&mut self, dcb: DcbState) {
        if self.dcb != dcb {
            dcb.log(&self.config);
            self.dcb = dcb;
        }
    }

    /// Whether the driver takes VLAN tags off received frames.
    pub(super) fn strips_vlan_tags(&self) -> bool {
        let now = Instant::now();
        if let Some((asked, answer)) = self.strips_vlan_tags.get()
            && now.duration_since(asked) < DRIVER_ANSWER_KEPT
        {
            return answer;
        }
        let answer = strips_vlan_tags(&self.config.interface);
        self.strips_vlan_tags.set(Some((now, answer)));
        answer
    }

    /// XDP program and queues, while they are attached.
    pub(super) fn attachment(&self) -> Option<&NicAttachment> {
        match &self.state {
            AttachState::Attached(attached) => Some(&attached.attachment),
            _ => None,
        }
    }

    pub(super) fn attachment_mut(&mut self) -> Option<&mut NicAttachment> {
        match &mut self.state {
            AttachState::Attached(attached) => Some(&mut attached.attachment),
            _ => None,
        }
    }

    /// Queue pairs can work, at once or in a moment.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.state, AttachState::Attached(_) | AttachState::Attaching { again: true, .. })
    }

    /// Begins to attach. Queues that could not be served before may be missing still, also after
    /// its interface was gone, an operator removed it, or an attempt failed.
    fn begin_attempt(
        &mut self,
        again: bool,
        mode: Option<XdpMode>,
        link: LinkProperties,
        all: &config::Config,
    ) -> Attempt {
        let mut config = self.config.clone();
        config.xdp_mode = mode.unwrap_or(config.xdp_mode);
        self.state = AttachState::Attaching { again, stale: false };
        Attempt {
            device: self.id,
            config,
            link,
            endpoints: self.workers.clone(),
            workers: all.workers.clone(),
            served_before: self.served_before,
            wanted_queues: if again { self.wanted_queues } else { 0 },
        }
    }

    fn is_watched_closely(&self, now: Instant) -> bool {
        matches!(&self.state, AttachState::Attached(attached) if attached.watched_closely_until > now)
    }

    /// When [`Daemon::retry_devices`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            AttachState::Failed { retry_at, .. } => Some(retry_at),
            _ => None,
        }
    }
}

impl Daemon {
    /// Follows interfaces that disappear, return, or get another MTU.
    pub(super) fn follow_interfaces(&mut self, changes: &[NetworkChange]) {
        for change in changes {
            // The next look is soon.
            self.watch_devices_at = self.watch_devices_at.min(Instant::now() + CLOSE_LOOK_INTERVAL);
            match *change {
                NetworkChange::Gone(device) => self.on_interface_gone(device),
                NetworkChange::Returned(device) => self.on_interface_returned(device),
                NetworkChange::Renamed(device) => self.take_name(device),
                NetworkChange::Link(device) => self.on_link(device),
                NetworkChange::Gids(_) | NetworkChange::NextHop(..) => {}
            }
        }
    }

    fn on_interface_gone(&mut self, id: DeviceId) {
        self.detach(id);
        let device = self.device_mut(id);
        warn!(
            device = device.config.name,
            interface = device.config.interface,
            "the interface is gone: queue pairs fail; the device is served again when it returns"
        );
        match &mut device.state {
            AttachState::Attaching { again, stale } => (*again, *stale) = (false, true),
            AttachState::Removed => {}
            state => *state = AttachState::Gone,
        }
        self.take_name(id);
    }

    /// The interface is called as the network view has it.
    fn take_name(&mut self, id: DeviceId) {
        let name = self.net.device(id).name.clone();
        let device = self.device_mut(id);
        for config in [&mut device.config].into_iter().chain(&mut device.proven) {
            config.interface.clone_from(&name);
        }
    }

    fn on_interface_returned(&mut self, id: DeviceId) {
        let device = self.device_mut(id);
        info!(device = device.config.name, interface = device.config.interface, "the interface is back");
        match device.state {
            // When the attempt at the earlier interface has failed; when an operator adds it.
            AttachState::Attaching { .. } | AttachState::Removed => {}
            _ => self.begin_to_attach(id, false, None),
        }
    }

    /// An MTU beyond the one that the program was attached with: the queues may be bound for
    /// shorter frames, and some drivers keep buffers for the smaller one and drop longer frames,
    /// the kernel's among them, without a word. Attaching again mends both, or is refused.
    fn on_link(&mut self, id: DeviceId) {
        let link_mtu_bytes = self.net.device(id).link_mtu_bytes;
        let device = self.device_mut(id);
        let AttachState::Attached(attached) = &mut device.state else { return };
        attached.watched_closely_until = Instant::now() + CLOSE_WATCH_TIME;
        // A later change may make it larger, so the device stays attached.
        if let Err(error) = check_mtu(&device.config, link_mtu_bytes) {
            warn!(device = device.config.name, "nothing can be sent: {error}");
        }
        if link_mtu_bytes > attached.link_mtu_bytes
            && (attached.attachment.program.mode() == AttachedMode::Native
                || link_mtu_bytes > attached.attachment.packet_bytes_max)
        {
            info!(
                device = device.config.name,
                interface = device.config.interface,
                from = attached.link_mtu_bytes,
                to = link_mtu_bytes,
                "the MTU was raised: attaching the XDP program again"
            );
            self.attach_again(id, None);
        } else {
            attached.link_mtu_bytes = attached.link_mtu_bytes.max(link_mtu_bytes);
        }
    }

    /// Looks whether drivers run the program still.
    pub(super) fn watch_devices(&mut self, now: Instant) {
        if self.watch_devices_at > now {
            return;
        }
        let closely = self.devices.iter().any(|device| device.is_watched_closely(now));
        self.watch_devices_at = now + if closely { CLOSE_LOOK_INTERVAL } else { watchdog::PERIOD };
        for at in 0..self.devices.len() {
            let id = self.devices[at].id;
            let is_native = |attachment: &NicAttachment| attachment.program.mode() == AttachedMode::Native;
            if self.devices[at].attachment().is_some_and(is_native) && self.net.has_ports(id) {
                let config = &self.devices[at].config;
                warn!(
                    device = config.name,
                    interface = config.interface,
                    "the interface has a port now: attaching again"
                );
                self.attach_again(id, None);
                continue;
            }
            if let Some(queues) = self.more_queues(at, now) {
                self.attach_again_with(id, None, queues);
                continue;
            }
            let Some(received) = self.net.received_frames(id) else { continue };
            let device = &mut self.devices[at];
            let AttachState::Attached(attached) = &mut device.state else { continue };
            let Ok(verdicts) = attached.attachment.program.verdicts() else { continue };
            if !attached.watch.look(received, verdicts.iter().sum()) {
                continue;
            }
            let gives_up = attached.recovered && attached.since.elapsed() < RECOVERY_TIME_MIN;
            let (name, interface) = (&device.config.name, &device.config.interface);
            let mode = attached.attachment.program.mode();
            if !gives_up {
                warn!(device = name, interface, %mode, "the driver does not run the XDP program any more: attaching it again");
                device.recovering = true;
                self.attach_again(id, None);
            } else if device.config.xdp_mode == XdpMode::Auto && mode == AttachedMode::Native {
                error!(
                    device = name,
                    interface, "the driver does not run the XDP program: falling back to generic XDP"
                );
                device.recovering = true;
                self.attach_again(id, Some(XdpMode::Generic));
            } else {
                error!(
                    device = name,
                    interface,
                    %mode,
                    "the driver does not run the XDP program: no RoCE frame arrives; try another xdp_mode, or another kernel"
                );
                // Once in a while.
                attached.since = Instant::now();
            }
        }
    }

    /// Attaches devices again with other options.
    pub(super) fn reattach(&mut self, at: usize, mut config: config::DeviceConfig) {
        let device = &mut self.devices[at];
        config.interface.clone_from(&device.config.interface);
        let before = mem::replace(&mut device.config, config);
        match &mut device.state {
            AttachState::Attached(_) => {
                device.proven = Some(before);
                self.attach_again(self.devices[at].id, None);
            }
            // With the options of before.
            AttachState::Attaching { stale, .. } => *stale = true,
            AttachState::Failed { retry_at, .. } => *retry_at = Instant::now(),
            AttachState::Gone | AttachState::Removed => {}
        }
    }

    /// Carries out an order that fits the state of the device ([`DeviceOrder::check`]).
    pub(super) fn change_device(&mut self, id: DeviceId, order: DeviceOrder) {
        let device = self.device_mut(id);
        let (device, interface) = (device.config.name.clone(), device.config.interface.clone());
        match order {
            DeviceOrder::Remove => {
                info!(
                    device,
                    interface, "removed by an operator: queue pairs fail; the interface is the kernel's alone"
                );
                self.detach(id);
                self.device_mut(id).state = AttachState::Removed;
                self.tell_clients(&[NetworkChange::Gone(id), NetworkChange::Link(id)]);
            }
            DeviceOrder::Add if self.net.device(id).present => {
                info!(device, interface, "added by an operator");
                self.begin_to_attach(id, false, None);
            }
            DeviceOrder::Add => {
                warn!(device, interface, "added by an operator; served when there is an interface of that name");
                self.device_mut(id).state = AttachState::Gone;
            }
        }
    }

    /// Tries again where attaching failed and it is time.
    pub(super) fn retry_devices(&mut self, now: Instant) {
        for at in 0..self.devices.len() {
            if self.devices[at].deadline().is_some_and(|due| due <= now) {
                self.begin_to_attach(self.devices[at].id, false, None);
            }
        }
    }

    /// Takes results of attempts to attach.
    ///
    /// # Errors
    /// The device has more addresses than the XDP program has room for.
    pub(super) fn on_attached(&mut self) -> anyhow::Result<()> {
        while let Some((id, result)) = self.attacher.next() {
            let present = self.net.device(id).present;
            let AttachState::Attaching { again, stale } = self.device_mut(id).state else {
                unreachable!("an attempt was under way")
            };
            match result {
                _ if !present => self.device_mut(id).state = AttachState::Gone,
                // Undone here: it is the attachment of an earlier interface.
                _ if stale => self.begin_to_attach(id, again, None),
                Ok(attached) => self.serve_again(id, attached)?,
                Err(problem) => self.on_refused(id, again, &problem),
            }
        }
        Ok(())
    }

    fn on_refused(&mut self, id: DeviceId, again: bool, problem: &anyhow::Error) {
        let device = self.device_mut(id);
        device.recovering = false;
        let problem = format!("{problem:#}");
        if let Some(proven) = device.proven.take().filter(|_| again) {
            let (name, interface) = (&device.config.name, &device.config.interface);
            error!(device = name, interface, problem, "the new options cannot be applied: the earlier ones stay");
            device.config = proven.clone();
            if let Some(config) = self.config.devices.iter_mut().find(|config| config.name == proven.name) {
                config.apply(&proven);
            }
            self.begin_to_attach(id, true, None);
            return;
        }
        let (name, interface) = (&device.config.name, &device.config.interface);
        if device.last_problem.as_deref() != Some(&problem) {
            warn!(
                device = name,
                interface, problem, "the device cannot be served; it is tried again every {RETRY_INTERVAL:?}"
            );
        }
        device.last_problem = Some(problem.clone());
        device.state = AttachState::Failed { problem, retry_at: Instant::now() + RETRY_INTERVAL };
        if again {
            self.tell_clients(&[NetworkChange::Gone(id), NetworkChange::Link(id)]);
        }
    }

    fn serve_again(&mut self, id: DeviceId, (attachment, queues): Attached) -> anyhow::Result<()> {
        if !self.give_queues(id, &attachment, queues) {
            let problem = anyhow::anyhow!("a worker does not take its queues");
            self.take_queues(id);
            drop(attachment);
            self.on_refused(id, true, &problem);
            return Ok(());
        }
        self.net.limit_packets(id, attachment.packet_bytes_max);
        let link_mtu_bytes = self.net.device(id).link_mtu_bytes;
        let device = self.device_mut(id);
        let recovered = mem::take(&mut device.recovering);
        device.take_dcb(attachment.dcb.clone());
        let attached = AttachedDevice { recovered, ..AttachedDevice::new(attachment, link_mtu_bytes) };
        device.state = AttachState::Attached(Box::new(attached));
        (device.last_problem, device.proven) = (None, None);
        NetworkView { net: &mut self.net, devices: &mut self.devices }.set_addresses(id)?;
        self.tell_clients(&[NetworkChange::Link(id)]);
        self.watch_devices_at = Instant::now() + CLOSE_LOOK_INTERVAL;
        // It may have changed while the thread was at it.
        self.on_link(id);
        Ok(())
    }

    /// Looks whether frames arrive on more queues than before; the number, if attaching again
    /// serves them.
    fn more_queues(&mut self, at: usize, now: Instant) -> Option<u32> {
        let (device, net) = (&mut self.devices[at], &self.net);
        let AttachState::Attached(attached) = &mut device.state else { return None };
        let attachment = &mut attached.attachment;
        let around = Surroundings {
            now,
            interface: &device.config.interface,
            made: net.rx_queues_made(device.id),
            changes: net.interface_changes(),
            below: || net.below(device.id),
        };
        let queues = attachment.queue_watch.look(around, rx_queues)?;
        let served = attachment.queues.iter().filter(|served| served.owner.queue < queues).count();
        if device.config.queues != config::Queues::All {
            if served < queues as usize {
                warn_of_lost_frames(&device.config, queues, served);
            }
            return None;
        }
        let (name, interface) = (&device.config.name, &device.config.interface);
        info!(
            device = name,
            interface, queues, served, "frames arrive on more queues: attaching the XDP program again"
        );
        Some(queues)
    }

    fn attach_again(&mut self, id: DeviceId, mode: Option<XdpMode>) {
        self.attach_again_with(id, mode, 0);
    }

    fn attach_again_with(&mut self, id: DeviceId, mode: Option<XdpMode>, wanted_queues: u32) {
        let device = self.device_mut(id);
        device.wanted_queues = wanted_queues;
        self.detach(id);
        self.begin_to_attach(id, true, mode);
    }

    fn begin_to_attach(&mut self, id: DeviceId, again: bool, mode: Option<XdpMode>) {
        let link = LinkProperties::of(&self.net, id);
        let device =
            self.devices.iter_mut().find(|device| device.id == id).expect("devices stay while the daemon runs");
        let attempt = device.begin_attempt(again, mode, link, &self.config);
        if let Err(problem) = self.attacher.begin(attempt) {
            self.on_refused(id, again, &problem);
        }
    }

    /// Takes the program off the interface, and the queues from the workers. The caller sets the
    /// next state.
    fn detach(&mut self, id: DeviceId) {
        self.take_queues(id);
        let device = self.device_mut(id);
        if let Some(attachment) = device.attachment() {
            device.served_before = attachment.queues.len();
            device.state = AttachState::Gone;
        }
    }

    fn take_queues(&mut self, id: DeviceId) {
        for worker in self.device_mut(id).workers.clone() {
            self.set_queues(worker, id, Vec::new());
        }
    }

    /// True when every worker has its queues.
    fn give_queues(&mut self, id: DeviceId, attachment: &NicAttachment, queues: Vec<NicQueue>) -> bool {
        let mut queues: Vec<_> = attachment.queues.iter().map(|queue| queue.owner.worker).zip(queues).collect();
        self.device_mut(id).workers.clone().into_iter().all(|worker| {
            let (own, others) = queues.drain(..).partition(|(owner, _)| *owner == worker.0);
            queues = others;
            self.set_queues(worker, id, Vec::into_iter(own).map(|(_, queue)| queue).collect())
        })
    }

    /// Replaces a worker's queues of a device; closes those that it had.
    fn set_queues(&mut self, worker: WorkerId, device: DeviceId, queues: Vec<NicQueue>) -> bool {
        let mailbox = &mut self.queue_mailboxes[worker.0 as usize];
        match mailbox.call(SetQueues { device, queues }, Instant::now() + ANSWER_TIMEOUT) {
            Ok(Ok(_closed)) => true,
            Ok(Err((_closed, refused))) => {
                error!(%worker, %device, %refused, "a worker does not take its queues");
                false
            }
            Err(failed) => {
                error!(%worker, %device, %failed, "a worker does not take its queues");
                false
            }
        }
    }

    fn device_mut(&mut self, id: DeviceId) -> &mut ServedDevice {
        self.devices.iter_mut().find(|device| device.id == id).expect("devices stay while the daemon runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_before_are_enough_after_a_failure_a_removal_and_a_return() {
        for state in [
            AttachState::Gone,
            AttachState::Removed,
            AttachState::Failed { problem: "busy".to_owned(), retry_at: Instant::now() },
        ] {
            let mut device = ServedDevice {
                id: DeviceId(0),
                config: config::DeviceConfig::new("roce0", "eth0"),
                proven: None,
                workers: vec![WorkerId(0)],
                state,
                served_before: 2,
                wanted_queues: 16,
                recovering: false,
                last_problem: None,
                strips_vlan_tags: Cell::new(None),
                dcb: DcbState::default(),
            };
            let all = config::Config::default();
            let mut begin = |again| {
                let attempt = device.begin_attempt(again, None, LinkProperties::without_ports(16), &all);
                (attempt.served_before, attempt.wanted_queues)
            };
            assert_eq!((begin(false), begin(true)), ((2, 0), (2, 16)));
        }
    }
}
