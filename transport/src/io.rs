//! The two traits by which the engine touches the world: [`App`] (client memory and completions)
//! and [`Wire`] (frames out).
//!
//! Frames come in as [`Segments`], one to [`SEGMENTS_MAX`] pieces: a 4154-byte frame lies in two
//! AF_XDP chunks. Frames go out through a [`FrameMut`], which the wire lays over memory of its own
//! so that the engine fills it in place.

use alloc::vec::Vec;

use roced_types::{CompletionOp, Cqn, DeviceId, MemoryObjectId, Qpn, Status};

use crate::{clock::Nanos, mr::MemSpan};

/// Most pieces of one frame.
pub const SEGMENTS_MAX: usize = 4;

/// A frame as it arrived: its pieces in order, without the Ethernet FCS. The headers lie in the
/// first piece.
pub type Segments<'a> = [&'a [u8]];

/// Client memory and completion queues.
pub trait App {
    /// Copies `bytes` to client memory, in ascending order, the last eight after a release fence:
    /// programs poll the last byte.
    ///
    /// # Errors
    /// [`MemoryFault`] when this kind of memory turned out not to be there.
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault>;

    /// Copies borrowed payload to client memory, as long as the loan, in the order of
    /// [`Self::write`].
    ///
    /// # Errors
    /// [`PlaceFault`], which names the missing memory.
    fn copy(&mut self, to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault>;

    /// Brings a piece of a packet's payload to client memory, as long as the piece.
    ///
    /// # Errors
    /// As [`Self::write`] and [`Self::copy`].
    fn place(&mut self, to: MemSpan<'_>, from: Payload<'_>) -> Result<(), PlaceFault> {
        match from {
            Payload::Bytes(bytes) => self.write(to, bytes).map_err(|MemoryFault| PlaceFault::Target),
            Payload::Borrowed(loan) => self.copy(to, loan),
        }
    }

    /// Copies client memory to `into`, as long as the span.
    ///
    /// # Errors
    /// [`MemoryFault`] when this kind of memory turned out not to be there.
    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Executes an atomic operation on eight bytes of client memory, in the byte order of this
    /// machine, and returns the value before. Atomic against all accesses by the processor's own
    /// atomics: other endpoints, and the client's program itself. Both the address that the peer
    /// named and the span's offset are multiples of eight.
    ///
    /// # Errors
    /// [`MemoryFault`] when this kind of memory turned out not to be there; nothing was changed
    /// then.
    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault>;

    /// Puts a completion into a completion queue.
    ///
    /// # Errors
    /// [`CqOverrun`] when the queue has no room or is gone; the engine then fails the queue pair.
    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun>;
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// From the work request.
    pub wr_id: u64,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Result of the work request.
    pub status: Status,
    /// The completed operation; has no meaning on an error.
    pub op: CompletionOp,
    /// Bits of [`completion_flags`](roced_types::completion_flags).
    pub flags: u8,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in wire order, or with
    /// [`INVALIDATED`](roced_types::completion_flags::INVALIDATED) the invalidated key in the byte
    /// order of this machine.
    pub imm: [u8; 4],
    /// Remote queue pair: the sender of a datagram, or the peer of a connection.
    pub src_qpn: u32,
    /// Time of the call of the engine that completed the work request.
    pub time: Nanos,
}

/// Operation of an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Puts `swap` there if `compare` is there.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// Stored value.
        swap: u64,
    },
    /// Adds, and wraps at 2^64.
    FetchAdd {
        /// How much.
        add: u64,
    },
    /// Stores `value` unconditionally.
    Write {
        /// Stored value.
        value: u64,
    },
}

impl AtomicOperation {
    /// The value afterward, if `before` was there before.
    pub const fn after(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if before == compare => swap,
            Self::CompareSwap { .. } => before,
            Self::FetchAdd { add } => before.wrapping_add(add),
            Self::Write { value } => value,
        }
    }
}

/// Client memory that a checked span named is not there after all (a process that died; never
/// shared memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault;

/// Why a packet's payload did not come to client memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceFault {
    /// The memory that it was for: a [`MemoryFault`] of the receiver's.
    Target,
    /// The memory that lent it: the receiver has done nothing wrong.
    Lender,
}

/// A completion queue had no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqOverrun;

/// Which way a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// By the NIC of the device. Frames of one queue pair carry the same `flow`, so a wire with
    /// several queues keeps their order.
    Nic {
        /// Anything constant per queue pair.
        flow: u32,
    },
    /// By hand-over: the destination is another device of this daemon.
    HandOver {
        /// The device. Queue pairs of a third device are not reachable, for any queue pair number
        /// in the frame.
        to: DeviceId,
    },
    /// By hand-over to this very device. Where the receiver is of the same endpoint, payload can be
    /// lent ([`FrameMut::lend`]) and is copied once, from client memory to client memory.
    SameEndpoint,
    /// To a multicast group: by the NIC, and to those of the device itself that are attached.
    Group {
        /// As of [`Egress::Nic`].
        flow: u32,
    },
}

/// Why a frame did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// No room now; `fill` was not called. Try again next turn.
    Full,
    /// `fill` gave up; nothing was sent.
    Aborted,
}

/// Returned by `fill` to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort;

/// Frames out.
pub trait Wire {
    /// Lends `frame_bytes` of frame memory to `fill` and sends the written frame. Frames leave in
    /// the order of the calls.
    ///
    /// # Errors
    /// [`EmitError::Full`] before `fill` ran, [`EmitError::Aborted`] when `fill` gave up.
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError>;
}

/// Client memory that a packet names instead of carrying a copy. It was checked when the packet was
/// sent. The wire passes it to the same endpoint
/// ([`on_lent_frame`](crate::endpoint::Endpoint::on_lent_frame)) before any other call there and
/// before any report to a client: keys, states and completions are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowedPayload {
    object: MemoryObjectId,
    offset: u64,
    length: usize,
}

impl BorrowedPayload {
    /// The memory it lies in.
    pub const fn object(&self) -> MemoryObjectId {
        self.object
    }

    /// Where it begins in that memory, bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// No bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first `bytes` and the rest.
    ///
    /// # Panics
    /// When the loan is shorter.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        assert!(bytes <= self.length, "a loan is split inside itself");
        // Cannot overflow: it lies inside its region.
        (
            Self { length: bytes, ..self },
            Self { offset: self.offset + bytes as u64, length: self.length - bytes, ..self },
        )
    }
}

impl From<MemSpan<'_>> for BorrowedPayload {
    fn from(span: MemSpan<'_>) -> Self {
        Self { object: span.object(), offset: span.offset(), length: span.len() }
    }
}

/// A piece of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// It came in the frame.
    Bytes(&'a [u8]),
    /// It lies in the sender's memory still.
    Borrowed(BorrowedPayload),
}

impl Payload<'_> {
    /// Bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Borrowed(loan) => loan.len(),
        }
    }

    /// No bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `bytes` and the rest.
    ///
    /// # Panics
    /// When the piece is shorter.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        match self {
            Self::Bytes(all) => {
                let (now, later) = all.split_at(bytes);
                (Self::Bytes(now), Self::Bytes(later))
            }
            Self::Borrowed(loan) => {
                let (now, later) = loan.split_at(bytes);
                (Self::Borrowed(now), Self::Borrowed(later))
            }
        }
    }
}

/// A frame to be filled, front to back.
#[derive(Debug)]
pub struct FrameMut<'a> {
    segments: [&'a mut [u8]; SEGMENTS_MAX],
    used: usize,
    segment: usize,
    offset: usize,
    /// Borrowed payload, on a path that supports it.
    loans: Option<&'a mut Vec<BorrowedPayload>>,
}

impl<'a> FrameMut<'a> {
    /// A frame over one piece of memory.
    pub fn single(bytes: &'a mut [u8]) -> Self {
        Self { segments: [bytes, &mut [], &mut [], &mut []], used: 1, segment: 0, offset: 0, loans: None }
    }

    /// As [`Self::single`], on a way on which payload can be lent: it is added to `loans`, which
    /// has room for as many pieces as a work request may have.
    pub fn lending(bytes: &'a mut [u8], loans: &'a mut Vec<BorrowedPayload>) -> Self {
        Self { loans: Some(loans), ..Self::single(bytes) }
    }

    /// Lends client memory as the next piece of the payload, in place of its bytes.
    ///
    /// # Panics
    /// On a way on which nothing can be lent, or with more pieces than there is room for: memory is
    /// not made here.
    pub fn lend(&mut self, span: MemSpan<'_>) {
        let loans = self.loans.as_mut().expect("who lends has looked at the way");
        assert!(loans.len() < loans.capacity(), "a work request has no more pieces");
        loans.push(span.into());
    }

    /// A frame over several pieces.
    ///
    /// # Panics
    /// With no piece or more than [`SEGMENTS_MAX`].
    pub fn over(pieces: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let mut segments: [&'a mut [u8]; SEGMENTS_MAX] = Default::default();
        let mut used = 0;
        for piece in pieces {
            assert!(used < SEGMENTS_MAX, "a frame has at most {SEGMENTS_MAX} pieces");
            segments[used] = piece;
            used += 1;
        }
        assert!(used > 0, "a frame has at least one piece");
        Self { segments, used, segment: 0, offset: 0, loans: None }
    }

    /// Bytes not filled yet.
    pub fn remaining(&self) -> usize {
        self.segments[self.segment..self.used].iter().map(|piece| piece.len()).sum::<usize>() - self.offset
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit: `fill` requested the length of the frame.
    pub fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        self.put_with(bytes.len(), |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
        .expect("copying a slice does not give up");
    }

    /// Appends `length` bytes that `fill` writes, called once for each piece they fall into.
    ///
    /// # Errors
    /// [`Abort`] when `fill` gave up.
    ///
    /// # Panics
    /// If they do not fit: `fill` requested the length of the frame.
    pub fn put_with(
        &mut self,
        length: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let mut left = length;
        while left > 0 {
            if self.offset == self.segments[self.segment].len() {
                assert!(self.segment + 1 < self.used, "a frame is as long as was asked for");
                self.segment += 1;
                self.offset = 0;
                continue;
            }
            let piece = &mut self.segments[self.segment][self.offset..];
            let now = left.min(piece.len());
            fill(&mut piece[..now])?;
            self.offset += now;
            left -= now;
        }
        Ok(())
    }

    /// Everything filled so far, piece by piece.
    pub fn filled(&self) -> impl Iterator<Item = &[u8]> {
        let (segment, offset) = (self.segment, self.offset);
        self.segments[..=segment]
            .iter()
            .enumerate()
            .map(move |(at, piece)| if at == segment { &piece[..offset] } else { &piece[..] })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn bytes_run_over_the_pieces_in_order() {
        let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 4]);
        let mut frame = FrameMut::over([&mut a[..], &mut b[..], &mut c[..]].into_iter());
        frame.put(&[1, 2]);
        frame.put(&[3, 4, 5]);
        assert_eq!(frame.remaining(), 2);
        assert_eq!(frame.filled().flatten().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        frame.put(&[6, 7]);
        assert_eq!((frame.remaining(), a, c), (0, [1, 2, 3], [4, 5, 6, 7]));
    }
}
