//! No starvation: of a queue pair by another, of an account by one with many queue pairs, of a
//! direction by the other, of the flush by a stuck NIC.

use roced_transport::{
    clock::Nanos,
    io::{Egress, FrameOrigin},
    psn::Psn,
    qp::PathState,
    reject::Disposition,
    turns::fair::FairOwner,
    wire::{
        bth::Bth,
        headers::Headers,
        opcode::{self, Operation},
        reth::Reth,
    },
};
use roced_types::{AccountId, DeviceId, QpAttributes, SendOp, SessionId, Status, attribute, state};

use crate::host::{KEY, Pair, Settings, VA, no_fault, sge, work};

#[test]
fn a_peer_that_reads_without_end_does_not_shut_out_our_requests() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].nic.room = 1;
    for wr_id in 0..20 {
        pair.hosts[1].post(&work(wr_id, SendOp::Read, &[sge(0, 50_000)], 0));
    }
    while pair.sent(0, Operation::ReadResponse) < 10 {
        pair.turn(&mut no_fault);
    }
    pair.hosts[0].post(&work(100, SendOp::Write, &[sge(0, 10)], 0));
    while pair.hosts[0].app.completions.is_empty() {
        pair.turn(&mut no_fault);
    }
    assert!(pair.sent(0, Operation::ReadResponse) < 20, "{}", pair.sent(0, Operation::ReadResponse));
    pair.settle();
    assert_eq!(pair.hosts[1].take().len(), 20);
}

#[test]
fn a_nic_with_little_room_serves_all_queue_pairs() {
    for room in [1, 15, 16, 17] {
        let mut pair = Pair::new(Settings { window: 4096, ..Settings::default() });
        pair.connect_another(6);
        pair.connect_another(7);
        pair.hosts[0].nic.room = room;
        for index in [5, 6, 7] {
            pair.turn_to(index);
            pair.hosts[0].post(&work(index.into(), SendOp::Write, &[sge(0, 200 * 1024)], 500_000));
        }
        pair.settle();
        let ends: Vec<_> = pair
            .trace
            .iter()
            .enumerate()
            .filter(|(_, (_, opcode, _))| *opcode == opcode::RC_WRITE_LAST)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(ends.len(), 3);
        assert!(ends[2] - ends[0] < 100, "they end together with room for {room}: {ends:?}");
    }
}

/// Number of queue pairs of the account that has many.
const MANY: u32 = 256;

/// Writes of the account with one queue pair, of 100,000 bytes.
const POSTS: usize = 40;

/// Where the account with one queue pair writes; the other writes elsewhere.
const OURS: u64 = 800_000;

/// A pair with queue pairs 5 and on of account 1, [`MANY`] of them, and one more of account 2, if
/// it is another one; all have more to send than they can.
fn crowd(settings: Settings, is_other: bool, message_bytes: usize) -> Pair {
    crowd_of(SendOp::Write, settings, is_other, message_bytes)
}

/// The same, with this operation of the many.
fn crowd_of(op: SendOp, settings: Settings, is_other: bool, message_bytes: usize) -> Pair {
    let owner = |account| FairOwner { account: AccountId(account), client: SessionId(account), weight: 1 };
    let mut pair = Pair::unconnected(Settings { max_qps: MANY + 1, ..settings });
    pair.connect();
    // The first was made without an owner.
    for host in &mut pair.hosts {
        host.endpoint.remove_qp(host.qpn).expect("there");
    }
    for index in 5..=5 + MANY {
        let is_ours = index == 5 + MANY;
        pair.owner = owner(if is_ours && is_other { 2 } else { 1 });
        pair.connect_another(index);
        if !is_ours {
            let posts = if message_bytes < 100_000 { 60 } else { 2 };
            (0..posts).for_each(|_| pair.hosts[0].post(&work(0, op, &[sge(0, message_bytes)], 0)));
        }
    }
    (0..POSTS).for_each(|_| pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100_000)], OURS)));
    pair
}

/// Part of the bytes that arrived at both, until the account with one queue pair was done, or for 2,000
/// turns.
fn part_of_one(mut pair: Pair) -> f64 {
    for _ in 0..2000 {
        pair.turn(&mut no_fault);
        if pair.hosts[0].app.completions.iter().filter(|completion| completion.wr_id == 1).count() == POSTS {
            break;
        }
    }
    let bytes = |ours: bool| {
        let writes = pair.hosts.iter().flat_map(|host| &host.app.writes);
        writes.filter(|(at, _)| (*at >= OURS) == ours).map(|(_, length)| *length).sum::<usize>() as f64
    };
    bytes(true) / (bytes(true) + bytes(false))
}

/// Without accounts of their own it is one of 257.
#[test]
fn an_account_with_one_queue_pair_sends_as_much_as_one_with_many() {
    // With more frames in a turn than the window, all of it is answered at once, and is room at once.
    for (total_window, turn_frames) in [(u32::MAX, 32), (256, 32), (192, 256), (64, 1024)] {
        let settings = Settings { total_window, turn_frames, window: 128, ..Settings::default() };
        let part = part_of_one(crowd(settings, true, 200_000));
        assert!(part >= 0.45, "{part} with a window of {total_window} for all");
        if total_window > 192 {
            let part = part_of_one(crowd(settings, false, 200_000));
            assert!(part <= 0.02, "{part} in one account");
        }
    }
}

/// A READ adds its responses to the packets in flight, many with one frame.
#[test]
fn reads_of_many_queue_pairs_leave_half_of_the_window_to_writes_of_one() {
    let settings = Settings { total_window: 192, turn_frames: 256, window: 128, rd_atomic: 1, ..Settings::default() };
    let part = part_of_one(crowd_of(SendOp::Read, settings, true, 200_000));
    assert!(part >= 0.4, "{part}");
}

/// Frames cost something, even with few bytes: the bytes of the other are the most of all.
#[test]
fn small_messages_of_many_queue_pairs_take_no_more_than_half() {
    let part = part_of_one(crowd(Settings::default(), true, 64));
    assert!(part >= 0.8, "{part}");
}

#[test]
fn a_nic_that_is_stuck_holds_up_neither_hand_over_nor_flush() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(5, SendOp::Write, &[sge(0, 10)], 0));
    // More than are visited at a time.
    for index in (0..5).chain(8..16) {
        pair.connect_another(index);
        pair.hosts[0].post(&work(index.into(), SendOp::Write, &[sge(0, 10)], 0));
    }
    pair.connect_another(6);
    let local = PathState::Ready(pair.path_via(0, Egress::HandOver { to: DeviceId(0) }));
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.set_path(qpn, local).expect("there");
    pair.hosts[0].post(&work(106, SendOp::Write, &[sge(0, 10)], 0));
    // It owes a NAK that cannot leave.
    pair.connect_another(7);
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 10)], u64::MAX / 2));
    pair.hosts[0].post_recv(107, &[]);
    pair.hosts[0].nic.room = 0;
    for _ in 0..50 {
        pair.turn(&mut no_fault);
    }
    let mut done = pair.hosts[0].take();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(done, [(106, Status::Success), (107, Status::WorkRequestFlushed)]);
    pair.hosts[0].nic.room = 100;
    pair.settle();
    assert_eq!(pair.hosts[0].take().len(), 14);
    assert_eq!(pair.hosts[1].take(), [(1, Status::RemoteAccess)]);
}

/// More queue pairs are stuck than are visited at a time, and in each call one that was removed has
/// an answer to send.
#[test]
fn answers_of_removed_queue_pairs_do_not_keep_the_turn_with_the_stuck_ones() {
    let mut pair = Pair::new(Settings { max_qps: 64, ..Settings::default() });
    let lead_locally = |pair: &mut Pair| {
        let path = PathState::Ready(pair.path_via(0, Egress::HandOver { to: DeviceId(0) }));
        let qpn = pair.hosts[0].qpn;
        pair.hosts[0].endpoint.set_path(qpn, path).expect("there");
    };
    pair.hosts[0].nic.room = 0;
    for index in 10..30 {
        pair.connect_another(index);
        pair.hosts[0].post(&work(index.into(), SendOp::Write, &[sge(0, 10)], 0));
    }
    pair.connect_another(30);
    lead_locally(&mut pair);
    pair.hosts[0].post(&work(30, SendOp::Write, &[sge(0, 10)], 0));
    for index in 31..61 {
        pair.connect_another(index);
        lead_locally(&mut pair);
        let reth = Some(Reth { va: VA, rkey: KEY, length: 6 });
        let bth = Bth::new(opcode::RC_WRITE_ONLY, pair.hosts[0].qpn, Psn::new(pair.settings.psn));
        let frame = pair.frame(1, &Headers { reth, ..Headers::new(Bth { ack_request: true, ..bth }) }, b"answer");
        let host = &mut pair.hosts[0];
        let disposition = host.endpoint.on_frame_from(FrameOrigin::Local, pair.now, &[&frame], &mut host.app);
        assert_eq!(disposition, Disposition::Accepted);
        host.endpoint.remove_qp(host.qpn).expect("there");
        host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    }
    let is_write = |frame: &Vec<u8>| {
        let pieces = [&frame[..]];
        roced_transport::wire::parse(&pieces).expect("ours").info.operation == Operation::Write
    };
    let writes = pair.hosts[0].nic.frames.iter().filter(|frame| is_write(frame)).count();
    assert_eq!((writes, pair.hosts[0].nic.frames.len()), (1, 31), "that with room, and each answer");
}

/// Full queues of many queue pairs that fail at once are flushed in pieces: a call that sends a
/// batch of frames at most adds few completions.
#[test]
fn a_flush_takes_a_bounded_part_of_a_turn() {
    let mut pair = Pair::new(Settings::default());
    for index in 6..16 {
        pair.connect_another(index);
    }
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    for index in 5..16 {
        pair.turn_to(index);
        let host = &mut pair.hosts[0];
        for wr_id in 0..64 {
            host.post(&work(wr_id, SendOp::Write, &[], 0));
            host.post_recv(wr_id, &[]);
        }
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &error, None).expect("from anywhere");
    }
    let mut flushed = Vec::new();
    while pair.hosts[0].endpoint.wants_transmit() {
        let host = &mut pair.hosts[0];
        host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
        flushed.push(host.take().len());
    }
    assert_eq!(flushed.iter().sum::<usize>(), 11 * 128);
    assert!(flushed.iter().all(|count| *count <= 32 * 8), "{flushed:?}");
}

#[test]
fn a_queue_pair_that_was_moved_away_and_back_goes_on() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 0));
    let host = &mut pair.hosts[0];
    let qp = host.endpoint.remove_qp(host.qpn).expect("there");
    host.endpoint.insert_qp(qp).map_err(|(_, reject)| reject).expect("its place is free");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn every_queue_pair_tells_its_event_however_many_have_one() {
    let mut pair = Pair::new(Settings::default());
    for index in 6..16 {
        pair.connect_another(index);
    }
    pair.hosts[0].app.cq_room = 0;
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    // Each loses completions more than once.
    for index in (5..16).chain(5..16) {
        pair.turn_to(index);
        let host = &mut pair.hosts[0];
        host.post(&work(1, SendOp::Write, &[], 0));
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &error, None).expect("from anywhere");
        pair.run(Nanos::from_millis(1), no_fault);
    }
    let mut told =
        std::iter::from_fn(|| pair.hosts[0].endpoint.poll_event()).map(|event| event.qpn).collect::<Vec<_>>();
    told.sort_unstable();
    assert_eq!(told.len(), 11);
    told.dedup();
    assert_eq!(told.len(), 11);
}
