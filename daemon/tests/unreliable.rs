//! The unreliable services as a client of the library has them, between queue pairs of one host.

mod served;

use std::time::{Duration, Instant};

use roced::{
    config::{AccountLimits, ClientLimits, DeviceLimits, LimitsConfig},
    net::{NetworkChange, NextHop},
};
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionOp, CompletionQueue, ConnectOptions, Device, Error,
    GRH_BYTES, Gid, MULTICAST_QPN, MemoryRegion, ProtectionDomain, QpAddress, QpAttributes, QueuePair, RecvRequest,
    Refusal, SendRequest, ServiceType, Sge, Status, attribute, state,
};
use roced_types::Qpn;
use served::{DEVICE, How, Served, eventually};

const SOON: Duration = Duration::from_secs(20);

/// Workers of the daemon: the numbers of endpoints in QPNs leave the worker as remainder.
const WORKERS: usize = 2;

/// Prerequisites of a program's queue pairs.
struct Program {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Program {
    fn new(served: &Served) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(256).expect("a queue");
        let memory = pd.allocate(1 << 20, Access::ALL).expect("memory");
        Self { device, pd, cq, memory }
    }

    fn qp(&self, service: ServiceType) -> QueuePair {
        self.pd.queue_pair(&self.cq, &self.cq).service(service).create().expect("a queue pair")
    }

    /// The next `count` completions, by `wr_id`.
    fn reap(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut some = [Completion::EMPTY; 8];
            let room = some.len().min(count - all.len());
            let got = self.cq.wait(&mut some[..room], SOON).expect("the daemon lives");
            assert!(got > 0, "completions are missing: {all:?}");
            all.extend_from_slice(&some[..got]);
        }
        all.sort_by_key(|completion| completion.wr_id);
        all
    }
}

/// Two connected queue pairs.
fn connected(program: &Program, gid: u32) -> [QueuePair; 2] {
    let [a, b] = [(); 2].map(|()| program.qp(ServiceType::Uc));
    a.connect(&b.address(gid).expect("a GID"), &ConnectOptions::default()).expect("b is here");
    b.connect(&a.address(gid).expect("a GID"), &ConnectOptions::default()).expect("a is here");
    [a, b]
}

/// Posts a receive. When this returns, its worker has taken it: earlier messages are lost.
fn receive(qp: &QueuePair, room: &[Sge], id: u64) {
    qp.post_recv(&RecvRequest::new(room).id(id)).expect("room");
    // Work that was posted before a worker was asked is taken before it answers.
    qp.query().expect("there");
}

#[test]
fn an_unreliable_connection_carries_sends_and_writes() {
    let served = Served::start();
    let program = Program::new(&served);
    let memory = &program.memory;
    for gid in [0, 2] {
        let [a, b] = connected(&program, gid);
        assert_eq!((a.service(), a.query().expect("there").state), (ServiceType::Uc, state::RTS));
        for (turn, bytes) in [0, 1, 4096, 4097, 100_001].into_iter().enumerate() {
            let data: Vec<_> = (0..bytes).map(|at| (at * 31 + at / 251 + turn) as u8).collect();
            memory.write_at(0, &data);
            memory.fill(300_000, 2 * bytes, 0);
            receive(&b, &[memory.sge(300_000..300_000 + bytes)], 1);
            receive(&b, &[], 2);
            let from = [memory.sge(..bytes)];
            a.post_send(&SendRequest::send(&from).id(3).signaled()).expect("room");
            let to = memory.remote().at(300_000 + bytes as u64);
            a.post_send(&SendRequest::write(&from, to).imm([5; 4]).id(4).signaled()).expect("room");
            let done = program.reap(4);
            let what: Vec<_> = done.iter().map(|one| one.ok().map(|one| (one.wr_id, one.op))).collect();
            use CompletionOp::{Recv, RecvWriteImm, Send, Write};
            assert_eq!(what, [Ok((1, Recv)), Ok((2, RecvWriteImm)), Ok((3, Send)), Ok((4, Write))]);
            assert_eq!((done[0].byte_len, done[1].byte_len), (bytes as u32, bytes as u32));
            assert_eq!((done[0].src_qpn, done[1].imm), (a.qpn(), Some([5; 4])));
            assert!(memory.to_vec(300_000, bytes) == data && memory.to_vec(300_000 + bytes, bytes) == data);
        }
        assert_eq!(
            (a.statistics().expect("there").response_packets, b.statistics().expect("there").response_packets),
            (0, 0)
        );
    }
}

#[test]
fn a_message_without_a_receive_is_lost_and_the_next_is_not() {
    let served = Served::start();
    let program = Program::new(&served);
    let [a, b] = connected(&program, 0);
    a.post_send(&SendRequest::send_inline(b"lost").id(1).signaled()).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| done.wr_id), Ok(1));
    eventually("it was on its way", || a.statistics().expect("there").request_packets == 1);
    // Behind it by the same way, so that it has been dropped when this has arrived.
    a.post_send(&SendRequest::write_inline(b"mark", program.memory.remote())).expect("room");
    eventually("the mark arrived", || program.memory.to_vec(0, 4) == b"mark");
    receive(&b, &[program.memory.sge(8..16)], 2);
    a.post_send(&SendRequest::send_inline(b"found")).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| (done.wr_id, done.byte_len)), Ok((2, 5)));
    assert_eq!(program.memory.to_vec(8, 5), b"found");
}

#[test]
fn a_send_that_fails_stops_the_send_queue_until_it_is_told_to_go_on() {
    let served = Served::start();
    let program = Program::new(&served);
    let [a, b] = connected(&program, 0);
    let one = [program.memory.sge(..1)];
    let read = SendRequest::read(&one, program.memory.remote());
    assert!(matches!(a.post_send(&read), Err(Error::WrongService { service: "UC", operation: "READ" })));
    let mut beyond = program.memory.sge(..8);
    beyond.va += program.memory.len() as u64;
    let posted = a.post_sends(&[SendRequest::send(&[beyond]).id(1), SendRequest::send_inline(b"x").id(2)]);
    assert_eq!(posted.expect("room"), 2);
    let failed: Vec<_> = program.reap(2).iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(failed, [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)]);
    assert_eq!(a.query().expect("there").state, state::SQE);
    // It still receives.
    receive(&a, &[program.memory.sge(..8)], 3);
    b.post_send(&SendRequest::send_inline(b"come")).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| (done.wr_id, done.byte_len)), Ok((3, 4)));
    a.modify(attribute::STATE, &QpAttributes { state: state::RTS, ..QpAttributes::default() }).expect("the way back");
    receive(&b, &[program.memory.sge(..8)], 4);
    a.post_send(&SendRequest::send_inline(b"back")).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| (done.wr_id, done.byte_len)), Ok((4, 4)));
    assert_eq!(program.device.next_event().expect("the daemon lives"), None, "nothing fatal happened");
}

const QKEY: u32 = 0x0123_4567;

/// A datagram queue pair that sends and receives.
fn active(program: &Program) -> QueuePair {
    let qp = program.qp(ServiceType::Ud);
    qp.activate(QKEY).expect("from RESET");
    qp
}

fn handle(program: &Program, address: &str) -> AddressHandle {
    let gid = address.parse().expect("an address");
    program.pd.address_handle(&AddressOptions::new(gid)).expect("a route")
}

#[test]
fn datagrams_go_between_any_queue_pairs() {
    let served = Served::start();
    let program = Program::new(&served);
    let memory = &program.memory;
    // On both workers.
    let qps = [(); 4].map(|()| active(&program));
    for (address, ipv6) in [("10.9.0.1", false), ("fd00:9::1", true)] {
        let ah = handle(&program, address);
        for (from, to) in qps.iter().flat_map(|from| qps.iter().map(move |to| (from, to))) {
            let text = format!("from {} to {}", from.qpn(), to.qpn());
            let room = [memory.sge(..GRH_BYTES), memory.sge(1000..1100)];
            receive(to, &room, 1);
            let request = SendRequest::send_inline(text.as_bytes()).imm(*b"grh!").solicited().id(2).signaled();
            from.post_send(&request.to(&ah, to.qpn(), QKEY)).expect("room");
            let done = program.reap(2);
            let received = done[0].ok().expect("it arrived");
            assert_eq!((received.op, received.qpn, received.src_qpn), (CompletionOp::Recv, to.qpn(), from.qpn()));
            assert_eq!((received.imm, received.solicited, received.has_grh), (Some(*b"grh!"), true, true));
            assert_eq!(received.byte_len as usize, GRH_BYTES + text.len());
            assert_eq!(memory.to_vec(1000, text.len()), text.as_bytes());
            let grh = memory.to_vec(0, GRH_BYTES);
            assert_eq!(if ipv6 { grh[0] >> 4 } else { grh[20] >> 4 }, if ipv6 { 6 } else { 4 });
            assert_eq!((done[1].op, done[1].has_grh), (CompletionOp::Send, false));
        }
    }
}

/// As `mckey` does, whose sends report no completion.
#[test]
fn datagrams_that_were_posted_before_the_end_of_their_queue_pair_are_sent() {
    let served = Served::start();
    let program = Program::new(&served);
    let make = || {
        let builder = program.pd.queue_pair(&program.cq, &program.cq).service(ServiceType::Ud);
        let qp = builder.send_wrs(200).recv_wrs(200).create().expect("a queue pair");
        qp.activate(QKEY).expect("from RESET");
        qp
    };
    let to = make();
    // The second is more than a poll iteration sends.
    for (count, rounds, handle_first) in [(10, 100, true), (200, 20, true), (200, 20, false)] {
        for round in 0..rounds {
            for _ in 0..count {
                to.post_recv(&RecvRequest::new(&[program.memory.sge(..GRH_BYTES + 8)])).expect("room");
            }
            to.query().expect("its receives are there");
            let (from, ah) = (make(), handle(&program, "10.9.0.1"));
            for _ in 0..count {
                from.post_send(&SendRequest::send_inline(b"the last").to(&ah, to.qpn(), QKEY)).expect("room");
            }
            if handle_first {
                drop(ah);
                drop(from);
            } else {
                drop(from);
                drop(ah);
            }
            let received = program.reap(count);
            assert!(received.iter().all(|one| one.ok().is_ok()), "round {round}: {received:?}");
        }
    }
}

#[test]
fn a_refused_datagram_or_one_without_a_receive_is_lost_without_harm() {
    let served = Served::start();
    let program = Program::new(&served);
    let qps = [(); 4].map(|()| active(&program));
    let [a, b, others @ ..] = &qps;
    let worker = |qp: &QueuePair| Qpn::from_wire(qp.qpn()).endpoint().get() % WORKERS;
    let neighbor = others.iter().find(|other| worker(other) == worker(b)).expect("workers take turns");
    let ah = handle(&program, "10.9.0.1");
    let room = [program.memory.sge(..GRH_BYTES + 8)];
    let send = |text: &'static [u8], to: &QueuePair, qkey| {
        a.post_send(&SendRequest::send_inline(text).to(&ah, to.qpn(), qkey).id(9).signaled()).expect("room");
    };
    let ends = |count| {
        program.reap(count).iter().map(|one| one.ok().map(|one| (one.wr_id, one.byte_len as usize))).collect::<Vec<_>>()
    };
    // Messages to the same worker arrive in order: the last one shows the fate of the others.
    receive(neighbor, &room, 1);
    send(b"no room", b, QKEY);
    send(b"room", neighbor, QKEY);
    // A sender never learns.
    assert_eq!(ends(3), [Ok((1, GRH_BYTES + 4)), Ok((9, 0)), Ok((9, 0))]);
    receive(b, &room, 2);
    send(b"no key", b, QKEY + 1);
    send(b"too long!", b, QKEY);
    send(b"fits", b, QKEY);
    assert_eq!(ends(4), [Ok((2, GRH_BYTES + 4)), Ok((9, 0)), Ok((9, 0)), Ok((9, 0))]);
    assert_eq!(b.query().expect("there").state, state::RTS);
    assert_eq!(program.device.next_event().expect("the daemon lives"), None);
}

#[test]
fn only_handles_of_the_own_domain_and_messages_of_one_packet_are_sent() {
    let served = Served::start();
    let (program, other) = (Program::new(&served), Program::new(&served));
    let qp = active(&program);
    let ours = handle(&program, "10.9.0.1");
    let elsewhere = program.device.protection_domain().expect("a domain");
    let gid = "10.9.0.1".parse().expect("an address");
    let of_another_domain = elsewhere.address_handle(&AddressOptions::new(gid)).expect("a route");
    let of_another_client = handle(&other, "10.9.0.1");
    assert!(matches!(qp.post_send(&SendRequest::send_inline(b"where to?")), Err(Error::NoAddress)));
    let write = SendRequest::write_inline(b"x", program.memory.remote()).to(&ours, qp.qpn(), QKEY);
    assert!(matches!(qp.post_send(&write), Err(Error::WrongService { service: "UD", operation: "WRITE" })));
    let mtu = program.device.port().expect("a port").active_mtu_bytes as usize;
    let (fits, long) = ([program.memory.sge(..mtu)], [program.memory.sge(..mtu + 1)]);
    for (request, ah, status) in [
        (SendRequest::send(&fits), &ours, Status::Success),
        (SendRequest::send(&long), &ours, Status::LocalLength),
        (SendRequest::send(&fits), &of_another_domain, Status::LocalQpOperation),
        (SendRequest::send(&fits), &of_another_client, Status::LocalQpOperation),
    ] {
        qp.post_send(&request.to(ah, qp.qpn(), QKEY).signaled()).expect("room");
        assert_eq!(program.reap(1)[0].status, status);
        if status != Status::Success {
            assert_eq!(qp.query().expect("there").state, state::SQE);
            let to_rts = QpAttributes { state: state::RTS, ..QpAttributes::default() };
            qp.modify(attribute::STATE, &to_rts).expect("the way back");
        }
    }
}

#[test]
fn a_send_waits_for_the_next_hop_and_the_handle_follows_it() {
    let served = Served::start();
    let program = Program::new(&served);
    let qp = active(&program);
    served.told.lock().expect("no thread panicked").elsewhere = Some(NextHop::Resolving);
    let ah = handle(&program, "10.9.0.77");
    qp.post_send(&SendRequest::send_inline(b"hello?").to(&ah, 77, QKEY).id(1).signaled()).expect("room");
    let none = program.cq.wait(&mut [Completion::EMPTY], Duration::from_millis(50)).expect("the daemon lives");
    assert_eq!(none, 0, "its place is not known yet");
    let follow = *served.told.lock().expect("no thread panicked").followed.keys().next().expect("it is followed");
    served.change(vec![NetworkChange::NextHop(follow, NextHop::Unreachable)]);
    assert_eq!(program.reap(1)[0].ok().map(|done| done.wr_id), Ok(1), "as good as sent");
    drop(ah);
    assert!(served.told.lock().expect("no thread panicked").followed.is_empty());
    // The end of the handle is the end of the wait, and the send queue goes on.
    for id in 2..4 {
        let ah = handle(&program, "10.9.0.77");
        qp.post_send(&SendRequest::send_inline(b"hello?").to(&ah, 77, QKEY).id(id).signaled()).expect("room");
        drop(ah);
        assert_eq!(program.reap(1)[0].ok().map(|done| done.wr_id), Ok(id), "lost, as any datagram may be");
    }
}

/// One neighbor may be that of every path of a device: the control thread serves others in between.
#[test]
fn a_change_of_a_neighbor_with_many_paths_is_carried_out_in_pieces() {
    let served = Served::start();
    let program = Program::new(&served);
    let qp = active(&program);
    served.told.lock().expect("no thread panicked").elsewhere = Some(NextHop::Resolving);
    let ahs: Vec<_> = (0..1000).map(|_| handle(&program, "10.9.0.77")).collect();
    let follow = *served.told.lock().expect("no thread panicked").followed.keys().next().expect("it is followed");
    let pieces = served.on_control_thread(move |clients, environment| {
        clients.on_changes(&[NetworkChange::NextHop(follow, NextHop::Unreachable)], environment);
        let mut pieces = 1;
        while clients.deadline().is_some_and(|due| due <= Instant::now()) {
            clients.on_deadline(Instant::now(), environment);
            pieces += 1;
        }
        pieces
    });
    assert!((3..=1000).contains(&pieces), "2,000 round trips in {pieces} pieces");
    for ah in [&ahs[0], &ahs[999]] {
        qp.post_send(&SendRequest::send_inline(b"hello?").to(ah, 77, QKEY).id(1).signaled()).expect("room");
        assert_eq!(program.reap(1)[0].ok().map(|done| done.wr_id), Ok(1), "it waits for no next hop any more");
    }
}

/// Posts a receive on each, all into the same buffer: the arriving message is the same.
fn receive_all(program: &Program, qps: &[&QueuePair]) {
    (0..).zip(qps).for_each(|(id, qp)| receive(qp, &[program.memory.sge(..100)], id));
}

#[test]
fn a_multicast_message_reaches_all_members_on_every_worker() {
    let served = Served::start();
    let (program, other) = (Program::new(&served), Program::new(&served));
    let [sender, a, b, c] = [(); 4].map(|()| active(&program));
    let theirs = active(&other);
    for (group, elsewhere) in [("239.1.2.3", "239.1.2.4"), ("ff0e::77", "ff0e::78")] {
        let address: Gid = group.parse().expect("an address");
        let elsewhere: Gid = elsewhere.parse().expect("an address");
        let ah = handle(&program, group);
        let send = || {
            let request = SendRequest::send_inline(b"to all").to(&ah, MULTICAST_QPN, QKEY).id(9).signaled();
            sender.post_send(&request).expect("room");
        };
        a.attach(address, None).expect("room");
        a.attach(address, None).expect("twice is once");
        b.attach(address, None).expect("room");
        c.attach(elsewhere, None).expect("room");
        theirs.attach(address, None).expect("room");
        receive_all(&program, &[&a, &b]);
        receive_all(&other, &[&theirs]);
        send();
        let ends: Vec<_> = program.reap(3).iter().map(|one| one.ok().map(|one| (one.wr_id, one.has_grh))).collect();
        assert_eq!(ends, [Ok((0, true)), Ok((1, true)), Ok((9, false))], "{group}");
        assert_eq!(program.memory.to_vec(GRH_BYTES, 6), b"to all");
        assert_eq!(other.reap(1)[0].ok().map(|one| one.src_qpn), Ok(sender.qpn()));
        let joined = served.told.lock().expect("no thread panicked").joined.len();
        assert_eq!(joined, 4, "each queue pair once");
        // A detached member receives no more; a destroyed one is detached.
        b.detach(address).expect("it is attached");
        assert!(matches!(b.detach(address), Err(Error::Refused { refusal: Refusal::NoSuchObject, .. })));
        theirs.detach(address).expect("it is attached");
        receive_all(&program, &[&a]);
        send();
        let ids: Vec<_> = program.reap(2).iter().map(|one| one.ok().map(|one| one.wr_id)).collect();
        assert_eq!(ids, [Ok(0), Ok(9)]);
        a.detach(address).expect("it is attached");
        // No member: as good as sent.
        send();
        assert_eq!(program.reap(1)[0].ok().map(|one| one.wr_id), Ok(9));
        c.detach(elsewhere).expect("it is attached");
        assert!(served.told.lock().expect("no thread panicked").joined.is_empty());
    }
}

/// The specification's multicast: a member of a group receives its own messages to it. Queue pairs
/// that share receives take one each.
#[test]
fn a_sender_hears_itself_and_members_that_share_receives_take_one_each() {
    let served = Served::start();
    let program = Program::new(&served);
    let sender = active(&program);
    let srq = program.pd.shared_receive_queue(8, 1).expect("a shared queue");
    let sharing = [(); 2].map(|()| {
        let builder = program.pd.queue_pair(&program.cq, &program.cq).service(ServiceType::Ud);
        let qp = builder.shared_receives(&srq).create().expect("a queue pair");
        qp.activate(QKEY).expect("it may");
        qp
    });
    let elsewhere = [(); 2].map(|()| active(&program));
    let worker = |qp: &QueuePair| Qpn::from_wire(qp.qpn()).endpoint().get() % WORKERS;
    assert!(elsewhere.iter().any(|qp| worker(qp) != worker(&sharing[0])), "workers take turns");
    let group: Gid = "ff0e::77".parse().expect("an address");
    for qp in [&sender].into_iter().chain(&sharing).chain(&elsewhere) {
        qp.attach(group, None).expect("room");
    }
    receive_all(&program, &[&sender, &elsewhere[0], &elsewhere[1]]);
    for id in [10, 11] {
        srq.post_recv(&RecvRequest::new(&[program.memory.sge(200..300)]).id(id)).expect("room");
    }
    // As with receives of their own: the worker has them now.
    srq.limit().expect("there");
    let ah = handle(&program, "ff0e::77");
    let request = SendRequest::send_inline(b"to all").to(&ah, MULTICAST_QPN, QKEY).id(99).signaled();
    sender.post_send(&request).expect("room");
    let ends = program.reap(6);
    let ids: Vec<_> = ends.iter().map(|one| one.ok().map(|one| (one.wr_id, one.has_grh))).collect();
    assert_eq!(ids, [0, 1, 2, 10, 11, 99].map(|id| Ok((id, id != 99))));
    let takers: Vec<_> = ends[3..5].iter().map(|one| one.qpn).collect();
    assert!(sharing.iter().all(|qp| takers.contains(&qp.qpn())), "{takers:?}");
    let from: Vec<_> = ends[..5].iter().map(|one| one.src_qpn).collect();
    assert_eq!(from, [sender.qpn(); 5]);
    assert_eq!(program.memory.to_vec(GRH_BYTES, 6), program.memory.to_vec(200 + GRH_BYTES, 6));
    assert_eq!(srq.outstanding(), 0);
}

#[test]
fn a_client_that_dies_while_no_worker_answers_leaves_its_groups() {
    let served = Served::start();
    let program = Program::new(&served);
    let qps = [(); 2].map(|()| active(&program));
    for (qp, group) in [(&qps[0], "239.1.1.1"), (&qps[1], "239.1.1.1"), (&qps[1], "ff0e::1")] {
        qp.attach(group.parse().expect("an address"), None).expect("room");
    }
    let joined = || served.told.lock().expect("no thread panicked").joined.len();
    assert_eq!(joined(), 3);
    served.told.lock().expect("no thread panicked").stuck = true;
    drop((qps, program));
    served.wait_until_empty();
    assert_eq!(joined(), 0);
    served.told.lock().expect("no thread panicked").stuck = false;
}

#[test]
fn a_queue_pair_that_ends_leaves_its_groups_and_a_session_all() {
    let served = Served::start();
    let program = Program::new(&served);
    let [a, b] = [(); 2].map(|()| active(&program));
    for group in ["239.1.1.1", "239.1.1.2"] {
        let group = group.parse().expect("an address");
        a.attach(group, None).expect("room");
        b.attach(group, Some(0)).expect("room");
    }
    let joined = || served.told.lock().expect("no thread panicked").joined.len();
    assert_eq!(joined(), 4);
    drop(a);
    assert_eq!(joined(), 2);
    drop((b, program));
    served.wait_until_empty();
    assert_eq!(joined(), 0);
}

#[test]
fn only_datagram_queue_pairs_join_only_groups_and_only_so_many() {
    let client = ClientLimits { attachments: 2, ..ClientLimits::default() };
    let account = AccountLimits { share_percent: 100, ..AccountLimits::default() };
    let device = DeviceLimits { attachments: 3, ..DeviceLimits::default() };
    let served = Served::start_as(How {
        limits: LimitsConfig { client, device, account, ..LimitsConfig::default() },
        ..How::default()
    });
    let (program, other) = (Program::new(&served), Program::new(&served));
    let (datagram, connected, theirs) = (active(&program), program.qp(ServiceType::Uc), active(&other));
    let gid = |address: &str| address.parse::<Gid>().expect("an address");
    let refused = |qp: &QueuePair, group: Gid, sgid_index| match qp.attach(group, Some(sgid_index)) {
        Err(Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&connected, gid("239.1.1.1"), 0), Refusal::InvalidArgument, "a connection");
    assert_eq!(refused(&datagram, gid("10.9.0.1"), 0), Refusal::InvalidArgument, "no group");
    assert_eq!(refused(&datagram, gid("ff0e::1"), 0), Refusal::InvalidArgument, "by an address of the other family");
    assert_eq!(refused(&datagram, gid("239.1.1.1"), 1), Refusal::NoSuchGid);
    served.told.lock().expect("no thread panicked").joins_nothing = true;
    assert_eq!(refused(&datagram, gid("239.1.1.1"), 0), Refusal::Multicast);
    served.told.lock().expect("no thread panicked").joins_nothing = false;
    for (qp, group) in [(&datagram, "239.1.1.1"), (&datagram, "239.1.1.2"), (&theirs, "239.1.1.1")] {
        qp.attach(gid(group), Some(0)).expect("room");
    }
    assert_eq!(refused(&datagram, gid("239.1.1.3"), 0), Refusal::Limit, "the client's");
    assert_eq!(refused(&theirs, gid("239.1.1.3"), 0), Refusal::Limit, "the device's");
    datagram.detach(gid("239.1.1.1")).expect("it is attached");
    theirs.attach(gid("239.1.1.3"), Some(0)).expect("room");
    // A group cannot be a peer.
    let to_group = QpAddress { gid: gid("239.1.1.1"), ..theirs.address(0).expect("a GID") };
    assert!(matches!(
        connected.connect(&to_group, &ConnectOptions::default()),
        Err(Error::Refused { refusal: Refusal::InvalidArgument, .. })
    ));
    // Workers that do not answer: it is not joined.
    let before = served.told.lock().expect("no thread panicked").joined.len();
    theirs.detach(gid("239.1.1.3")).expect("it is attached");
    served.told.lock().expect("no thread panicked").stuck = true;
    assert_eq!(refused(&theirs, gid("239.1.1.3"), 0), Refusal::WorkerTimeout);
    served.told.lock().expect("no thread panicked").stuck = false;
    assert_eq!(served.told.lock().expect("no thread panicked").joined.len(), before - 1);
}
