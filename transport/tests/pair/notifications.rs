//! Congestion notification packets (CNPs, annex A17.9): marked data causes one an interval,
//! anything else none; received ones are checked, and harm no connection.

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    congestion::notification::{
        BYTES_PER_NOTIFICATION, NOTIFICATION_BURST, NOTIFICATION_BYTES, NotificationConfig, NotificationCount,
    },
    counters::QpCount,
    denied_sources::GidPrefix,
    endpoint::{Endpoint, EndpointConfig},
    io::Egress,
    partition::Partitions,
    psn::Psn,
    qp::{PathState, Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{
        Aeth, Deth, Path, PathSpec, Roce, Syndrome, Vlan,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
        parse,
        reth::Reth,
    },
    work::{DatagramTo, SendWork},
};
use roced_types::{EndpointId, QpAttributes, Qpn, SendOp, Status, attribute, gid_of, state};

use crate::{
    fate::mark,
    host::{AH, Application, CQ, Fate, KEY, Nic, OUR_QKEY, PD, Pair, SIZES, Settings, VA, sge, work},
};

const INTERVAL: Nanos = Nanos::from_micros(50);

/// A pair at a whole microsecond: the clock of notifications has no parts.
fn rc() -> Pair {
    let mut pair = Pair::established(Settings::default());
    pair.now = Nanos(pair.now.0.next_multiple_of(1000));
    pair
}

/// Headers of a packet for host 1, `ahead` of the first PSN.
fn headers(pair: &Pair, opcode: Opcode, ahead: u32) -> Headers {
    Headers::new(Bth::new(opcode, pair.hosts[1].qpn, Psn::new(pair.settings.psn).plus(ahead)))
}

/// Headers of a WRITE in one packet for host 1.
fn write(pair: &Pair, ahead: u32, bytes: usize) -> Headers {
    let reth = Reth { va: VA + 500_000, rkey: KEY, length: bytes as u32 };
    Headers { reth: Some(reth), ..headers(pair, opcode::RC_WRITE_ONLY, ahead) }
}

/// Host 1 gets that packet, marked.
fn give_marked(pair: &mut Pair, headers: &Headers, payload: &[u8]) -> Disposition {
    let mut frame = pair.frame(0, headers, payload);
    mark(&mut frame);
    pair.deliver(1, &frame)
}

/// Host 1 gets a marked WRITE of 8 bytes.
fn give_marked_write(pair: &mut Pair, ahead: u32) {
    assert_eq!(give_marked(pair, &write(pair, ahead, 8), &[7; 8]), Disposition::Accepted);
}

/// Opcodes of the frames that host `at` sends now.
fn sends(pair: &mut Pair, at: usize) -> Vec<Opcode> {
    let (now, host) = (pair.now, &mut pair.hosts[at]);
    host.endpoint.poll_transmit(now, 64, &mut host.app, &mut host.nic);
    let frames: Vec<_> = host.nic.frames.drain(..).collect();
    frames.iter().map(|frame| parse(&[&frame[..]]).expect("whole").bth.opcode).collect()
}

fn counted(pair: &Pair, at: usize) -> [u64; 4] {
    use NotificationCount::{Ignored, Marked, Sent, Suppressed};
    let counters = pair.hosts[at].endpoint.notification_counters();
    [Marked, Sent, Suppressed, Ignored].map(|what| counters.get(what))
}

fn notifications(pair: &mut Pair, at: usize) -> usize {
    sends(pair, at).into_iter().filter(|opcode| *opcode == opcode::CNP).count()
}

/// The frame, from 10.0.0.2 to 10.0.0.1, UDP source port 0xc000, queue pair 0xd2. Its bytes, ICRC
/// included, were made by another program.
#[test]
fn notification_has_the_bytes_of_the_annex() {
    const IP: &str = "45c0003c00004000401125ef0a0000020a000001c00012b7002800008100ffff400000d200000000\
                      00000000000000000000000000000000ea37a322";
    let wanted: Vec<u8> = (0..IP.len()).step_by(2).map(|at| u8::from_str_radix(&IP[at..at + 2], 16).unwrap()).collect();
    let gid = |address: &str| gid_of(address.parse().expect("an address"));
    let (own, peer) = (gid("10.0.0.2"), gid("10.0.0.1"));
    let spec = PathSpec {
        via: Egress::Nic { flow: 1 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: own,
        destination: peer,
        traffic_class: 26 << 2 | 2,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    };
    let qpn = Qpn::new(EndpointId::new(1).expect("small"), 3);
    let (mut endpoint, mut app, mut nic) = (
        one_uc(qpn, 0xd2, peer, &spec),
        Application::default(),
        Nic { room: 64, ahead_max: usize::MAX, ..Nic::default() },
    );
    app.memory = vec![0; 64];
    let frame = marked_send(&PathSpec { source: peer, destination: own, ..spec }, qpn);
    endpoint.on_frame(Nanos(1), &[&frame], &mut app);
    endpoint.poll_transmit(Nanos(2), 8, &mut app, &mut nic);
    let sent = nic.frames.pop_front().expect("a notification");
    assert_eq!((sent.len(), &sent[14..]), (74, &wanted[..]));
    assert!(nic.frames.is_empty());
}

/// An endpoint with one unreliable connection.
fn one_uc(qpn: Qpn, dest_qpn: u32, dgid: [u8; 16], path: &PathSpec) -> Endpoint {
    let mut endpoint = Endpoint::new(EndpointConfig {
        id: qpn.endpoint(),
        max_mrs: 1,
        max_ahs: 1,
        max_srqs: 0,
        max_attachments: 0,
        max_qps: 4,
        total_window_packets: 64,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    });
    let qp = Qp::new(QpConfig {
        qpn,
        service: ServiceType::Uc,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        sizes: SIZES,
        signal_all: false,
        window_packets: 64,
        credits: false,
    });
    endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("free");
    use attribute::*;
    let attributes = QpAttributes { path_mtu_bytes: 1024, dest_qpn, dgid, ..QpAttributes::default() };
    let path = Path::new(path).expect("one address family");
    for (state, mask, path) in [
        (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
        (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN, Some(PathState::Ready(path))),
    ] {
        endpoint.modify_qp(qpn, STATE | mask, &QpAttributes { state, ..attributes }, path).expect("all attributes");
    }
    endpoint
}

/// A marked SEND of four bytes by an unreliable connection.
fn marked_send(spec: &PathSpec, to: Qpn) -> Vec<u8> {
    let path = Path::new(&PathSpec { traffic_class: 3, ..*spec }).expect("one address family");
    let headers = Headers::new(Bth::new(opcode::UC_SEND_ONLY, to, Psn::new(0)));
    let mut frame = vec![0; path.frame_bytes(&headers, 4)];
    let filled = path.fill(&mut roced_transport::io::FrameMut::single(&mut frame), &headers, 4, |piece| {
        piece.fill(9);
        Ok(())
    });
    filled.expect("filled");
    frame
}

/// IPv6 and VLAN: the class of the path is replaced, and nothing else of its headers.
#[test]
fn notification_has_its_own_class_and_priority() {
    let gid = |address: &str| gid_of(address.parse().expect("an address"));
    for (own, peer) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let spec = PathSpec {
            via: Egress::Nic { flow: 1 },
            source_mac: [2; 6],
            dest_mac: [4; 6],
            vlan: Some(Vlan { id: 0xabc, priority: 3, rx_stripped: true }),
            source: gid(own),
            destination: gid(peer),
            traffic_class: 0xff,
            hop_limit: 17,
            flow_label: 0xf_edcb,
            roce: Roce::V2 { udp_source_port: 0xc123 },
        };
        let with = |traffic_class, priority| {
            let vlan = Some(Vlan { id: 0xabc, priority, rx_stripped: true });
            Path::new(&PathSpec { traffic_class, vlan, ..spec }).expect("one address family")
        };
        let path = Path::new(&spec).expect("one address family").with_class(48 << 2, 6);
        let headers = Headers::new(Bth::new(opcode::CNP, Qpn::from_wire(9), Psn::new(0)));
        let built = |path: &Path| {
            let mut frame = vec![0; path.frame_bytes(&headers, 0)];
            path.fill(&mut roced_transport::io::FrameMut::single(&mut frame), &headers, 0, |_| Ok(())).expect("filled");
            frame
        };
        assert_eq!(built(&path), built(&with(48 << 2, 6)), "{own}");
    }
}

#[test]
fn marked_data_causes_one_notification_an_interval() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let mut pair = Pair::new(Settings { service, ..Settings::default() });
        let packet = |pair: &Pair, ahead| match service {
            ServiceType::Rc => write(pair, ahead, 8),
            _ => Headers {
                bth: Bth { opcode: opcode::UC_WRITE_ONLY, ..write(pair, ahead, 8).bth },
                ..write(pair, ahead, 8)
            },
        };
        let mut sent = Vec::new();
        for ahead in 0..200 {
            let headers = packet(&pair, ahead);
            assert_eq!(give_marked(&mut pair, &headers, &[7; 8]), Disposition::Accepted);
            if notifications(&mut pair, 1) > 0 {
                sent.push(pair.now);
            }
            pair.now = pair.now + Nanos::from_micros(3);
        }
        assert_eq!(sent[0], Nanos::from_millis(1), "the first mark is told at once");
        assert!(sent.windows(2).all(|two| two[1].0 - two[0].0 == 51_000), "{sent:?}");
        assert_eq!(counted(&pair, 1), [200, sent.len() as u64, 0, 0], "{service:?}");
        // Without new marks there is no new notification.
        pair.now = pair.now + INTERVAL + INTERVAL;
        assert_eq!(notifications(&mut pair, 1), 0);
    }
}

/// The receiver of the data asks for it here, and its queue pair is told by the other's number.
#[test]
fn marked_read_responses_notify_the_responder() {
    let mut pair = rc();
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 4000)], 100_000));
    let marked = |from, opcode: Opcode, _| {
        let is_response = opcode.info().expect("known").operation == Operation::ReadResponse;
        if from == 1 && is_response { Fate::Mark } else { Fate::Deliver }
    };
    assert!(pair.run(Nanos::from_millis(50), marked));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(counted(&pair, 0), [4, 1, 0, 0]);
    assert_eq!(counted(&pair, 1), [0, 0, 0, 1]);
    assert_eq!(pair.hosts[1].last.last(), Some(&Disposition::Accepted));
}

/// ACKs, NAKs, requests and answers without a part of a message, and notifications.
#[test]
fn marks_on_other_packets_are_only_counted() {
    let mut pair = rc();
    let everything = |_, opcode: Opcode, _| {
        let carries = opcode.info().expect("known").payload;
        if carries { Fate::Deliver } else { Fate::Mark }
    };
    pair.hosts[1].post_recv(7, &[sge(100_000, 8000)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(3, 5001)], 0));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(9, 5001)], 300_000));
    pair.hosts[0].post(&work(3, SendOp::FetchAdd, &[sge(500_000, 8)], 500_008));
    assert!(pair.run(Nanos::from_millis(50), everything));
    assert!(counted(&pair, 0)[0] >= 1 && counted(&pair, 1)[0] >= 2, "an ATOMIC ACK, a READ request and an atomic one");
    assert_eq!(pair.sent(0, Operation::Cnp) + pair.sent(1, Operation::Cnp), 0);
    // A request of no bytes is a question.
    let marked = counted(&pair, 1)[0];
    let question = Headers { bth: Bth { ack_request: true, ..write(&pair, 0, 0).bth }, ..write(&pair, 0, 0) };
    give_marked(&mut pair, &question, &[]);
    // A notification that is marked on its way is not answered by another one.
    let notification = Headers::new(Bth { becn: true, ..headers(&pair, opcode::CNP, 0).bth });
    assert_eq!(give_marked(&mut pair, &notification, &[]), Disposition::Accepted);
    let ack = Aeth { syndrome: Syndrome::ACK, msn: 0 };
    let ack = Headers { aeth: Some(ack), ..headers(&pair, opcode::RC_ACK, 0) };
    give_marked(&mut pair, &ack, &[]);
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)[0]), (0, marked + 3));
}

#[test]
fn marks_on_datagrams_are_only_counted() {
    let mut pair = Pair::new(Settings { service: ServiceType::Ud, ..Settings::default() });
    let path = Path::new(&PathSpec { traffic_class: 3, ..pair.path_spec(0) }).expect("one address family");
    pair.hosts[0].endpoint.remove_ah(AH);
    let handle = AhEntry { pd: PD, path: PathState::Ready(path), mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
    pair.hosts[0].endpoint.insert_ah(AH, handle).expect("its number is free");
    pair.hosts[1].post_recv(7, &[sge(0, 2000)]);
    let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
    pair.hosts[0].post(&SendWork { to, ..work(1, SendOp::Send, &[sge(0, 500)], 0) });
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    assert_eq!(counted(&pair, 1), [1, 0, 0, 0]);
}

/// Annex A16 has no marks: the traffic class of a GRH says nothing.
#[test]
fn rocev1_has_no_marks() {
    let mut pair = Pair::established(Settings { rocev1: [true; 2], ..Settings::default() });
    give_marked_write(&mut pair, 0);
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [0; 4]));
}

/// Neither does a forged or damaged packet cause a notification, nor is it counted before its ICRC
/// has shown that it is whole.
#[test]
fn refused_packets_cause_no_notification() {
    let mut pair = rc();
    let mut frame = pair.frame(0, &write(&pair, 0, 8), &[7; 8]);
    mark(&mut frame);
    let at = frame.len() - 5;
    frame[at] ^= 1;
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::BadIcrc));
    // An unknown peer.
    let path = pair.path_spec(0);
    let unknown_peer = Path::new(&PathSpec {
        source: {
            let mut gid = path.source;
            gid[15] = 77;
            gid
        },
        ..path
    })
    .unwrap();
    let headers = write(&pair, 0, 0);
    let mut frame = vec![0; unknown_peer.frame_bytes(&headers, 0)];
    let filled = unknown_peer.fill(&mut roced_transport::io::FrameMut::single(&mut frame), &headers, 0, |_| Ok(()));
    filled.expect("filled");
    mark(&mut frame);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::WrongAddress));
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [0; 4]));
    // From another port than the peer's, with a PSN that is not due: it may be forged, and the peer
    // is not told of a mark on it.
    pair.life += 700;
    let forged = write(&pair, 5, 8);
    assert_eq!(give_marked(&mut pair, &forged, &[7; 8]), Disposition::Dropped(DropReason::OtherSourcePort));
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [1, 0, 0, 0]));
}

/// A duplicate went through the same queue, and so did a packet that came before its turn.
#[test]
fn duplicates_and_early_packets_cause_notifications() {
    let mut pair = rc();
    let first = write(&pair, 0, 8);
    let frame = pair.frame(0, &first, &[7; 8]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(give_marked(&mut pair, &first, &[7; 8]), Disposition::Dropped(DropReason::Duplicate));
    assert_eq!(notifications(&mut pair, 1), 1);
    pair.now = pair.now + INTERVAL;
    let early = write(&pair, 3, 8);
    assert_eq!(give_marked(&mut pair, &early, &[7; 8]), Disposition::Buffered);
    assert_eq!(notifications(&mut pair, 1), 1);
    // When its turn comes it is not marked once more.
    pair.now = pair.now + INTERVAL;
    for ahead in [1, 2] {
        let frame = pair.frame(0, &write(&pair, ahead, 8), &[7; 8]);
        assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    }
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [2, 2, 0, 0]));
}

/// Refused packets with data are answered as well: the peer sent them, and can send fewer.
#[test]
fn packets_out_of_their_turn_and_without_a_receive_cause_notifications() {
    let recovery = [RecoveryConfig::GO_BACK_N; 2];
    let mut pair = Pair::established(Settings { recovery, ..Settings::default() });
    let early = write(&pair, 3, 8);
    assert_eq!(give_marked(&mut pair, &early, &[7; 8]), Disposition::Dropped(DropReason::OutOfSequence));
    assert_eq!(notifications(&mut pair, 1), 1);
    let mut pair = rc();
    let send = headers(&pair, opcode::RC_SEND_ONLY, 0);
    assert_eq!(give_marked(&mut pair, &send, &[7; 8]), Disposition::Dropped(DropReason::ReceiverNotReady));
    assert_eq!(notifications(&mut pair, 1), 1);
    let room = RecoveryConfig { out_of_order_packets: 0, ..RecoveryConfig::default() };
    let mut pair = Pair::established(Settings { recovery: [room; 2], ..Settings::default() });
    let early = write(&pair, 3, 8);
    assert_eq!(give_marked(&mut pair, &early, &[7; 8]), Disposition::Dropped(DropReason::OutOfOrderNoBuffer));
    assert_eq!(notifications(&mut pair, 1), 1);
}

/// A queue pair in RTR receives, so that its peer is told; one that has failed, was reset or
/// removed says nothing.
#[test]
fn notifications_are_sent_by_queue_pairs_that_receive() {
    let mut pair = Pair::unconnected(Settings::default());
    pair.connect_one(0);
    let first = write(&pair, 0, 8);
    give_marked(&mut pair, &first, &[7; 8]);
    assert_eq!(counted(&pair, 1), [0; 4], "it has no peer");
    pair.connect_to_rtr(1);
    give_marked_write(&mut pair, 0);
    assert_eq!(notifications(&mut pair, 1), 1);
    let to = |pair: &mut Pair, state| {
        let (qpn, attributes) = (pair.hosts[1].qpn, QpAttributes { state, ..QpAttributes::default() });
        pair.hosts[1].endpoint.modify_qp(qpn, attribute::STATE, &attributes, None).expect("from anywhere");
    };
    for state in [state::ERR, state::RESET] {
        let mut pair = rc();
        give_marked_write(&mut pair, 0);
        to(&mut pair, state);
        assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [1, 0, 0, 0]));
        let second = write(&pair, 1, 8);
        give_marked(&mut pair, &second, &[7; 8]);
        assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (0, [1, 0, 0, 0]));
    }
    // The next life has another peer.
    let mut pair = rc();
    give_marked_write(&mut pair, 0);
    to(&mut pair, state::RESET);
    pair.connect_one(1);
    assert_eq!(notifications(&mut pair, 1), 0);
    let mut pair = rc();
    give_marked_write(&mut pair, 0);
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.remove_qp(qpn).expect("there");
    assert_eq!(notifications(&mut pair, 1), 0);
}

/// Data that waits for nothing but its turn is behind it, and a window without room does not hold
/// it up.
#[test]
fn notifications_leave_ahead_of_data() {
    let mut pair = Pair::established(Settings { window: 2, ..Settings::default() });
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 900_000)], 0));
    assert_eq!(sends(&mut pair, 1).len(), 2, "the window is full");
    give_marked_write(&mut pair, 0);
    assert_eq!(sends(&mut pair, 1)[0], opcode::CNP);
    let mut pair = rc();
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 9000)], 0));
    give_marked_write(&mut pair, 0);
    let order = sends(&mut pair, 1);
    assert!(order.len() > 2 && order[0] == opcode::CNP && !order[1..].contains(&opcode::CNP), "{order:?}");
}

#[test]
fn notification_waits_for_room_on_the_wire() {
    let mut pair = rc();
    pair.hosts[1].nic.room = 0;
    give_marked_write(&mut pair, 0);
    give_marked_write(&mut pair, 1);
    assert_eq!(sends(&mut pair, 1), []);
    pair.now = pair.now + INTERVAL;
    give_marked_write(&mut pair, 2);
    assert_eq!(counted(&pair, 1), [3, 0, 0, 0]);
    pair.hosts[1].nic.room = 64;
    assert_eq!((notifications(&mut pair, 1), counted(&pair, 1)), (1, [3, 1, 0, 0]));
    // The interval counts from there.
    pair.now = pair.now + Nanos(INTERVAL.0 - 1);
    give_marked_write(&mut pair, 3);
    assert_eq!(notifications(&mut pair, 1), 0);
    pair.now = pair.now + Nanos(1);
    give_marked_write(&mut pair, 4);
    assert_eq!(notifications(&mut pair, 1), 1);
}

/// An established pair, of which host 1 has these options.
fn with_notifications(config: NotificationConfig) -> Pair {
    let mut pair = rc();
    pair.hosts[1].endpoint.set_notifications(config);
    pair
}

#[test]
fn options_decide_whether_and_how_peers_are_notified() {
    let peer = rc().hosts[0].gid;
    let default = NotificationConfig::default;
    let few = |config: NotificationConfig| {
        let mut pair = with_notifications(config);
        let mut sent = 0;
        for ahead in 0..20 {
            give_marked_write(&mut pair, ahead);
            sent += notifications(&mut pair, 1);
            pair.now = pair.now + Nanos::from_micros(5);
        }
        assert_eq!(counted(&pair, 1)[0], 20, "marks are counted in any case");
        sent
    };
    assert_eq!(few(default()), 2);
    assert_eq!(few(NotificationConfig { is_enabled: false, ..default() }), 0);
    assert_eq!(few(NotificationConfig { except: [GidPrefix::new(peer, 120)].into(), ..default() }), 0);
    let mut other = peer;
    other[13] ^= 1;
    assert_eq!(few(NotificationConfig { except: [GidPrefix::new(other, 120)].into(), ..default() }), 2);
    assert_eq!(few(NotificationConfig { interval: Nanos(0), ..default() }), 20);
    assert_eq!(few(NotificationConfig { interval: Nanos::from_micros(10), ..default() }), 10);
    let mut pair = with_notifications(NotificationConfig { dscp: 46, ..default() });
    give_marked_write(&mut pair, 0);
    let (now, host) = (pair.now, &mut pair.hosts[1]);
    host.endpoint.poll_transmit(now, 1, &mut host.app, &mut host.nic);
    let frame = host.nic.frames.pop_front().expect("a notification");
    assert_eq!(parse(&[&frame[..]]).expect("whole").traffic_class, 46 << 2);
}

/// Everything is marked, and each packet asks for a notification: in the long run these are an
/// eighth of the bytes received.
#[test]
fn a_flood_of_marks_causes_notifications_of_an_eighth_of_its_bytes() {
    const PACKETS: u32 = 4000;
    let mut pair = with_notifications(NotificationConfig { interval: Nanos(0), ..NotificationConfig::default() });
    let before = pair.hosts[1].count(QpCount::ReceivedPackets);
    let bytes_before = pair.hosts[1].count(QpCount::ReceivedBytes);
    let mut sent = 0;
    for ahead in 0..PACKETS {
        give_marked_write(&mut pair, ahead);
        sent += notifications(&mut pair, 1) as u64;
        pair.now = pair.now + Nanos::from_micros(1);
    }
    let received = pair.hosts[1].count(QpCount::ReceivedPackets) - before;
    assert_eq!(received, PACKETS.into());
    let bytes = received * NOTIFICATION_BYTES + pair.hosts[1].count(QpCount::ReceivedBytes) - bytes_before;
    let most = NOTIFICATION_BURST + bytes / BYTES_PER_NOTIFICATION;
    assert!((most - 1..=most).contains(&sent), "{sent} for {received} packets");
    assert_eq!(counted(&pair, 1), [received, sent, received - sent, 0]);
    // Refused packets add nothing to the budget.
    let again = write(&pair, 0, 8);
    for _ in 0..1000 {
        assert_eq!(give_marked(&mut pair, &again, &[7; 8]), Disposition::Dropped(DropReason::Duplicate));
        assert_eq!(notifications(&mut pair, 1), 0);
    }
}

#[test]
fn a_transfer_with_every_packet_marked_is_whole() {
    for ipv6 in [false, true] {
        let mut pair = Pair::established(Settings { ipv6, ..Settings::default() });
        let length = 300_000;
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, length)], 500_000));
        pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, length)], 600_000));
        assert!(pair.run(Nanos::from_millis(500), |_, _, _| Fate::Mark));
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
        let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
        assert!(here[..length] == there[600_000..600_000 + length]);
        for at in 0..2 {
            let [marked, sent, suppressed, ignored] = counted(&pair, at);
            assert!(marked > 290 && sent > 0 && sent < marked / 8, "{marked} {sent}");
            assert_eq!((suppressed, ignored), (0, counted(&pair, 1 - at)[1]));
            assert_eq!(pair.hosts[at].count(QpCount::RetransmittedPackets), 0);
        }
    }
}

/// Each is dropped under its reason, and a whole one is counted as ignored.
#[test]
fn received_notifications_are_checked() {
    let becn = |pair: &Pair| Headers::new(Bth { becn: true, ..headers(pair, opcode::CNP, 12_345).bth });
    let dropped = |pair: &mut Pair, headers: &Headers, reason, ignored| {
        let before = counted(pair, 1)[3];
        let frame = pair.frame(0, headers, &[]);
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(reason));
        assert_eq!(counted(pair, 1)[3] - before, ignored, "{reason:?}");
    };
    let mut pair = rc();
    let good = becn(&pair);
    let frame = pair.frame(0, &good, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(counted(&pair, 1), [0, 0, 0, 1]);
    // Any partition, and MigReq as adapters that send 1.
    let limited = Headers::new(Bth { pkey: roced_transport::partition::Pkey(7), mig_req: true, ..good.bth });
    let frame = pair.frame(0, &limited, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    dropped(&mut pair, &Headers::new(Bth { becn: false, ..good.bth }), DropReason::NoCongestion, 1);
    let nowhere = Qpn::new(good.bth.dest_qpn.endpoint(), 14);
    dropped(&mut pair, &Headers::new(Bth { dest_qpn: nowhere, ..good.bth }), DropReason::NoSuchQp, 1);
    dropped(&mut pair, &Headers::new(Bth { dest_qpn: Qpn::GSI, ..good.bth }), DropReason::WrongService, 1);
    let mut frame = pair.frame(0, &good, &[]);
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::BadIcrc));
    assert_eq!(counted(&pair, 1)[3], 5);
    // An unknown peer.
    let own = pair.hosts[0].gid;
    pair.hosts[0].gid[15] = 77;
    dropped(&mut pair, &good, DropReason::WrongAddress, 1);
    pair.hosts[0].gid = own;
    // Nothing of all this harmed the connection.
    pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 5000)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    let mut pair = Pair::unconnected(Settings::default());
    pair.connect_to_rtr(1);
    let notification = becn(&pair);
    let frame = pair.frame(0, &notification, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted, "it answers READs");
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.modify_qp(qpn, attribute::STATE, &error, None).expect("from anywhere");
    dropped(&mut pair, &notification, DropReason::WrongState, 1);
    let mut pair = Pair::unconnected(Settings { service: ServiceType::Uc, ..Settings::default() });
    pair.connect_to_rtr(1);
    let notification = becn(&pair);
    dropped(&mut pair, &notification, DropReason::WrongState, 1);
    let mut pair = Pair::new(Settings { service: ServiceType::Ud, ..Settings::default() });
    let notification = becn(&pair);
    dropped(&mut pair, &notification, DropReason::WrongService, 1);
    let deth = Deth { qkey: OUR_QKEY, source_qpn: pair.hosts[0].qpn };
    let datagram = Headers { deth: Some(deth), ..headers(&pair, opcode::UD_SEND_ONLY, 0) };
    let frame = pair.frame(0, &datagram, &[1; 8]);
    pair.hosts[1].post_recv(7, &[sge(0, 2000)]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted, "it hears its datagrams");
}
