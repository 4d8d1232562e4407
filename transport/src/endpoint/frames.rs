//! Received frames: conditions before any change, their queue pairs, and out-of-order packets.

use roced_types::Qpn;

use super::Endpoint;
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, BorrowedPayload, FrameOrigin, Segments},
    out_of_order::{NotBuffered, OutOfOrderSide},
    reject::{Disposition, DropReason},
    wire::{
        frame::{self, Packet},
        opcode::{Position, Service},
    },
};

/// Destination of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination {
    /// Queue pair in this slot.
    Qp(u32),
    /// Queue pair in this slot, which is notified of congestion.
    Notified(u32),
    /// Queue pairs attached to the multicast group of its destination.
    Group,
    /// Queue pair 1.
    Management,
    /// None: the queue pair was removed, and acknowledges a repetition.
    Removed,
}

impl Endpoint {
    /// Processes a frame from the network.
    pub fn on_frame(&mut self, now: Nanos, frame: &Segments<'_>, app: &mut impl App) -> Disposition {
        self.on_frame_from(FrameOrigin::Wire, now, frame, app)
    }

    /// Processes a frame of this origin.
    pub fn on_frame_from(
        &mut self,
        origin: FrameOrigin,
        now: Nanos,
        frame: &Segments<'_>,
        app: &mut impl App,
    ) -> Disposition {
        let taken = frame::parse(frame).and_then(|packet| {
            let to = self.admit(&packet, origin, now).map_err(|reason| self.refuse_notification(&packet, reason))?;
            let disposition = match to {
                Destination::Qp(index) => self.deliver(now, &packet, index, Some(frame), app),
                Destination::Notified(index) => self.on_notification(now, index),
                Destination::Group => self.deliver_to_group(now, &packet, (origin, frame), app),
                Destination::Management => self.keep_management(&packet),
                Destination::Removed => self.acknowledge_again(&packet),
            };
            if packet.is_marked() {
                self.on_marked(now, &packet, to, disposition);
            }
            Ok(disposition)
        });
        self.counted(taken)
    }

    /// Processes a frame with borrowed payload from a queue pair of this endpoint; see
    /// [`crate::io::BorrowedPayload`] for the conditions. The frame is never buffered, because
    /// nothing is lost or reordered on this path.
    pub fn on_borrowed_frame(
        &mut self,
        now: Nanos,
        frame: &[u8],
        borrowed: &[BorrowedPayload],
        app: &mut impl App,
    ) -> Disposition {
        let taken = frame::parse_borrowed(frame, borrowed).and_then(|packet| {
            let index = self.admit_to_qp(&packet, FrameOrigin::Local)?;
            Ok(self.deliver(now, &packet, index, None, app))
        });
        self.counted(taken)
    }

    /// Returns the disposition of a frame and counts a drop.
    fn counted(&mut self, taken: Result<Disposition, DropReason>) -> Disposition {
        let disposition = taken.unwrap_or_else(Disposition::Dropped);
        if let Disposition::Dropped(reason) = disposition {
            self.drops.count(reason);
        }
        disposition
    }

    pub(super) fn deliver(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        index: u32,
        frame: Option<&Segments<'_>>,
        app: &mut impl App,
    ) -> Disposition {
        let qp = self.qps.get_mut(index).expect("admitted to a queue pair that is there");
        let mut disposition = qp.on_packet(packet, &mut self.resources.context(now, app));
        if let Disposition::Dropped(reason) = disposition
            && let Some(frame) = frame
            && let Some(side) = qp.may_buffer(packet, reason, now)
        {
            disposition = self.buffer_packet(index, side, packet, now, frame);
        }
        self.after_packet(index, asks_before_its_end(packet), now, app);
        self.after(index);
        disposition
    }

    /// Checks a packet before it may change anything.
    fn admit(&self, packet: &Packet<'_>, origin: FrameOrigin, now: Nanos) -> Result<Destination, DropReason> {
        self.denied_sources.check(&packet.source, origin)?;
        // One compare for multicast and queue pair 1: all numbers that no queue pair has.
        if packet.bth.dest_qpn.is_reserved() {
            return self.admit_reserved(packet, origin);
        }
        let index = match self.admit_to_qp(packet, origin) {
            Err(reason) if packet.info.service == Service::Cnp => {
                return self.admit_notification(packet, origin, reason);
            }
            Err(DropReason::NoSuchQp) => return self.admit_to_removed(packet, origin, now),
            admitted => admitted?,
        };
        packet.check_integrity()?;
        Ok(Destination::Qp(index))
    }

    /// As [`Self::admit`], of a packet to a number without a queue pair.
    #[cold]
    fn admit_to_removed(
        &self,
        packet: &Packet<'_>,
        origin: FrameOrigin,
        now: Nanos,
    ) -> Result<Destination, DropReason> {
        self.time_wait.admit(packet, origin, now).map(|()| Destination::Removed)
    }

    /// Answers the repetition of a request that a removed queue pair has executed.
    #[cold]
    fn acknowledge_again(&mut self, packet: &Packet<'_>) -> Disposition {
        if let Some((path, acknowledgment)) = self.time_wait.answer(packet) {
            let is_kept = self.final_answers.repeat(&path, &acknowledgment);
            self.drops.add(DropReason::FinalAnswerLost, (!is_kept).into());
        }
        self.totals.add(QpCount::DuplicateRequest, 1);
        Disposition::Dropped(DropReason::Duplicate)
    }

    /// As [`Self::admit`], of a packet to a reserved number.
    #[inline(never)]
    fn admit_reserved(&self, packet: &Packet<'_>, origin: FrameOrigin) -> Result<Destination, DropReason> {
        self.own_addresses.check_source(&packet.source, origin)?;
        match packet.bth.dest_qpn {
            Qpn::GSI => {
                self.check_management(packet)?;
                Ok(Destination::Management)
            }
            Qpn::MULTICAST => {
                if self.groups.members(&packet.destination).is_empty() {
                    return Err(DropReason::NoSuchGroup);
                }
                packet.check_integrity()?;
                Ok(Destination::Group)
            }
            _ => Err(DropReason::NoSuchQp),
        }
    }

    /// Slot of the queue pair of a packet, after checking that the packet comes from its peer.
    fn admit_to_qp(&self, packet: &Packet<'_>, origin: FrameOrigin) -> Result<u32, DropReason> {
        let index = self.slot(packet.bth.dest_qpn).ok_or(DropReason::NoSuchQp)?;
        let qp = self.qps.get(index).ok_or(DropReason::NoSuchQp)?;
        qp.check_origin(packet, origin)?;
        if !qp.has_peer() {
            self.own_addresses.check_source(&packet.source, origin)?;
        }
        Ok(index)
    }

    /// Buffers an out-of-order packet.
    #[cold]
    fn buffer_packet(
        &mut self,
        index: u32,
        side: OutOfOrderSide,
        packet: &Packet<'_>,
        now: Nanos,
        frame: &Segments<'_>,
    ) -> Disposition {
        let qp = self.qps.get_mut(index).expect("just found");
        match qp.buffer_packet(&mut self.out_of_order, side, packet, frame, now) {
            Ok(()) => Disposition::Buffered,
            Err(NotBuffered::NoRoom) => Disposition::Dropped(DropReason::OutOfOrderNoBuffer),
            Err(NotBuffered::Twice) => Disposition::Dropped(DropReason::Duplicate),
            Err(NotBuffered::Conflict) => {
                self.drops.count(DropReason::OutOfOrderDiscarded);
                Disposition::Dropped(DropReason::OutOfOrderConflict)
            }
        }
    }

    /// Processes buffered packets that are due after an accepted packet, which `asks` for an ACK
    /// before its message ends. They are processed like received packets, except for the ICRC,
    /// which was checked on arrival.
    pub(super) fn after_packet(&mut self, index: u32, asks: bool, now: Nanos, app: &mut impl App) {
        let Some(qp) = self.qps.get_mut(index).filter(|qp| qp.has_buffered()) else { return };
        let in_vain = qp.discard_expired(&mut self.out_of_order, now) + qp.on_direct(&mut self.out_of_order, asks);
        self.drops.add(DropReason::OutOfOrderDiscarded, in_vain.into());
        while let Some((side, slot)) = qp.next_buffered(&self.out_of_order) {
            let frame = [self.out_of_order.frame(slot)];
            let packet = frame::parse(&frame).and_then(|packet| qp.check_headers(&packet).map(|()| packet));
            let disposition = match packet {
                Ok(packet) => {
                    let endpoint = &mut self.resources.context(now, app);
                    qp.on_buffered_packet(&packet, endpoint)
                }
                Err(reason) => Disposition::Dropped(reason),
            };
            if let Disposition::Dropped(reason) = disposition {
                self.drops.count(reason);
            }
            qp.release(&mut self.out_of_order, side, slot);
        }
        self.drops.add(DropReason::OutOfOrderDiscarded, qp.discard_needless(&mut self.out_of_order).into());
        qp.on_exposed(&self.out_of_order, &mut self.resources.context(now, app));
    }
}

/// The packet asks for an ACK, and its message continues.
fn asks_before_its_end(packet: &Packet<'_>) -> bool {
    packet.bth.ack_request && matches!(packet.info.position, Position::First | Position::Middle)
}
