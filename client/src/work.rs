//! Work requests.

use roced_abi::wqe::SendWqe;
use roced_types::{CompletionOp, SendOp, Sge, flush, send_flags};

use crate::{ah::AddressHandle, mr::RemoteMemory, mw::WindowBinding};

/// A send work request.
///
/// ```
/// # use roced_client::{RemoteMemory, SendRequest, Sge};
/// # let (sges, theirs) = ([Sge { va: 0, length: 8, lkey: 1 }], RemoteMemory::default());
/// let hello = SendRequest::send(&sges).id(7).signaled();
/// let write = SendRequest::write(&sges, theirs).imm([0, 0, 0, 1]).id(8).fence();
/// let ticket = SendRequest::fetch_add(&sges, theirs, 1).id(9).signaled();
/// let small = SendRequest::send_inline(b"no buffer needed");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct SendRequest<'a> {
    pub(crate) op: SendOp,
    pub(crate) data: WorkPayload<'a>,
    wr_id: u64,
    flags: u8,
    imm: [u8; 4],
    remote: RemoteMemory,
    to: SendDestination,
    swap_or_add: u64,
    compare: u64,
    rkey: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkPayload<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Destination of a datagram. No address handle has number 0.
#[derive(Clone, Copy, Debug)]
struct SendDestination {
    ah: u32,
    qpn: u32,
    qkey: u32,
}

impl SendDestination {
    const NOWHERE: Self = Self { ah: 0, qpn: 0, qkey: 0 };
}

impl<'a> SendRequest<'a> {
    const fn new(op: SendOp, data: WorkPayload<'a>, remote: RemoteMemory) -> Self {
        let (to, rkey) = (SendDestination::NOWHERE, remote.rkey);
        Self { op, data, wr_id: 0, flags: 0, imm: [0; 4], remote, to, swap_or_add: 0, compare: 0, rkey }
    }

    /// SEND: the peer's next receive determines the location of the data.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send, WorkPayload::Sges(sges), NOWHERE)
    }

    /// SEND of data that is copied when the request is posted.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        Self::new(SendOp::Send, WorkPayload::Inline(data), NOWHERE)
    }

    /// RDMA WRITE to the start of `to`.
    pub const fn write(sges: &'a [Sge], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, WorkPayload::Sges(sges), to)
    }

    /// RDMA WRITE of data that is copied when the request is posted.
    pub const fn write_inline(data: &'a [u8], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, WorkPayload::Inline(data), to)
    }

    /// RDMA READ from the start of `from`.
    pub const fn read(sges: &'a [Sge], from: RemoteMemory) -> Self {
        Self::new(SendOp::Read, WorkPayload::Sges(sges), from)
    }

    /// Atomic compare and swap of the first eight bytes of `at`, at an address that is a multiple
    /// of eight: if they equal `compare`, they are replaced by `swap`.
    ///
    /// `sges` receives the previous value, eight bytes in total, in the byte order of this machine;
    /// the swap took place if it equals `compare`. The peer's bytes are a number in the byte order
    /// of the peer's machine.
    pub const fn compare_swap(sges: &'a [Sge], at: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self { swap_or_add: swap, compare, ..Self::new(SendOp::CompareSwap, WorkPayload::Sges(sges), at) }
    }

    /// Atomic addition of `add`, modulo 2^64, to the first eight bytes of `at`; otherwise as
    /// [`Self::compare_swap`].
    pub const fn fetch_add(sges: &'a [Sge], at: RemoteMemory, add: u64) -> Self {
        Self { swap_or_add: add, ..Self::new(SendOp::FetchAdd, WorkPayload::Sges(sges), at) }
    }

    /// Atomic WRITE of `bytes` to the first eight bytes of `at`, at an address that is a multiple
    /// of eight, all at once. The bytes are copied when the request is posted. The request counts
    /// as a READ, and completes when the peer has the bytes.
    pub const fn atomic_write(bytes: [u8; 8], at: RemoteMemory) -> Self {
        Self { swap_or_add: u64::from_ne_bytes(bytes), ..Self::new(SendOp::AtomicWrite, WorkPayload::Sges(&[]), at) }
    }

    /// FLUSH of all earlier writes of this queue pair to `range`: once it completes, every
    /// processor of the peer sees them. The range is shorter than 2^32 bytes. The request counts as
    /// a READ.
    pub const fn flush(range: RemoteMemory) -> Self {
        Self {
            swap_or_add: range.length,
            compare: flush::operand(flush::GLOBAL, flush::RANGE),
            ..Self::new(SendOp::Flush, WorkPayload::Sges(&[]), range)
        }
    }

    /// FLUSH as [`Self::flush`], of the whole region or window that `rkey` names.
    pub const fn flush_region(rkey: u32) -> Self {
        let compare = flush::operand(flush::GLOBAL, flush::REGION);
        Self { compare, rkey, ..Self::new(SendOp::Flush, WorkPayload::Sges(&[]), NOWHERE) }
    }

    /// Binding of a memory window. Later work starts after the window is bound, and may send its
    /// key to the peer.
    pub const fn bind(binding: &WindowBinding) -> Self {
        let window = &binding.window;
        let remote = RemoteMemory { va: window.va, length: window.length, rkey: binding.rkey };
        Self {
            swap_or_add: window.length,
            compare: window.compare(),
            ..Self::new(SendOp::BindWindow, WorkPayload::Sges(&[]), remote)
        }
    }

    /// Invalidation of the key of a type 2 memory window. It starts when all earlier work is done.
    pub const fn local_invalidate(rkey: u32) -> Self {
        Self { rkey, ..Self::new(SendOp::LocalInvalidate, WorkPayload::Sges(&[]), NOWHERE) }
    }

    /// Makes a SEND invalidate a key of the peer: the key of a type 2 memory window that the peer
    /// bound on this connection. The peer's completion reports it once the key is invalid.
    ///
    /// # Panics
    /// For any request other than a SEND without immediate data.
    pub const fn invalidate(self, rkey: u32) -> Self {
        assert!(matches!(self.op, SendOp::Send), "only a SEND without immediate data takes back a key");
        Self { op: SendOp::SendInvalidate, rkey, ..self }
    }

    /// Returns the same request with the data of `sges`.
    pub const fn with_sges(&self, sges: &'a [Sge]) -> Self {
        Self { data: WorkPayload::Sges(sges), ..*self }
    }

    /// Returns the same request with inline `data`, copied when the request is posted.
    pub const fn with_inline(&self, data: &'a [u8]) -> Self {
        Self { data: WorkPayload::Inline(data), ..*self }
    }

    /// Sets the identifier returned in the completion.
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Adds 32 bits of immediate data, in wire order. A WRITE with immediate data consumes one of
    /// the peer's receives.
    ///
    /// # Panics
    /// For any request other than a SEND or WRITE.
    pub const fn imm(self, imm: [u8; 4]) -> Self {
        let op = match self.op {
            SendOp::Send | SendOp::SendImm => SendOp::SendImm,
            SendOp::Write | SendOp::WriteImm => SendOp::WriteImm,
            _ => panic!("only SEND and WRITE have immediate data"),
        };
        Self { op, imm, ..self }
    }

    /// Sets the destination of a datagram: queue pair `qpn` at the address `ah`, with `qkey`. If
    /// the top bit of `qkey` is set, the Q_Key of the sending queue pair is used.
    ///
    /// The request keeps only the number of `ah`: keep the handle alive until the send has
    /// completed. Otherwise the send fails with
    /// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation).
    pub fn to(self, ah: &AddressHandle, qpn: u32, qkey: u32) -> Self {
        Self { to: SendDestination { ah: ah.number(), qpn: qpn & 0x00ff_ffff, qkey }, ..self }
    }

    pub(crate) const fn has_address(&self) -> bool {
        self.to.ah != 0
    }

    /// Makes the request generate a completion on success as well. An unsignaled request is known
    /// to be done when a later one of the same queue completes; a queue full of unsignaled requests
    /// never gets room again.
    pub const fn signaled(self) -> Self {
        self.flag(send_flags::SIGNALED)
    }

    /// Marks the peer's completion as solicited.
    pub const fn solicited(self) -> Self {
        self.flag(send_flags::SOLICITED)
    }

    /// Delays the request until all earlier READs and atomic operations of the queue are done.
    pub const fn fence(self) -> Self {
        self.flag(send_flags::FENCE)
    }

    const fn flag(self, flag: u8) -> Self {
        Self { flags: self.flags | flag, ..self }
    }

    pub(crate) const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Name of the operation in messages.
    pub(crate) const fn name(&self) -> &'static str {
        match self.op {
            SendOp::Send | SendOp::SendImm => "SEND",
            SendOp::SendInvalidate => "SEND with invalidate",
            SendOp::Write | SendOp::WriteImm => "WRITE",
            SendOp::Read => "READ",
            SendOp::CompareSwap | SendOp::FetchAdd => "atomic operation",
            SendOp::Flush => "FLUSH",
            SendOp::AtomicWrite => "atomic WRITE",
            SendOp::LocalInvalidate => "LOCAL_INV",
            SendOp::BindWindow => "BIND_MW",
        }
    }

    /// Operation reported in the completion.
    pub(crate) const fn completion_op(&self) -> CompletionOp {
        self.op.completion()
    }

    /// Fixed part of the ring entry.
    pub(crate) fn wqe(&self, cookie: u64) -> SendWqe {
        let (num_sge, inline_bytes, inline) = match self.data {
            WorkPayload::Sges(sges) => (sges.len() as u8, 0, 0),
            WorkPayload::Inline(bytes) => (0, bytes.len() as u32, send_flags::INLINE),
        };
        SendWqe {
            wr_id: cookie,
            opcode: self.op as u8,
            flags: self.flags | inline,
            num_sge,
            imm: self.imm,
            remote_va: self.remote.va,
            rkey: self.rkey,
            inline_bytes,
            ah: self.to.ah,
            remote_qpn: self.to.qpn,
            qkey: self.to.qkey,
            swap_or_add: self.swap_or_add,
            compare: self.compare,
            ..SendWqe::default()
        }
    }
}

const NOWHERE: RemoteMemory = RemoteMemory { va: 0, length: 0, rkey: 0 };

/// A receive work request: buffers for a message.
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct RecvRequest<'a> {
    pub(crate) sges: &'a [Sge],
    pub(crate) wr_id: u64,
}

impl<'a> RecvRequest<'a> {
    /// Creates a receive into `sges`, in order. An empty list suffices for a WRITE with immediate
    /// data.
    pub const fn new(sges: &'a [Sge]) -> Self {
        Self { sges, wr_id: 0 }
    }

    /// Sets the identifier returned in the completion.
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }
}
