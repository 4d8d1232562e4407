//! Calls about multicast groups.
//!
//! Every worker of the device knows every attachment: a frame arrives where RSS puts it, and that
//! worker gives the others their copies. The kernel is told as well, because otherwise no frame
//! would arrive; it is a member while any queue pair is attached.

use roced_abi::control::{AttachMulticast, DetachMulticast, MulticastRequest, Refusal, limit::AccountResource};
use roced_transport::qp::ServiceType;
use roced_types::{Qpn, address_of};
use tracing::debug;

use super::{
    CallHandler, CallReply,
    mr::nothing,
    refused::Refused,
    session::{QpObject, find},
};
use crate::worker::command::Command;

impl CallHandler<'_, '_> {
    pub(super) fn attach_multicast(&mut self, request: MulticastRequest) -> CallReply<AttachMulticast> {
        let MulticastRequest { qpn: number, sgid_index, group } = request;
        let &mut QpObject { qpn, service, .. } = find(&mut self.objects.qps, number)?;
        if service != ServiceType::Ud {
            return Err(Refused::argument(0, number));
        }
        let device = self.objects.device;
        let gid = self.environment.network.gid(device, sgid_index);
        let gid = gid.ok_or(Refused::with(Refusal::NoSuchGid, sgid_index, 0u64))?;
        let address = address_of(group);
        if !address.is_multicast() || address.is_ipv4() != gid.address.is_ipv4() {
            return Err(Refused::argument(1, sgid_index));
        }
        if self.objects.attachments.contains_key(&(number, group)) {
            return Ok(nothing(()));
        }
        let limits = &self.registry.limits;
        let (client_limit, device_limit) = (limits.client.attachments, limits.device.attachments);
        if self.objects.attachments.len() as u64 >= u64::from(client_limit) {
            return Err(Refused::limit(client_limit));
        }
        if self.registry.device(device).attachments >= device_limit {
            return Err(Refused::limit(device_limit));
        }
        let charge = self.charge(AccountResource::Attachments)?;
        let joined = self.environment.network.join(device, gid, address);
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or_default() as u32;
        joined.map_err(|error| Refused::with(Refusal::Multicast, errno(error), 0u64))?;
        let give = |_| Command::Attach { device, qpn, group };
        self.give_to_all(device_limit.into(), give, || Command::Detach { device, qpn, group })
            .inspect_err(|_| self.environment.network.leave(device, gid.vlan, address))?;
        self.objects.attachments.insert((number, group), (gid, charge));
        self.registry.device(device).attachments += 1;
        debug!(session = %self.session, %qpn, group = %address, "attached");
        Ok(nothing(()))
    }

    pub(super) fn detach_multicast(&mut self, request: MulticastRequest) -> CallReply<DetachMulticast> {
        let &mut QpObject { qpn, .. } = find(&mut self.objects.qps, request.qpn)?;
        if !self.objects.attachments.contains_key(&(request.qpn, request.group)) {
            return Err(Refused::no_object(request.qpn));
        }
        self.detach(qpn, request.group).map(nothing)
    }

    /// Detaches a queue pair from all its groups.
    pub(super) fn detach_from_all(&mut self, qpn: Qpn) -> Result<(), Refused> {
        let all = self.objects.attachments.range((qpn.get(), [0; 16])..=(qpn.get(), [0xff; 16]));
        let groups: Vec<[u8; 16]> = all.map(|((_, group), _)| *group).collect();
        groups.into_iter().try_for_each(|group| self.detach(qpn, group))
    }

    /// Detaches all that is still attached, because the session ends.
    pub(super) fn leave_all(&mut self) {
        let device = self.objects.device;
        for ((_, group), (gid, _charge)) in std::mem::take(&mut self.objects.attachments) {
            self.environment.network.leave(device, gid.vlan, address_of(group));
        }
    }

    fn detach(&mut self, qpn: Qpn, group: [u8; 16]) -> Result<(), Refused> {
        let device = self.objects.device;
        self.take_back_from_all(|| Command::Detach { device, qpn, group })?;
        let (gid, _charge) = self.objects.attachments.remove(&(qpn.get(), group)).expect("the caller found it");
        self.environment.network.leave(device, gid.vlan, address_of(group));
        self.registry.device(device).attachments -= 1;
        Ok(())
    }
}
