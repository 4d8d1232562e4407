//! Where the runs begin: the recorded frames, as they are for `frame`, and as steps for the targets
//! of the transport.

use roced_captures::{CapturedFrame, files, frames_of};
use roced_transport::wire::{Operation, Packet, Service, parse};
use roced_types::send_flags;

use crate::{
    completer, datagram,
    packet::{Step, flags},
    responder,
};

/// A run to begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Its source.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Every capture as one run of `of`, which may have none.
fn captures(of: impl Fn(&[CapturedFrame]) -> Option<Vec<u8>>) -> Vec<Seed> {
    files()
        .into_iter()
        .filter_map(|name| {
            let bytes = of(&frames_of(&name))?;
            Some(Seed { name: name.trim_end_matches(".pcap").to_owned(), bytes })
        })
        .collect()
}

/// Every recorded frame.
pub(crate) fn frame() -> Vec<Seed> {
    let of = |frame: CapturedFrame| {
        let name = format!("{}-{}", frame.file.trim_end_matches(".pcap"), frame.index);
        Seed { name, bytes: [&[1, 0, 0, 0, 0], &frame.bytes[..]].concat() }
    };
    roced_captures::frames().into_iter().map(of).collect()
}

/// The first bytes of a run of the transport's targets: which path MTU, and the rest as is usual.
fn settings(mtu: usize) -> Vec<u8> {
    let mtu = [256, 1024, 512, 2048, 4096].iter().position(|known| *known == mtu).unwrap_or(1);
    vec![0, mtu as u8, 0x7f, 0, 0, 0, 0, 0, 0]
}

/// The same runs once more, with receives of a shared queue, from which another queue pair takes
/// some as well.
fn with_shared_receives(seeds: Vec<Seed>) -> Vec<Seed> {
    let shared = seeds.iter().map(|Seed { name, bytes }| {
        let mut bytes = bytes.clone();
        bytes[2] |= 0x80;
        // Two receives behind the settings, one of which is the other's; and the limit is armed.
        bytes.splice(9..9, [9, 1, 0, 0, 0x20, 0, 9, 1, 0, 0, 0x20, 0, 13, 0x2e, 14, 60]);
        Seed { name: format!("{name}-shared"), bytes }
    });
    shared.chain(seeds.iter().cloned()).collect()
}

/// The path MTU of a conversation: the payload of its first packets that are followed by others.
fn mtu_of(frames: &[CapturedFrame]) -> usize {
    let payload = |frame: &CapturedFrame| parse(&[&frame.bytes]).map_or(0, |packet| packet.payload_len());
    frames.iter().map(payload).max().unwrap_or(0).next_power_of_two().clamp(256, 4096)
}

/// Contents of the packet, as a step.
fn step(packet: &Packet<'_>, psn: i16, payload: u16) -> Step {
    let bth = packet.bth;
    let reth = packet.reth;
    Step {
        opcode: bth.opcode.0,
        flags: if bth.solicited { flags::SOLICITED } else { 0 } | if bth.ack_request { flags::ACK_REQUEST } else { 0 },
        psn,
        payload,
        length: reth.map_or(8, |reth| reth.length),
        syndrome: packet.aeth.map_or(0, |aeth| aeth.syndrome.to_byte()),
        ..Step::default()
    }
}

/// The requests of each capture, sent one after the other; receives are there, answers are sent.
pub(crate) fn responder() -> Vec<Seed> {
    with_shared_receives(captures(|frames| {
        let mut run = settings(mtu_of(frames));
        let mut next = None;
        for frame in frames {
            let pieces = [&frame.bytes[..]];
            let Ok(packet) = parse(&pieces) else { continue };
            if packet.info.operation.is_response() {
                run.extend([responder::kind::TRANSMIT, 0]);
                continue;
            }
            if packet.info.operation == Operation::Send || packet.imm.is_some() {
                // One entry of 8 KiB in the first region.
                run.extend([responder::kind::RECV, 1, 0, 0, 0x20, 0]);
            }
            let psn = next.map_or(0, |next| packet.bth.psn.distance_from(next));
            let step = step(&packet, psn.clamp(-100, 100) as i16, packet.payload_len() as u16);
            run.push(responder::kind::PACKET);
            step.write(&mut run);
            let packets = match (packet.info.operation, packet.reth) {
                (Operation::ReadRequest, Some(reth)) => reth.length.div_ceil(mtu_of(frames) as u32).max(1),
                _ => 1,
            };
            next = Some(packet.bth.psn.plus(packets));
        }
        // And once as it was, byte for byte.
        for frame in frames.iter().take(4) {
            run.push(responder::kind::RECORDED);
            run.extend((frame.bytes.len() as u16).to_le_bytes());
            run.push(0);
            run.extend(&frame.bytes);
        }
        (run.len() > 20).then_some(run)
    }))
}

/// Work of every kind, and the answers of each capture to it.
pub(crate) fn completer() -> Vec<Seed> {
    captures(|frames| {
        let mut run = settings(mtu_of(frames));
        for op in [0, 2, 1, 2, 5, 6, 3, 4] {
            // Signaled, one entry of 1.5 KiB, or of 3 KiB for a READ.
            run.extend([completer::kind::POST, op, 2, 1, 0x10, 0, 9]);
            run.extend([0, 0, if op == 2 { 0x0c } else { 0x06 }, 0]);
        }
        run.extend([completer::kind::TRANSMIT, 0]);
        let mut answers = 0;
        for frame in frames {
            let pieces = [&frame.bytes[..]];
            let Ok(packet) = parse(&pieces) else { continue };
            if !packet.info.operation.is_response() {
                run.extend([completer::kind::TRANSMIT, 0]);
                continue;
            }
            answers += 1;
            run.push(completer::kind::ANSWER);
            step(&packet, 0, Step::LEFT).write(&mut run);
        }
        run.extend([completer::kind::TIME, 0x70, completer::kind::TRANSMIT, 0]);
        (answers > 0).then_some(run)
    })
}

/// Work of every kind, then the packets of each capture of a service that answers nothing.
pub(crate) fn datagram() -> Vec<Seed> {
    with_shared_receives(captures(|frames| {
        let mut run = settings(mtu_of(frames));
        // Of the service of its last packet.
        let is_datagram = frames.iter().any(|frame| {
            let pieces = [&frame.bytes[..]];
            parse(&pieces).is_ok_and(|packet| packet.info.service == Service::Ud)
        });
        run[0] |= u8::from(is_datagram) << 3;
        for op in [0, 1, 3, 4] {
            // Signaled, one entry of 1.5 KiB.
            run.extend([datagram::kind::POST, op, 2, 1, 0x10, 0, 9, 0, 0, 6, 0]);
        }
        run.extend([datagram::kind::TRANSMIT, 0]);
        let mut next = None;
        for frame in frames {
            let pieces = [&frame.bytes[..]];
            let Ok(packet) = parse(&pieces) else { continue };
            if !matches!(packet.info.service, Service::Uc | Service::Ud) {
                return None;
            }
            // One entry of 8 KiB in the first region.
            run.extend([datagram::kind::RECV, 1, 0, 0, 0x20, 0]);
            let psn = next.map_or(0, |next| packet.bth.psn.distance_from(next));
            run.push(datagram::kind::PACKET);
            step(&packet, psn.clamp(-100, 100) as i16, packet.payload_len() as u16).write(&mut run);
            next = Some(packet.bth.psn.plus(1));
        }
        for frame in frames.iter().take(2) {
            run.push(datagram::kind::RECORDED);
            run.extend((frame.bytes.len() as u16).to_le_bytes());
            run.push(0);
            run.extend(&frame.bytes);
        }
        Some(run)
    }))
}

/// Each step of a hostile client on its own between work that is done.
pub(crate) fn client_rings() -> Vec<Seed> {
    let send = |op: u8| vec![0, op, send_flags::SIGNALED, 1, 0, 8, 0, 100, 0, 0, 0, 0];
    let turn = [12, 20];
    let mut seeds: Vec<Seed> = (0..16)
        .map(|op| Seed {
            name: format!("op-{op}"),
            bytes: [&[0x83, 1, 0, 200, 0, 0, 0, 0][..], &send(op), &turn, &turn, &turn, &[11, 14]].concat(),
        })
        .collect();
    let step = |name: &str, bytes: &[u8]| Seed {
        name: name.into(),
        bytes: [&send(0), bytes, &turn, &turn, &[15], &send(2), &turn, &[11], &turn].concat(),
    };
    seeds.extend([
        step("words", &[4, 80, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
        step("index", &[0x46, 9]),
        step("any-index", &[7, 0xff, 0xff, 0xff, 0xff]),
        step("doorbells", &[8, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 8, 1, 0xff, 0, 0, 0, 0, 0, 0, 0]),
        step("arm", &[9, 2, 0, 0, 0, 9, 77, 0, 0, 0]),
        step("cq_ring", &[0x4a, 1, 2, 3, 4, 10, 1]),
        // A receive of the shared queue, and a SEND that takes it.
        step("shared", &[&[0x23, 1, 0, 200, 0, 0, 0, 0, 0x2e, 3, 0x10][..], &send(2)[1..]].concat()),
        step("shared-index", &[0x26, 9]),
        step("shared-words", &[0x24, 80, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
    ]);
    seeds
}
