//! Where memory regions lie: in memory that the daemon made, or in the program's own.
#![expect(
    unsafe_code,
    reason = "the caller of a registration vouches for what no type can show: that the memory stays mapped"
)]

use std::{ops::Range, os::fd::AsFd, ptr::NonNull, sync::Arc};

use roced_shared::abi::control::{FreeMemory, Handle, MapMemory, MapMemoryRequest, Refusal};

use crate::{
    device::DeviceInner,
    error::{Error, Result},
    mapping::ClientMapping,
    mr::{Access, RegionMemory},
    program::{ExchangeCost, Held, ProgramBacking, reach},
};

/// Where a region's bytes lie.
#[derive(Clone, Debug)]
pub(crate) struct RegionPlace {
    /// Keeps what the daemon has of it, by this handle.
    pub(crate) memory: RegionBacking,
    pub(crate) mapping: Arc<ClientMapping>,
    /// In `mapping`.
    pub(crate) offset: usize,
}

/// What a region lies in.
#[derive(Clone, Debug)]
pub(crate) enum RegionBacking {
    Memory(RegionMemory),
    Program(Arc<ProgramMemory>),
}

/// Where a region is to lie.
pub(crate) struct Move {
    pub(crate) place: RegionPlace,
    /// In what the daemon maps.
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) iova: u64,
}

impl Move {
    /// # Safety
    /// As [`crate::ProtectionDomain::register_at`].
    pub(crate) unsafe fn to_program(
        device: &Arc<DeviceInner>,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let start = address.expose_provenance();
        let base = NonNull::new(address).ok_or(Error::NotMapped { address: 0 })?;
        let end = start.checked_add(length).ok_or(Error::NotMapped { address: start })?;
        if let Some((memory, offset)) = RegionMemory::around(device, &(start..end)) {
            let place = RegionPlace::in_memory(&memory, offset);
            return Ok(Self { place, offset: offset as u64, length, iova });
        }
        let memory = Arc::new(ProgramMemory::new(device, &(start..end), access)?);
        let offset = (start - memory.start) as u64;
        // SAFETY: the caller says that the range stays mapped until the region, which keeps the mapping, is dropped; and who may write there.
        let mapping = unsafe { ClientMapping::of_program(base, length) };
        let place = RegionPlace { memory: RegionBacking::Program(memory), mapping, offset: 0 };
        Ok(Self { place, offset, length, iova })
    }
}

impl RegionPlace {
    pub(crate) fn in_memory(memory: &RegionMemory, offset: usize) -> Self {
        let mapping = Arc::clone(&memory.inner.mapping);
        Self { memory: RegionBacking::Memory(memory.clone()), mapping, offset }
    }
}

impl RegionBacking {
    /// What registering it cost, where its pages had to be exchanged.
    pub(crate) fn cost(&self) -> Option<ExchangeCost> {
        match self {
            Self::Memory(_) => None,
            Self::Program(memory) => memory.held.as_ref().map(|held| held.cost),
        }
    }

    pub(crate) fn handle(&self) -> u32 {
        match self {
            Self::Memory(memory) => memory.inner.handle,
            Self::Program(memory) => memory.handle,
        }
    }
}

/// Memory of the program that the daemon maps.
#[derive(Debug)]
pub(crate) struct ProgramMemory {
    device: Arc<DeviceInner>,
    handle: u32,
    /// The first address.
    start: usize,
    /// Its pages, if they are not the program's own to share.
    held: Option<Held>,
}

impl ProgramMemory {
    fn new(device: &Arc<DeviceInner>, range: &Range<usize>, access: Access) -> Result<Self> {
        if range.is_empty() {
            return Err(Error::NotMapped { address: range.start });
        }
        let ProgramBacking { file, pages, offset, writable, origin, held, because } = reach(range, access.writes())?;
        let request = MapMemoryRequest { offset, bytes: pages.len() as u64, writable: writable.into(), origin };
        let mapped = device.session.call_with::<MapMemory>(request, file.as_fd());
        let handle = mapped.map_err(|error| because_of(error, because))?.handle;
        Ok(Self { device: Arc::clone(device), handle, start: pages.start, held })
    }
}

/// Where the daemon cannot reach the memory either, the reason is that nothing better could be done.
fn because_of(error: Error, because: Option<Error>) -> Error {
    match (error, because) {
        (Error::Refused { refusal: Refusal::BadFile, .. }, Some(because)) => because,
        (error, _) => error,
    }
}

impl Drop for ProgramMemory {
    fn drop(&mut self) {
        let freed = self.device.session.call::<FreeMemory>(Handle { handle: self.handle });
        if matches!(freed, Err(Error::Refused { refusal: Refusal::InUse, .. })) {
            // A region that could not be deregistered, for a memory window is bound to it, lives on: and the pages with it.
            std::mem::forget(self.held.take());
        }
        // Any other failure means that the session is over, and then the daemon does not map it.
    }
}
