//! Memory of a host, as its endpoint sees it. It has no bytes: each is known by its position, is
//! made when it is read, and is compared when it is written.

use std::collections::BTreeSet;

use roced_transport::{
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault, WorkCompletion},
    mr::MemSpan,
};
use roced_types::{Cqn, Qpn, Status};

/// Bytes of a region: messages of one flow lie in it one behind the other, each once.
pub(crate) const REGION_BYTES: u64 = 1 << 40;

/// Bytes of a packet that is not the last of its message; messages are multiples of it.
const PACKET_BYTES: u64 = 4096;

/// Memory of one flow.
#[derive(Clone, Debug)]
struct Region {
    /// The same at both ends.
    flow: usize,
    /// Packets from the begin on without a hole, and those behind the first hole.
    whole: u64,
    ahead: BTreeSet<u64>,
}

impl Region {
    /// A packet was written: once or again.
    fn place(&mut self, packet: u64) {
        if packet < self.whole {
            return;
        }
        self.ahead.insert(packet);
        while self.ahead.remove(&self.whole) {
            self.whole += 1;
        }
    }
}

/// Regions of a host, and completions.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    regions: Vec<Region>,
    pub(crate) completions: Vec<(Qpn, Status)>,
    /// The first write of wrong bytes.
    pub(crate) wrong: Option<String>,
}

impl HostMemory {
    /// Adds memory of a flow; returns the number of its region.
    pub(crate) fn add(&mut self, flow: usize) -> u32 {
        self.regions.push(Region { flow, whole: 0, ahead: BTreeSet::new() });
        self.regions.len() as u32 - 1
    }

    /// Bytes of a region that were written so far, each once.
    pub(crate) fn placed(&self, region: u32) -> u64 {
        let region = &self.regions[region as usize];
        (region.whole + region.ahead.len() as u64) * PACKET_BYTES
    }

    /// Bytes from the begin of a region on that were all written.
    pub(crate) fn whole(&self, region: u32) -> u64 {
        self.regions[region as usize].whole * PACKET_BYTES
    }
}

/// The eight bytes of a flow at a position.
const fn word(flow: usize, position: u64) -> [u8; 8] {
    let mixed = (position / 8 + ((flow as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).to_le_bytes()
}

impl App for HostMemory {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        let region = &mut self.regions[to.object().0 as usize];
        let mut position = to.offset();
        if position % PACKET_BYTES == 0 && bytes.len() as u64 == PACKET_BYTES {
            region.place(position / PACKET_BYTES);
        } else {
            self.wrong.get_or_insert_with(|| format!("flow {}: a packet of {} bytes", region.flow, bytes.len()));
        }
        for piece in bytes.chunks(8) {
            if *piece != word(region.flow, position)[..piece.len()] {
                self.wrong.get_or_insert_with(|| format!("flow {}: wrong bytes at {position}", region.flow));
                break;
            }
            position += 8;
        }
        Ok(())
    }

    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        let flow = self.regions[from.object().0 as usize].flow;
        let mut position = from.offset();
        for piece in into.chunks_mut(8) {
            piece.copy_from_slice(&word(flow, position)[..piece.len()]);
            position += 8;
        }
        Ok(())
    }

    fn atomic(&mut self, _at: MemSpan<'_>, _operation: AtomicOperation) -> Result<u64, MemoryFault> {
        Err(MemoryFault)
    }

    fn complete(&mut self, _cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        self.completions.push((completion.qpn, completion.status));
        Ok(())
    }
}
