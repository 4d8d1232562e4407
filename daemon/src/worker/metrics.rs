//! Counters of workers, as a snapshot that the control thread creates, a worker fills in, and an
//! operator reads.
//!
//! A snapshot is filled on command, at most [`QPS_PER_SNAPSHOT`] queue pairs at a time, and without
//! allocating: entries without room in this one are fetched by the next one.

use roced_transport::{
    congestion::notification::NotificationCounters, counters::QpCounters, qp::QpProgress, reject::DropCounters,
    turns::class_counters::ClassCounters,
};
use roced_types::{DeviceId, EndpointId, Qpn, SessionId};

use super::handoff::HandoffCounters;

/// Queue pairs in one snapshot: a few tens of kilobytes to copy, microseconds of a poll iteration.
pub const QPS_PER_SNAPSHOT: usize = 128;

/// Most counters that a NIC queue names.
const QUEUE_COUNTERS: usize = 24;

/// Counters of a worker itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Poll iterations.
    pub polls: u64,
    /// Times it blocked.
    pub sleeps: u64,
    /// Doorbells taken.
    pub doorbells: u64,
    /// Work requests taken from clients.
    pub work_requests: u64,
    /// Commands of the control thread carried out.
    pub commands: u64,
    /// Times that completions of one queue were published: at most once per poll iteration for
    /// each.
    pub publications: u64,
    /// Times that acknowledgments waited for clients to answer, so that both leave by one system
    /// call.
    pub acks_waited: u64,
    /// Management datagrams passed to the control thread.
    pub mads_received: u64,
    /// Received answers and requests dropped because as many wait for the control thread as its
    /// queue for such holds.
    pub mads_queue_full: u64,
    /// Received answers and requests dropped because too many of their peer's share waited.
    pub mads_share_full: u64,
    /// Received management datagrams dropped that name no connection of this host: more came than
    /// the control thread takes.
    pub mads_unknown_dropped: u64,
    /// Management datagrams taken from the control thread and passed to an endpoint.
    pub mads_sent: u64,
    /// Management datagrams of the control thread dropped: its queue to this worker or that of the
    /// endpoint was full, or the worker does not serve their device.
    pub mads_send_dropped: u64,
}

impl WorkerCounters {
    /// Every name with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("polls", self.polls),
            ("sleeps", self.sleeps),
            ("doorbells", self.doorbells),
            ("work_requests", self.work_requests),
            ("commands", self.commands),
            ("publications", self.publications),
            ("acks_waited", self.acks_waited),
            ("mads_received", self.mads_received),
            ("mads_queue_full", self.mads_queue_full),
            ("mads_share_full", self.mads_share_full),
            ("mads_unknown_dropped", self.mads_unknown_dropped),
            ("mads_sent", self.mads_sent),
            ("mads_send_dropped", self.mads_send_dropped),
        ]
        .into_iter()
    }
}

/// Counters of one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSnapshot {
    /// Its number.
    pub endpoint: EndpointId,
    /// Its device.
    pub device: DeviceId,
    /// Sum over its queue pairs, those that are gone included.
    pub counters: QpCounters,
    /// Packets dropped.
    pub drops: DropCounters,
    /// Marks and notifications of congestion.
    pub notifications: NotificationCounters,
    /// Frames of traffic classes, with classes.
    pub classes: Option<ClassCounters>,
}

impl EndpointSnapshot {
    /// Adds the counters of its traffic classes, if it has any.
    pub fn add_classes_to(&self, sum: &mut Option<ClassCounters>) {
        if let Some(classes) = &self.classes {
            sum.get_or_insert_default().add_all(classes);
        }
    }
}

/// One NIC queue.
#[derive(Clone, Debug)]
pub struct QueueSnapshot {
    /// Its device.
    pub device: DeviceId,
    /// Number of the RX queue.
    pub queue: u32,
    counters: [(&'static str, u64); QUEUE_COUNTERS],
    used: usize,
}

impl QueueSnapshot {
    /// No counter yet.
    pub const fn new(device: DeviceId, queue: u32) -> Self {
        Self { device, queue, counters: [("", 0); QUEUE_COUNTERS], used: 0 }
    }

    /// Adds a counter.
    ///
    /// # Panics
    /// With more than there is room for: a NIC queue has a fixed set.
    pub fn put(&mut self, name: &'static str, value: u64) {
        self.counters[self.used] = (name, value);
        self.used += 1;
    }

    /// Every name with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counters[..self.used].iter().copied()
    }
}

/// One queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: Qpn,
    /// The session that owns it.
    pub session: SessionId,
    /// Its service type.
    pub service: &'static str,
    /// Short name of its state.
    pub state: &'static str,
    /// How frames get to its peer.
    pub path: &'static str,
    /// The peer's address.
    pub peer: [u8; 16],
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// Path MTU, bytes.
    pub path_mtu_bytes: u32,
    /// Positions, outstanding work and last failure.
    pub progress: QpProgress,
    /// Its counters.
    pub counters: QpCounters,
}

/// Counters of one worker so far.
#[derive(Debug, Default)]
pub struct WorkerSnapshot {
    /// Of itself.
    pub worker: WorkerCounters,
    /// Of frames from and to other workers.
    pub handoff: HandoffCounters,
    /// Its endpoints.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Its NIC queues.
    pub queues: Vec<QueueSnapshot>,
    /// Some of its queue pairs.
    pub qps: Vec<QpSnapshot>,
    /// From which entry on queue pairs are wanted; the worker leaves here where the next snapshot
    /// begins, or `None` at the end.
    pub next_entry: Option<u32>,
}

impl WorkerSnapshot {
    /// An empty snapshot with room for that much; without queue pairs unless `from_entry` says
    /// where to begin.
    pub fn new(endpoints: usize, queues: usize, from_entry: Option<u32>) -> Self {
        Self {
            endpoints: Vec::with_capacity(endpoints),
            queues: Vec::with_capacity(queues),
            qps: Vec::with_capacity(if from_entry.is_some() { QPS_PER_SNAPSHOT } else { 0 }),
            next_entry: from_entry,
            ..Self::default()
        }
    }
}
