//! The transport's host: its memory and completion queues, and where things lie in the memory of
//! either host.
//!
//! ```text
//!   source   the host's half of the sea, never written
//!   sink     | WRITEs land here | receive buffers | words for atomic operations | READs land here | originals of atomic operations |
//! ```

use roced_transport::{
    endpoint::{Endpoint, EndpointConfig},
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault, WorkCompletion},
    mr::{MemSpan, Mr, MrKey, Scope},
    partition::Partitions,
    recovery::RecoveryConfig,
};
use roced_types::{Cqn, EndpointId, Qpn, Sge, access};

use crate::{
    layout::{PD, SINK, SINK_KEY, SINK_VA, SOURCE, SOURCE_KEY, SOURCE_VA},
    lockstep::Did,
    model::SEND_CQ,
    pattern::SOURCE_BYTES,
    reference::{Memory, Open},
};

/// Bytes in which WRITEs land, and in which READs do.
pub(crate) const RING_BYTES: u32 = 96 << 10;
pub(crate) const RECV_SLOTS: u32 = 16;
pub(crate) const RECV_BYTES: u32 = 4 << 10;
pub(crate) const WORDS: u32 = 8;
/// Results of atomic operations.
pub(crate) const RESULTS: u32 = 64;

pub(crate) const RECV_AT: u32 = RING_BYTES;
pub(crate) const WORDS_AT: u32 = RECV_AT + RECV_SLOTS * RECV_BYTES;
/// Answers of the other host land from here on.
pub(crate) const LANDING_AT: u32 = WORDS_AT + WORDS * 8;
pub(crate) const RESULTS_AT: u32 = LANDING_AT + RING_BYTES;
pub(crate) const SINK_BYTES: usize = (RESULTS_AT + RESULTS * 8) as usize;

/// Makes the endpoint, with its memory open.
pub(crate) fn endpoint(recovery: RecoveryConfig) -> Endpoint {
    let mut endpoint = Endpoint::new(EndpointConfig {
        id: EndpointId::new(1).expect("a small number"),
        max_mrs: 4,
        max_ahs: 1,
        max_srqs: 1,
        max_attachments: 0,
        max_qps: 16,
        total_window_packets: 512,
        recovery,
        partitions: Partitions::default(),
    });
    let source = Mr {
        key: MrKey(SOURCE_KEY),
        pd: PD,
        access: access::REMOTE_READ,
        va: SOURCE_VA,
        length: SOURCE_BYTES as u64,
        object: SOURCE,
        offset: 0,
        scope: Scope::Region,
    };
    let length = SINK_BYTES as u64;
    let sink = Mr { key: MrKey(SINK_KEY), access: access::ALL, va: SINK_VA, length, object: SINK, ..source };
    for mr in [source, sink] {
        endpoint.insert_mr(mr).expect("room");
    }
    endpoint
}

/// One piece of the sink, or of the source.
pub(crate) const fn sge(key: u32, at: u32, length: u32) -> Sge {
    let base = if key == SOURCE_KEY { SOURCE_VA } else { SINK_VA };
    Sge { va: base + at as u64, length, lkey: key }
}

/// The transport's host, as its endpoint sees it.
#[derive(Debug)]
pub(crate) struct EngineHost {
    pub(crate) memory: Memory,
    /// Effects of the transport since they were last taken.
    pub(crate) did: Vec<Did>,
    pub(crate) qpn: Qpn,
}

impl EngineHost {
    pub(crate) fn new(qpn: Qpn) -> Self {
        Self { memory: Memory::new(0, SINK_BYTES), did: Vec::new(), qpn }
    }
}

impl App for EngineHost {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        assert_eq!(to.object(), SINK, "nothing else may be written");
        let at = to.offset() as u32;
        self.memory.sink[at as usize..][..bytes.len()].copy_from_slice(bytes);
        self.did.push(Did::Write { at, bytes: bytes.to_vec() });
        Ok(())
    }

    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        let at = from.offset() as usize;
        let open = if from.object() == SOURCE { Open::Source(at) } else { Open::Sink(at) };
        into.copy_from_slice(self.memory.read(open, into.len()));
        Ok(())
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        let offset = at.offset() as usize;
        let before = self.memory.word(offset);
        let after = operation.after(before);
        self.memory.sink[offset..][..8].copy_from_slice(&after.to_ne_bytes());
        self.did.push(Did::Atomic { at: offset as u32, before, after });
        Ok(before)
    }

    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        self.did.push(if cqn == SEND_CQ { Did::Sent(*completion) } else { Did::Received(*completion) });
        Ok(())
    }
}
