//! A switch with one buffer for all ports: it marks, drops, and pauses its neighbors.

use fastrand::Rng;
use roced_transport::clock::Nanos;

use crate::{
    frames::{FrameId, Frames},
    queues::{CLASSES, ClassOrder, EgressQueues, Waiting},
};

/// Marks of a queue by its length (WRED).
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkingCurve {
    /// No frame is marked up to this length, in bytes.
    pub(crate) min_bytes: u64,
    /// All are marked from this length on.
    pub(crate) max_bytes: u64,
    /// Share of marked frames right below it.
    pub(crate) max_share: f64,
}

impl MarkingCurve {
    /// Share of frames to be marked at a length of the queue.
    fn share(&self, bytes: u64) -> f64 {
        if bytes <= self.min_bytes {
            0.0
        } else if bytes >= self.max_bytes {
            1.0
        } else {
            let range = (self.max_bytes - self.min_bytes) as f64;
            self.max_share * (bytes - self.min_bytes) as f64 / range
        }
    }
}

/// Pauses of neighbors (PFC), instead of losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PauseRules {
    /// Classes without losses, a bit for each.
    pub(crate) classes: u8,
    /// A neighbor is paused when more bytes of a class from it wait. They do not count for the
    /// buffer: a class without losses has memory of its own for each port.
    pub(crate) pause_bytes: u64,
    /// It may go on when no more wait.
    pub(crate) resume_bytes: u64,
    /// Memory for frames of a port and class that arrive after the pause.
    pub(crate) headroom_bytes: u64,
}

impl PauseRules {
    const fn covers(&self, class: u8) -> bool {
        self.classes & 1 << class != 0
    }
}

/// Options of a switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchConfig {
    /// Memory for waiting frames of all ports and classes.
    pub(crate) buffer_bytes: u64,
    pub(crate) marking: Option<MarkingCurve>,
    pub(crate) pauses: Option<PauseRules>,
    pub(crate) order: ClassOrder,
}

/// Frames and events of a switch since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SwitchCounters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    /// Drops of frames of classes without losses: none, unless the headroom is too small.
    pub(crate) dropped_lossless: u64,
    pub(crate) marked: u64,
    /// Pauses that began.
    pub(crate) pauses: u64,
}

/// Frames of a class that came in by one port and wait.
#[derive(Clone, Copy, Debug, Default)]
struct IngressShare {
    bytes: u64,
    is_paused: bool,
    /// A refresh of its pause is scheduled.
    has_refresh: bool,
}

/// Order to a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseOrder {
    Pause,
    Resume,
}

/// A switch.
#[derive(Debug)]
pub(crate) struct SwitchModel {
    config: SwitchConfig,
    /// For each host, the ports that lead to it.
    routes: Vec<Vec<u16>>,
    pub(crate) ports: Vec<EgressQueues>,
    ingress: Vec<[IngressShare; CLASSES]>,
    buffered_bytes: u64,
    random: Rng,
    pub(crate) counters: SwitchCounters,
}

impl SwitchModel {
    pub(crate) fn new(config: SwitchConfig, ports: usize, routes: Vec<Vec<u16>>, seed: u64) -> Self {
        Self {
            config,
            routes,
            ports: (0..ports).map(|_| EgressQueues::new(config.order)).collect(),
            ingress: vec![Default::default(); ports],
            buffered_bytes: 0,
            random: Rng::with_seed(seed),
            counters: SwitchCounters::default(),
        }
    }

    /// A frame has come in by a port. Returns the port by which it leaves, `None` if it is dropped,
    /// and an order to the neighbor that it came from.
    pub(crate) fn on_frame(
        &mut self,
        frame: FrameId,
        ingress: usize,
        frames: &mut Frames,
    ) -> (Option<usize>, Option<PauseOrder>) {
        self.counters.received += 1;
        let (class, wire_bytes) = (frames.class(frame), frames.wire_bytes(frame));
        let ports = &self.routes[frames.destination(frame)];
        let egress = usize::from(ports[(frames.flow_hash(frame) % ports.len() as u64) as usize]);
        let share = self.ingress[ingress][usize::from(class)];
        let lossless = self.config.pauses.filter(|pauses| pauses.covers(class));
        let has_room = match lossless {
            Some(pauses) => share.bytes + wire_bytes <= pauses.pause_bytes + pauses.headroom_bytes,
            None => self.buffered_bytes + wire_bytes <= self.config.buffer_bytes,
        };
        if !has_room {
            self.counters.dropped += 1;
            self.counters.dropped_lossless += u64::from(lossless.is_some());
            return (None, None);
        }
        if let Some(marking) = self.config.marking {
            let chance = marking.share(self.ports[egress].waiting_bytes(class));
            if chance > 0.0 && self.random.f64() < chance {
                if frames.is_capable(frame) {
                    frames.mark(frame);
                    self.counters.marked += 1;
                } else if lossless.is_none() {
                    // RFC 3168 7: others lose packets where these are marked.
                    self.counters.dropped += 1;
                    return (None, None);
                }
            }
        }
        let share = &mut self.ingress[ingress][usize::from(class)];
        share.bytes += wire_bytes;
        if lossless.is_none() {
            self.buffered_bytes += wire_bytes;
        }
        self.ports[egress].push(Waiting { frame, wire_bytes, ingress, class });
        let begins = lossless.is_some_and(|pauses| share.bytes > pauses.pause_bytes) && !share.is_paused;
        if begins {
            share.is_paused = true;
            self.counters.pauses += 1;
        }
        (Some(egress), begins.then_some(PauseOrder::Pause))
    }

    /// Takes the next frame that leaves by a port, and with it an order to the neighbor that it
    /// came from.
    pub(crate) fn pop(&mut self, port: usize, now: Nanos) -> Option<(Waiting, Option<PauseOrder>)> {
        let waiting = self.ports[port].pop(now)?;
        self.counters.sent += 1;
        let share = &mut self.ingress[waiting.ingress][usize::from(waiting.class)];
        share.bytes -= waiting.wire_bytes;
        let Some(pauses) = self.config.pauses.filter(|pauses| pauses.covers(waiting.class)) else {
            self.buffered_bytes -= waiting.wire_bytes;
            return Some((waiting, None));
        };
        let ends = share.is_paused && share.bytes <= pauses.resume_bytes;
        if ends {
            share.is_paused = false;
        }
        Some((waiting, ends.then_some(PauseOrder::Resume)))
    }

    /// A pause is to be repeated; true if that was not so before.
    pub(crate) fn begin_refresh(&mut self, port: usize, class: u8) -> bool {
        !std::mem::replace(&mut self.ingress[port][usize::from(class)].has_refresh, true)
    }

    /// It is time to repeat a pause; true if the neighbor of the port is still to be paused.
    pub(crate) fn end_refresh(&mut self, port: usize, class: u8) -> bool {
        let share = &mut self.ingress[port][usize::from(class)];
        share.has_refresh = false;
        share.is_paused
    }

    /// Frames that wait for all ports.
    pub(crate) fn waiting_frames(&self) -> usize {
        self.ports.iter().map(EgressQueues::frames).sum()
    }
}
