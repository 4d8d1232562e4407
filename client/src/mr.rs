//! Memory that peers and the daemon can reach, and its registration.
//!
//! A peer's packets change this memory while the program runs, whenever they come. So there is no safe way to a Rust reference
//! to it; bytes are copied in and out instead, and one byte can be watched. Copying what a peer writes at the same moment gives a
//! mixture of old and new bytes, never more harm than that.

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

/// What may be done to a memory region, or what a peer may do over a queue pair. Reading by local work requests is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Only reading by local work requests.
    pub const NONE: Self = Self(0);
    /// Local work requests may write: receives, and the data of READs.
    pub const LOCAL_WRITE: Self = Self(access::LOCAL_WRITE);
    /// Peers may write. Includes [`Self::LOCAL_WRITE`], as verbs demand.
    pub const REMOTE_WRITE: Self = Self(access::REMOTE_WRITE | access::LOCAL_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(access::REMOTE_READ);
    /// Peers may use atomic operations. Includes [`Self::LOCAL_WRITE`], as verbs demand.
    pub const REMOTE_ATOMIC: Self = Self(access::REMOTE_ATOMIC | access::LOCAL_WRITE);
    /// Peers may flush what they wrote.
    pub const FLUSH_GLOBAL: Self = Self(access::FLUSH_GLOBAL);
    /// Memory windows may be bound to it.
    pub const WINDOW_BIND: Self = Self(access::WINDOW_BIND);
    /// All of these.
    pub const ALL: Self = Self(access::ALL);

    /// The bits of verbs (`ibv_access_flags`).
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From bits of verbs; `None` when one of them means nothing here. Nothing is included that is not asked for.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !(access::ALL | access::ZERO_BASED) == 0 { Some(Self(bits)) } else { None }
    }

    /// Something may write.
    pub(crate) const fn writes(self) -> bool {
        self.0 & access::LOCAL_WRITE != 0
    }

    /// A registration with these rights, of nothing yet.
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

/// Memory that this process and the daemon map. Clones name the same; it is given up when the last clone and every region in it
/// are gone.
#[derive(Clone, Debug)]
pub struct RegionMemory {
    pub(crate) inner: Arc<MemoryInner>,
}

#[derive(Debug)]
pub(crate) struct MemoryInner {
    device: Arc<DeviceInner>,
    pub(crate) handle: u32,
    pub(crate) mapping: Arc<ClientMapping>,
    /// As asked for; the mapping is whole pages.
    bytes: usize,
}

impl RegionMemory {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32, fd: &std::os::fd::OwnedFd, bytes: usize) -> Result<Self> {
        let whole = bytes.next_multiple_of(4096);
        let mapping = ClientMapping::new(fd, whole, Mode::Populated).inspect_err(|_| {
            // The session lives on, so the daemon must not keep it.
            let _ = device.session.call::<FreeMemory>(Handle { handle });
        })?;
        let inner = Arc::new(MemoryInner { device: Arc::clone(device), handle, mapping, bytes });
        lock(&device.memories).insert(inner.start(), Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// The memory of this device that `range` lies in, and where.
    pub(crate) fn around(device: &DeviceInner, range: &Range<usize>) -> Option<(Self, usize)> {
        // The lock is not held while what was found may be dropped again, for that takes it.
        let found =
            |range| lock(&device.memories).range(range).next_back().map(|(start, inner)| (*start, inner.upgrade()));
        let (start, inner) = found(..=range.start)?;
        let (offset, inner) = (range.start - start, inner?);
        let inside = offset.checked_add(range.len()).is_some_and(|end| end <= inner.bytes);
        inside.then_some((Self { inner }, offset))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.bytes
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.inner.bytes == 0
    }
}

impl RegionMemory {
    /// The address of a range that is to be registered.
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
        // Before it is unmapped, so that nobody finds another in its place.
        lock(&self.device.memories).remove(&self.start());
        // Fails only when the session is over, and then the daemon has dropped it.
        let _ = self.device.session.call::<FreeMemory>(Handle { handle: self.handle });
    }
}

/// Where a peer finds a memory region: what it needs for a WRITE, READ or atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub va: u64,
    /// Bytes.
    pub length: u64,
    /// The key that opens it.
    pub rkey: u32,
}

impl RemoteMemory {
    /// The memory from `offset` on.
    ///
    /// # Panics
    /// When it is shorter.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        assert!(offset <= self.length, "offset {offset} in {} bytes of remote memory", self.length);
        Self { va: self.va.wrapping_add(offset), length: self.length - offset, ..self }
    }
}

/// A registered range of memory. Dropping it ends the registration: work that still names it fails. While a memory window is bound to it the
/// registration lives on, to the end of the session.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    place: RegionPlace,
    length: usize,
    /// By which work requests and peers name the first byte.
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

    /// Changes the registration; the keys stay. Work and peers' requests that are under way on it may fail.
    ///
    /// # Errors
    /// Memory windows bound to it; objects of another device; a range outside the memory; the daemon is gone. Nothing was changed then.
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

    /// As [`Self::reregister`], with memory of the program in place of `change.range`, as [`ProtectionDomain::register_at`] takes it.
    ///
    /// # Safety
    /// As [`ProtectionDomain::register_at`].
    ///
    /// # Errors
    /// As of both.
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
            // What it lay in before is given up here, now that nothing lies there.
            (self.place, self.length, self.iova) = (place, length, iova);
        }
        Ok(())
    }

    /// Ends the registration, as dropping it does, but says when it cannot be.
    ///
    /// # Errors
    /// The region back: memory windows are bound to it, or the daemon is gone.
    pub fn deregister(self) -> std::result::Result<(), (Self, Error)> {
        match self.pd.device.session.call::<DeregMr>(Handle { handle: self.handle }) {
            Ok(_) => {
                // The call that its end makes finds nothing any more.
                drop(self);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// What it cost to exchange the pages that it lies on; `None` of memory whose pages were left as they were.
    pub fn exchange_cost(&self) -> Option<ExchangeCost> {
        self.place.memory.cost()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The key of local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What a peer needs to reach all of it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { va: self.iova, length: self.length as u64, rkey: self.rkey }
    }

    /// The scatter/gather entry for a range of it.
    ///
    /// # Panics
    /// When the range lies outside, as slices do, or is 4 GiB or longer.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (start, end) = range_of(range, self.length);
        let length = u32::try_from(end - start).expect("a scatter/gather entry is shorter than 4 GiB");
        Sge { va: self.iova + start as u64, length, lkey: self.lkey }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        self.mapping().write(self.inside(offset, bytes.len()), bytes);
    }

    /// Copies what lies at `offset` to `into`.
    ///
    /// # Panics
    /// When the range lies outside.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        self.mapping().read(self.inside(offset, into.len()), into);
    }

    /// A copy of `length` bytes from `offset`.
    ///
    /// # Panics
    /// When the range lies outside.
    pub fn to_vec(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes);
        bytes
    }

    /// Sets `length` bytes from `offset` to `value`.
    ///
    /// # Panics
    /// When the range lies outside.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        self.mapping().fill(self.inside(offset, length), length, value);
    }

    /// The byte at `offset` now, for programs that wait for the last byte of a WRITE: once its new value is seen here, all that the WRITE brought
    /// before it is there too.
    ///
    /// # Panics
    /// When it lies outside.
    pub fn byte(&self, offset: usize) -> u8 {
        self.mapping().byte(self.inside(offset, 1))
    }

    /// The eight bytes at `offset` as an atomic, in this machine's byte order: peers' atomic operations and those of this program hold
    /// against one another.
    ///
    /// # Panics
    /// When they lie outside, or not on a multiple of eight.
    pub fn atomic(&self, offset: usize) -> &AtomicU64 {
        self.mapping().word(self.inside(offset, 8))
    }

    /// The address of the first byte, for those who must use pointers. What lies there changes as peers please.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping().at(self.place.offset, self.length).as_ptr()
    }

    /// All of it as a slice.
    ///
    /// # Safety
    /// For as long as the slice lives nobody may write there: no peer, no receive or READ under way, no other thread, not
    /// [`Self::write_at`] nor [`Self::fill`].
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that no peer writes")]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `as_ptr` checked that the bytes are mapped, for as long as `self` lives; the caller vouches that nobody writes them.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// All of it as a slice to write to.
    ///
    /// # Safety
    /// For as long as the slice lives nobody else may write or read there: no peer, no work request under way, no other thread, no
    /// other slice, none of the methods here.
    #[expect(unsafe_code, reason = "the caller vouches for what no type can show: that nobody else is there")]
    #[expect(clippy::mut_from_ref, reason = "the caller vouches that there is one at a time")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        // SAFETY: as `as_slice`; the caller vouches that nobody else reads or writes.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.length) }
    }

    fn mapping(&self) -> &ClientMapping {
        &self.place.mapping
    }

    /// The place of a range of the region in its memory.
    fn inside(&self, offset: usize, length: usize) -> usize {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} lie outside a region of {}",
            self.length
        );
        self.place.offset + offset
    }
}

/// Where a range of a region of `length` bytes begins and ends.
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

/// What changes of a registration; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregistration<'a> {
    /// Its protection domain.
    pub pd: Option<&'a ProtectionDomain>,
    /// Its memory: from which byte, how many.
    pub range: Option<(&'a RegionMemory, usize, usize)>,
    /// Its rights.
    pub access: Option<Access>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Fails only when the session is over, and then the registration is too.
        let _ = self.pd.device.session.call::<DeregMr>(Handle { handle: self.handle });
    }
}
