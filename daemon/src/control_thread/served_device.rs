//! A device that is served, and how it is connected to its interface.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use roced_types::{DeviceId, WorkerId};
use roced_xdp::{XdpMode, strips_vlan_tags};

use super::{
    attacher::Attempt,
    attachment::{LinkProperties, NicAttachment},
    xdp_watch::XdpWatch,
};
use crate::{config, dcb::DcbState};

/// Time after a change of its link in which an interface is watched closely, because drivers stop
/// to run the program at such a change: connections with usual time-outs survive until it is
/// attached again.
pub(super) const CLOSE_WATCH_TIME: Duration = Duration::from_secs(5);

/// A device that is served, now or when its interface is there.
#[derive(Debug)]
pub(super) struct ServedDevice {
    pub(super) id: DeviceId,
    /// `interface` is the present name of the interface.
    pub(super) config: config::DeviceConfig,
    /// The options that it was served with, while those of a reload are tried.
    pub(super) proven: Option<config::DeviceConfig>,
    /// The workers that have an endpoint of it.
    pub(super) workers: Vec<WorkerId>,
    pub(super) state: AttachState,
    /// Queues that it was served on when it was attached last, until it is again.
    pub(super) served_before: usize,
    /// Queues on which frames arrive, if it is attached again for them.
    pub(super) wanted_queues: u32,
    /// It is attached again because the driver did not run the program.
    pub(super) recovering: bool,
    /// Why it could not be attached last, so that the log says it once.
    pub(super) last_problem: Option<String>,
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

/// A device attached to its interface: its frames come and go.
#[derive(Debug)]
pub(super) struct AttachedDevice {
    pub(super) attachment: NicAttachment,
    /// MTU of the link when it was attached.
    pub(super) link_mtu_bytes: u32,
    pub(super) since: Instant,
    /// It was attached again because the driver did not run the program.
    pub(super) recovered: bool,
    pub(super) watch: XdpWatch,
    pub(super) watched_closely_until: Instant,
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
    pub(super) fn take_dcb(&mut self, dcb: DcbState) {
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
    pub(super) fn begin_attempt(
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

    pub(super) fn is_watched_closely(&self, now: Instant) -> bool {
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
