//! Memory regions: keys, their ranges and rights.
//!
//! [`MrTable::check`] (local work requests) and [`MrTable::check_peer`] (packets of peers) are the
//! only makers of a [`MemSpan`]; a span proves that key, protection domain, scope, right and range
//! were checked in this call. The span borrows the table, so it cannot
//! outlive the call: longer-lived state (a READ in flight, a retransmission) keeps key, address and
//! length, and checks again.

use alloc::{boxed::Box, vec, vec::Vec};
use core::marker::PhantomData;

use roced_types::{MemoryObjectId, Pdn, Qpn, access};

use crate::reject::Reject;

/// The key of a memory region as work requests and packets carry it: unpredictable 24-bit index,
/// 8-bit consumer key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MrKey(pub u32);

impl MrKey {
    const fn index(self) -> u32 {
        self.0 >> 8
    }
}

/// Access for which a span is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Reading by a local work request: always allowed.
    LocalRead,
    /// Writing by a local work request (a receive, the data of a READ).
    LocalWrite,
    /// A peer's READ.
    RemoteRead,
    /// A peer's WRITE.
    RemoteWrite,
    /// A peer's atomic operation.
    RemoteAtomic,
    /// A peer's FLUSH for global visibility.
    Flush,
}

impl Right {
    const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }

    const fn needed(self) -> u32 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => access::LOCAL_WRITE,
            Self::RemoteRead => access::REMOTE_READ,
            Self::RemoteWrite => access::REMOTE_WRITE,
            Self::RemoteAtomic => access::REMOTE_ATOMIC,
            Self::Flush => access::FLUSH_GLOBAL,
        }
    }
}

/// A registered range of a region of client memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Opens it.
    pub key: MrKey,
    /// Only queue pairs of this protection domain.
    pub pd: Pdn,
    /// `roced_types::access` bits.
    pub access: u32,
    /// Address of the first byte in work requests and packets.
    pub va: u64,
    /// Bytes.
    pub length: u64,
    /// The memory that it lies in.
    pub object: MemoryObjectId,
    /// Where in that memory it begins.
    pub offset: u64,
    /// Its users.
    pub scope: Scope,
}

/// Users of a key within its protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// A memory region: to local work requests, and to peers of every queue pair.
    #[default]
    Region,
    /// A memory window of type 1: to peers of every queue pair.
    Window,
    /// A memory window of type 2: to peers of the queue pair that bound it.
    WindowOf(Qpn),
}

/// A piece of client memory that was checked in this call.
#[derive(Clone, Copy, Debug)]
pub struct MemSpan<'table> {
    object: MemoryObjectId,
    offset: u64,
    length: usize,
    table: PhantomData<&'table MrTable>,
}

impl<'table> MemSpan<'table> {
    /// The memory it lies in.
    pub const fn object(&self) -> MemoryObjectId {
        self.object
    }

    /// Where it begins in that memory, bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the span has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first `bytes` and the rest.
    ///
    /// # Panics
    /// When the span is shorter.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        assert!(bytes <= self.length, "a span is split inside itself");
        let first = Self { length: bytes, ..self };
        // Cannot overflow: offset + length lies inside the region (checked when the span was made).
        let rest = Self { offset: self.offset + bytes as u64, length: self.length - bytes, ..self };
        (first, rest)
    }
}

/// Why a key does not open a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// No region with that key.
    NoSuchKey,
    /// The region is of another protection domain.
    WrongDomain,
    /// The region does not give this right.
    NoRight,
    /// The range is not all inside the region.
    OutOfRange,
    /// A memory window where a region is wanted, or one of another queue pair.
    WrongScope,
}

/// Every memory region that the queue pairs of one endpoint may name. Its room is made once;
/// nothing here allocates later.
///
/// A key has an index, its upper 24 bits, by which there is at most one region. Addresses and
/// lengths are in bytes. The checks of a span are made in this order, and the first that fails is
/// the error: key, protection domain, scope, right, range. A range of 0 bytes may begin anywhere
/// from the first byte of the region to its end.
///
/// ```
/// use roced_transport::{
///     mr::{AccessError, Mr, MrKey, MrTable, Right, Scope},
///     reject::Reject,
/// };
/// use roced_types::{MemoryObjectId, Pdn, access};
///
/// // Bytes 64 to 319 of memory object 7; packets and work requests name the first one 0x1000.
/// let (key, pd, access) = (MrKey(0x1234_5601), Pdn(1), access::REMOTE_READ);
/// let (object, scope) = (MemoryObjectId(7), Scope::Region);
/// let mr = Mr { key, pd, access, va: 0x1000, length: 256, object, offset: 64, scope };
/// let mut mrs = MrTable::new(1);
/// assert_eq!(mrs.insert(mr), Ok(()));
/// assert_eq!(mrs.insert(mr), Err(Reject::NoRoom));
///
/// let span = mrs.check(pd, key, Right::RemoteRead, 0x1010, 240).expect("up to the last byte");
/// assert_eq!((span.object(), span.offset(), span.len()), (object, 64 + 0x10, 240));
///
/// let error = |pd, key, right, va| mrs.check(pd, key, right, va, 240).err();
/// let (other, right) = (MrKey(0x1234_5602), Right::RemoteRead);
/// assert_eq!(error(pd, other, right, 0x1010), Some(AccessError::NoSuchKey));
/// assert_eq!(error(Pdn(2), key, right, 0x1010), Some(AccessError::WrongDomain));
/// assert_eq!(error(pd, key, Right::RemoteWrite, 0x1010), Some(AccessError::NoRight));
/// assert_eq!(error(pd, key, right, 0x1011), Some(AccessError::OutOfRange));
///
/// assert_eq!(mrs.remove(key), Some(mr));
/// assert!(mrs.is_empty());
/// ```
#[derive(Debug)]
pub struct MrTable {
    regions: Vec<Mr>,
    /// Most regions. (A `Vec` may have more room than was asked for; the slots may not be as full
    /// as that.)
    capacity: usize,
    /// Open addressing by the key's random index, linear probing; [`Self::EMPTY`], or one more than
    /// an index into `regions`. Zero is empty, so that the kernel provides memory for used parts
    /// only.
    slots: Box<[u32]>,
}

impl MrTable {
    const EMPTY: u32 = 0;

    /// A table with room for `capacity` regions.
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        // Half full at most, so that a probe is short.
        let slots = (capacity.max(1) * 2).next_power_of_two();
        Self { regions: Vec::with_capacity(capacity), capacity, slots: vec![Self::EMPTY; slots].into_boxed_slice() }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns true if the table has no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Adds a region.
    ///
    /// # Errors
    /// [`Reject::NoRoom`] when the table is full or the key's index is taken; it stays unchanged.
    pub fn insert(&mut self, mr: Mr) -> Result<(), Reject> {
        if self.regions.len() == self.capacity {
            return Err(Reject::NoRoom);
        }
        let mut slot = self.home(mr.key);
        while self.slots[slot] != Self::EMPTY {
            if self.regions[self.region_at(slot)].key.index() == mr.key.index() {
                return Err(Reject::NoRoom);
            }
            slot = self.after(slot);
        }
        self.regions.push(mr);
        self.slots[slot] = self.regions.len() as u32;
        Ok(())
    }

    /// Adds a region, or replaces the one with the same index of the key; the other eight bits may
    /// differ.
    ///
    /// # Errors
    /// [`Reject::NoRoom`] when there was none and the table is full; it stays unchanged.
    pub fn set(&mut self, mr: Mr) -> Result<Option<Mr>, Reject> {
        let mut slot = self.home(mr.key);
        while self.slots[slot] != Self::EMPTY {
            let at = self.region_at(slot);
            let old = &mut self.regions[at];
            if old.key.index() == mr.key.index() {
                // Its home is that of the index: it stays where it is.
                return Ok(Some(core::mem::replace(old, mr)));
            }
            slot = self.after(slot);
        }
        self.insert(mr).map(|()| None)
    }

    /// Removes the region that `key` opens.
    pub fn remove(&mut self, key: MrKey) -> Option<Mr> {
        let slot = self.find(key)?;
        let at = self.region_at(slot);
        self.close_gap(slot);
        let removed = self.regions.swap_remove(at);
        if let Some(moved) = self.regions.get(at) {
            // The last one took the removed one's place: its slot still holds its old place.
            let old = self.regions.len() as u32 + 1;
            let mut slot = self.home(moved.key);
            while self.slots[slot] != old {
                slot = self.after(slot);
            }
            self.slots[slot] = at as u32 + 1;
        }
        Some(removed)
    }

    /// The span of `length` bytes at `va`, if `key` opens it to `pd` with `right`, whichever queue
    /// pair it is.
    ///
    /// # Errors
    /// [`AccessError`]: the first check that failed.
    pub fn check(&self, pd: Pdn, key: MrKey, right: Right, va: u64, length: usize) -> Result<MemSpan<'_>, AccessError> {
        self.check_scope(pd, None, key, right, va, length)
    }

    /// As [`Self::check`], for the peer of queue pair `qpn`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_peer(
        &self,
        pd: Pdn,
        qpn: Qpn,
        key: MrKey,
        right: Right,
        va: u64,
        length: usize,
    ) -> Result<MemSpan<'_>, AccessError> {
        self.check_scope(pd, Some(qpn), key, right, va, length)
    }

    /// As [`Self::check_peer`], for any range.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_peer_key(&self, pd: Pdn, qpn: Qpn, key: MrKey, right: Right) -> Result<(), AccessError> {
        self.open(pd, Some(qpn), key, right).map(|_| ())
    }

    /// Checks that queue pair `qpn` or its peer may invalidate `key`: only the key of a memory
    /// window of type 2, bound to that queue pair, may be invalidated.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_invalidate(&self, pd: Pdn, qpn: Qpn, key: MrKey) -> Result<(), AccessError> {
        let mr = self.get(key)?;
        match mr.scope {
            _ if mr.pd != pd => Err(AccessError::WrongDomain),
            Scope::WindowOf(owner) if owner == qpn => Ok(()),
            _ => Err(AccessError::WrongScope),
        }
    }

    fn get(&self, key: MrKey) -> Result<&Mr, AccessError> {
        let slot = self.find(key).ok_or(AccessError::NoSuchKey)?;
        Ok(&self.regions[self.region_at(slot)])
    }

    fn check_scope(
        &self,
        pd: Pdn,
        qpn: Option<Qpn>,
        key: MrKey,
        right: Right,
        va: u64,
        length: usize,
    ) -> Result<MemSpan<'_>, AccessError> {
        let mr = self.open(pd, qpn, key, right)?;
        // Distances inside the region, so that nothing wraps at the end of the address space.
        let skip = va.checked_sub(mr.va).ok_or(AccessError::OutOfRange)?;
        let room = mr.length.checked_sub(skip).ok_or(AccessError::OutOfRange)?;
        if length as u64 > room {
            return Err(AccessError::OutOfRange);
        }
        // Cannot overflow: the control side registers only ranges with offset + length inside the
        // memory.
        Ok(MemSpan { object: mr.object, offset: mr.offset + skip, length, table: PhantomData })
    }

    fn open(&self, pd: Pdn, qpn: Option<Qpn>, key: MrKey, right: Right) -> Result<&Mr, AccessError> {
        let mr = self.get(key)?;
        if mr.pd != pd {
            return Err(AccessError::WrongDomain);
        }
        let in_scope = match mr.scope {
            Scope::Region => true,
            Scope::Window => !right.is_local(),
            Scope::WindowOf(owner) => !right.is_local() && qpn == Some(owner),
        };
        if !in_scope {
            return Err(AccessError::WrongScope);
        }
        if mr.access & right.needed() != right.needed() {
            return Err(AccessError::NoRight);
        }
        Ok(mr)
    }

    fn home(&self, key: MrKey) -> usize {
        // The index is random already.
        key.index() as usize & (self.slots.len() - 1)
    }

    /// Index of the region that an occupied slot names.
    fn region_at(&self, slot: usize) -> usize {
        (self.slots[slot] - 1) as usize
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    fn find(&self, key: MrKey) -> Option<usize> {
        let mut slot = self.home(key);
        while self.slots[slot] != Self::EMPTY {
            if self.regions[self.region_at(slot)].key == key {
                return Some(slot);
            }
            slot = self.after(slot);
        }
        None
    }

    /// Empties `gap` and moves later entries of its run forward, so that no probe stops short of
    /// them.
    fn close_gap(&mut self, mut gap: usize) {
        let mut slot = self.after(gap);
        while self.slots[slot] != Self::EMPTY {
            let home = self.home(self.regions[self.region_at(slot)].key);
            let mask = self.slots.len() - 1;
            // It may move to the gap unless its home lies after the gap (cyclically).
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(gap) & mask {
                self.slots[gap] = self.slots[slot];
                gap = slot;
            }
            slot = self.after(slot);
        }
        self.slots[gap] = Self::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const PD: Pdn = Pdn(7);

    fn mr(key: u32) -> Mr {
        Mr {
            key: MrKey(key),
            pd: PD,
            access: access::ALL,
            va: 0x1000,
            length: 0x100,
            object: MemoryObjectId(key),
            offset: 0x40,
            scope: Scope::Region,
        }
    }

    #[test]
    fn only_the_registered_range_opens() {
        let mut table = MrTable::new(4);
        table.insert(Mr { va: u64::MAX - 0xff, ..mr(0x1234_5601) }).expect("room");
        let check = |va, length| table.check(PD, MrKey(0x1234_5601), Right::RemoteWrite, va, length);
        assert_eq!(check(u64::MAX - 0xff, 0x100).expect("the whole range").offset(), 0x40);
        assert_eq!(check(u64::MAX, 1).expect("the last byte").offset(), 0x40 + 0xff);
        assert_eq!(check(u64::MAX, 2).unwrap_err(), AccessError::OutOfRange);
        assert_eq!(check(u64::MAX - 0x100, 1).unwrap_err(), AccessError::OutOfRange);
        assert_eq!(check(0, 1).unwrap_err(), AccessError::OutOfRange);
        assert_eq!(check(u64::MAX - 0xff, 0x101).unwrap_err(), AccessError::OutOfRange);
    }

    #[test]
    fn key_domain_and_right_are_asked_for() {
        let mut table = MrTable::new(4);
        table.insert(Mr { access: access::REMOTE_READ, ..mr(0x1234_5601) }).expect("room");
        let check = |pd, key, right| table.check(pd, MrKey(key), right, 0x1000, 1).map(|_| ());
        assert_eq!(check(PD, 0x1234_5601, Right::RemoteRead), Ok(()));
        assert_eq!(check(PD, 0x1234_5601, Right::LocalRead), Ok(()));
        assert_eq!(check(PD, 0x1234_5601, Right::RemoteWrite), Err(AccessError::NoRight));
        assert_eq!(check(PD, 0x1234_5601, Right::LocalWrite), Err(AccessError::NoRight));
        assert_eq!(check(Pdn(8), 0x1234_5601, Right::RemoteRead), Err(AccessError::WrongDomain));
        assert_eq!(check(PD, 0x1234_5602, Right::RemoteRead), Err(AccessError::NoSuchKey));
    }

    #[test]
    fn a_window_opens_to_its_queue_pair_and_not_to_local_work() {
        let (ours, other) = (Qpn::from_wire(5), Qpn::from_wire(6));
        let mut table = MrTable::new(4);
        table.insert(Mr { scope: Scope::Window, ..mr(0x100) }).expect("room");
        table.insert(Mr { scope: Scope::WindowOf(ours), ..mr(0x200) }).expect("room");
        table.insert(mr(0x300)).expect("room");
        let peer = |qpn, key| table.check_peer(PD, qpn, MrKey(key), Right::RemoteRead, 0x1000, 1).map(|_| ());
        for (key, right_one, other_one) in
            [(0x100, Ok(()), Ok(())), (0x200, Ok(()), Err(AccessError::WrongScope)), (0x300, Ok(()), Ok(()))]
        {
            assert_eq!((peer(ours, key), peer(other, key)), (right_one, other_one), "{key:x}");
        }
        for key in [0x100, 0x200] {
            for right in [Right::LocalRead, Right::LocalWrite] {
                assert_eq!(table.check(PD, MrKey(key), right, 0x1000, 1).unwrap_err(), AccessError::WrongScope);
            }
        }
        let invalidate = |pd, qpn, key| table.check_invalidate(pd, qpn, MrKey(key));
        assert_eq!(invalidate(PD, ours, 0x200), Ok(()));
        assert_eq!(invalidate(PD, other, 0x200), Err(AccessError::WrongScope));
        assert_eq!(invalidate(Pdn(8), ours, 0x200), Err(AccessError::WrongDomain));
        assert_eq!(invalidate(PD, ours, 0x201), Err(AccessError::NoSuchKey));
        assert_eq!([0x100, 0x300].map(|key| invalidate(PD, ours, key)), [Err(AccessError::WrongScope); 2]);
    }

    #[test]
    fn a_new_region_replaces_the_one_at_its_index() {
        let mut table = MrTable::new(2);
        table.set(mr(0x101)).expect("room");
        table.set(Mr { length: 5, ..mr(0x102) }).expect("in its place");
        table.set(mr(0x200)).expect("room");
        assert_eq!(table.set(mr(0x300)), Err(Reject::NoRoom));
        let opens = |key, length| table.check(PD, MrKey(key), Right::LocalRead, 0x1000, length).map(|_| ());
        assert_eq!((table.len(), opens(0x101, 1), opens(0x102, 5)), (2, Err(AccessError::NoSuchKey), Ok(())));
        assert_eq!(opens(0x102, 6), Err(AccessError::OutOfRange));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = MrTable::new(1);
        table.insert(mr(0x100)).expect("room");
        assert_eq!(table.insert(mr(0x200)), Err(Reject::NoRoom));
    }

    proptest! {
        /// Compared with a map: keys with few home slots across the end of the table, so that runs
        /// mix homes and wrap; inserted and removed in any order.
        #[test]
        fn the_table_is_a_map(
            steps in proptest::collection::vec((any::<bool>(), -3i32..3, 0u32..4, 0u32..2), 1..200),
        ) {
            let key_of = |home: i32, page: u32, consumer: u32| (home.rem_euclid(32) as u32 + page * 32) << 8 | consumer;
            let mut table = MrTable::new(16);
            let mut model: HashMap<u32, Mr> = HashMap::new();
            for (insert, home, page, consumer) in steps {
                let key = key_of(home, page, consumer);
                if insert {
                    let taken = model.keys().any(|other| other >> 8 == key >> 8) || model.len() == 16;
                    prop_assert_eq!(table.insert(mr(key)).is_err(), taken);
                    if !taken {
                        model.insert(key, mr(key));
                    }
                } else {
                    prop_assert_eq!(table.remove(MrKey(key)), model.remove(&key));
                }
                prop_assert_eq!(table.len(), model.len());
                let every = (-3..3).flat_map(|home| (0..8).map(move |rest| (home, rest / 2, rest % 2)));
                for key in every.map(|(home, page, consumer)| key_of(home, page, consumer)) {
                    let span = table.check(PD, MrKey(key), Right::LocalRead, 0x1000, 1).map(|span| span.object());
                    let expected = model.get(&key).map(|mr| mr.object).ok_or(AccessError::NoSuchKey);
                    prop_assert_eq!(span, expected);
                }
            }
        }

        /// Against arithmetic that cannot overflow: a range opens just if it lies inside, and is
        /// then where it should be.
        #[test]
        fn a_range_opens_just_if_it_lies_inside(
            base in prop_oneof![0u64..300, (u64::MAX - 300)..=u64::MAX, any::<u64>()],
            length in prop_oneof![0u64..300, any::<u64>()],
            skip in prop_oneof![-2i128..302, any::<i64>().prop_map(i128::from)],
            asked in prop_oneof![0usize..302, any::<usize>()],
        ) {
            let mut table = MrTable::new(1);
            table.insert(Mr { va: base, length, ..mr(0x100) }).expect("room");
            let va = i128::from(base) + skip;
            prop_assume!((0..=i128::from(u64::MAX)).contains(&va));
            let span = table.check(PD, MrKey(0x100), Right::RemoteWrite, va as u64, asked);
            let inside = skip >= 0 && skip + asked as i128 <= i128::from(length);
            prop_assert_eq!(span.is_ok(), inside);
            if let Ok(span) = span {
                prop_assert_eq!((i128::from(span.offset()), span.len()), (0x40 + skip, asked));
            }
        }
    }
}
