//! Memory regions: registered memory that the daemon and peers can access.
//!
//! Packets of a peer change this memory at any time while the program runs. A safe method therefore
//! never returns a plain Rust reference to it; instead, methods copy bytes in and out, and one byte
//! can be watched. A copy of bytes that a peer writes at the same time is a mixture of old and new
//! bytes; no other harm is possible.

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, atomic::AtomicU64},
};

use roced_abi::control::{RegMr, RegMrReply, RegMrRequest, ReregMr, ReregMrRequest, rereg};
use roced_types::Sge;

use crate::{
    access::Access,
    error::{Error, Result},
    mapping::ClientMapping,
    pd::{PdInner, ProtectionDomain},
    place::{Move, ProgramRange, RegionPlace},
    program::ExchangeCost,
    region_memory::RegionMemory,
};

/// Location of a memory region for a peer, as needed for a WRITE, READ or atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub va: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// Returns the part of the memory that starts at `offset`.
    ///
    /// # Panics
    /// If `offset` is greater than the length.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        assert!(offset <= self.length, "offset {offset} in {} bytes of remote memory", self.length);
        Self { va: self.va.wrapping_add(offset), length: self.length - offset, ..self }
    }
}

/// A registered range of memory.
///
/// Dropping it ends the registration; work that still names it fails. If a memory window is bound
/// to it, the registration lasts until the end of the session.
///
/// ```no_run
/// # use roced_client::{Access, Device};
/// # fn main() -> roced_client::Result<()> {
/// # let device = Device::open("roce0")?;
/// let pd = device.protection_domain()?;
/// let region = pd.allocate(1 << 20, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
/// region.write_at(0, b"visible to peers");
/// // Address, length and key: send them to the peer.
/// println!("{:?}", region.remote());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    place: RegionPlace,
    length: usize,
    /// Address by which work requests and peers name the first byte.
    iova: u64,
    access: Access,
    /// `None` once it is deregistered.
    handle: Option<u32>,
    lkey: u32,
    rkey: u32,
}

impl ProtectionDomain {
    /// Allocates `bytes` of zeroed memory and registers all of it.
    ///
    /// # Errors
    /// The session's limits; no memory; the daemon is gone.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion> {
        self.register(&self.device().allocate(bytes)?, 0, bytes, access)
    }

    /// Registers `length` bytes from `offset` of `memory`.
    ///
    /// # Errors
    /// A range outside the memory; the session's limit; the daemon is gone.
    pub fn register(
        &self,
        memory: &RegionMemory,
        offset: usize,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        MemoryRegion::register(&self.inner, memory, offset, length, access)
    }

    /// Registers `length` bytes of the program's own memory from `address`, of any kind: heap,
    /// stack, a large allocation. Work requests and peers name the first byte by `iova`, which is
    /// usually `address`. `docs/memory.md` describes the treatment of the pages.
    ///
    /// # Safety
    /// Until the region is dropped, the range stays mapped unchanged, and no Rust reference exists
    /// there that rules out the accesses that these rights allow to peers and work requests, or
    /// those of the methods of [`MemoryRegion`].
    ///
    /// # Errors
    /// No bytes; memory that is not mapped, or belongs to a device or the kernel; rights that the
    /// program itself does not have; the session's limits; the daemon is gone.
    #[expect(unsafe_code, reason = "precondition that no type can express: the memory stays mapped")]
    pub unsafe fn register_at(
        &self,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller vouches for the same.
        unsafe { MemoryRegion::register_program(&self.inner, address, length, iova, access) }
    }
}

impl MemoryRegion {
    pub(crate) fn register(
        pd: &Arc<PdInner>,
        memory: &RegionMemory,
        offset: usize,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        let iova = memory.address(pd, offset, length)?;
        let place = RegionPlace::in_memory(memory, offset);
        Self::over(pd, place, RegMrRequest { offset: offset as u64, length: length as u64, va: iova, ..asked(access) })
    }

    /// # Safety
    /// As [`ProtectionDomain::register_at`].
    #[expect(unsafe_code, reason = "precondition that no type can express: the memory stays mapped")]
    pub(crate) unsafe fn register_program(
        pd: &Arc<PdInner>,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let range = ProgramRange::new(address, length)?;
        let request = RegMrRequest { length: length as u64, va: iova, ..asked(access) };
        if let Some((place, offset)) = range.in_memory(&pd.device) {
            return Self::over(pd, place, RegMrRequest { offset, ..request });
        }
        let request = RegMrRequest { pd: pd.handle, ..request };
        // SAFETY: the caller vouches for the same.
        let (place, reply) = unsafe { range.register(&pd.device, access, request) }?;
        Ok(Self::registered(pd, place, &request, reply))
    }

    fn over(pd: &Arc<PdInner>, place: RegionPlace, request: RegMrRequest) -> Result<Self> {
        let memory = place.memory.handle();
        let reply = pd.device.session.call::<RegMr>(RegMrRequest { pd: pd.handle, memory, ..request })?;
        Ok(Self::registered(pd, place, &request, reply))
    }

    fn registered(pd: &Arc<PdInner>, place: RegionPlace, request: &RegMrRequest, reply: RegMrReply) -> Self {
        let RegMrReply { handle, lkey, rkey } = reply;
        let (length, iova, access) = (request.length as usize, request.va, Access(request.access));
        Self { pd: Arc::clone(pd), place, length, iova, access, handle: Some(handle), lkey, rkey }
    }

    /// Handle of the registration, which lasts as long as `self`.
    fn handle(&self) -> u32 {
        self.handle.expect("registered until it is dropped")
    }

    /// Changes the registration; the keys stay the same. Work and requests of peers in progress on
    /// the region may fail.
    ///
    /// # Errors
    /// Memory windows bound to the region; objects of another device; a range outside the memory;
    /// the daemon is gone. The registration is unchanged on error.
    pub fn reregister(&mut self, change: &Reregistration<'_>) -> Result<()> {
        let moved = match change.range {
            Some((memory, offset, length)) => {
                let iova = memory.address(change.pd.map_or(&self.pd, |pd| &pd.inner), offset, length)?;
                Some(Move { place: RegionPlace::in_memory(memory, offset), offset: offset as u64, length, iova })
            }
            None => None,
        };
        self.change(change.pd, moved, change.access)
    }

    /// Changes the registration as [`Self::reregister`], with memory of the program in place of
    /// `change.range`, as for [`ProtectionDomain::register_at`].
    ///
    /// # Safety
    /// As [`ProtectionDomain::register_at`].
    ///
    /// # Errors
    /// Those of both.
    #[expect(unsafe_code, reason = "precondition that no type can express: the memory stays mapped")]
    pub unsafe fn reregister_at(
        &mut self,
        change: &Reregistration<'_>,
        address: *mut u8,
        length: usize,
        iova: u64,
    ) -> Result<()> {
        let access = change.access.unwrap_or(self.access);
        // SAFETY: the caller vouches for the same.
        let (place, offset) = unsafe { ProgramRange::new(address, length)?.map(&self.pd.device, access) }?;
        self.change(change.pd, Some(Move { place, offset, length, iova }), change.access)
    }

    fn change(&mut self, pd: Option<&ProtectionDomain>, moved: Option<Move>, access: Option<Access>) -> Result<()> {
        let new_pd = pd.map_or(&self.pd, |pd| &pd.inner);
        if !Arc::ptr_eq(&new_pd.device, &self.pd.device) {
            return Err(Error::OtherDevice { object: "the new protection domain", owner: "the memory region" });
        }
        let bit = |there: bool, bit: u32| if there { bit } else { 0 };
        let mut request = ReregMrRequest {
            handle: self.handle(),
            changes: bit(pd.is_some(), rereg::PD)
                | bit(moved.is_some(), rereg::TRANSLATION)
                | bit(access.is_some(), rereg::ACCESS),
            pd: new_pd.handle,
            access: access.unwrap_or_default().bits(),
            ..ReregMrRequest::default()
        };
        if let Some(moved) = &moved {
            (request.memory, request.offset) = (moved.place.memory.handle(), moved.offset);
            (request.length, request.va) = (moved.length as u64, moved.iova);
        }
        self.pd.device.session.call::<ReregMr>(request)?;
        self.pd = Arc::clone(new_pd);
        self.access = access.unwrap_or(self.access);
        if let Some(Move { place, length, iova, .. }) = moved {
            // The previous memory is released here, after the region has left it.
            (self.place, self.length, self.iova) = (place, length, iova);
        }
        Ok(())
    }

    /// Ends the registration as a drop does, but reports failure.
    ///
    /// # Errors
    /// The region, with the error: memory windows are bound to it, or the daemon is gone.
    pub fn deregister(mut self) -> std::result::Result<(), (Self, Error)> {
        self.end().map_err(|error| (self, error))
    }

    fn end(&mut self) -> Result<()> {
        if let Some(handle) = self.handle {
            self.place.memory.deregister(&self.pd.device.session, handle)?;
            self.handle = None;
        }
        Ok(())
    }

    /// Cost of the page exchange for this region; `None` if its pages were not exchanged.
    pub fn exchange_cost(&self) -> Option<ExchangeCost> {
        self.place.memory.cost()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Location of the whole region, to be sent to a peer.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { va: self.iova, length: self.length as u64, rkey: self.rkey }
    }

    /// Returns the scatter/gather entry for a range of the region.
    ///
    /// # Panics
    /// If the range lies outside the region, as for slices, or is 4 GiB or longer.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (start, end) = range_of(range, self.length);
        let length = u32::try_from(end - start).expect("a scatter/gather entry is shorter than 4 GiB");
        Sge { va: self.iova + start as u64, length, lkey: self.lkey }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        self.mapping().write(self.inside(offset, bytes.len()), bytes);
    }

    /// Copies the bytes at `offset` to `into`.
    ///
    /// # Panics
    /// If the range lies outside the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        self.mapping().read(self.inside(offset, into.len()), into);
    }

    /// Returns a copy of `length` bytes from `offset`.
    ///
    /// # Panics
    /// If the range lies outside the region.
    pub fn to_vec(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes);
        bytes
    }

    /// Sets `length` bytes from `offset` to `value`.
    ///
    /// # Panics
    /// If the range lies outside the region.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        self.mapping().fill(self.inside(offset, length), length, value);
    }

    /// Loads the byte at `offset`, for programs that wait for the last byte of a WRITE: once its
    /// new value is visible here, all earlier bytes of the WRITE are visible as well.
    ///
    /// # Panics
    /// If `offset` lies outside the region.
    pub fn byte(&self, offset: usize) -> u8 {
        self.mapping().byte(self.inside(offset, 1))
    }

    /// The eight bytes at `offset` as an atomic, in the byte order of this machine: atomic
    /// operations of peers and of this program are atomic with respect to one another.
    ///
    /// # Panics
    /// If the bytes lie outside the region, or their address is not a multiple of eight.
    pub fn atomic(&self, offset: usize) -> &AtomicU64 {
        self.mapping().word(self.inside(offset, 8))
    }

    /// Address of the first byte, for code that needs pointers. Peers may change the memory at any
    /// time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping().at(self.place.offset, self.length).as_ptr()
    }

    /// The whole region as a slice.
    ///
    /// # Safety
    /// For the lifetime of the slice, the memory is not written: by no peer, no receive or READ in
    /// progress, no other thread, not by [`Self::write_at`] nor [`Self::fill`].
    #[expect(unsafe_code, reason = "precondition that no type can express: no peer writes")]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `as_ptr` checked that the bytes are mapped, for the lifetime of `self`; the
        // caller vouches that they are not written.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// The whole region as a mutable slice.
    ///
    /// # Safety
    /// For the lifetime of the slice, the memory is neither written nor read by other means: by no
    /// peer, no work request in progress, no other thread, no other slice, no other method of this
    /// type.
    #[expect(unsafe_code, reason = "precondition: no other thread accesses the memory")]
    #[expect(clippy::mut_from_ref, reason = "precondition: one reference at a time")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        // SAFETY: as `as_slice`; the caller vouches that there is no other reader or writer.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.length) }
    }

    fn mapping(&self) -> &ClientMapping {
        &self.place.mapping
    }

    /// Returns the offset, in the memory, of a range of the region.
    fn inside(&self, offset: usize, length: usize) -> usize {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} lie outside a region of {}",
            self.length
        );
        self.place.offset + offset
    }
}

/// Returns start and end of a range in a region of `length` bytes.
pub(crate) fn range_of(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => length,
    };
    assert!(start <= end && end <= length, "bytes {start} to {end} of a region of {length}");
    (start, end)
}

/// Changes to a registration. Attributes that are `None` stay the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregistration<'a> {
    /// New protection domain.
    pub pd: Option<&'a ProtectionDomain>,
    /// New memory: the memory, the offset of the first byte, and the length in bytes.
    pub range: Option<(&'a RegionMemory, usize, usize)>,
    /// New access rights.
    pub access: Option<Access>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Fails if the session has ended, which ends the registration as well; if memory windows are
        // bound to the region, which stays until the session ends; or if a worker does not answer.
        let _ = self.end();
    }
}

/// A registration request with these rights and no range yet.
fn asked(access: Access) -> RegMrRequest {
    RegMrRequest { access: access.bits(), ..RegMrRequest::default() }
}
