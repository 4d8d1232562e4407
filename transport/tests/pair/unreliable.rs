//! The unreliable connection: a message arrives completely or not at all, and the sender does not
//! learn which.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::MrKey,
    psn::Psn,
    qp::{PathState, ServiceType},
    reject::{Disposition, DropReason},
    wire::{
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode},
        reth::Reth,
    },
    work::{SendWork, WorkData},
};
use roced_types::{CompletionOp, QpAttributes, SendOp, Status, access, attribute, completion_flags, send_flags, state};

use crate::host::{Fate, KEY, MEMORY_BYTES, Pair, SIZES, Settings, VA, forged, no_fault, one, sge, work};

fn settings() -> Settings {
    Settings { service: ServiceType::Uc, ..Settings::default() }
}

/// A frame of host 0's with the PSN that is `ahead` of the first, and its disposition at host 1.
fn inject(pair: &mut Pair, opcode: Opcode, ahead: u32, reth: Option<Reth>, payload: &[u8]) -> Disposition {
    let bth = Bth::new(opcode, pair.hosts[1].qpn, Psn::new(pair.settings.psn).plus(ahead));
    let imm = opcode.info().expect("known").has_imm.then_some([9; 4]);
    let frame = forged(pair, &Headers { reth, imm, ..Headers::new(bth) }, payload);
    pair.deliver(1, &frame)
}

fn lost(reason: DropReason) -> Disposition {
    Disposition::Dropped(reason)
}

/// Host 1 has said nothing, and both ends still serve.
fn no_client_is_affected(pair: &mut Pair) {
    pair.settle();
    assert!(pair.trace.iter().all(|(from, ..)| *from == 0), "nothing is answered");
    assert_eq!((pair.hosts[0].state(), pair.hosts[1].state()), ("RTS", "RTS"));
    assert_eq!(pair.hosts[1].endpoint.poll_event(), None);
}

#[test]
fn messages_of_every_length_arrive_without_an_answer() {
    for (mtu, ipv6) in [(256, false), (1024, true), (4096, false)] {
        let mut pair = Pair::new(Settings { mtu, ipv6, ..settings() });
        for length in [0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 7].map(|length| length as usize) {
            pair.hosts[1].post_recv(8, &[sge(300_000, 20), sge(400_000, 30_000)]);
            pair.hosts[1].post_recv(9, &[]);
            pair.hosts[0].post(&work(1, SendOp::Send, &[sge(7, length)], 0));
            pair.hosts[0].post(&work(2, SendOp::Write, &[sge(9, length)], 500_000));
            pair.hosts[0].post(&work(3, SendOp::WriteImm, &[sge(11, length)], 600_000));
            pair.settle();
            assert_eq!(pair.hosts[0].take(), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
            let [sent, written] = [pair.hosts[1].app.completions.remove(0), pair.hosts[1].app.completions.remove(0)];
            assert_eq!((sent.wr_id, sent.op, sent.byte_len), (8, CompletionOp::Recv, length as u32));
            assert_eq!((sent.flags, sent.src_qpn), (0, pair.hosts[0].qpn.get()));
            assert_eq!((written.wr_id, written.op), (9, CompletionOp::RecvWriteImm));
            assert_eq!(
                (written.flags, written.imm, written.byte_len),
                (completion_flags::IMM, [1, 2, 3, 4], length as u32)
            );
            let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
            let first = length.min(20);
            assert!(there[300_000..][..first] == here[7..][..first]);
            assert!(there[400_000..][..length - first] == here[7 + first..][..length - first]);
            assert!(there[500_000..][..length] == here[9..][..length]);
            assert!(there[600_000..][..length] == here[11..][..length]);
        }
        no_client_is_affected(&mut pair);
        assert_eq!(pair.hosts[1].drops(), [].into());
    }
}

#[test]
fn inline_data_and_the_solicited_bit_arrive() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    let template = work(1, SendOp::SendImm, &[], 0);
    let flags = send_flags::INLINE | send_flags::SOLICITED;
    pair.hosts[0].post(&SendWork { flags, data: WorkData::Inline(b"hello"), ..template });
    pair.settle();
    let cqe = pair.hosts[1].app.completions[0];
    assert_eq!((cqe.byte_len, cqe.flags), (5, completion_flags::IMM | completion_flags::SOLICITED));
    assert_eq!(&pair.hosts[1].app.memory[..5], b"hello");
    assert!(pair.hosts[0].take().is_empty(), "it was not signaled");
}

#[test]
fn a_send_is_complete_when_its_last_packet_has_left() {
    let mut pair = Pair::new(settings());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 3 * 1024)], 0));
    let now = pair.now;
    for left in 1..=3 {
        let host = &mut pair.hosts[0];
        host.nic.room = left;
        host.endpoint.poll_transmit(now, 32, &mut host.app, &mut host.nic);
        assert_eq!((host.nic.frames.len(), host.take().len()), (left, usize::from(left == 3)));
    }
}

#[test]
fn any_lost_packet_loses_its_message_and_only_that() {
    let opcodes = [opcode::UC_SEND_FIRST, opcode::UC_SEND_MIDDLE, opcode::UC_SEND_LAST];
    for (opcode, fate) in opcodes.into_iter().flat_map(|code| [(code, Fate::Drop), (code, Fate::Corrupt)]) {
        let mut pair = Pair::new(settings());
        for wr_id in 0..3 {
            pair.hosts[1].post_recv(10 + wr_id, &[sge(400_000 + wr_id * 10_000, 5000)]);
            pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(wr_id * 7, 3 * 1024)], 0));
        }
        assert!(pair.run(Nanos::from_millis(1000), one(0, opcode, 1, fate)));
        assert_eq!(pair.hosts[0].take(), [0, 1, 2].map(|wr_id| (wr_id, Status::Success)));
        // The second is lost; the third has its receive.
        assert_eq!(pair.hosts[1].take(), [(10, Status::Success), (11, Status::Success)]);
        let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
        assert!(there[400_000..][..3072] == here[..3072] && there[410_000..][..3072] == here[14..][..3072]);
        no_client_is_affected(&mut pair);
    }
}

#[test]
fn a_lost_part_of_a_write_makes_no_completion() {
    for opcode in [opcode::UC_WRITE_FIRST, opcode::UC_WRITE_MIDDLE] {
        let mut pair = Pair::new(settings());
        pair.hosts[1].post_recv(1, &[]);
        for _ in 0..2 {
            pair.hosts[0].post(&work(1, SendOp::WriteImm, &[sge(0, 3 * 1024)], 0));
        }
        assert!(pair.run(Nanos::from_millis(1000), one(0, opcode, 0, Fate::Drop)));
        assert_eq!(pair.hosts[1].take(), [(1, Status::Success)], "that of the second");
        no_client_is_affected(&mut pair);
    }
}

#[test]
fn a_first_packet_begins_anew_in_place_of_a_message_that_is_not_complete() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 5000)]);
    let full = [7; 1024];
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 0, None, &full), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 1, None, &full), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 2, None, b"end"), Disposition::Accepted);
    assert_eq!(pair.hosts[1].app.completions.pop().map(|cqe| cqe.byte_len), Some(1027), "not both");
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 3, None, b"end"), lost(DropReason::OutOfSequence));
    assert_eq!(inject(&mut pair, opcode::UC_WRITE_LAST, 4, None, b"end"), lost(DropReason::OutOfSequence));
    no_client_is_affected(&mut pair);
}

#[test]
fn packets_of_two_messages_do_not_mix() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 5000)]);
    let reth = Some(Reth { va: VA, rkey: KEY, length: 2000 });
    let full = [7; 1024];
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 0, None, &full), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_WRITE_LAST, 1, None, b"end"), lost(DropReason::InvalidRequest));
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 2, None, b"end"), lost(DropReason::OutOfSequence));
    assert_eq!(inject(&mut pair, opcode::UC_WRITE_FIRST, 3, reth, &full), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST_IMM, 4, None, b"end"), lost(DropReason::InvalidRequest));
    assert!(pair.hosts[1].take().is_empty());
    no_client_is_affected(&mut pair);
}

/// A network that repeats frames or lets them overtake each other does not create a message from
/// accepted or lost packets, and does not lose the one under way.
#[test]
fn late_and_duplicate_packets_are_dropped_without_harm() {
    let mut pair = Pair::new(settings());
    for wr_id in 0..3 {
        pair.hosts[1].post_recv(wr_id, &[sge(0, 5000)]);
    }
    let late = lost(DropReason::Duplicate);
    let full = [7; 1024];
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 1, None, b"second"), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 1, None, b"second"), late, "a second time");
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 0, None, b"first"), late, "overtaken");
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 2, None, &full), Disposition::Accepted);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_MIDDLE, 3, None, &full), Disposition::Accepted);
    for (opcode, ahead) in [(opcode::UC_SEND_FIRST, 2), (opcode::UC_SEND_MIDDLE, 3), (opcode::UC_SEND_ONLY, 1)] {
        assert_eq!(inject(&mut pair, opcode, ahead, None, &full), late, "in the middle of a message");
    }
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 4, None, b"end"), Disposition::Accepted);
    let lengths: Vec<_> = pair.hosts[1].app.completions.iter().map(|cqe| cqe.byte_len).collect();
    assert_eq!(lengths, [6, 2051]);
    no_client_is_affected(&mut pair);
    // So far behind is nothing late, and so far ahead is nothing that the peer can have sent.
    for far in [(1 << 24) - (1 << 20), 1 << 22] {
        assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, far, None, b"far"), lost(DropReason::BeyondWindow));
    }
    pair.now = pair.now + Nanos::from_millis(200);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 1 << 20, None, b"far"), Disposition::Accepted);
}

#[test]
fn without_a_receive_a_message_is_dropped_to_its_end() {
    let mut pair = Pair::new(settings());
    let full = [7; 1024];
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 0, None, &full), lost(DropReason::ReceiverNotReady));
    pair.hosts[1].post_recv(1, &[sge(0, 5000)]);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_MIDDLE, 1, None, &full), lost(DropReason::OutOfSequence));
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 2, None, b"end"), lost(DropReason::OutOfSequence));
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 3, None, b"whole"), Disposition::Accepted);
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    let reth = Some(Reth { va: VA, rkey: KEY, length: 5 });
    let dropped = inject(&mut pair, opcode::UC_WRITE_ONLY_IMM, 4, reth, b"write");
    assert_eq!(dropped, lost(DropReason::ReceiverNotReady));
    assert_ne!(&pair.hosts[1].app.memory[..5], b"write", "a packet is taken whole or not at all");
    no_client_is_affected(&mut pair);
}

#[test]
fn a_message_too_long_for_its_receive_leaves_it_to_the_next() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 2000)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 2001)], 0));
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 2000)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].drops(), [("drop_invalid_request", 1)].into());
    no_client_is_affected(&mut pair);
}

#[test]
fn a_write_that_may_not_is_dropped_and_nothing_else_happens() {
    let wrong = [
        (Settings { access: access::LOCAL_WRITE, ..settings() }, KEY, VA),
        (settings(), MrKey(KEY.0 ^ 1), VA),
        (settings(), KEY, VA - 1),
        (settings(), KEY, VA + MEMORY_BYTES as u64 - 2999),
        (settings(), KEY, u64::MAX),
    ];
    for (settings, key, va) in wrong {
        let mut pair = Pair::new(settings);
        let before = pair.hosts[1].app.memory.clone();
        let data = [sge(0, 3000)];
        let refused = SendWork { rkey: key.0, remote_va: va, ..work(1, SendOp::Write, &data, 0) };
        pair.hosts[1].post_recv(5, &[sge(0, 10)]);
        pair.hosts[0].post(&refused);
        pair.hosts[0].post(&work(2, SendOp::Send, &[], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.hosts[1].take(), [(5, Status::Success)]);
        assert!(pair.hosts[1].app.memory == before, "nothing was written");
        assert_eq!(pair.hosts[1].drops(), [("drop_out_of_sequence", 2), ("drop_remote_access", 1)].into());
        no_client_is_affected(&mut pair);
    }
}

#[test]
fn lengths_that_cannot_be_are_dropped() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 9000)]);
    let reth = |length| Some(Reth { va: VA, rkey: KEY, length });
    let full = [7; 1024];
    let cases: [(Opcode, Option<Reth>, &[u8]); 7] = [
        (opcode::UC_SEND_FIRST, None, &full[1..]),
        (opcode::UC_SEND_ONLY, None, &[7; 1025]),
        (opcode::UC_WRITE_FIRST, reth(1024), &full),
        (opcode::UC_WRITE_ONLY, reth(9), &full[..8]),
        (opcode::UC_WRITE_ONLY, reth(9), &full[..10]),
        (opcode::UC_WRITE_ONLY, reth(u32::MAX), &full),
        (opcode::UC_WRITE_ONLY, reth(0), &full[..1]),
    ];
    for (at, (opcode, reth, payload)) in cases.into_iter().enumerate() {
        let disposition = inject(&mut pair, opcode, at as u32, reth, payload);
        assert_eq!(disposition, lost(DropReason::InvalidRequest), "case {at}");
    }
    assert!(pair.hosts[1].app.writes.is_empty() && pair.hosts[1].take().is_empty());
    no_client_is_affected(&mut pair);
}

#[test]
fn packets_of_other_services_and_addresses_are_not_heard() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 9000)]);
    for opcode in [opcode::RC_SEND_ONLY, opcode::RC_ACK] {
        let has_aeth = opcode.info().expect("known").has_aeth;
        let bth = Bth::new(opcode, pair.hosts[1].qpn, Psn::new(pair.settings.psn));
        let aeth = has_aeth.then(|| roced_transport::wire::Aeth::from_bytes(&[0x1f, 0, 0, 0]));
        let frame = forged(&pair, &Headers { aeth, ..Headers::new(bth) }, &[]);
        assert_eq!(pair.deliver(1, &frame), lost(DropReason::WrongService));
    }
    pair.hosts[0].gid[15] = 77;
    assert_eq!(inject(&mut pair, opcode::UC_SEND_ONLY, 0, None, b"forged"), lost(DropReason::WrongAddress));
    assert!(pair.hosts[1].take().is_empty());
}

#[test]
fn work_that_cannot_be_sent_stops_the_send_queue_alone() {
    let here = [sge(0, 10)];
    let (beyond, huge) = ([sge(MEMORY_BYTES as u64 - 9, 10)], [sge(0, usize::MAX >> 32); 2]);
    let cases = [
        (work(2, SendOp::Read, &here, 0), Status::LocalQpOperation),
        (work(2, SendOp::Send, &beyond, 0), Status::LocalProtection),
        (work(2, SendOp::Write, &huge, 0), Status::LocalLength),
    ];
    for (wrong, status) in cases {
        let mut pair = Pair::new(settings());
        pair.hosts[0].post_recv(7, &[sge(0, 100)]);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        pair.hosts[0].post(&wrong);
        pair.hosts[0].post(&work(3, SendOp::Write, &[], 0));
        pair.settle();
        let expected = [(1, Status::Success), (2, status), (3, Status::WorkRequestFlushed)];
        assert_eq!((pair.hosts[0].take(), pair.hosts[0].state()), (expected.to_vec(), "SQE"));
        // Later messages still arrive.
        pair.hosts[1].post(&work(4, SendOp::Send, &[sge(0, 100)], 0));
        pair.hosts[0].post(&work(5, SendOp::Write, &[], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(5, Status::WorkRequestFlushed), (7, Status::Success)]);
        // And it sends again when it is told to.
        let host = &mut pair.hosts[0];
        let to_rts = QpAttributes { state: state::RTS, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &to_rts, None).expect("the way back");
        host.post(&work(6, SendOp::Send, &[sge(0, 100)], 0));
        pair.hosts[1].post_recv(8, &[sge(0, 100)]);
        pair.settle();
        assert_eq!((pair.hosts[0].take(), pair.hosts[1].app.completions.len()), (vec![(6, Status::Success)], 2));
    }
}

/// The send queue has stopped, and the last of its flushed work finds no room: the receives are
/// flushed as well.
#[test]
fn a_completion_queue_without_room_for_flushed_sends_ends_the_queue_pair() {
    let mut pair = Pair::new(settings());
    pair.hosts[0].app.cq_room = 1;
    pair.hosts[0].post_recv(7, &[sge(0, 100)]);
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 10)], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[], 0));
    pair.settle();
    let host = &mut pair.hosts[0];
    assert_eq!((host.take(), host.state()), (vec![(1, Status::LocalQpOperation)], "ERR"));
    assert_eq!(host.endpoint.recv_room(host.qpn), SIZES.recv_wrs);
}

#[test]
fn a_receive_into_foreign_memory_ends_the_queue_pair() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(MEMORY_BYTES as u64 - 9, 10)]);
    pair.hosts[1].post_recv(2, &[sge(0, 10)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)]);
    assert_eq!((pair.hosts[1].state(), pair.hosts[1].count(QpCount::LocalProtection)), ("ERR", 1));
    assert!(pair.hosts[1].endpoint.poll_event().is_some());
    assert!(pair.trace.iter().all(|(from, ..)| *from == 0), "only the client is told");
}

#[test]
fn an_unknown_next_hop_is_waited_for_and_an_unreachable_one_is_not() {
    let mut pair = Pair::new(settings());
    let path = pair.path(0);
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.set_path(qpn, PathState::Resolving).expect("there");
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 2000)], 0));
    pair.settle();
    assert!(pair.hosts[0].take().is_empty());
    pair.hosts[0].endpoint.set_path(qpn, PathState::Ready(path)).expect("there");
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.trace.len()), (vec![(1, Status::Success)], 2));
    pair.hosts[0].endpoint.set_path(qpn, PathState::Unreachable).expect("there");
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 2000)], 0));
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.trace.len()), (vec![(2, Status::Success)], 2));
    assert_eq!(pair.hosts[0].count(QpCount::Unreachable), 1, "once a message");
    pair.hosts[0].endpoint.set_path(qpn, PathState::Ready(path)).expect("there");
    pair.hosts[0].post(&work(3, SendOp::Write, &[], 0));
    pair.settle();
    assert_eq!(pair.trace.last().map(|(_, _, psn)| *psn), Some(pair.settings.psn + 4), "the receiver sees the gap");
}

#[test]
fn a_rate_holds_it_back() {
    let mut pair = Pair::new(settings());
    let host = &mut pair.hosts[0];
    let rate = QpAttributes { rate_limit_kbit_per_s: 80_000, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &rate, None).expect("in RTS");
    let begin = pair.now;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 1 << 20)], 0));
    assert!(pair.run(Nanos::from_millis(1000), no_fault));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let took = (pair.now - begin).0;
    assert!((100_000_000..130_000_000).contains(&took), "a mebibyte at 10 MB/s took {took} ns");
}

#[test]
fn after_a_reset_it_begins_anew() {
    let mut pair = Pair::new(settings());
    pair.hosts[1].post_recv(1, &[sge(0, 5000)]);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_FIRST, 0, None, &[7; 1024]), Disposition::Accepted);
    let host = &mut pair.hosts[1];
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &QpAttributes::default(), None).expect("from anywhere");
    pair.connect_one(1);
    assert_eq!(inject(&mut pair, opcode::UC_SEND_LAST, 1, None, b"end"), lost(DropReason::OutOfSequence));
    assert!(pair.hosts[1].take().is_empty());
}

/// Under any network faults, a completed message was sent, is complete, and completes twice only if
/// the network repeated it.
#[test]
fn only_complete_messages_arrive_under_any_network_faults() {
    for seed in 1..200u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |bound: u64| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
        };
        let mut pair = Pair::new(Settings { mtu: 256, psn: 0x00ff_ffff - below(60) as u32, ..settings() });
        const MESSAGES: u64 = 40;
        // Each message is of one byte value and of one length.
        let length = |message: u64| 1 + (message as usize * 97) % 1200;
        for message in 0..MESSAGES {
            pair.hosts[0].app.memory[message as usize * 1200..][..1200].fill(message as u8 + 1);
            pair.hosts[1].post_recv(message, &[sge(600_000 + message * 1200, 1200)]);
        }
        for message in 0..MESSAGES {
            pair.hosts[0].post(&work(message, SendOp::Send, &[sge(message * 1200, length(message))], 0));
        }
        let came_to_rest = pair.run(Nanos::from_millis(10_000), |_, _, _| match below(40) {
            0 => Fate::Drop,
            1 => Fate::Corrupt,
            2 => Fate::Late(1 + below(4) as usize),
            _ => Fate::Deliver,
        });
        assert!(came_to_rest, "seed {seed}");
        assert_eq!(pair.hosts[0].take().len() as u64, MESSAGES);
        let mut seen = std::collections::BTreeSet::new();
        for cqe in std::mem::take(&mut pair.hosts[1].app.completions) {
            let bytes = &pair.hosts[1].app.memory[600_000 + cqe.wr_id as usize * 1200..][..cqe.byte_len as usize];
            let message = u64::from(bytes[0]) - 1;
            assert_eq!(bytes.len(), length(message), "seed {seed}");
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: a mixture");
            assert!(seen.insert(message), "seed {seed}: message {message} twice");
        }
        assert_eq!(pair.hosts[1].state(), "RTS", "seed {seed}");
    }
}
