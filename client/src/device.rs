//! Devices: the root of all other objects.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::unistd;
use roced_abi::{
    control::{self, DeviceName, Event, Index, ListDevice, Nothing, OpenDevice, QueryDevice, QueryGid, QueryPort},
    doorbell::{MappedDoorbells, WorkerState, must_wake, ring_doorbell},
    layout::{session_bytes, state_bytes},
};
use roced_types::{WORKERS_MAX, event};

use crate::{
    cancellation::NoCancellation,
    error::{Error, Result},
    gid::{Gid, GidEntry, RoceVersion},
    mapping::{self, ClientMapping, Mode},
    private_memory::PrivateMemory,
    region_memory::MemoryInner,
    socket::{DaemonSession, default_path, lock},
};

/// An open device. Clones name the same device, which is closed when the last clone and every
/// object created from it are gone.
///
/// ```no_run
/// use roced_client::Device;
///
/// # fn main() -> roced_client::Result<()> {
/// for name in Device::list()? {
///     let device = Device::open(&name)?;
///     println!("{name}: path MTU {} bytes", device.port()?.active_mtu_bytes);
///     for entry in device.gids()? {
///         println!("  GID {}: {}", entry.index, entry.gid);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    name: String,
    number: u32,
    pub(crate) session: DaemonSession,
    pub(crate) workers: Vec<WorkerSide>,
    /// Memory allocated by the daemon, by address.
    pub(crate) memories: Mutex<BTreeMap<usize, Weak<MemoryInner>>>,
    tags: AtomicU32,
    private_memory: Mutex<PrivateMemory>,
}

/// This session's means to notify one worker: doorbells, sleep state and wake-up descriptor.
#[derive(Debug)]
pub(crate) struct WorkerSide {
    doorbells: MappedDoorbells<Arc<ClientMapping>>,
    state: WorkerState<Arc<ClientMapping>>,
    wake: OwnedFd,
}

/// Capabilities of a device and limits of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Node GUID, in wire order.
    pub node_guid: [u8; 8],
    /// Queue pairs per session.
    pub max_qps: u32,
    /// Send or receive work requests per queue pair.
    pub max_qp_wrs: u32,
    /// Scatter/gather entries per work request.
    pub max_sges: u32,
    /// Inline bytes per work request.
    pub max_inline_bytes: u32,
    /// Completion queues per session.
    pub max_cqs: u32,
    /// Entries per completion queue.
    pub max_cqes: u32,
    /// Memory regions per session.
    pub max_mrs: u32,
    /// Protection domains per session.
    pub max_pds: u32,
    /// Size of the largest memory region, in bytes.
    pub max_mr_bytes: u64,
    /// READs and atomic operations that a queue pair answers, or has outstanding, at a time.
    pub max_rd_atomic: u32,
    /// Size of the largest message, in bytes.
    pub max_message_bytes: u32,
    /// Address handles per session.
    pub max_ahs: u32,
    /// Shared receive queues per session.
    pub max_srqs: u32,
    /// Attachments of queue pairs to multicast groups, per session.
    pub max_attachments: u32,
}

/// State of a device's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// True if the link is up.
    pub active: bool,
    /// Largest path MTU that the link carries, in bytes.
    pub active_mtu_bytes: u32,
    /// Entries of the GID table; some may be empty.
    pub gid_entries: u32,
    /// MTU of the link itself, in bytes.
    pub link_mtu_bytes: u32,
    /// Speed of the link in Mbit/s, if known.
    pub speed_mbit_per_s: Option<u32>,
    /// Partition keys, by index: 15 bits name the partition, the highest bit marks its full
    /// members.
    pub pkeys: Vec<u16>,
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// A queue pair entered the error state on its own.
    QpFatal {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair entered the error state because the peer sent a request that violates the
    /// protocol.
    QpRequestError {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair entered the error state because the peer sent a request with an invalid key,
    /// range or access right.
    QpAccessError {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair that can only receive so far received the first request of its peer: the peer
    /// is ready to send.
    CommunicationEstablished {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair in SQD has completed all of its sends in progress
    /// ([`crate::QueuePair::to_sqd`]).
    SqDrained {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair with a shared receive queue has failed: it takes no more receives from the
    /// shared queue, and the receives that it had taken are flushed. Once its completions are
    /// reaped, it can be reset or dropped without loss.
    LastWqe {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A shared receive queue has fewer receives than its limit. The event disarms the limit.
    SrqLimit {
        /// Number of the shared receive queue.
        srqn: u32,
    },
    /// A full completion queue lost a completion; the queue pair of that completion has failed.
    CqError {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// The network interface of the device is gone: all queue pairs have failed. The device and its
    /// other objects stay; queue pairs can be reset and connected again after the next
    /// [`DeviceEvent::PortActive`].
    DeviceFatal,
    /// The link came up.
    PortActive,
    /// The link went down.
    PortDown,
    /// The GID table changed.
    GidChange,
}

impl Device {
    /// Lists the device names of the daemon at the socket named by `ROCED_SOCKET`, or at the
    /// default socket.
    ///
    /// # Errors
    /// No daemon; another version; no permission.
    pub fn list() -> Result<Vec<String>> {
        Self::list_at(&default_path())
    }

    /// Lists the device names of the daemon that listens at `socket`.
    ///
    /// # Errors
    /// Those of [`Self::list`].
    pub fn list_at(socket: &Path) -> Result<Vec<String>> {
        let (session, hello) = DaemonSession::open(socket)?;
        let name = |index| text(&session.call::<ListDevice>(Index { index })?);
        (0..hello.devices).map(name).collect()
    }

    /// Opens the device `name` of the daemon at the socket named by `ROCED_SOCKET`, or at the
    /// default socket.
    ///
    /// # Errors
    /// Those of [`Self::list`]; no device of that name.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_at(&default_path(), name)
    }

    /// Opens the device `name` of the daemon that listens at `socket`.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_at(socket: &Path, name: &str) -> Result<Self> {
        let (session, hello) = DaemonSession::open(socket)?;
        Self::with_session(session, hello.session, name)
    }

    /// Opens the device `name` over `socket`, which is already connected to the daemon. Takes
    /// ownership of the socket.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_over(socket: OwnedFd, name: &str) -> Result<Self> {
        let (session, hello) = DaemonSession::over(socket)?;
        Self::with_session(session, hello.session, name)
    }

    fn with_session(session: DaemonSession, number: u32, name: &str) -> Result<Self> {
        let private_memory = Mutex::new(PrivateMemory::from_environment()?);
        let (reply, fds) = session.call_with_any_fds::<OpenDevice>(DeviceName::new(name))?;
        let mut fds = fds.into_iter();
        let (Some(doorbells), Some(states), wakes) = (fds.next(), fds.next(), fds) else {
            return Err(Error::Protocol { what: "an opened device without its memory" });
        };
        let ids = reply.worker_ids.get(..reply.workers as usize).filter(|ids| !ids.is_empty());
        let ids = ids.ok_or(Error::Protocol { what: "an impossible number of workers" })?;
        let in_daemon = reply.workers_in_daemon;
        if ids.len() != wakes.len() || in_daemon > WORKERS_MAX || ids.iter().any(|id| u32::from(*id) >= in_daemon) {
            return Err(Error::Protocol { what: "workers that do not add up" });
        }
        let doorbells = ClientMapping::new(&doorbells, session_bytes(reply.workers), Mode::Populated)?;
        let states = ClientMapping::new(&states, state_bytes(in_daemon), Mode::ReadOnly)?;
        let worker = |(index, (id, wake)): (u32, (&u8, OwnedFd))| WorkerSide {
            doorbells: mapping::doorbells(&doorbells, index),
            state: mapping::worker_state(&states, (*id).into()),
            wake,
        };
        let workers = (0..).zip(ids.iter().zip(wakes)).map(worker).collect();
        let (memories, tags) = (Mutex::default(), AtomicU32::new(1));
        let inner = DeviceInner { name: name.into(), number, session, workers, memories, tags, private_memory };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Number of this session, as shown in the daemon's log and by `rocectl`.
    pub fn session_number(&self) -> u32 {
        self.inner.number
    }

    /// Chooses the way in which private memory is registered with this device from now on; before,
    /// it is that of the environment variable `ROCED_PRIVATE_MEMORY`.
    pub fn set_private_memory(&self, choice: PrivateMemory) {
        *lock(&self.inner.private_memory) = choice;
    }

    /// Queries the capabilities of the device.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        let it = self.inner.session.call::<QueryDevice>(Nothing {})?;
        Ok(DeviceAttributes {
            node_guid: it.node_guid,
            max_qps: it.max_qps,
            max_qp_wrs: it.max_qp_wrs,
            max_sges: it.max_sges,
            max_inline_bytes: it.max_inline_bytes,
            max_cqs: it.max_cqs,
            max_cqes: it.max_cqes,
            max_mrs: it.max_mrs,
            max_pds: it.max_pds,
            max_mr_bytes: it.max_mr_bytes,
            max_rd_atomic: it.max_rd_atomic,
            max_message_bytes: it.max_message_bytes,
            max_ahs: it.max_ahs,
            max_srqs: it.max_srqs,
            max_attachments: it.max_attachments,
        })
    }

    /// Queries the state of the port.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn port(&self) -> Result<PortAttributes> {
        let it = self.inner.session.call::<QueryPort>(Nothing {})?;
        Ok(PortAttributes {
            active: it.active == 1,
            active_mtu_bytes: it.active_mtu_bytes,
            gid_entries: it.gid_entries,
            link_mtu_bytes: it.link_mtu_bytes,
            speed_mbit_per_s: (it.speed_mbit_per_s != 0).then_some(it.speed_mbit_per_s),
            pkeys: it.pkeys.iter().take(it.pkey_entries as usize).copied().collect(),
        })
    }

    /// Returns the GID at `index`, or `None` if the entry is empty.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn gid(&self, index: u32) -> Result<Option<GidEntry>> {
        let it = match self.inner.session.call::<QueryGid>(Index { index }) {
            Err(Error::Refused { refusal: control::Refusal::NoSuchGid, .. }) => return Ok(None),
            other => other?,
        };
        let entry = GidEntry {
            index,
            gid: Gid(it.gid),
            ifindex: it.ifindex,
            vlan: u16::try_from(it.vlan).ok().filter(|vlan| *vlan < 4096),
            roce: if it.gid_type == control::gid_type::ROCE_V1 { RoceVersion::V1 } else { RoceVersion::V2 },
        };
        Ok((entry.gid != Gid::default()).then_some(entry))
    }

    /// Returns all GIDs.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        let entries = self.port()?.gid_entries;
        (0..entries).filter_map(|index| self.gid(index).transpose()).collect()
    }

    /// Selects the GID to reach `peer` from: a RoCEv2 GID of the same address family, link-local
    /// for a link-local peer. GIDs of the device itself take precedence over those of its VLANs.
    ///
    /// # Errors
    /// No such GID, or the daemon is gone.
    pub fn gid_toward(&self, peer: Gid) -> Result<GidEntry> {
        let fits = |entry: &GidEntry| {
            entry.gid == peer
                || entry.gid.is_ipv4() == peer.is_ipv4() && entry.gid.is_link_local() == peer.is_link_local()
        };
        let mut gids = self.gids()?;
        gids.retain(|entry| entry.roce == RoceVersion::V2);
        let plain_first = gids.iter().filter(|entry| entry.vlan.is_none()).chain(&gids);
        plain_first.copied().find(fits).ok_or(Error::NoSourceGid { gid: peer })
    }

    /// Returns the next asynchronous event, or `None`. Does not wait: [`Self::as_fd`] is readable
    /// when an event may be present.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn next_event(&self) -> Result<Option<DeviceEvent>> {
        while let Some(Event { kind, handle }) = self.inner.session.next_event()? {
            return Ok(Some(match kind {
                event::QP_FATAL => DeviceEvent::QpFatal { qpn: handle },
                event::QP_REQUEST_ERROR => DeviceEvent::QpRequestError { qpn: handle },
                event::QP_ACCESS_ERROR => DeviceEvent::QpAccessError { qpn: handle },
                event::COMMUNICATION_ESTABLISHED => DeviceEvent::CommunicationEstablished { qpn: handle },
                event::SQ_DRAINED => DeviceEvent::SqDrained { qpn: handle },
                event::QP_LAST_WQE => DeviceEvent::LastWqe { qpn: handle },
                event::SRQ_LIMIT => DeviceEvent::SrqLimit { srqn: handle },
                event::CQ_ERROR => DeviceEvent::CqError { cqn: handle },
                event::DEVICE_FATAL => DeviceEvent::DeviceFatal,
                event::PORT_ACTIVE => DeviceEvent::PortActive,
                event::PORT_DOWN => DeviceEvent::PortDown,
                event::GID_CHANGE => DeviceEvent::GidChange,
                // An event of a later daemon of this ABI, unknown to this library.
                _ => continue,
            }));
        }
        Ok(None)
    }

    /// Checks whether the daemon still serves this session. One system call.
    pub fn is_alive(&self) -> bool {
        !self.inner.session.look()
    }
}

impl AsFd for Device {
    /// File descriptor for the program's own `poll()`: readable when [`Device::next_event`] may
    /// have a result, including that the daemon is gone. It may become readable briefly while
    /// another thread makes a call.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.session.readiness()
    }
}

impl DeviceInner {
    /// Way in which private memory is registered.
    pub(crate) fn private_memory(&self) -> PrivateMemory {
        *lock(&self.private_memory)
    }

    /// The daemon maps no private memory of programs: the rest stays in place without a try.
    pub(crate) fn leave_private_memory(&self) {
        *lock(&self.private_memory) = PrivateMemory::Proxied;
    }

    /// Rings `doorbell` of a queue at worker `index`, and wakes the worker if it sleeps.
    pub(crate) fn ring(&self, index: u32, doorbell: u32) {
        let worker = &self.workers[index as usize];
        ring_doorbell(&worker.doorbells, doorbell);
        if must_wake(worker.state.asleep()) {
            // Posts are no cancellation points.
            let _whole = NoCancellation::new();
            // Fails only for a full counter, which wakes as well: the worker waits for edges.
            let _ = unistd::write(&worker.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns a tag that distinguishes a queue pair of this session from earlier ones with the
    /// same QPN.
    pub(crate) fn next_tag(&self) -> u32 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }
}

fn text(name: &DeviceName) -> Result<String> {
    name.as_str().map(String::from).ok_or(Error::Protocol { what: "a device name that is not UTF-8" })
}
