//! What of clients a worker holds: memory that regions lie in, and its lanes of completion queues. It is the worker's [`App`].

use std::sync::Arc;

use roced_shared::{
    abi::cqe::Cqe,
    ids::{Cqn, RegionId},
};
use roced_transport::{
    io::{App, AtomicOperation, CqOverrun, Loan, MemoryFault},
    mr::MemSpan,
};

use super::table::IdTable;
use crate::clients::{
    memory::ClientMemory,
    queues::{CqLane, LaneRing},
};

#[derive(Debug)]
struct Lane {
    lane: CqLane,
    /// It stands in the list of touched lanes.
    touched: bool,
}

/// Client memory and lanes of one worker.
#[derive(Debug)]
pub struct Holdings {
    regions: IdTable<Arc<ClientMemory>>,
    lanes: IdTable<Lane>,
    /// Lanes with completions that their clients do not see yet.
    touched: Vec<Cqn>,
}

impl Holdings {
    /// Nothing yet; room for that much.
    pub fn new(max_regions: u32, max_lanes: u32) -> Self {
        Self {
            regions: IdTable::new(max_regions),
            lanes: IdTable::new(max_lanes),
            touched: Vec::with_capacity(max_lanes as usize),
        }
    }

    /// Takes hold of memory.
    ///
    /// # Errors
    /// Gives it back when there is no room or the number is taken.
    pub fn add_region(&mut self, id: RegionId, memory: Arc<ClientMemory>) -> Result<(), Arc<ClientMemory>> {
        self.regions.insert(id.0, memory)
    }

    /// Lets memory go.
    pub fn remove_region(&mut self, id: RegionId) -> Option<Arc<ClientMemory>> {
        self.regions.remove(id.0)
    }

    /// Takes a lane.
    ///
    /// # Errors
    /// Gives it back when there is no room or the number is taken.
    pub fn add_lane(&mut self, cqn: Cqn, lane: CqLane) -> Result<(), CqLane> {
        self.lanes.insert(cqn.0, Lane { lane, touched: false }).map_err(|lane| lane.lane)
    }

    /// Lets a lane go; its client sees all that is in it.
    pub fn remove_lane(&mut self, cqn: Cqn) -> Option<CqLane> {
        self.publish();
        self.lanes.remove(cqn.0).map(|lane| lane.lane)
    }

    /// Gives a lane another ring; gives the one of before.
    ///
    /// # Errors
    /// Gives `ring` back when there is no such lane.
    pub fn change_ring(&mut self, cqn: Cqn, ring: LaneRing) -> Result<LaneRing, LaneRing> {
        match self.lanes.get_mut(cqn.0) {
            Some(lane) => Ok(lane.lane.change_ring(ring)),
            None => Err(ring),
        }
    }

    /// Lets clients see every completion so far, and sends the events that they asked for. Says how many lanes there were.
    pub fn publish(&mut self) -> usize {
        let lanes = self.touched.len();
        for cqn in self.touched.drain(..) {
            if let Some(lane) = self.lanes.get_mut(cqn.0) {
                lane.touched = false;
                lane.lane.publish();
            }
        }
        lanes
    }
}

impl App for Holdings {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.regions.get(to.region().0).ok_or(MemoryFault)?.write(to.offset(), bytes);
        Ok(())
    }

    fn copy(&mut self, to: MemSpan<'_>, from: Loan) -> Result<(), MemoryFault> {
        let source = self.regions.get(from.region().0).ok_or(MemoryFault)?;
        let target = self.regions.get(to.region().0).ok_or(MemoryFault)?;
        target.copy(to.offset(), source, from.offset(), from.len());
        Ok(())
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.regions.get(from.region().0).ok_or(MemoryFault)?.read(from.offset(), into);
        Ok(())
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        Ok(self.regions.get(at.region().0).ok_or(MemoryFault)?.atomic(at.offset(), operation))
    }

    fn complete(&mut self, cqn: Cqn, completion: &Cqe) -> Result<(), CqOverrun> {
        let lane = self.lanes.get_mut(cqn.0).ok_or(CqOverrun)?;
        lane.lane.push(completion)?;
        if !lane.touched {
            lane.touched = true;
            self.touched.push(cqn);
        }
        Ok(())
    }
}
