//! Common part of every protocol of netlink: requests to the kernel, and parsing of datagrams into
//! messages.

use std::{io, os::fd::AsFd, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use nix::{
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
    time::{ClockId, clock_gettime},
};
use tracing::warn;

/// Largest datagram that the kernel sends on a dump or as an event.
pub const DATAGRAM_BYTES: usize = 1 << 17;

/// The kernel answers at once; this only keeps a kernel that does not from hanging us.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a dump that was overtaken by changes is begun again.
const DUMPS_MAX: usize = 10;

/// A netlink message of some family, as request and as reply.
pub trait RequestMessage: NetlinkSerializable + NetlinkDeserializable + Clone {}

impl<M: NetlinkSerializable + NetlinkDeserializable + Clone> RequestMessage for M {}

/// Asks the kernel and waits for its answer.
#[derive(Debug)]
pub struct Requests {
    socket: Socket,
    sequence: u32,
    /// Messages so far that this library could not read.
    unreadable: u64,
}

impl Requests {
    /// A socket of a protocol (`NETLINK_*`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let timeout = TimeVal::new(ANSWER_TIMEOUT.as_secs() as i64, 0);
        setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &timeout)?;
        // A start that cannot be mistaken for that of another socket's answer.
        let sequence = clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_nsec() as u32;
        Ok(Self { socket, sequence, unreadable: 0 })
    }

    /// Everything that a dump gives.
    ///
    /// # Errors
    /// The kernel's; `ResourceBusy` when the table changes faster than it can be read.
    pub fn dump<M: RequestMessage>(&mut self, what: M) -> io::Result<Vec<M>> {
        for _ in 0..DUMPS_MAX {
            let (answers, interrupted) = self.ask(what.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            if !interrupted {
                return Ok(answers);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The one answer to a question.
    ///
    /// # Errors
    /// The kernel's.
    pub fn get<M: RequestMessage>(&mut self, what: M) -> io::Result<Vec<M>> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK).map(|(answers, _)| answers)
    }

    /// Makes the kernel change something.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&mut self, what: impl RequestMessage) -> io::Result<()> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK).map(|_| ())
    }

    /// Makes the kernel create something.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(&mut self, what: impl RequestMessage) -> io::Result<()> {
        self.ask(what, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).map(|_| ())
    }

    /// The answers, and whether something changed while the kernel gave them, so that some may be
    /// missing.
    fn ask<M: RequestMessage>(&mut self, what: M, flags: u16) -> io::Result<(Vec<M>, bool)> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(what));
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
            for message in messages::<M>(&datagram) {
                let message = match message {
                    Ok(message) => message,
                    Err(error) => {
                        count_unreadable(&mut self.unreadable, &error);
                        continue;
                    }
                };
                if message.header.sequence_number != self.sequence {
                    // Of a request with a late reply.
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

/// Each is a lost fact, but a log full of them does not help either.
pub fn count_unreadable(so_far: &mut u64, error: &io::Error) {
    *so_far += 1;
    if so_far.is_power_of_two() {
        warn!(%error, %so_far, "netlink told of something in words that are not understood");
    }
}

/// The messages of a datagram. One that is not understood is an error among the others.
///
/// # Errors
///
/// `InvalidData` of a message that is longer than the datagram or shorter than its header, after
/// which no other comes, and of each that is not understood.
pub fn messages<M: NetlinkDeserializable>(datagram: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<M>>> {
    const HEADER_BYTES: usize = 16;
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.first_chunk().copied()?) as usize;
        let fault = if length < HEADER_BYTES {
            Some("a netlink message is shorter than its header")
        } else if length > rest.len() {
            Some("a netlink message is longer than its datagram")
        } else {
            None
        };
        if let Some(fault) = fault {
            rest = &[];
            return Some(Err(invalid(fault)));
        }
        let message = &rest[..length];
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage::deserialize(message).map_err(|error| invalid(error.to_string())))
    })
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::RouteNetlinkMessage;

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

    /// The sequence numbers of readable messages, 0 for others.
    fn read(datagram: &[u8]) -> Vec<u32> {
        messages::<RouteNetlinkMessage>(datagram)
            .map(|message| message.map_or(0, |message| message.header.sequence_number))
            .collect()
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
    fn an_unreadable_message_does_not_hide_the_next() {
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
