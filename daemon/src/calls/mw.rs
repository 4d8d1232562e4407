//! Memory windows: calls about them, and key changes of queue pairs on the data path.
//!
//! Every worker of the device has a table of keys of its own. This thread changes them one after
//! the other, and only after all answers does it tell the worker of the requesting queue pair; a
//! completion is therefore true on every worker.

use roced_abi::control::{AllocMw, AllocMwReply, AllocMwRequest, DeallocMw, Handle, Refusal, limit::AccountResource};
use roced_transport::{
    mr::{Mr, MrKey, Scope},
    qp::{KeyChange, KeyRequest},
};
use roced_types::{BindWindow, Qpn, access};
use tracing::debug;

use super::{
    CallHandler, CallReply,
    mr::nothing,
    refused::Refused,
    session::{MrObject, MwKind, MwObject, QpObject, WindowBound, check_limit, find},
};
use crate::{numbers::random, worker::command::Command};

impl CallHandler<'_, '_> {
    pub(super) fn alloc_mw(&mut self, request: AllocMwRequest) -> CallReply<AllocMw> {
        let limits = &self.registry.limits;
        let (client_limit, device_limit) = (limits.client.mrs, limits.device.mrs);
        // Windows and regions share the limits: each takes a place in every worker's table.
        let regions = self.objects.mrs.len() as u32;
        check_limit(&self.objects.mws, client_limit.saturating_sub(regions))?;
        find(&mut self.objects.pds, request.pd)?;
        let kind = match request.kind {
            1 => MwKind::One,
            2 => MwKind::Two,
            other => return Err(Refused::argument(1, other)),
        };
        let charge = self.charge(AccountResource::Mrs)?;
        let device = self.registry.device(self.objects.device);
        if device.mrs >= device_limit {
            return Err(Refused::limit(device_limit));
        }
        let key = device.keys.take(random).ok_or(Refused::limit(device_limit))?;
        device.mrs += 1;
        find(&mut self.objects.pds, request.pd)?.users += 1;
        // The index is the window's alone on this device, and never 0.
        let handle = key.0 >> 8;
        self.objects.mws.insert(handle, MwObject { key, kind, pd: request.pd, bound: None, _charge: charge });
        Ok((AllocMwReply { handle, rkey: key.0 }, Vec::new()))
    }

    pub(super) fn dealloc_mw(&mut self, request: Handle) -> CallReply<DeallocMw> {
        self.end_mw(request.handle).map(nothing)
    }

    pub(super) fn end_mw(&mut self, number: u32) -> Result<(), Refused> {
        self.unbind(number)?;
        let MwObject { key, pd, .. } = self.objects.mws.remove(&number).expect("unbound one line up");
        find(&mut self.objects.pds, pd)?.users -= 1;
        let device = self.registry.device(self.objects.device);
        device.keys.give_back(key);
        device.mrs -= 1;
        Ok(())
    }

    /// Ends the binding of every window that a queue pair has bound; it is gone.
    pub(super) fn unbind_all_of(&mut self, qpn: Qpn) -> Result<(), Refused> {
        let of_it = |mw: &MwObject| mw.bound.is_some_and(|bound| bound.qpn == Some(qpn));
        let windows: Vec<u32> =
            self.objects.mws.iter().filter(|(_, mw)| of_it(mw)).map(|(handle, _)| *handle).collect();
        windows.into_iter().try_for_each(|handle| self.unbind(handle))
    }

    /// A queue pair asks for a change of keys, and waits.
    pub(crate) fn change_key(&mut self, change: KeyChange) {
        let KeyChange { qpn, ticket, wish } = change;
        // It may have been destroyed meanwhile.
        let Ok(&mut QpObject { worker, pd, .. }) = find(&mut self.objects.qps, qpn.get()) else { return };
        let outcome = match wish {
            KeyRequest::Bind { key, window } => self.bind(qpn, pd, key, window),
            KeyRequest::InvalidateLocally(key) | KeyRequest::InvalidateRemotely(key) => self.invalidate(key, pd, qpn),
        };
        let done = outcome.is_ok();
        debug!(session = %self.session, %qpn, ?wish, refused = ?outcome.err().map(|refused| refused.why), "key change");
        // A worker that does not answer is the watchdog's business.
        let _ = self.tell(worker, Command::FinishKeyChange { qpn, ticket, done }, 0);
    }

    fn bind(&mut self, qpn: Qpn, qp_pd: u32, key: MrKey, window: BindWindow) -> Result<(), Refused> {
        let handle = key.0 >> 8;
        let &mut MwObject { key: old_key, kind, pd, bound, .. } = find(&mut self.objects.mws, handle)?;
        if pd != qp_pd {
            return Err(Refused::no_object(handle));
        }
        // Each bind gives the window another name, so that a peer with the old one is refused.
        if key == old_key {
            return Err(Refused::argument(0, key.0));
        }
        // A window of type 2 is made invalid before it is bound anew; one of type 1 is moved.
        if kind == MwKind::Two && bound.is_some() {
            return Err(Refused::with(Refusal::InUse, 1u32, 0u64));
        }
        let entry = match (kind, window.length) {
            (MwKind::One, 0) => None,
            _ => Some(self.window_entry(qpn, pd, kind, key, window)?),
        };
        let device = self.objects.device;
        match entry {
            Some((mr, entry)) => {
                let limit = self.registry.limits.device.mrs.into();
                let given = self.give_to_all(limit, |_| Command::SetMw(device, entry), || Command::DropMr(device, key));
                if let Err(refused) = given {
                    // The workers that took it gave it up again, and with it the binding of before.
                    let _ = self.unbind(handle);
                    return Err(refused);
                }
                self.note_unbound(handle);
                find(&mut self.objects.mrs, mr)?.windows += 1;
                let owner = (kind == MwKind::Two).then_some(qpn);
                let mw = find(&mut self.objects.mws, handle)?;
                (mw.key, mw.bound) = (key, Some(WindowBound { mr, qpn: owner }));
            }
            None => {
                self.unbind(handle)?;
                find(&mut self.objects.mws, handle)?.key = key;
            }
        }
        Ok(())
    }

    /// The region to which a window is to be bound, and the table entry of the window.
    fn window_entry(
        &mut self,
        qpn: Qpn,
        pd: u32,
        kind: MwKind,
        key: MrKey,
        window: BindWindow,
    ) -> Result<(u32, Mr), Refused> {
        let found = self.objects.mrs.iter().find(|(_, mr)| mr.mr.key.0 == window.lkey);
        let (&handle, &MrObject { mr: region, pd: region_pd, .. }) = found.ok_or(Refused::no_object(window.lkey))?;
        if region_pd != pd {
            return Err(Refused::no_object(window.lkey));
        }
        check_bind(&region, kind, window)?;
        let skip = window.va - region.va;
        let zero_based = window.access & access::ZERO_BASED != 0;
        let entry = Mr {
            key,
            access: window.access & access::REMOTE,
            va: if zero_based { 0 } else { window.va },
            length: window.length,
            offset: region.offset + skip,
            scope: if kind == MwKind::Two { Scope::WindowOf(qpn) } else { Scope::Window },
            ..region
        };
        Ok((handle, entry))
    }

    /// A window of type 2 no longer opens anything. Only its own queue pair may ask, or a peer of
    /// that one (IBTA v1 10.6.7: a window of type 2B belongs to the queue pair that bound it).
    fn invalidate(&mut self, key: MrKey, qp_pd: u32, owner: Qpn) -> Result<(), Refused> {
        let handle = key.0 >> 8;
        let mw = find(&mut self.objects.mws, handle)?;
        let is_owner = mw.bound.is_some_and(|bound| bound.qpn == Some(owner));
        if mw.key != key || mw.kind != MwKind::Two || mw.pd != qp_pd || !is_owner {
            return Err(Refused::no_object(key.0));
        }
        self.unbind(handle)
    }

    /// Tables of workers no longer open anything to the window's key.
    fn unbind(&mut self, handle: u32) -> Result<(), Refused> {
        let &mut MwObject { key, bound, .. } = find(&mut self.objects.mws, handle)?;
        if bound.is_some() {
            let device = self.objects.device;
            self.take_back_from_all(|| Command::DropMr(device, key))?;
            self.note_unbound(handle);
        }
        Ok(())
    }

    fn note_unbound(&mut self, handle: u32) {
        let Some(bound) = self.objects.mws.get_mut(&handle).and_then(|mw| mw.bound.take()) else { return };
        if let Some(region) = self.objects.mrs.get_mut(&bound.mr) {
            region.windows -= 1;
        }
    }
}

/// The window lies inside the region, and gives no right that the region does not bear (IBTA v1
/// 10.6.7).
fn check_bind(region: &Mr, kind: MwKind, window: BindWindow) -> Result<(), Refused> {
    let BindWindow { va, length, access: bits, .. } = window;
    let allowed = access::REMOTE | if kind == MwKind::Two { access::ZERO_BASED } else { 0 };
    let changes = bits & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if bits & !allowed != 0
        || region.access & access::WINDOW_BIND == 0
        || changes && region.access & access::LOCAL_WRITE == 0
    {
        return Err(Refused::argument(3, bits));
    }
    let skip = va.checked_sub(region.va).filter(|skip| *skip <= region.length);
    let room = skip.map(|skip| region.length - skip).ok_or(Refused::argument(1, va))?;
    if length == 0 || length > room {
        return Err(Refused::argument(2, length));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use roced_types::{MemoryObjectId, Pdn};

    use super::*;

    const REGION: Mr = Mr {
        key: MrKey(0x0012_3401),
        pd: Pdn(1),
        access: access::ALL,
        va: u64::MAX - 999,
        length: 1000,
        object: MemoryObjectId(1),
        offset: 0,
        scope: Scope::Region,
    };

    const WINDOW: BindWindow = BindWindow { va: REGION.va, length: 1000, lkey: 0x0012_3401, access: access::REMOTE };

    fn place(region: Mr, kind: MwKind, window: BindWindow) -> Option<u64> {
        check_bind(&region, kind, window).err().map(|refused| refused.detail[0])
    }

    #[test]
    fn a_window_ends_where_its_region_ends() {
        let at = |skip: u64, length| place(REGION, MwKind::Two, BindWindow { va: REGION.va + skip, length, ..WINDOW });
        assert_eq!([at(0, 1000), at(999, 1), at(10, 990)], [None; 3]);
        assert_eq!([at(0, 1001), at(999, 2), at(0, 0), at(1, u64::MAX)], [Some(2); 4]);
        let before = BindWindow { va: REGION.va - 1, length: 1, ..WINDOW };
        assert_eq!(place(REGION, MwKind::Two, before), Some(1));
        assert_eq!(place(Mr { va: 0, ..REGION }, MwKind::Two, BindWindow { va: 1001, ..WINDOW }), Some(1));
    }

    #[test]
    fn a_window_grants_only_rights_of_its_region() {
        let with = |region_access, kind, access| {
            place(Mr { access: region_access, ..REGION }, kind, BindWindow { access, ..WINDOW })
        };
        let bindable = access::WINDOW_BIND;
        assert_eq!(with(bindable, MwKind::One, access::REMOTE_READ), None, "local reading is always allowed");
        assert_eq!(with(bindable | access::LOCAL_WRITE, MwKind::One, access::REMOTE), None);
        for right in [access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
            assert_eq!(with(bindable, MwKind::Two, right), Some(3));
        }
        assert_eq!(with(access::ALL & !bindable, MwKind::Two, access::REMOTE_READ), Some(3));
        for right in [access::LOCAL_WRITE, access::WINDOW_BIND, 1 << 6, u32::MAX] {
            assert_eq!(with(access::ALL, MwKind::Two, right), Some(3), "{right:x}");
        }
        let zero_based = access::REMOTE_READ | access::ZERO_BASED;
        assert_eq!(
            (with(access::ALL, MwKind::Two, zero_based), with(access::ALL, MwKind::One, zero_based)),
            (None, Some(3))
        );
    }
}
