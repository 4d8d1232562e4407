//! Outbound security associations: one for all workers, a sender for each.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use roced_transport::{
    io::Segments,
    wire::esp::{
        Encapsulation, EspHeader, EspRefusal, EspSequence, Numbering, PlainFrame, SequenceRun, SequenceSource,
        SequenceSpent, Spi, TAIL_BYTES_MAX,
    },
};
use thiserror::Error;

use crate::{aes_gcm::AesGcm, iv::IvSource, key::KeyMaterial};

/// Sequence numbers that a sender reserves at a time: few beside the replay window of any receiver,
/// so that the packets of several senders arrive within it. Linux by default has 32 or 64.
const RUN: u32 = 16;

/// Most senders that an association ever has: one byte of the IV names them.
const SENDERS: u32 = 256;

/// Limits of an association; without one, those of its sequence numbers are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Packets after which another association is wanted.
    pub soft_packets: Option<u64>,
    /// Packets after which nothing is sealed.
    pub hard_packets: Option<u64>,
    /// Encrypted bytes after which another association is wanted.
    pub soft_bytes: Option<u64>,
    /// Encrypted bytes after which nothing is sealed. A sender learns of those of the others when
    /// it reserves numbers, so that each may seal 15 frames beyond.
    pub hard_bytes: Option<u64>,
}

/// An outbound association but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboundParameters {
    /// The receiver's name for it.
    pub spi: Spi,
    /// Headers in front of the ciphertext.
    pub encapsulation: Encapsulation,
    /// Its sequence numbers.
    pub numbering: Numbering,
    /// Its limits.
    pub lifetime: Lifetime,
}

/// An outbound association, shared by its senders.
///
/// A key has one association. A daemon that starts again makes no second one with it, because
/// sequence numbers would begin again.
#[derive(Debug)]
pub struct OutboundSa {
    parameters: OutboundParameters,
    key: AesGcm,
    iv_mask: u64,
    sequences: SequenceSource,
    senders: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl OutboundSa {
    /// An association that has sealed nothing.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(parameters: OutboundParameters, key: &KeyMaterial) -> Result<Arc<Self>, getrandom::Error> {
        let Lifetime { soft_packets, hard_packets, .. } = parameters.lifetime;
        Ok(Arc::new(Self {
            parameters,
            key: AesGcm::new(key),
            iv_mask: getrandom::u64()?,
            sequences: SequenceSource::new(parameters.numbering, soft_packets, hard_packets),
            senders: AtomicU32::new(0),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }))
    }

    /// Its parameters.
    pub const fn parameters(&self) -> &OutboundParameters {
        &self.parameters
    }

    /// A sender for a worker, with IVs that no other has; `None` after 256 of them.
    pub fn sender(self: &Arc<Self>) -> Option<OutboundSender> {
        let next = |count: u32| (count < SENDERS).then_some(count + 1);
        let number = self.senders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(OutboundSender {
            ivs: IvSource::new(self.iv_mask, number as u8),
            run: SequenceRun::EMPTY,
            packets: 0,
            bytes: 0,
            association: Arc::clone(self),
        })
    }

    /// Sealed packets, up to the last turn of each sender.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Encrypted bytes, up to the last turn of each sender.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Another association should take its place soon: a soft limit is reached.
    pub fn is_soft_spent(&self) -> bool {
        let is_beyond = |limit| self.bytes() >= limit;
        self.sequences.is_soft_spent() || self.parameters.lifetime.soft_bytes.is_some_and(is_beyond)
    }
}

/// Why a frame was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealRefusal {
    /// A hard limit is reached, or the last sequence number or IV is used: another association is
    /// needed, and frames wait for it.
    #[error("the security association is spent")]
    Spent,
    /// It is not a frame that ESP carries.
    #[error(transparent)]
    Frame(#[from] EspRefusal),
}

impl From<SequenceSpent> for SealRefusal {
    fn from(SequenceSpent: SequenceSpent) -> Self {
        Self::Spent
    }
}

/// A worker's part of an outbound association.
#[derive(Debug)]
pub struct OutboundSender {
    association: Arc<OutboundSa>,
    ivs: IvSource,
    run: SequenceRun,
    /// Packets and bytes that the association does not count yet.
    packets: u64,
    bytes: u64,
}

impl OutboundSender {
    /// The association.
    pub fn association(&self) -> &OutboundSa {
        &self.association
    }

    /// Seals the plain frame of `plain_bytes` that lies in `buffer` behind the header bytes of the
    /// encapsulation, in place. Returns the frame of ESP, which begins where the buffer does.
    ///
    /// # Errors
    /// [`SealRefusal`]. The plain frame is as it was.
    ///
    /// # Panics
    /// As [`PlainFrame::read`].
    pub fn seal<'b>(&mut self, buffer: &'b mut [u8], plain_bytes: usize) -> Result<&'b mut [u8], SealRefusal> {
        let OutboundParameters { spi, encapsulation, numbering, lifetime } = self.association.parameters;
        let frame = PlainFrame::read(buffer, plain_bytes, encapsulation)?;
        if self.run.is_empty() {
            self.report();
        }
        if lifetime.hard_bytes.is_some_and(|limit| self.association.bytes() + self.bytes >= limit) {
            return Err(SealRefusal::Spent);
        }
        let sequence = self.next_sequence()?;
        let iv = self.ivs.next().ok_or(SealRefusal::Spent)?;
        self.packets += 1;
        self.bytes += frame.ciphertext_bytes() as u64;
        Ok(frame.seal(&EspHeader { spi, sequence, numbering, iv }, &self.association.key))
    }

    /// As [`Self::seal`], of a frame in pieces, copied to `scratch`.
    ///
    /// # Errors
    /// As [`Self::seal`].
    ///
    /// # Panics
    /// When `scratch` has no room for the frame with the longest tail.
    pub fn seal_pieces<'b>(
        &mut self,
        plain: &Segments<'_>,
        scratch: &'b mut [u8],
    ) -> Result<&'b mut [u8], SealRefusal> {
        let plain_at = self.association.parameters.encapsulation.header_bytes();
        let mut end = plain_at;
        for piece in plain {
            scratch[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        self.seal(scratch, end - plain_at)
    }

    /// Bytes of the buffer in which a plain frame of `plain_bytes` is sealed.
    pub fn buffer_bytes(&self, plain_bytes: usize) -> usize {
        self.association.parameters.encapsulation.header_bytes() + plain_bytes + TAIL_BYTES_MAX
    }

    /// Returns sequence numbers that were not needed, and counts. Once in a poll iteration that
    /// sealed frames: numbers kept longer would fall behind the receiver's window.
    pub fn end_turn(&mut self) {
        let run = std::mem::replace(&mut self.run, SequenceRun::EMPTY);
        if !run.is_empty() {
            self.association.sequences.give_back(run);
        }
        self.report();
    }

    fn next_sequence(&mut self) -> Result<EspSequence, SequenceSpent> {
        if self.run.is_empty() {
            self.run = self.association.sequences.reserve(RUN)?;
        }
        self.run.next().ok_or(SequenceSpent)
    }

    fn report(&mut self) {
        if self.packets > 0 {
            self.association.packets.fetch_add(std::mem::take(&mut self.packets), Ordering::Relaxed);
            self.association.bytes.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
        }
    }
}

impl Drop for OutboundSender {
    fn drop(&mut self) {
        self.end_turn();
    }
}
