//! Configuration of the operator: `roced.toml` as types, and its possible errors.
//!
//! [`Config::parse`] reads the whole document and returns every mistake with its line, never only
//! the first one. Conditions of the running machine (existence of the interface, free queues) are
//! checked later by the part that opens it; only the cores are looked up here. `config/roced.toml`
//! documents each key, and a test compares it with this file.

mod access;
mod changes;
mod choices;
mod classes;
mod dcqcn;
mod file;
mod pfc;
mod read;
mod reader;
mod syntax;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use roced_abi::DEFAULT_SOCKET;
use roced_report::DEFAULT_ADMIN_SOCKET;
use roced_transport::partition::Pkey;
use roced_types::Qpn;
use roced_xdp::{CopyMode, NicQueueConfig, XdpMode, dcb::PrioritySet};

pub use self::reader::{ConfigProblem, Key};
use self::reader::{PROBLEMS_MAX, Reader};
pub use self::{
    access::{AccessRule, AccountName, RuleLimits},
    changes::Changes,
    choices::{
        CnpChoice, CongestionChoice, Credits, DcbChoice, DcqcnPreset, EcnChoice, GlobalPauseChoice, IdleChoice,
        LogLevel, LogTarget, NapiChoice, ProxiedChoice, RecoveryChoice, RoceVersions, UnsealedChoice, WatchdogChoice,
    },
    classes::{ClassesConfig, PacketPriorities},
    dcqcn::DcqcnConfig,
    pfc::PfcConfig,
};

/// The config that is read when the command line names none.
pub const DEFAULT_PATH: &str = "/etc/roced/roced.toml";

/// Everything in `roced.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[log]`
    pub log: LogConfig,
    /// `[control]`
    pub control: ControlConfig,
    /// `[admin]`
    pub admin: AdminConfig,
    /// `[net]`
    pub net: NetConfig,
    /// `[limits]`
    pub limits: LimitsConfig,
    /// `[[access]]`, in order.
    pub access: Vec<AccessRule>,
    /// `[[worker]]`, in order; never empty in a config that was read.
    pub workers: Vec<WorkerConfig>,
    /// `[[device]]`, in order; never empty in a config that was read.
    pub devices: Vec<DeviceConfig>,
}

/// Access of a running daemon to its config file, and to the part of it that is in effect before
/// the daemon starts.
pub struct ConfigSource {
    /// The file.
    pub file: PathBuf,
    /// Sets [`LogConfig::level`].
    pub set_log_level: Box<dyn Fn(LogLevel)>,
}

/// `[log]`: messages of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The least important message that is written.
    pub level: LogLevel,
    /// Where to.
    pub target: LogTarget,
}

/// `[control]`: the socket that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Group that the socket belongs to; `None` leaves it the daemon's own.
    pub group: Option<String>,
    /// Permission bits of the socket.
    pub mode: u32,
}

/// `[admin]`: the socket that `rocectl` connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Group of operators; `None` for the usual one, if it exists.
    pub group: Option<String>,
}

/// `[net]`: how the kernel's network is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// How long a queue pair waits for its next hop's MAC address before the path counts as
    /// unreachable.
    pub resolve_timeout_ms: u32,
    /// Networks that no traffic is exchanged with.
    pub denied_peers: Vec<IpNet>,
}

/// `[limits]`: how much clients may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Clients connected at a time.
    pub clients: u32,
    /// Limits of each account.
    pub account: AccountLimits,
    /// Limits of each client.
    pub client: ClientLimits,
    /// Limits of all clients of a device together.
    pub device: DeviceLimits,
    /// Limits of the connection manager.
    pub cm: CmLimits,
}

/// `[limits.account]`: limits of all clients of a user together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountLimits {
    /// Largest part of an account in the rest of each pool that others leave,
    /// percent.
    pub share_percent: u32,
    /// Clients; `None` is its share.
    pub clients: Option<u32>,
    /// Queue pairs; `None` is its share.
    pub qps: Option<u32>,
    /// Completion queues.
    pub cqs: u32,
    /// Completion channels; `None` is an eighth of the files that the daemon may have open.
    pub channels: Option<u32>,
    /// Memory regions; `None` is its share.
    pub mrs: Option<u32>,
    /// Address handles; `None` is its share.
    pub ahs: Option<u32>,
    /// Shared receive queues; `None` is its share.
    pub srqs: Option<u32>,
    /// Attachments to multicast groups; `None` is its share.
    pub attachments: Option<u32>,
    /// Memory that the daemon maps and locks, MiB; `None` is three quarters of the host's.
    pub memory_mib: Option<u64>,
    /// Memory that the daemon itself needs for objects, MiB.
    pub daemon_memory_mib: u64,
    /// Control calls a second.
    pub control_calls_per_second: u32,
    /// Highest rate of frames to NICs, Mbit/s; `None` is no limit.
    pub max_rate_mbit: Option<u32>,
}

/// `[limits.client]`: limits of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Completion channels.
    pub channels: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub ahs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Attachments to multicast groups.
    pub attachments: u32,
    /// Memory that the daemon maps and locks for it, MiB.
    pub memory_mib: u64,
    /// Whether it may register memory that stays in place.
    pub proxied_memory: ProxiedChoice,
    /// Whether memory of which it can take pages is mapped.
    pub unsealed_memory: UnsealedChoice,
}

impl ClientLimits {
    /// The memory limit in bytes.
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }
}

/// `[limits.device]`: limits of all clients of one device together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Address handles.
    pub ahs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Attachments to multicast groups.
    pub attachments: u32,
}

/// `[limits.cm]`: limits of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmLimits {
    /// Connections of all programs, those in TIMEWAIT included.
    pub connections: u32,
    /// Identifiers of all programs of an account, requests of peers and memberships of groups included.
    pub ids_of_account: u32,
    /// Event channels of all programs of an account; `None` is an eighth of the files that the daemon
    /// may have open, 4096 at most.
    pub channels_of_account: Option<u32>,
    /// Memberships of multicast groups of all programs of an account.
    pub groups_of_account: u32,
}

/// `[[worker]]`: a thread that moves packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Core that it is pinned to.
    pub core: Option<u32>,
    /// Idle policy.
    pub idle: IdleChoice,
    /// With [`IdleChoice::Sleep`]: how long it looks for work, yielding between looks, before it
    /// blocks.
    pub spin_us: u32,
}

/// `[[device]]`: a network interface offered to clients under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The name that clients open.
    pub name: String,
    /// The network interface.
    pub interface: String,
    /// How the XDP program is attached.
    pub xdp_mode: XdpMode,
    /// How frames get between NIC and UMEM.
    pub copy_mode: CopyMode,
    /// Where the kernel polls the queues.
    pub napi: NapiChoice,
    /// RX queues and their owners.
    pub queues: Queues,
    /// Frames in the UMEM of each queue.
    pub umem_frames: u32,
    /// Bytes of each of them.
    pub chunk_bytes: u32,
    /// Entries of each queue's RX ring.
    pub rx_ring_entries: u32,
    /// Entries of each queue's TX ring.
    pub tx_ring_entries: u32,
    /// Entries of each queue's fill ring.
    pub fill_ring_entries: u32,
    /// Entries of each queue's completion ring.
    pub completion_ring_entries: u32,
    /// How long a queue that answers "busy" is tried again.
    pub queue_busy_ms: u32,
    /// Packets that one queue pair has in flight at most.
    pub window_packets: u32,
    /// Packets in flight of all queue pairs of one worker on this device at most.
    pub total_window_packets: u32,
    /// Highest rate of all frames of queue pairs to the NIC, Mbit/s; `None` is no limit.
    pub max_rate_mbit: Option<u32>,
    /// Versions of RoCE that its addresses speak.
    pub roce: RoceVersions,
    /// Its partition keys, at least one, in the order of their indices.
    pub pkeys: Vec<Pkey>,
    /// Whether reliable connections have end-to-end flow control.
    pub credits: Credits,
    /// Whether packets of connections may be marked by congested switches.
    pub ecn: EcnChoice,
    /// How connections react to congestion.
    pub congestion_control: CongestionChoice,
    /// Round trip above which windows become smaller; 0 for no such limit.
    pub delay_guard_us: u16,
    /// Parameters of rates that follow CNPs.
    pub dcqcn: DcqcnConfig,
    /// Traffic classes of sent packets.
    pub classes: ClassesConfig,
    /// Pauses by the other end of the link.
    pub pfc: PfcConfig,
    /// Whether peers are told of marks on their packets.
    pub cnp: CnpChoice,
    /// Least time between two CNPs of a queue pair.
    pub min_time_between_cnps_us: u32,
    /// DSCP of CNPs.
    pub cnp_dscp: u8,
    /// Priority of CNPs in a VLAN tag.
    pub cnp_802p_prio: u8,
    /// Networks of peers that get no CNPs.
    pub cnp_except: Vec<IpNet>,
    /// Whether the NIC's settings are compared with the next two keys, and changed.
    pub dcb: DcbChoice,
    /// Priorities that the NIC has to have PFC for.
    pub lossless_priorities: PrioritySet,
    /// Priority that the NIC has to have for a DSCP.
    pub dscp_prio: BTreeMap<u8, u8>,
    /// How losses are made good.
    pub recovery: RecoveryChoice,
    /// How long a packet may come late before it counts as lost.
    pub reorder_delay_us: u32,
    /// The least time without an answer before a probe is sent.
    pub probe_floor_us: u32,
    /// Packets that each worker can hold until their turn.
    pub out_of_order_packets: u32,
}

impl DeviceConfig {
    /// Priorities of its packets.
    pub fn priorities(&self) -> PacketPriorities {
        PacketPriorities { dscp_prio: self.dscp_prio.clone(), trust: self.classes.trust }
    }
}

/// `device.queues`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Every RX queue of the interface, dealt out to all workers in turn.
    All,
    /// These.
    Listed(Vec<QueueOwner>),
}

/// An RX queue and the worker that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOwner {
    /// Number of the RX queue.
    pub queue: u32,
    /// Number of the worker: its place among the `[[worker]]` sections, from 0.
    pub worker: u32,
}

impl Queues {
    /// Owners of the queues of an interface with `rx_queues` RX queues, in a daemon with `workers`
    /// workers.
    pub fn owners(&self, rx_queues: u32, workers: u32) -> Vec<QueueOwner> {
        match self {
            Self::All => (0..rx_queues).map(|queue| QueueOwner { queue, worker: queue % workers.max(1) }).collect(),
            Self::Listed(owners) => owners.clone(),
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: LogLevel::Info, target: LogTarget::Stderr }
    }
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self { socket: DEFAULT_SOCKET.into(), group: None, mode: 0o660 }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { socket: DEFAULT_ADMIN_SOCKET.into(), group: None }
    }
}

impl Default for NetConfig {
    fn default() -> Self {
        // The kernel itself gives up after three requests a second apart.
        Self { resolve_timeout_ms: 3000, denied_peers: Vec::new() }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            clients: 1024,
            account: AccountLimits::default(),
            client: ClientLimits::default(),
            device: DeviceLimits::default(),
            cm: CmLimits::default(),
        }
    }
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self {
            // One account alone has most of everything, and another one always finds room.
            share_percent: 75,
            clients: None,
            qps: None,
            cqs: 16_384,
            channels: None,
            mrs: None,
            ahs: None,
            srqs: None,
            attachments: None,
            memory_mib: None,
            // Some 20,000 queue pairs of 128 requests with 220 inline bytes each; a guess.
            daemon_memory_mib: 1024,
            // More than programs that start make, and of calls that take long as many as there is
            // time for.
            control_calls_per_second: 50_000,
            max_rate_mbit: None,
        }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            qps: 1024,
            cqs: 1024,
            channels: 256,
            mrs: 4096,
            pds: 256,
            ahs: 1024,
            srqs: 256,
            attachments: 64,
            memory_mib: 4096,
            proxied_memory: ProxiedChoice::Auto,
            unsealed_memory: UnsealedChoice::Mapped,
        }
    }
}

impl DeviceLimits {
    /// Queue pairs that each endpoint has room for: any may have all, as far as its numbers reach.
    pub fn qps_per_endpoint(&self) -> u32 {
        self.qps.min(Qpn::INDEX_COUNT)
    }

    /// Places for shared receive queues in each endpoint: the first endpoint does not use those of
    /// queue pairs 0 and 1.
    pub const fn srq_places(&self) -> u32 {
        self.srqs + 2
    }
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self { qps: 16_384, mrs: 65_536, ahs: 16_384, srqs: 4096, attachments: 1024 }
    }
}

impl Default for CmLimits {
    fn default() -> Self {
        // 64 MiB of connections; of a user 16,384 connections, and as many requests. Guesses.
        Self { connections: 1 << 17, ids_of_account: 1 << 15, channels_of_account: None, groups_of_account: 256 }
    }
}

impl Default for WorkerConfig {
    fn default() -> Self {
        // A guess by figures of a prototype (docs/tuning.md): with 64 B on 2 cores 12.6 us median
        // round trip, against 55 us without the spin; and still asleep when idle.
        Self { core: None, idle: IdleChoice::Sleep, spin_us: 50 }
    }
}

impl DeviceConfig {
    /// The device `name` on `interface`, everything else as by default.
    pub fn new(name: impl Into<String>, interface: impl Into<String>) -> Self {
        let interface = interface.into();
        let queue = NicQueueConfig::new(interface.as_str(), 0);
        Self {
            name: name.into(),
            interface,
            xdp_mode: XdpMode::Auto,
            copy_mode: queue.copy_mode,
            napi: NapiChoice::Driver,
            queues: Queues::All,
            umem_frames: queue.umem_frames,
            chunk_bytes: queue.chunk_bytes,
            rx_ring_entries: queue.rx_ring_entries,
            tx_ring_entries: queue.tx_ring_entries,
            fill_ring_entries: queue.fill_ring_entries,
            completion_ring_entries: queue.completion_ring_entries,
            queue_busy_ms: queue.busy_deadline.as_millis() as u32,
            window_packets: 128,
            total_window_packets: 192,
            max_rate_mbit: None,
            roce: RoceVersions::V2,
            pkeys: vec![Pkey::DEFAULT],
            credits: Credits::On,
            ecn: EcnChoice::Off,
            congestion_control: CongestionChoice::Off,
            delay_guard_us: 0,
            dcqcn: DcqcnConfig::default(),
            classes: ClassesConfig::default(),
            pfc: PfcConfig::default(),
            cnp: CnpChoice::On,
            min_time_between_cnps_us: 50,
            cnp_dscp: 48,
            cnp_802p_prio: 6,
            cnp_except: Vec::new(),
            dcb: DcbChoice::Check,
            lossless_priorities: PrioritySet::default(),
            dscp_prio: BTreeMap::new(),
            recovery: RecoveryChoice::Selective,
            reorder_delay_us: 0,
            probe_floor_us: 100,
            out_of_order_packets: 1024,
        }
    }

    /// Configuration of one RX and TX queue of the device.
    pub fn nic_queue(&self, queue: u32, link_mtu_bytes: u32) -> NicQueueConfig {
        NicQueueConfig {
            interface: self.interface.as_str().into(),
            queue,
            copy_mode: self.copy_mode,
            link_mtu_bytes,
            umem_frames: self.umem_frames,
            chunk_bytes: self.chunk_bytes,
            rx_ring_entries: self.rx_ring_entries,
            tx_ring_entries: self.tx_ring_entries,
            fill_ring_entries: self.fill_ring_entries,
            completion_ring_entries: self.completion_ring_entries,
            busy_deadline: Duration::from_millis(self.queue_busy_ms.into()),
        }
    }
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the config file {}: {error}{}", shown(path), remedy(error))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The file says something wrong.
    #[error("{} in the config file {}:\n{}", counted(problems.len()), shown(path), listed(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All that is wrong, in the order of the file; of very many the first found.
        problems: Vec<ConfigProblem>,
    },
}

/// A path without the characters that have an effect on a terminal or begin a line of the log.
pub(crate) fn shown(path: &Path) -> String {
    roced_output::escaped(&path.display().to_string())
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            ": one to start from is config/roced.toml of the sources, or /usr/share/doc/roced/examples/roced.toml of the package"
        }
        io::ErrorKind::PermissionDenied => ": the user that roced runs as must be able to read it",
        _ => "",
    }
}

fn counted(problems: usize) -> String {
    let more = if problems == PROBLEMS_MAX { " or more" } else { "" };
    format!("{problems} mistake(s){more}")
}

fn listed(path: &Path, problems: &[ConfigProblem]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {}:{problem}", shown(path))).collect();
    lines.join("\n")
}

impl Config {
    /// Reads the file at `path`, for this machine.
    ///
    /// # Errors
    /// When it cannot be read, or with everything that is wrong in it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&file::read(path)?, &online_cores())
            .map_err(|problems| ConfigError::Invalid { path: path.into(), problems })
    }

    /// Reads a document for a machine with these cores.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the document; of very many mistakes 100.
    pub fn parse(text: &str, cores: &[u32]) -> Result<Self, Vec<ConfigProblem>> {
        let reader = Reader::new(text);
        let config = reader.read(|top| read::config(top, cores));
        let (problems, _) = reader.finish();
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Every key that the config has.
    pub fn keys() -> Vec<Key> {
        let reader = Reader::new("[[access]]\n[[worker]]\n[[device]]\nqueues = [{}]\n");
        reader.read(|top| read::config(top, &[0]));
        reader.finish().1
    }
}

/// The cores that the kernel runs; empty when it does not say, and then no core is refused.
fn online_cores() -> Vec<u32> {
    fs::read_to_string("/sys/devices/system/cpu/online").map(|list| parse_cores(&list)).unwrap_or_default()
}

/// Takes a list such as `0-3,8` apart.
fn parse_cores(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests;
