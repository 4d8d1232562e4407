//! Congestion notification packets (CNPs) of an endpoint, in both directions (annex A17.9).

use alloc::sync::Arc;

use super::{Endpoint, frames::Destination, transmission::Transmitted};
use crate::{
    clock::Nanos,
    congestion::{
        control::CongestionControl,
        dcqcn::DcqcnParameters,
        notification::{NotificationConfig, NotificationCount, NotificationCounters, Notifications},
    },
    counters::QpCount,
    io::{FrameOrigin, Wire},
    reject::{Disposition, DropReason},
    wire::{frame::Packet, opcode::Service},
};

/// CNPs sent in a call of [`Endpoint::poll_transmit`]: as many as a queue pair has frames in its
/// turn.
const PER_CALL: usize = crate::turns::TURN_FRAMES;

impl Endpoint {
    /// Sets other options of its notification point than [`NotificationConfig::default`].
    pub fn set_notifications(&mut self, config: NotificationConfig) {
        self.notifications.config = config;
    }

    /// Has queue pairs that are added from now on react like this to marks, CNPs and losses, with
    /// these parameters where they follow a rate.
    pub fn set_congestion_control(&mut self, control: CongestionControl, parameters: DcqcnParameters) {
        self.congestion = (control, Arc::new(parameters));
    }

    /// Has windows of queue pairs that are added from now on become smaller where round trips stay
    /// above `limit`; 0, the default, for no limit. For networks that mark nothing: a limit below
    /// the delay that hosts themselves cause keeps windows small for nothing.
    pub const fn set_delay_guard(&mut self, limit: Nanos) {
        self.delay_guard = limit;
    }

    /// Counters of congestion.
    pub const fn notification_counters(&self) -> &NotificationCounters {
        &self.notifications.counters
    }

    /// Counts a packet with the mark of a congested switch, and decides whether its sender is told.
    #[cold]
    pub(super) fn on_marked(&mut self, now: Nanos, packet: &Packet<'_>, to: Destination, disposition: Disposition) {
        let Notifications { config, counters, owed, budget } = &mut self.notifications;
        counters.count(NotificationCount::Marked);
        let Destination::Qp(index) = to else { return };
        let Some(qp) = self.qps.get_mut(index) else { return };
        qp.on_marked(packet, disposition);
        if !qp.must_notify(packet, disposition, now, config) {
            return;
        }
        if budget.take(self.totals.of(QpCount::ReceivedPackets), self.totals.of(QpCount::ReceivedBytes)) {
            qp.owe_notification();
            owed.push_back(index);
        } else {
            counters.count(NotificationCount::Suppressed);
        }
    }

    /// Sends CNPs, ahead of everything else. Windows and rates do not hold them up.
    #[cold]
    pub(super) fn transmit_notifications(&mut self, now: Nanos, budget: usize, wire: &mut impl Wire) -> Transmitted {
        let Notifications { config, counters, owed, .. } = &mut self.notifications;
        let mut visits = 0;
        for _ in 0..budget.min(PER_CALL) {
            let Some(index) = owed.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(index) else { continue };
            match qp.transmit_notification(now, config, wire) {
                Ok(is_sent) => visits += usize::from(is_sent),
                // The next one may leave by another queue, in the next call.
                Err(_full) => {
                    owed.push_back(index);
                    break;
                }
            }
        }
        counters.add(NotificationCount::Sent, visits as u64);
        Transmitted { visits, acks: 0 }
    }

    /// As [`Self::admit`], of a packet that the queue pair of its number, or its absence, refuses
    /// for `reason`, and that is a CNP.
    #[cold]
    pub(super) fn admit_notification(
        &self,
        packet: &Packet<'_>,
        origin: FrameOrigin,
        reason: DropReason,
    ) -> Result<Destination, DropReason> {
        let index = self.slot(packet.bth.dest_qpn).ok_or(reason)?;
        let qp = self.qps.get(index).ok_or(reason)?;
        qp.check_notification(packet, origin).map(|()| Destination::Notified(index))
    }

    /// Handles a checked CNP.
    #[cold]
    pub(super) fn on_notification(&mut self, now: Nanos, index: u32) -> Disposition {
        let qp = self.qps.get_mut(index).expect("admitted to a queue pair that is there");
        let count = if qp.on_notification(now) { NotificationCount::Handled } else { NotificationCount::Ignored };
        self.notifications.counters.count(count);
        Disposition::Accepted
    }

    /// Counts a CNP among those that are ignored, if it is whole, and passes on why it was refused.
    #[cold]
    pub(super) fn refuse_notification(&mut self, packet: &Packet<'_>, reason: DropReason) -> DropReason {
        // A wrong ICRC was seen already, and a denied network is not worth a sum.
        let may_be_whole = !matches!(reason, DropReason::BadIcrc | DropReason::DeniedSource);
        if packet.info.service == Service::Cnp && may_be_whole && packet.check_integrity().is_ok() {
            self.notifications.counters.count(NotificationCount::Ignored);
        }
        reason
    }
}
