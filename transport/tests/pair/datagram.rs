//! Unreliable datagrams: permitted senders, the bytes in front of a message, and the effect of a
//! bad one: none.

use roced_transport::io::WorkCompletion;
use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    qp::{PathState, ServiceType},
    reject::{Disposition, DropReason},
    wire::{Deth, bth::Bth, headers::Headers, opcode},
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{
    CompletionOp, Pdn, QpAttributes, Qpn, SendOp, Sge, Status, attribute, completion_flags, send_flags, state,
};

use crate::host::{AH, MEMORY_BYTES, OUR_QKEY, PD, Pair, Settings, forged, no_fault, sge, work};

const GRH: usize = 40;
/// "That of the queue pair".
const OWN: u32 = 1 << 31;

fn settings() -> Settings {
    Settings { service: ServiceType::Ud, ..Settings::default() }
}

/// To the queue pair of host 1, with the Q_Key of both.
fn to(pair: &Pair) -> DatagramTo {
    DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY }
}

fn send<'a>(pair: &Pair, wr_id: u64, sges: &'a [Sge]) -> SendWork<'a> {
    SendWork { to: to(pair), ..work(wr_id, SendOp::Send, sges, 0) }
}

fn modify(pair: &mut Pair, at: usize, mask: u32, attributes: &QpAttributes) {
    let host = &mut pair.hosts[at];
    host.endpoint.modify_qp(host.qpn, mask, attributes, None).expect("it may");
}

/// A datagram of host 0's queue pair, and its disposition at host 1.
pub(crate) fn inject(pair: &mut Pair, dest_qpn: Qpn, qkey: u32, payload: &[u8]) -> Disposition {
    let headers = Headers {
        deth: Some(Deth { qkey, source_qpn: pair.hosts[0].qpn }),
        ..Headers::new(Bth::new(opcode::UD_SEND_ONLY, dest_qpn, Psn::new(9)))
    };
    let frame = forged(pair, &headers, payload);
    pair.deliver(1, &frame)
}

fn one(pair: &mut Pair, at: usize) -> WorkCompletion {
    let all = std::mem::take(&mut pair.hosts[at].app.completions);
    assert_eq!(all.len(), 1);
    all[0]
}

/// The queue pair of host 1 takes the next message.
fn still_serves(pair: &mut Pair) {
    assert_eq!((pair.hosts[1].state(), pair.hosts[1].endpoint.poll_event()), ("RTS", None));
    let disposition = inject(pair, pair.hosts[1].qpn, OUR_QKEY, b"well");
    assert_eq!(disposition, Disposition::Accepted);
    assert_eq!(pair.hosts[1].take().pop().map(|(_, status)| status), Some(Status::Success));
}

#[test]
fn a_datagram_arrives_behind_the_header_that_brought_it() {
    for (ipv6, length) in [false, true].into_iter().flat_map(|ipv6| [0, 1, 5, 1023, 1024].map(|length| (ipv6, length)))
    {
        let mut pair = Pair::new(Settings { ipv6, ..settings() });
        pair.hosts[1].app.memory.fill(0xee);
        pair.hosts[1].post_recv(7, &[sge(0, 45), sge(1000, 2000)]);
        let data = [sge(3, length)];
        pair.hosts[0].post(&SendWork {
            op: SendOp::SendImm,
            flags: send_flags::SIGNALED | send_flags::SOLICITED,
            ..send(&pair, 1, &data)
        });
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        let cqe = one(&mut pair, 1);
        assert_eq!((cqe.wr_id, cqe.status, cqe.op), (7, Status::Success, CompletionOp::Recv));
        assert_eq!(cqe.byte_len as usize, GRH + length);
        let family = if ipv6 { 0 } else { completion_flags::IPV4 };
        assert_eq!(cqe.flags, completion_flags::GRH | completion_flags::IMM | completion_flags::SOLICITED | family);
        assert_eq!((cqe.src_qpn, cqe.imm), (pair.hosts[0].qpn.get(), [1, 2, 3, 4]));
        let memory = &pair.hosts[1].app.memory;
        let (source, dest) = (pair.hosts[0].gid, pair.hosts[1].gid);
        if ipv6 {
            assert_eq!((memory[0] >> 4, &memory[8..24], &memory[24..40]), (6, &source[..], &dest[..]));
        } else {
            assert_eq!((memory[20], &memory[32..36], &memory[36..40]), (0x45, &source[12..], &dest[12..]));
            assert!(memory[..20].iter().all(|byte| *byte == 0));
        }
        let message = [&memory[40..40 + length.min(5)], &memory[1000..][..length.saturating_sub(5)]].concat();
        assert!(message == pair.hosts[0].app.memory[3..][..length], "{length} bytes");
        assert!(pair.trace.iter().all(|(from, ..)| *from == 0), "nothing is answered");
    }
}

#[test]
fn any_queue_pair_may_send_to_any_other() {
    let mut pair = Pair::new(settings());
    for index in [6, 7] {
        pair.connect_another(index);
    }
    // Each of host 0's to each of host 1's.
    for (from, dest) in [5, 6, 7].into_iter().flat_map(|from| [5, 6, 7].map(|dest| (from, dest))) {
        pair.turn_to(dest);
        pair.hosts[1].post_recv(u64::from(dest), &[sge(0, 100)]);
        let dest_qpn = pair.hosts[1].qpn;
        pair.turn_to(from);
        let data = [sge(0, 10)];
        let work = SendWork { to: DatagramTo { qpn: dest_qpn, ..to(&pair) }, ..send(&pair, 1, &data) };
        pair.hosts[0].post(&work);
        pair.settle();
        let cqe = one(&mut pair, 1);
        assert_eq!((cqe.wr_id, cqe.qpn, cqe.src_qpn), (dest.into(), dest_qpn, pair.hosts[0].qpn.get()));
        pair.hosts[0].take();
    }
}

#[test]
fn a_qkey_lets_in_and_the_own_one_is_used_when_asked_for() {
    let mut pair = Pair::new(settings());
    let data = [sge(0, 10)];
    let secret = OUR_QKEY ^ OWN;
    modify(&mut pair, 0, attribute::QKEY, &QpAttributes { qkey: secret, ..QpAttributes::default() });
    let arrives = |pair: &mut Pair, qkey, receiver| {
        modify(pair, 1, attribute::QKEY, &QpAttributes { qkey: receiver, ..QpAttributes::default() });
        pair.hosts[1].post_recv(1, &[sge(0, 100)]);
        let work = SendWork { to: DatagramTo { qkey, ..to(pair) }, ..send(pair, 1, &data) };
        pair.hosts[0].post(&work);
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "a sender never learns");
        !pair.hosts[1].take().is_empty()
    };
    assert!(arrives(&mut pair, OUR_QKEY, OUR_QKEY));
    assert!(!arrives(&mut pair, OUR_QKEY ^ 1, OUR_QKEY));
    // With the top bit set a program's number is not looked at: it may not choose such a key
    // itself.
    assert!(arrives(&mut pair, OWN, secret));
    assert!(arrives(&mut pair, OWN | 5, secret));
    assert!(!arrives(&mut pair, OWN | 5, OWN | 5));
    assert_eq!(pair.hosts[1].drops(), [("drop_bad_qkey", 2)].into());
    assert_eq!(pair.hosts[1].state(), "RTS");
}

#[test]
fn a_bad_datagram_is_dropped_and_counted_and_that_is_all() {
    let mut pair = Pair::new(settings());
    let qpn = pair.hosts[1].qpn;
    let dropped = |reason| Disposition::Dropped(reason);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"nobody waits"), dropped(DropReason::ReceiverNotReady));
    pair.hosts[1].post_recv(1, &[sge(0, GRH + 9)]);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY ^ 1, b"hello"), dropped(DropReason::BadQkey));
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"ten bytes!"), dropped(DropReason::InvalidRequest));
    let rc = forged(&pair, &Headers::new(Bth::new(opcode::RC_SEND_ONLY, qpn, Psn::new(0))), b"rc");
    assert_eq!(pair.deliver(1, &rc), dropped(DropReason::WrongService));
    assert!(pair.hosts[1].app.writes.is_empty());
    still_serves(&mut pair);
    // Behind its end a receive too short for a GRH is as short as any.
    pair.hosts[1].post_recv(2, &[sge(0, GRH - 1)]);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b""), dropped(DropReason::InvalidRequest));
    assert_eq!(pair.hosts[1].state(), "RTS");
}

#[test]
fn a_receive_into_foreign_memory_ends_the_queue_pair() {
    let mut pair = Pair::new(settings());
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].post_recv(1, &[sge(MEMORY_BYTES as u64 - 9, 100)]);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"x"), Disposition::Dropped(DropReason::InvalidRequest));
    assert_eq!(pair.hosts[1].take(), [(1, Status::LocalProtection)]);
    assert_eq!(pair.hosts[1].state(), "ERR");
}

#[test]
fn work_that_cannot_be_sent_stops_the_send_queue_alone() {
    let data = [sge(0, 10)];
    let (long, beyond) = ([sge(0, 1025)], [sge(MEMORY_BYTES as u64 - 9, 10)]);
    type Wrong<'a> = fn(SendWork<'a>) -> SendWork<'a>;
    let cases: [(Wrong<'_>, &[Sge], Status); 7] = [
        (|work| SendWork { op: SendOp::Write, ..work }, &data, Status::LocalQpOperation),
        (|work| SendWork { op: SendOp::Read, ..work }, &data, Status::LocalQpOperation),
        (|work| SendWork { to: DatagramTo { ah: 0, ..work.to }, ..work }, &data, Status::LocalQpOperation),
        (|work| SendWork { to: DatagramTo { ah: 3, ..work.to }, ..work }, &data, Status::LocalQpOperation),
        (|work| SendWork { to: DatagramTo { ah: u32::MAX, ..work.to }, ..work }, &data, Status::LocalQpOperation),
        (|work| work, &long, Status::LocalLength),
        (|work| work, &beyond, Status::LocalProtection),
    ];
    for (at, (wrong, sges, status)) in cases.into_iter().enumerate() {
        let mut pair = Pair::new(settings());
        // Of another protection domain, as another client's would be.
        let path = PathState::Ready(pair.path(0));
        let theirs = AhEntry { pd: Pdn(PD.0 + 1), path, mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
        pair.hosts[0].endpoint.insert_ah(3, theirs).expect("room");
        let good = send(&pair, 1, &data);
        pair.hosts[0].post(&good);
        pair.hosts[0].post(&wrong(SendWork { wr_id: 2, ..send(&pair, 2, sges) }));
        pair.hosts[0].post(&SendWork { wr_id: 3, ..good });
        pair.settle();
        let expected = [(1, Status::Success), (2, status), (3, Status::WorkRequestFlushed)];
        assert_eq!((pair.hosts[0].take(), pair.hosts[0].state()), (expected.to_vec(), "SQE"), "case {at}");
        assert_eq!(pair.trace.len(), 1, "case {at}");
        // Later messages still arrive, and it sends again when it is told to.
        pair.hosts[0].post_recv(4, &[sge(0, 100)]);
        let back = SendWork { to: DatagramTo { qpn: pair.hosts[0].qpn, ..to(&pair) }, ..good };
        pair.hosts[1].post(&back);
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(4, Status::Success)], "case {at}");
        modify(&mut pair, 0, attribute::STATE, &QpAttributes { state: state::RTS, ..QpAttributes::default() });
        pair.hosts[0].post(&SendWork { wr_id: 5, ..good });
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(5, Status::Success)], "case {at}");
    }
}

#[test]
fn a_next_hop_that_is_not_known_yet_is_waited_for_and_others_are_not_held_up() {
    let mut pair = Pair::new(settings());
    let path = pair.path(0);
    pair.connect_another(6);
    let data = [sge(0, 10)];
    let resolving = AhEntry { pd: PD, path: PathState::Resolving, mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
    pair.hosts[0].endpoint.insert_ah(1, resolving).expect("room");
    let waiting = SendWork { to: DatagramTo { ah: 1, ..to(&pair) }, ..send(&pair, 1, &data) };
    pair.hosts[0].post(&waiting);
    pair.hosts[0].post(&send(&pair, 2, &data));
    pair.turn_to(5);
    pair.hosts[0].post(&send(&pair, 3, &data));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(3, Status::Success)]);
    assert!(pair.hosts[0].endpoint.set_ah_path(1, PathState::Ready(path), 1024));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.trace.len(), 3);
    // One that does not answer costs the datagrams, and nothing else.
    pair.hosts[0].endpoint.set_ah_path(1, PathState::Unreachable, 1024);
    pair.hosts[0].post(&waiting);
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.trace.len()), (vec![(1, Status::Success)], 3));
    assert_eq!(pair.hosts[0].count(QpCount::Unreachable), 1);
    // A handle that goes while a send waits for it.
    pair.hosts[0].endpoint.set_ah_path(1, PathState::Resolving, 1024);
    pair.hosts[0].post(&waiting);
    pair.settle();
    assert!(pair.hosts[0].take().is_empty());
    assert!(pair.hosts[0].endpoint.remove_ah(1).is_some());
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalQpOperation)]);
}

#[test]
fn a_changed_address_handle_wakes_only_its_waiters() {
    let mut pair = Pair::new(settings());
    let (path, data) = (pair.path(0), [sge(0, 10)]);
    for ah in [0, 1, 3] {
        let resolving = AhEntry { pd: PD, path: PathState::Resolving, mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
        pair.hosts[0].endpoint.insert_ah(ah, resolving).expect("room");
    }
    let waiting = |pair: &Pair, ah: u32| SendWork { to: DatagramTo { ah, ..to(pair) }, ..send(pair, ah.into(), &data) };
    let work = waiting(&pair, 1);
    pair.hosts[0].post(&work);
    pair.settle();
    let endpoint = &mut pair.hosts[0].endpoint;
    endpoint.set_ah_path(0, PathState::Ready(path), 1024);
    assert!(endpoint.remove_ah(3).is_some() && endpoint.remove_ah(9).is_none());
    assert!(!endpoint.wants_transmit(), "its own handle is as it was");
    endpoint.set_ah_path(1, PathState::Ready(path), 1024);
    assert!(endpoint.wants_transmit());
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    // Once more, after it waited for nothing.
    let endpoint = &mut pair.hosts[0].endpoint;
    endpoint.set_ah_path(1, PathState::Ready(path), 1024);
    assert!(!endpoint.wants_transmit(), "it waits no more");
    endpoint.set_ah_path(0, PathState::Resolving, 1024);
    let work = waiting(&pair, 0);
    pair.hosts[0].post(&work);
    pair.settle();
    pair.hosts[0].endpoint.set_ah_path(0, PathState::Ready(path), 1024);
    assert!(pair.hosts[0].endpoint.wants_transmit());
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(0, Status::Success)]);
}

/// It may go while it waits, and come again, as often as it likes.
#[test]
fn a_queue_pair_that_goes_while_it_waits_for_an_address_handle_waits_no_more() {
    let mut pair = Pair::new(settings());
    let (path, data) = (pair.path(0), [sge(0, 10)]);
    let resolving = AhEntry { pd: PD, path: PathState::Resolving, mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
    pair.hosts[0].endpoint.insert_ah(0, resolving).expect("room");
    let work = SendWork { to: DatagramTo { ah: 0, ..to(&pair) }, ..send(&pair, 1, &data) };
    pair.hosts[0].post(&work);
    let qpn = pair.hosts[0].qpn;
    for _ in 0..100 {
        pair.settle();
        let endpoint = &mut pair.hosts[0].endpoint;
        let qp = endpoint.remove_qp(qpn).expect("it is there");
        endpoint.set_ah_path(0, PathState::Resolving, 1024);
        assert!(!endpoint.wants_transmit(), "no packet waits");
        endpoint.insert_qp(qp).expect("its place is free");
    }
    pair.settle();
    pair.hosts[0].endpoint.set_ah_path(0, PathState::Ready(path), 1024);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn the_longest_message_fits_the_current_path() {
    let mut pair = Pair::new(settings());
    let (path, data) = (pair.path(0), [sge(0, 512)]);
    pair.hosts[0].endpoint.set_ah_path(AH, PathState::Ready(path), 256);
    pair.hosts[0].post(&send(&pair, 1, &data));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalLength)]);
}

#[test]
fn a_wire_without_room_is_waited_for() {
    let mut pair = Pair::new(settings());
    let (data, now) = ([sge(0, 10)], pair.now);
    let work = SendWork {
        flags: send_flags::INLINE | send_flags::SIGNALED,
        data: WorkData::Inline(b"in"),
        ..send(&pair, 1, &data)
    };
    let host = &mut pair.hosts[0];
    host.nic.room = 0;
    host.post(&work);
    host.endpoint.poll_transmit(now, 32, &mut host.app, &mut host.nic);
    assert!(host.take().is_empty());
    host.nic.room = 1;
    host.endpoint.poll_transmit(now, 32, &mut host.app, &mut host.nic);
    assert_eq!((host.take(), host.nic.frames.len()), (vec![(1, Status::Success)], 1));
}

#[test]
fn a_rate_holds_it_back() {
    let mut pair = Pair::new(settings());
    modify(
        &mut pair,
        0,
        attribute::RATE_LIMIT,
        &QpAttributes { rate_limit_kbit_per_s: 8000, ..QpAttributes::default() },
    );
    let (begin, data) = (pair.now, [sge(0, 1000)]);
    for wr_id in 0..50 {
        pair.hosts[0].post(&send(&pair, wr_id, &data));
    }
    assert!(pair.run(Nanos::from_millis(10_000), no_fault));
    assert_eq!(pair.hosts[0].take().len(), 50);
    let took = (pair.now - begin).0;
    assert!((50_000_000..60_000_000).contains(&took), "50 kB at 1 MB/s took {took} ns");
}

#[test]
fn no_datagram_is_taken_before_rtr_and_none_sent_before_rts() {
    let mut pair = Pair::unconnected(settings());
    let qpn = pair.hosts[1].qpn;
    let init = QpAttributes { state: state::INIT, qkey: OUR_QKEY, ..QpAttributes::default() };
    let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY;
    modify(&mut pair, 1, mask, &init);
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"x"), Disposition::Dropped(DropReason::WrongState));
    modify(&mut pair, 1, attribute::STATE, &QpAttributes { state: state::RTR, ..QpAttributes::default() });
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"x"), Disposition::Accepted);
    assert_eq!(pair.hosts[1].endpoint.query_qp(qpn).map(|now| (now.qkey, now.path_resolving)), Some((OUR_QKEY, 0)));
}
