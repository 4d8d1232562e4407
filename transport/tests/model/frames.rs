//! Frames of any kind that the transport's builder can make.

use proptest::{collection, option, prelude::*, sample};
use roced_transport::{
    io::{Egress, FrameMut},
    mr::MrKey,
    partition::Pkey,
    psn::Psn,
    wire::{
        Aeth, AtomicAck, AtomicEth, Bth, Deth, Feth, Headers, Ieth, Opcode, Path, PathSpec, Reth, Roce, Syndrome, Vlan,
    },
};
use roced_types::{DeviceId, Qpn};

use super::cut_mut;

/// Parts of a frame to build.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) spec: PathSpec,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}

impl Recipe {
    /// The frame, built in memory that is cut at `cuts`.
    pub(crate) fn build(&self, cuts: &[usize]) -> Vec<u8> {
        let path = Path::new(&self.spec).expect("both GIDs are of one family");
        let mut memory = vec![0xa5; path.frame_bytes(&self.headers, self.payload.len())];
        let mut target = FrameMut::over(cut_mut(&mut memory, cuts).into_iter());
        let mut rest = &self.payload[..];
        path.fill(&mut target, &self.headers, self.payload.len(), |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
        .expect("no thread gave up");
        assert_eq!((target.remaining(), rest.len()), (0, 0), "the frame is full and the payload used up");
        memory
    }

    /// Where the body begins in the frame.
    pub(crate) fn body_at(&self) -> usize {
        let path = Path::new(&self.spec).expect("both GIDs are of one family");
        path.overhead_bytes() - 4 + self.headers.info().header_bytes
    }
}

/// Opcodes that the builder can make.
pub(crate) fn buildable() -> Vec<Opcode> {
    let info = |opcode: &Opcode| opcode.info().is_some_and(|info| !info.has_rdeth && !info.has_xrceth);
    (0..=255).map(Opcode).filter(info).collect()
}

/// Any frame.
pub(crate) fn recipe() -> impl Strategy<Value = Recipe> {
    (spec(), headers(), payload()).prop_map(|(spec, headers, payload)| {
        let payload = if headers.info().payload { payload } else { Vec::new() };
        Recipe { spec, headers, payload }
    })
}

/// Mostly short, so that every pad and empty payloads come often.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        collection::vec(any::<u8>(), 0..9),
        collection::vec(any::<u8>(), 0..300),
        collection::vec(any::<u8>(), 4090..=4096),
    ]
}

fn spec() -> impl Strategy<Value = PathSpec> {
    let gids = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(source, destination)| (mapped(source), mapped(destination))),
        any::<([u8; 15], [u8; 15])>().prop_map(|(source, destination)| (global(source), global(destination))),
    ];
    let vlan = option::of((0..4096u16, 0..8u8).prop_map(|(id, priority)| Vlan { id, priority, rx_stripped: false }));
    (gids, vlan, any::<([u8; 6], [u8; 6], u8, u8, u32, Option<u16>)>()).prop_map(
        |((source, destination), vlan, rest)| {
            let (source_mac, dest_mac, traffic_class, hop_limit, flow_label, udp_source_port) = rest;
            let roce = udp_source_port.map_or(Roce::V1, |udp_source_port| Roce::V2 { udp_source_port });
            PathSpec {
                via: Egress::HandOver { to: DeviceId(0) },
                source_mac,
                dest_mac,
                vlan,
                source,
                destination,
                traffic_class,
                hop_limit,
                flow_label,
                roce,
            }
        },
    )
}

fn mapped(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

fn global(rest: [u8; 15]) -> [u8; 16] {
    let mut gid = [0x20; 16];
    gid[1..].copy_from_slice(&rest);
    gid
}

fn headers() -> impl Strategy<Value = Headers> {
    let bth = (sample::select(buildable()), any::<([bool; 5], u16, u32, u32)>());
    let bth = bth.prop_map(|(opcode, ([solicited, mig_req, fecn, becn, ack_request], pkey, qpn, psn))| Bth {
        opcode,
        solicited,
        mig_req,
        pad: 0,
        pkey: Pkey(pkey),
        fecn,
        becn,
        dest_qpn: Qpn::from_wire(qpn),
        ack_request,
        psn: Psn::new(psn),
    });
    (bth, any::<([u64; 4], [u32; 6], u8, [u8; 4])>()).prop_map(|(bth, (wide, narrow, syndrome, imm))| {
        let info = bth.opcode.info().expect("a buildable opcode");
        let [va, swap_or_add, compare, original] = wide;
        let [rkey, length, msn, qkey, source, invalidated] = narrow;
        Headers {
            bth,
            deth: info.has_deth.then(|| Deth { qkey, source_qpn: Qpn::from_wire(source) }),
            feth: info.has_feth.then_some(Feth { placement: syndrome & 15, selectivity: syndrome >> 6 }),
            reth: info.has_reth.then_some(Reth { va, rkey: MrKey(rkey), length }),
            atomic: info.has_atomic.then_some(AtomicEth { va, rkey: MrKey(rkey), swap_or_add, compare }),
            aeth: info.has_aeth.then_some(Aeth { syndrome: Syndrome::from_byte(syndrome), msn: msn & 0x00ff_ffff }),
            atomic_ack: info.has_atomic_ack.then_some(AtomicAck { original }),
            imm: info.has_imm.then_some(imm),
            ieth: info.has_ieth.then_some(Ieth { rkey: MrKey(invalidated) }),
        }
    })
}
