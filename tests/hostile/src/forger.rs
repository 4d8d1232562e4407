//! Forged RoCE frames from a packet socket, as fast as one core makes them. Every ICRC is right.
#![expect(unsafe_code, reason = "sendmmsg and the options of packet sockets")]

use std::{
    fs::File,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, bind, socket},
};
use roced_transport::{
    io::{Egress, FrameMut},
    mr::MrKey,
    psn::Psn,
    wire::{
        Aeth, Deth, Reth, Roce,
        bth::Bth,
        headers::Headers,
        opcode::Opcode,
        path::{Path as FramePath, PathSpec},
    },
};
use roced_types::Qpn;

use crate::{network::INTERFACE, random::Seeded};

/// Frames of one system call.
const BATCH: usize = 64;

/// First bytes of the payload of each forged frame.
pub(crate) const MARK: &[u8; 16] = b"FORGEDFORGEDFORG";

/// Guess of the destination's queue pair number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QpnGuess {
    /// It is known.
    Known(u32),
    /// Any number of 24 bits.
    Any,
}

/// Forged frames.
#[derive(Clone, Debug)]
pub(crate) struct Forgery {
    /// Network namespace to send from.
    pub(crate) space: String,
    /// MAC addresses: source, destination.
    pub(crate) macs: [[u8; 6]; 2],
    /// GIDs: source, destination.
    pub(crate) gids: [[u8; 16]; 2],
    /// Opcodes, in random turn.
    pub(crate) opcodes: Vec<Opcode>,
    /// Queue pair.
    pub(crate) qpn: QpnGuess,
    /// UDP source port; `None`: random ones.
    pub(crate) port: Option<u16>,
    /// PSN, and the bits of it that are random.
    pub(crate) psn: (u32, u32),
    /// Bytes of payload, where the opcode has one.
    pub(crate) payload_bytes: usize,
    /// Key of datagrams.
    pub(crate) qkey: u32,
    /// Queue pair that datagrams claim as their source.
    pub(crate) source_qpn: u32,
    /// Frames to send; `None`: until stopped.
    pub(crate) frames: Option<u64>,
    /// Seed of the random parts.
    pub(crate) seed: u64,
}

impl Forgery {
    fn frame(&self, random: &mut Seeded, bytes: &mut Vec<u8>) -> Result<()> {
        let spec = PathSpec {
            via: Egress::Nic { flow: 0 },
            source_mac: self.macs[0],
            dest_mac: self.macs[1],
            vlan: None,
            source: self.gids[0],
            destination: self.gids[1],
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V2 { udp_source_port: self.port.unwrap_or(0xc000 | random.next() as u16 & 0x3fff) },
        };
        let path = FramePath::new(&spec).context("two addresses of one family")?;
        let opcode = random.of(&self.opcodes);
        let qpn = match self.qpn {
            QpnGuess::Known(qpn) => qpn,
            QpnGuess::Any => random.next() as u32,
        };
        let psn = self.psn.0 & !self.psn.1 | random.next() as u32 & self.psn.1;
        let info = opcode.info().context("an opcode of the table")?;
        let syndrome = random.of(&[0x1f, 0x1f, 0x60, 0x61, 0x62, 0x63, 0x64, 0x20]);
        let length = self.payload_bytes as u32;
        let headers = Headers {
            deth: info.has_deth.then(|| Deth { qkey: self.qkey, source_qpn: Qpn::from_wire(self.source_qpn) }),
            reth: info.has_reth.then(|| Reth { va: random.next(), rkey: MrKey(random.next() as u32), length }),
            aeth: info.has_aeth.then(|| Aeth::from_bytes(&[syndrome, 0, 0, random.next() as u8])),
            imm: info.has_imm.then_some([0xff; 4]),
            ..Headers::new(Bth { ack_request: true, ..Bth::new(opcode, Qpn::from_wire(qpn), Psn::new(psn)) })
        };
        let payload_bytes = if info.payload { self.payload_bytes } else { 0 };
        bytes.resize(path.frame_bytes(&headers, payload_bytes), 0);
        let filled = path.fill(&mut FrameMut::single(bytes), &headers, payload_bytes, |piece| {
            for (byte, mark) in piece.iter_mut().zip(MARK.iter().cycle()) {
                *byte = *mark;
            }
            Ok(())
        });
        ensure!(filled.is_ok(), "the frame has room");
        Ok(())
    }
}

/// A forger at work.
#[derive(Debug)]
pub(crate) struct Forger {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
    begin: Instant,
}

impl Forger {
    /// Begins to send.
    pub(crate) fn start(forgery: Forgery) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || forge(&forgery, &stopped, &count));
        Self { stop, sent, thread: Some(thread), begin: Instant::now() }
    }

    /// Waits for the last of a given number of frames.
    pub(crate) fn wait(mut self) -> Result<()> {
        self.thread.take().context("it runs")?.join().ok().context("the forger panicked")?
    }

    /// Ends; returns the frames a second.
    pub(crate) fn finish(mut self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let rate = self.sent.load(Ordering::Relaxed) as f64 / self.begin.elapsed().as_secs_f64();
        self.thread.take().context("it runs")?.join().ok().context("the forger panicked")??;
        Ok(rate)
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its error is of no interest beside the one that ends the attack.
            let _ = thread.join();
        }
    }
}

fn forge(forgery: &Forgery, stop: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let socket = packet_socket(&forgery.space)?;
    let mut random = Seeded::new(forgery.seed);
    let mut frames = vec![Vec::new(); BATCH];
    let mut left = forgery.frames.unwrap_or(u64::MAX);
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let count = left.min(BATCH as u64) as usize;
        for frame in &mut frames[..count] {
            forgery.frame(&mut random, frame)?;
        }
        let done = send_all(&socket, &frames[..count])?;
        sent.fetch_add(done as u64, Ordering::Relaxed);
        left -= done as u64;
    }
    Ok(())
}

/// A packet socket on the interface of a network namespace, which this thread enters for good.
fn packet_socket(space: &str) -> Result<OwnedFd> {
    let namespace = File::open(format!("/run/netns/{space}")).context("the network namespace")?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("setns: is this root?")?;
    let mut all = getifaddrs()?.filter(|interface| interface.interface_name == INTERFACE);
    let address = all.find_map(|interface| interface.address?.as_link_addr().copied()).context("no interface")?;
    // Protocol 0: it sends, and receives nothing.
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>)?;
    bind(socket.as_raw_fd(), &address).context("binding the packet socket")?;
    let bypass: libc::c_int = 1;
    // SAFETY: the option is an int, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const bypass).cast(),
            size_of_val(&bypass) as libc::socklen_t,
        )
    };
    Errno::result(result).context("PACKET_QDISC_BYPASS")?;
    Ok(socket)
}

/// Sends frames; returns the number of those that the interface took.
fn send_all(socket: &OwnedFd, frames: &[Vec<u8>]) -> Result<usize> {
    let mut pieces: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = pieces
        .iter_mut()
        .map(|piece| {
            // SAFETY: all zeros is a message header without pointers.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (piece, 1);
            message
        })
        .collect();
    // SAFETY: the headers name `pieces`, those name `frames`, and all live through the call, which
    // only reads.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
    match Errno::result(sent) {
        Ok(count) => Ok(count as usize),
        // The receiver's ring is full: the frame is lost, as on a wire.
        Err(Errno::ENOBUFS | Errno::EINTR | Errno::EAGAIN) => Ok(0),
        Err(error) => Err(error).context("sendmmsg"),
    }
}

#[cfg(test)]
mod tests {
    use roced_transport::wire::{opcode, parse};

    use super::*;

    #[test]
    fn forged_frames_are_right_but_for_their_origin() {
        let gid = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last];
        let forgery = Forgery {
            space: String::new(),
            macs: [[2; 6], [4; 6]],
            gids: [gid(2), gid(1)],
            opcodes: vec![opcode::RC_SEND_ONLY, opcode::RC_WRITE_ONLY, opcode::RC_ACK, opcode::UD_SEND_ONLY],
            qpn: QpnGuess::Known(0x12_3456),
            port: None,
            psn: (0xab_0000, 0xffff),
            payload_bytes: 64,
            qkey: 1,
            source_qpn: 2,
            frames: None,
            seed: 1,
        };
        let (mut random, mut frame) = (Seeded::new(1), Vec::new());
        for _ in 0..200 {
            forgery.frame(&mut random, &mut frame).expect("a frame");
            let pieces = [&frame[..]];
            let packet = parse(&pieces).expect("all lengths agree");
            packet.check_integrity().expect("a right ICRC");
            assert_eq!((packet.source, packet.destination), (gid(2), gid(1)));
            assert_eq!((packet.bth.dest_qpn.get(), packet.bth.psn.get() >> 16), (0x12_3456, 0xab));
            if packet.info.payload {
                let payload: Vec<u8> = packet.payload().flatten().copied().collect();
                assert!(payload.starts_with(MARK) && payload.len() == 64, "{payload:?}");
            }
        }
    }
}
