//! The two traits through which the transport acts on its environment: [`App`] (client memory and
//! completions) and [`Wire`] (transmitted frames).
//!
//! Received frames are [`Segments`], one to [`SEGMENTS_MAX`] pieces: a 4154-byte frame occupies two
//! AF_XDP chunks. Transmitted frames are filled in place through a [`FrameMut`] over memory of the
//! wire.

use alloc::vec::Vec;

use roced_types::{CompletionOp, Cqn, DeviceId, MemoryObjectId, Qpn, Status};

use crate::{clock::Nanos, mr::MemSpan};

/// Maximum number of pieces of one frame.
pub const SEGMENTS_MAX: usize = 4;

/// Received frame: its pieces in order, without the Ethernet FCS. All headers are in the first
/// piece.
pub type Segments<'a> = [&'a [u8]];

/// Client memory and completion queues.
///
/// Every method returns without waiting and is called by the thread of the endpoint. A [`MemSpan`]
/// was checked: its memory object, its offset and its length, in bytes, are inside a registered
/// region. An error fails a work request, a request of the peer or a queue pair.
///
/// ```
/// use roced_transport::{
///     io::{
///         App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault,
///         WorkCompletion,
///     },
///     mr::{MemSpan, Mr, MrKey, MrTable, Right, Scope},
/// };
/// use roced_types::{Cqn, MemoryObjectId, Pdn, access};
///
/// /// One memory object, absent once its process has ended, and a completion queue of 16 entries.
/// struct Client {
///     memory: Option<Vec<u8>>,
///     completions: Vec<WorkCompletion>,
/// }
///
/// impl Client {
///     fn bytes(&mut self, span: MemSpan<'_>) -> Result<&mut [u8], MemoryFault> {
///         let memory = self.memory.as_mut().ok_or(MemoryFault)?;
///         Ok(&mut memory[span.offset() as usize..][..span.len()])
///     }
/// }
///
/// impl App for Client {
///     fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
///         // No other thread reads this memory, so that no fence is necessary.
///         self.bytes(to).map(|memory| memory.copy_from_slice(bytes))
///     }
///     fn copy(&mut self, to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault> {
///         let memory = self.memory.as_mut().ok_or(PlaceFault::Target)?;
///         let start = from.offset() as usize;
///         memory.copy_within(start..start + from.len(), to.offset() as usize);
///         Ok(())
///     }
///     fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
///         self.bytes(from).map(|memory| into.copy_from_slice(memory))
///     }
///     fn atomic(&mut self, at: MemSpan<'_>, by: AtomicOperation) -> Result<u64, MemoryFault> {
///         let memory = self.bytes(at)?;
///         let before = u64::from_ne_bytes((&*memory).try_into().expect("eight bytes"));
///         memory.copy_from_slice(&by.after(before).to_ne_bytes());
///         Ok(before)
///     }
///     fn complete(&mut self, _: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
///         if self.completions.len() == 16 {
///             return Err(CqOverrun);
///         }
///         self.completions.push(*completion);
///         Ok(())
///     }
/// }
///
/// // The transport makes spans by a check of its table of memory regions.
/// let (key, pd, access) = (MrKey(0x1234_5601), Pdn(1), access::LOCAL_WRITE);
/// let (object, scope) = (MemoryObjectId(1), Scope::Region);
/// let mut mrs = MrTable::new(1);
/// mrs.insert(Mr { key, pd, access, va: 0, length: 64, object, offset: 0, scope })?;
/// let span = mrs.check(pd, key, Right::LocalWrite, 8, 8).expect("inside the region");
///
/// let mut client = Client { memory: Some(vec![0; 64]), completions: Vec::new() };
/// assert_eq!(client.write(span, &5_u64.to_ne_bytes()), Ok(()));
/// assert_eq!(client.atomic(span, AtomicOperation::FetchAdd { add: 2 }), Ok(5));
/// let mut value = [0; 8];
/// assert_eq!(client.read(span, &mut value), Ok(()));
/// assert_eq!(u64::from_ne_bytes(value), 7);
/// // The process has ended.
/// client.memory = None;
/// assert_eq!(client.write(span, &value), Err(MemoryFault));
/// # Ok::<(), roced_transport::reject::Reject>(())
/// ```
pub trait App {
    /// Copies `bytes` to client memory, in ascending order, the last eight after a release fence:
    /// programs poll the last byte. The span is as long as `bytes`.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory is gone.
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault>;

    /// Copies all of the borrowed payload to client memory, in the order of [`Self::write`].
    ///
    /// # Errors
    /// [`PlaceFault`], which names the missing memory.
    fn copy(&mut self, to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault>;

    /// Copies a piece of a packet's payload to client memory, received or borrowed.
    ///
    /// # Errors
    /// As [`Self::write`] and [`Self::copy`].
    fn place(&mut self, to: MemSpan<'_>, from: Payload<'_>) -> Result<(), PlaceFault> {
        match from {
            Payload::Bytes(bytes) => self.write(to, bytes).map_err(|MemoryFault| PlaceFault::Target),
            Payload::Borrowed(borrowed) => self.copy(to, borrowed),
        }
    }

    /// Copies client memory to `into`, which is as long as the span.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory is gone.
    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Executes an atomic operation on eight bytes of client memory, in the byte order of this
    /// machine, and returns the value before. Atomic against all accesses by the processor's own
    /// atomics: other endpoints, and the client's program itself. Both the address that the peer
    /// named and the span's offset are multiples of eight.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory is gone; nothing has changed.
    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault>;

    /// Adds a completion to a completion queue.
    ///
    /// # Errors
    /// [`CqOverrun`] if the queue has no room or is gone; the transport fails the queue pair.
    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun>;
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Identifier from the work request.
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
    /// Time of the call that completed the work request.
    pub time: Nanos,
}

/// Operation of an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// Stored value.
        swap: u64,
    },
    /// Adds `add`, modulo 2^64.
    FetchAdd {
        /// Summand.
        add: u64,
    },
    /// Stores `value` unconditionally.
    Write {
        /// Stored value.
        value: u64,
    },
}

impl AtomicOperation {
    /// Value after the operation, given the value before.
    pub const fn after(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if before == compare => swap,
            Self::CompareSwap { .. } => before,
            Self::FetchAdd { add } => before.wrapping_add(add),
            Self::Write { value } => value,
        }
    }
}

/// Client memory of a checked span is gone: proxied memory of a process that ended. Mapped memory
/// never causes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault;

/// Reason why the payload of a packet was not copied to client memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceFault {
    /// The destination: a [`MemoryFault`] of the receiver.
    Target,
    /// The source of borrowed payload: not a fault of the receiver.
    Source,
}

/// Completion queue without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqOverrun;

/// Egress of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// NIC of the device. Frames of one queue pair have the same `flow`, by which a wire with
    /// several queues keeps their order.
    Nic {
        /// Number that is constant for each queue pair.
        flow: u32,
    },
    /// Another device of this daemon.
    HandOver {
        /// The device. The frame reaches no queue pair of a third device, regardless of its
        /// destination QPN.
        to: DeviceId,
    },
    /// The device of the sender. If the receiver belongs to the same endpoint, payload can be
    /// borrowed ([`FrameMut::borrow`]) and is copied once, from client memory to client memory.
    SameDevice,
    /// Multicast group: NIC, and attached queue pairs of the device itself.
    Group {
        /// As in [`Egress::Nic`].
        flow: u32,
    },
}

impl Egress {
    /// The frame leaves by no network: its receiver belongs to this daemon.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::HandOver { .. } | Self::SameDevice)
    }
}

/// Origin of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOrigin {
    /// The network: any party may have made it.
    Wire,
    /// A queue pair of this daemon.
    Local,
}

/// Reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// No room; `fill` was not called. The caller tries again in the next poll iteration.
    Full,
    /// `fill` aborted; nothing was sent.
    Aborted,
}

/// Returned by `fill` to send nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort;

/// Transmission of frames.
///
/// Methods return without waiting and are called by the thread of the endpoint. A wire keeps frames
/// in their order, at least those of one queue pair, and may lose them.
///
/// ```
/// use roced_transport::io::{Abort, Egress, EmitError, FrameMut, Wire};
///
/// /// A queue of frames with room for `room`.
/// struct Ring {
///     frames: Vec<Vec<u8>>,
///     room: usize,
/// }
///
/// impl Wire for Ring {
///     fn emit(
///         &mut self,
///         _: Egress,
///         frame_bytes: usize,
///         fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
///     ) -> Result<(), EmitError> {
///         if self.frames.len() == self.room {
///             return Err(EmitError::Full);
///         }
///         let mut frame = vec![0; frame_bytes];
///         fill(&mut FrameMut::single(&mut frame)).map_err(|Abort| EmitError::Aborted)?;
///         self.frames.push(frame);
///         Ok(())
///     }
/// }
///
/// let mut wire = Ring { frames: Vec::new(), room: 1 };
/// let nic = Egress::Nic { flow: 0 };
/// let four_bytes = |frame: &mut FrameMut<'_>| {
///     frame.put(&[1, 2, 3, 4]);
///     Ok(())
/// };
/// assert_eq!(wire.emit(nic, 4, |_| Err(Abort)), Err(EmitError::Aborted));
/// assert_eq!(wire.emit(nic, 4, four_bytes), Ok(()));
/// assert_eq!(wire.emit(nic, 4, four_bytes), Err(EmitError::Full));
/// assert_eq!(wire.frames, [[1, 2, 3, 4]]);
/// ```
pub trait Wire {
    /// Passes `frame_bytes` of frame memory to `fill` and sends the filled frame: Ethernet header
    /// to ICRC, without the Ethernet FCS. Frames leave in the order of the calls.
    ///
    /// # Errors
    /// [`EmitError::Full`] before `fill` is called, [`EmitError::Aborted`] if `fill` aborts.
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError>;

    /// From now on a frame to a NIC finds no room while `bytes` or more of earlier ones wait in its
    /// queue; `usize::MAX` is no limit, as at first. A frame cannot overtake those that the NIC
    /// has, so that the classes of an endpoint ([`crate::turns::classes`]) need such a limit. A wire that
    /// keeps no frames has nothing to limit.
    fn limit_ahead(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// Client memory that a packet references instead of carrying a copy. It was checked when the
/// packet was sent. The wire passes it to the same endpoint
/// ([`on_borrowed_frame`](crate::endpoint::Endpoint::on_borrowed_frame)) before any other call
/// there and before any report to a client, while keys, states and completions are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowedPayload {
    object: MemoryObjectId,
    offset: u64,
    length: usize,
}

impl BorrowedPayload {
    /// Memory object.
    pub const fn object(&self) -> MemoryObjectId {
        self.object
    }

    /// Offset in the memory object, in bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// True if the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Splits it into the first `bytes` and the rest.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        assert!(bytes <= self.length, "split beyond the end");
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
    /// Bytes of the frame.
    Bytes(&'a [u8]),
    /// Memory of the sender.
    Borrowed(BorrowedPayload),
}

impl Payload<'_> {
    /// Length in bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Borrowed(borrowed) => borrowed.len(),
        }
    }

    /// True if the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits it into the first `bytes` and the rest.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        match self {
            Self::Bytes(all) => {
                let (now, later) = all.split_at(bytes);
                (Self::Bytes(now), Self::Bytes(later))
            }
            Self::Borrowed(borrowed) => {
                let (now, later) = borrowed.split_at(bytes);
                (Self::Borrowed(now), Self::Borrowed(later))
            }
        }
    }
}

/// Frame to be filled, front to back.
#[derive(Debug)]
pub struct FrameMut<'a> {
    segments: [&'a mut [u8]; SEGMENTS_MAX],
    used: usize,
    segment: usize,
    offset: usize,
    /// Borrowed payload, on a path that supports it.
    borrowed: Option<&'a mut Vec<BorrowedPayload>>,
}

impl<'a> FrameMut<'a> {
    /// Creates a frame over one piece of memory.
    pub fn single(bytes: &'a mut [u8]) -> Self {
        Self { segments: [bytes, &mut [], &mut [], &mut []], used: 1, segment: 0, offset: 0, borrowed: None }
    }

    /// Like [`Self::single`], on a path that supports borrowed payload, which is added to
    /// `borrowed`. That has room for as many pieces as a work request may have.
    pub fn with_borrowed(bytes: &'a mut [u8], borrowed: &'a mut Vec<BorrowedPayload>) -> Self {
        Self { borrowed: Some(borrowed), ..Self::single(bytes) }
    }

    /// Adds client memory as the next piece of borrowed payload, in place of its bytes.
    ///
    /// # Panics
    /// On a path without borrowed payload, or if there is no room for the piece.
    pub fn borrow(&mut self, span: MemSpan<'_>) {
        let borrowed = self.borrowed.as_mut().expect("the path supports borrowed payload");
        assert!(borrowed.len() < borrowed.capacity(), "a work request has no more pieces");
        borrowed.push(span.into());
    }

    /// Creates a frame over several pieces.
    ///
    /// # Panics
    /// Without a piece, or with more than [`SEGMENTS_MAX`].
    pub fn over(pieces: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let mut segments: [&'a mut [u8]; SEGMENTS_MAX] = Default::default();
        let mut used = 0;
        for piece in pieces {
            assert!(used < SEGMENTS_MAX, "a frame has at most {SEGMENTS_MAX} pieces");
            segments[used] = piece;
            used += 1;
        }
        assert!(used > 0, "a frame has at least one piece");
        Self { segments, used, segment: 0, offset: 0, borrowed: None }
    }

    /// Number of bytes that are not filled yet.
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

    /// Appends `length` bytes written by `fill`, which is called once for each piece of the frame.
    ///
    /// # Errors
    /// [`Abort`] if `fill` aborts.
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

    /// Filled bytes so far, piece by piece.
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
