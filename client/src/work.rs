//! Work requests.

use roced_shared::abi::{
    cqe::CompletionOp,
    wqe::{SendOp, SendWqe, Sge, send_flags},
};

use crate::mr::RemoteMemory;

/// A send work request.
///
/// ```
/// # use roced_client::{RemoteMemory, SendRequest, Sge};
/// # let (sges, theirs) = ([Sge { va: 0, length: 8, lkey: 1 }], RemoteMemory::default());
/// let hello = SendRequest::send(&sges).id(7).signaled();
/// let write = SendRequest::write(&sges, theirs).imm([0, 0, 0, 1]).id(8).fence();
/// let small = SendRequest::send_inline(b"no buffer needed");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct SendRequest<'a> {
    pub(crate) op: SendOp,
    pub(crate) data: Data<'a>,
    wr_id: u64,
    flags: u8,
    imm: [u8; 4],
    remote: RemoteMemory,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

impl<'a> SendRequest<'a> {
    const fn new(op: SendOp, data: Data<'a>, remote: RemoteMemory) -> Self {
        Self { op, data, wr_id: 0, flags: 0, imm: [0; 4], remote }
    }

    /// SEND: the data goes where the peer's next receive says.
    pub const fn send(sges: &'a [Sge]) -> Self {
        Self::new(SendOp::Send, Data::Sges(sges), NOWHERE)
    }

    /// SEND of data that is copied when it is posted.
    pub const fn send_inline(data: &'a [u8]) -> Self {
        Self::new(SendOp::Send, Data::Inline(data), NOWHERE)
    }

    /// RDMA WRITE to the beginning of `to`.
    pub const fn write(sges: &'a [Sge], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, Data::Sges(sges), to)
    }

    /// RDMA WRITE of data that is copied when it is posted.
    pub const fn write_inline(data: &'a [u8], to: RemoteMemory) -> Self {
        Self::new(SendOp::Write, Data::Inline(data), to)
    }

    /// RDMA READ from the beginning of `from`.
    pub const fn read(sges: &'a [Sge], from: RemoteMemory) -> Self {
        Self::new(SendOp::Read, Data::Sges(sges), from)
    }

    /// Comes back in the completion.
    pub const fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Hands over 32 bits, in the order in which they go to the wire. With a WRITE this takes one of the peer's receives.
    ///
    /// # Panics
    /// For a READ.
    pub const fn imm(self, imm: [u8; 4]) -> Self {
        let op = match self.op {
            SendOp::Send | SendOp::SendImm => SendOp::SendImm,
            SendOp::Write | SendOp::WriteImm => SendOp::WriteImm,
            SendOp::Read => panic!("a READ has no immediate data"),
        };
        Self { op, imm, ..self }
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

    /// Begins only when all earlier READs of the queue are done.
    pub const fn fence(self) -> Self {
        self.flag(send_flags::FENCE)
    }

    const fn flag(self, flag: u8) -> Self {
        Self { flags: self.flags | flag, ..self }
    }

    pub(crate) const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// What its completion says it was.
    pub(crate) const fn completion_op(&self) -> CompletionOp {
        match self.op {
            SendOp::Send | SendOp::SendImm => CompletionOp::Send,
            SendOp::Write | SendOp::WriteImm => CompletionOp::Write,
            SendOp::Read => CompletionOp::Read,
        }
    }

    /// The fixed part of its slot.
    pub(crate) fn wqe(&self, cookie: u64) -> SendWqe {
        let (num_sge, inline_bytes, inline) = match self.data {
            Data::Sges(sges) => (sges.len() as u8, 0, 0),
            Data::Inline(bytes) => (0, bytes.len() as u32, send_flags::INLINE),
        };
        SendWqe {
            wr_id: cookie,
            opcode: self.op as u8,
            flags: self.flags | inline,
            num_sge,
            imm: self.imm,
            remote_va: self.remote.va,
            rkey: self.remote.rkey,
            inline_bytes,
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
