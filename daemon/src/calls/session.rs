//! A client's connection and everything that it owns.
//!
//! ```text
//!   connected ── Hello ──► greeted ── OpenDevice ──► open (objects) ──► gone: all of it undone
//!                             └────── OpenCm ──────► identifiers ────────┘
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use roced_abi::control::{Message, limit::AccountResource};
use roced_memory::{
    backing::Backing, channel::CqChannel, descriptor::Descriptor, proxied::CopyThread, quota::Room, shared_fd::SharedFd,
};
use roced_transport::{
    mr::{Mr, MrKey},
    qp::ServiceType,
    srq::SrqConfig,
};
use roced_types::{AccountId, Cqn, DeviceId, MemoryObjectId, Pdn, Qpn, SessionId, WorkerId, event::EventSubject};

use super::{
    path::{LifePort, Way},
    refused::Refused,
    unsealed::UnsealedQueues,
};
use crate::{
    accounts::ledger::{Charge, Ledger, LimitReached, SharedPool},
    client_socket::connection::{ClientConnection, ClientProcess},
    config::ClientLimits,
    last_work::LastWork,
    net::GidTableEntry,
    numbers::DoorbellBoard,
};

/// Memory that we map for clients.
pub(crate) const MAPPED_MEMORY: SharedPool = SharedPool::Daemon(AccountResource::MappedMemory);

/// Smaller mappings, those of most queues, count as long as their object alone: a charge of its own
/// would be a twentieth of the memory for a small queue pair. How many wait to be unmapped is
/// limited as all mappings are.
const LARGE_MAPPING: u64 = 64 << 10;

/// A connected client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) connection: ClientConnection,
    /// For its place among the clients, if it has one.
    pub(crate) place: Option<Charge>,
    /// Name of its program, from the client; empty before `Hello`.
    pub(crate) program: String,
    pub(crate) stage: SessionStage,
    /// A call that waits; none after it is read meanwhile.
    pub(crate) waiting: Option<WaitingCall>,
    /// It was told that there are too many.
    pub(crate) was_refused: bool,
    /// Since when its posted work found no room before a call.
    pub(crate) stuck_since: Option<Instant>,
    /// Since when a call waits for its user's mappings to be unmapped.
    pub(crate) unmapping_since: Option<Instant>,
}

/// A call that waits.
#[derive(Debug)]
pub(crate) enum WaitingCall {
    /// The connection itself, which is not watched: until its account may call.
    Connection,
    /// In the socket: until its account may call again.
    Throttled,
    /// In the socket: until descriptors of its user are closed, or a thread of the user has taken
    /// it or sent the last reply.
    Unreceived,
    /// Before it posted work is sent, or mappings are unmapped.
    Received { message: Box<Message>, descriptor: Option<Descriptor>, last_work: LastWork },
}

/// How far the hand-shake is.
#[derive(Debug)]
pub(crate) enum SessionStage {
    /// There are as many clients as may be: the first message is answered so.
    OneTooMany(Refused),
    /// `Hello` comes first.
    Connected,
    /// `OpenDevice` comes next.
    Greeted,
    /// Everything else.
    Open(Box<SessionObjects>),
    /// The connection manager; its identifiers are there.
    Cm,
}

/// Objects of a session, by the numbers that its client knows.
#[derive(Debug)]
pub(crate) struct SessionObjects {
    pub(crate) device: DeviceId,
    /// The client.
    pub(crate) process: ClientProcess,
    pub(crate) pds: BTreeMap<u32, PdObject>,
    pub(crate) memories: BTreeMap<u32, MemoryObject>,
    /// Reaches memory that stays where it is, once there is such.
    pub(crate) copy_thread: Option<(Arc<CopyThread>, Room)>,
    pub(crate) mrs: BTreeMap<u32, MrObject>,
    /// By the index of their keys.
    pub(crate) mws: BTreeMap<u32, MwObject>,
    pub(crate) channels: BTreeMap<u32, ChannelObject>,
    pub(crate) cqs: BTreeMap<u32, CqObject>,
    pub(crate) qps: BTreeMap<u32, QpObject>,
    pub(crate) ahs: BTreeMap<u32, AhObject>,
    pub(crate) srqs: BTreeMap<u32, SrqObject>,
    /// By queue pair and multicast group: the GID of the interface that joined it.
    pub(crate) attachments: BTreeMap<(u32, [u8; 16]), (GidTableEntry, Charge)>,
    /// One for each worker of the device.
    pub(crate) doorbells: Vec<DoorbellBoard>,
    /// Files of its queues.
    pub(crate) unsealed: UnsealedQueues,
    /// All memory that we map for it, bytes.
    bytes: u64,
    /// For those of small mappings.
    small: Charge,
    ledger: Ledger,
    pub(crate) qp_charges: ObjectCharges,
    pub(crate) srq_charges: ObjectCharges,
}

impl SessionObjects {
    /// The subject of an event exists.
    pub(crate) fn has(&self, subject: EventSubject, handle: u32) -> bool {
        match subject {
            EventSubject::Cq => self.cqs.contains_key(&handle),
            EventSubject::Qp => self.qps.contains_key(&handle),
            EventSubject::Srq => self.srqs.contains_key(&handle),
            EventSubject::Device => true,
        }
    }
}

/// Objects of the workers of one kind, and the memory that these need for them.
#[derive(Debug)]
pub(crate) struct ObjectCharges {
    objects: Charge,
    memory: Charge,
}

impl ObjectCharges {
    /// None yet, of this account.
    pub(crate) fn new(ledger: &Ledger, account: AccountId, objects: SharedPool) -> Result<Self, LimitReached> {
        let memory = SharedPool::Daemon(AccountResource::DaemonMemory);
        Ok(Self { objects: ledger.take(account, objects, 0)?, memory: ledger.take(account, memory, 0)? })
    }

    /// Counts one object more, with so much memory.
    pub(crate) fn add(&mut self, memory_bytes: u64) -> Result<(), LimitReached> {
        self.objects.add(1)?;
        self.memory.add(memory_bytes).inspect_err(|_| self.objects.remove(1))
    }

    /// Counts one object less.
    pub(crate) fn remove(&mut self, memory_bytes: u64) {
        self.objects.remove(1);
        self.memory.remove(memory_bytes);
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct PdObject {
    pub(crate) pdn: Pdn,
    /// Memory regions, memory windows, queue pairs and address handles in it.
    pub(crate) users: u32,
}

/// Memory of [`roced_abi::control::AllocMemory`].
#[derive(Debug)]
pub(crate) struct MemoryObject {
    pub(crate) object: MemoryObjectId,
    pub(crate) memory: Backing,
    /// Its file, until a region lies in it and the client has sealed it, where that is demanded.
    pub(crate) unsealed: Option<SharedFd>,
    /// Memory regions in it.
    pub(crate) users: u32,
    /// Of memory that is not mapped: that of a mapping lasts until it is unmapped.
    pub(crate) _charge: Option<Charge>,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct MrObject {
    /// As it stands in every worker's table.
    pub(crate) mr: Mr,
    pub(crate) pd: u32,
    pub(crate) memory: u32,
    /// Memory windows bound to it.
    pub(crate) windows: u32,
    pub(crate) _charge: Charge,
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct MwObject {
    /// The name that it was given last.
    pub(crate) key: MrKey,
    pub(crate) kind: MwKind,
    pub(crate) pd: u32,
    pub(crate) bound: Option<WindowBound>,
    pub(crate) _charge: Charge,
}

/// Users of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MwKind {
    /// Type 1: to its protection domain.
    One,
    /// Type 2B: to the queue pair that bound it, in its protection domain.
    Two,
}

/// The region of a memory window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBound {
    pub(crate) mr: u32,
    /// The queue pair that it opens to, of a window of type 2.
    pub(crate) qpn: Option<Qpn>,
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct ChannelObject {
    pub(crate) channel: Arc<CqChannel>,
    /// Queues that there is room for. Events of destroyed queues may occupy it for a while.
    pub(crate) room: u32,
    /// Completion queues that report to it.
    pub(crate) users: u32,
    pub(crate) _charge: Charge,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CqObject {
    pub(crate) cqn: Cqn,
    pub(crate) channel: Option<u32>,
    /// Of the memfd that it was made with, which has its arm word, and of that of its CQ rings now
    /// if they are others.
    pub(crate) bytes: u64,
    pub(crate) resized_bytes: u64,
    /// Queues of queue pairs that complete into it.
    pub(crate) users: u32,
    pub(crate) _charge: Charge,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QpObject {
    pub(crate) qpn: Qpn,
    pub(crate) service: ServiceType,
    pub(crate) worker: WorkerId,
    /// The worker's place among those of the device: there are 64 at most.
    pub(crate) cq_ring: u8,
    pub(crate) doorbell: u32,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    /// Mapped for it, in whole KiB.
    pub(crate) mapped_kib: u16,
    /// Of the worker, for it, in whole KiB.
    pub(crate) memory_kib: u16,
    pub(crate) path: Option<Way>,
    /// Of its present life, or of the one to come.
    pub(crate) life: LifePort,
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct AhObject {
    pub(crate) pd: u32,
    pub(crate) way: Way,
    pub(crate) _charge: Charge,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqObject {
    pub(crate) config: SrqConfig,
    pub(crate) worker: WorkerId,
    /// The worker's place among those of the device.
    pub(crate) cq_ring: usize,
    pub(crate) doorbell: u32,
    pub(crate) pd: u32,
    pub(crate) bytes: u64,
    /// Queue pairs that take from it.
    pub(crate) users: u32,
}

/// A number by which a client names an object, and the table that contains it.
pub(crate) fn find<T>(objects: &mut BTreeMap<u32, T>, number: u32) -> Result<&mut T, Refused> {
    objects.get_mut(&number).ok_or(Refused::no_object(number))
}

impl SessionObjects {
    /// None yet, on a device with `workers` workers.
    pub(crate) fn new(
        device: DeviceId,
        workers: usize,
        process: ClientProcess,
        ledger: &Ledger,
    ) -> Result<Self, LimitReached> {
        let account = process.account;
        let of = |resource| ObjectCharges::new(ledger, account, SharedPool::Device(resource, device));
        Ok(Self {
            device,
            process,
            pds: BTreeMap::new(),
            memories: BTreeMap::new(),
            copy_thread: None,
            mrs: BTreeMap::new(),
            mws: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ahs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            attachments: BTreeMap::new(),
            doorbells: (0..workers).map(|_| DoorbellBoard::default()).collect(),
            unsealed: UnsealedQueues::default(),
            bytes: 0,
            small: ledger.take(account, MAPPED_MEMORY, 0)?,
            ledger: ledger.clone(),
            qp_charges: of(AccountResource::Qps)?,
            srq_charges: of(AccountResource::Srqs)?,
        })
    }

    /// Counts `bytes` more of memory against the limits of the client and of its account. The
    /// charge is to last until the memory is unmapped, which may be long after
    /// [`Self::give_back`]; there is none for a small mapping.
    pub(crate) fn charge(&mut self, bytes: u64, limits: &ClientLimits) -> Result<Option<Charge>, Refused> {
        let limit = limits.memory_bytes();
        if self.bytes.checked_add(bytes).is_none_or(|sum| sum > limit) {
            return Err(Refused::limit(limit));
        }
        let charge = if bytes < LARGE_MAPPING {
            self.small.add(bytes)?;
            None
        } else {
            Some(self.ledger.take(self.process.account, MAPPED_MEMORY, bytes)?)
        };
        self.bytes += bytes;
        Ok(charge)
    }

    /// Counts the bytes of a mapping less.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        if bytes < LARGE_MAPPING {
            self.small.remove(bytes);
        }
    }

    /// Memory that we map for it, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Refuses when there are `limit` objects already.
pub(crate) fn check_limit<T>(objects: &BTreeMap<u32, T>, limit: u32) -> Result<(), Refused> {
    if objects.len() as u64 >= u64::from(limit) { Err(Refused::limit(limit)) } else { Ok(()) }
}
