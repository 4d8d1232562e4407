//! Frames under way. Each is somewhere exactly once: in a queue, on a link, or at a host.

use std::ops::Range;

use roced_transport::wire::ecn;

/// Number of a frame under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameId(u32);

/// Preamble, frame check sequence and the gap between frames.
const WIRE_OVERHEAD_BYTES: usize = 24;

/// IPv6 header behind the Ethernet header: version and traffic class, then addresses.
const IP_AT: usize = 14;
const ADDRESSES: Range<usize> = IP_AT + 8..IP_AT + 40;

/// All frames under way, and memory for more.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// Memory of frames that are gone; the last one is in the caches.
    spare: Vec<Vec<u8>>,
}

impl Frames {
    /// Adds a frame.
    pub(crate) fn add(&mut self, bytes: Vec<u8>) -> FrameId {
        if let Some(number) = self.free.pop() {
            self.bytes[number as usize] = bytes;
            return FrameId(number);
        }
        self.bytes.push(bytes);
        FrameId(self.bytes.len() as u32 - 1)
    }

    /// Takes it out.
    pub(crate) fn take(&mut self, frame: FrameId) -> Vec<u8> {
        self.free.push(frame.0);
        std::mem::take(&mut self.bytes[frame.0 as usize])
    }

    /// Takes it out and forgets it.
    pub(crate) fn remove(&mut self, frame: FrameId) {
        let bytes = self.take(frame);
        self.give_back(bytes);
    }

    /// Memory for a frame.
    pub(crate) fn memory(&mut self, frame_bytes: usize) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(frame_bytes, 0);
        bytes
    }

    /// Memory of a frame that was taken out.
    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }

    /// Number of frames under way.
    pub(crate) fn count(&self) -> usize {
        self.bytes.len() - self.free.len()
    }

    /// Its bytes, without the FCS.
    pub(crate) fn frame_bytes(&self, frame: FrameId) -> usize {
        self.bytes[frame.0 as usize].len()
    }

    /// Its bytes on a link.
    pub(crate) fn wire_bytes(&self, frame: FrameId) -> u64 {
        (self.frame_bytes(frame) + WIRE_OVERHEAD_BYTES) as u64
    }

    /// Its traffic class: DSCP and ECN.
    fn traffic_class(&self, frame: FrameId) -> u8 {
        let bytes = &self.bytes[frame.0 as usize];
        bytes[IP_AT] << 4 | bytes[IP_AT + 1] >> 4
    }

    /// Its class among eight: the upper three bits of its DSCP.
    pub(crate) fn class(&self, frame: FrameId) -> u8 {
        self.traffic_class(frame) >> 5
    }

    /// Its sender reacts to marks.
    pub(crate) fn is_capable(&self, frame: FrameId) -> bool {
        self.traffic_class(frame) & ecn::MASK != ecn::NOT_CAPABLE
    }

    /// One of its bytes.
    pub(crate) fn byte(&self, frame: FrameId, at: usize) -> Option<u8> {
        self.bytes[frame.0 as usize].get(at).copied()
    }

    /// Marks it: congestion experienced.
    pub(crate) fn mark(&mut self, frame: FrameId) {
        self.bytes[frame.0 as usize][IP_AT + 1] |= ecn::MARKED << 4;
    }

    /// Number of the host that it is for.
    pub(crate) fn destination(&self, frame: FrameId) -> usize {
        let address = &self.bytes[frame.0 as usize][ADDRESSES][16..];
        usize::from(address[14]) << 8 | usize::from(address[15])
    }

    /// A number that is the same for all frames of a connection: of addresses and UDP source port.
    pub(crate) fn flow_hash(&self, frame: FrameId) -> u64 {
        let bytes = &self.bytes[frame.0 as usize];
        let parts = bytes[ADDRESSES].iter().chain(&bytes[ADDRESSES.end..ADDRESSES.end + 2]);
        let hash = parts
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        // Each lower bit shall depend on all bits of the parts.
        (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}
