//! Calls about address handles, and followers of destinations.
//!
//! Every worker of the device has every handle, because a queue pair of any of them may name it;
//! each checks the protection domain, which is of one session alone.

use roced_abi::control::{CreateAh, CreateAhRequest, DestroyAh, Handle, Refusal, limit::AccountResource};
use roced_transport::ah::AhEntry;
use roced_types::{Pdn, QpAttributes, Qpn};
use tracing::debug;

use super::{
    CallHandler, CallReply,
    mr::nothing,
    path::{Follower, LifePort, Way, Wish},
    refused::Refused,
    session::{AhObject, check_limit, find},
};
use crate::{
    accounts::ledger::Charge,
    net::{Asker, NextHop},
    worker::command::Command,
};

impl CallHandler<'_, '_> {
    pub(super) fn create_ah(&mut self, request: CreateAhRequest) -> CallReply<CreateAh> {
        let limits = &self.registry.limits;
        check_limit(&self.objects.ahs, limits.client.ahs)?;
        let limit = limits.device.ahs;
        let pd = find(&mut self.objects.pds, request.pd)?.pdn;
        let device = self.objects.device;
        let charge = self.charge(AccountResource::Ahs)?;
        let number = self.registry.device(device).ahs.take().ok_or(Refused::limit(limit))?;
        let made = self.make_ah(number, pd, &request, charge);
        // A worker that did not answer may have it still: its number stays in use.
        if matches!(&made, Err(refused) if refused.why != Refusal::WorkerTimeout) {
            self.registry.device(device).ahs.give_back(number);
        }
        made
    }

    fn make_ah(&mut self, number: u32, pd: Pdn, request: &CreateAhRequest, charge: Charge) -> CallReply<CreateAh> {
        let limit = self.registry.limits.device.ahs;
        let device = self.objects.device;
        let way = self.follow(Follower::Ah(number), Qpn::from_wire(number), &address_vector(request), None)?;
        let port = self.environment.network.port(device);
        let handle = AhEntry {
            pd,
            path: way.state(&port),
            mtu_bytes: way.mtu_bytes(&port),
            static_rate_kbit_per_s: request.static_rate_kbit_per_s,
        };
        let give = |_| Command::AddAh(device, number, handle);
        self.give_to_all(limit.into(), give, || Command::DropAh(device, number))
            .inspect_err(|_| self.unfollow(Follower::Ah(number), Some(way)))?;
        find(&mut self.objects.pds, request.pd)?.users += 1;
        self.objects.ahs.insert(number, AhObject { pd: request.pd, way, _charge: charge });
        debug!(session = %self.session, number, destination = %way.wish.destination, "address handle made");
        Ok((Handle { handle: number }, Vec::new()))
    }

    pub(super) fn destroy_ah(&mut self, request: Handle) -> CallReply<DestroyAh> {
        self.end_ah(request.handle).map(nothing)
    }

    pub(super) fn end_ah(&mut self, number: u32) -> Result<(), Refused> {
        find(&mut self.objects.ahs, number)?;
        let device = self.objects.device;
        self.take_back_from_all(|| Command::DropAh(device, number))?;
        let object = self.objects.ahs.remove(&number).expect("found a few lines up");
        self.unfollow(Follower::Ah(number), Some(object.way));
        self.registry.device(device).ahs.give_back(number);
        find(&mut self.objects.pds, object.pd)?.users -= 1;
        Ok(())
    }

    /// The way of an address handle is by `next` now; as it was, but maybe another link, when there
    /// is none.
    pub(crate) fn set_ah_next(&mut self, number: u32, next: Option<NextHop>) -> Result<(), Refused> {
        let device = self.objects.device;
        let port = self.environment.network.port(device);
        let object = find(&mut self.objects.ahs, number)?;
        object.way.next = next.unwrap_or(object.way.next);
        let (path, mtu_bytes) = (object.way.state(&port), object.way.mtu_bytes(&port));
        let mut result = Ok(());
        for place in self.places() {
            let command = Command::SetAhPath { device, number, path, mtu_bytes };
            result = result.and(self.tell(place.worker, command, 0).map(drop));
        }
        result
    }

    /// The way that an address vector asks for; `follower` follows its destination from now on.
    /// `life` is a queue pair's.
    pub(super) fn follow(
        &mut self,
        follower: Follower,
        local: Qpn,
        asked: &QpAttributes,
        life: Option<LifePort>,
    ) -> Result<Way, Refused> {
        let device = self.objects.device;
        let gid = self.environment.network.gid(device, asked.sgid_index);
        let gid = gid.ok_or(Refused::with(Refusal::NoSuchGid, asked.sgid_index, 0u64))?;
        let port = self.environment.network.port(device);
        let wish = Wish::check(self.objects.device, local, asked, &gid, life, port.ecn)?;
        let priority = wish.priority(&self.registry.device(device).setup.priorities);
        self.check_priority(priority)?;
        if let Some(next) = wish.group_hop(&port) {
            return Ok(Way { follow: None, next, wish });
        }
        let asker = Asker::Account(self.objects.process.account);
        let followed = self.environment.network.follow(device, wish.source, wish.destination, asker);
        let (follow, next) = followed.map_err(|_no_route| Refused::plain(Refusal::NoRoute))?;
        self.registry.followers.entry(follow).or_default().push((self.session, follower));
        Ok(Way { follow: Some(follow), next, wish })
    }

    /// Whether the operator allows packets of this priority.
    fn check_priority(&self, priority: u8) -> Result<(), Refused> {
        let access = &self.objects.process.access;
        if access.priorities.contains(priority) {
            return Ok(());
        }
        let rule = access.rule.map_or(0, |rule| rule.0 as u64);
        Err(Refused::with(Refusal::Forbidden, rule, u64::from(priority) + 1))
    }

    /// The follower has this way no more.
    pub(super) fn unfollow(&mut self, follower: Follower, way: Option<Way>) {
        let Some(Way { follow: Some(follow), .. }) = way else { return };
        self.environment.network.unfollow(follow, Asker::Account(self.objects.process.account));
        if let Some(followers) = self.registry.followers.get_mut(&follow) {
            if let Some(at) = followers.iter().position(|known| *known == (self.session, follower)) {
                followers.swap_remove(at);
            }
            if followers.is_empty() {
                self.registry.followers.remove(&follow);
            }
        }
    }
}

/// As for a queue pair. The receiver differs for each datagram, so the destination's address takes
/// its place in the UDP source port: one port for each handle.
fn address_vector(request: &CreateAhRequest) -> QpAttributes {
    let [.., a, b, c] = request.dgid;
    QpAttributes {
        sgid_index: request.sgid_index,
        dgid: request.dgid,
        dest_qpn: u32::from_be_bytes([0, a, b, c]),
        flow_label: request.flow_label,
        hop_limit: request.hop_limit,
        traffic_class: request.traffic_class,
        service_level: request.service_level,
        ..QpAttributes::default()
    }
}
