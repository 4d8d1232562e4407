//! MADs of Linux's connection managers, recorded: each is read and written again, bit by bit.

use roced_captures::{files, frames_of};
use roced_cm::wire::{
    Attribute, CmMessage, CmaAddress, CmaHeader, Discard, Mad, PortSpace, Rej, RejectedMessage, ServiceId, SidrRep,
    TransportService, reject_reason, sidr_status,
};
use roced_types::Qpn;

/// From the Ethernet header to the DETH, and the ICRC.
const HEADERS: [(u8, usize); 2] = [(4, 14 + 20 + 8 + 12 + 8), (6, 14 + 40 + 8 + 12 + 8)];
const ICRC_BYTES: usize = 4;
const UD_SEND_ONLY: u8 = 0x64;
const OPCODE_BEFORE_END_OF_HEADERS: usize = 20;

/// The MADs of a capture, in order.
fn mads_of(file: &str) -> Vec<Vec<u8>> {
    let mads = frames_of(file).into_iter().filter_map(|frame| {
        let (_, headers) = *HEADERS.iter().find(|(version, _)| *version == frame.bytes[14] >> 4)?;
        let bth = headers - OPCODE_BEFORE_END_OF_HEADERS;
        let to_qp1 = frame.bytes[bth] == UD_SEND_ONLY && frame.bytes[bth + 5..bth + 8] == [0, 0, 1];
        to_qp1.then(|| frame.bytes[headers..frame.bytes.len() - ICRC_BYTES].to_vec())
    });
    mads.collect()
}

fn messages_of(file: &str) -> Vec<CmMessage> {
    mads_of(file).iter().map(|bytes| Mad::from_bytes(bytes).expect("a MAD of Linux").message).collect()
}

#[test]
fn messages_of_linux_are_read_and_written_again() {
    let mut seen = 0;
    for file in files().iter().filter(|file| file.starts_with("cm_")) {
        for bytes in mads_of(file) {
            let mad = Mad::from_bytes(&bytes).unwrap_or_else(|discard| panic!("{file}: {discard}"));
            assert_eq!(mad.to_bytes(), *bytes, "{file}: {mad:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 24, "MADs in the captures");
}

#[test]
fn the_fields_of_a_connection_are_those_that_rping_used() {
    let messages = messages_of("cm_rping_ipv4.pcap");
    let [CmMessage::Req(req), CmMessage::Rep(rep), CmMessage::Rtu(rtu), CmMessage::Dreq(dreq), CmMessage::Drep(drep)] =
        messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!(req.service_id, ServiceId::of(PortSpace::Tcp, 7174));
    assert_eq!((req.qpn, req.starting_psn), (Qpn::from_wire(0xaa), 0xd2_afeb));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout), (20, 20));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!((req.service, req.flow_control, req.srq), (TransportService::Rc, false, false));
    assert_eq!((req.pkey, req.path_mtu), (0xffff, 3));
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (0xffff, 0xffff));
    assert_eq!(req.primary.local_gid[10..], [0xff, 0xff, 10, 77, 0, 1]);
    assert_eq!(req.primary.remote_gid[10..], [0xff, 0xff, 10, 77, 0, 2]);
    assert_eq!((req.primary.flow_label, req.primary.hop_limit, req.primary.ack_timeout), (0xc_0450, 64, 19));
    assert_eq!(req.alternate, Default::default());
    let cma = CmaHeader::from_bytes(req.private_data.first_chunk().expect("long enough")).expect("of rdma_cm");
    assert_eq!(cma.addresses, CmaAddress::Ipv4([[10, 77, 0, 1], [10, 77, 0, 2]]));
    assert_eq!(cma.source_port, 0xe676);

    assert_eq!((rep.remote, rep.qpn, rep.starting_psn), (req.local, Qpn::from_wire(0x222), 0xa9_3b74));
    assert_eq!((rep.target_ack_delay, rep.failover_accepted, rep.rnr_retry_count), (15, 0, 7));
    assert_eq!((rtu.local, rtu.remote), (req.local, rep.local));
    assert_eq!((dreq.local, dreq.remote, dreq.remote_qpn), (req.local, rep.local, rep.qpn));
    assert_eq!((drep.local, drep.remote), (rep.local, req.local));
}

#[test]
fn addresses_of_ipv6_stand_in_the_cma_header() {
    let Some(CmMessage::Req(req)) = messages_of("cm_rping_ipv6.pcap").first().copied() else {
        panic!("a REQ is first")
    };
    let cma = CmaHeader::from_bytes(req.private_data.first_chunk().expect("long enough")).expect("of rdma_cm");
    let CmaAddress::Ipv6([source, destination]) = cma.addresses else { panic!("{cma:?}") };
    assert_eq!((source, destination), (req.primary.local_gid, req.primary.remote_gid));
    assert_eq!(cma.to_bytes(), *req.private_data.first_chunk().expect("long enough"));
}

#[test]
fn a_port_without_a_listener_is_refused_by_its_reason() {
    let messages = messages_of("cm_reject_noport.pcap");
    let [CmMessage::Req(req), CmMessage::Rej(Rej { local, remote, message, reason, info, .. })] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((local.0, remote, message, info.as_bytes()), (0, req.local, RejectedMessage::Req, &[][..]));
    assert_eq!(reason, reject_reason::INVALID_SERVICE_ID);
}

#[test]
fn a_datagram_service_tells_queue_pair_and_q_key() {
    let messages = messages_of("cm_udaddy_sidr.pcap");
    let [CmMessage::SidrReq(asked), CmMessage::SidrRep(SidrRep { request, status, qpn, service_id, qkey, .. })] =
        messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((request, status, service_id), (asked.request, sidr_status::VALID, asked.service_id));
    assert_eq!(asked.service_id.port(), Some((PortSpace::Udp, 7174)));
    assert_eq!((qpn, qkey), (Qpn::from_wire(0x225), 0x0123_4567));
}

#[test]
fn other_datagrams_are_discarded_by_their_fault() {
    let good = mads_of("cm_reject_noport.pcap").remove(0);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Mad::from_bytes(&bytes)
    };
    assert_eq!(Mad::from_bytes(&good[..255]), Err(Discard::Length(255)));
    assert_eq!(Mad::from_bytes(&[]), Err(Discard::Length(0)));
    assert_eq!(with(0, 2), Err(Discard::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(Discard::Class(3)));
    assert_eq!(with(2, 1), Err(Discard::ClassVersion(1)));
    assert_eq!(with(3, 0x83), Err(Discard::Method(0x83)));
    assert_eq!(with(17, 0x0f), Err(Discard::Attribute(0x0f)));
    assert_eq!(with(16, 1), Err(Discard::Attribute(0x0110)));
    assert_eq!(with(17, 0x19), Err(Discard::AlternatePath(Attribute::Lap)));
    assert_eq!(with(17, 0x1a), Err(Discard::AlternatePath(Attribute::Apr)));
}
