//! Two endpoints in one thread: an RDMA WRITE from one queue pair to another, with a `Vec` as NIC and as memory.

use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::{
        Abort, App, AtomicOperation, BorrowedPayload, CqOverrun, Egress, EmitError, FrameMut, MemoryFault, PlaceFault,
        Wire, WorkCompletion,
    },
    mr::{MemSpan, Mr, MrKey, Scope},
    partition::Partitions,
    qp::{PathState, Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
    wire::{Path, PathSpec, Roce},
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{
    Cqn, EndpointId, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, Sge, Status, access, attribute, gid_of,
    send_flags, state,
};

/// Client memory and completions of one host. A `MemSpan` was checked: key, right and range.
struct Program {
    memory: Vec<u8>,
    completions: Vec<WorkCompletion>,
}

impl App for Program {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.memory[to.offset() as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        into.copy_from_slice(&self.memory[from.offset() as usize..][..into.len()]);
        Ok(())
    }
    fn copy(&mut self, _: MemSpan<'_>, _: BorrowedPayload) -> Result<(), PlaceFault> {
        unreachable!("the wire below does not lend payload")
    }
    fn atomic(&mut self, _: MemSpan<'_>, _: AtomicOperation) -> Result<u64, MemoryFault> {
        Err(MemoryFault)
    }
    fn complete(&mut self, _: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        self.completions.push(*completion);
        Ok(())
    }
}

/// Frames on their way to the other host.
#[derive(Default)]
struct Cable(Vec<Vec<u8>>);

impl Wire for Cable {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let mut frame = vec![0; frame_bytes];
        fill(&mut FrameMut::single(&mut frame)).map_err(|Abort| EmitError::Aborted)?;
        self.0.push(frame);
        Ok(())
    }
}

const KEY: MrKey = MrKey(0x1234_5601);

fn qpn_of(host: u8) -> Qpn {
    Qpn::new(EndpointId::new(host.into()).expect("below 64"), 7)
}

/// An endpoint with a memory region and a queue pair, connected to the other host's.
fn endpoint(host: u8) -> Endpoint {
    let peer = 1 - host;
    let gid = |host| gid_of([10, 0, 0, host].into());
    let mut endpoint = Endpoint::new(EndpointConfig {
        id: EndpointId::new(host.into()).expect("below 64"),
        max_mrs: 1,
        max_ahs: 0,
        max_srqs: 0,
        max_attachments: 0,
        max_qps: 1,
        total_window_packets: 128,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    });
    let (object, scope) = (MemoryObjectId(1), Scope::Region);
    endpoint
        .insert_mr(Mr { key: KEY, pd: Pdn(1), access: access::ALL, va: 0, length: 4096, object, offset: 0, scope })
        .expect("there is room for one");
    let qp = Qp::new(QpConfig {
        qpn: qpn_of(host),
        service: ServiceType::Rc,
        pd: Pdn(1),
        send_cq: Cqn(1),
        recv_cq: Cqn(1),
        sizes: QpSizes { send_wrs: 4, recv_wrs: 4, send_sges: 1, recv_sges: 1, inline_bytes: 0 },
        signal_all: false,
        window_packets: 128,
        credits: true,
    });
    assert!(endpoint.insert_qp(Box::new(qp)).is_ok(), "there is room for one");
    let path = Path::new(&PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2, 0, 0, 0, 0, host],
        dest_mac: [2, 0, 0, 0, 0, peer],
        vlan: None,
        source: gid(host),
        destination: gid(peer),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    })
    .expect("two addresses of one family");
    // The attributes and their masks are those of ibv_modify_qp.
    let attributes = QpAttributes {
        access: access::ALL,
        path_mtu_bytes: 1024,
        dest_qpn: qpn_of(peer).get(),
        timeout: 14,
        retry_cnt: 7,
        dgid: gid(peer),
        ..QpAttributes::default()
    };
    use attribute::*;
    let steps = [
        (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
        (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, Some(path)),
        (state::RTS, TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC, None),
    ];
    for (state, mask, path) in steps {
        let attributes = QpAttributes { state, ..attributes };
        endpoint.modify_qp(qpn_of(host), STATE | mask, &attributes, path.map(PathState::Ready)).expect("a legal step");
    }
    endpoint
}

fn main() {
    let mut endpoints = [endpoint(0), endpoint(1)];
    let program = |byte| Program { memory: vec![byte; 4096], completions: Vec::new() };
    let mut programs = [program(b'a'), program(b'b')];
    // 1. Post work; `send_room` tells how much.
    assert!(endpoints[0].send_room(qpn_of(0)) > 0);
    let work = SendWork {
        wr_id: 1,
        op: SendOp::Write,
        flags: send_flags::SIGNALED,
        imm: [0; 4],
        remote_va: 0,
        rkey: KEY.0,
        swap_or_add: 0,
        compare: 0,
        to: DatagramTo::NOWHERE,
        data: WorkData::Sges(&[Sge { va: 0, length: 4096, lkey: KEY.0 }]),
    };
    endpoints[0].post_send(qpn_of(0), &work).expect("the queue pair exists");
    // 2. The loop: timers, frames out, frames in, until the work is complete. Time is a number.
    let mut now = Nanos(0);
    while programs[0].completions.is_empty() {
        now = Nanos(now.0 + 10_000);
        for from in [0, 1] {
            let mut cable = Cable::default();
            endpoints[from].on_timeout(now, 16, &mut programs[from]);
            endpoints[from].poll_transmit(now, 16, &mut programs[from], &mut cable);
            for frame in &cable.0 {
                endpoints[1 - from].on_frame(now, &[frame], &mut programs[1 - from]);
            }
        }
    }
    // 3. The completion is there, and so are the bytes at the other host.
    assert_eq!(programs[0].completions[0].status, Status::Success);
    assert!(programs[1].memory.iter().all(|byte| *byte == b'a'));
}
