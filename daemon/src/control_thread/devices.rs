//! The life of devices: interfaces that disappear and return, drivers that stop to run the XDP
//! program.
//!
//! ```text
//!             interface gone, or can no longer be attached to
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
    mem,
    time::{Duration, Instant},
};

use roced_types::{DeviceId, WorkerId};
use roced_xdp::{AttachedMode, NicQueue, XdpMode, rx_queues};
use tracing::{error, info, warn};

use super::{
    Daemon,
    attachment::{Attached, LinkProperties, NicAttachment, check_mtu, warn_of_lost_frames},
    network_view::NetworkView,
    queue_watch::Surroundings,
    served_device::{AttachState, AttachedDevice, CLOSE_WATCH_TIME, ServedDevice},
    watchdog,
};
use crate::{
    config,
    net::NetworkChange,
    worker::{command::SetQueues, workers::ANSWER_TIMEOUT},
};

/// The pause before an interface that could not be attached to is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of looks at an interface in [`CLOSE_WATCH_TIME`]; otherwise a second.
const CLOSE_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A driver that stops to run the program this soon after it was attached again does not recover
/// that way.
const RECOVERY_TIME_MIN: Duration = Duration::from_secs(30);

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
        let (link_mtu_bytes, speed_mbit_per_s) =
            (self.net.device(id).link_mtu_bytes, self.net.device(id).speed_mbit_per_s);
        let device = self.device_mut(id);
        let AttachState::Attached(attached) = &mut device.state else { return };
        let rate = device.config.pfc.link_mbit_per_s(speed_mbit_per_s);
        attached.attachment.neighbor.set_link_rate(rate);
        if let Some(pauses) = &attached.attachment.pauses {
            pauses.set_link_rate(rate);
        }
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
                warn!(device = name, interface, %mode, "the driver no longer runs the XDP program: attaching it again");
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
