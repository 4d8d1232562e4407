//! Counters of workers and devices as an operator's report.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use roced_cm::{
    identifiers::{IdReport, IdState},
    wire::PortSpace,
};
use roced_report::{CmIdReport, CountersReport, QpReport};
use roced_steering::Verdict;
use roced_transport::{congestion::notification::NotificationCounters, counters::QpCounters, reject::DropCounters};
use roced_types::{WorkerId, address_of};
use roced_xdp::PauseMap;

use crate::worker::{
    metrics::{QpSnapshot, WorkerSnapshot},
    poll_loop::monotonic_now,
};

/// A device as far as counters go.
#[derive(Clone, Debug)]
pub(super) struct DeviceCounts<'a> {
    pub(super) name: &'a str,
    /// Frames by [`Verdict`].
    pub(super) verdicts: [u64; Verdict::ALL.len()],
    /// If it honors any.
    pub(super) pauses: Option<&'a PauseMap>,
}

/// The process of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SessionProcess<'a> {
    pub(super) pid: i32,
    pub(super) program: &'a str,
}

/// An identifier of the connection manager.
pub(super) fn identifier(report: &IdReport, device: &str, owner: SessionProcess<'_>) -> CmIdReport {
    let address = |of: Option<SocketAddr>| of.map_or_else(String::new, |address| address.to_string());
    CmIdReport {
        id: report.key.number,
        port_space: match report.port_space {
            PortSpace::Tcp => "TCP",
            PortSpace::Udp => "UDP",
            PortSpace::Ipoib => "IPoIB",
        }
        .to_owned(),
        device: device.to_owned(),
        session: report.key.owner.0,
        pid: owner.pid,
        program: owner.program.to_owned(),
        state: match report.state {
            IdState::Idle => "idle",
            IdState::Bound => "bound",
            IdState::AddressQuery => "resolving",
            IdState::AddressResolved => "resolved",
            IdState::RouteResolved => "routed",
            IdState::Listening => "listening",
            IdState::Connect => "connect",
            IdState::Disconnected => "disconnected",
            IdState::Removed => "device gone",
        }
        .to_owned(),
        connection: report.connection.map_or_else(String::new, |state| format!("{state:?}")),
        local: address(report.route.source),
        peer: address(report.route.destination),
        qpn: report.qpn.get(),
        peer_qpn: report.peer_qpn.get(),
    }
}

/// Every counter of devices, workers and control thread, devices and workers by their numbers.
pub(super) fn counters(
    devices: &[DeviceCounts<'_>],
    workers: &[WorkerSnapshot],
    control: &[(&'static str, u64)],
) -> CountersReport {
    let mut counters = BTreeMap::new();
    counters.insert("control".to_owned(), named(control.iter().copied()));
    for (number, device) in devices.iter().enumerate() {
        let mut sum = QpCounters::default();
        let mut drops = DropCounters::default();
        let mut notifications = NotificationCounters::default();
        let mut classes = None;
        for (worker, snapshot) in workers.iter().enumerate() {
            for endpoint in snapshot.endpoints.iter().filter(|endpoint| endpoint.device.0 as usize == number) {
                sum.add_all(&endpoint.counters);
                drops.add_all(&endpoint.drops);
                notifications.add_all(&endpoint.notifications);
                endpoint.add_classes_to(&mut classes);
                let group = format!("device/{}/worker/{worker}", device.name);
                let of_endpoint = endpoint.counters.iter().chain(endpoint.notifications.iter());
                counters.insert(group, named(of_endpoint.chain(endpoint.drops.iter())));
            }
            for queue in snapshot.queues.iter().filter(|queue| queue.device.0 as usize == number) {
                counters.insert(format!("device/{}/queue/{}", device.name, queue.queue), named(queue.iter()));
            }
        }
        let verdicts = Verdict::ALL.iter().map(|verdict| (verdict.name(), device.verdicts[*verdict as usize]));
        let mut of_device = named(verdicts.chain(sum.iter()).chain(notifications.iter()).chain(drops.iter()));
        of_device.extend(named(classes.iter().flat_map(|classes| classes.iter())));
        if let Some(pauses) = device.pauses {
            pauses.counters(monotonic_now(), &mut |name, value| _ = of_device.insert(name.to_owned(), value));
        }
        counters.insert(format!("device/{}", device.name), of_device);
    }
    for (worker, snapshot) in workers.iter().enumerate() {
        counters.insert(format!("worker/{worker}"), named(snapshot.worker.iter().chain(snapshot.handoff.iter())));
    }
    CountersReport { counters }
}

/// A queue pair of `device` that belongs to `owner`.
pub(super) fn queue_pair(qp: &QpSnapshot, device: &str, owner: SessionProcess<'_>, worker: WorkerId) -> QpReport {
    // Before RTR there is no peer.
    let connected = qp.path_mtu_bytes != 0;
    let progress = &qp.progress;
    QpReport {
        qpn: qp.qpn.get(),
        device: device.to_owned(),
        session: qp.session.0,
        pid: owner.pid,
        program: owner.program.to_owned(),
        service: qp.service.to_owned(),
        worker: worker.0,
        state: qp.state.to_owned(),
        peer: if connected { address_text(qp.peer) } else { String::new() },
        dest_qpn: qp.dest_qpn,
        path_mtu_bytes: qp.path_mtu_bytes,
        path: if connected { qp.path.to_owned() } else { String::new() },
        next_psn: progress.next_psn,
        oldest_psn: progress.oldest_psn,
        expected_psn: progress.expected_psn,
        sends: progress.sends,
        receives: progress.receives,
        in_flight_packets: progress.in_flight_packets,
        round_trip_ns: progress.round_trip.0,
        request_window_packets: progress.congestion.and_then(|state| state.request_window),
        response_window_packets: progress.congestion.and_then(|state| state.response_window),
        rate_mbit_per_s: progress
            .congestion
            .and_then(|state| state.rate_bytes_per_s)
            .map(|rate| rate as f64 / 125_000.0),
        last_error: progress.failure.map_or_else(String::new, |cause| cause.to_string()),
        counters: named(qp.counters.iter()),
    }
}

/// A GID as the address it stands for.
pub(super) fn address_text(gid: [u8; 16]) -> String {
    let address: IpAddr = address_of(gid);
    address.to_string()
}

/// `aa:bb:cc:dd:ee:ff`.
pub(super) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn named(counters: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counters.map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use roced_transport::{
        congestion::notification::NotificationCount, counters::QpCount, qp::QpProgress, reject::DropReason,
    };
    use roced_types::{DeviceId, EndpointId, Qpn, SessionId};

    use super::*;
    use crate::worker::metrics::{EndpointSnapshot, QueueSnapshot};

    fn snapshot(endpoint: usize, device: u32, packets: u64) -> WorkerSnapshot {
        let mut snapshot = WorkerSnapshot::new(1, 1, None);
        let mut counters = QpCounters::default();
        counters.add(QpCount::RequestPackets, packets);
        let mut drops = DropCounters::default();
        drops.count(DropReason::BadIcrc);
        let endpoint = EndpointId::new(endpoint).expect("below 64");
        let mut notifications = NotificationCounters::default();
        notifications.add(NotificationCount::Sent, packets + 2);
        let device_id = DeviceId(device);
        snapshot.endpoints.push(EndpointSnapshot {
            endpoint,
            device: device_id,
            counters,
            drops,
            notifications,
            classes: None,
        });
        let mut queue = QueueSnapshot::new(DeviceId(device), 3);
        queue.put("rx_frames", packets + 1);
        snapshot.queues.push(queue);
        snapshot.handoff.forwarded = 5;
        snapshot
    }

    #[test]
    fn a_devices_counters_are_the_sum_of_its_workers_and_each_has_its_group() {
        let mut verdicts = [0; Verdict::ALL.len()];
        verdicts[Verdict::Redirected as usize] = 9;
        let devices = [
            DeviceCounts { name: "roce0", verdicts, pauses: None },
            DeviceCounts { name: "roce1", verdicts: [0; Verdict::ALL.len()], pauses: None },
        ];
        let snapshots = [snapshot(0, 0, 10), snapshot(1, 0, 20), snapshot(2, 1, 40)];
        let report = counters(&devices, &snapshots, &[("cm_req_sent", 3)]).counters;
        assert_eq!(report["device/roce0"]["request_packets"], 30);
        assert_eq!(report["device/roce0"]["drop_bad_icrc"], 2);
        assert_eq!((report["device/roce0"]["np_cnp_sent"], report["device/roce0/worker/1"]["np_cnp_sent"]), (34, 22));
        assert_eq!(report["device/roce0"]["xdp_redirected"], 9);
        assert_eq!(report["device/roce0/worker/1"]["request_packets"], 20);
        assert_eq!(report["device/roce1"]["request_packets"], 40);
        assert_eq!(report["device/roce1/queue/3"]["rx_frames"], 41);
        assert_eq!(report["worker/2"]["forwarded"], 5);
        assert_eq!(report["control"]["cm_req_sent"], 3);
        assert!(!report.contains_key("device/roce1/worker/0"));
    }

    #[test]
    fn a_queue_pair_without_a_peer_says_nothing_of_one() {
        let mut qp = QpSnapshot {
            qpn: Qpn::from_wire(7),
            session: SessionId(2),
            service: "RC",
            state: "INIT",
            path: "resolving",
            peer: [0; 16],
            dest_qpn: 0,
            path_mtu_bytes: 0,
            progress: QpProgress::default(),
            counters: QpCounters::default(),
        };
        let owner = SessionProcess { pid: 17, program: "ib_write_bw" };
        let report = queue_pair(&qp, "roce0", owner, WorkerId(1));
        assert_eq!((report.peer.as_str(), report.path.as_str(), report.pid), ("", "", 17));
        qp = QpSnapshot { path_mtu_bytes: 1024, peer: roced_types::gid_of([10, 0, 0, 2].into()), ..qp };
        let report = queue_pair(&qp, "roce0", owner, WorkerId(1));
        assert_eq!((report.peer.as_str(), report.path.as_str()), ("10.0.0.2", "resolving"));
        assert_eq!(mac_text([2, 0, 0, 0, 0xab, 1]), "02:00:00:00:ab:01");
    }
}
