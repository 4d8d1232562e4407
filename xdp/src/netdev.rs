//! The queues and NAPI instances of an interface, by the kernel's generic netlink family "netdev"
//! (Linux 6.8; to switch threads 6.17).

use std::{convert::Infallible, io};

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, parse_u16, parse_u32, parse_u64};
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;

use crate::{attributes::NetlinkAttributes, frame_path::DriverZeroCopy, netlink::Requests};

/// The family of families: its number, its request and its reply (`linux/genetlink.h`).
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// `linux/netdev.h`.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
/// `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
const FEATURE_ZEROCOPY: u64 = 1 << 3;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_THREADED: u16 = 8;

/// Header of a generic message before its attributes: command, version, two zero bytes.
const GENERIC_BYTES: usize = 4;

/// A NAPI instance: polls one or several queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Napi {
    /// Its number in the kernel.
    pub(super) id: u32,
    /// Its thread, if it has one, as the first PID namespace counts.
    pub(super) pid: Option<u32>,
    /// It runs in a thread. `None`: the kernel does not say, nor can it be told here.
    pub(super) threaded: Option<bool>,
}

/// An RX queue that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxQueue {
    /// Its number.
    pub(super) queue: u32,
    /// The number of the NAPI instance that polls it, if the driver tells.
    pub(super) napi: Option<u32>,
}

/// Asks and tells the family "netdev".
#[derive(Debug)]
pub(super) struct Netdev {
    requests: Requests,
    family: u16,
}

impl Netdev {
    /// # Errors
    /// The kernel's; `ENOENT` when it does not have the family.
    pub(super) fn open() -> io::Result<Self> {
        let mut requests = Requests::open(NETLINK_GENERIC)?;
        let question = NetdevMessage::new(GENL_ID_CTRL, CTRL_CMD_GETFAMILY).with(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let family = requests.get(question)?.iter().find_map(|answer| answer.find(CTRL_ATTR_FAMILY_ID, parse_u16));
        Ok(Self { requests, family: family.ok_or(Errno::ENOENT)? })
    }

    /// Zero-copy of an interface's driver.
    pub(super) fn zero_copy(ifindex: u32) -> DriverZeroCopy {
        let asked = Self::open().and_then(|mut netdev| {
            let question = NetdevMessage::new(netdev.family, NETDEV_CMD_DEV_GET);
            netdev.requests.get(question.with(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes()))
        });
        let features = asked.ok().and_then(|answers| answers.into_iter().next());
        features.map_or(DriverZeroCopy::Unknown, |features| features.zero_copy())
    }

    /// The NAPI instances of an interface, by number.
    ///
    /// # Errors
    /// The kernel's; `EOPNOTSUPP` before Linux 6.8.
    pub(super) fn napis(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let mut napis = self.dump(NETDEV_CMD_NAPI_GET, NETDEV_A_NAPI_IFINDEX, ifindex, |answer| {
            let threaded = answer.number(NETDEV_A_NAPI_THREADED).map(|threaded| threaded != 0);
            Some(Napi { id: answer.number(NETDEV_A_NAPI_ID)?, pid: answer.number(NETDEV_A_NAPI_PID), threaded })
        })?;
        napis.sort_unstable_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// The RX queues of an interface, by number.
    ///
    /// # Errors
    /// The kernel's; `EOPNOTSUPP` before Linux 6.8.
    pub(super) fn rx_queues(&mut self, ifindex: u32) -> io::Result<Vec<RxQueue>> {
        let mut queues = self.dump(NETDEV_CMD_QUEUE_GET, NETDEV_A_QUEUE_IFINDEX, ifindex, |answer| {
            let is_rx = answer.number(NETDEV_A_QUEUE_TYPE)? == NETDEV_QUEUE_TYPE_RX;
            let queue = answer.number(NETDEV_A_QUEUE_ID)?;
            is_rx.then_some(RxQueue { queue, napi: answer.number(NETDEV_A_QUEUE_NAPI_ID) })
        })?;
        queues.sort_unstable_by_key(|queue| queue.queue);
        Ok(queues)
    }

    /// Gives a NAPI instance a thread of its own, or takes it away.
    ///
    /// # Errors
    /// The kernel's: it is older, or we may not.
    pub(super) fn set_threaded(&mut self, id: u32, threaded: bool) -> io::Result<()> {
        let which = NetdevMessage::new(self.family, NETDEV_CMD_NAPI_SET).with(NETDEV_A_NAPI_ID, &id.to_ne_bytes());
        self.requests.set(which.with(NETDEV_A_NAPI_THREADED, &u32::from(threaded).to_ne_bytes()))
    }

    /// Results of `read` for each reply about the interface `ifindex`, which attribute `of` names
    /// in request and reply.
    fn dump<T>(
        &mut self,
        command: u8,
        of: u16,
        ifindex: u32,
        read: impl Fn(&NetdevMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let question = NetdevMessage::new(self.family, command).with(of, &ifindex.to_ne_bytes());
        let answers = self.requests.dump(question)?;
        Ok(answers.iter().filter(|answer| answer.number(of) == Some(ifindex)).filter_map(read).collect())
    }
}

/// A message of generic netlink.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NetdevMessage {
    family: u16,
    command: u8,
    attributes: NetlinkAttributes,
}

impl NetdevMessage {
    fn new(family: u16, command: u8) -> Self {
        Self { family, command, attributes: NetlinkAttributes::default() }
    }

    fn with(self, kind: u16, value: &[u8]) -> Self {
        Self { attributes: self.attributes.with(kind, value), ..self }
    }

    /// The value of the first attribute of that kind.
    fn find<T, E>(&self, kind: u16, read: impl Fn(&[u8]) -> Result<T, E>) -> Option<T> {
        read(self.attributes.find(kind)?).ok()
    }

    /// The answer to `NETDEV_CMD_DEV_GET`.
    fn zero_copy(&self) -> DriverZeroCopy {
        match self.find(NETDEV_A_DEV_XDP_FEATURES, parse_u64) {
            None => DriverZeroCopy::Unknown,
            Some(features) if features & FEATURE_ZEROCOPY == 0 => DriverZeroCopy::None,
            // Before Linux 6.6 there are no frames of several chunks.
            Some(_) => DriverZeroCopy::Chunks(self.number(NETDEV_A_DEV_XDP_ZC_MAX_SEGS).unwrap_or(1)),
        }
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.find(kind, parse_u32)
    }
}

impl NetlinkSerializable for NetdevMessage {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENERIC_BYTES + self.attributes.as_bytes().len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..GENERIC_BYTES].copy_from_slice(&[self.command, 1, 0, 0]);
        buffer[GENERIC_BYTES..].copy_from_slice(self.attributes.as_bytes());
    }
}

impl NetlinkDeserializable for NetdevMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let command = payload.first().copied().unwrap_or_default();
        let attributes = NetlinkAttributes::from_bytes(payload.get(GENERIC_BYTES..).unwrap_or_default());
        Ok(Self { family: header.message_type, command, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_an_attribute_of_four_bytes() {
        let message = NetdevMessage::new(20, 1).with(7, b"abc").with(NETDEV_A_NAPI_ID, &5u32.to_ne_bytes());
        assert_eq!((message.number(NETDEV_A_NAPI_ID), message.number(7), message.number(9)), (Some(5), None, None));
    }

    #[test]
    fn zero_copy_is_read_from_the_features_of_a_device() {
        let device = |features: u64| NetdevMessage::new(20, 1).with(NETDEV_A_DEV_XDP_FEATURES, &features.to_ne_bytes());
        let chunks = |message: NetdevMessage, count: u32| {
            message.with(NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &count.to_ne_bytes()).zero_copy()
        };
        assert_eq!(NetdevMessage::new(20, 1).zero_copy(), DriverZeroCopy::Unknown);
        assert_eq!(chunks(device(0x77), 0), DriverZeroCopy::None);
        assert_eq!(chunks(device(0x7f), 8), DriverZeroCopy::Chunks(8));
        assert_eq!(device(0xf).zero_copy(), DriverZeroCopy::Chunks(1), "Linux 6.3");
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_a_short_one_has_nothing() {
        let message = NetdevMessage::new(20, NETDEV_CMD_NAPI_GET).with(NETDEV_A_NAPI_IFINDEX, &3u32.to_ne_bytes());
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let mut header = NetlinkHeader::default();
        header.message_type = 20;
        assert_eq!(NetdevMessage::deserialize(&header, &bytes), Ok(message));
        for cut in 0..=GENERIC_BYTES {
            let short = NetdevMessage::deserialize(&header, &bytes[..cut]).expect("infallible");
            assert_eq!(short.attributes, NetlinkAttributes::default());
        }
    }
}
