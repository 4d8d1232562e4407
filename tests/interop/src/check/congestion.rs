//! Marks of congested switches, and the notifications of them (CNPs, annex A17.9): the ECN bits of
//! the packets that a side sent, the bytes of its notifications, and the marked data that caused
//! them. Notifications belong to no life of a connection: they have no PSN.

use std::{collections::BTreeSet, net::IpAddr};

use super::rules::Findings;
use crate::{
    compare::source_port,
    scenario::Side,
    trace::{self, Kind, Seen, Service},
};

/// ECN bits of the IP header (RFC 3168): not to be marked, ECT(0), marked.
const NOT_ECT: u8 = 0;
const ECT0: u8 = 2;
const CE: u8 = 3;
/// DSCP 48, not to be marked.
const NOTIFICATION_CLASS: u8 = 48 << 2;
/// BECN in byte 4 of the BTH.
const BECN: u8 = 0x40;
const RESERVED: [u8; 16] = [0; 16];
/// A side with as many marked packets of data has sent a notification: fewer may all be of a queue
/// pair that has ended.
const MANY: usize = 20;

/// Of a side, by its port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// Packets that it sent and that a switch may mark.
    pub(crate) allowed: usize,
    /// Packets with data of a connection that came marked.
    pub(crate) arrived: usize,
    /// Notifications that it sent.
    pub(crate) notifications: usize,
    /// Notifications that came, and other packets.
    pub(crate) notified: usize,
    pub(crate) others: usize,
}

/// Checks the frames that `side` sent, by those that passed its port. `ecn`: packets of roced's
/// connections may be marked; for rxe's the program decides.
pub(super) fn check(frames: &[Seen], side: Side, ecn: bool, findings: &mut Findings) -> Marks {
    let mut marks = Marks::default();
    let known: BTreeSet<_> =
        frames.iter().filter(|seen| seen.from == side && is_of_connection(seen)).map(flow).collect();
    let mut causes = Vec::new();
    for seen in frames {
        match (seen.from == side, seen.kind == Kind::Notification) {
            (true, true) => {
                marks.notifications += 1;
                check_bytes(seen, findings);
                let may_cause = |cause: &&Seen| causes_it(cause, seen) || known.contains(&flow(seen));
                if !causes.iter().any(may_cause) || marks.notifications > causes.len() {
                    findings.add("cnp-cause", seen, format!("{} marked packets before it", causes.len()));
                }
            }
            (true, false) => {
                marks.allowed += usize::from(ecn_of(seen) == ECT0);
                let wanted = if ecn && is_of_connection(seen) { ECT0 } else { NOT_ECT };
                if side == Side::Roced && ecn_of(seen) != wanted {
                    findings.add("ecn", seen, format!("ECN {} of opcode 0x{:02x}", ecn_of(seen), seen.opcode));
                }
            }
            (false, true) => marks.notified += 1,
            (false, false) => {
                marks.others += 1;
                causes.extend((ecn_of(seen) == CE && carries_data(seen)).then_some(seen));
            }
        }
    }
    marks.arrived = causes.len();
    if let Some(last) = causes.last().filter(|_| side == Side::Roced && marks.notifications == 0)
        && causes.len() >= MANY
    {
        findings.add("cnp-owed", last, format!("{} packets of data came marked, and no CNP was sent", causes.len()));
    }
    marks
}

fn ecn_of(seen: &Seen) -> u8 {
    seen.ip.traffic_class & 3
}

fn is_of_connection(seen: &Seen) -> bool {
    matches!(seen.service, Service::Rc | Service::Uc)
}

fn carries_data(seen: &Seen) -> bool {
    let carries = matches!(seen.kind, Kind::Send | Kind::Write | Kind::ReadResponse);
    seen.intact && is_of_connection(seen) && carries && seen.payload_bytes > 0
}

/// The queue pair that it is for.
fn flow(seen: &Seen) -> (IpAddr, u32) {
    (seen.ip.destination, seen.dest_qpn)
}

/// Both are of the queue pairs that make the port of rxe's packet.
fn causes_it(cause: &Seen, notification: &Seen) -> bool {
    cause.ip.source == notification.ip.destination
        && cause.ip.destination == notification.ip.source
        && cause.source_port == source_port(cause.dest_qpn, notification.dest_qpn)
}

fn check_bytes(seen: &Seen, findings: &mut Findings) {
    let flags = [seen.solicited, seen.mig_req, seen.ack_request];
    let header = (seen.version, seen.pad, seen.pkey, seen.byte4, seen.psn);
    let is_right = seen.intact
        && flags == [false; 3]
        && header == (0, 0, 0xffff, BECN, 0)
        && (seen.payload_bytes, seen.payload_sum) == (RESERVED.len() as u32, trace::sum(&RESERVED))
        && seen.ip.traffic_class == NOTIFICATION_CLASS;
    if !is_right {
        findings.add(
            "cnp",
            seen,
            format!(
                "intact {}, SE, MigReq, AckReq {flags:?}, TVer, pad, P_Key, byte 4, PSN {header:x?}, {} bytes, traffic class 0x{:02x}",
                seen.intact, seen.payload_bytes, seen.ip.traffic_class
            ),
        );
    }
}
