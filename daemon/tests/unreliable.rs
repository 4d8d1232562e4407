//! The unreliable services as a client of the library has them, between queue pairs of one host.

mod served;

use std::time::Duration;

use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain,
    QpAttributes, QueuePair, RecvRequest, SendRequest, ServiceType, Status, attribute, state,
};
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
            b.post_recv(&RecvRequest::new(&[memory.sge(300_000..300_000 + bytes)]).id(1)).expect("room");
            b.post_recv(&RecvRequest::new(&[]).id(2)).expect("room");
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
    b.post_recv(&RecvRequest::new(&[program.memory.sge(8..16)]).id(2)).expect("room");
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
    a.post_recv(&RecvRequest::new(&[program.memory.sge(..8)]).id(3)).expect("room");
    b.post_send(&SendRequest::send_inline(b"come")).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| (done.wr_id, done.byte_len)), Ok((3, 4)));
    a.modify(attribute::STATE, &QpAttributes { state: state::RTS, ..QpAttributes::default() }).expect("the way back");
    b.post_recv(&RecvRequest::new(&[program.memory.sge(..8)]).id(4)).expect("room");
    a.post_send(&SendRequest::send_inline(b"back")).expect("room");
    assert_eq!(program.reap(1)[0].ok().map(|done| (done.wr_id, done.byte_len)), Ok((4, 4)));
    assert_eq!(program.device.next_event().expect("the daemon lives"), None, "nothing fatal happened");
}
