//! The NAPI instances of an interface, by the kernel's generic netlink family "netdev" (Linux 6.8; to switch threads 6.17).

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
};

/// The family that knows of families: its number, what it is asked, and what it answers (`linux/genetlink.h`).
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// `linux/netdev.h`.
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_THREADED: u16 = 8;

// `linux/netlink.h`.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The lower bits of an attribute's type; the upper two are flags.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Of a message, and of what a generic one has behind that.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;

/// The kernel answers at once; this only keeps a kernel that does not from hanging us.
const ANSWER_SECONDS: i64 = 2;

/// A NAPI instance: what polls one or several queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Napi {
    /// Its number in the kernel.
    pub(super) id: u32,
    /// Its thread, if it has one, as the first PID namespace counts.
    pub(super) pid: Option<u32>,
    /// It runs in a thread. `None`: the kernel does not say, nor can it be told here.
    pub(super) threaded: Option<bool>,
}

/// Asks and tells the family "netdev".
#[derive(Debug)]
pub(super) struct Netdev {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Netdev {
    /// # Errors
    /// The kernel's; `ENOENT` when it does not have the family.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS, 0))?;
        let mut netdev = Self { socket, family: GENL_ID_CTRL, sequence: 0 };
        let mut family = None;
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        netdev.ask(CTRL_CMD_GETFAMILY, NLM_F_ACK, &name, |attributes| {
            family = family.or(find(attributes, CTRL_ATTR_FAMILY_ID).and_then(|value| value.first_chunk().copied()));
        })?;
        netdev.family = u16::from_ne_bytes(family.ok_or(Errno::ENOENT)?);
        Ok(netdev)
    }

    /// The NAPI instances of an interface, by number.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn napis(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let mut napis = Vec::new();
        let of = attribute(NETDEV_A_NAPI_IFINDEX, &ifindex.to_ne_bytes());
        self.ask(NETDEV_CMD_NAPI_GET, NLM_F_DUMP, &of, |attributes| {
            let number = |kind| find(attributes, kind)?.first_chunk().copied().map(u32::from_ne_bytes);
            if number(NETDEV_A_NAPI_IFINDEX) == Some(ifindex)
                && let Some(id) = number(NETDEV_A_NAPI_ID)
            {
                let threaded = number(NETDEV_A_NAPI_THREADED).map(|threaded| threaded != 0);
                napis.push(Napi { id, pid: number(NETDEV_A_NAPI_PID), threaded });
            }
        })?;
        napis.sort_unstable_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// Gives a NAPI instance a thread of its own, or takes it away.
    ///
    /// # Errors
    /// The kernel's: it is older, or we may not.
    pub(super) fn set_threaded(&mut self, id: u32, threaded: bool) -> io::Result<()> {
        let mut what = attribute(NETDEV_A_NAPI_ID, &id.to_ne_bytes());
        what.extend(attribute(NETDEV_A_NAPI_THREADED, &u32::from(threaded).to_ne_bytes()));
        self.ask(NETDEV_CMD_NAPI_SET, NLM_F_ACK, &what, |_| {})
    }

    /// Sends a request; `on_answer` gets the attributes of each answer.
    fn ask(&mut self, command: u8, flags: u16, attributes: &[u8], mut on_answer: impl FnMut(&[u8])) -> io::Result<()> {
        self.sequence += 1;
        let mut request = Vec::new();
        request.extend(((HEADER_BYTES + GENERIC_BYTES + attributes.len()) as u32).to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([command, 1, 0, 0]);
        request.extend(attributes);
        self.socket.send(&request, 0)?;
        loop {
            let (datagram, _) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            for (kind, sequence, body) in messages(&datagram) {
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = body.first_chunk().copied().map_or(-libc::EPROTO, i32::from_ne_bytes);
                        let refused = || Err(io::Error::from_raw_os_error(code.saturating_neg()));
                        return if code == 0 { Ok(()) } else { refused() };
                    }
                    _ => on_answer(body.get(GENERIC_BYTES..).unwrap_or_default()),
                }
            }
        }
    }
}

/// The bytes of an attribute, padding included.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The messages of a datagram: kind, sequence number, and what is behind the header. What is cut short is left out.
fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
        let message = rest.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let sequence = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
        Some((kind, sequence, &message[HEADER_BYTES..]))
    })
}

/// The value of the first attribute of that kind.
fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut rest = attributes;
    loop {
        let [low, high, kind_low, kind_high] = *rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([kind_low, kind_high]) & NLA_TYPE_MASK == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_not_beyond_the_end() {
        let mut bytes = attribute(7, b"abc");
        bytes.extend(attribute(NETDEV_A_NAPI_ID | 0x8000, &5u32.to_ne_bytes()));
        assert_eq!(find(&bytes, 7), Some(&b"abc"[..]));
        assert_eq!(find(&bytes, NETDEV_A_NAPI_ID), Some(&5u32.to_ne_bytes()[..]));
        assert_eq!(find(&bytes, 9), None);
        for cut in 0..bytes.len() {
            assert!(find(&bytes[..cut], NETDEV_A_NAPI_ID).is_none(), "{cut}");
        }
        assert_eq!(find(&[0; 16], 1), None, "an attribute shorter than its header ends it");
    }

    #[test]
    fn messages_are_read_one_behind_the_other() {
        let message = |sequence: u32, body: &[u8]| {
            let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend([3, 0, 0, 0]);
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(body);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let both = [message(1, b"x"), message(2, b"yz")].concat();
        let read: Vec<_> = messages(&both).map(|(_, sequence, body)| (sequence, body.to_vec())).collect();
        assert_eq!(read, [(1, b"x".to_vec()), (2, b"yz".to_vec())]);
        assert_eq!(messages(&both[..both.len() - 3]).count(), 1, "the second is cut short");
        assert_eq!(messages(&[1, 0, 0, 0, 9, 9]).count(), 0);
    }
}
