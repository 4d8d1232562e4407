//! Counters of the connection manager by name, and its identifiers, for operators.

use roced_cm::{identifiers::IdReport, wire::Attribute};

use super::ConnectionService;

/// Names of the counters of each kind of message: sent, sent again, received, received again.
const NAMES: [(Attribute, [&str; 4]); 9] = [
    (Attribute::Req, ["cm_req_sent", "cm_req_repeated", "cm_req_received", "cm_req_duplicates"]),
    (Attribute::Mra, ["cm_mra_sent", "cm_mra_repeated", "cm_mra_received", "cm_mra_duplicates"]),
    (Attribute::Rej, ["cm_rej_sent", "cm_rej_repeated", "cm_rej_received", "cm_rej_duplicates"]),
    (Attribute::Rep, ["cm_rep_sent", "cm_rep_repeated", "cm_rep_received", "cm_rep_duplicates"]),
    (Attribute::Rtu, ["cm_rtu_sent", "cm_rtu_repeated", "cm_rtu_received", "cm_rtu_duplicates"]),
    (Attribute::Dreq, ["cm_dreq_sent", "cm_dreq_repeated", "cm_dreq_received", "cm_dreq_duplicates"]),
    (Attribute::Drep, ["cm_drep_sent", "cm_drep_repeated", "cm_drep_received", "cm_drep_duplicates"]),
    (
        Attribute::SidrReq,
        ["cm_sidr_req_sent", "cm_sidr_req_repeated", "cm_sidr_req_received", "cm_sidr_req_duplicates"],
    ),
    (
        Attribute::SidrRep,
        ["cm_sidr_rep_sent", "cm_sidr_rep_repeated", "cm_sidr_rep_received", "cm_sidr_rep_duplicates"],
    ),
];

impl ConnectionService {
    /// All identifiers, for operators.
    pub(crate) fn reports(&self) -> Vec<IdReport> {
        self.ids.reports().collect()
    }

    /// All names with their counts.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = self.ids.counters();
        let connections = self.ids.connections();
        let kept = connections.kept_answers();
        let mut named = vec![
            ("cm_identifiers", self.ids.len() as u64),
            ("cm_listeners", self.ids.listeners() as u64),
            ("cm_memberships", self.ids.memberships() as u64),
            ("cm_connections", (connections.len() - kept) as u64),
            ("cm_kept_answers", kept as u64),
            ("cm_postponed", self.ids.postponed() as u64),
            ("cm_discarded", counters.discarded),
            ("cm_unknown", counters.unknown),
            ("cm_other_peer", counters.other_peer),
            ("cm_out_of_state", counters.out_of_state),
            ("cm_no_room", counters.no_room),
            ("cm_wrong_address", self.wrong_address),
            ("cm_receive_dropped", self.intake.dropped),
            ("cm_unknown_dropped", self.intake.unknown_dropped),
            ("cm_send_dropped", self.routes.dropped),
        ];
        for (attribute, [sent, repeated, received, duplicates]) in NAMES {
            let of = counters.of(attribute);
            named.extend([
                (sent, of.sent),
                (repeated, of.repeated),
                (received, of.received),
                (duplicates, of.duplicates),
            ]);
        }
        named
    }
}
