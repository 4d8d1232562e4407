//! FLUSH and atomic WRITE: effects, refusals, and the same under losses.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::{Mr, MrKey},
    reject::{Disposition, DropReason},
    wire::{Feth, bth::Bth, headers::Headers, opcode, reth::Reth},
    work::SendWork,
};
use roced_types::{CompletionOp, SendOp, Status, access, flush};

use crate::host::{Fate, KEY, MEMORY_BYTES, Pair, Settings, VA, bth, forged, one, sge, work};

const LIMIT: Nanos = Nanos::from_millis(10_000);
/// Where the eight bytes lie at the peer.
const PLACE: u64 = 4096;
const BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn atomic_write(wr_id: u64) -> SendWork<'static> {
    SendWork { swap_or_add: u64::from_ne_bytes(BYTES), ..work(wr_id, SendOp::AtomicWrite, &[], PLACE) }
}

fn flush(wr_id: u64, placement: u8, selectivity: u8, bytes: u64) -> SendWork<'static> {
    let compare = flush::operand(placement, selectivity);
    SendWork { swap_or_add: bytes, compare, ..work(wr_id, SendOp::Flush, &[], PLACE) }
}

fn place(pair: &Pair) -> &[u8] {
    &pair.hosts[1].app.memory[PLACE as usize..][..8]
}

#[test]
fn each_is_executed_in_its_turn_and_answered_by_an_empty_response() {
    let mut pair = Pair::new(Settings::default());
    let here = [sge(64, 3000)];
    pair.hosts[0].post(&work(1, SendOp::Write, &here, PLACE + 8));
    pair.hosts[0].post(&atomic_write(2));
    pair.hosts[0].post(&flush(3, flush::GLOBAL, flush::RANGE, 3008));
    pair.hosts[0].post(&flush(4, flush::GLOBAL, flush::REGION, 0));
    pair.settle();
    let done: Vec<_> = pair.hosts[0].app.completions.iter().map(|cqe| (cqe.op, cqe.byte_len)).collect();
    let ops = [CompletionOp::Write, CompletionOp::AtomicWrite, CompletionOp::Flush, CompletionOp::Flush];
    assert_eq!(done, ops.map(|op| (op, 0)));
    assert_eq!(pair.hosts[0].take(), [1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(place(&pair), BYTES);
    let answers = pair.trace.iter().filter(|(_, opcode, _)| *opcode == opcode::RC_READ_RESPONSE_ONLY).count();
    assert_eq!(answers, 3);
    let counted = [QpCount::AtomicWriteRequests, QpCount::FlushRequests].map(|what| pair.hosts[1].count(what));
    assert_eq!(counted, [1, 2]);
}

/// They count as READs do: no more at a time than agreed.
#[test]
fn no_more_are_under_way_than_the_peer_answers() {
    let mut pair = Pair::new(Settings { rd_atomic: 2, ..Settings::default() });
    for wr_id in 0..20 {
        pair.hosts[0].post(&if wr_id % 2 == 0 { atomic_write(wr_id) } else { flush(wr_id, 1, 0, 8) });
    }
    pair.settle();
    assert_eq!(pair.hosts[0].take().len(), 20);
    assert_eq!(pair.hosts[1].count(QpCount::RemoteInvalidSent), 0);
}

fn is_refused(settings: Settings, work: &SendWork<'_>, status: Status) {
    let mut pair = Pair::new(settings);
    pair.hosts[0].post(work);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(work.wr_id, status)]);
    assert!(pair.hosts[1].app.originals.is_empty(), "nothing was written");
}

#[test]
fn key_range_right_and_form_are_checked() {
    use Status::{RemoteAccess, RemoteInvalidRequest};
    let without = |right: u32| Settings { access: access::ALL & !right, ..Settings::default() };
    let plain = Settings::default();
    is_refused(plain, &SendWork { rkey: KEY.0 ^ 1, ..atomic_write(1) }, RemoteAccess);
    is_refused(plain, &SendWork { remote_va: VA + MEMORY_BYTES as u64, ..atomic_write(1) }, RemoteAccess);
    is_refused(plain, &SendWork { remote_va: VA + PLACE + 4, ..atomic_write(1) }, RemoteInvalidRequest);
    is_refused(without(access::REMOTE_WRITE), &atomic_write(1), RemoteAccess);
    let ranged = flush(1, flush::GLOBAL, flush::RANGE, 8);
    is_refused(plain, &SendWork { rkey: KEY.0 ^ 1, ..ranged }, RemoteAccess);
    is_refused(plain, &SendWork { rkey: KEY.0 ^ 1, ..flush(1, flush::GLOBAL, flush::REGION, 0) }, RemoteAccess);
    is_refused(plain, &flush(1, flush::GLOBAL, flush::RANGE, MEMORY_BYTES as u64), RemoteAccess);
    is_refused(without(access::FLUSH_GLOBAL), &ranged, RemoteAccess);
    is_refused(plain, &flush(1, flush::PERSISTENT, flush::RANGE, 8), RemoteAccess);
    is_refused(plain, &flush(1, flush::GLOBAL | flush::PERSISTENT, flush::REGION, 0), RemoteAccess);
    for (placement, selectivity) in [(0, flush::RANGE), (4, flush::RANGE), (flush::GLOBAL, 2), (flush::GLOBAL, 3)] {
        is_refused(plain, &flush(1, placement, selectivity, 8), RemoteInvalidRequest);
    }
}

#[test]
fn a_region_gives_each_right_by_itself() {
    for (work, needed) in [
        (atomic_write(1), access::REMOTE_WRITE),
        (flush(1, flush::GLOBAL, flush::RANGE, 8), access::FLUSH_GLOBAL),
        (flush(1, flush::GLOBAL, flush::REGION, 8), access::FLUSH_GLOBAL),
    ] {
        let mut pair = Pair::new(Settings::default());
        let region = pair.hosts[1].endpoint.remove_mr(KEY).expect("there");
        let other = MrKey(0x0077_7701);
        let weaker = Mr { key: other, access: access::ALL & !needed, ..region };
        pair.hosts[1].endpoint.insert_mr(weaker).expect("room");
        pair.hosts[0].post(&SendWork { rkey: other.0, ..work });
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess)]);
    }
}

#[test]
fn impossible_requests_fail_in_the_library() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&flush(1, flush::GLOBAL, flush::RANGE, 1 << 32));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalLength)]);
    let mut pair = Pair::new(Settings::default());
    let data = [sge(0, 8)];
    pair.hosts[0].post(&SendWork { data: work(0, SendOp::Send, &data, 0).data, ..atomic_write(2) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::LocalLength)]);
}

#[test]
fn an_atomic_write_of_another_length_is_an_invalid_request() {
    for (bytes, said) in [(4, 4), (8, 16), (16, 16), (16, 8), (0, 8)] {
        let mut pair = Pair::new(Settings::default());
        let reth = Some(Reth { va: VA + PLACE, rkey: KEY, length: said });
        let frame = forged(
            &pair,
            &Headers { reth, ..Headers::new(bth(&pair, opcode::RC_ATOMIC_WRITE)) },
            &BYTES.repeat(2)[..bytes],
        );
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::InvalidRequest), "{bytes}, {said}");
        assert!(pair.hosts[1].app.originals.is_empty());
    }
}

#[test]
fn a_duplicate_is_answered_and_not_written_again() {
    let mut pair = Pair::new(Settings::default());
    let first = bth(&pair, opcode::RC_ATOMIC_WRITE);
    let reth = Some(Reth { va: VA + PLACE, rkey: KEY, length: 8 });
    let write = forged(&pair, &Headers { reth, ..Headers::new(first) }, &BYTES);
    let feth = Some(Feth { placement: flush::GLOBAL, selectivity: flush::RANGE });
    let flush = Bth { psn: first.psn.plus(1), opcode: opcode::RC_FLUSH, ..first };
    let flush = forged(&pair, &Headers { feth, reth, ..Headers::new(flush) }, &[]);
    assert_eq!([pair.deliver(1, &write), pair.deliver(1, &flush)], [Disposition::Accepted; 2]);
    assert_eq!(answers(&mut pair), [(first.psn.get(), 0), (first.psn.plus(1).get(), 0)]);
    pair.hosts[1].app.memory[PLACE as usize] = 99;
    let duplicate = Disposition::Dropped(DropReason::Duplicate);
    assert_eq!([pair.deliver(1, &write), pair.deliver(1, &flush)], [duplicate; 2]);
    assert_eq!(answers(&mut pair), [(first.psn.get(), 0), (first.psn.plus(1).get(), 0)]);
    assert_eq!(place(&pair)[0], 99);
    // As a READ it would deliver memory to a peer that never requested it.
    let read = forged(&pair, &Headers { reth, ..Headers::new(Bth { opcode: opcode::RC_READ_REQUEST, ..first }) }, &[]);
    assert_eq!(pair.deliver(1, &read), Disposition::Dropped(DropReason::UnknownDuplicate));
}

/// PSN and payload of the READ responses that host 1 sends now.
fn answers(pair: &mut Pair) -> Vec<(u32, usize)> {
    let host = &mut pair.hosts[1];
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    let frames: Vec<_> = host.nic.frames.drain(..).collect();
    let read = |frame: &Vec<u8>| {
        let pieces = [&frame[..]];
        let packet = roced_transport::wire::parse(&pieces).expect("our frame parses");
        (packet.bth.opcode == opcode::RC_READ_RESPONSE_ONLY).then(|| (packet.bth.psn.get(), packet.payload_len()))
    };
    frames.iter().filter_map(read).collect()
}

#[test]
fn a_lost_or_repeated_frame_changes_nothing() {
    let frames = [(0, opcode::RC_ATOMIC_WRITE), (0, opcode::RC_FLUSH), (1, opcode::RC_READ_RESPONSE_ONLY)];
    for (from, opcode) in frames {
        for nth in 0..3 {
            for fate in [Fate::Drop, Fate::Duplicate, Fate::Corrupt, Fate::Late(3)] {
                let mut pair = Pair::new(Settings::default());
                for round in 0..3 {
                    pair.hosts[0].post(&atomic_write(2 * round));
                    pair.hosts[0].post(&flush(2 * round + 1, flush::GLOBAL, flush::RANGE, 8));
                }
                assert!(pair.run(LIMIT, one(from, opcode, nth, fate)), "it comes to rest");
                assert_eq!(pair.hosts[0].take(), [0, 1, 2, 3, 4, 5].map(|wr_id| (wr_id, Status::Success)));
                assert_eq!(pair.hosts[1].app.originals.len(), 3, "each written once");
                assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
            }
        }
    }
}
