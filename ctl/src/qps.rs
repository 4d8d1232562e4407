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
};

/// The report as a table; with `with_counters`, each queue pair's own counters below it.
pub(crate) fn render(report: &QpsReport, with_counters: bool) -> String {
    let mut text = String::new();
    table(&report.qps).append(&mut text, "none");
    if with_counters {
        for qp in &report.qps {
            let title = format!("qp {} ({}, pid {})", Qpn::from_wire(qp.qpn), qp.device, qp.pid);
            counters::group(&title, &qp.counters, false).append(&mut text, "nothing counted yet");
        }
    }
    text
}

fn table(qps: &[QpReport]) -> TableSection {
    let columns = [
        Text("QPN"),
        Text("device"),
        Number("worker"),
        Number("session"),
        Number("pid"),
        Text("state"),
        Number("MTU"),
        Text("path"),
        Text("peer"),
        Text("peer QPN"),
    ];
    let mut section = TableSection::new(title(qps.len()), &columns);
    for qp in qps {
        // Before RTR a queue pair has no peer.
        let connected = !qp.peer.is_empty();
        section.row([
            Qpn::from_wire(qp.qpn).to_string(),
            qp.device.clone(),
            qp.worker.to_string(),
            qp.session.to_string(),
            qp.pid.to_string(),
            qp.state.clone(),
            if qp.path_mtu_bytes > 0 { format!("{} B", qp.path_mtu_bytes) } else { String::new() },
            qp.path.clone(),
            qp.peer.clone(),
            if connected { Qpn::from_wire(qp.dest_qpn).to_string() } else { String::new() },
        ]);
    }
    section
}

fn title(count: usize) -> String {
    let mut title = String::from("Queue pairs");
    if count > 0 {
        write!(title, " ({count})").expect("a string takes everything");
    }
    title
}
