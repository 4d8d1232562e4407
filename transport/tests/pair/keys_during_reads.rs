//! Keys that a SEND with invalidate takes while READs by them are not answered yet, or again.

use roced_transport::{
    clock::Nanos,
    mr::{Mr, MrKey, Scope},
    wire::{
        bth::Bth,
        headers::Headers,
        ieth::Ieth,
        opcode::{self},
    },
    work::SendWork,
};
use roced_types::{QpAttributes, SendOp, Status, access, attribute, send_flags, state};

use crate::{
    host::{MEMORY, PD, Pair, Settings, VA, bth, forged, no_fault, sge, work},
    keys::{LIMIT, WINDOW, send_invalidate},
    selective::warm,
};

/// Host 1 opens a window to the peer of its queue pair, as a bind would.
pub(crate) fn lend(pair: &mut Pair) {
    let qpn = pair.hosts[1].qpn;
    let window = Mr {
        key: WINDOW,
        pd: PD,
        access: access::REMOTE,
        va: VA,
        length: 8192,
        object: MEMORY,
        offset: 0,
        scope: Scope::WindowOf(qpn),
    };
    pair.hosts[1].endpoint.insert_mr(window).expect("room");
}

/// Nothing is lost: the answers to a READ are late, a probe asks again, the answers come, and a
/// SEND with invalidate takes the key while the repetition waits for room on the wire.
#[test]
fn a_probe_for_a_read_survives_deregistration_of_its_key() {
    let mut pair = warm(Settings::default());
    lend(&mut pair);
    pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
    pair.hosts[1].post_recv(8, &[sge(500_000, 100)]);
    let frames = |pair: &mut Pair, at: usize| {
        let host = &mut pair.hosts[at];
        host.endpoint.on_timeout(pair.now, 16, &mut host.app);
        host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
        host.nic.frames.drain(..).collect::<Vec<_>>()
    };
    let keyed = |wr_id, op, key: MrKey, sges| SendWork { rkey: key.0, ..work(wr_id, op, sges, 0) };
    let sges = [sge(8192, 3000)];
    pair.hosts[0].post(&keyed(1, SendOp::Read, WINDOW, &sges));
    for frame in frames(&mut pair, 0) {
        pair.deliver(1, &frame);
    }
    let answers = frames(&mut pair, 1);
    assert_eq!(answers.len(), 3);
    // They take their time: a probe asks again.
    let mut probes = Vec::new();
    for _ in 0..1000 {
        pair.now = pair.now + Nanos::from_micros(10);
        probes = frames(&mut pair, 0);
        if !probes.is_empty() {
            break;
        }
    }
    assert!(!probes.is_empty(), "a probe");
    for frame in &answers {
        pair.deliver(0, frame);
    }
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    pair.hosts[0].post(&keyed(2, SendOp::SendInvalidate, WINDOW, &[]));
    let sends = frames(&mut pair, 0);
    // All of them come in one turn, in order, while the wire has no room.
    pair.hosts[1].nic.room = 0;
    for frame in probes.iter().chain(&sends) {
        pair.deliver(1, frame);
    }
    for _ in 0..3 {
        pair.turn(&mut no_fault);
    }
    pair.hosts[1].nic.room = 64;
    pair.settle();
    pair.hosts[0].post(&work(3, SendOp::Send, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!((pair.hosts[0].state(), pair.hosts[1].state()), ("RTS", "RTS"));
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success), (3, Status::Success)]);
}

/// Neither is fenced. The SEND takes the key when the READ was answered.
#[test]
fn a_read_before_a_send_with_invalidate_of_its_key_is_answered() {
    let mut pair = warm(Settings::default());
    lend(&mut pair);
    pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
    pair.hosts[1].nic.room = 1;
    let sges = [sge(8192, 3000)];
    pair.hosts[0].post(&SendWork { rkey: WINDOW.0, ..work(1, SendOp::Read, &sges, 0) });
    pair.hosts[0].post(&SendWork { rkey: WINDOW.0, ..work(2, SendOp::SendInvalidate, &[], 0) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_fenced_send_with_invalidate_takes_the_key_when_the_read_is_done() {
    let mut pair = warm(Settings::default());
    lend(&mut pair);
    pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
    pair.hosts[1].nic.room = 1;
    let sges = [sge(8192, 3000)];
    pair.hosts[0].post(&SendWork { rkey: WINDOW.0, ..work(1, SendOp::Read, &sges, 0) });
    let fence = send_flags::SIGNALED | send_flags::FENCE;
    pair.hosts[0].post(&SendWork { flags: fence, rkey: WINDOW.0, ..work(2, SendOp::SendInvalidate, &[], 0) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
}

/// A SEND with invalidate waits for the answers before it, and its queue pair ends meanwhile: no
/// key is taken, and the next life is not told.
#[test]
fn a_key_that_waits_for_answers_stays_when_the_queue_pair_ends() {
    for to in [state::ERR, state::RESET] {
        let mut pair = warm(Settings::default());
        lend(&mut pair);
        pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
        pair.hosts[1].nic.room = 0;
        let sges = [sge(8192, 3000)];
        pair.hosts[0].post(&SendWork { rkey: WINDOW.0, ..work(1, SendOp::Read, &sges, 0) });
        pair.hosts[0].post(&send_invalidate(2, &[], WINDOW));
        for _ in 0..4 {
            pair.turn(&mut no_fault);
        }
        let host = &mut pair.hosts[1];
        let attributes = QpAttributes { state: to, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("from anywhere");
        pair.hosts[1].nic.room = 64;
        pair.run(LIMIT, no_fault);
        assert!(pair.hosts[1].endpoint.remove_mr(WINDOW).is_some(), "still there");
    }
}

/// IBTA v1 9.7.4.1: it is acknowledged and not executed.
#[test]
fn a_duplicate_send_with_invalidate_takes_no_key_bound_since() {
    let mut pair = Pair::new(Settings::default());
    lend(&mut pair);
    pair.hosts[1].post_recv(7, &[sge(0, 100)]);
    let first = bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE);
    let frame = forged(
        &pair,
        &Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(Bth { ack_request: true, ..first }) },
        &[1; 4],
    );
    pair.deliver(1, &frame);
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    lend(&mut pair);
    pair.deliver(1, &frame);
    pair.settle();
    assert!(pair.hosts[1].endpoint.remove_mr(WINDOW).is_some(), "still there");
    assert_eq!(pair.hosts[1].state(), "RTS");
}
