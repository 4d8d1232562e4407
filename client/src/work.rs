//! Work requests.

use roced_shared::abi::{
    cqe::CompletionOp,
    wqe::{SendOp, SendWqe, Sge, flush, send_flags},
};

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

/// Where a datagram goes. No address handle has number 0.
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

    /// SEND: the data goes where the peer's next receive says.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send, WorkPayload::Sges(sges), NOWHERE)
    }

    /// SEND of data that is copied when it is posted.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        Self::new(SendOp::Send, WorkPayload::Inline(data), NOWHERE)
    }

    /// RDMA WRITE to the beginning of `to`.
    pub const fn write(sges: &'a [Sge], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, WorkPayload::Sges(sges), to)
    }

    /// RDMA WRITE of data that is copied when it is posted.
    pub const fn write_inline(data: &'a [u8], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, WorkPayload::Inline(data), to)
    }

    /// RDMA READ from the beginning of `from`.
    pub const fn read(sges: &'a [Sge], from: RemoteMemory) -> Self {
        Self::new(SendOp::Read, WorkPayload::Sges(sges), from)
    }

    /// Atomic compare and swap of the first eight bytes of `at`, whose address is a multiple of eight: if they are `compare`, they are
    /// `swap` from then on. What was there before comes to `sges`, eight bytes together, in the byte order of this machine; it was done if that
    /// is `compare`. The peer's bytes are a number in the byte order of the peer's machine.
    pub const fn compare_swap(sges: &'a [Sge], at: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self { swap_or_add: swap, compare, ..Self::new(SendOp::CompareSwap, WorkPayload::Sges(sges), at) }
    }

    /// Atomic addition of `add`, that wraps at 2^64, to the first eight bytes of `at`; otherwise as [`Self::compare_swap`].
    pub const fn fetch_add(sges: &'a [Sge], at: RemoteMemory, add: u64) -> Self {
        Self { swap_or_add: add, ..Self::new(SendOp::FetchAdd, WorkPayload::Sges(sges), at) }
    }

    /// Atomic WRITE: `bytes` to the first eight bytes of `at`, whose address is a multiple of eight, all at once. They are copied when
    /// it is posted. It counts as a READ does, and ends when the peer has them.
    pub const fn atomic_write(bytes: [u8; 8], at: RemoteMemory) -> Self {
        Self { swap_or_add: u64::from_ne_bytes(bytes), ..Self::new(SendOp::AtomicWrite, WorkPayload::Sges(&[]), at) }
    }

    /// FLUSH of all that this queue pair wrote to `range` before: when it is complete, every processor of the peer's sees it. The range has less than
    /// 2^32 bytes. It counts as a READ does.
    pub const fn flush(range: RemoteMemory) -> Self {
        Self {
            swap_or_add: range.length,
            compare: flush::operand(flush::GLOBAL, flush::RANGE),
            ..Self::new(SendOp::Flush, WorkPayload::Sges(&[]), range)
        }
    }

    /// As [`Self::flush`], of all the region or window that `rkey` opens.
    pub const fn flush_region(rkey: u32) -> Self {
        let compare = flush::operand(flush::GLOBAL, flush::REGION);
        Self { compare, rkey, ..Self::new(SendOp::Flush, WorkPayload::Sges(&[]), NOWHERE) }
    }

    /// Binds a memory window. Work behind it begins when it is bound, and may tell the peer of it.
    pub const fn bind(binding: &WindowBinding) -> Self {
        let window = &binding.window;
        let remote = RemoteMemory { va: window.va, length: window.length, rkey: binding.rkey };
        Self {
            swap_or_add: window.length,
            compare: window.compare(),
            ..Self::new(SendOp::BindWindow, WorkPayload::Sges(&[]), remote)
        }
    }

    /// Makes the key of a memory window of type 2 open nothing any more. It begins when all work before it is done.
    pub const fn local_invalidate(rkey: u32) -> Self {
        Self { rkey, ..Self::new(SendOp::LocalInvalidate, WorkPayload::Sges(&[]), NOWHERE) }
    }

    /// Makes a SEND take back a key of the peer's: that of a memory window of type 2 that the peer bound on this connection. The peer's
    /// completion says so when the key opens nothing any more.
    ///
    /// # Panics
    /// For anything but a SEND without immediate data.
    pub const fn invalidate(self, rkey: u32) -> Self {
        assert!(matches!(self.op, SendOp::Send), "only a SEND without immediate data takes back a key");
        Self { op: SendOp::SendInvalidate, rkey, ..self }
    }

    /// The same with other data: these pieces.
    pub const fn with_sges(&self, sges: &'a [Sge]) -> Self {
        Self { data: WorkPayload::Sges(sges), ..*self }
    }

    /// The same with other data: copied when it is posted.
    pub const fn with_inline(&self, data: &'a [u8]) -> Self {
        Self { data: WorkPayload::Inline(data), ..*self }
    }

    /// Comes back in the completion.
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Hands over 32 bits, in the order in which they go to the wire. With a WRITE this takes one of the peer's receives.
    ///
    /// # Panics
    /// For anything but a SEND or WRITE.
    pub const fn imm(self, imm: [u8; 4]) -> Self {
        let op = match self.op {
            SendOp::Send | SendOp::SendImm => SendOp::SendImm,
            SendOp::Write | SendOp::WriteImm => SendOp::WriteImm,
            _ => panic!("only SEND and WRITE have immediate data"),
        };
        Self { op, imm, ..self }
    }

    /// Of a datagram: to queue pair `qpn` at the address `ah`, with `qkey`. With the top bit of `qkey` set, the sending queue pair's own
    /// is used.
    pub fn to(self, ah: &AddressHandle, qpn: u32, qkey: u32) -> Self {
        Self { to: SendDestination { ah: ah.number(), qpn: qpn & 0x00ff_ffff, qkey }, ..self }
    }

    pub(crate) const fn has_address(&self) -> bool {
        self.to.ah != 0
    }

    /// Makes a completion also on success. Requests without are known to be done when a later one of the same queue completes;
    /// a queue full of them never gets room again.
    pub const fn signaled(self) -> Self {
        self.flag(send_flags::SIGNALED)
    }

    /// The peer's completion counts as solicited.
    pub const fn solicited(self) -> Self {
        self.flag(send_flags::SOLICITED)
    }

    /// Begins only when all earlier READs and atomic operations of the queue are done.
    pub const fn fence(self) -> Self {
        self.flag(send_flags::FENCE)
    }

    const fn flag(self, flag: u8) -> Self {
        Self { flags: self.flags | flag, ..self }
    }

    pub(crate) const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// What it is called in messages.
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

    /// What its completion says it was.
    pub(crate) const fn completion_op(&self) -> CompletionOp {
        self.op.completion()
    }

    /// The fixed part of its slot.
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

/// A receive work request: where the next message may go.
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct RecvRequest<'a> {
    pub(crate) sges: &'a [Sge],
    pub(crate) wr_id: u64,
}

impl<'a> RecvRequest<'a> {
    /// Into these pieces, in order. None will do for a WRITE with immediate data.
    pub const fn new(sges: &'a [Sge]) -> Self {
        Self { sges, wr_id: 0 }
    }

    /// Comes back in the completion.
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }
}
