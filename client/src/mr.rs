//! Memory regions: registered memory that the daemon and peers can access.
//!
//! Packets of a peer change this memory at any time while the program runs. A safe method therefore
//! never returns a plain Rust reference to it; instead, methods copy bytes in and out, and one byte
//! can be watched. A copy of bytes that a peer writes at the same time is a mixture of old and new
//! bytes; no other harm is possible.

use std::{
    ops::{BitOr, Bound, Range, RangeBounds},
    sync::{Arc, atomic::AtomicU64},
};

use roced_shared::abi::{
    control::{DeregMr, FreeMemory, Handle, RegMr, RegMrRequest, ReregMr, ReregMrRequest, access, rereg},
    wqe::Sge,
};

use crate::{
    device::DeviceInner,
    error::{Error, Result},
    mapping::{ClientMapping, Mode},
    pd::{PdInner, ProtectionDomain},
    place::{Move, RegionPlace},
    program::ExchangeCost,
    socket::lock,
};

/// Access rights of a memory region, or of a peer over a queue pair. Local work requests may always
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Only local work requests may read.
    pub const NONE: Self = Self(0);
    /// Local work requests may write: receives, and the data of READs.
    pub const LOCAL_WRITE: Self = Self(access::LOCAL_WRITE);
    /// Peers may write. Includes [`Self::LOCAL_WRITE`], as verbs require.
    pub const REMOTE_WRITE: Self = Self(access::REMOTE_WRITE | access::LOCAL_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(access::REMOTE_READ);
    /// Peers may use atomic operations. Includes [`Self::LOCAL_WRITE`], as verbs require.
    pub const REMOTE_ATOMIC: Self = Self(access::REMOTE_ATOMIC | access::LOCAL_WRITE);
    /// Peers may flush their writes.
    pub const FLUSH_GLOBAL: Self = Self(access::FLUSH_GLOBAL);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(access::WINDOW_BIND);
    /// All of these rights.
    pub const ALL: Self = Self(access::ALL);

    /// The bits of verbs (`ibv_access_flags`).
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Converts bits of verbs; `None` if one of them has no meaning here. Adds no right that is not
    /// requested.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !(access::ALL | access::ZERO_BASED) == 0 { Some(Self(bits)) } else { None }
    }

    /// True if the rights include any right to write.
    pub(crate) const fn writes(self) -> bool {
        self.0 & access::LOCAL_WRITE != 0
    }

    /// A registration request with these rights and no range yet.
    fn asked(self) -> RegMrRequest {
        RegMrRequest { access: self.0, ..RegMrRequest::default() }
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory that this process and the daemon map. Clones name the same memory, which is freed when
/// the last clone and every region in it are gone.
#[derive(Clone, Debug)]
pub struct RegionMemory {
    pub(crate) inner: Arc<MemoryInner>,
}

#[derive(Debug)]
pub(crate) struct MemoryInner {
    device: Arc<DeviceInner>,
    pub(crate) handle: u32,
    pub(crate) mapping: Arc<ClientMapping>,
    /// Requested size; the mapping consists of whole pages.
    bytes: usize,
}

impl RegionMemory {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32, fd: &std::os::fd::OwnedFd, bytes: usize) -> Result<Self> {
        let whole = bytes.next_multiple_of(4096);
        let mapping = ClientMapping::new(fd, whole, Mode::Populated).inspect_err(|_| {
            // The session goes on, so the daemon must not keep the memory.
            let _ = device.session.call::<FreeMemory>(Handle { handle });
        })?;
        let inner = Arc::new(MemoryInner { device: Arc::clone(device), handle, mapping, bytes });
        lock(&device.memories).insert(inner.start(), Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Finds the memory of this device that contains `range`, and the offset of the range in it.
    pub(crate) fn around(device: &DeviceInner, range: &Range<usize>) -> Option<(Self, usize)> {
        // The lock is released before the memory found here may be dropped, because its drop takes
        // the lock.
        let found =
            |range| lock(&device.memories).range(range).next_back().map(|(start, inner)| (*start, inner.upgrade()));
        let (start, inner) = found(..=range.start)?;
        let (offset, inner) = (range.start - start, inner?);
        let inside = offset.checked_add(range.len()).is_some_and(|end| end <= inner.bytes);
        inside.then_some((Self { inner }, offset))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.inner.bytes
    }

    /// True if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.inner.bytes == 0
    }
}

impl RegionMemory {
    /// Returns the address of a range to be registered.
    fn address(&self, pd: &PdInner, offset: usize, length: usize) -> Result<u64> {
        if !Arc::ptr_eq(&pd.device, &self.inner.device) {
            return Err(Error::OtherDevice);
        }
        let size = self.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, length, size });
        }
        Ok(self.inner.mapping.at(offset, length).as_ptr().addr() as u64)
    }
}

impl MemoryInner {
    fn start(&self) -> usize {
        self.mapping.at(0, self.bytes).as_ptr().addr()
    }
}

impl Drop for MemoryInner {
    fn drop(&mut self) {
        // Before unmapping, so that no lookup finds other memory in its place.
        lock(&self.device.memories).remove(&self.start());
        // Fails only if the session has ended; the daemon has dropped the memory in that case.
        let _ = self.device.session.call::<FreeMemory>(Handle { handle: self.handle });
    }
}

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
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    place: RegionPlace,
    length: usize,
    /// Address by which work requests and peers name the first byte.
    iova: u64,
    access: Access,
    handle: u32,
    lkey: u32,
    rkey: u32,
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
        Self::over(pd, place, RegMrRequest { offset: offset as u64, length: length as u64, va: iova, ..access.asked() })
    }

    /// # Safety
    /// As [`ProtectionDomain::register_at`].
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that the memory stays mapped")]
    pub(crate) unsafe fn register_program(
        pd: &Arc<PdInner>,
        address: *mut u8,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller vouches for the same.
        let Move { place, offset, .. } = unsafe { Move::to_program(&pd.device, address, length, iova, access) }?;
        Self::over(pd, place, RegMrRequest { offset, length: length as u64, va: iova, ..access.asked() })
    }

    fn over(pd: &Arc<PdInner>, place: RegionPlace, request: RegMrRequest) -> Result<Self> {
        let (memory, length, iova) = (place.memory.handle(), request.length as usize, request.va);
        let reply = pd.device.session.call::<RegMr>(RegMrRequest { pd: pd.handle, memory, ..request })?;
        let (handle, lkey, rkey) = (reply.handle, reply.lkey, reply.rkey);
        let access = Access(request.access);
        Ok(Self { pd: Arc::clone(pd), place, length, iova, access, handle, lkey, rkey })
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
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that the memory stays mapped")]
    pub unsafe fn reregister_at(
        &mut self,
        change: &Reregistration<'_>,
        address: *mut u8,
        length: usize,
        iova: u64,
    ) -> Result<()> {
        let access = change.access.unwrap_or(self.access);
        // SAFETY: the caller vouches for the same.
        let moved = unsafe { Move::to_program(&self.pd.device, address, length, iova, access) }?;
        self.change(change.pd, Some(moved), change.access)
    }

    fn change(&mut self, pd: Option<&ProtectionDomain>, moved: Option<Move>, access: Option<Access>) -> Result<()> {
        let new_pd = pd.map_or(&self.pd, |pd| &pd.inner);
        if !Arc::ptr_eq(&new_pd.device, &self.pd.device) {
            return Err(Error::OtherDevice);
        }
        let bit = |there: bool, bit: u32| if there { bit } else { 0 };
        let mut request = ReregMrRequest {
            handle: self.handle,
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
    pub fn deregister(self) -> std::result::Result<(), (Self, Error)> {
        match self.pd.device.session.call::<DeregMr>(Handle { handle: self.handle }) {
            Ok(_) => {
                // The call made by the drop finds no registration any more.
                drop(self);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
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
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that no peer writes")]
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
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that nobody else is there")]
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that there is one at a time")]
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
        // Fails only if the session has ended, which ends the registration as well.
        let _ = self.pd.device.session.call::<DeregMr>(Handle { handle: self.handle });
    }
}
