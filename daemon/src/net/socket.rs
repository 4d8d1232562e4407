//! Netlink sockets: one to ask on, one that hears of changes.

use std::{io, os::fd::AsFd, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
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
use tracing::warn;

/// Largest datagram that the kernel sends on a dump or as an event.
const DATAGRAM_BYTES: usize = 1 << 17;

/// The kernel answers at once; this only keeps a kernel that does not from hanging us.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a dump that was overtaken by changes is begun again.
const DUMPS_MAX: usize = 10;

/// Room for events that we were not told of in time. Beyond it the kernel says so and everything is read anew.
const EVENT_BUFFER_BYTES: usize = 1 << 20;

// RTNLGRP_* as bind() takes them: bit (group - 1).
const GROUPS: u32 = 1 << 0 // links
    | 1 << 2 // neighbors
    | 1 << 4 // IPv4 addresses
    | 1 << 6 // IPv4 routes
    | 1 << 7 // IPv4 rules
    | 1 << 8 // IPv6 addresses
    | 1 << 10 // IPv6 routes
    | 1 << 18; // IPv6 rules

/// Asks the kernel and waits for its answer.
#[derive(Debug)]
pub(super) struct Requests {
    socket: Socket,
    sequence: u32,
    /// Messages so far that this library could not read.
    unreadable: u64,
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
        Ok(Self { socket, sequence, unreadable: 0 })
    }

    /// Everything that a dump gives.
    pub(super) fn dump(&mut self, what: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..DUMPS_MAX {
            let (answers, interrupted) = self.ask(what.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            if !interrupted {
                return Ok(answers);
            }
        }
        // The table changes faster than it can be read.
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The one answer to a question.
    pub(super) fn get(&mut self, what: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK).map(|(answers, _)| answers)
    }

    /// Makes the kernel create something.
    pub(super) fn create(&mut self, what: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).map(|_| ())
    }

    /// The answers, and whether something changed while the kernel gave them, so that some may be missing.
    fn ask(&mut self, what: RouteNetlinkMessage, flags: u16) -> io::Result<(Vec<RouteNetlinkMessage>, bool)> {
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
        let mut interrupted = false;
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            datagram.clear();
            match self.socket.recv(&mut datagram, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            for message in Messages(&datagram) {
                let message = match message {
                    Ok(message) => message,
                    Err(error) => {
                        count_unreadable(&mut self.unreadable, &error);
                        continue;
                    }
                };
                if message.header.sequence_number != self.sequence {
                    // Of a question whose answer came too late.
                    continue;
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
                    }
                    NetlinkPayload::Done(_) => return Ok((answers, interrupted)),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok((answers, interrupted)),
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
    /// Messages so far that this library could not read.
    unreadable: u64,
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
        Ok(Self { socket, datagram: Vec::with_capacity(DATAGRAM_BYTES), unreadable: 0 })
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
                    for message in Messages(&self.datagram) {
                        match message.map(|message| message.payload) {
                            Ok(NetlinkPayload::InnerMessage(inner)) => changes.push(inner),
                            Ok(_) => {}
                            Err(error) => count_unreadable(&mut self.unreadable, &error),
                        }
                    }
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

/// Each is a fact that nobody knows, but a log full of them helps nobody either.
fn count_unreadable(so_far: &mut u64, error: &io::Error) {
    *so_far += 1;
    if so_far.is_power_of_two() {
        warn!(%error, %so_far, "netlink told of something in words that are not understood");
    }
}

/// The messages of a datagram.
struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = io::Result<NetlinkMessage<RouteNetlinkMessage>>;

    fn next(&mut self) -> Option<Self::Item> {
        const HEADER_BYTES: usize = 16;
        let length = u32::from_ne_bytes(self.0.first_chunk().copied()?) as usize;
        if length < HEADER_BYTES || length > self.0.len() {
            self.0 = &[];
            return Some(Err(invalid("a netlink message is longer than its datagram")));
        }
        let (message, rest) = self.0.split_at(length);
        self.0 = &rest[(length.next_multiple_of(4) - length).min(rest.len())..];
        Some(NetlinkMessage::deserialize(message).map_err(|error| invalid(error.to_string())))
    }
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(payload: NetlinkPayload<RouteNetlinkMessage>, sequence: u32) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn link(sequence: u32) -> Vec<u8> {
        let mut link = netlink_packet_route::link::LinkMessage::default();
        link.attributes.push(netlink_packet_route::link::LinkAttribute::IfName("eth0".to_owned()));
        bytes(NetlinkPayload::from(RouteNetlinkMessage::NewLink(link)), sequence)
    }

    /// The sequence numbers of what could be read, 0 for what could not.
    fn read(datagram: &[u8]) -> Vec<u32> {
        Messages(datagram).map(|message| message.map_or(0, |message| message.header.sequence_number)).collect()
    }

    #[test]
    fn every_message_of_a_datagram_is_read() {
        let mut odd = bytes(NetlinkPayload::Overrun(vec![1, 2, 3]), 2);
        assert_eq!(odd.len() % 4, 3, "the next one begins after a byte of padding");
        odd.push(0);
        assert_eq!(read(&[link(1), odd.clone(), link(3)].concat()), [1, 2, 3]);
        odd.pop();
        assert_eq!(read(&[link(1), odd].concat()), [1, 2], "the last one may lack its padding");
        assert!(read(&[]).is_empty());
    }

    #[test]
    fn what_cannot_be_read_does_not_hide_what_follows() {
        let mut strange = link(2);
        strange[4..6].copy_from_slice(&999_u16.to_ne_bytes());
        assert_eq!(read(&[link(1), strange, link(3)].concat()), [1, 0, 3]);
    }

    #[test]
    fn a_message_longer_than_its_datagram_or_shorter_than_its_header_ends_it() {
        for length in [0, 15, 10_000, u32::MAX] {
            let mut wrong = link(2);
            wrong[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(read(&[link(1), wrong].concat()), [1, 0], "{length}");
        }
        assert_eq!(read(&link(1)[..20]), [0]);
    }
}
