//! Rules of marks and notifications of congestion, held against recordings of Linux with marks and
//! notifications put in.

use super::*;
use crate::{
    check::congestion::{Marks, check},
    compare::source_port,
    trace::Service,
};

const MARKED: u8 = 3;

/// Violations of `side`, and its marks.
fn judged(frames: &[Seen], side: Side, ecn: bool) -> (Vec<&'static str>, Marks) {
    let mut findings = Findings::default();
    let marks = check(frames, side, ecn, &mut findings);
    (rules([findings].into_iter()), marks)
}

fn carries_data(seen: &Seen) -> bool {
    seen.from == Side::Rxe && seen.payload_bytes > 0
}

/// A's data came to B marked, and B notified A once, at the end.
fn notified(file: &str) -> Vec<Seen> {
    let mut frames = recorded(file);
    frames.iter_mut().filter(|seen| carries_data(seen)).for_each(|seen| seen.ip.traffic_class = MARKED);
    let answer = frames.iter().rfind(|seen| seen.from == Side::Roced).expect("B answers");
    frames.push(notification_like(answer));
    frames
}

fn notification_like(seen: &Seen) -> Seen {
    Seen {
        service: Service::Cnp,
        kind: Kind::Notification,
        opcode: 0x81,
        begins: true,
        ends: true,
        solicited: false,
        mig_req: false,
        ack_request: false,
        pad: 0,
        byte4: 0x40,
        psn: 0,
        syndrome: None,
        msn: 0,
        payload_bytes: 16,
        payload_sum: trace::sum(&[0; 16]),
        ip: trace::Ip { traffic_class: 48 << 2, ..seen.ip },
        ..seen.clone()
    }
}

#[test]
fn a_notification_of_marked_data_breaks_no_rule() {
    let frames = notified("rc_send_fml_mtu256.pcap");
    let marked = frames.iter().filter(|seen| carries_data(seen)).count();
    let (rules, ours) = judged(&frames, Side::Roced, false);
    assert_eq!(rules, [""; 0]);
    assert_eq!((ours.allowed, ours.arrived, ours.notifications, ours.notified), (0, marked, 1, 0));
    assert_eq!(ours.others, frames.iter().filter(|seen| seen.from == Side::Rxe).count());
    let (rules, theirs) = judged(&frames, Side::Rxe, false);
    assert_eq!((rules, theirs.notifications, theirs.notified), (Vec::new(), 0, 1));
}

#[test]
fn wrong_bytes_of_a_notification_are_seen() {
    let changes: [fn(&mut Seen); 11] = [
        |it| it.intact = false,
        |it| it.solicited = true,
        |it| it.mig_req = true,
        |it| it.ack_request = true,
        |it| it.pkey = 0x7fff,
        |it| it.byte4 = 0,
        |it| it.psn = 1,
        |it| it.payload_bytes = 12,
        |it| it.payload_sum ^= 1,
        |it| it.ip.traffic_class |= 2,
        |it| it.ip.traffic_class = 0,
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut frames = notified("rc_send_fml_mtu256.pcap");
        change(frames.last_mut().expect("the notification"));
        assert_eq!(judged(&frames, Side::Roced, false).0, ["cnp"], "change {nth}");
    }
}

#[test]
fn a_notification_without_cause_is_seen() {
    let unmarked = |frames: &mut Vec<Seen>| frames.iter_mut().for_each(|seen| seen.ip.traffic_class &= !MARKED);
    let early = |frames: &mut Vec<Seen>| frames.rotate_right(1);
    let elsewhere = |frames: &mut Vec<Seen>| frames.last_mut().expect("it").dest_qpn ^= 1;
    let many = |frames: &mut Vec<Seen>| {
        let it = frames.last().expect("it").clone();
        frames.extend(std::iter::repeat_n(it, frames.iter().filter(|seen| carries_data(seen)).count()));
    };
    for change in [&unmarked as &dyn Fn(&mut Vec<Seen>), &early, &elsewhere, &many] {
        let mut frames = notified("rc_send_fml_mtu256.pcap");
        change(&mut frames);
        assert_eq!(judged(&frames, Side::Roced, false).0, ["cnp-cause"]);
    }
}

/// B sends nothing else to the queue pair that it notifies: the port of A's packets tells its number.
#[test]
fn the_sender_of_an_unreliable_connection_is_known_by_its_port() {
    let mut frames = recorded("uc_send_fml.pcap");
    frames.retain(|seen| seen.from == Side::Rxe);
    frames.iter_mut().for_each(|seen| seen.ip.traffic_class = MARKED);
    let cause = frames[0].clone();
    let sender = |qpn: &u32| source_port(cause.dest_qpn, *qpn) == cause.source_port;
    let dest_qpn = (2..0xff_ffff).find(sender).expect("a number that makes the port");
    let mut notification = notification_like(&cause);
    (notification.from, notification.dest_qpn) = (Side::Roced, dest_qpn);
    (notification.ip.source, notification.ip.destination) = (cause.ip.destination, cause.ip.source);
    frames.push(notification);
    assert_eq!(judged(&frames, Side::Roced, false).0, [""; 0]);
    frames.last_mut().expect("it").dest_qpn ^= 1;
    assert_eq!(judged(&frames, Side::Roced, false).0, ["cnp-cause"]);
}

/// Only roced owes one; a few marks may all be of a queue pair that has ended.
#[test]
fn a_notification_that_is_never_sent_is_seen() {
    let mut frames = notified("rc_send_fml_mtu256.pcap");
    frames.pop();
    let data = frames.iter().find(|seen| carries_data(seen)).expect("A sends data").clone();
    frames.retain(|seen| !carries_data(seen));
    frames.extend(std::iter::repeat_n(data.clone(), 19));
    assert_eq!(judged(&frames, Side::Roced, false).0, [""; 0]);
    frames.push(data.clone());
    assert_eq!(judged(&frames, Side::Roced, false).0, ["cnp-owed"]);
    let mut damaged = frames.clone();
    damaged.last_mut().expect("it").intact = false;
    assert_eq!(judged(&damaged, Side::Roced, false).0, [""; 0]);
    frames.iter_mut().for_each(|seen| seen.from = seen.from.other());
    assert_eq!(judged(&frames, Side::Rxe, false).0, [""; 0]);
}

#[test]
fn ecn_bits_are_as_configured() {
    let mut frames = recorded("rc_send_fml_mtu256.pcap");
    assert_eq!(judged(&frames, Side::Roced, false).0, [""; 0]);
    assert_eq!(judged(&frames, Side::Roced, true).0, ["ecn"]);
    // For rxe's its programs decide.
    assert_eq!(judged(&frames, Side::Rxe, true).0, [""; 0]);
    frames.iter_mut().for_each(|seen| seen.ip.traffic_class = 2);
    let (rules, marks) = judged(&frames, Side::Roced, true);
    assert_eq!((rules, marks.allowed), (Vec::new(), frames.iter().filter(|seen| seen.from == Side::Roced).count()));
    assert_eq!(judged(&frames, Side::Roced, false).0, ["ecn"]);
    // No datagram may be marked.
    frames.iter_mut().for_each(|seen| seen.service = Service::Ud);
    assert_eq!(judged(&frames, Side::Roced, true).0, ["ecn"]);
}
