//! Location of memory regions: memory allocated by the daemon, or memory of the program.
#![expect(
    unsafe_code,
    reason = "the caller of a registration vouches for what no type can show: that the memory stays mapped"
)]

use std::{ops::Range, os::fd::AsFd, ptr::NonNull, sync::Arc};

use roced_abi::control::{FreeMemory, Handle, MapMemory, MapMemoryRequest, Refusal};

use crate::{
    access::Access,
    device::DeviceInner,
    error::{Error, Result},
    mapping::ClientMapping,
    program::{ExchangeCost, Held, ProgramBacking, reach},
    region_memory::RegionMemory,
};

/// Location of the bytes of a region.
#[derive(Clone, Debug)]
pub(crate) struct RegionPlace {
    /// Keeps the daemon's mapping of the memory, named by its handle.
    pub(crate) memory: RegionBacking,
    pub(crate) mapping: Arc<ClientMapping>,
    /// Offset in `mapping`.
    pub(crate) offset: usize,
}

/// Memory that contains a region.
#[derive(Clone, Debug)]
pub(crate) enum RegionBacking {
    Memory(RegionMemory),
    Program(Arc<ProgramMemory>),
}

/// New location of a region.
pub(crate) struct Move {
    pub(crate) place: RegionPlace,
    /// Offset in the range that the daemon maps.
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
        // SAFETY: the caller guarantees that the range stays mapped until the region, which keeps
        // the mapping, is dropped, and that writes there are allowed.
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
    /// Cost of the registration, if its pages had to be exchanged.
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
    /// Its exchanged pages; `None` if the program shares the memory itself, or it stays in place.
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

/// Replaces the daemon's refusal of the file by the reason why the memory had to stay in place.
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
            // A region that could not be deregistered, because a memory window is bound to it,
            // stays registered and keeps its pages.
            std::mem::forget(self.held.take());
        }
        // Any other failure means that the session has ended, and the daemon does not map the
        // memory any more.
    }
}
