//! Management datagrams at full rate to queue pair 1 of a peer, in the name of any address, from a
//! packet socket.

use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, send, socket},
};
use roced_cm::wire::{
    AdditionalInfo, Attribute, CaGuid, CmMessage, CmaAddress, CmaHeader, CommId, ConnectionPath, Dreq, Mad, PortSpace,
    Rej, RejectedMessage, Rep, Req, Rtu, ServiceId, TransactionId, TransportService, reject_reason,
};
use roced_transport::{
    io::{Egress, FrameMut},
    management::MAD_BYTES,
    psn::Psn,
    wire::{
        Deth, Roce,
        bth::Bth,
        headers::Headers,
        opcode,
        path::{Path, PathSpec},
    },
};
use roced_types::{Qpn, gid_of};

use crate::end::say;

/// Frames that are prepared, and sent in turn.
const FRAMES: u32 = 4096;

/// Content of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Content {
    /// Requests of random hosts for connections with a port.
    Requests,
    /// Answers of any kind, with random numbers, of random hosts and of this one.
    Answers,
    /// Requests to another UDP port: the peer's kernel drops them.
    Nothing,
}

/// Target of a flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) mac: [u8; 6],
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
}

impl Target {
    pub(crate) fn new(mac: &str, address: Ipv4Addr, port: u16) -> Result<Self> {
        let octets: Vec<u8> = mac
            .trim()
            .split(':')
            .map(|octet| u8::from_str_radix(octet, 16))
            .collect::<Result<_, _>>()
            .with_context(|| format!("'{mac}' is no MAC address"))?;
        let mac = octets.try_into().ok().with_context(|| format!("'{mac}' is no MAC address"))?;
        Ok(Self { mac, address, port })
    }
}

/// Sends from `interface` for `time`, and says how many were sent.
pub(crate) fn flood(interface: &str, own: Ipv4Addr, to: Target, content: Content, time: Duration) -> Result<()> {
    let link = link_address(interface)?;
    let frames: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| frame(number, own, link.addr().unwrap_or_default(), to, content))
        .collect::<Result<_>>()?;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .context("a packet socket: is this root?")?;
    bind(socket.as_raw_fd(), &link).with_context(|| format!("binding to '{interface}'"))?;
    say("floods")?;
    let (begin, mut sent) = (Instant::now(), 0_u64);
    while begin.elapsed() < time {
        for frame in &frames {
            match send(socket.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(bytes) => ensure!(bytes == frame.len(), "a frame of {} bytes was cut", frame.len()),
                Err(Errno::ENOBUFS | Errno::EINTR) => continue,
                Err(error) => return Err(error).context("sending"),
            }
            sent += 1;
        }
    }
    say(&format!("sent {sent}, {:.0} a second", sent as f64 / begin.elapsed().as_secs_f64()))
}

fn link_address(name: &str) -> Result<LinkAddr> {
    let mut all = getifaddrs().context("the interfaces")?.filter(|interface| interface.interface_name == name);
    let address = all.find_map(|interface| interface.address?.as_link_addr().copied());
    address.with_context(|| format!("no interface '{name}'"))
}

/// Numbers that repeat from run to run and look like none.
fn scrambled(number: u32) -> u32 {
    let mixed = number.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
    mixed ^ mixed >> 15
}

fn frame(number: u32, own: Ipv4Addr, mac: [u8; 6], to: Target, content: Content) -> Result<Vec<u8>> {
    let random = scrambled(number);
    // Every second answer is in the name of this host.
    let source =
        if content == Content::Answers && number.is_multiple_of(2) { own } else { unknown_peer(random, to.address) };
    let message = match content {
        Content::Requests | Content::Nothing => request(number, source, to),
        Content::Answers => answer(number, random),
    };
    let bytes = Mad { transaction: TransactionId(random.into()), modifier: 0, message }.to_bytes();
    let spec = PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: mac,
        dest_mac: to.mac,
        vlan: None,
        source: gid_of(IpAddr::V4(source)),
        destination: gid_of(IpAddr::V4(to.address)),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 | random as u16 & 0x3fff },
    };
    let path = Path::new(&spec).context("both are IPv4")?;
    let headers = Headers {
        deth: Some(Deth { qkey: 0x8001_0000, source_qpn: Qpn::GSI }),
        ..Headers::new(Bth::new(opcode::UD_SEND_ONLY, Qpn::GSI, Psn::default()))
    };
    let mut frame = vec![0; path.frame_bytes(&headers, MAD_BYTES)];
    let mut rest = &bytes[..];
    let filled = path.fill(&mut FrameMut::single(&mut frame), &headers, MAD_BYTES, |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok(())
    });
    ensure!(filled.is_ok(), "the frame has room");
    if content == Content::Nothing {
        // Behind Ethernet, IPv4 and the source port.
        frame[14 + 20 + 2..14 + 20 + 4].copy_from_slice(&4790_u16.to_be_bytes());
    }
    Ok(frame)
}

/// An address of the target's network of 24 bits, or of any other.
fn unknown_peer(random: u32, target: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = target.octets();
    match random % 2 {
        0 => Ipv4Addr::new(a, b, c, 3 + (random >> 8) as u8 % 250),
        _ => Ipv4Addr::from(0x0b00_0000 | random >> 4 & 0x00ff_ffff),
    }
}

fn request(number: u32, source: Ipv4Addr, to: Target) -> CmMessage {
    let header = CmaHeader {
        source_port: 1024 + number as u16 % 60_000,
        addresses: CmaAddress::Ipv4([source.octets(), to.address.octets()]),
    };
    let mut private_data = [0; 92];
    private_data[..CmaHeader::BYTES].copy_from_slice(&header.to_bytes());
    let CmMessage::Req(req) = zeros(Attribute::Req) else { unreachable!("a REQ of zeros is one") };
    let primary = ConnectionPath {
        local_gid: gid_of(IpAddr::V4(source)),
        remote_gid: gid_of(IpAddr::V4(to.address)),
        hop_limit: 64,
        ack_timeout: 18,
        ..ConnectionPath::default()
    };
    CmMessage::Req(Req {
        local: CommId(number + 1),
        service_id: ServiceId::of(PortSpace::Tcp, to.port),
        local_ca: CaGuid(u64::from(scrambled(number)) | 1 << 40),
        qpn: Qpn::from_wire(0x1000 + number),
        service: TransportService::Rc,
        initiator_depth: 1,
        responder_resources: 1,
        path_mtu: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        max_cm_retries: 15,
        primary,
        private_data,
        ..req
    })
}

/// A message of zeros.
fn zeros(attribute: Attribute) -> CmMessage {
    let mut bytes = [0; MAD_BYTES];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&attribute.number().to_be_bytes());
    Mad::from_bytes(&bytes).expect("the header is right").message
}

fn answer(number: u32, random: u32) -> CmMessage {
    let (local, remote) = (CommId(random | 1), CommId(scrambled(random)));
    match number / 2 % 4 {
        0 => {
            let CmMessage::Rep(rep) = zeros(Attribute::Rep) else { unreachable!("a REP of zeros is one") };
            CmMessage::Rep(Rep { local, remote, qpn: Qpn::from_wire(0x1000 + number), ..rep })
        }
        1 => CmMessage::Rtu(Rtu { local, remote, private_data: [0; 224] }),
        2 => {
            CmMessage::Dreq(Dreq { local, remote, remote_qpn: Qpn::from_wire(0x1000 + number), private_data: [0; 220] })
        }
        _ => CmMessage::Rej(Rej {
            local,
            remote,
            message: RejectedMessage::Other,
            reason: reject_reason::TIMEOUT,
            info: AdditionalInfo::NONE,
            private_data: [0; 148],
        }),
    }
}
