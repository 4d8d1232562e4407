//! Cost of a packet in the transport: two endpoints exchange frames through memory, one WRITE or
//! READ after another. `cargo bench -p roced-transport --bench engine` prints nanoseconds for each
//! packet of payload, both ends together: cut, filled, summed, parsed, checked, placed,
//! acknowledged. It contains no system call, so it is the floor under any figure of the whole.

pub(crate) mod path;

use std::time::Instant;

use roced_transport::io::WorkCompletion;
use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::{
        Abort, App, AtomicOperation, BorrowedPayload, CqOverrun, Egress, EmitError, FrameMut, MemoryFault, PlaceFault,
        Wire,
    },
    mr::{MemSpan, Mr, MrKey, Scope},
    partition::Partitions,
    qp::{PathState, Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{
    Cqn, EndpointId, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, Sge, access, attribute, send_flags, state,
};

use self::path::{IPV4, gid, path};

const KEY: MrKey = MrKey(0x0012_3401);
const MESSAGE: usize = 1 << 20;
const WINDOW: u32 = 256;

struct Client {
    memory: Vec<u8>,
    completed: u64,
}

impl App for Client {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.memory[to.offset() as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        into.copy_from_slice(&self.memory[from.offset() as usize..][..into.len()]);
        Ok(())
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        let word = &mut self.memory[at.offset() as usize..][..8];
        let before = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        word.copy_from_slice(&operation.after(before).to_ne_bytes());
        Ok(before)
    }

    fn complete(&mut self, _: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        assert_eq!(completion.status, roced_types::Status::Success, "nothing goes wrong here");
        self.completed += 1;
        Ok(())
    }
}

/// Frames of fixed memory, used over and over.
struct Frames {
    memory: Vec<u8>,
    lengths: Vec<usize>,
}

const FRAME: usize = 4352;

impl Wire for Frames {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        if self.lengths.len() == self.lengths.capacity() {
            return Err(EmitError::Full);
        }
        let at = self.lengths.len() * FRAME;
        fill(&mut FrameMut::single(&mut self.memory[at..at + frame_bytes])).map_err(|Abort| EmitError::Aborted)?;
        self.lengths.push(frame_bytes);
        Ok(())
    }
}

struct End {
    endpoint: Endpoint,
    client: Client,
    frames: Frames,
    qpn: Qpn,
}

fn end(number: usize, mtu: u32) -> End {
    let id = EndpointId::new(number).expect("a small number");
    let mut endpoint = Endpoint::new(EndpointConfig {
        id,
        max_mrs: 64,
        max_ahs: 0,
        max_srqs: 0,
        max_attachments: 0,
        max_qps: 64,
        total_window_packets: 512,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    });
    let length = MESSAGE as u64;
    let mr = Mr {
        key: KEY,
        pd: Pdn(1),
        access: access::ALL,
        va: 0,
        length,
        object: MemoryObjectId(1),
        offset: 0,
        scope: Scope::Region,
    };
    endpoint.insert_mr(mr).expect("room");
    let sizes = QpSizes { send_wrs: 16, recv_wrs: 16, send_sges: 1, recv_sges: 1, inline_bytes: 0 };
    let qpn = Qpn::new(id, 9);
    let (send_cq, recv_cq) = (Cqn(1), Cqn(1));
    let qp = Qp::new(QpConfig {
        qpn,
        service: ServiceType::Rc,
        pd: Pdn(1),
        send_cq,
        recv_cq,
        sizes,
        signal_all: true,
        window_packets: WINDOW,
        credits: true,
    });
    endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("free");
    let path = path(IPV4, number as u8, 3 - number as u8);
    use attribute::*;
    for (state, mask, path) in [
        (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
        (
            state::RTR,
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            Some(PathState::Ready(path)),
        ),
        (state::RTS, TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC, None),
    ] {
        let attributes = QpAttributes {
            state,
            access: access::ALL,
            path_mtu_bytes: mtu,
            dest_qpn: Qpn::new(EndpointId::new(3 - number).expect("small"), 9).get(),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            dgid: gid(IPV4, 3 - number as u8),
            ..QpAttributes::default()
        };
        endpoint.modify_qp(qpn, STATE | mask, &attributes, path).expect("as the table demands");
    }
    End {
        endpoint,
        client: Client { memory: vec![number as u8; MESSAGE], completed: 0 },
        frames: Frames { memory: vec![0; 64 * FRAME], lengths: Vec::with_capacity(64) },
        qpn,
    }
}

fn carry(from: &mut End, to: &mut End, now: Nanos) {
    for (at, length) in from.frames.lengths.drain(..).enumerate() {
        to.endpoint.on_frame(now, &[&from.frames.memory[at * FRAME..][..length]], &mut to.client);
    }
}

/// Two ends, connected.
pub(crate) struct Pair {
    a: End,
    b: End,
}

impl Pair {
    /// With that path MTU.
    pub(crate) fn new(mtu: u32) -> Self {
        Self { a: end(1, mtu), b: end(2, mtu) }
    }

    /// Moves so many messages of 1 MiB, from the first of them to the last one's completion, by
    /// that clock.
    pub(crate) fn carry_messages(&mut self, op: SendOp, messages: u64, mut clock: impl FnMut() -> Nanos) {
        let Self { a, b } = self;
        let sges = [Sge { va: 0, length: MESSAGE as u32, lkey: KEY.0 }];
        let work = SendWork {
            wr_id: 0,
            op,
            flags: send_flags::SIGNALED,
            imm: [0; 4],
            remote_va: 0,
            rkey: KEY.0,
            swap_or_add: 0,
            compare: 0,
            to: DatagramTo::NOWHERE,
            data: WorkData::Sges(&sges),
        };
        let mut posted = 0;
        while a.client.completed < messages {
            while posted < messages && posted - a.client.completed < 8 {
                a.endpoint.post_send(a.qpn, &work).expect("there");
                posted += 1;
            }
            let now = clock();
            a.endpoint.on_timeout(now, 16, &mut a.client);
            a.endpoint.poll_transmit(now, 64, &mut a.client, &mut a.frames);
            carry(a, b, now);
            b.endpoint.poll_transmit(now, 64, &mut b.client, &mut b.frames);
            carry(b, a, now);
        }
    }
}

fn measure(op: SendOp, mtu: u32, messages: u64) {
    let mut pair = Pair::new(mtu);
    let start = Instant::now();
    pair.carry_messages(op, messages, || Nanos(start.elapsed().as_nanos() as u64));
    let took = start.elapsed().as_secs_f64();
    assert!(pair.a.client.memory == pair.b.client.memory, "the moved bytes are there");
    let packets = messages as f64 * (MESSAGE as f64 / f64::from(mtu));
    println!(
        "{:5} mtu {mtu:4}: {:6.1} ns a packet, {:6.1} Gbit/s",
        format!("{op:?}"),
        took * 1e9 / packets,
        messages as f64 * MESSAGE as f64 * 8e-9 / took
    );
}

fn main() {
    // `cargo test` runs benches too, with this flag and once: then it only shows that it runs.
    let messages = if std::env::args().any(|argument| argument == "--bench") { 2000 } else { 2 };
    for op in [SendOp::Write, SendOp::Read] {
        for mtu in [256, 1024, 4096] {
            measure(op, mtu, messages);
        }
    }
}
