//! Netlink sockets: one to ask on, one that hears of changes.

use std::{io, os::fd::AsFd, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
    time::{ClockId, clock_gettime},
};

/// Largest datagram that the kernel sends on a dump or as an event.
const DATAGRAM_BYTES: usize = 1 << 17;

/// The kernel answers at once; this only keeps a kernel that does not from hanging us.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Room for events that we were not told of in time. Beyond it the kernel says so and everything is read anew.
const EVENT_BUFFER_BYTES: usize = 1 << 20;

// RTNLGRP_* as bind() takes them: bit (group - 1).
const GROUPS: u32 = 1 << 0 // links
    | 1 << 2 // neighbors
    | 1 << 4 // IPv4 addresses
    | 1 << 6 // IPv4 routes
    | 1 << 8 // IPv6 addresses
    | 1 << 10; // IPv6 routes

/// Asks the kernel and waits for its answer.
#[derive(Debug)]
pub(super) struct Requests {
    socket: Socket,
    sequence: u32,
}

impl Requests {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let timeout = TimeVal::new(ANSWER_TIMEOUT.as_secs() as i64, 0);
        setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &timeout)?;
        // A start that cannot be mistaken for that of another socket's answer.
        let sequence = clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_nsec() as u32;
        Ok(Self { socket, sequence })
    }

    /// Everything that a dump gives.
    pub(super) fn dump(&mut self, what: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(what, NLM_F_REQUEST | NLM_F_DUMP)
    }

    /// The one answer to a question.
    pub(super) fn get(&mut self, what: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK)
    }

    /// Makes the kernel create something.
    pub(super) fn create(&mut self, what: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).map(|_| ())
    }

    fn ask(&mut self, what: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(what));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            datagram.clear();
            self.socket.recv(&mut datagram, 0)?;
            for message in Messages(&datagram) {
                if message.header.sequence_number != self.sequence {
                    // Of a question whose answer came too late.
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

/// Hears of changes.
#[derive(Debug)]
pub(super) struct Events {
    socket: Socket,
    datagram: Vec<u8>,
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// These changes, in order.
    Changes(Vec<RouteNetlinkMessage>),
    /// Changes were lost: read everything anew.
    Lost,
}

impl Events {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(EVENT_BUFFER_BYTES as u32)?;
        Ok(Self { socket, datagram: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    /// For epoll.
    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes all that waits.
    pub(super) fn drain(&mut self) -> io::Result<Heard> {
        let mut changes = Vec::new();
        let mut lost = false;
        loop {
            self.datagram.clear();
            match self.socket.recv_from(&mut self.datagram, 0) {
                Ok((_, from)) if from.port_number() == 0 => {
                    changes.extend(Messages(&self.datagram).filter_map(|message| match message.payload {
                        NetlinkPayload::InnerMessage(inner) => Some(inner),
                        _ => None,
                    }));
                }
                // Only the kernel, port 0, tells what is.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(if lost { Heard::Lost } else { Heard::Changes(changes) });
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The messages of a datagram. What this library cannot read is passed over: new attributes come with every kernel.
struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = NetlinkMessage<RouteNetlinkMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        const HEADER_BYTES: usize = 16;
        while self.0.len() >= HEADER_BYTES {
            let length = u32::from_ne_bytes(self.0.first_chunk().copied()?) as usize;
            if length < HEADER_BYTES || length > self.0.len() {
                return None;
            }
            let (message, rest) = self.0.split_at(length);
            self.0 = &rest[(length.next_multiple_of(4) - length).min(rest.len())..];
            if let Ok(message) = NetlinkMessage::deserialize(message) {
                return Some(message);
            }
        }
        None
    }
}
