//! Datagrams to a multicast group: each attached queue pair of this endpoint receives a copy of the
//! frame.

use roced_types::Qpn;

use super::Endpoint;
use crate::{
    clock::Nanos,
    io::{App, FrameOrigin, Segments},
    reject::{Disposition, Reject},
    wire::frame::Packet,
};

impl Endpoint {
    /// Attaches a datagram queue pair of the device to a multicast group. Attaching it again has no
    /// effect.
    ///
    /// # Errors
    /// [`Reject::NoSuchQp`], [`Reject::NoRoom`].
    pub fn attach(&mut self, qpn: Qpn, group: [u8; 16]) -> Result<(), Reject> {
        if self.ids.contains(qpn.endpoint()) {
            self.find_mut(qpn)?;
        }
        let attached = self.groups.attach(group, qpn)?;
        if let Ok((_, qp)) = self.find_mut(qpn) {
            qp.attachments += u32::from(attached);
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group; returns false if it was not attached.
    pub fn detach(&mut self, qpn: Qpn, group: [u8; 16]) -> bool {
        let detached = self.groups.detach(group, qpn);
        if let Ok((_, qp)) = self.find_mut(qpn) {
            qp.attachments -= u32::from(detached);
        }
        detached
    }

    /// Queue pairs of the device that are attached to a multicast group, grouped by endpoint.
    pub fn members(&self, group: &[u8; 16]) -> impl Iterator<Item = Qpn> {
        self.groups.members(group).map(|place| self.groups.member(place))
    }

    /// Delivers a copy to each member of the group in this endpoint. The frame is accepted if one
    /// member accepts it, or if there is none; drops by other members are counted here.
    pub(super) fn deliver_to_group(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        (origin, frame): (FrameOrigin, &Segments<'_>),
        app: &mut impl App,
    ) -> Disposition {
        let mut sum = None;
        for place in self.groups.members(&packet.destination) {
            let Some(index) = self.slot(self.groups.member(place)) else { continue };
            let qp = self.qps.get(index).expect("a queue pair that goes leaves its groups");
            let disposition = match qp.check_origin(packet, origin) {
                Ok(()) => self.deliver(now, packet, index, Some(frame), app),
                Err(reason) => Disposition::Dropped(reason),
            };
            sum = match (sum, disposition) {
                (Some(Disposition::Dropped(reason)), other) | (Some(other), Disposition::Dropped(reason)) => {
                    self.drops.count(reason);
                    Some(other)
                }
                (_, disposition) => Some(disposition),
            };
        }
        sum.unwrap_or(Disposition::Accepted)
    }
}
