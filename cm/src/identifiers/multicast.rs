//! Multicast groups that identifiers join.

use core::net::IpAddr;

use super::{
    CmErrno, EventKind, GroupMembership, Host, IdEvent, IdKey, IdService, IdState, Identifiers, Parameters,
    connecting::UDP_QKEY,
};

impl Identifiers {
    /// Joins a multicast group, unless the program only sends to it. An event of the membership, to
    /// `uid`, says how that ends.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`], [`CmErrno::NoMemory`].
    pub fn join(
        &mut self,
        key: IdKey,
        uid: u64,
        group: IpAddr,
        is_send_only: bool,
        host: &mut impl Host,
    ) -> Result<IdKey, CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let is_ready = matches!(id.state, IdState::Bound | IdState::AddressResolved | IdState::RouteResolved);
        let (Some(source), IdService::Datagram, true) = (id.device, id.service, is_ready) else {
            return Err(CmErrno::Invalid);
        };
        if !group.is_multicast() || group.is_ipv4() != source.address.is_ipv4() {
            return Err(CmErrno::Invalid);
        }
        let membership = self.free_key(key.owner)?;
        let joined = if is_send_only { Ok(()) } else { host.join(&source, group) };
        let (kind, status) = match joined {
            Ok(()) => (EventKind::MulticastJoin, 0),
            Err(errno) => (EventKind::MulticastError, -errno),
        };
        let is_joined = joined.is_ok() && !is_send_only;
        self.memberships.insert(membership, GroupMembership { id: key, group, source, is_joined });
        self.count(membership);
        *self.memberships_of_account.entry(self.account_of(key.owner)).or_insert(0) += 1;
        self.id(key)?.memberships.insert(membership.number);
        if let Some(event) = self.event(key, kind, status) {
            let mut route = event.route;
            route.destination = Some(core::net::SocketAddr::new(group, 0));
            let parameters = Parameters { qpn: roced_types::Qpn::MULTICAST, qkey: UDP_QKEY, ..Parameters::default() };
            self.events.push_back(IdEvent { uid, key: membership, route, parameters, ..event });
        }
        Ok(membership)
    }

    /// Leaves a group. The membership causes no further event.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn leave(&mut self, membership: IdKey, host: &mut impl Host) -> Result<(), CmErrno> {
        let left = self.memberships.remove(&membership).ok_or(CmErrno::NoEntry)?;
        self.uncount(membership);
        let account = self.account_of(membership.owner);
        if let Some(count) = self.memberships_of_account.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                self.memberships_of_account.remove(&account);
            }
        }
        if let Some(id) = self.ids.get_mut(&left.id) {
            id.memberships.remove(&membership.number);
        }
        if left.is_joined {
            host.leave(&left.source, left.group);
        }
        self.events.retain(|event| event.key != membership);
        Ok(())
    }
}
