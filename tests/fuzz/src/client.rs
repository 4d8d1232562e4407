//! Client memory and completion queues, as the transport may use them.

use std::collections::VecDeque;

use roced_transport::{
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault, WorkCompletion},
    mr::{MemSpan, Mr, MrKey},
};
use roced_types::{Cqn, MemoryObjectId, Pdn, Sge, Status, access};

pub(crate) const PD: Pdn = Pdn(1);
pub(crate) const SEND_CQ: Cqn = Cqn(1);
pub(crate) const RECV_CQ: Cqn = Cqn(2);

/// A send that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    /// Makes a completion on success.
    pub(crate) signaled: bool,
}

/// A send that ended, as its completion says or its silence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) wr_id: u64,
    pub(crate) success: bool,
}

/// The client that the transport faces.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) mrs: Vec<Mr>,
    pub(crate) sends: VecDeque<Posted>,
    pub(crate) recvs: VecDeque<u64>,
    /// Queue pairs that take from `recvs` beside the one, each with one at a time.
    pub(crate) sharers: usize,
    pub(crate) ended: Vec<Ended>,
    /// Where answers may be put: the ranges of the READs that were posted, none when only peers
    /// write.
    pub(crate) only_into: Option<Vec<Sge>>,
    /// Atomic operations so far. Each "finds" its own number there, so that an answer says which
    /// one it is of.
    pub(crate) atomics: u64,
    /// Bytes written so far.
    pub(crate) written: u64,
    /// Completions until one finds no room, accesses until one finds no memory; 0: never.
    pub(crate) overrun_in: u32,
    pub(crate) fault_in: u32,
}

/// The byte at `offset` of a region: its constant value.
pub(crate) const fn byte_at(object: MemoryObjectId, offset: u64) -> u8 {
    (offset as u8).wrapping_mul(7) ^ ((offset >> 8) as u8).wrapping_mul(3) ^ object.0 as u8
}

/// True when the countdown ends now.
fn ends(countdown: &mut u32) -> bool {
    if *countdown == 0 {
        return false;
    }
    *countdown -= 1;
    *countdown == 0
}

impl Client {
    pub(crate) fn mr(&self, key: MrKey) -> Option<&Mr> {
        self.mrs.iter().find(|mr| mr.key == key)
    }

    fn access(&mut self, span: MemSpan<'_>, bytes: usize, rights: u32) -> Result<(), MemoryFault> {
        assert_eq!(span.len(), bytes, "a span is as long as its bytes");
        let end = span.offset().checked_add(bytes as u64).expect("inside a region");
        let allowed = self.mrs.iter().any(|mr| {
            mr.object == span.object()
                && mr.pd == PD
                && (rights == 0 || mr.access & rights != 0)
                && mr.offset <= span.offset()
                && end <= mr.offset + mr.length
        });
        assert!(allowed && bytes > 0, "{span:?} for {rights} is open");
        if ends(&mut self.fault_in) { Err(MemoryFault) } else { Ok(()) }
    }

    /// Some posted READ asked for these bytes to be put there.
    fn is_asked_for(&self, span: &MemSpan<'_>, sges: &[Sge]) -> bool {
        let end = span.offset() + span.len() as u64;
        sges.iter().any(|sge| {
            self.mr(MrKey(sge.lkey)).is_some_and(|mr| {
                let begin = mr.offset.wrapping_add(sge.va.wrapping_sub(mr.va));
                mr.object == span.object() && begin <= span.offset() && end <= begin.saturating_add(sge.length.into())
            })
        })
    }
}

impl App for Client {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        if let Some(sges) = &self.only_into {
            assert!(self.is_asked_for(&to, sges), "{to:?} is where a READ was to put its data");
        }
        self.written += bytes.len() as u64;
        self.access(to, bytes.len(), access::LOCAL_WRITE | access::REMOTE_WRITE)
    }

    /// No queue pair here has its peer on the same endpoint.
    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        for (byte, offset) in into.iter_mut().zip(from.offset()..) {
            *byte = byte_at(from.object(), offset);
        }
        self.access(from, into.len(), 0)
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        assert!(at.offset().is_multiple_of(8), "{at:?} is aligned");
        if matches!(operation, AtomicOperation::Write { .. }) {
            self.access(at, 8, access::REMOTE_WRITE)?;
            self.written += 8;
            return Ok(0);
        }
        self.access(at, 8, access::REMOTE_ATOMIC)?;
        self.atomics += 1;
        Ok(self.atomics)
    }

    fn complete(&mut self, cqn: Cqn, cqe: &WorkCompletion) -> Result<(), CqOverrun> {
        let status = cqe.status;
        if cqn == SEND_CQ {
            loop {
                let posted = self.sends.pop_front().expect("posted, and not complete yet");
                if posted.wr_id == cqe.wr_id {
                    let success = status == Status::Success;
                    assert!(posted.signaled || !success, "no request asked for it");
                    assert!(
                        !success || self.ended.last().is_none_or(|last| last.success),
                        "it is behind one that failed"
                    );
                    self.ended.push(Ended { wr_id: cqe.wr_id, success });
                    break;
                }
                assert!(!posted.signaled, "{} is complete before {}", cqe.wr_id, posted.wr_id);
                self.ended.push(Ended { wr_id: posted.wr_id, success: true });
            }
        } else {
            let at = self.recvs.iter().position(|wr_id| *wr_id == cqe.wr_id);
            // One before it may be in the hands of another.
            assert!(cqn == RECV_CQ && at.is_some_and(|at| at <= self.sharers), "in order, each once: {at:?}");
            at.map(|at| self.recvs.remove(at));
        }
        if ends(&mut self.overrun_in) { Err(CqOverrun) } else { Ok(()) }
    }
}
