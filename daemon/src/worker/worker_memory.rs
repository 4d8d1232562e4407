//! Client memory and CQ rings of a worker. It is the worker's [`App`].

use roced_memory::{
    backing::Backing,
    poll_id::PollId,
    queues::{CqRing, CqRingPlace},
};
use roced_transport::{
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault, WorkCompletion},
    mr::MemSpan,
};
use roced_types::{Cqn, MemoryObjectId, WorkerId};

use super::{abi::cqe, table::IdTable};

/// Bytes copied at a time if one of both memories is not mapped: the largest borrowed payload.
const BOUNCE_BYTES: usize = 32 << 10;

#[derive(Debug)]
struct MappedCqRing {
    cq_ring: CqRing,
    /// It stands in the list of touched CQ rings.
    touched: bool,
}

/// A memory object that contains memory regions.
#[derive(Debug)]
struct HeldObject {
    backing: Backing,
    /// Number of memory regions in it.
    regions: u32,
}

/// Client memory and CQ rings of one worker.
#[derive(Debug)]
pub struct WorkerMemory {
    objects: IdTable<HeldObject>,
    /// Memory that was written to and may not show it yet.
    unsettled: Option<MemoryObjectId>,
    /// Buffer for borrowed payload if one of both memories is not mapped; as large as the largest
    /// borrowed payload, because both memories may overlap.
    bounce: Box<[u8]>,
    /// This poll iteration.
    poll: PollId,
    cq_rings: IdTable<MappedCqRing>,
    /// CQ rings with completions that their clients do not see yet.
    touched: Vec<Cqn>,
}

impl WorkerMemory {
    /// Nothing yet; room for that much.
    pub fn new(id: WorkerId, max_objects: u32, max_cq_rings: u32) -> Self {
        Self {
            objects: IdTable::new(max_objects),
            unsettled: None,
            bounce: vec![0; BOUNCE_BYTES].into_boxed_slice(),
            poll: PollId::first(id),
            cq_rings: IdTable::new(max_cq_rings),
            touched: Vec::with_capacity(max_cq_rings as usize),
        }
    }

    /// Holds the memory object of one more memory region.
    ///
    /// # Errors
    /// Returns the memory if there is no room.
    pub fn hold(&mut self, id: MemoryObjectId, backing: Backing) -> Result<(), Backing> {
        match self.objects.get_mut(id.0) {
            Some(held) => held.regions += 1,
            None => {
                self.objects.insert(id.0, HeldObject { backing, regions: 1 }).map_err(|held| held.backing)?;
            }
        }
        Ok(())
    }

    /// Releases the memory object of one memory region; returns it if that was the last. Writes so
    /// far are in the memory by then: written later, they would replace newer bytes of the program.
    pub fn release(&mut self, id: MemoryObjectId) -> Option<Backing> {
        let held = self.objects.get_mut(id.0)?;
        held.regions -= 1;
        if held.regions > 0 {
            return None;
        }
        if self.unsettled == Some(id) {
            self.settle();
        }
        self.objects.remove(id.0).map(|held| held.backing)
    }

    fn backing(&self, id: MemoryObjectId) -> Option<&Backing> {
        self.objects.get(id.0).map(|held| &held.backing)
    }

    /// Writes of peers so far are visible to their program, before any report about them.
    pub fn settle(&mut self) {
        if let Some(Backing::Proxied(memory)) = self.unsettled.take().and_then(|object| self.backing(object)) {
            // Bytes that cannot be written are lost, and so is the session.
            let _ = memory.settle(self.poll);
        }
    }

    /// Before a write to `object`: bytes become visible in the order of their arrival, in any kind
    /// of memory.
    fn settle_before(&mut self, object: MemoryObjectId) {
        if self.unsettled.is_some_and(|unsettled| unsettled != object) {
            self.settle();
        }
    }

    fn write_at(&mut self, object: MemoryObjectId, offset: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.settle_before(object);
        match self.backing(object).ok_or(MemoryFault)? {
            Backing::Mapped(memory) => memory.write(offset, bytes),
            Backing::Proxied(memory) => {
                memory.write(offset, bytes, self.poll)?;
                self.unsettled = Some(object);
            }
        }
        Ok(())
    }

    fn read_at(&self, object: MemoryObjectId, offset: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        match self.backing(object).ok_or(MemoryFault)? {
            Backing::Mapped(memory) => memory.read(offset, into),
            Backing::Proxied(memory) => memory.read(offset, into, self.poll)?,
        }
        Ok(())
    }

    fn copy_by(&mut self, bounce: &mut [u8], to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault> {
        let mut done = 0;
        while done < from.len() {
            let piece = bounce.len().min(from.len() - done);
            let (at, piece_of) = (done as u64, &mut bounce[..piece]);
            self.read_at(from.object(), from.offset() + at, piece_of).map_err(|MemoryFault| PlaceFault::Source)?;
            self.write_at(to.object(), to.offset() + at, piece_of).map_err(|MemoryFault| PlaceFault::Target)?;
            done += piece;
        }
        Ok(())
    }

    /// Takes a CQ ring.
    ///
    /// # Errors
    /// Gives it back when there is no room or the number is taken.
    pub fn add_cq_ring(&mut self, cqn: Cqn, cq_ring: CqRing) -> Result<(), CqRing> {
        self.cq_rings.insert(cqn.0, MappedCqRing { cq_ring, touched: false }).map_err(|cq_ring| cq_ring.cq_ring)
    }

    /// Lets a CQ ring go; its client sees all that is in it.
    pub fn remove_cq_ring(&mut self, cqn: Cqn) -> Option<CqRing> {
        self.publish();
        self.cq_rings.remove(cqn.0).map(|cq_ring| cq_ring.cq_ring)
    }

    /// Replaces a CQ ring; returns the old one.
    ///
    /// # Errors
    /// Gives `ring` back when there is no such CQ ring.
    pub fn change_ring(&mut self, cqn: Cqn, ring: CqRingPlace) -> Result<CqRingPlace, CqRingPlace> {
        match self.cq_rings.get_mut(cqn.0) {
            Some(cq_ring) => Ok(cq_ring.cq_ring.change_ring(ring)),
            None => Err(ring),
        }
    }

    /// Lets clients see every completion so far, and sends the events that they asked for. Says how
    /// many CQ rings there were.
    pub fn publish(&mut self) -> usize {
        self.settle();
        self.poll = self.poll.next();
        let cq_rings = self.touched.len();
        for cqn in self.touched.drain(..) {
            if let Some(cq_ring) = self.cq_rings.get_mut(cqn.0) {
                cq_ring.touched = false;
                cq_ring.cq_ring.publish();
            }
        }
        cq_rings
    }
}

impl App for WorkerMemory {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.write_at(to.object(), to.offset(), bytes)
    }

    fn copy(&mut self, to: MemSpan<'_>, from: BorrowedPayload) -> Result<(), PlaceFault> {
        self.settle_before(to.object());
        let source = self.backing(from.object()).ok_or(PlaceFault::Source)?;
        let target = self.backing(to.object()).ok_or(PlaceFault::Target)?;
        if let (Backing::Mapped(source), Backing::Mapped(target)) = (source, target) {
            target.copy(to.offset(), source, from.offset(), from.len());
            return Ok(());
        }
        // Proxied memory is copied through a buffer.
        let mut bounce = std::mem::take(&mut self.bounce);
        let copied = self.copy_by(&mut bounce, to, from);
        self.bounce = bounce;
        copied
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.read_at(from.object(), from.offset(), into)
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        self.settle();
        self.backing(at.object()).ok_or(MemoryFault)?.atomic(at.offset(), operation, self.poll)
    }

    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        let cq_ring = self.cq_rings.get_mut(cqn.0).ok_or(CqOverrun)?;
        cq_ring.cq_ring.push(&cqe(completion))?;
        if !cq_ring.touched {
            cq_ring.touched = true;
            self.touched.push(cqn);
        }
        Ok(())
    }
}
