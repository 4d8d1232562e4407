//! Memory, completion queues and NIC of a host, as its endpoint uses them.

use std::collections::VecDeque;

use roced_transport::{
    io::{
        Abort, App, AtomicOperation, BorrowedPayload, CqOverrun, Egress, EmitError, FrameMut, MemoryFault, PlaceFault,
        Wire, WorkCompletion,
    },
    mr::MemSpan,
};
use roced_types::{Cqn, MemoryObjectId};

pub(crate) const CQ: Cqn = Cqn(1);
pub(crate) const MEMORY: MemoryObjectId = MemoryObjectId(9);

/// Memory and completions of one host.
#[derive(Default)]
pub(crate) struct Application {
    pub(crate) memory: Vec<u8>,
    pub(crate) completions: Vec<WorkCompletion>,
    /// Completions that still find room.
    pub(crate) cq_room: usize,
    /// Each write as (offset, length), in order.
    pub(crate) writes: Vec<(u64, usize)>,
    /// Results of atomic operations, in order.
    pub(crate) originals: Vec<u64>,
}

impl App for Application {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        assert_eq!((to.object(), to.len()), (MEMORY, bytes.len()));
        self.memory[to.offset() as usize..][..bytes.len()].copy_from_slice(bytes);
        self.writes.push((to.offset(), bytes.len()));
        Ok(())
    }

    fn copy(&mut self, to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault> {
        assert_eq!((from.object(), from.len()), (MEMORY, to.len()), "there is one memory here");
        let begin = from.offset() as usize;
        let lent = self.memory[begin..begin + from.len()].to_vec();
        self.write(to, &lent).map_err(|MemoryFault| PlaceFault::Target)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        assert_eq!((from.object(), from.len()), (MEMORY, into.len()));
        into.copy_from_slice(&self.memory[from.offset() as usize..][..into.len()]);
        Ok(())
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        assert_eq!((at.object(), at.len(), at.offset() % 8), (MEMORY, 8, 0));
        let word = &mut self.memory[at.offset() as usize..][..8];
        let before = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        word.copy_from_slice(&operation.after(before).to_ne_bytes());
        self.originals.push(before);
        Ok(before)
    }

    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        assert_eq!(cqn, CQ);
        self.cq_room = self.cq_room.checked_sub(1).ok_or(CqOverrun)?;
        self.completions.push(*completion);
        Ok(())
    }
}

/// A NIC that keeps frames, up to a limit, until they are carried.
#[derive(Default)]
pub(crate) struct Nic {
    pub(crate) frames: VecDeque<Vec<u8>>,
    pub(crate) room: usize,
    /// Bytes with which it has no room either.
    pub(crate) ahead_max: usize,
}

impl Wire for Nic {
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        // Hand-over has room when the NIC has none.
        let bytes: usize = self.frames.iter().map(Vec::len).sum();
        if matches!(via, Egress::Nic { .. }) && (self.frames.len() >= self.room || bytes >= self.ahead_max) {
            return Err(EmitError::Full);
        }
        let mut bytes = vec![0xee; frame_bytes];
        // In pieces, as AF_XDP chunks would be.
        let mut frame = FrameMut::over(bytes.chunks_mut(3840.min(frame_bytes)));
        fill(&mut frame).map_err(|Abort| EmitError::Aborted)?;
        assert_eq!(frame.remaining(), 0, "a frame is as long as was said");
        self.frames.push_back(bytes);
        Ok(())
    }

    fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_max = bytes;
    }
}
