//! Client memory and completion queues, with the rules that the transport must obey.

use std::collections::{BTreeMap, VecDeque};

use roced_transport::io::WorkCompletion;
use roced_transport::{
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault},
    mr::{MemSpan, Mr},
};
use roced_types::{Cqn, Status, access};

use crate::PD;

/// Knowledge of a client about one of its queue pairs.
#[derive(Default)]
pub(crate) struct Posted {
    /// (wr_id, makes a completion on success).
    pub(crate) sends: VecDeque<(u64, bool)>,
    pub(crate) recvs: VecDeque<u64>,
    pub(crate) signal_all: bool,
}

/// Client memory and completion queues, with the rules that the transport must obey.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) mrs: Vec<Mr>,
    pub(crate) posted: BTreeMap<u32, Posted>,
    /// One completion in so many finds no room; 0: none.
    pub(crate) overrun: u64,
    /// One access in so many finds no memory; 0: none.
    pub(crate) fault: u64,
    pub(crate) random: u64,
}

impl Client {
    fn happens(&mut self, once_in: u64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        once_in > 0 && (self.random >> 33).is_multiple_of(once_in)
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
        if self.happens(self.fault) { Err(MemoryFault) } else { Ok(()) }
    }
}

impl App for Client {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.access(to, bytes.len(), access::LOCAL_WRITE | access::REMOTE_WRITE)
    }

    /// No queue pair here is a local peer of another.
    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        into.fill(0);
        self.access(from, into.len(), 0)
    }

    fn atomic(&mut self, at: MemSpan<'_>, _: AtomicOperation) -> Result<u64, MemoryFault> {
        assert!(at.offset().is_multiple_of(8));
        self.access(at, 8, access::REMOTE_ATOMIC).map(|()| 1)
    }

    fn complete(&mut self, cqn: Cqn, cqe: &WorkCompletion) -> Result<(), CqOverrun> {
        let posted = self.posted.get_mut(&cqe.qpn.get()).expect("of a queue pair that is there");
        let status = cqe.status;
        if cqn == Cqn(1) {
            loop {
                let (wr_id, signaled) = posted.sends.pop_front().expect("posted, and not complete yet");
                if wr_id == cqe.wr_id {
                    assert!(signaled || posted.signal_all || status != Status::Success, "it was not asked for");
                    break;
                }
                assert!(!signaled && !posted.signal_all, "{wr_id} is complete before {}", cqe.wr_id);
            }
        } else {
            assert_eq!((cqn, posted.recvs.pop_front()), (Cqn(2), Some(cqe.wr_id)), "in order, each once");
        }
        if self.happens(self.overrun) { Err(CqOverrun) } else { Ok(()) }
    }
}
