//! The wire code held to frames that Linux rxe sent: it reads every one, it finds the one that was
//! corrupted, and its own frame builder makes every one again.

mod model;

use std::collections::BTreeMap;

use model::{bth_at, cut, cut_mut, fix_icrc, fix_ipv4_checksum, headers_of, ip_at};
use roced_captures::{CapturedFrame, directory, files, frames, frames_of, log_of};
use roced_transport::{
    io::{Egress, FrameMut},
    partition::Pkey,
    reject::DropReason,
    wire::{
        Headers, NakCode, OpcodeInfo, Operation, Packet, Path, PathSpec, Position, Roce, Service, Syndrome, dest_qpn,
        parse, udp_source_port,
    },
};
use roced_types::Qpn;

const FRAMES: usize = 976;
const IPV6_FRAMES: usize = 61;
const CORRUPTED: (&str, usize) = ("corrupt_icrc_send_middle.tapB.pcap", 2);

fn parsed(frame: &CapturedFrame) -> Packet<'_> {
    parse(&[&frame.bytes]).unwrap_or_else(|reason| panic!("{} {}: {reason:?}", frame.file, frame.index))
}

#[test]
fn every_frame_is_read_and_only_the_corrupted_one_refused() {
    let mut held = 0;
    for frame in frames() {
        let packet = parsed(&frame);
        assert_eq!(dest_qpn(&[&frame.bytes]), Some(packet.bth.dest_qpn));
        assert_eq!(packet.bth.pkey, Pkey::DEFAULT);
        let wire = &frame.bytes[frame.bytes.len() - 4..];
        if (frame.file.as_str(), frame.index) == CORRUPTED {
            assert_eq!(packet.check_integrity(), Err(DropReason::BadIcrc));
            assert_ne!(model::icrc(&frame.bytes), wire);
        } else {
            assert_eq!(packet.check_integrity(), Ok(()), "{} {}", frame.file, frame.index);
            assert_eq!(model::icrc(&frame.bytes), wire);
            held += 1;
        }
    }
    assert_eq!(held, FRAMES - 1);
}

/// The README was written from the output of tshark and scapy for the frames.
#[test]
fn opcodes_syndromes_and_queue_pairs_are_those_of_the_readme() {
    let readme = std::fs::read_to_string(directory().join("README.md")).expect("the README is there");
    let mut rows = 0;
    for row in readme.lines().filter(|line| line.starts_with("| ") && line.contains(".pcap |")) {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, file, _, count, opcodes, syndromes, qpns, ..] = columns[..] else { panic!("{row}") };
        let (mut seen_opcodes, mut seen_syndromes, mut seen_qpns) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let captured = frames_of(file);
        for frame in &captured {
            let packet = parsed(frame);
            *seen_opcodes.entry(readme_opcode(packet.info)).or_default() += 1;
            if let Some(aeth) = packet.aeth {
                *seen_syndromes.entry(readme_syndrome(aeth.syndrome)).or_default() += 1;
            }
            seen_qpns.insert(format!("0x{:x}", packet.bth.dest_qpn.get()), ());
        }
        assert_eq!(captured.len().to_string(), count, "{file}");
        assert_eq!(seen_opcodes, counts(opcodes, " "), "{file}");
        assert_eq!(seen_syndromes, counts(syndromes, " x"), "{file}");
        assert_eq!(seen_qpns, qpns.split(' ').map(|qpn| (qpn.to_owned(), ())).collect(), "{file}");
        rows += 1;
    }
    assert_eq!(rows, files().len());
}

fn counts(column: &str, before_number: &str) -> BTreeMap<String, usize> {
    let entries = column.split(", ").filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (name, count) = entry.rsplit_once(before_number).expect("a name and a count");
            (name.to_owned(), count.parse().expect("a count"))
        })
        .collect()
}

fn readme_opcode(info: &OpcodeInfo) -> String {
    let service = match info.service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        other => panic!("{other:?} was not captured"),
    };
    let operation = match info.operation {
        Operation::Send => "SEND",
        Operation::Write => "WRITE",
        Operation::ReadResponse => "RRESP",
        Operation::ReadRequest => return format!("{service}_READ_Req"),
        Operation::Ack => return format!("{service}_ACK"),
        Operation::AtomicAck => return format!("{service}_ATOMIC_ACK"),
        Operation::CompareSwap => return format!("{service}_CMP_SWAP"),
        Operation::FetchAdd => return format!("{service}_FETCH_ADD"),
        other => panic!("{other:?} was not captured"),
    };
    let position = match info.position {
        Position::First => "First",
        Position::Middle => "Middle",
        Position::Last => "Last",
        Position::Only => "Only",
    };
    let more = match (info.has_imm, info.has_ieth) {
        (true, _) => "Imm",
        (_, true) => "Inv",
        _ => "",
    };
    format!("{service}_{operation}_{position}{more}")
}

fn readme_syndrome(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { credit } => format!("ACK(cc{credit})"),
        Syndrome::Rnr { timer } => format!("RNR_NAK(timer{timer})"),
        Syndrome::Nak(NakCode::PsnSequence) => "NAK_PSN".to_owned(),
        Syndrome::Nak(NakCode::RemoteAccess) => "NAK_REMACC".to_owned(),
        Syndrome::Nak(NakCode::RemoteOperation) => "NAK_REMOP".to_owned(),
        other => panic!("{other:?} was not captured"),
    }
}

/// The logs of rxt name the queue pairs, and so the UDP source ports that Linux gave them.
#[test]
fn source_ports_are_those_that_linux_chose() {
    let number = |line: &str, key: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(key))?;
        u32::from_str_radix(value.strip_prefix("0x")?, 16).ok().map(Qpn::from_wire)
    };
    let mut compared = 0;
    for file in files() {
        let log = log_of(&file);
        let pairs = log.lines().filter_map(|line| Some((number(line, "qpn=")?, number(line, "remote_qpn=")?)));
        let ports: BTreeMap<_, _> = pairs.map(|(local, remote)| (remote, udp_source_port(0, local, remote))).collect();
        for frame in frames_of(&file) {
            let packet = parsed(&frame);
            if packet.info.service == Service::Ud {
                continue;
            }
            if let Some(port) = ports.get(&packet.bth.dest_qpn) {
                assert_eq!(packet.roce, Roce::V2 { udp_source_port: *port }, "{file} {}", frame.index);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 561);
}

/// Every packet made again by the transport's own builder is the captured frame, byte for byte, but
/// for this and nothing else:
///
/// * the IPv4 identification is 0, so the IPv4 header checksum is that of a header with 0 there,
///   and the ICRC, which covers the identification, that of such a packet;
/// * the corrupted frame gets an ICRC that holds;
/// * MigReq: once with MigReq as captured (0), when an IPv6 frame comes back wholly as it was, ICRC
///   included, and once with MigReq 1 as we send it, when that bit is set and the ICRC that of such
///   a packet.
///
/// The expected ICRC and IPv4 checksum come from the slow models.
#[test]
fn every_packet_is_built_again_as_it_was() {
    let (mut built, mut untouched, mut renumbered) = (0, 0, 0);
    for frame in frames() {
        let packet = parsed(&frame);
        for mig_req in [false, true] {
            let expected = expected(&frame, mig_req);
            let mut headers = headers_of(&packet);
            assert!(!headers.bth.mig_req, "rxe sends 0");
            headers.bth.mig_req = mig_req;
            assert_eq!(build(&frame, &packet, &headers, &[]), expected, "{} {}", frame.file, frame.index);
            built += 1;
            untouched += usize::from(expected == frame.bytes);
        }
        let ip = ip_at(&frame.bytes);
        renumbered += usize::from(frame.bytes[ip] >> 4 == 4 && frame.bytes[ip + 4..ip + 6] != [0, 0]);
    }
    assert_eq!((built, untouched, renumbered), (2 * FRAMES, IPV6_FRAMES, FRAMES - IPV6_FRAMES));
}

/// The same with the frame memory, and then the frame to be read, cut into two to four pieces at
/// awkward places.
#[test]
fn frames_in_pieces_are_built_and_read_the_same() {
    let (mut built, mut read) = (0, 0);
    for frame in frames() {
        let packet = parsed(&frame);
        let headers = headers_of(&packet);
        let expected = expected(&frame, false);
        let payload: Vec<u8> = packet.payload().flatten().copied().collect();
        let body_at = bth_at(&expected) + packet.info.header_bytes;
        let intact = (frame.file.as_str(), frame.index) != CORRUPTED;
        for cuts in awkward_cuts(body_at, expected.len()) {
            assert_eq!(build(&frame, &packet, &headers, &cuts), expected, "{} {} at {cuts:?}", frame.file, frame.index);
            built += 1;
            if cuts[0] < body_at {
                continue;
            }
            let again = parse(&cut(&frame.bytes, &cuts)).expect("the headers lie in the first piece");
            assert_eq!(headers_of(&again), headers);
            assert!(again.payload().all(|piece| !piece.is_empty()));
            assert_eq!(again.payload().map(<[u8]>::len).sum::<usize>(), again.payload_len());
            assert!(again.payload().flatten().eq(&payload));
            assert_eq!(again.check_integrity().is_ok(), intact);
            read += 1;
        }
    }
    assert_eq!((built, read), (473 * FRAMES, 89_096));
}

/// One to three cuts, 473 choices. Two may be at the same place: a piece may be empty.
fn awkward_cuts(body_at: usize, end: usize) -> Vec<Vec<usize>> {
    let mut places =
        vec![0, 1, 13, 14, 33, 41, 45, body_at - 1, body_at, body_at + 1, (body_at + end) / 2, end - 5, end - 4];
    places.extend([end - 3, end - 1, end]);
    places.retain(|place| *place <= end);
    places.sort_unstable();
    let mut cuts: Vec<Vec<usize>> = Vec::new();
    for (at, first) in places.iter().enumerate() {
        cuts.push(vec![*first]);
        for (at, second) in places.iter().enumerate().skip(at) {
            cuts.push(vec![*first, *second]);
            // Every third one is enough of the triples.
            cuts.extend(places.iter().skip(at).step_by(3).map(|third| vec![*first, *second, *third]));
        }
    }
    cuts
}

fn build(frame: &CapturedFrame, packet: &Packet<'_>, headers: &Headers, cuts: &[usize]) -> Vec<u8> {
    let path = Path::new(&path_spec(&frame.bytes, packet)).expect("both GIDs are of one family");
    // Filled with something that no frame memory should keep.
    let mut memory = vec![0xa5; path.frame_bytes(headers, packet.payload_len())];
    let mut payload = packet.payload().flatten();
    let mut target = FrameMut::over(cut_mut(&mut memory, cuts).into_iter());
    path.fill(&mut target, headers, packet.payload_len(), |piece| {
        for byte in piece {
            *byte = *payload.next().expect("no more is asked for than there is");
        }
        Ok(())
    })
    .expect("no thread gave up");
    assert_eq!((target.remaining(), payload.next()), (0, None));
    memory
}

fn path_spec(bytes: &[u8], packet: &Packet<'_>) -> PathSpec {
    let ip = ip_at(bytes);
    PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: bytes[6..12].try_into().expect("six bytes"),
        dest_mac: bytes[..6].try_into().expect("six bytes"),
        vlan: None,
        source: packet.source,
        destination: packet.destination,
        traffic_class: packet.traffic_class,
        hop_limit: packet.hop_limit,
        flow_label: u32::from_be_bytes(bytes[ip..ip + 4].try_into().expect("four bytes")),
        roce: packet.roce,
    }
}

fn expected(frame: &CapturedFrame, mig_req: bool) -> Vec<u8> {
    let mut bytes = frame.bytes.clone();
    let (ip, bth) = (ip_at(&bytes), bth_at(&bytes));
    let v4 = bytes[ip] >> 4 == 4;
    if v4 {
        bytes[ip + 4..ip + 6].fill(0);
        fix_ipv4_checksum(&mut bytes);
    }
    if mig_req {
        bytes[bth + 1] |= 0x40;
    }
    if v4 || mig_req {
        fix_icrc(&mut bytes);
    }
    bytes
}
