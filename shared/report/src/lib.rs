//! Reports of the daemon to an operator: the JSON of its admin socket, read by `rocectl`.
//!
//! The admin socket is a Unix stream socket. One request is one line, the JSON of a [`Question`];
//! the answer is one line, the JSON of the matching report, or of a [`Problem`].
#![no_std]

extern crate alloc;

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// Where the daemon listens for operators unless the config says otherwise.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/roced-admin/admin.sock";

/// Environment variable by which `rocectl` is told another socket path.
pub const ADMIN_SOCKET_VARIABLE: &str = "ROCED_ADMIN_SOCKET";

/// A question or an order of an operator. Orders are for root and the daemon's own user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// A [`StatusReport`].
    Status,
    /// A [`QpsReport`].
    Qps,
    /// A [`CmReport`].
    Cm,
    /// A [`CountersReport`].
    Counters,
    /// An [`AccountsReport`].
    Accounts,
    /// Takes a device off its interface, by name; a [`DeviceReport`].
    DeviceRemove(String),
    /// Serves a removed device again, by name; a [`DeviceReport`], of which the state is
    /// "attaching" at first.
    DeviceAdd(String),
}

/// The daemon could not answer. Other reports with a problem among their fields are no `Problem`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// Description of a problem and its remedy.
    pub problem: String,
}

/// The daemon and its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Version of the daemon.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it served.
    pub uptime_s: f64,
    /// Clients connected now.
    pub sessions: Vec<SessionReport>,
    /// In the order of the config.
    pub devices: Vec<DeviceReport>,
    /// In the order of the config.
    pub workers: Vec<WorkerReport>,
    /// Confinement of the daemon.
    pub sandbox: SandboxReport,
}

/// The daemon's confinement of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// False with `--no-sandbox`.
    pub in_force: bool,
    /// Version of Landlock of the kernel, or why there is none.
    pub landlock: String,
    /// Each kind of thread.
    pub threads: Vec<SandboxedThreadReport>,
}

/// The confinement of a kind of thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxedThreadReport {
    /// The kind.
    pub thread: String,
    /// System calls that it may make; any other one kills the daemon.
    pub system_calls: Vec<String>,
    /// Capabilities that it has.
    pub capabilities: Vec<String>,
    /// Folders and files that it can open, with the accesses.
    pub files: Vec<String>,
}

/// Accounts of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountsReport {
    /// Those that have something, or were refused something or delayed, by their uids.
    pub accounts: Vec<AccountReport>,
}

/// All clients of a user together. The keys of the maps are those under `[limits.account]` in the
/// daemon's config; memory is in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountReport {
    /// User, for its subordinate uids as well.
    pub uid: u32,
    /// Objects and bytes that it has.
    pub taken: BTreeMap<String, u64>,
    /// Its limits; the share of the rest that others leave may be less. `u64::MAX` is none.
    pub limits: BTreeMap<String, u64>,
    /// Calls refused since it has had something.
    pub refused: BTreeMap<String, u64>,
    /// Control calls a second that it may make.
    pub control_calls_per_second: u32,
    /// Times that a call waited because it made more, since it has had something.
    pub delayed_calls: u64,
    /// Highest rate of its frames to NICs, Mbit/s; 0 is no limit.
    #[serde(default)]
    pub max_rate_mbit: u32,
    /// Turns of its queue pairs that waited for that rate, since it has had something.
    #[serde(default)]
    pub delayed_turns: u64,
    /// Messages to its programs, and from them, that had the kernel walk very many waiters at their
    /// sockets: a thread of the user's handles its messages for a while after each. Since the first
    /// of its programs connected that are there.
    pub slow_wakes: u64,
    /// Destinations of its programs with a neighbor that was asked for later: the kernel was
    /// looking for many others of the user, or of all users. Since the daemon started.
    pub delayed_neighbors: u64,
}

/// A client's connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number.
    pub session: u32,
    /// Process at the other end, as the kernel said when it connected.
    pub pid: i32,
    /// Name of its program, from its client library.
    pub program: String,
    /// User at the other end.
    pub uid: u32,
    /// The device it opened, empty before it did.
    pub device: String,
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of memory that the daemon maps and locks for it, queues included.
    pub memory_bytes: u64,
    /// How the memory that regions lie in is reached.
    pub memory: MemoryReport,
}

/// How a client's memory is reached, by bytes that the daemon maps: those under several regions of
/// the program's own memory count for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The daemon made it.
    pub allocated_bytes: u64,
    /// Private memory of the program, with its pages replaced by shared ones.
    pub migrated_bytes: u64,
    /// Memory that the program shares itself.
    pub file_backed_bytes: u64,
    /// Memory of the program that the daemon does not map: the kernel copies each packet.
    pub proxied_bytes: u64,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Name, as clients open it.
    pub name: String,
    /// Network interface.
    pub interface: String,
    /// "serving", "attaching" (for a moment), "no interface" (served again when it returns),
    /// "failed" (tried again every few seconds), or "removed" (by an operator).
    pub state: String,
    /// Why it failed, or why nothing can be sent although it is served (an MTU that is too small),
    /// and a remedy; else empty.
    pub problem: String,
    /// "native" or "generic": how the XDP program is attached; empty while it is not.
    pub xdp_mode: String,
    /// "driver" or "threaded": where the kernel polls the queues.
    pub napi: String,
    /// "on" or "off": whether packets of connections say that congested switches may mark them.
    #[serde(default)]
    pub ecn: String,
    /// "window" or "off": how connections react to congestion.
    #[serde(default)]
    pub congestion_control: String,
    /// Traffic classes with their shares in percent or "strict", and highest rates in Mbit/s, such
    /// as "0=20% 3=80%:8000M 6=strict"; "off" without classes.
    #[serde(default)]
    pub classes: String,
    /// Highest rate of all frames of queue pairs to the NIC, Mbit/s; 0 is no limit.
    #[serde(default)]
    pub max_rate_mbit: u32,
    /// Pauses by the other end of the link that roced honors: priorities, such as "3 4", or
    /// "global"; "off" if there are none.
    #[serde(default)]
    pub pauses: String,
    /// Link up.
    pub link_up: bool,
    /// MTU of the link, bytes.
    pub link_mtu_bytes: u32,
    /// Largest path MTU, bytes.
    pub path_mtu_bytes: u32,
    /// MAC address, `aa:bb:cc:dd:ee:ff`.
    pub mac: String,
    /// GIDs with their index.
    pub gids: Vec<GidReport>,
    /// RX queues.
    pub queues: Vec<QueueReport>,
    /// Data center bridging of the NIC.
    #[serde(default)]
    pub dcb: DcbReport,
}

/// Data center bridging of a NIC when its device was attached last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DcbReport {
    /// "ignore", "check" or "apply".
    pub mode: String,
    /// "ignored" (not asked), "unsupported" (the driver has no DCB), "unreadable", "nothing wanted",
    /// "as configured" or "differs".
    pub state: String,
    /// Why it could not be read, or why differences were not written; else empty.
    pub problem: String,
    /// Priorities with PFC.
    pub lossless_priorities: Vec<u8>,
    /// Priorities of DSCPs that the driver has an entry for.
    pub dscp_prio: BTreeMap<u8, Vec<u8>>,
    /// Differences to the config.
    pub findings: Vec<DcbFindingReport>,
}

/// A difference between a NIC and the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DcbFindingReport {
    /// The difference, in a line.
    pub problem: String,
    /// The command that mends it; empty if there is none.
    pub command: String,
}

/// A GID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidReport {
    /// Index in the GID table.
    pub index: u32,
    /// The address it stands for: IPv4 dotted, or IPv6.
    pub address: String,
    /// VLAN, if any.
    pub vlan: Option<u16>,
    /// By which RoCE it speaks: 1 or 2.
    pub roce: u8,
}

/// An RX queue with its AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Queue number.
    pub queue: u32,
    /// Worker that owns it.
    pub worker: u32,
    /// "zerocopy" or "copy".
    pub mode: String,
    /// Why.
    pub reason: String,
}

/// A worker thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Its number.
    pub worker: u32,
    /// Core that it is pinned to, if any.
    pub core: Option<u32>,
    /// "spin", "yield" or "sleep".
    pub idle: String,
    /// Poll iterations so far.
    pub polls: u64,
    /// Times it slept so far.
    pub sleeps: u64,
}

/// All queue pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpsReport {
    /// By number.
    pub qps: Vec<QpReport>,
}

/// Identifiers of programs that use rdma_cm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmReport {
    /// By session and number.
    pub ids: Vec<CmIdReport>,
}

/// An identifier (`rdma_cm_id`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmIdReport {
    /// Number in its session.
    pub id: u32,
    /// "TCP", "UDP" or "IPoIB".
    pub port_space: String,
    /// Device name, empty before the identifier is bound to one.
    pub device: String,
    /// Owner.
    pub session: u32,
    /// Process of the owner.
    pub pid: i32,
    /// Name of its program, from its client library.
    pub program: String,
    /// "idle", "bound", "resolving", "resolved", "routed", "listening", "connect", "disconnected"
    /// or "device gone".
    pub state: String,
    /// State of the connection by the names of IBTA v1 12.9, e.g. "ReqSent" or "Established"; empty
    /// without one.
    pub connection: String,
    /// Local address and port, empty before the identifier is bound.
    pub local: String,
    /// The peer's, empty before it is known.
    pub peer: String,
    /// Queue pair, 0 before it is known.
    pub qpn: u32,
    /// The peer's queue pair, 0 before it is known.
    pub peer_qpn: u32,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpReport {
    /// Its number.
    pub qpn: u32,
    /// Device name.
    pub device: String,
    /// Owner.
    pub session: u32,
    /// Process of the owner.
    pub pid: i32,
    /// Name of its program, from its client library.
    pub program: String,
    /// "RC", "UC" or "UD".
    pub service: String,
    /// Worker that runs it.
    pub worker: u32,
    /// "RESET", "INIT", "RTR", "RTS" or "ERR".
    pub state: String,
    /// Peer's address, empty before RTR.
    pub peer: String,
    /// Peer's queue pair.
    pub dest_qpn: u32,
    /// Path MTU, bytes, 0 before RTR.
    pub path_mtu_bytes: u32,
    /// "nic", "local" (a peer on this host), "resolving", "unreachable", or empty before RTR.
    pub path: String,
    /// PSN of the next new request packet, from RTS on.
    pub next_psn: Option<u32>,
    /// PSN of the oldest request packet without an acknowledgment.
    pub oldest_psn: Option<u32>,
    /// PSN of the next request packet of the peer, from RTR on.
    pub expected_psn: Option<u32>,
    /// Send work requests that are not complete.
    pub sends: u32,
    /// Receive work requests in its own queue that are not complete.
    pub receives: u32,
    /// Packets without an acknowledgment.
    pub in_flight_packets: u32,
    /// Smoothed round-trip time, ns; 0 before the first measurement.
    pub round_trip_ns: u64,
    /// Congestion window of requests, packets; none without `congestion_control`.
    #[serde(default)]
    pub request_window_packets: Option<f64>,
    /// Congestion window of the READ responses that it asks for, packets.
    #[serde(default)]
    pub response_window_packets: Option<f64>,
    /// Rate to which CNPs limit it, Mbit/s; none without a limit.
    #[serde(default)]
    pub rate_mbit_per_s: Option<f64>,
    /// Cause of its failure since the last RESET, empty without one.
    pub last_error: String,
    /// Its own counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Every counter, grouped by owner: `control`, `device/roce0`, `device/roce0/queue/0`,
/// `device/roce0/worker/0`, `worker/0`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// Group to counter to value.
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}
