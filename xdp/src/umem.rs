//! Frame memory of one queue, and ownership of its chunks.
//!
//! A chunk is named by a descriptor, and at any moment each descriptor is in one place: with the
//! kernel (fill, RX, TX or completion ring) or with us ([`super::receive::Receive`],
//! [`super::transmit::Transmit`]). Chunks are distributed once, the first ones to receive and the
//! rest to send, and never change sides. The holder of a descriptor owns the bytes of its chunk.
#![expect(unsafe_code, reason = "hands out slices of memory that the kernel also reads and writes")]

use std::num::NonZeroU32;

use xsk_rs::{
    config::{FrameSize, QueueSize, UmemConfig},
    umem::{Umem as XskUmem, frame::FrameDesc},
};

/// Set in a descriptor's options when the frame goes on in the next one.
const MORE_FOLLOWS: u32 = libc::XDP_PKT_CONTD;

/// Sizes of a UMEM and its two rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct UmemSizes {
    /// Chunks that receive.
    pub rx_chunks: u32,
    /// Chunks that send.
    pub tx_chunks: u32,
    /// Bytes of a chunk: a power of two, 2048 to 4096.
    pub chunk_bytes: u32,
    /// Entries of the fill ring, a power of two.
    pub fill_ring_entries: u32,
    /// Entries of the completion ring, a power of two.
    pub completion_ring_entries: u32,
}

impl UmemSizes {
    /// Bytes of the whole memory.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.rx_chunks) + u64::from(self.tx_chunks)) * u64::from(self.chunk_bytes)
    }
}

/// The memory of one queue's frames. A clone is the same memory: each half of a queue has one, so
/// that none can be given the wrong memory.
#[derive(Clone, Debug)]
pub(super) struct Umem {
    inner: XskUmem,
    rx_bytes: usize,
    bytes: usize,
    chunk_bytes: usize,
    headroom_bytes: usize,
}

/// A UMEM, and the descriptors of the chunks that receive and of those that send.
pub(super) struct Dealt {
    pub umem: Umem,
    pub rx: Vec<FrameDesc>,
    pub tx: Vec<FrameDesc>,
}

/// Why there is no UMEM.
pub(super) enum UmemRefused {
    /// Sizes that no UMEM can have.
    Sizes(&'static str),
    /// The kernel said no.
    Kernel(xsk_rs::umem::UmemCreateError),
}

impl Umem {
    /// Maps and locks the memory.
    pub(super) fn create(sizes: &UmemSizes) -> Result<Dealt, UmemRefused> {
        let sizes_refused = UmemRefused::Sizes;
        let ring = |entries| QueueSize::new(entries).map_err(|_| sizes_refused("a ring has a power of two entries"));
        let chunk_bytes =
            FrameSize::new(sizes.chunk_bytes).map_err(|_| sizes_refused("chunks have 2048 bytes or more"))?;
        let chunks = sizes.rx_chunks.checked_add(sizes.tx_chunks).and_then(NonZeroU32::new);
        let chunks = chunks.ok_or(sizes_refused("a queue has frames, and less than 2^32 of them"))?;
        let config = UmemConfig::builder()
            .frame_size(chunk_bytes)
            .fill_queue_size(ring(sizes.fill_ring_entries)?)
            .comp_queue_size(ring(sizes.completion_ring_entries)?)
            .build()
            .map_err(|_| sizes_refused("chunks have a power of two bytes"))?;
        let (inner, mut rx) = XskUmem::new(config, chunks, false).map_err(UmemRefused::Kernel)?;
        let tx = rx.split_off(sizes.rx_chunks as usize);
        let chunk_bytes = sizes.chunk_bytes as usize;
        let umem = Self {
            inner,
            rx_bytes: rx.len() * chunk_bytes,
            bytes: (rx.len() + tx.len()) * chunk_bytes,
            chunk_bytes,
            headroom_bytes: config.xdp_headroom() as usize,
        };
        Ok(Dealt { umem, rx, tx })
    }

    /// For binding a socket to it.
    pub(super) fn inner(&self) -> &XskUmem {
        &self.inner
    }

    /// Bytes of a frame that one chunk holds: the rest is room in front, which the kernel keeps for
    /// the XDP program.
    pub(super) fn usable_bytes(&self) -> usize {
        self.chunk_bytes - self.headroom_bytes
    }

    /// The bytes that the kernel put into the chunk of `descriptor`.
    ///
    /// # Panics
    /// When they do not lie in the receiving chunks: the kernel's word is checked, because memory
    /// is at stake.
    ///
    /// # Safety
    /// The caller got `descriptor` from the RX ring of this UMEM's socket and has not given it to
    /// the fill ring since, and does not while the slice lives.
    #[inline]
    pub(super) unsafe fn received(&self, descriptor: &FrameDesc) -> &[u8] {
        let (at, length) = (descriptor.addr(), descriptor.lengths().data());
        assert!(
            at < self.rx_bytes && length <= self.chunk_bytes - at % self.chunk_bytes,
            "the kernel names {length} bytes at {at} of {} as received",
            self.rx_bytes
        );
        // SAFETY: the bytes lie within one chunk of this UMEM (checked above), which is the
        // caller's until it gives the descriptor away (this function's contract), so neither the
        // kernel nor other code writes them.
        unsafe { self.inner.data(descriptor) }.contents()
    }

    /// The chunk of `descriptor` to be filled with `length` bytes of a frame, of which more follows
    /// or not.
    ///
    /// # Panics
    /// When `length` is more than [`Self::usable_bytes`].
    ///
    /// # Safety
    /// `descriptor` is that of a sending chunk of this UMEM, and the caller holds it: it is fresh
    /// or came from the completion ring, and was not given to the TX ring since.
    #[inline]
    pub(super) unsafe fn to_send<'a>(
        &'a self,
        descriptor: &'a mut FrameDesc,
        length: usize,
        more_follows: bool,
    ) -> &'a mut [u8] {
        assert!(length <= self.usable_bytes(), "{length} bytes into a chunk");
        descriptor.set_options(if more_follows { MORE_FOLLOWS } else { 0 });
        // SAFETY: the descriptor names a chunk of this UMEM that is the caller's alone (this
        // function's contract); the chunk has `usable_bytes` from the descriptor's address on, for
        // the descriptor is as it was dealt (see `sent`).
        let mut data = unsafe { self.inner.data_mut(descriptor) };
        data.cursor().set_pos(length);
        let bytes = data.contents_mut();
        // SAFETY: the same bytes for as long as `descriptor` and the UMEM are borrowed, instead of
        // as long as the local `data`; no other code has the chunk, and a second call with this
        // descriptor is not possible while it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Number of the sending chunk of `descriptor`, from 0 on.
    #[inline]
    pub(super) fn number(&self, descriptor: &FrameDesc) -> usize {
        (descriptor.addr() - self.rx_bytes) >> self.chunk_bytes.trailing_zeros()
    }

    /// Checks that descriptors which came back by the completion ring are those of sending chunks.
    ///
    /// # Panics
    /// When the kernel names anything but a sending chunk as we dealt it.
    #[inline]
    pub(super) fn check_sent(&self, descriptors: &[FrameDesc]) {
        for descriptor in descriptors {
            let at = descriptor.addr();
            assert!(
                (self.rx_bytes..self.bytes).contains(&at) && at % self.chunk_bytes == self.headroom_bytes,
                "the kernel gives back {at} as a chunk that was sent"
            );
        }
    }
}
