//! `rocectl fabric`: congestion and pauses by device, priority and peer, from three reports.

use std::{collections::BTreeMap, net::IpAddr};

use roced_report::{CountersReport, DeviceReport, QpReport, QpsReport, StatusReport};
use serde::Serialize;

use crate::{
    table::{
        Column::{Number, Text},
        TableSection,
    },
    units,
};

/// Congestion and pauses, as queue pairs and links have seen them.
#[derive(Debug, Serialize)]
pub(crate) struct FabricView {
    devices: Vec<FabricDevice>,
}

/// A device. Counters of the XDP program, of pauses and of queues begin when it is attached.
#[derive(Debug, Serialize)]
struct FabricDevice {
    device: String,
    state: String,
    ecn: String,
    congestion_control: String,
    classes: String,
    /// Highest rate of all frames to the NIC; 0 is no limit.
    max_rate_mbit: u32,
    pauses: String,
    /// Counters of marks and notifications, of pauses and of repeated packets; sums over queues. None
    /// of those that the daemon does not have.
    counters: BTreeMap<&'static str, Option<u64>>,
    pauses_received: Vec<ReceivedPauses>,
    /// Traffic classes with frames to the NIC.
    sent_by_class: Vec<SentOfClass>,
    /// By address.
    peers: Vec<FabricPeer>,
}

/// Frames of queue pairs to the NIC.
#[derive(Debug, Serialize)]
struct SentOfClass {
    class: u8,
    packets: u64,
    bytes: u64,
}

/// Pauses by the other end of a link.
#[derive(Debug, Serialize)]
struct ReceivedPauses {
    /// None for PAUSE frames, which concern all.
    priority: Option<u8>,
    frames: u64,
    /// Ended ones.
    pauses: u64,
    duration_us: u64,
}

/// All connections of a device to one address. Windows, rates and round trips are those of queue
/// pairs that can send.
#[derive(Debug, Serialize)]
struct FabricPeer {
    peer: String,
    qps: usize,
    /// Failed ones among them, until their programs destroy or reset them.
    failed_qps: usize,
    in_flight_packets: u64,
    request_window_packets: Option<Range<f64>>,
    response_window_packets: Option<Range<f64>>,
    /// Connections that CNPs limit at present, and their rates.
    limited_qps: usize,
    rate_mbit_per_s: Option<Range<f64>>,
    round_trip_ns: Option<Range<u64>>,
    retransmitted_packets: u64,
    timeouts: u64,
}

/// The least and the most of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Range<T> {
    min: T,
    max: T,
}

impl<T: Copy + PartialOrd> Range<T> {
    fn of(values: impl Iterator<Item = T>) -> Option<Self> {
        values.fold(None, |range: Option<Self>, value| {
            let Range { min, max } = range.unwrap_or(Self { min: value, max: value });
            Some(Self { min: if value < min { value } else { min }, max: if value > max { value } else { max } })
        })
    }

    /// One value where both are shown alike.
    fn show(range: Option<Self>, show: impl Fn(T) -> String) -> String {
        let Some(Self { min, max }) = range else { return String::new() };
        let (min, max) = (show(min), show(max));
        if min == max { min } else { format!("{min} to {max}") }
    }
}

/// Counters of a device's own group.
const OF_DEVICE: [&str; 9] = [
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "cnp_sent_suppressed",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "pfcwd_storms",
    "pfcwd_restored",
    "retransmitted_packets",
    "local_ack_timeout_err",
];

/// Counters of its queues.
const OF_QUEUES: [&str; 3] = ["nic_tx_pauses", "nic_tx_pause_storms", "nic_tx_ahead_full"];

/// Those of pauses that roced sends, and of pauses without an end, as columns.
const OF_PFC: [&str; 4] = ["nic_tx_pauses", "pfcwd_storms", "pfcwd_restored", "nic_tx_pause_storms"];

/// None without values.
fn sum<'a>(values: impl Iterator<Item = &'a u64>) -> Option<u64> {
    values.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or(0).saturating_add(*value)))
}

/// Classes with packets; `value` has the counters of their device.
fn sent_by_class(value: impl Fn(&str) -> Option<u64>) -> Vec<SentOfClass> {
    let of_class = |class: u8| {
        let of = |unit| value(&format!("tx_tc{class}_{unit}")).unwrap_or(0);
        SentOfClass { class, packets: of("packets"), bytes: of("bytes") }
    };
    (0..8).map(of_class).filter(|sent| sent.packets > 0).collect()
}

impl FabricView {
    pub(crate) fn new(status: &StatusReport, counters: &CountersReport, qps: &QpsReport) -> Self {
        let device = |device: &DeviceReport| {
            let name = format!("device/{}", device.name);
            let own = counters.counters.get(&name);
            let value = |name: &str| own.and_then(|own| own.get(name)).copied();
            let prefix = name + "/queue/";
            let queues = counters.counters.iter().filter(|(name, _)| name.starts_with(&prefix));
            let sum = |name| sum(queues.clone().filter_map(|(_, queue)| queue.get(name)));
            FabricDevice {
                device: device.name.clone(),
                state: device.state.clone(),
                ecn: device.ecn.clone(),
                congestion_control: device.congestion_control.clone(),
                classes: device.classes.clone(),
                max_rate_mbit: device.max_rate_mbit,
                pauses: device.pauses.clone(),
                counters: OF_DEVICE
                    .map(|name| (name, value(name)))
                    .into_iter()
                    .chain(OF_QUEUES.map(|name| (name, sum(name))))
                    .collect(),
                pauses_received: received_pauses(&device.pauses, value),
                sent_by_class: sent_by_class(value),
                peers: peers(&device.name, &qps.qps),
            }
        };
        Self { devices: status.devices.iter().map(device).collect() }
    }

    /// Tables for devices, for pauses if any device honors or sends some, and for peers.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        self.device_table().append(&mut text, "none");
        if self.devices.iter().any(|device| !device.sent_by_class.is_empty()) {
            self.class_table().append(&mut text, "none");
        }
        let counted = |device: &FabricDevice| OF_PFC.iter().any(|name| device.counters[name].unwrap_or(0) > 0);
        let has_pauses = |device: &FabricDevice| !device.pauses_received.is_empty() || counted(device);
        if self.devices.iter().any(has_pauses) {
            self.pfc_table().append(&mut text, "none");
            self.pause_table().append(&mut text, "none");
        }
        self.peer_table().append(&mut text, "no connection through a NIC");
        text
    }

    fn device_table(&self) -> TableSection {
        let columns = [
            Text("device"),
            Text("state"),
            Text("ECN"),
            Text("congestion control"),
            Text("classes"),
            Number("Mbit/s at most"),
            Number("marked"),
            Number("CNPs sent"),
            Number("handled"),
            Number("ignored"),
            Number("retransmitted"),
            Number("timeouts"),
        ];
        let mut section = TableSection::new("Devices", &columns);
        for device in &self.devices {
            let texts = [&device.device, &device.state, &device.ecn, &device.congestion_control, &device.classes]
                .map(Clone::clone);
            let counts = [
                "np_ecn_marked_roce_packets",
                "np_cnp_sent",
                "rp_cnp_handled",
                "rp_cnp_ignored",
                "retransmitted_packets",
                "local_ack_timeout_err",
            ];
            let rate = if device.max_rate_mbit == 0 { "-".to_owned() } else { device.max_rate_mbit.to_string() };
            section.row(texts.into_iter().chain([rate]).chain(counts.map(|name| device.count(name))));
        }
        section
    }

    fn class_table(&self) -> TableSection {
        let columns = [Text("device"), Number("class"), Number("packets sent"), Number("bytes"), Number("of all")];
        let mut section = TableSection::new("Traffic classes", &columns);
        for device in &self.devices {
            let all: u64 = device.sent_by_class.iter().map(|sent| sent.bytes).sum();
            for SentOfClass { class, packets, bytes } in &device.sent_by_class {
                let part = format!("{:.1} %", *bytes as f64 * 100.0 / all.max(1) as f64);
                let [packets, bytes] = [units::count(*packets), units::bytes(*bytes)];
                section.row([device.device.clone(), class.to_string(), packets, bytes, part]);
            }
        }
        section
    }

    fn pfc_table(&self) -> TableSection {
        let columns = [
            Text("device"),
            Text("pauses honored"),
            Number("pauses sent"),
            Number("storms"),
            Number("ended"),
            Number("own storms"),
        ];
        let mut section = TableSection::new("PFC", &columns);
        for device in &self.devices {
            let texts = [device.device.clone(), device.pauses.clone()];
            section.row(texts.into_iter().chain(OF_PFC.map(|name| device.count(name))));
        }
        section
    }

    fn pause_table(&self) -> TableSection {
        let columns =
            [Text("device"), Text("priority"), Number("frames"), Number("ended pauses"), Number("paused for")];
        let mut section = TableSection::new("Pauses by the other end of the link", &columns);
        for device in &self.devices {
            for pauses in &device.pauses_received {
                section.row([
                    device.device.clone(),
                    pauses.priority.map_or_else(|| "all".to_owned(), |priority| priority.to_string()),
                    units::count(pauses.frames),
                    units::count(pauses.pauses),
                    format!("{:.3} s", pauses.duration_us as f64 / 1e6),
                ]);
            }
        }
        section
    }

    fn peer_table(&self) -> TableSection {
        let columns = [
            Text("device"),
            Text("peer"),
            Number("QPs"),
            Number("failed"),
            Number("in flight"),
            Number("window"),
            Number("READ window"),
            Number("limited"),
            Number("rate"),
            Number("RTT"),
            Number("retransmitted"),
            Number("timeouts"),
        ];
        let count: usize = self.devices.iter().map(|device| device.peers.len()).sum();
        let title = if count > 0 { format!("Peers ({count})") } else { "Peers".to_owned() };
        let mut section = TableSection::new(title, &columns);
        for device in &self.devices {
            for peer in &device.peers {
                section.row([
                    device.device.clone(),
                    peer.peer.clone(),
                    peer.qps.to_string(),
                    peer.failed_qps.to_string(),
                    peer.in_flight_packets.to_string(),
                    Range::show(peer.request_window_packets, |packets| format!("{packets:.1}")),
                    Range::show(peer.response_window_packets, |packets| format!("{packets:.1}")),
                    peer.limited_qps.to_string(),
                    Range::show(peer.rate_mbit_per_s, |rate| format!("{rate:.0} Mbit/s")),
                    Range::show(peer.round_trip_ns, units::microseconds),
                    units::count(peer.retransmitted_packets),
                    units::count(peer.timeouts),
                ]);
            }
        }
        section
    }
}

impl FabricDevice {
    fn count(&self, name: &str) -> String {
        self.counters[name].map_or_else(String::new, units::count)
    }
}

/// Of PAUSE frames and each priority that `honored` names or frames have concerned.
fn received_pauses(honored: &str, value: impl Fn(&str) -> Option<u64>) -> Vec<ReceivedPauses> {
    let of = |priority: Option<u8>| {
        let name = priority.map_or_else(|| "global".to_owned(), |priority| format!("prio{priority}"));
        let count = |suffix: &str| value(&format!("rx_{name}_pause{suffix}")).unwrap_or(0);
        let pauses = ReceivedPauses {
            priority,
            frames: count(""),
            pauses: count("_transition"),
            duration_us: count("_duration"),
        };
        let is_honored = match priority {
            Some(priority) => honored.split(' ').any(|name| name == priority.to_string()),
            None => honored == "global",
        };
        let is_counted = pauses.frames > 0 || pauses.pauses > 0 || pauses.duration_us > 0;
        (is_honored || is_counted).then_some(pauses)
    };
    [None].into_iter().chain((0..8).map(Some)).filter_map(of).collect()
}

/// Peers of connections through the NIC, by address.
fn peers(device: &str, qps: &[QpReport]) -> Vec<FabricPeer> {
    let mut by_peer = BTreeMap::<_, Vec<&QpReport>>::new();
    for qp in qps.iter().filter(|qp| qp.device == device && !qp.peer.is_empty() && qp.path != "local") {
        // The number first: it is in the order of networks.
        by_peer.entry((qp.peer.parse::<IpAddr>().ok(), qp.peer.as_str())).or_default().push(qp);
    }
    let peer = |((_, peer), qps): ((Option<IpAddr>, &str), Vec<&QpReport>)| {
        let sum = |name| sum(qps.iter().filter_map(|qp| qp.counters.get(name))).unwrap_or(0);
        let sending = || qps.iter().filter(|qp| qp.state == "RTS");
        let rates = || sending().filter_map(|qp| qp.rate_mbit_per_s);
        FabricPeer {
            peer: peer.to_owned(),
            qps: qps.len(),
            failed_qps: qps.iter().filter(|qp| qp.state == "ERR").count(),
            in_flight_packets: qps.iter().map(|qp| u64::from(qp.in_flight_packets)).sum(),
            request_window_packets: Range::of(sending().filter_map(|qp| qp.request_window_packets)),
            response_window_packets: Range::of(sending().filter_map(|qp| qp.response_window_packets)),
            limited_qps: rates().count(),
            rate_mbit_per_s: Range::of(rates()),
            round_trip_ns: Range::of(sending().map(|qp| qp.round_trip_ns).filter(|ns| *ns > 0)),
            retransmitted_packets: sum("retransmitted_packets"),
            timeouts: sum("local_ack_timeout_err"),
        }
    };
    by_peer.into_iter().map(peer).collect()
}
