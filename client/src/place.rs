//! Location of memory regions: memory allocated by the daemon, or memory of the program.
#![expect(unsafe_code, reason = "precondition of a registration that no type can express: the memory stays mapped")]

use std::{ops::Range, os::fd::AsFd, ptr::NonNull, sync::Arc};

use nix::errno::Errno;
use roced_abi::control::{
    Call, DeregMr, DeregMrAndFree, FreeMemory, Handle, MapAndRegMr, MapAndRegMrReply, MapAndRegMrRequest, MapMemory,
    MapMemoryRequest, Refusal, RegMrReply, RegMrRequest, origin,
};

use crate::{
    access::Access,
    device::DeviceInner,
    error::{Error, Result},
    mapping::ClientMapping,
    private_memory::PrivateMemory,
    program::{ExchangeCost, ProgramBacking, SharedPages, reach, stay},
    region_memory::RegionMemory,
    socket::DaemonSession,
};

/// Location of the bytes of a region.
#[derive(Debug)]
pub(crate) struct RegionPlace {
    /// Keeps the daemon's mapping of the memory, named by its handle.
    pub(crate) memory: RegionBacking,
    pub(crate) mapping: Arc<ClientMapping>,
    /// Offset in `mapping`.
    pub(crate) offset: usize,
}

/// Memory that contains a region.
#[derive(Debug)]
pub(crate) enum RegionBacking {
    Memory(RegionMemory),
    Program(Box<ProgramMemory>),
}

/// New location of a region.
pub(crate) struct Move {
    pub(crate) place: RegionPlace,
    /// Offset in the memory.
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) iova: u64,
}

/// Addresses of the program that are to be registered.
pub(crate) struct ProgramRange {
    base: NonNull<u8>,
    range: Range<usize>,
}

impl ProgramRange {
    pub(crate) fn new(address: *mut u8, length: usize) -> Result<Self> {
        let start = address.expose_provenance();
        let base = NonNull::new(address).ok_or(Error::NotMapped { address: 0 })?;
        let end = start.checked_add(length).ok_or(Error::NotMapped { address: start })?;
        Ok(Self { base, range: start..end })
    }

    /// The daemon's memory that contains the range, if any, and the offset of the range in it.
    pub(crate) fn in_memory(&self, device: &DeviceInner) -> Option<(RegionPlace, u64)> {
        let (memory, offset) = RegionMemory::around(device, &self.range)?;
        Some((RegionPlace::in_memory(&memory, offset), offset as u64))
    }

    /// Registers the range, which lies in no memory of the daemon, and maps its pages in the same
    /// call; `region` has all other parameters.
    ///
    /// # Safety
    /// As [`crate::ProtectionDomain::register_at`].
    pub(crate) unsafe fn register(
        &self,
        device: &Arc<DeviceInner>,
        access: Access,
        region: RegMrRequest,
    ) -> Result<(RegionPlace, RegMrReply)> {
        let (pages, MapAndRegMrReply { memory, region }) = self.pass::<MapAndRegMr>(device, access, |pages| {
            let (offset, length) = (self.offset_in(pages), self.range.len() as u64);
            MapAndRegMrRequest { memory: pages.request(), region: RegMrRequest { offset, length, ..region } }
        })?;
        // SAFETY: the caller guarantees it.
        Ok((unsafe { self.place(pages.mapped(device, memory)) }, region))
    }

    /// Maps the pages of the range, unless it lies in memory of the daemon.
    ///
    /// # Safety
    /// As [`crate::ProtectionDomain::register_at`].
    pub(crate) unsafe fn map(&self, device: &Arc<DeviceInner>, access: Access) -> Result<(RegionPlace, u64)> {
        if let Some(place) = self.in_memory(device) {
            return Ok(place);
        }
        let (pages, Handle { handle }) = self.pass::<MapMemory>(device, access, ProgramPages::request)?;
        let offset = self.offset_in(&pages);
        // SAFETY: the caller guarantees it.
        Ok((unsafe { self.place(pages.mapped(device, handle)) }, offset))
    }

    fn offset_in(&self, pages: &ProgramPages) -> u64 {
        (self.range.start - pages.start()) as u64
    }

    /// Passes the pages of the range to the daemon: to be mapped, or, if it does not map memory of
    /// which this process can take pages, in place.
    fn pass<C: Call>(
        &self,
        device: &DeviceInner,
        access: Access,
        request: impl Fn(&ProgramPages) -> C::Request,
    ) -> Result<(ProgramPages, C::Reply)> {
        let pages = ProgramPages::new(&self.range, access, device.private_memory())?;
        let error = match pages.call::<C>(&device.session, request(&pages)) {
            Ok(reply) => return Ok((pages, reply)),
            Err(error) => error,
        };
        if !pages.can_only_stay(&error) {
            return Err(pages.because_of(error));
        }
        if pages.0.held.is_some() {
            device.leave_private_memory();
        }
        // Private pages are private again.
        drop(pages);
        let pages = ProgramPages(stay(&self.range, access.writes(), error)?);
        match pages.call::<C>(&device.session, request(&pages)) {
            Ok(reply) => Ok((pages, reply)),
            Err(error) => Err(pages.because_of(error)),
        }
    }

    /// # Safety
    /// The range stays mapped until the region, which keeps the mapping, is dropped, and writes
    /// there are allowed.
    unsafe fn place(&self, memory: ProgramMemory) -> RegionPlace {
        // SAFETY: the caller guarantees it.
        let mapping = unsafe { ClientMapping::of_program(self.base, self.range.len()) };
        RegionPlace { memory: RegionBacking::Program(Box::new(memory)), mapping, offset: 0 }
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

    /// Ends the registration of the region in this memory. Memory of the program contains only this
    /// region and is freed in the same call.
    pub(crate) fn deregister(&mut self, session: &DaemonSession, region: u32) -> Result<()> {
        let handle = Handle { handle: region };
        match self {
            Self::Memory(_) => session.call::<DeregMr>(handle).map(drop),
            Self::Program(memory) => {
                session.call::<DeregMrAndFree>(handle)?;
                memory.freed = true;
                Ok(())
            }
        }
    }
}

/// Pages of the program, ready to be mapped by the daemon.
struct ProgramPages(ProgramBacking);

impl ProgramPages {
    fn new(range: &Range<usize>, access: Access, private: PrivateMemory) -> Result<Self> {
        if range.is_empty() {
            return Err(Error::NotMapped { address: range.start });
        }
        reach(range, access.writes(), private).map(Self)
    }

    /// The first address.
    fn start(&self) -> usize {
        self.0.pages.start
    }

    fn call<C: Call>(&self, session: &DaemonSession, request: C::Request) -> Result<C::Reply> {
        let file = self.0.file.as_fd();
        match self.0.origin {
            origin::PROXIED => session.call_proxied::<C>(request, file),
            _ => session.call_with::<C>(request, file),
        }
    }

    fn request(&self) -> MapMemoryRequest {
        let ProgramBacking { pages, offset, writable, origin, .. } = &self.0;
        MapMemoryRequest { offset: *offset, bytes: pages.len() as u64, writable: u32::from(*writable), origin: *origin }
    }

    /// The daemon does not map a file of which pages can be taken, nor one for writing that is
    /// sealed.
    fn can_only_stay(&self, error: &Error) -> bool {
        let is_mapped = self.0.origin != origin::PROXIED;
        let Error::Refused { refusal: Refusal::BadFile, detail, .. } = error else { return false };
        is_mapped && detail[0] == Errno::EPERM as u64
    }

    /// Replaces the daemon's refusal of the file by the reason why the memory had to stay in place.
    fn because_of(self, error: Error) -> Error {
        match (error, self.0.because) {
            (Error::Refused { refusal: Refusal::BadFile, .. }, Some(because)) => because,
            (error, _) => error,
        }
    }

    /// The daemon maps them under this handle.
    fn mapped(self, device: &Arc<DeviceInner>, handle: u32) -> ProgramMemory {
        ProgramMemory { device: Arc::clone(device), handle, held: self.0.held, freed: false }
    }
}

/// Memory of the program that the daemon maps, for one region.
#[derive(Debug)]
pub(crate) struct ProgramMemory {
    device: Arc<DeviceInner>,
    handle: u32,
    /// Its exchanged pages; `None` if the program shares the memory itself, or it stays in place.
    held: Option<SharedPages>,
    /// The daemon no longer maps it.
    freed: bool,
}

impl Drop for ProgramMemory {
    fn drop(&mut self) {
        if self.freed {
            return;
        }
        let freed = self.device.session.call::<FreeMemory>(Handle { handle: self.handle });
        if matches!(freed, Err(Error::Refused { refusal: Refusal::InUse, .. })) {
            // A region that could not be deregistered, because a memory window is bound to it,
            // stays registered and keeps its pages.
            std::mem::forget(self.held.take());
        }
        // Any other failure means that the session has ended, and the daemon no longer maps
        // the memory.
    }
}
