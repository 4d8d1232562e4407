//! Rules of each key, and of combinations of keys.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::PathBuf,
};

use ipnet::IpNet;
use roced_abi::DEFAULT_SOCKET;
use roced_report::DEFAULT_ADMIN_SOCKET;
use roced_steering::{self, QUEUES_MAX};
use roced_transport::partition::{Partitions, Pkey};
use roced_types::{EndpointId, Qpn, WORKERS_MAX};
use roced_xdp::dcb::{DSCPS, PRIORITIES, PrioritySet};

use super::{
    AccountLimits, AdminConfig, ClientLimits, CmLimits, Config, ControlConfig, DeviceConfig, DeviceLimits,
    LimitsConfig, LogConfig, NetConfig, QueueOwner, Queues, WorkerConfig, access, classes, dcqcn, pfc,
    reader::{ConfigSection, TextRule},
};

/// The fastest link.
pub(super) const RATE_MAX_MBIT: u32 = 800_000;
/// As many as there are numbers.
pub(super) const QPS_MAX: u32 = Qpn::INDEX_COUNT * EndpointId::COUNT as u32;

const ABSOLUTE_PATH: TextRule = TextRule {
    allowed: "an absolute path of at most 107 bytes without control characters",
    holds: |path| path.starts_with('/') && path.len() <= 107 && !path.contains(char::is_control),
};

const GROUP: TextRule = TextRule {
    allowed: "the name of a group, 1 to 32 bytes without ':' and control characters",
    holds: is_account_name,
};

/// The name of a user or group.
pub(super) fn is_account_name(name: &str) -> bool {
    (1..=32).contains(&name.len()) && !name.contains(|c: char| c == ':' || c.is_control())
}

const DEVICE_NAME: TextRule = TextRule {
    allowed: "1 to 63 letters, digits, '-', '_' or '.'",
    holds: |name| {
        (1..=63).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    },
};

const INTERFACE: TextRule = TextRule {
    allowed: "the name of a network interface, 1 to 15 bytes without space, control characters, '/' or ':'",
    holds: |name| {
        let strange = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
        (1..=15).contains(&name.len()) && !name.contains(strange) && name != "." && name != ".."
    },
};

pub(super) fn config(top: &ConfigSection<'_, '_>, cores: &[u32]) -> Config {
    let log = top.section("log", log);
    let control = top.section("control", control);
    let admin = top.section("admin", |section| admin(section, &control));
    let net = top.section("net", net);
    let limits = top.section("limits", limits);
    let workers = workers(top, cores);
    let devices = devices(top, workers.len() as u32);
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let access = access::rules(top, &names);
    Config { log, control, admin, net, limits, access, workers, devices }
}

fn log(section: &ConfigSection<'_, '_>) -> LogConfig {
    let default = LogConfig::default();
    LogConfig { level: section.choice("level", default.level), target: section.choice("target", default.target) }
}

fn control(section: &ConfigSection<'_, '_>) -> ControlConfig {
    let default = ControlConfig::default();
    ControlConfig {
        socket: section.text("socket", Some(DEFAULT_SOCKET), "", ABSOLUTE_PATH).map_or(default.socket, PathBuf::from),
        group: section.text("group", None, "the daemon's own group", GROUP),
        mode: section.permissions("mode", default.mode, 0o600..=0o777),
    }
}

fn admin(section: &ConfigSection<'_, '_>, control: &ControlConfig) -> AdminConfig {
    let socket = section.text("socket", Some(DEFAULT_ADMIN_SOCKET), "", ABSOLUTE_PATH);
    let group = section.text("group", None, "\"roced-admin\" if there is such a group, else none", GROUP);
    let admin = AdminConfig { socket: socket.map_or(AdminConfig::default().socket, PathBuf::from), group };
    if admin.socket == control.socket {
        section.refuse("socket", "the same path as control.socket: each needs its own");
    }
    admin
}

fn net(section: &ConfigSection<'_, '_>) -> NetConfig {
    let default = NetConfig::default();
    NetConfig {
        resolve_timeout_ms: section.number("resolve_timeout_ms", "ms", default.resolve_timeout_ms, 100..=60_000),
        denied_peers: networks(section, "denied_peers"),
    }
}

const DENIED_MAX: usize = 64;

const NETWORKS_ALLOWED: &str = "an array of up to 64 networks, as \"10.9.0.0/16\" or \"fd00::/8\", or addresses";

fn networks(section: &ConfigSection<'_, '_>, key: &str) -> Vec<IpNet> {
    section.note(key, "[]", NETWORKS_ALLOWED);
    if section.take(key).is_none() {
        return Vec::new();
    }
    let Some(array) = section.array(key).filter(|array| array.len() <= DENIED_MAX) else {
        section.refuse(key, format!("not allowed: it must be {NETWORKS_ALLOWED}"));
        return Vec::new();
    };
    let mut networks = Vec::new();
    for (index, element) in array.iter().enumerate() {
        let text = element.get_ref().as_str().unwrap_or_default();
        match text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            Ok(network) => networks.push(network),
            Err(_) => section.refuse_element(key, index, format!("not a network: it must be {NETWORKS_ALLOWED}")),
        }
    }
    networks
}

fn limits(section: &ConfigSection<'_, '_>) -> LimitsConfig {
    let default = LimitsConfig::default();
    LimitsConfig {
        clients: section.number("clients", "clients", default.clients, 1..=65_536),
        account: section.section("account", |section| account_limits(section, &default.account)),
        client: section.section("client", |section| client_limits(section, &default.client)),
        device: section.section("device", |section| device_limits(section, &default.device)),
        cm: section.section("cm", |section| cm_limits(section, default.cm)),
    }
}

fn account_limits(section: &ConfigSection<'_, '_>, default: &AccountLimits) -> AccountLimits {
    const SHARE: &str = "no limit but its share";
    AccountLimits {
        share_percent: section.number("share_percent", "percent", default.share_percent, 1..=100),
        clients: section.optional_number("clients", "clients", SHARE, 1..=65_536),
        qps: section.optional_number("qps", "queue pairs", SHARE, 1..=QPS_MAX),
        cqs: section.number("cqs", "completion queues", default.cqs, 1..=QPS_MAX),
        channels: section.optional_number(
            "channels",
            "channels",
            "an eighth of the daemon's limit of open files",
            1..=1_048_576,
        ),
        mrs: section.optional_number("mrs", "memory regions", SHARE, 1..=1_048_576),
        ahs: section.optional_number("ahs", "address handles", SHARE, 1..=1_048_576),
        srqs: section.optional_number("srqs", "shared receive queues", SHARE, 1..=65_536),
        attachments: section.optional_number("attachments", "attachments", SHARE, 1..=roced_steering::GROUPS_MAX),
        memory_mib: section.optional_number(
            "memory_mib",
            "MiB",
            "three quarters of this host's memory",
            1..=16_777_216,
        ),
        daemon_memory_mib: section.number("daemon_memory_mib", "MiB", default.daemon_memory_mib, 1..=16_777_216),
        control_calls_per_second: section.number(
            "control_calls_per_second",
            "calls a second",
            default.control_calls_per_second,
            1..=1_000_000,
        ),
        max_rate_mbit: section.optional_number("max_rate_mbit", "Mbit/s", "no limit", 1..=RATE_MAX_MBIT),
    }
}

fn client_limits(section: &ConfigSection<'_, '_>, default: &ClientLimits) -> ClientLimits {
    ClientLimits {
        qps: section.number("qps", "queue pairs", default.qps, 1..=Qpn::INDEX_COUNT),
        cqs: section.number("cqs", "completion queues", default.cqs, 1..=Qpn::INDEX_COUNT),
        channels: section.number("channels", "channels", default.channels, 1..=65_536),
        ahs: section.number("ahs", "address handles", default.ahs, 1..=1_048_576),
        attachments: section.number("attachments", "attachments", default.attachments, 1..=roced_steering::GROUPS_MAX),
        mrs: section.number("mrs", "memory regions", default.mrs, 1..=1_048_576),
        pds: section.number("pds", "protection domains", default.pds, 1..=65_536),
        srqs: section.number("srqs", "shared receive queues", default.srqs, 1..=65_536),
        memory_mib: section.number("memory_mib", "MiB", default.memory_mib, 1..=16_777_216),
        proxied_memory: section.choice("proxied_memory", default.proxied_memory),
        unsealed_memory: section.choice("unsealed_memory", default.unsealed_memory),
    }
}

fn device_limits(section: &ConfigSection<'_, '_>, default: &DeviceLimits) -> DeviceLimits {
    DeviceLimits {
        qps: section.number("qps", "queue pairs", default.qps, 1..=QPS_MAX),
        ahs: section.number("ahs", "address handles", default.ahs, 1..=1_048_576),
        // Each may be another group, and each group has its place in the XDP program's map.
        attachments: section.number("attachments", "attachments", default.attachments, 1..=roced_steering::GROUPS_MAX),
        mrs: section.number("mrs", "memory regions", default.mrs, 1..=1_048_576),
        srqs: section.number("srqs", "shared receive queues", default.srqs, 1..=65_536),
    }
}

fn cm_limits(section: &ConfigSection<'_, '_>, default: CmLimits) -> CmLimits {
    CmLimits {
        connections: section.number("connections", "connections", default.connections, 1..=1_048_576),
        ids_of_account: section.number("ids_of_account", "identifiers", default.ids_of_account, 1..=1_048_576),
        channels_of_account: section.optional_number(
            "channels_of_account",
            "channels",
            "an eighth of the daemon's limit of open files, 4096 at most",
            1..=1_048_576,
        ),
        groups_of_account: section.number("groups_of_account", "groups", default.groups_of_account, 1..=65_536),
    }
}

/// Without any `[[worker]]` there is one as by default.
fn workers(top: &ConfigSection<'_, '_>, cores: &[u32]) -> Vec<WorkerConfig> {
    let mut first_on_core = HashMap::new();
    let mut index = 0;
    let mut workers = top.sections("worker", |section| {
        let default = WorkerConfig::default();
        let core = section.optional_number("core", "", "not pinned", 0..=4095);
        if let Some(core) = core {
            if !cores.is_empty() && !cores.contains(&core) {
                section.refuse("core", format!("this machine has no core {core}; it has {}", listed_cores(cores)));
            }
            let first = *first_on_core.entry(core).or_insert(index);
            if first != index {
                section.refuse("core", format!("core {core} already runs worker[{first}]: give each worker its own"));
            }
        }
        index += 1;
        WorkerConfig {
            core,
            idle: section.choice("idle", default.idle),
            spin_us: section.number("spin_us", "us", default.spin_us, 0..=1_000_000),
        }
    });
    if workers.len() > WORKERS_MAX as usize {
        top.refuse("worker", format!("{} workers: at most {WORKERS_MAX} are allowed", workers.len()));
    }
    if workers.is_empty() {
        workers.push(WorkerConfig::default());
    }
    workers
}

fn listed_cores(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn devices(top: &ConfigSection<'_, '_>, workers: u32) -> Vec<DeviceConfig> {
    let mut names = HashMap::new();
    let mut interfaces = HashMap::new();
    let mut endpoints = 0;
    let mut index = 0;
    let devices = top.sections("device", |section| {
        let device = device(section, workers);
        refuse_second(section, "name", &device.name, index, &mut names, "clients tell devices apart by name");
        refuse_second(
            section,
            "interface",
            &device.interface,
            index,
            &mut interfaces,
            "an interface carries one device",
        );
        let before = endpoints;
        endpoints += endpoint_count(&device.queues, workers);
        if before <= EndpointId::COUNT && endpoints > EndpointId::COUNT {
            section.refuse("queues", format!("pairs of device and worker: at most {} are allowed", EndpointId::COUNT));
        }
        index += 1;
        device
    });
    if devices.is_empty() {
        top.refuse("device", "no [[device]] section: name at least one device and its interface");
    }
    devices
}

fn refuse_second(
    section: &ConfigSection<'_, '_>,
    key: &str,
    value: &str,
    index: usize,
    seen: &mut HashMap<String, usize>,
    why: &str,
) {
    if value.is_empty() {
        return;
    }
    if let Some(other) = seen.get(value) {
        section.refuse(key, format!("{value:?} is device[{other}] already: {why}"));
    } else {
        seen.insert(value.to_owned(), index);
    }
}

/// Endpoints that a device needs: one for each worker that owns some of its queues.
fn endpoint_count(queues: &Queues, workers: u32) -> usize {
    match queues {
        Queues::All => workers as usize,
        Queues::Listed(owners) => owners.iter().map(|owner| owner.worker).collect::<HashSet<_>>().len(),
    }
}

fn device(section: &ConfigSection<'_, '_>, workers: u32) -> DeviceConfig {
    let name = section.required_text("name", DEVICE_NAME).unwrap_or_default();
    let interface = section.required_text("interface", INTERFACE).unwrap_or_default();
    let default = DeviceConfig::new(name, interface);
    let ring = |key: &str, default: u32| section.power_of_two(key, "entries", default, 64..=32_768);
    let mut device = DeviceConfig {
        xdp_mode: section.choice("xdp_mode", default.xdp_mode),
        copy_mode: section.choice("copy_mode", default.copy_mode),
        napi: section.choice("napi", default.napi),
        queues: queues(section, workers),
        umem_frames: section.number("umem_frames", "frames", default.umem_frames, 128..=1_048_576),
        chunk_bytes: section.power_of_two("chunk_bytes", "bytes", default.chunk_bytes, 2048..=4096),
        rx_ring_entries: ring("rx_ring_entries", default.rx_ring_entries),
        tx_ring_entries: ring("tx_ring_entries", default.tx_ring_entries),
        fill_ring_entries: ring("fill_ring_entries", default.fill_ring_entries),
        completion_ring_entries: ring("completion_ring_entries", default.completion_ring_entries),
        queue_busy_ms: section.number("queue_busy_ms", "ms", default.queue_busy_ms, 0..=60_000),
        window_packets: section.number("window_packets", "packets", default.window_packets, 1..=8192),
        total_window_packets: section.number(
            "total_window_packets",
            "packets",
            default.total_window_packets,
            1..=1_048_576,
        ),
        max_rate_mbit: section.optional_number("max_rate_mbit", "Mbit/s", "no limit", 1..=RATE_MAX_MBIT),
        roce: section.choice("roce", default.roce),
        pkeys: pkeys(section, default.pkeys),
        credits: section.choice("credits", default.credits),
        ecn: section.choice("ecn", default.ecn),
        congestion_control: section.choice("congestion_control", default.congestion_control),
        delay_guard_us: section.number("delay_guard_us", "us", default.delay_guard_us, 0..=65_000),
        dcqcn: section.section("dcqcn", dcqcn::read),
        classes: section.section("classes", classes::read),
        pfc: section.section("pfc", pfc::read),
        cnp: section.choice("cnp", default.cnp),
        min_time_between_cnps_us: section.number(
            "min_time_between_cnps_us",
            "us",
            default.min_time_between_cnps_us,
            0..=4095,
        ),
        cnp_dscp: section.number("cnp_dscp", "", default.cnp_dscp, 0..=63),
        cnp_802p_prio: section.number("cnp_802p_prio", "", default.cnp_802p_prio, 0..=7),
        cnp_except: networks(section, "cnp_except"),
        dcb: section.choice("dcb", default.dcb),
        lossless_priorities: priorities(section, "lossless_priorities", "priority"),
        dscp_prio: section.number_table(
            "dscp_prio",
            "a table of DSCPs, 0 to 63, with their priorities, 0 to 7",
            0..=DSCPS - 1,
            0..=PRIORITIES - 1,
        ),
        recovery: section.choice("recovery", default.recovery),
        reorder_delay_us: section.number("reorder_delay_us", "us", default.reorder_delay_us, 0..=1_000_000),
        probe_floor_us: section.number("probe_floor_us", "us", default.probe_floor_us, 10..=1_000_000),
        out_of_order_packets: section.number(
            "out_of_order_packets",
            "packets",
            default.out_of_order_packets,
            0..=65_536,
        ),
        name: default.name,
        interface: default.interface,
    };
    device.classes.take_priorities(&device.dscp_prio);
    if !device.pfc.honored(0).is_empty() && device.classes.is_empty() {
        let message =
            "pauses hold traffic classes, and [device.classes] has none: `tc_bw = { 0 = 100 }` is one for all";
        section.refuse("pfc", message.to_owned());
    }
    let wanted = device.fill_ring_entries + device.tx_ring_entries;
    if device.umem_frames < wanted {
        let message = format!(
            "{} frames are fewer than the {wanted} entries of fill and TX ring together: each entry needs a frame",
            device.umem_frames
        );
        section.refuse("umem_frames", message);
    }
    device
}

const QUEUES_ALLOWED: &str = "\"all\", or an array of queue numbers or of { queue, worker }";

fn queues(section: &ConfigSection<'_, '_>, workers: u32) -> Queues {
    section.note("queues", "\"all\"", QUEUES_ALLOWED);
    let Some(value) = section.take("queues") else { return Queues::All };
    if value.get_ref().as_str() == Some("all") {
        return Queues::All;
    }
    let Some(array) = section.array("queues") else {
        section.refuse("queues", format!("not allowed: it must be {QUEUES_ALLOWED}"));
        return Queues::All;
    };
    if array.is_empty() {
        section.refuse("queues", format!("no queue at all: it must be {QUEUES_ALLOWED}"));
    }
    let mut owners: Vec<QueueOwner> = Vec::new();
    for index in 0..array.len() {
        let Some(owner) = queue(section, index, workers) else { continue };
        if owners.iter().any(|other| other.queue == owner.queue) {
            section.refuse_element("queues", index, format!("queue {} stands in the list already", owner.queue));
        }
        owners.push(owner);
    }
    Queues::Listed(owners)
}

const PKEYS_ALLOWED: &str =
    "an array of 1 to 16 numbers: 0x8001 to 0xffff, a full member, or 0x0001 to 0x7fff, a limited one";

fn pkeys(section: &ConfigSection<'_, '_>, default: Vec<Pkey>) -> Vec<Pkey> {
    section.note("pkeys", "[0xffff]", PKEYS_ALLOWED);
    if section.take("pkeys").is_none() {
        return default;
    }
    let Some(array) = section.array("pkeys").filter(|array| (1..=Partitions::MAX).contains(&array.len())) else {
        section.refuse("pkeys", format!("not allowed: it must be {PKEYS_ALLOWED}"));
        return default;
    };
    let mut keys: Vec<Pkey> = Vec::new();
    for (index, element) in array.iter().enumerate() {
        let number = element.get_ref().as_integer();
        let key = number.and_then(|number| u16::from_str_radix(number.as_str(), number.radix()).ok()).map(Pkey);
        match key.filter(|key| key.is_valid()) {
            None => section.refuse_element("pkeys", index, format!("not a P_Key: it must be {PKEYS_ALLOWED}")),
            Some(key) if keys.contains(&key) => {
                section.refuse_element("pkeys", index, format!("{:#06x} stands in the list already", key.0));
            }
            Some(key) => keys.push(key),
        }
    }
    if keys.is_empty() { default } else { keys }
}

const PRIORITIES_ALLOWED: &str = "an array of up to 8 numbers from 0 to 7";

/// The array `key` of priorities or classes, each once; `noun` names one.
pub(super) fn priorities(section: &ConfigSection<'_, '_>, key: &str, noun: &str) -> PrioritySet {
    section.note(key, "[]", PRIORITIES_ALLOWED);
    listed_priorities(section, key, noun).unwrap_or_default()
}

/// As [`priorities`]; `None`, which is `absent`, without the key.
pub(super) fn optional_priorities(
    section: &ConfigSection<'_, '_>,
    key: &str,
    noun: &str,
    absent: &str,
) -> Option<PrioritySet> {
    section.note(key, absent, PRIORITIES_ALLOWED);
    listed_priorities(section, key, noun)
}

fn listed_priorities(section: &ConfigSection<'_, '_>, key: &str, noun: &str) -> Option<PrioritySet> {
    section.take(key)?;
    let Some(array) = section.array(key) else {
        section.refuse(key, format!("not allowed: it must be {PRIORITIES_ALLOWED}"));
        return None;
    };
    let mut set = PrioritySet::default();
    for (index, element) in array.iter().enumerate() {
        let number = element.get_ref().as_integer();
        let number = number.and_then(|number| u8::from_str_radix(number.as_str(), number.radix()).ok());
        match number.filter(|number| *number < PRIORITIES) {
            None => section.refuse_element(key, index, format!("no {noun}: it must be {PRIORITIES_ALLOWED}")),
            Some(number) if set.contains(number) => {
                section.refuse_element(key, index, format!("{number} stands in the list already"));
            }
            Some(number) => set = set.union([number].into_iter().collect()),
        }
    }
    Some(set)
}

/// Element `index` of the array: a queue number, with its place in the list modulo the workers as
/// worker, or both.
fn queue(section: &ConfigSection<'_, '_>, index: usize, workers: u32) -> Option<QueueOwner> {
    if let Some(element) = section.element("queues", index) {
        let queue = element.required_number("queue", 0..=QUEUES_MAX - 1);
        let worker = element.required_number("worker", 0..=WORKERS_MAX - 1);
        if let Some(worker) = worker.filter(|worker| *worker >= workers) {
            element
                .refuse("worker", format!("there is no worker[{worker}]: the config has {workers} worker(s), from 0"));
        }
        element.refuse_unknown();
        return Some(QueueOwner { queue: queue?, worker: worker? });
    }
    let number = section.array("queues")?.get(index)?.get_ref().as_integer();
    let queue = number.and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
    let Some(queue) = queue.filter(|queue| *queue < QUEUES_MAX) else {
        let message = format!("not a queue: it must be a number from 0 to {} or {{ queue, worker }}", QUEUES_MAX - 1);
        section.refuse_element("queues", index, message);
        return None;
    };
    Some(QueueOwner { queue, worker: index as u32 % workers })
}
