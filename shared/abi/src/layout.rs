//! Where each ring sits in its memfd. Client and daemon both compute it from the same few numbers,
//! so no offset is ever sent.

use core::mem::size_of;

use roced_types::{INLINE_BYTES_MAX, QpSizes, SGE_MAX, Sge, WORKERS_MAX};

use super::{
    COMPLETIONS_MAX,
    cqe::Cqe,
    doorbell::{DOORBELL_BLOCK_BYTES, WORKER_STATE_BYTES},
    ring::RingShape,
    wqe::{RecvWqe, SendWqe},
};

/// The rings of a queue pair in its memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLayout {
    /// The send ring, at offset 0.
    pub send: RingShape,
    /// The receive ring.
    pub recv: RingShape,
    /// Where the receive ring begins.
    pub recv_offset: usize,
    /// Bytes of the memfd.
    pub bytes: usize,
}

impl QpLayout {
    /// The layout for sizes that [`QpSizes::granted`] gave.
    pub const fn new(granted: QpSizes) -> Self {
        let behind = max(granted.send_sges * size_of::<Sge>() as u32, granted.inline_bytes);
        let send = RingShape::new(granted.send_wrs, size_of::<SendWqe>() as u32 + behind);
        let recv =
            RingShape::new(granted.recv_wrs, size_of::<RecvWqe>() as u32 + granted.recv_sges * size_of::<Sge>() as u32);
        let recv_offset = send.bytes().next_multiple_of(64);
        Self { send, recv, recv_offset, bytes: page_rounded(recv_offset + recv.bytes()) }
    }
}

/// The ring of a shared receive queue in its memfd, at offset 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqLayout {
    /// Its shape: slots as those of a queue pair's receive ring.
    pub recv: RingShape,
    /// Bytes of the memfd.
    pub bytes: usize,
}

impl SrqLayout {
    /// The layout for sizes that [`QpSizes::granted`] gave; those of receives count.
    pub const fn new(granted: QpSizes) -> Self {
        let recv = QpLayout::new(granted).recv;
        Self { recv, bytes: page_rounded(recv.bytes()) }
    }
}

/// Words of the largest send slot.
pub const SEND_SLOT_WORDS_MAX: usize = (size_of::<SendWqe>() + INLINE_BYTES_MAX as usize) / 8;

/// Words of the largest receive slot.
pub const RECV_SLOT_WORDS_MAX: usize = (size_of::<RecvWqe>() + SGE_MAX as usize * size_of::<Sge>()) / 8;

/// The rings of a completion queue in its memfd.
///
/// ```text
///   +0   armed  u32   0 no, 1 solicited completions, 2 any completion
///   +64  ring of worker 0, ring of worker 1, ...   each as deep as the queue
/// ```
/// The memfd of a queue that was resized has the same layout; the arm word there is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqLayout {
    /// The shape of every CQ ring.
    pub cq_ring: RingShape,
    /// Number of CQ rings: workers of the device.
    pub cq_rings: u32,
    /// Bytes of the memfd.
    pub bytes: usize,
}

/// Values of a completion queue's arm word.
pub mod armed {
    /// No event wanted.
    pub const NO: u32 = 0;
    /// An event for the next solicited completion, or one with an error.
    pub const SOLICITED: u32 = 1;
    /// An event for the next completion.
    pub const ANY: u32 = 2;
}

impl CqLayout {
    const CQ_RINGS_OFFSET: usize = 64;

    /// The layout for `entries` (rounded up to a power of two) in each of `cq_rings`. `None` when a
    /// limit of the ABI is exceeded.
    pub const fn new(entries: u32, cq_rings: u32) -> Option<Self> {
        if entries > COMPLETIONS_MAX || cq_rings == 0 || cq_rings > WORKERS_MAX {
            return None;
        }
        let cq_ring = RingShape::new(entries.next_power_of_two(), size_of::<Cqe>() as u32);
        Some(Self {
            cq_ring,
            cq_rings,
            bytes: page_rounded(Self::CQ_RINGS_OFFSET + cq_rings as usize * cq_ring.bytes()),
        })
    }

    /// Where CQ ring `index` begins.
    pub const fn cq_ring_offset(self, index: u32) -> usize {
        Self::CQ_RINGS_OFFSET + index as usize * self.cq_ring.bytes()
    }
}

/// Where the doorbell block of the session's worker `index` begins in the session memfd.
pub const fn doorbell_block_offset(index: u32) -> usize {
    index as usize * DOORBELL_BLOCK_BYTES
}

/// Bytes of the session memfd of a device with `workers` workers.
pub const fn session_bytes(workers: u32) -> usize {
    page_rounded(workers as usize * DOORBELL_BLOCK_BYTES)
}

/// Where worker `index`'s state begins in the state memfd (index as in `OpenDevice`'s reply: of the
/// daemon, not of the device).
pub const fn worker_state_offset(index: u32) -> usize {
    index as usize * WORKER_STATE_BYTES
}

/// Bytes of the state memfd of a daemon with `workers` workers.
pub const fn state_bytes(workers: u32) -> usize {
    page_rounded(workers as usize * WORKER_STATE_BYTES)
}

const fn page_rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

const fn max(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

const _: () = assert!(CqLayout::CQ_RINGS_OFFSET.is_multiple_of(64));
const _: () = assert!(RingShape::INDEX_BYTES.is_multiple_of(64) && size_of::<Cqe>().is_multiple_of(64));

#[cfg(test)]
mod tests {
    use roced_types::WORK_REQUESTS_MAX;

    use super::*;

    #[test]
    fn the_largest_queue_pair_has_a_layout_and_one_more_has_none() {
        let most = QpSizes {
            send_wrs: WORK_REQUESTS_MAX,
            recv_wrs: WORK_REQUESTS_MAX,
            send_sges: SGE_MAX,
            recv_sges: SGE_MAX,
            inline_bytes: INLINE_BYTES_MAX,
        };
        let layout = QpLayout::new(most.granted().expect("within every limit"));
        assert!(layout.send.stride_words() <= SEND_SLOT_WORDS_MAX && layout.recv.stride_words() <= RECV_SLOT_WORDS_MAX);
        assert!(layout.recv_offset.is_multiple_of(64) && layout.bytes >= layout.recv_offset + layout.recv.bytes());
        assert!(QpSizes { send_sges: SGE_MAX + 1, ..most }.granted().is_none());
    }

    #[test]
    fn cq_rings_do_not_overlap() {
        let layout = CqLayout::new(100, 3).expect("within every limit");
        assert_eq!(layout.cq_ring.entries(), 128);
        assert_eq!(layout.cq_ring_offset(1) - layout.cq_ring_offset(0), layout.cq_ring.bytes());
        assert!(layout.bytes >= layout.cq_ring_offset(2) + layout.cq_ring.bytes());
    }
}
