//! Refused requests, and the answers to them. Half of the specification.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::MrKey,
    partition::Pkey,
    psn::Psn,
    qp::{FailureCause, PathState},
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
        path::{Path, PathSpec, Vlan},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{Qpn, SendOp, Sge, Status, access, event};

use crate::host::{Fate, KEY, MEMORY_BYTES, Pair, Settings, VA, bth, forged, no_fault, sge, work};

/// Host 0's work ends with `status`, host 1 counts `counted`.
fn is_refused(settings: Settings, refused: &SendWork<'_>, status: Status, counted: QpCount) {
    let mut pair = Pair::new(settings);
    pair.hosts[1].post_recv(8, &[]);
    pair.hosts[1].post_recv(9, &[sge(0, 100)]);
    let before = pair.hosts[1].app.memory.clone();
    pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
    pair.hosts[0].post(refused);
    pair.hosts[0].post(&work(3, SendOp::Write, &[], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (refused.wr_id, status), (3, Status::WorkRequestFlushed)]);
    assert_eq!(pair.hosts[1].count(counted), 1);
    assert_eq!((pair.hosts[0].state(), pair.hosts[1].state()), ("ERR", "ERR"));
    assert_eq!(pair.hosts[1].endpoint.poll_event().map(|event| event.kind), Some(event::QP_ACCESS_ERROR));
    let failures = [0, 1].map(|at| pair.hosts[at].endpoint.poll_failure());
    let causes = failures.map(|failure| failure.expect("it failed").cause);
    assert_eq!(causes, [FailureCause::Send(status), FailureCause::Event(event::QP_ACCESS_ERROR)]);
    assert_eq!(failures[0].map(|failure| failure.peer_qpn), failures[1].map(|failure| failure.qpn));
    assert_eq!([0, 1].map(|at| pair.hosts[at].endpoint.poll_failure()), [None, None], "once");
    assert!(pair.hosts[1].app.memory == before, "nothing was written");
    assert_eq!(pair.hosts[1].take(), [(8, Status::Success), (9, Status::WorkRequestFlushed)]);
}

#[test]
fn keys_ranges_and_rights_of_the_peer_are_checked() {
    let access = |refused: &SendWork<'_>| {
        is_refused(Settings::default(), refused, Status::RemoteAccess, QpCount::RemoteAccessSent);
    };
    let here = [sge(0, 100)];
    let end = MEMORY_BYTES as u64;
    for op in [SendOp::Write, SendOp::Read] {
        access(&SendWork { rkey: KEY.0 ^ 1, ..work(2, op, &here, 0) });
        access(&SendWork { rkey: KEY.0 ^ 0x100, ..work(2, op, &here, 0) });
        access(&work(2, op, &here, end - 99));
        access(&SendWork { remote_va: VA - 1, ..work(2, op, &here, 0) });
        access(&SendWork { remote_va: u64::MAX - 10, ..work(2, op, &here, 0) });
        let settings = Settings { access: access::LOCAL_WRITE, ..Settings::default() };
        is_refused(settings, &work(2, op, &here, 0), Status::RemoteAccess, QpCount::RemoteAccessSent);
    }
}

#[test]
fn the_last_byte_of_a_region_may_be_reached() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 1)], MEMORY_BYTES as u64 - 1));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(5, 1)], MEMORY_BYTES as u64 - 1));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_request_of_no_bytes_needs_no_key() {
    let mut pair = Pair::new(Settings::default());
    for (wr_id, op) in [(1, SendOp::Write), (2, SendOp::Read)] {
        pair.hosts[0].post(&SendWork { rkey: 0, remote_va: 0, ..work(wr_id, op, &[], 0) });
    }
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_message_longer_than_the_receive_is_an_invalid_request() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post_recv(7, &[sge(0, 1500)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 1501)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.hosts[1].take(), [(7, Status::LocalLength)]);
    assert!(pair.hosts[1].app.writes.iter().all(|(at, length)| at + *length as u64 <= 1500));
}

#[test]
fn a_receive_that_does_not_open_is_the_responders_own_fault() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post_recv(7, &[Sge { lkey: 1, ..sge(0, 1500) }]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteOperation)]);
    assert_eq!(pair.hosts[1].take(), [(7, Status::LocalProtection)]);
}

#[test]
fn local_data_that_does_not_open_fails_in_its_turn() {
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[1].post_recv(7, &[sge(0, 1500)]);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 9000)], 0));
        pair.hosts[0].post(&work(2, op, &[Sge { lkey: KEY.0 ^ 0x100, ..sge(0, 100) }], 0));
        pair.hosts[0].post(&work(3, SendOp::Write, &[], 0));
        pair.settle();
        assert_eq!(
            pair.hosts[0].take(),
            [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WorkRequestFlushed)]
        );
    }
}

#[test]
fn a_message_of_more_than_two_gibibytes_is_refused_here() {
    let mut pair = Pair::new(Settings::default());
    let half = Sge { length: 1 << 30, ..sge(0, 0) };
    pair.hosts[0].post(&work(1, SendOp::Write, &[half, half, sge(0, 1)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalLength)]);
    assert_eq!(pair.trace.len(), 0, "nothing was sent");
}

#[test]
fn a_region_that_goes_away_in_the_middle_is_a_protection_error() {
    for (op, gone_at, status) in [
        (SendOp::Write, 1, Status::RemoteAccess),
        (SendOp::Read, 1, Status::RemoteAccess),
        (SendOp::Write, 0, Status::LocalProtection),
        (SendOp::Read, 0, Status::LocalProtection),
    ] {
        let mut pair = Pair::new(Settings { mtu: 256, window: 8, ..Settings::default() });
        pair.hosts[0].post(&work(1, op, &[sge(0, 100_000)], 200_000));
        for _ in 0..6 {
            pair.turn(&mut no_fault);
        }
        assert!(pair.hosts[0].app.completions.is_empty(), "under way");
        pair.hosts[gone_at].endpoint.remove_mr(KEY).expect("there");
        let writes = pair.hosts[gone_at].app.writes.len();
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, status)], "{op:?} at {gone_at}");
        assert_eq!(pair.hosts[gone_at].app.writes.len(), writes, "nothing is written once it is gone");
    }
}

#[test]
fn a_region_that_goes_away_before_a_retransmission_is_a_protection_error() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 200_000));
    for _ in 0..4 {
        pair.turn(&mut |_, _, _| Fate::Drop);
    }
    pair.hosts[0].endpoint.remove_mr(KEY).expect("there");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalProtection)]);
}

/// Answer of host 1 to one forged request; it must be in ERR afterward if `fatal`.
fn forged_request(opcode: Opcode, reth: Option<(u64, u32)>, payload: usize, fatal: bool) -> Disposition {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 4096)]);
    let reth = reth.map(|(va, length)| Reth { va, rkey: KEY, length });
    let imm = opcode.info().expect("known").has_imm.then_some([0; 4]);
    let frame = forged(&pair, &Headers { reth, imm, ..Headers::new(bth(&pair, opcode)) }, &vec![1; payload]);
    let disposition = pair.deliver(1, &frame);
    assert_eq!(pair.hosts[1].state() == "ERR", fatal, "{opcode} with {payload} bytes");
    disposition
}

#[test]
fn packets_out_of_their_order_are_invalid_requests() {
    let invalid = Disposition::Dropped(DropReason::InvalidRequest);
    // A message cannot begin in its middle, nor a FIRST be short, nor a LAST empty, nor anything be
    // longer than the MTU.
    for (opcode, payload) in [
        (opcode::RC_SEND_MIDDLE, 1024),
        (opcode::RC_SEND_LAST, 10),
        (opcode::RC_WRITE_MIDDLE, 1024),
        (opcode::RC_WRITE_LAST_IMM, 10),
        (opcode::RC_SEND_FIRST, 1023),
        (opcode::RC_SEND_FIRST, 1028),
        (opcode::RC_SEND_ONLY, 1028),
    ] {
        assert_eq!(forged_request(opcode, None, payload, true), invalid, "{opcode} with {payload} bytes");
    }
    // The RETH must agree with the data.
    for (opcode, length, payload) in [
        (opcode::RC_WRITE_ONLY, 10, 11),
        (opcode::RC_WRITE_ONLY, 10, 9),
        (opcode::RC_WRITE_ONLY, 2000, 1024),
        (opcode::RC_WRITE_FIRST, 1024, 1024),
        (opcode::RC_WRITE_FIRST, 10, 1024),
    ] {
        assert_eq!(forged_request(opcode, Some((VA, length)), payload, true), invalid, "{opcode} of {length}");
    }
    assert_eq!(forged_request(opcode::RC_SEND_ONLY, None, 1024, false), Disposition::Accepted);
    assert_eq!(forged_request(opcode::RC_WRITE_FIRST, Some((VA, 1025)), 1024, false), Disposition::Accepted);
}

#[test]
fn a_message_is_not_interrupted_by_another() {
    let invalid = Disposition::Dropped(DropReason::InvalidRequest);
    for second in [opcode::RC_SEND_FIRST, opcode::RC_SEND_ONLY, opcode::RC_WRITE_MIDDLE, opcode::RC_READ_REQUEST] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[1].post_recv(1, &[sge(0, 4096)]);
        let first = forged(&pair, &Headers::new(bth(&pair, opcode::RC_SEND_FIRST)), &[1; 1024]);
        assert_eq!(pair.deliver(1, &first), Disposition::Accepted);
        let next = Bth { psn: Psn::new(pair.settings.psn + 1), ..bth(&pair, second) };
        let reth = second.info().expect("known").has_reth.then_some(Reth { va: VA, rkey: KEY, length: 10 });
        let payload = if second == opcode::RC_READ_REQUEST { 0 } else { 1024 };
        let frame = forged(&pair, &Headers { reth, ..Headers::new(next) }, &vec![1; payload]);
        assert_eq!(pair.deliver(1, &frame), invalid, "{second}");
    }
}

#[test]
fn another_address_changes_nothing() {
    let mut pair = Pair::new(Settings::default());
    let headers = Headers::new(bth(&pair, opcode::RC_SEND_MIDDLE));
    let good = forged(&pair, &headers, &[0; 1024]);
    // The source address is bytes 26 to 29 of an untagged IPv4 frame; the checksums are the honest
    // ones of the lie.
    let [from, to] = [pair.hosts[0].gid, pair.hosts[1].gid];
    pair.hosts[0].gid[15] = 77;
    let unknown_peer = forged(&pair, &headers, &[0; 1024]);
    pair.hosts[0].gid = from;
    pair.hosts[1].gid[15] = 88;
    let misdirected = forged(&pair, &headers, &[0; 1024]);
    pair.hosts[1].gid = to;
    for frame in [unknown_peer, misdirected] {
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::WrongAddress));
        assert_eq!(pair.hosts[1].state(), "RTS");
    }
    assert_eq!(pair.deliver(1, &good), Disposition::Dropped(DropReason::InvalidRequest));
}

/// A frame of another VLAN than that of the path changes nothing, nor one with a tag where the path
/// has none. VLAN 0 is none.
#[test]
fn a_frame_of_another_vlan_is_dropped_for_its_reason() {
    let (untagged, wrong) = (None, Disposition::Dropped(DropReason::WrongVlan));
    let (stripped, kept) = (true, false);
    for (path, tag, taken) in [
        (None, untagged, true),
        (None, Some(0xe000), true),
        (None, Some(0xe007), false),
        (Some((7, kept)), Some(0xe007), true),
        (Some((7, kept)), Some(0x0007), true),
        (Some((7, kept)), Some(0x0107), false),
        (Some((7, kept)), untagged, false),
        (Some((7, kept)), Some(0xe000), false),
        (Some((7, stripped)), untagged, true),
        (Some((7, stripped)), Some(0x0008), false),
    ] {
        for rocev1 in [false, true] {
            let mut pair = Pair::new(Settings { rocev1: [rocev1; 2], ..Settings::default() });
            let vlan = path.map(|(id, rx_stripped)| Vlan { id, priority: 3, rx_stripped });
            let own = Path::new(&PathSpec { vlan, ..pair.path_spec(1) }).expect("one address family");
            let qpn = pair.hosts[1].qpn;
            pair.hosts[1].endpoint.set_path(qpn, PathState::Ready(own)).expect("there");
            pair.hosts[1].post_recv(1, &[]);
            let mut frame = forged(&pair, &Headers::new(bth(&pair, opcode::RC_SEND_ONLY)), &[]);
            if let Some(control) = tag {
                let [high, low] = u16::to_be_bytes(control);
                frame.splice(12..12, [0x81, 0x00, high, low]);
            }
            let expected = if taken { Disposition::Accepted } else { wrong };
            assert_eq!(pair.deliver(1, &frame), expected, "path {path:?}, tag {tag:x?}, RoCEv1 {rocev1}");
        }
    }
}

#[test]
fn packets_for_other_queue_pairs_are_dropped_under_their_reason() {
    let pair = Pair::new(Settings::default());
    let good = bth(&pair, opcode::RC_SEND_ONLY);
    let check = |bth: Bth, reason| {
        let mut pair = Pair::new(Settings { recovery: [RecoveryConfig::GO_BACK_N; 2], ..Settings::default() });
        let frame = forged(&pair, &Headers::new(bth), &[]);
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(reason), "{bth:?}");
        assert_eq!(pair.hosts[1].state(), "RTS");
        assert_eq!(pair.hosts[1].drops()[reason.name()], 1);
    };
    check(Bth { dest_qpn: Qpn::from_wire(good.dest_qpn.get() + 1), ..good }, DropReason::NoSuchQp);
    check(Bth { dest_qpn: Qpn::from_wire(0), ..good }, DropReason::NoSuchQp);
    check(Bth { dest_qpn: Qpn::MULTICAST, ..good }, DropReason::NoSuchGroup);
    check(Bth { pkey: Pkey(0x1234), ..good }, DropReason::BadPkey);
    check(Bth { opcode: opcode::UC_SEND_ONLY, ..good }, DropReason::WrongService);
    check(Bth { psn: Psn::new(good.psn.get() + 5), ..good }, DropReason::OutOfSequence);
    check(Bth { psn: Psn::new(good.psn.get() - 5), ..good }, DropReason::Duplicate);
}

#[test]
fn unexpected_answers_change_nothing() {
    let mut pair = Pair::new(Settings::default());
    for (opcode, psn, reason) in [
        (opcode::RC_ACK, 0, DropReason::UnexpectedResponse),
        (opcode::RC_ACK, 100, DropReason::UnexpectedResponse),
        (opcode::RC_ACK, -1, DropReason::StaleResponse),
        (opcode::RC_READ_RESPONSE_ONLY, 0, DropReason::UnexpectedResponse),
    ] {
        let psn = Psn::new((pair.settings.psn as i32 + psn) as u32);
        let aeth = Some(roced_transport::wire::Aeth { syndrome: roced_transport::wire::Syndrome::ACK, msn: 0 });
        let frame = forged(&pair, &Headers { aeth, ..Headers::new(Bth { psn, ..bth(&pair, opcode) }) }, &[]);
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(reason));
        assert_eq!(pair.hosts[1].state(), "RTS");
    }
}

#[test]
fn a_read_response_to_a_write_is_not_taken() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let aeth = Some(roced_transport::wire::Aeth { syndrome: roced_transport::wire::Syndrome::ACK, msn: 0 });
    let headers = Headers { aeth, ..Headers::new(bth(&pair, opcode::RC_READ_RESPONSE_ONLY)) };
    let frame = forged(&pair, &headers, &[0; 8]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::UnexpectedResponse));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
}

#[test]
fn a_read_response_of_the_wrong_length_fails_the_read() {
    for length in [0, 99, 101, 1024] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[1].post(&work(1, SendOp::Read, &[sge(0, 100)], 0));
        pair.turn(&mut |_, _, _| Fate::Drop);
        let aeth = Some(roced_transport::wire::Aeth { syndrome: roced_transport::wire::Syndrome::ACK, msn: 0 });
        let headers = Headers { aeth, ..Headers::new(bth(&pair, opcode::RC_READ_RESPONSE_ONLY)) };
        let frame = forged(&pair, &headers, &vec![0; length]);
        pair.deliver(1, &frame);
        pair.settle();
        assert_eq!(pair.hosts[1].take(), [(1, Status::BadResponse)]);
        assert!(pair.hosts[1].app.writes.is_empty());
    }
}

#[test]
fn a_nak_is_no_read_response() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post(&work(1, SendOp::Read, &[sge(0, 100)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let syndrome = roced_transport::wire::Syndrome::Nak(roced_transport::wire::NakCode::RemoteAccess);
    let aeth = Some(roced_transport::wire::Aeth { syndrome, msn: 0 });
    let headers = Headers { aeth, ..Headers::new(bth(&pair, opcode::RC_READ_RESPONSE_ONLY)) };
    let frame = forged(&pair, &headers, &[0; 100]);
    pair.deliver(1, &frame);
    assert_eq!(pair.hosts[1].take(), [(1, Status::BadResponse)]);
    assert!(pair.hosts[1].app.writes.is_empty());
}

#[test]
fn a_read_where_none_are_allowed_fails_here() {
    let mut pair = Pair::new(Settings { rd_atomic: 0, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 0));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 100)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::LocalQpOperation)]);
    assert_eq!(pair.sent(0, Operation::ReadRequest), 0);
}

#[test]
fn more_reads_at_a_time_than_agreed_are_invalid() {
    let mut pair = Pair::new(Settings { rd_atomic: 2, ..Settings::default() });
    let mut last = Disposition::Accepted;
    for at in 0..3 {
        let next = Bth { psn: Psn::new(pair.settings.psn + at), ..bth(&pair, opcode::RC_READ_REQUEST) };
        let reth = Some(Reth { va: VA, rkey: KEY, length: 100 });
        let frame = forged(&pair, &Headers { reth, ..Headers::new(next) }, &[]);
        last = pair.deliver(1, &frame);
    }
    assert_eq!(last, Disposition::Dropped(DropReason::InvalidRequest));
}

#[test]
fn nothing_is_answered_in_a_state_that_does_not_receive() {
    let mut pair = Pair::unconnected(Settings::default());
    pair.connect_one(0);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.run(Nanos::from_millis(1), no_fault);
    assert_eq!(pair.hosts[1].drops()["drop_wrong_state"], 1);
    assert_eq!(pair.sent(1, Operation::Ack), 0);
    // A late start is as good as a lost packet.
    pair.connect_one(1);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn another_domains_key_is_no_key() {
    let mut pair = Pair::new(Settings::default());
    let other = MrKey(0x0077_7701);
    let region = pair.hosts[1].endpoint.remove_mr(KEY).expect("there");
    let of_other_pd = roced_transport::mr::Mr { key: other, pd: roced_types::Pdn(2), ..region };
    pair.hosts[1].endpoint.insert_mr(of_other_pd).expect("room");
    pair.hosts[0].post(&SendWork { rkey: other.0, ..work(1, SendOp::Read, &[sge(0, 10)], 0) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess)]);
}

#[test]
fn an_unexpected_atomic_ack_changes_nothing() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let aeth = Some(roced_transport::wire::Aeth { syndrome: roced_transport::wire::Syndrome::ACK, msn: 0 });
    let atomic_ack = Some(roced_transport::wire::AtomicAck { original: 0 });
    let headers = Headers { aeth, atomic_ack, ..Headers::new(bth(&pair, opcode::RC_ATOMIC_ACK)) };
    let frame = forged(&pair, &headers, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::UnexpectedResponse));
    pair.settle();
    assert_eq!((pair.hosts[1].take(), pair.hosts[1].state()), (vec![(1, Status::Success)], "RTS"));
}
