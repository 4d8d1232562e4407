//! Traffic classes of an endpoint: strict order, shares, rates, and the bytes that a NIC has ahead.

use roced_transport::{
    clock::Nanos,
    qp::PathState,
    turns::classes::{ClassConfig, Selection, TrafficClasses},
    wire::{
        opcode::{self, Opcode},
        path::{Path, PathSpec},
    },
};
use roced_types::SendOp;

use crate::host::{Pair, Settings, no_fault, sge, work};

/// Bytes per second of class 2.
const RATE: u64 = 10_000_000;

/// Class 6 is strict, class 1 has three times the share of class 0, class 2 has a rate.
fn classes() -> TrafficClasses {
    let mut classes = TrafficClasses::default();
    classes.config[6] = ClassConfig::new(Selection::Strict);
    classes.config[0] = ClassConfig::new(Selection::Ets { percent: 20 });
    classes.config[1] = ClassConfig::new(Selection::Ets { percent: 60 });
    classes.config[2] = ClassConfig { selection: Selection::Strict, max_rate_kbit_per_s: (RATE / 125) as u32 };
    classes.ahead_bytes_max = 5000;
    classes
}

/// Queue pairs 5 and 6 with packets of these classes, of which the hosts send 8 in a turn.
fn pair(of_five: u8, of_six: u8) -> Pair {
    let mut pair = Pair::new(Settings { classes: Some(classes), turn_frames: 8, ..Settings::default() });
    pair.connect_another(6);
    for (index, class) in [(5, of_five), (6, of_six)] {
        pair.turn_to(index);
        set_class(&mut pair, class);
    }
    pair
}

/// Has packets of the present queue pairs this class, by their DSCP.
fn set_class(pair: &mut Pair, class: u8) {
    for at in 0..2 {
        let spec = PathSpec { traffic_class: class << 5, ..pair.path_spec(at) };
        let path = PathState::Ready(Path::new(&spec).expect("one family"));
        let host = &mut pair.hosts[at];
        host.endpoint.set_path(host.qpn, path).expect("it is there");
    }
}

/// Queue pair 5 sends long messages, queue pair 6 messages of one packet.
fn post(pair: &mut Pair, index: u32, count: u64) {
    pair.turn_to(index);
    let bytes = if index == 5 { 100 * 1024 } else { 1024 };
    for wr_id in 0..count {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, bytes)], 500_000));
    }
}

fn turns(pair: &mut Pair, count: usize) {
    for _ in 0..count {
        pair.turn(&mut no_fault);
    }
}

/// Packets of each queue pair among those that host 0 sent from `from` on.
fn sent(pair: &Pair, from: usize) -> [usize; 2] {
    let of_six = |opcode: Opcode| opcode == opcode::RC_WRITE_ONLY;
    let sent = pair.trace[from..].iter().filter(|(sender, ..)| *sender == 0);
    sent.fold([0; 2], |[five, six], (_, opcode, _)| if of_six(*opcode) { [five, six + 1] } else { [five + 1, six] })
}

#[test]
fn a_strict_class_goes_first() {
    let mut pair = pair(0, 6);
    post(&mut pair, 5, 4);
    turns(&mut pair, 4);
    post(&mut pair, 6, 16);
    let before = pair.trace.len();
    while sent(&pair, before)[1] < 16 {
        pair.turn(&mut no_fault);
    }
    let [five, six] = sent(&pair, before);
    assert_eq!(six, 16);
    assert!(five <= 8, "bulk of one turn: {five}");
    pair.settle();
}

#[test]
fn classes_have_their_shares() {
    let mut pair = pair(1, 0);
    post(&mut pair, 5, 30);
    post(&mut pair, 6, 60);
    let before = pair.trace.len();
    while sent(&pair, before)[1] < 50 {
        pair.turn(&mut no_fault);
    }
    let [five, six] = sent(&pair, before);
    let ratio = five as f64 / six as f64;
    assert!((2.4..3.6).contains(&ratio), "{five} to {six}");
    pair.settle();
}

#[test]
fn packets_follow_the_class_of_a_new_path() {
    let mut pair = pair(0, 6);
    post(&mut pair, 5, 4);
    post(&mut pair, 6, 40);
    set_class(&mut pair, 0);
    let before = pair.trace.len();
    turns(&mut pair, 8);
    let [five, six] = sent(&pair, before);
    assert!(five > 8 && six > 8, "both are of class 0: {five}, {six}");
    set_class(&mut pair, 6);
    let before = pair.trace.len();
    turns(&mut pair, 2);
    let [five, six] = sent(&pair, before);
    assert!(five <= 8 && six >= 8, "{five}, {six}");
    pair.settle();
}

#[test]
fn a_class_keeps_its_highest_rate_and_wakes_in_time() {
    let mut pair = pair(2, 0);
    post(&mut pair, 5, 1);
    assert!(!pair.run(Nanos::from_millis(9), no_fault), "100 KiB take 10 ms");
    assert!(pair.run(Nanos::from_millis(4), no_fault), "and no longer");
}

#[test]
fn shares_leave_room_in_the_nic_for_a_strict_class() {
    let mut pair = pair(0, 6);
    pair.turn_to(5);
    let host = &mut pair.hosts[0];
    host.post(&work(1, SendOp::Write, &[sge(0, 100 * 1024)], 500_000));
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
    assert_eq!(host.nic.frames.len(), 5, "5,000 bytes are ahead with the fifth frame");
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
    assert_eq!(host.nic.frames.len(), 5);
    post(&mut pair, 6, 3);
    let host = &mut pair.hosts[0];
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
    assert_eq!(host.nic.frames.len(), 8, "a strict class has no such limit");
    pair.settle();
}
