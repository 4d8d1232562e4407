//! `rocectl qps`: all queue pairs and, on request, their counters.

use std::fmt::Write;

use roced_report::{QpReport, QpsReport};
use roced_types::Qpn;

use crate::{
    counters,
    table::{
        Column::{Number, Text},
        TableSection,
    },
    units,
};

/// The report as a table; with `with_counters`, each queue pair's own counters below it.
pub(crate) fn render(report: &QpsReport, with_counters: bool) -> String {
    let mut text = String::new();
    table(&report.qps).append(&mut text, "none");
    if with_counters {
        for qp in &report.qps {
            let title = format!("qp {} ({}, {} pid {})", Qpn::from_wire(qp.qpn), qp.device, qp.program, qp.pid);
            counters::group(&title, &qp.counters, false).append(&mut text, "nothing counted yet");
        }
    }
    text
}

fn table(qps: &[QpReport]) -> TableSection {
    // Only with `congestion_control`: they are empty columns for most.
    let windows = qps.iter().any(|qp| qp.request_window_packets.is_some());
    let window_columns = if windows { &[Number("window"), Number("READ window")][..] } else { &[] };
    // Of those that CNPs limit at present.
    let rates = qps.iter().any(|qp| qp.rate_mbit_per_s.is_some());
    let mut columns = vec![
        Text("QPN"),
        Text("type"),
        Text("device"),
        Number("worker"),
        Number("session"),
        Number("pid"),
        Text("program"),
        Text("state"),
        Number("MTU"),
        Text("path"),
        Text("peer"),
        Text("peer QPN"),
        Number("next PSN"),
        Number("oldest"),
        Number("expected"),
        Number("sends"),
        Number("receives"),
        Number("in flight"),
        Number("RTT"),
    ];
    columns.extend(window_columns);
    columns.extend(rates.then_some(Number("rate")));
    columns.push(Text("last error"));
    let mut section = TableSection::new(title(qps.len()), &columns);
    for qp in qps {
        // Before RTR a queue pair has no peer.
        let connected = !qp.peer.is_empty();
        let cells = [
            Qpn::from_wire(qp.qpn).to_string(),
            qp.service.clone(),
            qp.device.clone(),
            qp.worker.to_string(),
            qp.session.to_string(),
            qp.pid.to_string(),
            qp.program.clone(),
            qp.state.clone(),
            if qp.path_mtu_bytes > 0 { format!("{} B", qp.path_mtu_bytes) } else { String::new() },
            qp.path.clone(),
            qp.peer.clone(),
            if connected { Qpn::from_wire(qp.dest_qpn).to_string() } else { String::new() },
            psn(qp.next_psn),
            psn(qp.oldest_psn),
            psn(qp.expected_psn),
            qp.sends.to_string(),
            qp.receives.to_string(),
            qp.in_flight_packets.to_string(),
            if qp.round_trip_ns > 0 { units::microseconds(qp.round_trip_ns) } else { String::new() },
        ];
        let window_cells = [window(qp.request_window_packets), window(qp.response_window_packets)];
        let window_cells = window_cells.into_iter().take(window_columns.len());
        let rate_cell = rates.then(|| qp.rate_mbit_per_s.map_or_else(String::new, |rate| format!("{rate:.0} Mbit/s")));
        section.row(cells.into_iter().chain(window_cells).chain(rate_cell).chain([qp.last_error.clone()]));
    }
    section
}

/// A PSN in the notation of packet analyzers.
fn psn(psn: Option<u32>) -> String {
    psn.map_or_else(String::new, |psn| psn.to_string())
}

/// A congestion window in packets: one that grows does so by parts of a packet.
fn window(packets: Option<f64>) -> String {
    packets.map_or_else(String::new, |packets| format!("{packets:.1}"))
}

fn title(count: usize) -> String {
    let mut title = String::from("Queue pairs");
    if count > 0 {
        write!(title, " ({count})").expect("a string takes everything");
    }
    title
}
