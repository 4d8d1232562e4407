//! Many queue pairs of one endpoint: their packets in flight together.

use roced_transport::{
    clock::Nanos,
    wire::opcode::{Opcode, Operation},
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::host::{Fate, Pair, Settings, no_fault, sge, work};

const FIRST: u32 = 5;

/// Queue pairs `FIRST` and up, `qps` of them, each with a WRITE of `packets` posted on host 0.
fn writers(qps: u32, packets: usize, settings: Settings) -> Pair {
    let mut pair = Pair::new(settings);
    for index in FIRST..FIRST + qps {
        if index > FIRST {
            pair.connect_another(index);
        }
        pair.hosts[0].post(&work(index.into(), SendOp::Write, &[sge(0, packets * 1024)], 500_000));
    }
    pair
}

#[test]
fn together_they_have_no_more_under_way_than_the_endpoint_may() {
    const TOTAL: u32 = 40;
    const QPS: u32 = 11;
    let mut pair = writers(QPS, 60, Settings { total_window: TOTAL, ..Settings::default() });
    for _ in 0..100 {
        // Nothing is answered, and no time goes by.
        pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
    }
    let sent = pair.sent(0, Operation::Write) as u32;
    // An interrupted queue pair requests an ACK with one more.
    assert!((TOTAL..TOTAL + QPS).contains(&sent), "{sent}");
    pair.settle();
    assert_eq!(pair.hosts[0].take().len(), QPS as usize);
}

/// A window so large that it requests an ACK later than the limit of all: packets without a
/// requested ACK would be in flight for ever.
#[test]
fn an_unsolicited_answer_is_not_awaited() {
    for total_window in [1, 2, 15, 16, 17, 40] {
        let mut pair = writers(5, 200, Settings { window: 4096, total_window, ..Settings::default() });
        let mut turns = 0;
        while pair.hosts[0].app.completions.len() < 5 {
            pair.turn(&mut no_fault);
            turns += 1;
            assert!(turns < 5000, "it stands still with {total_window} at a time");
        }
    }
}

#[test]
fn they_take_turns_and_end_together() {
    let mut pair = writers(8, 128, Settings { total_window: 32, ..Settings::default() });
    let mut order = Vec::new();
    for _ in 0..5000 {
        pair.turn(&mut no_fault);
        order.extend(pair.hosts[0].take().into_iter().map(|_| pair.sent(0, Operation::Write)));
    }
    assert_eq!(order.len(), 8);
    assert!(order[0] > 7 * 128, "the first is done after {} of {} packets", order[0], 8 * 128);
}

/// Its peer answers nothing, and it fills all that there is.
#[test]
fn a_dead_peer_does_not_keep_the_others_waiting() {
    let mut pair = Pair::new(Settings { total_window: 16, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 64 * 1024)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    pair.connect_another(6);
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 200 * 1024)], 500_000));
    let dead = |_, opcode: Opcode, _| {
        let is_send = opcode.info().is_some_and(|info| info.operation == Operation::Send);
        if is_send { Fate::Drop } else { Fate::Deliver }
    };
    pair.run(Nanos::from_millis(60), dead);
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
    assert!(!pair.hosts[0].endpoint.wants_transmit());
}

#[test]
fn failed_and_removed_queue_pairs_make_room() {
    for goes in [false, true] {
        let mut pair = Pair::new(Settings { total_window: 16, timeout: 0, ..Settings::default() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 64 * 1024)], 500_000));
        pair.turn(&mut |_, _, _| Fate::Drop);
        let first = pair.hosts[0].qpn;
        pair.connect_another(6);
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 1024)], 500_000));
        for _ in 0..10 {
            pair.turn(&mut no_fault);
        }
        assert!(pair.hosts[0].app.completions.is_empty(), "there is no room");
        if goes {
            assert!(pair.hosts[0].endpoint.remove_qp(first).is_some());
        } else {
            let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
            pair.hosts[0].endpoint.modify_qp(first, attribute::STATE, &error, None).expect("from anywhere");
        }
        for _ in 0..10 {
            pair.turn(&mut no_fault);
        }
        assert!(pair.hosts[0].take().contains(&(2, Status::Success)), "goes: {goes}");
    }
}
