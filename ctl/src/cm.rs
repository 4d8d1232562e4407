//! `rocectl cm`: identifiers and connections of programs that use rdma_cm.

use roced_report::{CmIdReport, CmReport};
use roced_types::Qpn;

use crate::table::{
    Column::{Number, Text},
    TableSection,
};

/// The report as a table.
pub(crate) fn render(report: &CmReport) -> String {
    let mut text = String::new();
    table(&report.ids).append(&mut text, "none");
    text
}

fn table(ids: &[CmIdReport]) -> TableSection {
    let columns = [
        Number("id"),
        Text("port space"),
        Text("device"),
        Number("session"),
        Number("pid"),
        Text("program"),
        Text("state"),
        Text("connection"),
        Text("local"),
        Text("peer"),
        Text("QPN"),
        Text("peer QPN"),
    ];
    let mut section = TableSection::new(format!("Identifiers of rdma_cm ({})", ids.len()), &columns);
    let qpn = |number: u32| if number == 0 { String::new() } else { Qpn::from_wire(number).to_string() };
    for id in ids {
        section.row([
            id.id.to_string(),
            id.port_space.clone(),
            id.device.clone(),
            id.session.to_string(),
            id.pid.to_string(),
            id.program.clone(),
            id.state.clone(),
            id.connection.clone(),
            id.local.clone(),
            id.peer.clone(),
            qpn(id.qpn),
            qpn(id.peer_qpn),
        ]);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_no_peer() {
        let id = CmIdReport {
            id: 3,
            port_space: "TCP".to_owned(),
            device: String::new(),
            session: 2,
            pid: 77,
            program: "rping".to_owned(),
            state: "listening".to_owned(),
            connection: String::new(),
            local: "0.0.0.0:7174".to_owned(),
            peer: String::new(),
            qpn: 0,
            peer_qpn: 0,
        };
        let text = render(&CmReport { ids: vec![id] });
        let row = text.lines().last().expect("a row");
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["3", "TCP", "-", "2", "77", "rping", "listening", "-", "0.0.0.0:7174", "-", "-", "-"]
        );
        assert!(render(&CmReport { ids: Vec::new() }).contains("none"));
    }
}
