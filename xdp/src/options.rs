//! Choices that an operator makes for an interface, and the modes that follow from them.

use std::{fmt, time::Duration};

/// Mode in which the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// Native if the driver supports it, otherwise generic.
    Auto,
    /// In the driver.
    Native,
    /// In the network stack, with any driver.
    Generic,
}

/// Mover of frames between NIC and UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy if the driver supports it, otherwise copy.
    Auto,
    /// The NIC accesses the UMEM.
    Zerocopy,
    /// The kernel copies.
    Copy,
}

/// Where an attached program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// In the network stack, after the driver.
    Generic,
}

impl AttachedMode {
    /// As the config says it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for AttachedMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Queue and sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicQueueConfig {
    /// The interface.
    pub interface: Box<str>,
    /// Number of the RX queue; frames go out by the TX queue of the same number.
    pub queue: u32,
    /// Whether the driver or the kernel moves the frames.
    pub copy_mode: CopyMode,
    /// MTU of the link: the queue takes frames of this length, if the kernel and the driver can.
    pub link_mtu_bytes: u32,
    /// Chunks of frame memory: `tx_ring_entries` of them send, the others receive.
    pub umem_frames: u32,
    /// Bytes of a chunk, a power of two from 2048 to 4096; 256 of them are the kernel's.
    pub chunk_bytes: u32,
    /// Entries of the RX ring, a power of two like the next three.
    pub rx_ring_entries: u32,
    /// Entries of the TX ring.
    pub tx_ring_entries: u32,
    /// Entries of the fill ring.
    pub fill_ring_entries: u32,
    /// Entries of the completion ring.
    pub completion_ring_entries: u32,
    /// How long a busy queue is tried again.
    pub busy_deadline: Duration,
}

impl NicQueueConfig {
    /// A queue of an interface with the default sizes.
    pub fn new(interface: &str, queue: u32) -> Self {
        Self {
            interface: interface.into(),
            queue,
            copy_mode: CopyMode::Auto,
            link_mtu_bytes: 9000,
            umem_frames: 4096,
            chunk_bytes: 4096,
            rx_ring_entries: 2048,
            tx_ring_entries: 2048,
            fill_ring_entries: 2048,
            completion_ring_entries: 2048,
            busy_deadline: Duration::from_secs(3),
        }
    }
}
