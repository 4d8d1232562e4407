//! Effect of each operation without faults.

use roced_transport::{
    counters::QpCount,
    qp::ServiceType,
    wire::{
        Bth, Headers, Reth,
        opcode::{self, Operation},
        parse,
    },
    work::{SendWork, WorkData},
};
use roced_types::{CompletionOp, SendOp, Status, completion_flags, send_flags};

use crate::host::{KEY, MEMORY_BYTES, Pair, SIZES, Settings, VA, bth, forged, no_fault, sge, work};

const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Message lengths around every edge of an MTU.
fn lengths(mtu: u32) -> impl Iterator<Item = usize> {
    let mtu = mtu as usize;
    [0, 1, 2, 3, 4, 5, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 1, 5 * mtu + 7].into_iter()
}

#[test]
fn a_write_arrives_byte_for_byte_at_every_mtu_and_length() {
    for (mtu, ipv6) in MTUS.into_iter().flat_map(|mtu| [(mtu, false), (mtu, true)]) {
        let mut pair = Pair::new(Settings { mtu, ipv6, ..Settings::default() });
        for (at, length) in lengths(mtu).enumerate() {
            let remote = 100_000 + at as u64 * 30_000;
            pair.hosts[0].post(&work(at as u64, SendOp::Write, &[sge(at as u64 + 1, length)], remote));
            let before = pair.hosts[1].app.memory.clone();
            pair.settle();
            assert_eq!(pair.hosts[0].take(), [(at as u64, Status::Success)]);
            let mut expected = before;
            expected[remote as usize..][..length].copy_from_slice(&pair.hosts[0].app.memory[at + 1..][..length]);
            assert!(pair.hosts[1].app.memory == expected, "mtu {mtu}, {length} bytes");
            assert!(pair.hosts[1].take().is_empty(), "a WRITE completes nothing at the responder");
        }
        assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
    }
}

#[test]
fn a_read_arrives_byte_for_byte_at_every_mtu_and_length() {
    for (mtu, rd_atomic) in MTUS.into_iter().flat_map(|mtu| [(mtu, 1), (mtu, 16)]) {
        let mut pair = Pair::new(Settings { mtu, rd_atomic, ..Settings::default() });
        for (at, length) in lengths(mtu).enumerate() {
            let remote = 3 + at as u64 * 30_000;
            pair.hosts[0].post(&work(at as u64, SendOp::Read, &[sge(500_000, length)], remote));
            pair.settle();
            let cqe = pair.hosts[0].app.completions.pop().expect("one completion");
            assert_eq!((cqe.status, cqe.op), (Status::Success, CompletionOp::Read));
            assert_eq!(cqe.byte_len, length as u32);
            let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
            assert!(here[500_000..][..length] == there[remote as usize..][..length], "mtu {mtu}, {length} bytes");
        }
    }
}

#[test]
fn a_send_fills_the_receive_buffers_in_order() {
    for mtu in MTUS {
        let mut pair = Pair::new(Settings { mtu, ..Settings::default() });
        for (at, length) in lengths(mtu).enumerate() {
            let parts = [sge(200_000, length / 3), sge(300_000, 0), sge(400_000, length)];
            pair.hosts[1].post_recv(900 + at as u64, &parts);
            pair.hosts[0].post(&work(at as u64, SendOp::Send, &[sge(7, length)], 0));
            pair.settle();
            assert_eq!(pair.hosts[0].take(), [(at as u64, Status::Success)]);
            let cqe = pair.hosts[1].app.completions.pop().expect("one completion");
            assert_eq!((cqe.wr_id, cqe.status, cqe.op), (900 + at as u64, Status::Success, CompletionOp::Recv));
            assert_eq!((cqe.byte_len, cqe.flags, cqe.src_qpn), (length as u32, 0, pair.hosts[0].qpn.get()));
            let memory = &pair.hosts[1].app.memory;
            let got = [&memory[200_000..][..length / 3], &memory[400_000..][..length - length / 3]].concat();
            assert!(got == pair.hosts[0].app.memory[7..][..length], "mtu {mtu}, {length} bytes");
        }
    }
}

#[test]
fn immediate_data_takes_receive_work_with_send_and_write() {
    let mut pair = Pair::new(Settings::default());
    for (op, length, expected) in [
        (SendOp::SendImm, 0, CompletionOp::Recv),
        (SendOp::SendImm, 3000, CompletionOp::Recv),
        (SendOp::WriteImm, 0, CompletionOp::RecvWriteImm),
        (SendOp::WriteImm, 3000, CompletionOp::RecvWriteImm),
    ] {
        pair.hosts[1].post_recv(5, &[sge(0, 4096)]);
        pair.hosts[0].post(&work(1, op, &[sge(0, length)], 60_000));
        pair.settle();
        let cqe = pair.hosts[1].app.completions.pop().expect("one completion");
        assert_eq!((cqe.wr_id, cqe.status, cqe.op), (5, Status::Success, expected));
        assert_eq!((cqe.imm, cqe.flags, cqe.byte_len), ([1, 2, 3, 4], completion_flags::IMM, length as u32));
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    }
}

#[test]
fn thirty_two_pieces_are_gathered_and_scattered() {
    let mut pair = Pair::new(Settings { mtu: 256, ..Settings::default() });
    let from: Vec<_> = (0..32).map(|at| sge(at * 1000, 17 + at as usize)).collect();
    let to: Vec<_> = (0..32).map(|at| sge(500_000 + at * 1000, 48 - at as usize)).collect();
    let gather = |memory: &[u8], sges: &[roced_types::Sge]| -> Vec<u8> {
        sges.iter().flat_map(|sge| memory[(sge.va - VA) as usize..][..sge.length as usize].to_vec()).collect()
    };
    pair.hosts[1].post_recv(1, &to);
    pair.hosts[0].post(&work(1, SendOp::Send, &from, 0));
    pair.hosts[0].post(&work(2, SendOp::Read, &to, 10_000));
    let (sent, asked) = (gather(&pair.hosts[0].app.memory, &from), pair.hosts[1].app.memory[10_000..].to_vec());
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert!(gather(&pair.hosts[1].app.memory, &to)[..sent.len()] == sent);
    let got = gather(&pair.hosts[0].app.memory, &to);
    assert!(got[..] == asked[..got.len()]);
}

#[test]
fn inline_data_is_taken_when_posted() {
    let mut pair = Pair::new(Settings { mtu: 256, ..Settings::default() });
    let data: Vec<u8> = (0..SIZES.inline_bytes).map(|at| at as u8 ^ 0x5a).collect();
    let template = work(1, SendOp::Write, &[], 2000);
    let inline =
        SendWork { flags: send_flags::INLINE | send_flags::SIGNALED, data: WorkData::Inline(&data), ..template };
    pair.hosts[0].post(&inline);
    pair.hosts[0].app.memory.fill(0);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert!(pair.hosts[1].app.memory[2000..][..data.len()] == data);
}

#[test]
fn unsignaled_work_completes_silently_unless_the_queue_pair_signals_all() {
    for signal_all in [false, true] {
        let mut pair = Pair::new(Settings { signal_all, ..Settings::default() });
        for wr_id in 0..4 {
            let signaled = work(wr_id, SendOp::Write, &[], 0);
            let flags = if wr_id == 3 { send_flags::SIGNALED } else { 0 };
            pair.hosts[0].post(&SendWork { flags, ..signaled });
        }
        pair.settle();
        let expected: Vec<_> =
            if signal_all { (0..4).collect() } else { vec![3] }.into_iter().map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.hosts[0].take(), expected);
        assert_eq!(pair.hosts[0].count(QpCount::CompletedRequests), 4);
    }
}

#[test]
fn a_solicited_message_says_so_on_its_last_packet_only() {
    let mut pair = Pair::new(Settings { mtu: 256, ..Settings::default() });
    pair.hosts[1].post_recv(1, &[sge(0, 1000)]);
    let template = [sge(0, 700)];
    let solicited = work(1, SendOp::Send, &template, 0);
    pair.hosts[0].post(&SendWork { flags: send_flags::SOLICITED, ..solicited });
    pair.settle();
    assert_eq!(pair.hosts[1].app.completions[0].flags, completion_flags::SOLICITED);
}

#[test]
fn a_fenced_request_waits_for_the_reads_before_it() {
    let mut pair = Pair::new(Settings::default());
    let (read, write) = ([sge(0, 20_000)], [sge(100_000, 10)]);
    pair.hosts[0].post(&work(1, SendOp::Read, &read, 0));
    let fenced = work(2, SendOp::Write, &write, 0);
    pair.hosts[0].post(&SendWork { flags: send_flags::FENCE | send_flags::SIGNALED, ..fenced });
    pair.settle();
    let last_response = pair.trace.iter().rposition(|(from, _, _)| *from == 1).expect("responses");
    let write = pair.trace.iter().position(|(_, opcode, _)| *opcode == opcode::RC_WRITE_ONLY).expect("the write");
    let responses = pair.sent(1, Operation::ReadResponse);
    assert_eq!(responses, 20);
    assert!(write > responses && write < last_response, "after all responses, before its own ACK");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn both_directions_at_once_do_not_disturb_each_other() {
    let mut pair = Pair::new(Settings { mtu: 512, ..Settings::default() });
    for wr_id in 0..20 {
        for host in &mut pair.hosts {
            let here = [sge(wr_id * 10_000, 9_000)];
            let op = if wr_id % 2 == 0 { SendOp::Write } else { SendOp::Read };
            host.post(&work(wr_id, op, &here, 500_000 + wr_id * 10_000));
        }
    }
    pair.settle();
    for host in &mut pair.hosts {
        assert_eq!(host.take(), (0..20).map(|wr_id| (wr_id, Status::Success)).collect::<Vec<_>>());
        assert!(host.drops().is_empty(), "{:?}", host.drops());
    }
}

#[test]
fn one_ack_serves_many_packets() {
    let mut pair = Pair::new(Settings { mtu: 256, window: 512, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 512 * 256)], 500_000));
    pair.settle();
    assert_eq!(pair.sent(0, Operation::Write), 512);
    assert!(pair.sent(1, Operation::Ack) <= 16, "{} ACKs", pair.sent(1, Operation::Ack));
}

#[test]
fn never_more_than_the_window_is_in_flight() {
    for window in [1, 2, 3, 64] {
        let mut pair = Pair::new(Settings { mtu: 256, window, ..Settings::default() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100 * 256)], 500_000));
        pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 100 * 256)], 500_000));
        let mut most = 0;
        let mut sent = 0u32;
        assert!(pair.run(roced_transport::clock::Nanos::from_millis(1000), |from, opcode, _| {
            match (from, opcode.info().expect("known").operation) {
                (0, Operation::Write) => sent += 1,
                (1, Operation::Ack) => sent = 0,
                _ => {}
            }
            most = most.max(sent);
            no_fault(from, opcode, 0)
        }));
        assert!(most <= window, "{most} in flight with a window of {window}");
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    }
}

#[test]
fn reads_ask_for_no_more_than_the_window() {
    for window in [4, 5, 9, 11, 64] {
        let mut pair = Pair::new(Settings { mtu: 256, window, rd_atomic: 4, psn: 0, ..Settings::default() });
        pair.hosts[1].nic.room = 0;
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 500_000));
        pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 100 * 256)], 500_000));
        for _ in 0..5 {
            pair.turn(&mut no_fault);
        }
        let (_, opcode, last) = *pair.trace.last().expect("it asked");
        assert_eq!(opcode, opcode::RC_READ_REQUEST);
        assert!(last + window / 4 <= window, "{last} with a window of {window}");
        pair.hosts[1].nic.room = 100;
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    }
}

#[test]
fn the_last_packet_and_retransmissions_request_an_ack() {
    let mut pair = Pair::new(Settings::default());
    let four = [sge(0, 4000)];
    let solicited = work(1, SendOp::Send, &four, 0);
    pair.hosts[0].post(&SendWork { flags: send_flags::SOLICITED, ..solicited });
    let mut sent = || -> Vec<(bool, bool)> {
        let host = &mut pair.hosts[0];
        host.endpoint.on_timeout(pair.now, 1, &mut host.app);
        host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
        pair.now = pair.now + roced_transport::clock::Nanos::from_millis(100);
        let frames: Vec<_> = host.nic.frames.drain(..).collect();
        frames
            .iter()
            .map(|frame| parse(&[frame]).expect("ours").bth)
            .map(|bth| (bth.solicited, bth.ack_request))
            .collect()
    };
    assert_eq!(sent(), [(false, false), (false, false), (false, false), (true, true)]);
    assert_eq!(sent(), [(false, true), (false, false), (false, false), (true, true)]);
}

#[test]
fn a_nic_without_room_only_delays() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].nic.room = 1;
    pair.hosts[1].nic.room = 1;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100_000)], 500_000));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(200_000, 100_000)], 500_000));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert!(pair.hosts[0].app.memory[200_000..300_000] == pair.hosts[1].app.memory[500_000..600_000]);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
}

#[test]
fn the_whole_memory_goes_and_comes() {
    let mut pair = Pair::new(Settings { mtu: 4096, window: 128, ..Settings::default() });
    let all = [sge(0, MEMORY_BYTES)];
    let mine = pair.hosts[0].app.memory.clone();
    pair.hosts[0].post(&work(1, SendOp::Write, &all, 0));
    pair.settle();
    assert!(pair.hosts[1].app.memory == mine);
    pair.hosts[0].app.memory.fill(0);
    pair.hosts[0].post(&work(2, SendOp::Read, &all, 0));
    pair.settle();
    assert!(pair.hosts[0].app.memory == mine);
}

/// Answers of host 1 now: message sequence numbers, in the order of the packets that have one.
fn msns(pair: &mut Pair) -> Vec<u32> {
    let host = &mut pair.hosts[1];
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    let frames: Vec<_> = host.nic.frames.drain(..).collect();
    let msn = |frame: &Vec<u8>| parse(&[frame]).expect("our frame parses").aeth.map(|aeth| aeth.msn);
    frames.iter().filter_map(msn).collect()
}

#[test]
fn msn_counts_messages_and_a_read_when_it_begins() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 4000)]);
    let give = |pair: &mut Pair, ahead: u32, opcode, reth: Option<u32>, payload: &[u8]| {
        let first = bth(pair, opcode);
        let bth = Bth { psn: first.psn.plus(ahead), ack_request: true, ..first };
        let reth = reth.map(|length| Reth { va: VA, rkey: KEY, length });
        let frame = forged(pair, &Headers { reth, ..Headers::new(bth) }, payload);
        pair.deliver(1, &frame)
    };
    give(&mut pair, 0, opcode::RC_WRITE_ONLY, Some(5), &[1; 5]);
    assert_eq!(msns(&mut pair), [1]);
    // Three responses, of which two have an AETH; behind it a WRITE that is complete before the
    // READ is answered.
    give(&mut pair, 1, opcode::RC_READ_REQUEST, Some(3000), &[]);
    give(&mut pair, 4, opcode::RC_WRITE_ONLY, Some(5), &[1; 5]);
    assert_eq!(msns(&mut pair), [2, 2, 3]);
    give(&mut pair, 4, opcode::RC_WRITE_ONLY, Some(5), &[1; 5]);
    assert_eq!(msns(&mut pair), [3], "a duplicate is no message more");
    give(&mut pair, 5, opcode::RC_SEND_FIRST, None, &[1; 1024]);
    assert_eq!(msns(&mut pair), [3], "a message counts when it is complete");
    give(&mut pair, 6, opcode::RC_SEND_LAST, None, &[1; 5]);
    assert_eq!(msns(&mut pair), [4]);
    give(&mut pair, 1, opcode::RC_READ_REQUEST, Some(3000), &[]);
    assert_eq!(msns(&mut pair), [2, 2], "a READ that is answered again has the number that it had");
}

/// IBTA v1 9.2.3: SE is of SENDs and of WRITEs with immediate alone.
#[test]
fn a_write_without_immediate_is_never_solicited() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for (op, solicited) in [(SendOp::Write, false), (SendOp::WriteImm, true), (SendOp::Send, true)] {
            let mut pair = Pair::new(Settings { service, ..Settings::default() });
            let flags = send_flags::SIGNALED | send_flags::SOLICITED;
            pair.hosts[0].post(&SendWork { flags, ..work(1, op, &[sge(0, 10)], 0) });
            let host = &mut pair.hosts[0];
            host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
            let frame = host.nic.frames.pop_front().expect("sent");
            let pieces = [&frame[..]];
            assert_eq!(parse(&pieces).expect("it parses").bth.solicited, solicited, "{service:?} {op:?}");
        }
    }
}
