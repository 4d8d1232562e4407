//! `rocectl fabric`, which joins reports.

use roced_report::{CountersReport, DeviceReport, QpReport, QpsReport, StatusReport};

use super::{FakeDaemon, line, qps, status, text};

/// Two devices, with marks and pauses. The first one has three connections to one peer, of
/// which one has failed, one to another peer, one on the host itself, and a queue pair without a
/// peer.
fn fabric() -> (StatusReport, CountersReport, QpsReport) {
    let (mut status, mut qps) = (status(), qps());
    status.devices[0].pauses = "3 4".into();
    status.devices.push(DeviceReport { name: "roce1".into(), pauses: "global".into(), ..status.devices[0].clone() });
    qps.qps[0].request_window_packets = Some(31.25);
    qps.qps[0].rate_mbit_per_s = Some(624.9);
    qps.qps[0].counters.insert("local_ack_timeout_err".into(), 2);
    let first = qps.qps[0].clone();
    let peer = |peer: &str, path: &str| QpReport { peer: peer.into(), path: path.into(), ..first.clone() };
    qps.qps.push(QpReport {
        request_window_packets: Some(8.0),
        rate_mbit_per_s: None,
        round_trip_ns: 45_600,
        ..peer("10.10.0.2", "nic")
    });
    qps.qps.push(peer("10.10.0.1", "local"));
    qps.qps.push(QpReport {
        state: "ERR".into(),
        request_window_packets: Some(0.0),
        round_trip_ns: 1,
        ..peer("10.10.0.2", "nic")
    });
    qps.qps.push(peer("10.10.0.10", "nic"));
    let group = |name: &str, counters: &[(&str, u64)]| {
        (name.to_owned(), counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    };
    let pauses = [("rx_prio3_pause", 12), ("rx_prio3_pause_transition", 5), ("rx_prio3_pause_duration", 1_234_567)];
    let marks = [("np_ecn_marked_roce_packets", 4000), ("np_cnp_sent", 500), ("rp_cnp_handled", 77)];
    let sent = [("tx_tc3_packets", 6000), ("tx_tc3_bytes", 3 << 20), ("tx_tc6_packets", 9), ("tx_tc6_bytes", 1 << 20)];
    let counters = [
        group("device/roce0", &[&pauses[..], &marks, &sent].concat()),
        group("device/roce0/queue/0", &[("nic_tx_pauses", 20)]),
        group("device/roce0/queue/1", &[("nic_tx_pauses", 22)]),
        group("device/roce1", &[("np_cnp_sent", 9), ("rx_global_pause", 6), ("rx_prio5_pause", 1)]),
        group("device/roce10/queue/0", &[("nic_tx_pauses", 1000)]),
    ];
    (status, CountersReport { counters: counters.into() }, qps)
}

/// `rocectl` with a daemon that answers all questions of `rocectl fabric`.
fn run_fabric((status, counters, qps): &(StatusReport, CountersReport, QpsReport), args: &[&str]) -> (String, String) {
    let daemon = FakeDaemon::answering_each(vec![line(status), line(counters), line(qps), line(status)]);
    let (asked, output) = daemon.run(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (asked, text(&output.stdout))
}

#[test]
fn fabric_joins_devices_priorities_and_peers() {
    let (asked, shown) = run_fabric(&fabric(), &["fabric"]);
    assert_eq!(asked, "\"status\"\n\"counters\"\n\"qps\"\n\"status\"\n");
    for part in [
        "roce0   serving  on   window              off                8000   4,000        500       77        -              -         -",
        "roce1   serving  on   window              off                8000       -          9        -        -              -         -",
        "roce0   3 4                      42       -      -           -",
        "roce1   global                    -       -      -           -",
        "  roce1   all            6             0     0.000 s\n  roce1   5              1             0     0.000 s\n\n",
        "roce0   3             12             5     1.235 s\n  roce0   4              0             0     0.000 s\n",
        "roce0       3         6,000  3 MiB  75.0 %\n  roce0       6             9  1 MiB  25.0 %\n\n",
        "Peers (2)",
        "roce0   10.10.0.2     3       1        102  8.0 to 31.2            -        1  625 Mbit/s  12.3 us to 45.6 us ",
        "roce0   10.10.0.10    1       0         34         31.2            -        1  625 Mbit/s             12.3 us ",
    ] {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
    assert!(!shown.contains("10.10.0.1 "), "a connection on the host itself\n{shown}");
}

#[test]
fn fabric_shows_no_pauses_where_none_are_honored_or_sent() {
    let mut reports = fabric();
    reports.0.devices.iter_mut().for_each(|device| device.pauses = "off".into());
    reports.1.counters.clear();
    reports.2.qps.clear();
    let (_, shown) = run_fabric(&reports, &["fabric"]);
    assert!(!shown.contains("PFC") && !shown.contains("ended pauses") && !shown.contains("Traffic classes"), "{shown}");
    assert!(shown.ends_with("Peers\n  no connection through a NIC\n"), "{shown}");
}

#[test]
fn fabric_as_json_has_every_value() {
    let (_, shown) = run_fabric(&fabric(), &["fabric", "--json"]);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("--json prints JSON");
    let device = &view["devices"][0];
    assert_eq!((&device["device"], &device["counters"]["nic_tx_pauses"]), (&"roce0".into(), &42.into()));
    assert_eq!(device["pauses_received"][0]["duration_us"], 1_234_567);
    let peer = &device["peers"][0];
    assert_eq!(peer["round_trip_ns"], serde_json::json!({ "min": 12_340, "max": 45_600 }));
    assert_eq!((&peer["qps"], &peer["response_window_packets"]), (&3.into(), &serde_json::Value::Null));
}

#[test]
fn fabric_joins_no_reports_of_two_daemons() {
    let (status, counters, qps) = fabric();
    let again = StatusReport { pid: status.pid + 1, uptime_s: 0.5, ..status.clone() };
    let answers = vec![line(&status), line(&counters), line(&qps), line(&again)];
    let (_, output) = FakeDaemon::answering_each(answers).run(&["fabric"]);
    assert!(!output.status.success() && text(&output.stderr).contains("started again"), "{}", text(&output.stderr));
}
