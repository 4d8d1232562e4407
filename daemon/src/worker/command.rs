//! Commands of the control thread to a worker, and its answers.
//!
//! All objects in a command were created by the control thread and return to it: in the answer of
//! the command that removes them, or at once if the worker cannot take them.

use roced_memory::{
    backing::Backing,
    queues::{CqRing, CqRingPlace, QpRings, SrqRing, WorkerSession},
};
use roced_transport::{
    ah::AhEntry,
    counters::QpCounters,
    denied_sources::DeniedSources,
    mr::{Mr, MrKey},
    own_addresses::OwnAddresses,
    qp::{PathState, Qp, ReplayMemory},
    reject::Reject,
    srq::Srq,
};
use roced_types::{Cqn, DeviceId, QpAttributes, Qpn, SessionId, Srqn};
use thiserror::Error;

use super::{mailbox, metrics::WorkerSnapshot};

/// The NIC queues of a device that a worker has from now on, in place of those it had: none while
/// the device has no interface. The queues it had return in the answer.
#[derive(Debug)]
pub struct SetQueues<N> {
    /// The device.
    pub device: DeviceId,
    /// Its queues of this worker.
    pub queues: Vec<N>,
}

/// Answer to [`SetQueues`]: the queues that the worker no longer uses. With an error these
/// are those of the command, and nothing has changed.
pub type QueuesSet<N> = Result<Vec<N>, (Vec<N>, CommandRefused)>;

/// The control thread's side of a worker's mailbox for NIC queues.
pub type QueueMailbox<N> = mailbox::Mailbox<SetQueues<N>, QueuesSet<N>>;

/// The worker's side.
pub type QueueInbox<N> = mailbox::Inbox<SetQueues<N>, QueuesSet<N>>;

/// The control thread's side of a worker's mailbox.
pub type Mailbox = mailbox::Mailbox<Command, Answer>;

/// The worker's side.
pub type Inbox = mailbox::Inbox<Command, Answer>;

/// Commands of the control thread.
#[derive(Debug)]
pub enum Command {
    /// Listen to a session's doorbells. [`Answer::Done`].
    AttachSession(WorkerSession),
    /// Stop listening; its queue pairs are gone already. [`Answer::Session`].
    DetachSession(SessionId),
    /// This worker's CQ ring of a completion queue. [`Answer::Done`].
    AddCqRing(Cqn, CqRing),
    /// A new CQ ring for this worker. [`Answer::Ring`].
    ChangeRing(Cqn, CqRingPlace),
    /// Queue pairs no longer use it. [`Answer::MappedCqRing`].
    DropCqRing(Cqn),
    /// Adds a memory region in this memory for the queue pairs of a device, or replaces the one
    /// with the same key index. [`Answer::Memory`].
    SetMr(DeviceId, Mr, Backing),
    /// Replaces the memory window with the same key index, or adds it. Its region is added already.
    /// [`Answer::Done`].
    SetMw(DeviceId, Mr),
    /// Removes a memory region or window; after the answer this worker accesses nothing by its key.
    /// [`Answer::Memory`].
    DropMr(DeviceId, MrKey),
    /// An address handle under a number, for the queue pairs of a device. [`Answer::Done`].
    AddAh(DeviceId, u32, AhEntry),
    /// The way to an address handle's destination changed. [`Answer::Done`].
    SetAhPath {
        /// The device.
        device: DeviceId,
        /// Its number.
        number: u32,
        /// How frames get there now.
        path: PathState,
        /// The longest message that gets there.
        mtu_bytes: u32,
    },
    /// Nothing is sent by it from now on. [`Answer::Done`].
    DropAh(DeviceId, u32),
    /// The addresses of a device itself, from which no datagram comes to it by its network.
    /// [`Answer::Done`].
    SetOwnAddresses(DeviceId, OwnAddresses),
    /// Networks from which no frame is accepted by a device. [`Answer::Done`].
    SetDeniedSources(DeviceId, DeniedSources),
    /// A datagram queue pair of a device, on whichever worker, is of a multicast group.
    /// [`Answer::Done`].
    Attach {
        /// The device.
        device: DeviceId,
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: [u8; 16],
    },
    /// It is no longer one. [`Answer::Done`].
    Detach {
        /// The device.
        device: DeviceId,
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: [u8; 16],
    },
    /// A queue pair with its rings; its session is attached. [`Answer::Done`].
    AddQp(Box<Qp>, QpRings),
    /// A shared receive queue with its ring; its session is attached. [`Answer::Done`].
    AddSrq(Box<Srq>, SrqRing),
    /// Arm its limit. Receives that its client has posted count, but are taken after the answer, in
    /// their turn: until then there is no event. [`Answer::Done`].
    SetSrqLimit(Srqn, u32),
    /// [`Answer::SrqLimit`].
    SrqLimit(Srqn),
    /// Queue pairs no longer use it. [`Answer::Srq`].
    DropSrq(Srqn),
    /// Change a queue pair. [`Answer::Changed`].
    ModifyQp {
        /// The queue pair.
        qpn: Qpn,
        /// Attributes that count.
        mask: u32,
        /// Their values.
        attributes: QpAttributes,
        /// Given when the address vector is.
        path: Option<PathState>,
        /// Memory for the change.
        replay: ReplayMemory,
    },
    /// A change of keys for which a queue pair waits was made on every worker, or cannot be made.
    /// [`Answer::Done`].
    FinishKeyChange {
        /// The queue pair.
        qpn: Qpn,
        /// Of the `KeyChange`.
        ticket: u64,
        /// It was made.
        done: bool,
    },
    /// The next hop of a queue pair changed. [`Answer::Done`].
    SetPath(Qpn, PathState),
    /// [`Answer::Attributes`].
    QueryQp(Qpn),
    /// [`Answer::Counters`].
    CountersOfQp(Qpn),
    /// Fail the queue pairs of a device, because its interface is gone: some of them, from this
    /// slot on. [`Answer::NextSlot`].
    FailQps(DeviceId, u32),
    /// Send a batch of the work that was posted to a queue pair, before it ends. [`Answer::Sent`].
    SendPosted(Qpn),
    /// Take no more work of a session, as its client is gone: its queue pairs send nothing from now
    /// on but a batch, in turn, by each of these commands. Those of reliable connections send
    /// nothing. [`Answer::Sent`].
    EndSession(SessionId),
    /// End a queue pair: it no longer sends or completes anything. [`Answer::Qp`].
    DropQp(Qpn),
    /// Fill this in. [`Answer::Snapshot`].
    Snapshot(Box<WorkerSnapshot>),
    /// End the thread after this answer, [`Answer::Done`].
    Stop,
}

/// Answers of a worker.
#[derive(Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// A detached session.
    Session(WorkerSession),
    /// Memory that this worker no longer accesses, because no memory region of it is left.
    Memory(Option<Backing>),
    /// A CQ ring that this worker no longer writes.
    MappedCqRing(CqRing),
    /// The replaced CQ ring; this worker no longer writes it.
    Ring(CqRingPlace),
    /// A batch of posted work was sent.
    Sent {
        /// Frames, and other steps.
        frames: u32,
        /// There is more that can be sent, now or when there is room for frames.
        is_left: bool,
    },
    /// A queue pair that ended.
    Qp(Box<Qp>, QpRings),
    /// A queue pair was changed; memory that it did not need.
    Changed(ReplayMemory),
    /// A shared receive queue that ended.
    Srq(Box<Srq>, SrqRing),
    /// The limit that is armed or to be armed, or 0.
    SrqLimit(u32),
    /// A queue pair's attributes.
    Attributes(QpAttributes),
    /// Counters of a queue pair.
    Counters(QpCounters),
    /// Where to continue; `None` after the last queue pair.
    NextSlot(Option<u32>),
    /// Filled in.
    Snapshot(Box<WorkerSnapshot>),
    /// Nothing was changed; the objects of the command return.
    Refused(CommandRefused, Option<Command>),
}

/// Reason why a worker refused a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommandRefused {
    /// The transport says no.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// There is no such object on this worker.
    #[error("no such object on this worker")]
    NoSuchObject,
    /// A table is full, or the number is taken.
    #[error("no room on this worker")]
    NoRoom,
    /// Something still uses it.
    #[error("still in use on this worker")]
    InUse,
    /// The kernel would not watch an eventfd or a socket.
    #[error("the worker cannot watch a file descriptor: {0}")]
    Kernel(nix::errno::Errno),
}
