//! Messages of unknown peers that have seen a connection being made, and of hosts that use the
//! address of its peer, in each state of a connection.

use std::{iter::from_fn, time::Duration};

use roced_cm::{
    CmEvent, CmState, ConnectionManager, FindService, PeerAddress, ServiceAnswer,
    wire::{
        AdditionalInfo, CaGuid, CmMessage, CommId, Drep, Dreq, Mad, Mra, PortSpace, Rej, RejectedMessage, Rep, Req,
        Rtu, ServiceId, SidrRep, TransactionId, reject_reason,
    },
};
use roced_types::{AccountId, Qpn};

use crate::{
    connect, pass,
    world::{SERVICE, acceptance, address, manager, wanted},
};

const NOW: Duration = Duration::from_secs(1);
/// Queue pairs of the connection, of the side that asks and of the other.
const QPNS: [u32; 2] = [99, 77];
/// No host listens there.
const ABSENT: ServiceId = ServiceId::of(PortSpace::Tcp, 9);

fn hosts() -> [ConnectionManager; 2] {
    let mut managers = [manager(0, 31, 10), manager(1, 32, 10)];
    managers[1].listen(SERVICE, 10).expect("free");
    managers
}

/// A connection, confirmed, without events.
fn established() -> ([ConnectionManager; 2], [CommId; 2]) {
    let mut managers = hosts();
    let ids = connect(&mut managers, QPNS[0]);
    managers[0].confirm(ids[0], [0; 224], NOW).expect("it was accepted");
    pass(&mut managers, NOW, |_| false);
    take_events(&mut managers);
    (managers, ids)
}

fn take_events(managers: &mut [ConnectionManager; 2]) {
    managers.iter_mut().for_each(|manager| while manager.poll_event().is_some() {});
}

fn bytes(message: CmMessage) -> Vec<u8> {
    Mad { transaction: TransactionId(7), modifier: 0, message }.to_bytes().into()
}

/// A host in a state, with its number, the peer's (0 if it does not know it), and which of the two
/// it is.
type InState = (ConnectionManager, CommId, CommId, usize);

/// Each state of a connection.
fn states() -> Vec<InState> {
    let of = |managers: [ConnectionManager; 2], ids: [CommId; 2], host: usize| {
        let manager = managers.into_iter().nth(host).expect("two hosts");
        (manager, ids[host], ids[1 - host], host)
    };
    let asked = || {
        let mut managers = hosts();
        let id = managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
        let req = managers[0].poll_transmit().expect("a REQ").mad.to_bytes();
        managers[1].on_datagram(address(1), &req, NOW);
        let other = managers[1].poll_event().expect("a request").id();
        (managers, [id, other])
    };
    let accepted = || {
        let (mut managers, ids) = asked();
        managers[1].accept(ids[1], &acceptance(), NOW).expect("it was requested");
        let rep = managers[1].poll_transmit().expect("a REP").mad.to_bytes();
        managers[0].on_datagram(address(0), &rep, NOW);
        (managers, ids)
    };
    let disconnecting = || {
        let (mut managers, ids) = established();
        managers[0].disconnect(ids[0], NOW).expect("it is connected");
        let dreq = managers[0].poll_transmit().expect("a DREQ").mad.to_bytes();
        managers[1].on_datagram(address(1), &dreq, NOW);
        (managers, ids)
    };
    let over = || {
        let (mut managers, ids) = disconnecting();
        managers[1].disconnect(ids[1], NOW).expect("the peer disconnects");
        pass(&mut managers, NOW, |_| false);
        (managers, ids)
    };
    let patient = || {
        let (mut managers, ids) = accepted();
        let mra = CmMessage::Mra(Mra::new(ids[0], ids[1], RejectedMessage::Rep, 24));
        managers[1].on_datagram(address(1), &bytes(mra), NOW);
        (managers, ids)
    };
    let mut all = Vec::new();
    for host in [0, 1] {
        for (managers, ids) in [asked(), accepted(), established(), disconnecting(), over()] {
            all.push(of(managers, ids, host));
        }
    }
    let (managers, ids) = patient();
    all.push(of(managers, ids, 1));
    all[0].2 = CommId(0);
    for (manager, ..) in &mut all {
        while manager.poll_event().is_some() || manager.poll_transmit().is_some() {}
    }
    let mut seen: Vec<_> = all.iter().filter_map(|(manager, id, ..)| manager.state(*id)).collect();
    seen.dedup();
    assert_eq!(
        seen,
        [
            CmState::ReqSent,
            CmState::RepReceived,
            CmState::Established,
            CmState::DreqSent,
            CmState::TimeWait,
            CmState::ReqReceived,
            CmState::RepSent,
            CmState::Established,
            CmState::DreqReceived,
            CmState::TimeWait,
            CmState::MraRepReceived,
        ]
    );
    all
}

/// Every answer about a connection, from `local` to `remote`, the host's own queue pair `qpn`.
fn answers(local: CommId, remote: CommId, host: usize, qpn: u32) -> Vec<CmMessage> {
    let mut all = vec![
        CmMessage::Rtu(Rtu { local, remote, private_data: [0; 224] }),
        CmMessage::Dreq(Dreq { local, remote, remote_qpn: Qpn::from_wire(qpn), private_data: [0; 220] }),
        CmMessage::Drep(Drep { local, remote, private_data: [0; 224] }),
    ];
    for message in [RejectedMessage::Req, RejectedMessage::Rep, RejectedMessage::Other] {
        all.push(CmMessage::Mra(Mra::new(local, remote, message, 24)));
        for reason in [reject_reason::CONSUMER_DEFINED, reject_reason::TIMEOUT, reject_reason::STALE_CONNECTION] {
            let info = AdditionalInfo::new(&(100 + 1 - host as u64).to_be_bytes());
            all.push(CmMessage::Rej(Rej { local, remote, message, reason, info, private_data: [0; 148] }));
        }
    }
    all
}

fn rep(local: CommId, remote: CommId) -> CmMessage {
    CmMessage::Rep(Rep {
        local,
        remote,
        qkey: 0,
        qpn: Qpn::from_wire(QPNS[1]),
        eecn: 0,
        ece_vendor: 0,
        starting_psn: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca: CaGuid(101),
        private_data: [0; 196],
    })
}

fn found(request: CommId) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request,
        status: 0,
        ece_vendor: 0,
        qpn: Qpn::from_wire(5),
        service_id: SERVICE,
        qkey: 1,
        info: AdditionalInfo::NONE,
        private_data: [0; 136],
    })
}

/// Gives a message to a host; nothing of its connection may change.
fn changes_nothing(manager: &mut ConnectionManager, id: CommId, from: PeerAddress, message: CmMessage) {
    let before = (manager.state(id), manager.queue_pairs(id), manager.poll_timeout(), manager.len());
    manager.on_datagram(from, &bytes(message), NOW);
    let after = (manager.state(id), manager.queue_pairs(id), manager.poll_timeout(), manager.len());
    assert_eq!(before, after, "{message:?}");
    assert_eq!(manager.poll_event(), None, "{message:?}");
    let sent: Vec<_> = from_fn(|| manager.poll_transmit()).collect();
    assert!(sent.len() <= 1 && sent.iter().all(|transmit| transmit.to == from), "{message:?}: {sent:?}");
}

/// With both numbers, as one that has seen the exchange.
#[test]
fn another_address_with_the_right_numbers_changes_nothing_in_any_state() {
    for (mut manager, id, other, host) in states() {
        let unknown_peer = PeerAddress { remote: [9; 16], ..address(host) };
        let other = if other == CommId(0) { CommId(0x1234_5678) } else { other };
        let mut forged = answers(other, id, host, QPNS[host]);
        forged.extend([rep(other, id), found(id)]);
        for message in forged {
            let before = manager.counters().clone();
            changes_nothing(&mut manager, id, unknown_peer, message);
            let after = manager.counters();
            assert_eq!(
                (after.other_peer, after.unknown),
                (before.other_peer + 1, before.unknown),
                "{:?}: {message:?}",
                manager.state(id)
            );
        }
    }
}

/// In the name of the peer, with one of both numbers.
#[test]
fn one_number_is_not_enough_in_any_state() {
    for (mut manager, id, other, host) in states() {
        let peer = address(host);
        let wrong = |number: CommId| CommId(number.0 ^ 1);
        let mut forged = answers(other, wrong(id), host, QPNS[host]);
        forged.extend([rep(other, wrong(id)), found(wrong(id)), found(id)]);
        if other != CommId(0) {
            forged.extend(answers(wrong(other), id, host, QPNS[host]));
            forged.push(rep(wrong(other), id));
            // Both, but for another queue pair.
            let remote_qpn = Qpn::from_wire(QPNS[host] ^ 1);
            forged.push(CmMessage::Dreq(Dreq { local: other, remote: id, remote_qpn, private_data: [0; 220] }));
        }
        // A peer that does not know the number of a request gives up by its own.
        let is_early = host == 1
            && matches!(manager.state(id), Some(CmState::ReqReceived | CmState::RepSent | CmState::MraRepReceived));
        if !is_early {
            forged.extend(answers(other, CommId(0), host, QPNS[host]));
        }
        for message in forged {
            changes_nothing(&mut manager, id, peer, message);
        }
    }
}

/// Of both ends: a question that was sent, one that waits for the program, and an answered one.
#[test]
fn a_question_for_a_datagram_service_is_changed_by_no_other_message() {
    let service_id = ServiceId::of(PortSpace::Udp, 9);
    let [mut asking, mut asked] = hosts();
    asked.listen(service_id, 10).expect("free");
    let service =
        FindService { peer: address(0), account: AccountId(0), service_id, pkey: 0xffff, private_data: [0; 216] };
    let question = asking.find_service(&service, NOW).expect("there is room");
    let req = asking.poll_transmit().expect("a SIDR_REQ").mad;
    asked.on_datagram(address(1), &req.to_bytes(), NOW);
    let request = asked.poll_event().expect("a request").id();
    let unknown_peer = |host| PeerAddress { remote: [9; 16], ..address(host) };
    let all = |local, remote, host| answers(local, remote, host, 0).into_iter().chain([rep(local, remote)]);
    for local in [CommId(0), CommId(5), question] {
        for message in all(local, question, 0) {
            changes_nothing(&mut asking, question, address(0), message);
        }
        for is_answered in [false, true] {
            for message in all(local, request, 1).chain([found(request)]) {
                changes_nothing(&mut asked, request, address(1), message);
            }
            if !is_answered && local == question {
                let refusal = ServiceAnswer::refusal(2);
                asked.answer_service(request, &refusal, NOW).expect("it was requested");
                assert!(asked.poll_transmit().is_some());
            }
        }
    }
    changes_nothing(&mut asking, question, unknown_peer(0), found(question));
    changes_nothing(&mut asking, question, address(0), found(CommId(question.0 ^ 1)));
    asking.on_datagram(address(0), &bytes(found(question)), NOW);
    assert!(matches!(asking.poll_event(), Some(CmEvent::ServiceFound { id, .. }) if id == question));
}

/// A request for the queue pair of a connection is all that the peer of a restarted host sees of
/// that. Any host can send one: a queue pair number is guessed soon. The peer decides.
#[test]
fn a_forged_request_ends_no_connection_that_the_peer_has() {
    for (at, qpn) in [(1, QPNS[0]), (0, QPNS[1])] {
        let (mut managers, ids) = established();
        let mut forger = manager(1 - at as u64, 33, 10);
        for service in [SERVICE, ABSENT] {
            forger.connect(&wanted(service, qpn), NOW).expect("there is room");
            let forged = forger.poll_transmit().expect("a REQ").mad.to_bytes();
            managers[at].on_datagram(address(at), &forged, NOW);
        }
        let mut now = NOW;
        for _ in 0..600 {
            pass(&mut managers, now, |_| false);
            now += Duration::from_millis(100);
            managers.iter_mut().for_each(|manager| manager.on_timeout(now));
        }
        for host in [0, 1] {
            assert_eq!(managers[host].poll_event(), None, "host {host} of a request to {at}");
            assert_eq!(managers[host].state(ids[host]), Some(CmState::Established));
            assert_eq!(managers[host].poll_timeout(), None, "nothing is repeated any more");
        }
    }
}

/// Nor an attempt that is under way.
#[test]
fn a_forged_request_ends_no_attempt_that_the_peer_has() {
    let mut managers = hosts();
    let [active, passive] = connect(&mut managers, QPNS[0]);
    take_events(&mut managers);
    let mut forger = manager(0, 34, 10);
    forger.connect(&wanted(ABSENT, QPNS[0]), NOW).expect("there is room");
    let forged = forger.poll_transmit().expect("a REQ").mad.to_bytes();
    managers[1].on_datagram(address(1), &forged, NOW);
    pass(&mut managers, NOW, |_| false);
    managers[0].confirm(active, [0; 224], NOW).expect("it was accepted");
    pass(&mut managers, NOW, |_| false);
    assert_eq!(managers[1].poll_event(), Some(CmEvent::Established { id: passive }));
}

/// A peer that asks and has not heard our number says of the question that it has no such
/// connection, as Linux does: it has time for the next REP.
#[test]
fn an_attempt_of_which_the_answer_was_lost_outlives_a_forged_request() {
    let mut managers = hosts();
    let id = managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
    pass(&mut managers, NOW, |_| false);
    let passive = managers[1].poll_event().expect("a request").id();
    managers[1].accept(passive, &acceptance(), NOW).expect("it was requested");
    pass(&mut managers, NOW, |message| matches!(message, CmMessage::Rep(_)));
    let mut forger = manager(0, 36, 10);
    forger.connect(&wanted(ABSENT, QPNS[0]), NOW).expect("there is room");
    managers[1].on_datagram(address(1), &forger.poll_transmit().expect("a REQ").mad.to_bytes(), NOW);
    let question = from_fn(|| managers[1].poll_transmit()).find(|it| matches!(it.mad.message, CmMessage::Dreq(_)));
    let CmMessage::Dreq(dreq) = question.expect("a question").mad.message else { unreachable!("found") };
    let drep = Drep { local: dreq.remote, remote: dreq.local, private_data: [0; 224] };
    managers[1].on_datagram(address(1), &bytes(CmMessage::Drep(drep)), NOW);
    let now = NOW + Duration::from_secs(1);
    managers.iter_mut().for_each(|manager| manager.on_timeout(now));
    pass(&mut managers, now, |_| false);
    assert!(matches!(managers[0].poll_event(), Some(CmEvent::Accepted { id: accepted, .. }) if accepted == id));
    managers[0].confirm(id, [0; 224], now).expect("it was accepted");
    pass(&mut managers, now, |_| false);
    assert_eq!(managers[1].poll_event(), Some(CmEvent::Established { id: passive }));
}

/// The same of which the answer comes after the peer's confirmation: it was about the attempt.
#[test]
fn a_late_answer_to_a_question_ends_no_connection_that_the_peer_has_confirmed_since() {
    for by_data in [false, true] {
        let mut managers = hosts();
        let active = managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
        pass(&mut managers, NOW, |_| false);
        let passive = managers[1].poll_event().expect("a request").id();
        managers[1].accept(passive, &acceptance(), NOW).expect("it was requested");
        pass(&mut managers, NOW, |message| matches!(message, CmMessage::Rep(_)));
        let mut forger = manager(0, 39, 10);
        forger.connect(&wanted(ABSENT, QPNS[0]), NOW).expect("there is room");
        managers[1].on_datagram(address(1), &forger.poll_transmit().expect("a REQ").mad.to_bytes(), NOW);
        let now = NOW + Duration::from_secs(1);
        managers.iter_mut().for_each(|manager| manager.on_timeout(now));
        pass(&mut managers, now, |_| false);
        managers[0].confirm(active, [0; 224], now).expect("it was accepted");
        // By its confirmation, or by its first data.
        pass(&mut managers, now, |_| by_data);
        if by_data {
            managers[1].establish(passive).expect("it was accepted");
        }
        take_events(&mut managers);
        // Of a host that did not know its peer's number when it was asked.
        let drep = Drep { local: active, remote: passive, private_data: [0; 224] };
        managers[1].on_datagram(address(1), &bytes(CmMessage::Drep(drep)), now);
        assert_eq!((managers[1].poll_event(), managers[1].poll_transmit()), (None, None));
        assert_eq!(managers[1].state(passive), Some(CmState::Established));
    }
}

/// One that has forgotten it is given up soon.
#[test]
fn an_attempt_that_the_peer_has_forgotten_is_given_up_soon() {
    let mut managers = hosts();
    let [_, passive] = connect(&mut managers, QPNS[0]);
    take_events(&mut managers);
    managers[0] = manager(0, 37, 10);
    let mut now = NOW;
    managers[0].connect(&wanted(ABSENT, QPNS[0]), now).expect("there is room");
    for _ in 0..120 {
        pass(&mut managers, now, |_| false);
        now += Duration::from_millis(100);
        managers.iter_mut().for_each(|manager| manager.on_timeout(now));
    }
    assert!(managers[1].poll_event().is_some_and(|event| event.id() == passive), "told within 12 s");
}

/// Some hosts answer each DREQ so, also about a connection that they have: both ends are told.
#[test]
fn a_peer_that_answers_the_question_is_disconnected_properly() {
    let (mut managers, [active, passive]) = established();
    let mut forger = manager(0, 38, 10);
    forger.connect(&wanted(ABSENT, QPNS[0]), NOW).expect("there is room");
    managers[1].on_datagram(address(1), &forger.poll_transmit().expect("a REQ").mad.to_bytes(), NOW);
    while managers[1].poll_transmit().is_some() {}
    let drep = Drep { local: active, remote: passive, private_data: [0; 224] };
    managers[1].on_datagram(address(1), &bytes(CmMessage::Drep(drep)), NOW);
    pass(&mut managers, NOW, |_| false);
    assert_eq!(managers[0].poll_event(), Some(CmEvent::Disconnected { id: active, timed_out: false }));
    managers[0].disconnect(active, NOW).expect("the peer disconnects");
    pass(&mut managers, NOW, |_| false);
    assert_eq!(managers[1].poll_event(), Some(CmEvent::Disconnected { id: passive, timed_out: false }));
}

/// A host that has ended the connection, and of which all DREQs were lost, asks for another one.
#[test]
fn a_connection_that_the_peer_has_ended_is_in_doubt_no_longer_than_its_question() {
    let (mut managers, [active, passive]) = established();
    managers[0].disconnect(active, NOW).expect("established");
    let mut now = NOW;
    while managers[0].state(active) == Some(CmState::DreqSent) {
        pass(&mut managers, now, |message| matches!(message, CmMessage::Dreq(_)));
        now += Duration::from_millis(100);
        managers[0].on_timeout(now);
    }
    assert_eq!(managers[0].state(active), Some(CmState::TimeWait));
    take_events(&mut managers);
    managers[0].connect(&wanted(SERVICE, QPNS[0]), now).expect("there is room");
    pass(&mut managers, now, |_| false);
    assert_eq!(managers[1].poll_event(), Some(CmEvent::Disconnected { id: passive, timed_out: false }));
}

/// The question, or its answer, is lost.
#[test]
fn a_forgotten_connection_ends_although_datagrams_are_lost() {
    for lost in 0..4 {
        let (mut managers, [_, passive]) = established();
        managers[0] = manager(0, 35, 10);
        managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
        let (mut now, mut nth) = (NOW, 0);
        for _ in 0..50 {
            while let Some((host, transmit)) = (0..2).find_map(|host| Some((host, managers[host].poll_transmit()?))) {
                let ends = matches!(transmit.mad.message, CmMessage::Dreq(_) | CmMessage::Drep(_));
                nth += usize::from(ends);
                if !ends || nth > lost {
                    managers[1 - host].on_datagram(address(1 - host), &transmit.mad.to_bytes(), now);
                }
            }
            now += Duration::from_millis(100);
            managers.iter_mut().for_each(|manager| manager.on_timeout(now));
        }
        assert_eq!(managers[1].poll_event(), Some(CmEvent::Disconnected { id: passive, timed_out: false }), "{lost}");
    }
}

/// Each of these is an answer that any host can have sent to any other, as often as it likes.
#[test]
fn answers_to_forged_messages_are_marked_for_a_bound() {
    let marks = |manager: &mut ConnectionManager, from, message: CmMessage| -> Vec<bool> {
        manager.on_datagram(from, &bytes(message), NOW);
        from_fn(|| manager.poll_transmit()).map(|transmit| transmit.is_bounded).collect()
    };
    let (mut managers, [active, passive]) = established();
    let victim = PeerAddress { remote: [9; 16], ..address(1) };
    let forged = answers(CommId(5), passive, 1, QPNS[1]).into_iter().chain([rep(CommId(5), passive)]);
    for message in forged {
        let sent = marks(&mut managers[1], victim, message);
        assert!(sent.iter().all(|is_bounded| *is_bounded), "about a connection of another peer: {message:?}");
    }
    let dreq = |local, remote| {
        CmMessage::Dreq(Dreq { local, remote, remote_qpn: Qpn::from_wire(QPNS[1]), private_data: [0; 220] })
    };
    assert_eq!(marks(&mut managers[1], address(1), dreq(CommId(5), passive)), [true], "a wrong number");
    assert_eq!(marks(&mut managers[1], address(1), dreq(active, CommId(5))), [true]);
    // The end of a connection is told, and once more for each repetition.
    managers[1].on_datagram(address(1), &bytes(dreq(active, passive)), NOW);
    managers[1].disconnect(passive, NOW).expect("the peer disconnects");
    assert_eq!(managers[1].poll_transmit().map(|transmit| transmit.is_bounded), Some(false));
    assert_eq!(marks(&mut managers[1], address(1), dreq(active, passive)), [true]);
    // The question whether the peer has forgotten, and its repetitions.
    let (mut managers, _) = established();
    managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
    let req = managers[0].poll_transmit().expect("a REQ").mad.message;
    let mut sent = marks(&mut managers[1], address(1), req);
    for tenth in 1..100 {
        managers[1].on_timeout(NOW + Duration::from_millis(100) * tenth);
        sent.extend(from_fn(|| managers[1].poll_transmit()).map(|transmit| transmit.is_bounded));
    }
    assert_eq!(sent, [true; 5], "a REJ and four questions");
    // A request, and its repetition before and after it was refused.
    let mut managers = hosts();
    managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
    let req = managers[0].poll_transmit().expect("a REQ");
    assert!(!req.is_bounded);
    assert_eq!(marks(&mut managers[1], address(1), req.mad.message), []);
    assert_eq!(marks(&mut managers[1], address(1), req.mad.message), [true]);
    let id = managers[1].poll_event().expect("a request").id();
    managers[1].reject(id, AccountId(0), reject_reason::CONSUMER_DEFINED, [0; 148], NOW).expect("it was requested");
    assert_eq!(managers[1].poll_transmit().map(|transmit| transmit.is_bounded), Some(false));
    assert_eq!(marks(&mut managers[1], address(1), req.mad.message), [true]);
}

/// A host that does not exist asks, and names the longest times. What it costs the one with its
/// address.
#[test]
fn an_unconfirmed_request_causes_a_bounded_number_of_datagrams() {
    for destroyed_after in [None, Some(Duration::from_secs(5)), Some(Duration::from_secs(268))] {
        let mut managers = hosts();
        managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
        let CmMessage::Req(req) = managers[0].poll_transmit().expect("a REQ").mad.message else { panic!("a REQ") };
        let longest = CmMessage::Req(Req { local_response_timeout: 31, max_cm_retries: 15, ..req });
        let passive = &mut managers[1];
        passive.on_datagram(address(1), &bytes(longest), NOW);
        let id = passive.poll_event().expect("a request").id();
        passive.accept(id, &acceptance(), NOW).expect("it was requested");
        let mut sent = 0;
        for second in 0..1000 {
            let now = NOW + Duration::from_secs(second);
            if destroyed_after.is_some_and(|after| after.as_secs() == second) {
                passive.destroy(id, now).expect("it is there");
            }
            passive.on_timeout(now);
            sent += from_fn(|| passive.poll_transmit()).count();
        }
        // Every 4 s for 268 s, and again after its end.
        let most = if destroyed_after.is_some() { 2 * 72 } else { 72 + 6 };
        assert!((60..=most).contains(&sent), "{destroyed_after:?}: {sent} datagrams");
        assert!(passive.is_empty());
    }
}

/// The log would blame the program for its backlog.
#[test]
fn a_request_without_a_number_is_discarded() {
    let mut managers = hosts();
    managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
    let CmMessage::Req(req) = managers[0].poll_transmit().expect("a REQ").mad.message else { panic!("a REQ") };
    for local in [CommId(0), req.local] {
        managers[1].on_datagram(address(1), &bytes(CmMessage::Req(Req { local, ..req })), NOW);
        assert_eq!((managers[1].poll_refused(), managers[1].poll_transmit()), (None, None));
    }
    let counters = managers[1].counters();
    assert_eq!((counters.discarded, counters.no_room, managers[1].len()), (1, 0, 1));
}

/// It would be refused as stale, because no connection has number 0.
#[test]
fn an_acceptance_without_a_number_is_discarded() {
    let mut managers = hosts();
    let id = managers[0].connect(&wanted(SERVICE, QPNS[0]), NOW).expect("there is room");
    assert!(managers[0].poll_transmit().is_some(), "a REQ");
    managers[0].on_datagram(address(0), &bytes(rep(CommId(0), id)), NOW);
    assert_eq!((managers[0].poll_transmit(), managers[0].counters().discarded), (None, 1));
    managers[0].on_datagram(address(0), &bytes(rep(CommId(5), id)), NOW);
    assert_eq!(managers[0].state(id), Some(CmState::RepReceived));
}
