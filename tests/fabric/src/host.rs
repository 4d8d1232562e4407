//! A host: the real endpoint, a worker that has turns, and a NIC with rings.

use std::collections::VecDeque;

use fastrand::Rng;
use roced_transport::{
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters, notification::NotificationConfig},
    endpoint::{Endpoint, EndpointConfig},
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    partition::Partitions,
    recovery::RecoveryConfig,
    turns::classes::TrafficClasses,
};
use roced_types::EndpointId;

use crate::{
    frames::{FrameId, Frames},
    memory::HostMemory,
    queues::CLASSES,
};

/// Frames that a worker takes, or sends, in one turn at most.
const BATCH: usize = 64;

/// Time of a turn, and of each frame in it.
const TURN: Nanos = Nanos(500);
const FRAME: Nanos = Nanos(300);

/// Part of a host that honors pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Honoring {
    /// The MAC: frames in the ring of the NIC wait.
    Mac,
    /// The worker, when it has its turn: its classes wait.
    Worker,
    /// None.
    Nothing,
}

/// Options of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostOptions {
    pub(crate) congestion: CongestionControl,
    /// Round trip above which its windows become smaller, if there is such a limit.
    pub(crate) delay_guard: Nanos,
    /// Parameters of its rates.
    pub(crate) dcqcn: DcqcnParameters,
    /// Packets may be marked.
    pub(crate) is_capable: bool,
    pub(crate) window_packets: u32,
    pub(crate) total_window_packets: u32,
    /// An idle worker begins its turn up to so much later than it could.
    pub(crate) jitter: Nanos,
    pub(crate) rx_ring: usize,
    pub(crate) tx_ring: usize,
    /// Least time between two CNPs of a queue pair.
    pub(crate) notification_interval: Nanos,
    /// Classes of its senders, if it has any.
    pub(crate) classes: Option<fn() -> TrafficClasses>,
    pub(crate) pauses: Honoring,
}

/// End of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnEnd {
    /// The worker is busy until then.
    pub(crate) busy_until: Nanos,
    /// When it has to do something again, if no frame comes.
    pub(crate) next: Nanos,
}

/// A host.
#[derive(Debug)]
pub(crate) struct SimulatedHost {
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: HostMemory,
    pub(crate) options: HostOptions,
    rx: VecDeque<FrameId>,
    tx: VecDeque<FrameId>,
    /// Bytes in it, and those with which it was full for a class with a share.
    tx_bytes: usize,
    ahead_max: usize,
    pub(crate) is_sending: bool,
    paused_until: [Nanos; CLASSES],
    /// The worker has not seen the last pause.
    has_pause: bool,
    pub(crate) busy_until: Nanos,
    /// Time of the turn that is due next.
    pub(crate) turn_at: Nanos,
    /// It was woken, and has had no turn since.
    is_woken: bool,
    /// The ring was full at the end of the last turn.
    is_held_up: bool,
    /// Frames lost for lack of room in the ring.
    pub(crate) overruns: u64,
    random: Rng,
}

/// The NIC's ring, while the endpoint sends.
struct NicRing<'h> {
    tx: &'h mut VecDeque<FrameId>,
    bytes: &'h mut usize,
    room: usize,
    ahead_max: usize,
    /// Frames found too many bytes before them.
    is_limited: bool,
    frames: &'h mut Frames,
}

impl Wire for NicRing<'_> {
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        self.is_limited |= *self.bytes >= self.ahead_max;
        if self.tx.len() >= self.room || *self.bytes >= self.ahead_max {
            return Err(EmitError::Full);
        }
        let mut bytes = self.frames.memory(frame_bytes);
        if fill(&mut FrameMut::single(&mut bytes)).is_err() {
            self.frames.give_back(bytes);
            return Err(EmitError::Aborted);
        }
        self.tx.push_back(self.frames.add(bytes));
        *self.bytes += frame_bytes;
        Ok(())
    }

    fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_max = bytes;
    }
}

impl SimulatedHost {
    /// A host with memory for so many flows.
    pub(crate) fn new(options: HostOptions, flows: u32, seed: u64) -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig {
            id: EndpointId::new(1).expect("a small number"),
            max_mrs: flows,
            max_ahs: 1,
            max_srqs: 1,
            max_attachments: 0,
            max_qps: flows,
            total_window_packets: options.total_window_packets,
            recovery: RecoveryConfig::default(),
            partitions: Partitions::default(),
        });
        endpoint.set_congestion_control(options.congestion, options.dcqcn);
        endpoint.set_delay_guard(options.delay_guard);
        let classes = options.classes.map(|classes| classes());
        let ahead_max = classes.as_ref().map_or(usize::MAX, |classes| classes.ahead_bytes_max);
        if let Some(classes) = classes {
            endpoint.set_classes(classes);
        }
        let interval = options.notification_interval;
        endpoint.set_notifications(NotificationConfig { interval, ..NotificationConfig::default() });
        Self {
            endpoint,
            memory: HostMemory::default(),
            options,
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            tx_bytes: 0,
            ahead_max,
            is_sending: false,
            paused_until: [Nanos(0); CLASSES],
            has_pause: false,
            busy_until: Nanos(0),
            turn_at: Nanos::NEVER,
            is_woken: false,
            is_held_up: false,
            overruns: 0,
            random: Rng::with_seed(seed),
        }
    }

    /// A frame has arrived.
    pub(crate) fn on_frame(&mut self, frame: FrameId, frames: &mut Frames) {
        if self.rx.len() >= self.options.rx_ring {
            self.overruns += 1;
            frames.remove(frame);
        } else {
            self.rx.push_back(frame);
        }
    }

    /// Time of the turn that a worker begins for something that happens at `now`; `None` if it was
    /// woken before: how late it is does not depend on the number of frames.
    pub(crate) fn wakes_at(&mut self, now: Nanos) -> Option<Nanos> {
        if self.is_woken {
            return None;
        }
        self.is_woken = true;
        Some(self.busy_until.max(self.late(now)))
    }

    /// A time as late as a worker sees it.
    fn late(&mut self, time: Nanos) -> Nanos {
        time + Nanos(self.random.u64(0..=self.options.jitter.0))
    }

    /// The worker takes frames, looks at its timers, and sends.
    pub(crate) fn turn(&mut self, now: Nanos, frames: &mut Frames) -> TurnEnd {
        self.is_woken = false;
        if std::mem::take(&mut self.has_pause) {
            self.endpoint.set_pauses(&self.paused_until);
        }
        let mut handled = 0;
        while handled < BATCH
            && let Some(frame) = self.rx.pop_front()
        {
            let bytes = frames.take(frame);
            self.endpoint.on_frame(now, &[&bytes], &mut self.memory);
            frames.give_back(bytes);
            handled += 1;
        }
        if self.endpoint.poll_timeout() <= now {
            self.endpoint.on_timeout(now, BATCH, &mut self.memory);
        }
        let room = self.options.tx_ring;
        let (tx, bytes) = (&mut self.tx, &mut self.tx_bytes);
        let mut nic = NicRing { tx, bytes, room, ahead_max: usize::MAX, is_limited: false, frames };
        handled += self.endpoint.poll_transmit(now, BATCH, &mut self.memory, &mut nic).visits;
        self.is_held_up = nic.is_limited || self.tx.len() >= room;
        self.busy_until = now + TURN + Nanos(FRAME.0 * handled as u64);
        let has_more = !self.rx.is_empty() || self.endpoint.wants_transmit() && !self.is_held_up;
        let next = match self.endpoint.poll_timeout() {
            _ if has_more => self.busy_until,
            Nanos::NEVER => Nanos::NEVER,
            due => self.late(due.max(now)),
        };
        TurnEnd { busy_until: self.busy_until, next }
    }

    pub(crate) fn pause(&mut self, class: u8, until: Nanos) {
        self.paused_until[usize::from(class)] = until;
        self.has_pause = self.options.pauses == Honoring::Worker;
    }

    /// Takes the next frame to be sent. A class that is paused holds up those behind it.
    pub(crate) fn pop(&mut self, now: Nanos, frames: &Frames) -> Option<FrameId> {
        let class = frames.class(*self.tx.front()?);
        if self.options.pauses == Honoring::Mac && self.paused_until[usize::from(class)] > now {
            return None;
        }
        let frame = self.tx.pop_front()?;
        self.tx_bytes -= frames.frame_bytes(frame);
        Some(frame)
    }

    /// The ring was full, and has room again for half of it: true once.
    pub(crate) fn takes_room(&mut self) -> bool {
        let (frames, bytes) = (self.options.tx_ring / 2, self.ahead_max / 2);
        let has_room = self.is_held_up && self.tx.len() <= frames && self.tx_bytes <= bytes;
        self.is_held_up &= !has_room;
        has_room
    }

    /// Frames in both rings.
    pub(crate) fn ring_frames(&self) -> usize {
        self.rx.len() + self.tx.len()
    }
}
