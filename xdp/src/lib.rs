//! Frames in and out of the NIC: the XDP program on an interface, and AF_XDP sockets on its queues.
//!
//! ```text
//!          NIC, RX queue k                                  NIC, TX queue k
//!               │                                                ▲
//!        [`XdpProgram`]: RoCE, ours?                             │ sendto() when the kernel asks for it
//!          │          └─ no: the kernel's                        │
//!          ▼                                                     │
//!   RX ring ─► [`NicQueue::rx_burst`] ─► Endpoint ─► [`NicQueue`]: Wire::emit ─► TX ring
//!      ▲             │                                 ▲                           │
//!   fill ring ◄──────┘ chunks back, in batches         └── completion ring ◄───────┘ chunks back
//! ```
//!
//! A queue has a UMEM of its own, cut into chunks. Some of them always receive, the others always
//! send, so that neither side can starve the other. A frame longer than a chunk lies in several.
//! Nothing here allocates after a queue is open, and nothing waits: frames that the kernel does not
//! take now are tried in the next poll iteration.
//!
//! Where the kernel polls the queues is decided by `napi`.
//!
//! Wherever memory is shared with the kernel the code is `unsafe` and small: `sys`, `umem`,
//! `socket`, `receive`, `transmit`, `pauses`.

mod attributes;
mod class;
pub mod dcb;
mod error;
mod ethtool;
mod frame_path;
mod napi;
mod netdev;
pub mod netlink;
mod options;
mod pause_frames;
mod pauses;
mod program;
mod queue;
mod receive;
mod socket;
mod sys;
mod transmit;
mod tx_queues;
mod umem;

pub use error::XdpError;
pub use ethtool::{GlobalPause, rx_queues, rx_ring_entries, strips_vlan_tags};
pub use napi::{NapiError, ThreadedNapi};
pub use options::{AttachedMode, CopyMode, NicQueueConfig, XdpMode};
pub use pause_frames::{GeneratedPauses, PausedNeighbor};
pub use pauses::{HonoredPauses, PauseMap};
pub use program::XdpProgram;
pub use queue::NicQueue;
pub use tx_queues::has_tx_queue;
