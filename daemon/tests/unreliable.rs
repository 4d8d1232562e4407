//! The unreliable services as a client of the library has them, between queue pairs of one host.

mod served;

use std::time::Duration;

use roced::net::{Change, NextHop};
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionOp, CompletionQueue, ConnectOptions, Device, Error,
    GRH_BYTES, MemoryRegion, ProtectionDomain, QpAttributes, QueuePair, RecvRequest, SendRequest, ServiceType, Sge,
    Status, attribute, state,
};
use roced_shared::ids::Qpn;
use served::{DEVICE, Served, eventually};

const SOON: Duration = Duration::from_secs(20);

/// What a program needs before its queue pairs.
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
    a.connect(&b.endpoint(gid).expect("a GID"), &ConnectOptions::default()).expect("b is here");
    b.connect(&a.endpoint(gid).expect("a GID"), &ConnectOptions::default()).expect("a is here");
    [a, b]
}

/// Posts a receive. When this returns, its worker has taken it: what comes earlier is lost.
fn receive(qp: &QueuePair, room: &[Sge], id: u64) {
    qp.post_recv(&RecvRequest::new(room).id(id)).expect("room");
    // Work that was posted before a worker was asked is taken in the turn of its answer.
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
fn what_finds_no_receive_is_lost_and_what_follows_is_not() {
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
fn datagrams_go_from_anybody_to_anybody() {
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

#[test]
fn a_datagram_that_may_not_or_finds_no_room_is_lost_and_nobody_harmed() {
    let served = Served::start();
    let program = Program::new(&served);
    let qps = [(); 4].map(|()| active(&program));
    let [a, b, others @ ..] = &qps;
    let worker = |qp: &QueuePair| Qpn::from_wire(qp.qpn()).endpoint();
    let neighbor = others.iter().find(|other| worker(other) == worker(b)).expect("workers take turns");
    let ah = handle(&program, "10.9.0.1");
    let room = [program.memory.sge(..GRH_BYTES + 8)];
    let send = |text: &'static [u8], to: &QueuePair, qkey| {
        a.post_send(&SendRequest::send_inline(text).to(&ah, to.qpn(), qkey).id(9).signaled()).expect("room");
    };
    let ends = |count| {
        program.reap(count).iter().map(|one| one.ok().map(|one| (one.wr_id, one.byte_len as usize))).collect::<Vec<_>>()
    };
    // What goes to the same worker arrives in order: what arrives last says what became of the others.
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
    served.told.lock().expect("nobody panicked").elsewhere = Some(NextHop::Resolving);
    let ah = handle(&program, "10.9.0.77");
    qp.post_send(&SendRequest::send_inline(b"hello?").to(&ah, 77, QKEY).id(1).signaled()).expect("room");
    let none = program.cq.wait(&mut [Completion::EMPTY], Duration::from_millis(50)).expect("the daemon lives");
    assert_eq!(none, 0, "nobody knows yet where that is");
    let follow = *served.told.lock().expect("nobody panicked").followed.keys().next().expect("it is followed");
    served.change(vec![Change::NextHop(follow, NextHop::Unreachable)]);
    assert_eq!(program.reap(1)[0].ok().map(|done| done.wr_id), Ok(1), "as good as sent");
    drop(ah);
    assert!(served.told.lock().expect("nobody panicked").followed.is_empty());
}
