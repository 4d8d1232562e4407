//! Calls about protection domains, memory and memory regions.

use std::{ops::Range, sync::Arc};

use nix::errno::Errno;
use roced_abi::control::{
    AllocMemory, AllocPd, DeallocPd, DeregMr, DeregMrAndFree, FreeMemory, Handle, MapAndRegMr, MapAndRegMrReply,
    MapAndRegMrRequest, MapMemory, MapMemoryRequest, MemoryRequest, Nothing, Refusal, RegMr, RegMrReply, RegMrRequest,
    ReregMr, ReregMrRequest, limit::AccountResource, origin, rereg,
};
use roced_memory::{
    backing::Backing,
    client_memory::{ClientMemory, MemoryKind},
    descriptor::Descriptor,
    mapping::has_no_holes_to_come,
    proxied::{CopyThread, ProxiedMemory},
    quota::{self, Room},
    shared_fd::SharedFd,
};
use roced_transport::mr::{Mr, Scope};
use roced_types::{MemoryObjectId, Pdn, access};

use super::{
    CallHandler, CallReply, nvidia,
    refused::Refused,
    session::{MemoryObject, MrObject, PdObject, check_limit, find},
    unsealed::{UNSEALED, kept},
    with_charge,
};
use crate::{
    accounts::ledger::Charge,
    config::{ProxiedChoice, UnsealedChoice},
    numbers::random,
    worker::command::Command,
};

/// Memory objects of a session that must be sealed and are not: each has a descriptor of ours.
const UNSEALED_MAX: usize = 64;

impl CallHandler<'_, '_> {
    pub(super) fn alloc_pd(&mut self, _: Nothing) -> CallReply<AllocPd> {
        check_limit(&self.objects.pds, self.registry.limits.client.pds)?;
        let number = self.registry.pds.take();
        self.objects.pds.insert(number, PdObject { pdn: Pdn(number), users: 0 });
        Ok((Handle { handle: number }, Vec::new()))
    }

    pub(super) fn dealloc_pd(&mut self, request: Handle) -> CallReply<DeallocPd> {
        self.end_pd(request.handle).map(nothing)
    }

    pub(super) fn end_pd(&mut self, number: u32) -> Result<(), Refused> {
        check_unused(find(&mut self.objects.pds, number)?.users)?;
        self.objects.pds.remove(&number);
        self.registry.pds.give_back(number);
        Ok(())
    }

    pub(super) fn alloc_memory(&mut self, request: MemoryRequest) -> CallReply<AllocMemory> {
        let limits = &self.registry.limits.client;
        // Each region lies in some memory: more memory objects than regions have no use.
        check_limit(&self.objects.memories, limits.mrs)?;
        let bytes = request.bytes.checked_next_multiple_of(4096).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(Refused::argument(0, request.bytes))?;
        let charge = self.objects.charge(bytes, limits)?;
        let made = self.make_memory(bytes, charge);
        if made.is_err() {
            self.objects.give_back(bytes);
        }
        made
    }

    fn make_memory(&mut self, bytes: u64, charge: Option<Charge>) -> CallReply<AllocMemory> {
        let is_unsealed = |memory: &&MemoryObject| memory.unsealed.is_some();
        let keeps = self.registry.limits.client.unsealed_memory == UnsealedChoice::Refused;
        if keeps && self.objects.memories.values().filter(is_unsealed).count() >= UNSEALED_MAX {
            return Err(Refused::limit(UNSEALED_MAX as u64));
        }
        let (memory, fd) = ClientMemory::create(bytes, self.room(charge)?)?;
        let kept = if keeps { Some(kept(&fd, &self.registry.quota, self.objects.process.account)?) } else { None };
        let handle = self.add_memory(Arc::new(memory.of(self.session)).into(), kept, None);
        Ok((Handle { handle }, vec![fd]))
    }

    pub(super) fn map_memory(
        &mut self,
        request: MapMemoryRequest,
        descriptor: Option<Descriptor>,
    ) -> CallReply<MapMemory> {
        let handle = self.map(request, descriptor)?;
        Ok((Handle { handle }, Vec::new()))
    }

    /// Maps memory of the client and registers a region in it.
    pub(super) fn map_and_reg_mr(
        &mut self,
        MapAndRegMrRequest { memory, region }: MapAndRegMrRequest,
        descriptor: Option<Descriptor>,
    ) -> CallReply<MapAndRegMr> {
        let memory = self.map(memory, descriptor)?;
        match self.register(RegMrRequest { memory, ..region }) {
            Ok(region) => Ok((MapAndRegMrReply { memory, region }, Vec::new())),
            Err(refused) => {
                self.end_memory(memory)?;
                // The fields of the region follow those of the memory.
                Err(match refused.why {
                    Refusal::InvalidArgument => Refused::argument(refused.detail[0] + 4, refused.detail[1]),
                    _ => refused,
                })
            }
        }
    }

    /// Maps memory of the client; returns its handle.
    fn map(&mut self, request: MapMemoryRequest, descriptor: Option<Descriptor>) -> Result<u32, Refused> {
        let bad_file = |errno| Refused::with(Refusal::BadFile, errno as u32, 0u64);
        let MapMemoryRequest { offset, bytes, writable, origin } = request;
        let whole = |number: u64| number.is_multiple_of(4096);
        let end = offset.checked_add(bytes).filter(|_| whole(bytes) && bytes > 0);
        let end = end.ok_or(Refused::argument(1, bytes))?;
        if !whole(offset) {
            return Err(Refused::argument(0, offset));
        }
        if writable > 1 {
            return Err(Refused::argument(2, writable));
        }
        let kind = match origin {
            origin::MIGRATED => MemoryKind::Migrated,
            origin::FILE_BACKED => MemoryKind::FileBacked,
            origin::PROXIED => MemoryKind::Proxied,
            other => return Err(Refused::argument(3, other)),
        };
        let limits = &self.registry.limits.client;
        if kind == MemoryKind::Proxied {
            check_proxied(limits.proxied_memory)?;
        }
        let must_be_sealed = limits.unsealed_memory == UnsealedChoice::Refused;
        check_limit(&self.objects.memories, limits.mrs)?;
        let mappings = match (kind, &self.objects.copy_thread) {
            (MemoryKind::Proxied, Some(_)) => 0,
            (MemoryKind::Proxied, None) => quota::OF_A_COPY_THREAD,
            _ => 1,
        };
        let room = self.registry.quota.take(self.objects.process.account, mappings)?;
        let mut charge = self.objects.charge(bytes, limits)?;
        let mapped = if kind == MemoryKind::Proxied {
            self.keep(descriptor, offset..end, writable == 1, room)
        } else {
            let room = with_charge(room, charge.take());
            descriptor.ok_or(Errno::EBADF).and_then(Descriptor::into_shared_file).and_then(|file| {
                if must_be_sealed && !has_no_holes_to_come(&file) {
                    return Err(UNSEALED);
                }
                ClientMemory::map(&file, offset..end, writable == 1, kind, room)
                    .map(|memory| Arc::new(memory.of(self.session)).into())
            })
        };
        let mapped = mapped.inspect_err(|_| self.objects.give_back(bytes)).map_err(|errno| match errno {
            Errno::ENOMEM | Errno::EAGAIN => Refused::from(errno),
            errno => bad_file(errno),
        })?;
        Ok(self.add_memory(mapped, None, charge))
    }

    /// Memory that stays where it is. A session has that of one process: the first one's, which
    /// passed the descriptor.
    fn keep(
        &mut self,
        descriptor: Option<Descriptor>,
        range: Range<u64>,
        writable: bool,
        room: Room,
    ) -> Result<Backing, Errno> {
        let keep = |copy_thread| {
            ProxiedMemory::new(copy_thread, &range, writable).map(|memory| Backing::Proxied(Arc::new(memory)))
        };
        if let Some((copy_thread, _)) = &self.objects.copy_thread {
            return keep(copy_thread);
        }
        let copy_thread = CopyThread::new(descriptor.ok_or(Errno::EBADF)?)?;
        let reached = keep(&copy_thread)?;
        self.objects.copy_thread = Some((copy_thread, room));
        Ok(reached)
    }

    /// Adds a memory object to the session. Workers get it with the first region in it.
    fn add_memory(&mut self, memory: Backing, unsealed: Option<SharedFd>, charge: Option<Charge>) -> u32 {
        let number = self.registry.memory_objects.take();
        let object = MemoryObject { object: MemoryObjectId(number), memory, unsealed, users: 0, _charge: charge };
        self.objects.memories.insert(number, object);
        number
    }

    pub(super) fn free_memory(&mut self, request: Handle) -> CallReply<FreeMemory> {
        self.end_memory(request.handle).map(nothing)
    }

    pub(super) fn end_memory(&mut self, number: u32) -> Result<(), Refused> {
        let object = find(&mut self.objects.memories, number)?;
        check_unused(object.users)?;
        let bytes = object.memory.bytes();
        self.objects.memories.remove(&number);
        self.objects.give_back(bytes);
        self.registry.memory_objects.give_back(number);
        Ok(())
    }

    pub(super) fn reg_mr(&mut self, request: RegMrRequest) -> CallReply<RegMr> {
        Ok((self.register(request)?, Vec::new()))
    }

    fn register(&mut self, request: RegMrRequest) -> Result<RegMrReply, Refused> {
        let limits = &self.registry.limits;
        let (client_limit, device_limit) = (limits.client.mrs, limits.device.mrs);
        // Memory windows count too.
        check_limit(&self.objects.mrs, client_limit.saturating_sub(self.objects.mws.len() as u32))?;
        let pd = find(&mut self.objects.pds, request.pd)?.pdn;
        let memory = find(&mut self.objects.memories, request.memory)?;
        let (object, backing) = (memory.object, memory.memory.clone());
        check_range(&request, backing.bytes())?;
        check_access(request.access, &backing)?;
        check_sealed(memory)?;

        let charge = self.charge(AccountResource::Mrs)?;
        let device = self.registry.device(self.objects.device);
        if device.mrs >= device_limit {
            return Err(Refused::limit(device_limit));
        }
        let key = device.keys.take(random).ok_or(Refused::limit(device_limit))?;
        let mr = Mr {
            key,
            pd,
            access: request.access,
            va: request.va,
            length: request.length,
            object,
            offset: request.offset,
            scope: Scope::Region,
        };
        let device = self.objects.device;
        let given = self.give_to_all(
            device_limit.into(),
            |_| Command::SetMr(device, mr, backing.clone()),
            || Command::DropMr(device, key),
        );
        if let Err(refused) = given {
            // A worker that did not answer may know the key still: it stays in use then.
            if refused.why != Refusal::WorkerTimeout {
                self.registry.device(device).keys.give_back(key);
            }
            return Err(refused);
        }
        self.registry.device(device).mrs += 1;
        find(&mut self.objects.pds, request.pd)?.users += 1;
        find(&mut self.objects.memories, request.memory)?.users += 1;
        let handle = self.registry.mrs.take();
        let object = MrObject { mr, pd: request.pd, memory: request.memory, windows: 0, _charge: charge };
        self.objects.mrs.insert(handle, object);
        Ok(RegMrReply { handle, lkey: key.0, rkey: key.0 })
    }

    pub(super) fn dereg_mr(&mut self, request: Handle) -> CallReply<DeregMr> {
        self.end_mr(request.handle).map(nothing)
    }

    /// Ends a registration, and frees the memory if no other region lies in it.
    pub(super) fn dereg_mr_and_free(&mut self, request: Handle) -> CallReply<DeregMrAndFree> {
        let memory = find(&mut self.objects.mrs, request.handle)?.memory;
        self.end_mr(request.handle)?;
        if find(&mut self.objects.memories, memory)?.users == 0 {
            self.end_memory(memory)?;
        }
        Ok(nothing(()))
    }

    /// Changes a region in every worker's table, in place: its keys stay.
    pub(super) fn rereg_mr(&mut self, request: ReregMrRequest) -> CallReply<ReregMr> {
        let &mut MrObject { mr: old, pd: old_pd, memory: old_memory, windows, .. } =
            find(&mut self.objects.mrs, request.handle)?;
        check_unused(windows)?;
        if request.changes & !rereg::ALL != 0 {
            return Err(Refused::argument(1, request.changes));
        }
        let changes = |what| request.changes & what != 0;
        let (mut mr, mut pd, mut memory) = (old, old_pd, old_memory);
        if changes(rereg::PD) {
            pd = request.pd;
            mr.pd = find(&mut self.objects.pds, pd)?.pdn;
        }
        if changes(rereg::TRANSLATION) {
            memory = request.memory;
            let object = find(&mut self.objects.memories, memory)?;
            check_sealed(object)?;
            let ReregMrRequest { offset, length, va, .. } = request;
            let range = RegMrRequest { offset, length, va, ..RegMrRequest::default() };
            // The fields stand two places further on in this call.
            check_range(&range, object.memory.bytes())
                .map_err(|refused| Refused { detail: [refused.detail[0] + 2, refused.detail[1]], ..refused })?;
            (mr.object, mr.offset, mr.length, mr.va) = (object.object, offset, length, va);
        }
        if changes(rereg::ACCESS) {
            mr.access = request.access;
        }
        // Other memory may not bear the rights of before.
        let object = find(&mut self.objects.memories, memory)?;
        check_access(mr.access, &object.memory).map_err(|refused| match refused.why {
            Refusal::InvalidArgument => Refused::argument(7, mr.access),
            _ => refused,
        })?;
        let (device, new_backing) = (self.objects.device, object.memory.clone());
        let device_limit = self.registry.limits.device.mrs;
        let old_backing = find(&mut self.objects.memories, old_memory)?.memory.clone();
        // A worker that refuses or does not answer has the region unchanged, as far as can be
        // known; the others then keep it unchanged as well.
        self.give_to_all(
            device_limit.into(),
            |_| Command::SetMr(device, mr, new_backing.clone()),
            || Command::SetMr(device, old, old_backing.clone()),
        )?;
        find(&mut self.objects.pds, old_pd)?.users -= 1;
        find(&mut self.objects.pds, pd)?.users += 1;
        find(&mut self.objects.memories, old_memory)?.users -= 1;
        find(&mut self.objects.memories, memory)?.users += 1;
        let object = find(&mut self.objects.mrs, request.handle)?;
        (object.mr, object.pd, object.memory) = (mr, pd, memory);
        Ok(nothing(()))
    }

    pub(super) fn end_mr(&mut self, number: u32) -> Result<(), Refused> {
        let &mut MrObject { mr: Mr { key, .. }, pd, memory, windows, .. } = find(&mut self.objects.mrs, number)?;
        check_unused(windows)?;
        let device = self.objects.device;
        // Each worker's answer says that it no longer reaches the region.
        self.take_back_from_all(|| Command::DropMr(device, key))?;
        self.objects.mrs.remove(&number);
        self.registry.mrs.give_back(number);
        find(&mut self.objects.pds, pd)?.users -= 1;
        find(&mut self.objects.memories, memory)?.users -= 1;
        let device = self.registry.device(device);
        device.keys.give_back(key);
        device.mrs -= 1;
        Ok(())
    }
}

pub(super) fn nothing(_: ()) -> (Nothing, Vec<std::os::fd::OwnedFd>) {
    (Nothing {}, Vec::new())
}

pub(super) fn check_unused(users: u32) -> Result<(), Refused> {
    if users > 0 { Err(Refused::with(Refusal::InUse, users, 0u64)) } else { Ok(()) }
}

/// The whole region lies inside the memory, and its addresses do not wrap.
fn check_range(request: &RegMrRequest, memory_bytes: u64) -> Result<(), Refused> {
    if request.offset > memory_bytes {
        return Err(Refused::argument(2, request.offset));
    }
    if request.length > memory_bytes - request.offset {
        return Err(Refused::argument(3, request.length));
    }
    // The last byte may be the last of the address space.
    if request.length > 0 && request.va.checked_add(request.length - 1).is_none() {
        return Err(Refused::argument(4, request.va));
    }
    Ok(())
}

/// As in verbs: remote writes or atomic operations require local writes. And memory that is
/// read-only to the client is not registered for writing.
fn check_access(bits: u32, memory: &Backing) -> Result<(), Refused> {
    let peers_change = bits & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    let remote_only = peers_change && bits & access::LOCAL_WRITE == 0;
    let not_writable = bits & access::LOCAL_WRITE != 0 && !memory.is_writable();
    match () {
        () if bits & !access::ALL != 0 || remote_only || not_writable => Err(Refused::argument(5, bits)),
        () => Ok(()),
    }
}

/// Its client has sealed the memory, if it must. The file is no longer needed.
fn check_sealed(memory: &mut MemoryObject) -> Result<(), Refused> {
    if memory.unsealed.as_ref().is_some_and(|file| !has_no_holes_to_come(file)) {
        return Err(Refused::with(Refusal::BadFile, UNSEALED as u32, 0u64));
    }
    memory.unsealed = None;
    Ok(())
}

/// Whether a client may register memory that stays in place.
fn check_proxied(choice: ProxiedChoice) -> Result<(), Refused> {
    let refused = |driver: u64| Refused::with(Refusal::NotProxied, driver, 0u64);
    match choice {
        ProxiedChoice::On => Ok(()),
        ProxiedChoice::Off => Err(refused(0)),
        ProxiedChoice::Auto => nvidia::defective_version().map_or(Ok(()), |driver| Err(refused(driver))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_ends_where_its_memory_ends() {
        let request = |offset, length, va| RegMrRequest { offset, length, va, ..RegMrRequest::default() };
        let check = |request| check_range(&request, 8192).map_err(|refused| refused.detail[0]);
        assert_eq!(check(request(0, 8192, 0)), Ok(()));
        assert_eq!(check(request(8191, 1, u64::MAX)), Ok(()));
        assert_eq!(check(request(8192, 0, u64::MAX)), Ok(()));
        assert_eq!(check(request(8193, 0, 0)), Err(2));
        assert_eq!(check(request(8191, 2, 0)), Err(3));
        assert_eq!(check(request(1, u64::MAX, 0)), Err(3));
        assert_eq!(check(request(0, 2, u64::MAX)), Err(4));
    }

    #[test]
    fn rights_are_those_of_verbs() {
        let (memory, _fd) = ClientMemory::create(1, Room::default()).expect("a page");
        let memory = Backing::from(Arc::new(memory));
        for good in [0, access::LOCAL_WRITE, access::REMOTE_READ, access::ALL] {
            assert_eq!(check_access(good, &memory), Ok(()));
        }
        let remote_only = [access::REMOTE_WRITE, access::REMOTE_ATOMIC, access::REMOTE_WRITE | access::REMOTE_READ];
        for bad in remote_only.into_iter().chain([access::ZERO_BASED, u32::MAX]) {
            assert!(check_access(bad, &memory).is_err(), "{bad:x}");
        }
    }
}
