//! `rocectl metrics`: the daemon's state and counters in the OpenMetrics text format.
//!
//! Counters keep the names that `rocectl counters` shows. Those with an equivalent in the kernel's
//! `hw_counters` also appear under the names of Prometheus' node_exporter, so that dashboards for
//! RDMA adapters work.

use std::collections::BTreeMap;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};
use roced_report::{AccountsReport, CountersReport, DeviceReport, StatusReport};

/// Prefix of every name but those of node_exporter.
const PREFIX: &str = "roced";

/// States of a device, as the daemon's report names them.
const DEVICE_STATES: [&str; 5] = ["serving", "attaching", "no interface", "failed", "removed"];

/// node_exporter's name and help for a counter of a device.
const NODE_NAMES: [(&str, &str, &str); 18] = [
    ("local_ack_timeout_err", "local_ack_timeout_errors", "Times that the ACK timer of a requester expired"),
    ("packet_seq_err", "packet_sequence_errors", "NAKs for a PSN sequence error received"),
    ("implied_nak_seq_err", "implied_nak_seq_errors", "ACKs beyond a READ or atomic response that is missing"),
    ("duplicate_request", "duplicate_requests_packets", "Request packets received that were executed before"),
    ("rnr_nak_received", "rnr_nak_retry_packets_received", "RNR NAKs received"),
    ("roce_adp_retrans", "roce_adp_retransmits", "Adaptive retransmissions before the ACK timer expired"),
    ("rx_read_requests", "rx_read_requests", "READ requests received"),
    ("rx_write_requests", "rx_write_requests", "WRITE requests received"),
    ("rx_atomic_requests", "rx_atomic_requests", "Atomic requests received"),
    ("drop_receiver_not_ready", "out_of_buffer_drops", "Request packets dropped for lack of a receive work request"),
    ("drop_bad_icrc", "rx_icrc_encapsulated_errors", "Packets received with a wrong ICRC"),
    ("np_ecn_marked_roce_packets", "np_ecn_marked_roce_packets_received", "Packets received with a congestion mark"),
    ("np_cnp_sent", "np_cnp_packets_sent", "Congestion notification packets sent"),
    (
        "rp_cnp_handled",
        "rp_cnp_packets_handled",
        "Congestion notification packets received that a congestion window or a rate followed",
    ),
    ("rp_cnp_ignored", "rp_cnp_ignored_packets_received", "Congestion notification packets received without an effect"),
    ("received_packets", "port_packets_received", "RoCE packets received"),
    ("sent_bytes", "port_data_transmitted_bytes", "RoCE payload bytes sent, retransmissions included"),
    ("received_bytes", "port_data_received_bytes", "RoCE payload bytes received"),
];

/// Values of group `control` that also fall: how many there are now.
const CONTROL_GAUGES: [&str; 6] =
    ["cm_identifiers", "cm_listeners", "cm_memberships", "cm_connections", "cm_kept_answers", "cm_postponed"];

/// Reports of the daemon that the metrics are made of.
pub(crate) struct MetricReports {
    pub(crate) status: StatusReport,
    pub(crate) counters: CountersReport,
    pub(crate) accounts: AccountsReport,
}

/// The metrics as text. `None` for a daemon that does not answer: then `roced_up` is 0, alone.
/// `node_prefix` begins the names of node_exporter.
pub(crate) fn render(reports: Option<&MetricReports>, node_prefix: &str) -> String {
    let mut families = Families::default();
    families.gauge("up", "1 while the daemon answers", vec![], u8::from(reports.is_some()));
    if let Some(MetricReports { status, counters, accounts }) = reports {
        families.status(status, node_prefix);
        families.counters(counters, node_prefix);
        families.accounts(accounts);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("a string takes everything");
    text
}

type Labels = Vec<(&'static str, String)>;

/// One metric name with its samples.
#[derive(Debug)]
struct Family {
    help: String,
    is_counter: bool,
    samples: Vec<(Labels, f64)>,
}

/// All of them, by name.
#[derive(Debug, Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: impl Into<f64>) {
        self.add(format!("{PREFIX}_{name}"), help, false, labels, value.into());
    }

    fn counter(&mut self, name: &str, help: &str, labels: Labels, value: u64) {
        self.add(format!("{PREFIX}_{name}"), help, true, labels, value as f64);
    }

    fn add(&mut self, name: String, help: &str, is_counter: bool, labels: Labels, value: f64) {
        let family = self.0.entry(name).or_insert_with(|| Family { help: help.into(), is_counter, samples: vec![] });
        family.samples.push((labels, value));
    }

    fn status(&mut self, status: &StatusReport, node_prefix: &str) {
        let version = vec![("version", status.version.clone())];
        self.gauge("build_info", "Version of the daemon, as a label", version, 1);
        self.gauge("uptime_seconds", "Seconds since the daemon began to serve", vec![], status.uptime_s);
        for device in &status.devices {
            self.device(device, node_prefix);
            let sessions = || status.sessions.iter().filter(|session| session.device == device.name);
            let labels = || vec![("device", device.name.clone())];
            let sum = |value: fn(&roced_report::SessionReport) -> u64| sessions().map(value).sum::<u64>() as f64;
            self.gauge("sessions", "Sessions of clients", labels(), sessions().count() as u32);
            self.gauge("queue_pairs", "Queue pairs of all clients", labels(), sum(|it| it.qps.into()));
            self.gauge("memory_regions", "Memory regions of all clients", labels(), sum(|it| it.mrs.into()));
            for (kind, bytes) in [
                ("allocated", sum(|it| it.memory.allocated_bytes)),
                ("migrated", sum(|it| it.memory.migrated_bytes)),
                ("file_backed", sum(|it| it.memory.file_backed_bytes)),
                ("proxied", sum(|it| it.memory.proxied_bytes)),
            ] {
                let labels = vec![("device", device.name.clone()), ("kind", kind.to_owned())];
                self.gauge("registered_memory_bytes", "Bytes under memory regions, by access path", labels, bytes);
            }
        }
    }

    fn device(&mut self, device: &DeviceReport, node_prefix: &str) {
        let labels = || vec![("device", device.name.clone())];
        for state in DEVICE_STATES {
            let labels = vec![("device", device.name.clone()), ("state", state.replace(' ', "_"))];
            self.gauge(
                "device_state",
                "1 for the state that the device is in",
                labels,
                u8::from(device.state == state),
            );
        }
        let interface = vec![
            ("device", device.name.clone()),
            ("interface", device.interface.clone()),
            ("xdp_mode", device.xdp_mode.clone()),
        ];
        self.gauge("device_info", "Interface and XDP mode of a device, as labels", interface, 1);
        self.gauge("device_link_up", "1 while the link is up", labels(), u8::from(device.link_up));
        self.gauge("device_link_mtu_bytes", "MTU of the link", labels(), device.link_mtu_bytes);
        self.gauge("device_path_mtu_bytes", "Largest path MTU of the link", labels(), device.path_mtu_bytes);
        for queue in &device.queues {
            let labels = vec![("device", device.name.clone()), ("queue", queue.queue.to_string())];
            self.gauge("queue_zero_copy", "1 for a queue with zero-copy", labels, u8::from(queue.mode == "zerocopy"));
        }
        // Numbers of the InfiniBand port states: 4 active, 1 down; 5 link up, 3 disabled.
        let (state, physical) = if device.link_up { (4, 5) } else { (1, 3) };
        let mut port = |name: &str, help: &str, value: u8| {
            self.add(format!("{node_prefix}_infiniband_{name}"), help, false, port_labels(&device.name), value.into());
        };
        port("state_id", "State of the port: 1 down, 4 active", state);
        port("physical_state_id", "Physical state of the port: 3 disabled, 5 link up", physical);
    }

    fn counters(&mut self, report: &CountersReport, node_prefix: &str) {
        for (group, counters) in &report.counters {
            for (name, value) in counters {
                match group.split('/').collect::<Vec<_>>()[..] {
                    ["worker", worker] => {
                        let labels = vec![("worker", worker.to_owned())];
                        self.counter(&format!("worker_{name}"), "A counter of a worker", labels, *value);
                    }
                    ["device", device, "queue", queue] => {
                        let labels = vec![("device", device.to_owned()), ("queue", queue.to_owned())];
                        self.counter(&format!("queue_{name}"), "A counter of an RX queue", labels, *value);
                    }
                    ["control"] if CONTROL_GAUGES.contains(&name.as_str()) => {
                        let help = "Objects of the connection manager now";
                        self.gauge(&format!("control_{name}"), help, Vec::new(), *value as f64);
                    }
                    ["control"] => {
                        self.counter(&format!("control_{name}"), "A counter of the control thread", Vec::new(), *value);
                    }
                    ["device", device] => self.device_counter(device, name, *value),
                    // The group of a device has the sum over its workers.
                    _ => {}
                }
            }
            if let ["device", device] = group.split('/').collect::<Vec<_>>()[..] {
                self.node_counters(device, counters, node_prefix);
            }
        }
    }

    fn accounts(&mut self, report: &AccountsReport) {
        for account in &report.accounts {
            let labels = || vec![("uid", account.uid.to_string())];
            self.counter("account_delayed_calls", "Calls beyond the rate of a user", labels(), account.delayed_calls);
            self.counter(
                "account_delayed_turns",
                "Turns beyond the highest rate of a user",
                labels(),
                account.delayed_turns,
            );
            let help = "Messages with very many waiters at sockets of a user";
            self.counter("account_slow_wakes", help, labels(), account.slow_wakes);
            let help = "Neighbors that were asked for later, beside many others of a user";
            self.counter("account_delayed_neighbors", help, labels(), account.delayed_neighbors);
            for (resource, refused) in &account.refused {
                let labels = vec![("uid", account.uid.to_string()), ("resource", resource.clone())];
                self.counter("account_refused_calls", "Calls refused for a limit of a user", labels, *refused);
            }
        }
    }

    fn device_counter(&mut self, device: &str, name: &str, value: u64) {
        let with = |label, value: &str| vec![("device", device.to_owned()), (label, value.to_owned())];
        if let Some(verdict) = name.strip_prefix("xdp_") {
            let help = "Frames seen by the XDP program, by its verdict";
            self.counter("xdp_frames", help, with("verdict", verdict), value);
        } else if let Some(reason) = name.strip_prefix("drop_") {
            self.counter("dropped_packets", "RoCE packets dropped, by reason", with("reason", reason), value);
        } else {
            let labels = vec![("device", device.to_owned())];
            self.counter(name, "A counter of a device, the sum over its queue pairs", labels, value);
        }
    }

    fn node_counters(&mut self, device: &str, counters: &BTreeMap<String, u64>, prefix: &str) {
        let of = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
        let mut add = |name: &str, help: &str, value: f64| {
            self.add(format!("{prefix}_infiniband_{name}"), help, true, port_labels(device), value);
        };
        for (ours, name, help) in NODE_NAMES {
            add(name, help, of(ours));
        }
        let out_of_sequence = of("out_of_order_buffered") + of("drop_out_of_sequence");
        add("out_of_sequence_packets_received", "Request packets received out of sequence", out_of_sequence);
        let sent = of("request_packets") + of("response_packets") + of("np_cnp_sent");
        add("port_packets_transmitted", "RoCE packets sent", sent);
    }
}

fn port_labels(device: &str) -> Labels {
    vec![("device", device.to_owned()), ("port", "1".to_owned())]
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, family) in &self.0 {
            let kind = if family.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut descriptor = encoder.encode_descriptor(name, &family.help, None, kind)?;
            for (labels, value) in &family.samples {
                if labels.is_empty() {
                    encode(&mut descriptor, family.is_counter, value)?;
                } else {
                    encode(&mut descriptor.encode_family(labels)?, family.is_counter, value)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes one value; a counter's name gets its ending `_total`.
fn encode(encoder: &mut MetricEncoder<'_>, is_counter: bool, value: &f64) -> Result<(), std::fmt::Error> {
    match is_counter {
        true => encoder.encode_counter::<NoLabelSet, f64, f64>(value, None),
        false => encoder.encode_gauge(value),
    }
}
