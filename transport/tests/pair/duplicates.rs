//! Duplicate requests: answered from kept results, acknowledged, or dropped; never refused.

use roced_transport::{
    mr::MrKey,
    psn::Psn,
    reject::{Disposition, DropReason},
    wire::{
        Aeth, NakCode, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation, Position},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{KEY, Pair, Settings, VA, bth, forged, sge, work},
    keys::WINDOW,
    keys_during_reads::lend,
    selective::warm,
};

/// Packets of a host on their way out now: opcode, PSN counted from the first, payload, AETH.
fn out(pair: &mut Pair, at: usize) -> Vec<(Opcode, u32, usize, Option<Aeth>)> {
    let first = Psn::new(pair.settings.psn);
    let host = &mut pair.hosts[at];
    host.endpoint.on_timeout(pair.now, 16, &mut host.app);
    host.endpoint.poll_transmit(pair.now, 256, &mut host.app, &mut host.nic);
    let frames: Vec<_> = host.nic.frames.drain(..).collect();
    frames
        .iter()
        .map(|frame| {
            let pieces: Vec<&[u8]> = frame.chunks(3840).collect();
            let packet = roced_transport::wire::parse(&pieces).expect("parses");
            (packet.bth.opcode, packet.bth.psn.offset_from(first), packet.payload_len(), packet.aeth)
        })
        .collect()
}

fn read(pair: &Pair, ahead: u32, va: u64, length: u32, key: MrKey) -> Vec<u8> {
    let first = bth(pair, opcode::RC_READ_REQUEST);
    let reth = Some(Reth { va, rkey: key, length });
    let bth = Bth { psn: first.psn.plus(ahead), ack_request: true, ..first };
    forged(pair, &Headers { reth, ..Headers::new(bth) }, &[])
}

fn send_packet(pair: &Pair, ahead: u32) -> Vec<u8> {
    let first = bth(pair, opcode::RC_SEND_ONLY);
    let bth = Bth { psn: first.psn.plus(ahead), ack_request: true, ..first };
    forged(pair, &Headers::new(bth), &[7; 10])
}

fn shape(frames: &[(Opcode, u32, usize, Option<Aeth>)]) -> Vec<(Operation, Position, u32, usize)> {
    frames
        .iter()
        .map(|(opcode, psn, bytes, _)| {
            let info = opcode.info().expect("known");
            (info.operation, info.position, *psn, *bytes)
        })
        .collect()
}

/// IBTA v1 9.7.5.2: only a new request is refused by a NAK. The key was taken back long after the
/// READ was answered.
#[test]
fn a_duplicate_read_with_an_invalidated_key_is_dropped() {
    let mut pair = Pair::new(Settings::default());
    lend(&mut pair);
    let frame = read(&pair, 0, VA, 3000, WINDOW);
    pair.deliver(1, &frame);
    assert_eq!(out(&mut pair, 1).len(), 3);
    pair.hosts[1].endpoint.remove_mr(WINDOW).expect("there");
    pair.deliver(1, &frame);
    let said = out(&mut pair, 1);
    assert_eq!((pair.hosts[1].state(), said), ("RTS", vec![]));
    assert_eq!(pair.hosts[1].endpoint.drops().get(DropReason::ReplayLost), 1);
}

/// The first answer to a READ has its NAK, also where the READ was asked for again before the
/// answer was complete.
#[test]
fn a_read_that_was_not_answered_to_its_end_is_refused_when_its_key_is_gone() {
    let mut pair = Pair::new(Settings::default());
    lend(&mut pair);
    let frame = read(&pair, 0, VA, 3000, WINDOW);
    pair.deliver(1, &frame);
    pair.hosts[1].nic.room = 2;
    assert_eq!(out(&mut pair, 1).len(), 2);
    pair.hosts[1].nic.room = 64;
    pair.hosts[1].endpoint.remove_mr(WINDOW).expect("there");
    pair.deliver(1, &frame);
    let said = out(&mut pair, 1);
    let syndromes: Vec<_> = said.iter().filter_map(|(.., aeth)| aeth.map(|aeth| aeth.syndrome)).collect();
    assert_eq!(syndromes, [Syndrome::Nak(NakCode::RemoteAccess)]);
    assert_eq!(pair.hosts[1].state(), "ERR");
}

/// IBTA v1 C9-107.
#[test]
fn a_duplicate_of_a_part_of_a_read_is_answered_by_that_part() {
    use Operation::ReadResponse;
    let mut pair = Pair::new(Settings::default());
    let frame = read(&pair, 0, VA, 8 * 1024, KEY);
    pair.deliver(1, &frame);
    assert_eq!(out(&mut pair, 1).len(), 8);
    let frame = read(&pair, 2, VA + 2048, 2048, KEY);
    pair.deliver(1, &frame);
    let said = out(&mut pair, 1);
    assert_eq!(shape(&said), [(ReadResponse, Position::First, 2, 1024), (ReadResponse, Position::Last, 3, 1024)]);
}

/// Its answer would end the READ of this life too soon. A requester asks again for whole packets,
/// up to the last.
#[test]
fn a_duplicate_that_ends_within_a_packet_is_of_another_read() {
    let mut pair = Pair::new(Settings::default());
    let frame = read(&pair, 0, VA, 3000, KEY);
    pair.deliver(1, &frame);
    assert_eq!(out(&mut pair, 1).len(), 3);
    for (ahead, length) in [(0, 0), (0, 8), (0, 1023), (1, 1500), (2, 951), (2, 953)] {
        let frame = read(&pair, ahead, VA + u64::from(ahead) * 1024, length, KEY);
        pair.deliver(1, &frame);
        assert_eq!(shape(&out(&mut pair, 1)), [], "{length} bytes at packet {ahead}");
    }
    for (ahead, length, packets) in [(0, 1024, 1), (0, 2048, 2), (1, 1976, 2), (2, 952, 1)] {
        let frame = read(&pair, ahead, VA + u64::from(ahead) * 1024, length, KEY);
        pair.deliver(1, &frame);
        assert_eq!(out(&mut pair, 1).len(), packets, "{length} bytes at packet {ahead}");
    }
}

/// They come before anything leaves.
#[test]
fn two_duplicates_of_parts_of_a_read_are_both_answered() {
    let mut pair = Pair::new(Settings::default());
    let frame = read(&pair, 0, VA, 8 * 1024, KEY);
    pair.deliver(1, &frame);
    assert_eq!(out(&mut pair, 1).len(), 8);
    for (ahead, length) in [(2, 2048), (4, 4096)] {
        let frame = read(&pair, ahead, VA + u64::from(ahead) * 1024, length, KEY);
        pair.deliver(1, &frame);
    }
    let psns: Vec<_> = out(&mut pair, 1).iter().map(|(_, psn, ..)| *psn).collect();
    assert_eq!(psns, [2, 3, 4, 5, 6, 7]);
}

/// It requests responses ahead in the answer under way.
#[test]
fn a_duplicate_that_lies_ahead_begins_with_a_first() {
    let mut pair = Pair::new(Settings::default());
    let frame = read(&pair, 0, VA, 8 * 1024, KEY);
    pair.deliver(1, &frame);
    pair.hosts[1].nic.room = 2;
    assert_eq!(out(&mut pair, 1).len(), 2);
    pair.hosts[1].nic.room = 64;
    let frame = read(&pair, 4, VA + 4096, 4096, KEY);
    pair.deliver(1, &frame);
    let said = shape(&out(&mut pair, 1));
    assert!(said.contains(&(Operation::ReadResponse, Position::First, 4, 1024)), "{said:?}");
}

/// IBTA v1 C9-105 is about SENDs and WRITEs.
#[test]
fn a_reserved_opcode_behind_the_expected_psn_is_not_acknowledged() {
    let mut pair = warm(Settings::default());
    let first = bth(&pair, Opcode(0x1e));
    let frame = forged(&pair, &Headers::new(Bth { ack_request: true, ..first }), &[]);
    pair.deliver(1, &frame);
    assert_eq!((out(&mut pair, 1), pair.hosts[1].state()), (vec![], "RTS"));
    assert_eq!(pair.hosts[1].endpoint.drops().get(DropReason::UnknownDuplicate), 1);
}

#[test]
fn duplicates_are_answered_after_a_nak_and_no_second_nak_is_given() {
    let mut pair = Pair::new(Settings::default());
    for id in 0..4 {
        pair.hosts[1].post_recv(id, &[sge(0, 100)]);
    }
    for ahead in [0, 1] {
        let frame = send_packet(&pair, ahead);
        pair.deliver(1, &frame);
    }
    out(&mut pair, 1);
    let frame = send_packet(&pair, 3);
    pair.deliver(1, &frame);
    let said = out(&mut pair, 1);
    assert_eq!(
        said.iter().map(|it| (it.1, it.3.expect("AETH").syndrome)).collect::<Vec<_>>(),
        [(2, Syndrome::Nak(NakCode::PsnSequence))]
    );
    for ahead in [0, 1, 3] {
        let frame = send_packet(&pair, ahead);
        pair.deliver(1, &frame);
    }
    let said = out(&mut pair, 1);
    assert_eq!(said.len(), 1);
    assert!(matches!((said[0].1, said[0].3.expect("AETH").syndrome), (1, Syndrome::Ack { .. })), "{said:?}");
}

/// 2^23 behind the expected PSN is a duplicate, 2^23 - 1 ahead of it is a hole.
#[test]
fn half_of_all_psns_are_behind_the_expected_one() {
    let cases = [
        (1 << 23, DropReason::Duplicate, Some(Syndrome::ACK)),
        ((1 << 23) - 1, DropReason::BeyondWindow, Some(Syndrome::Nak(NakCode::PsnSequence))),
        (129, DropReason::BeyondWindow, Some(Syndrome::Nak(NakCode::PsnSequence))),
    ];
    for (ahead, reason, expected) in cases {
        let mut pair = warm(Settings::default());
        let frame = send_packet(&pair, 20 + ahead);
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(reason), "{ahead}");
        let said = out(&mut pair, 1);
        let syndromes = said.iter().map(|answer| match answer.3.expect("AETH").syndrome {
            Syndrome::Ack { .. } => Syndrome::ACK,
            other => other,
        });
        assert_eq!(syndromes.collect::<Vec<_>>(), Vec::from_iter(expected), "{ahead}");
    }
}

/// The frames that leave host 0 now.
fn leaving(pair: &mut Pair) -> Vec<Vec<u8>> {
    let host = &mut pair.hosts[0];
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    host.nic.frames.drain(..).collect()
}

/// A READ that is answered comes again, and in the same turn a SEND, which is executed, and a
/// WRITE, which is refused. Then the READ's key is taken back.
#[test]
fn requests_executed_behind_a_dropped_repetition_are_answered() {
    let mut pair = warm(Settings { retry_cnt: 1, ..Settings::default() });
    lend(&mut pair);
    let copy = read(&pair, 20, VA, 3000, WINDOW);
    pair.hosts[0].post(&SendWork { rkey: WINDOW.0, ..work(1, SendOp::Read, &[sge(0, 3000)], 0) });
    pair.settle();
    pair.hosts[1].post_recv(7, &[sge(0, 100)]);
    pair.deliver(1, &copy);
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 100)], 0));
    pair.hosts[0].post(&SendWork { rkey: KEY.0 ^ 1, ..work(3, SendOp::Write, &[sge(0, 10)], 0) });
    for frame in leaving(&mut pair) {
        pair.deliver(1, &frame);
    }
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    pair.hosts[1].endpoint.remove_mr(WINDOW).expect("there");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success), (3, Status::RemoteAccess)]);
}

/// A program destroys its queue pair after the awaited message. A repeated READ before is no reason
/// to keep the ACK.
#[test]
fn a_repetition_keeps_no_ack_that_a_queue_pair_owes_at_its_end() {
    for end in [Some(state::ERR), Some(state::RESET), None] {
        let mut pair = warm(Settings { retry_cnt: 1, ..Settings::default() });
        let copy = read(&pair, 20, VA, 3000, KEY);
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 3000)], 0));
        pair.settle();
        pair.hosts[1].post_recv(7, &[sge(0, 100)]);
        pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 100)], 0));
        let frames = leaving(&mut pair);
        pair.deliver(1, &copy);
        for frame in frames {
            pair.deliver(1, &frame);
        }
        assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
        let host = &mut pair.hosts[1];
        match end {
            Some(to) => {
                let attributes = QpAttributes { state: to, ..QpAttributes::default() };
                host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("allowed");
            }
            None => drop(host.endpoint.remove_qp(host.qpn)),
        }
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)], "{end:?}");
    }
}
