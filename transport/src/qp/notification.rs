//! Congestion notification packets (CNPs) of a queue pair, in both directions (annex A17.9), and
//! its reaction to congestion.

use alloc::{boxed::Box, sync::Arc};

use super::{Qp, ServiceType};
use crate::{
    clock::Nanos,
    congestion::{
        control::CongestionControl, dcqcn::DcqcnParameters, delay_guard::DelayGuard, notification::NotificationConfig,
        send_rate::SendRate,
    },
    counters::QpCount,
    io::{EmitError, FrameOrigin, Wire},
    psn::Psn,
    reject::{Disposition, DropReason},
    wire::{
        bth::Bth,
        frame::Packet,
        headers::Headers,
        opcode::{self, Operation},
    },
};

impl Qp {
    /// Sets its reaction to congestion; `parameters` are those of its rate, and round trips above
    /// `delay_limit` show a queue.
    pub(crate) fn set_congestion(
        &mut self,
        control: CongestionControl,
        parameters: &Arc<DcqcnParameters>,
        delay_limit: Nanos,
    ) {
        let reacts = control != CongestionControl::Off && self.base.config.service != ServiceType::Ud;
        (self.base.congestion, self.base.delay_guard) = (control, DelayGuard::new(delay_limit));
        self.base.rate = reacts.then(|| Box::new(SendRate::new(parameters.clone())));
    }

    /// A marked packet that was handled like this causes a CNP at `now`, within the budget of the
    /// endpoint.
    pub(crate) fn must_notify(
        &self,
        packet: &Packet<'_>,
        disposition: Disposition,
        now: Nanos,
        config: &NotificationConfig,
    ) -> bool {
        carries_data(packet)
            && is_of_peer(disposition)
            && self.is_notifying()
            && self.base.notification.is_due(now)
            && config.serves(&packet.source)
    }

    /// From now on a CNP is owed to the peer.
    pub(crate) const fn owe_notification(&mut self) {
        self.base.notification.owe();
    }

    /// It has a peer, and is in a state that answers.
    fn is_notifying(&self) -> bool {
        self.base.config.service != ServiceType::Ud && self.base.state.receives()
    }

    /// Sends the owed CNP; returns false if none is to be sent.
    ///
    /// # Errors
    /// [`EmitError::Full`]: it is still owed.
    pub(crate) fn transmit_notification<W: Wire>(
        &mut self,
        now: Nanos,
        config: &NotificationConfig,
        wire: &mut W,
    ) -> Result<bool, EmitError> {
        if !self.base.notification.is_owed() {
            return Ok(false);
        }
        let headers = Headers::new(Bth {
            mig_req: false,
            becn: true,
            ..Bth::new(opcode::CNP, self.base.dest_qpn(), Psn::default())
        });
        let path = self.base.ready_path().filter(|_| self.is_notifying());
        let path = path.map(|path| path.with_class(config.traffic_class(), config.priority));
        if let Some(path) = &path {
            wire.emit(path.via(), path.frame_bytes(&headers, 0), |frame| path.fill(frame, &headers, 0, |_| Ok(())))?;
        }
        self.base.notification.on_sent(now, config.interval);
        Ok(path.is_some())
    }

    /// Checks a received CNP before it may change anything.
    ///
    /// # Errors
    /// [`DropReason`].
    pub(crate) fn check_notification(&self, packet: &Packet<'_>, origin: FrameOrigin) -> Result<(), DropReason> {
        if !self.has_peer() {
            return Err(DropReason::WrongService);
        }
        // A queue pair that does not send has nothing to slow down. In RTR it answers READs.
        if !(self.base.state.sends() || self.base.state.receives() && self.base.config.service == ServiceType::Rc) {
            return Err(DropReason::WrongState);
        }
        self.check_addresses(packet)?;
        self.check_way(origin)?;
        if !packet.bth.becn {
            return Err(DropReason::NoCongestion);
        }
        packet.check_integrity()
    }

    /// Handles a checked CNP; true if a congestion window or a rate follows it.
    pub(crate) fn on_notification(&mut self, now: Nanos) -> bool {
        self.base.counters.count(QpCount::ReceivedPackets);
        let mut is_followed = self.base.rate.as_mut().is_some_and(|rate| rate.on_notification(now));
        let are_paced = self.base.paces_requests();
        match self.roles.reliable_mut() {
            Some(it) if !are_paced => {
                it.requester.on_notification();
                is_followed = true;
            }
            Some(it) if is_followed => it.requester.on_rate_limited(),
            _ => {}
        }
        is_followed && self.base.reacts()
    }

    /// A packet with a mark was handled like this: if it is a READ response with data, less is
    /// requested.
    pub(crate) fn on_marked(&mut self, packet: &Packet<'_>, disposition: Disposition) {
        let is_response = packet.info.operation == Operation::ReadResponse && packet.payload_len() > 0;
        if is_response
            && matches!(disposition, Disposition::Accepted | Disposition::Buffered)
            && let Some(it) = self.roles.reliable_mut()
        {
            it.requester.on_marked_response();
        }
    }
}

/// The packet carries a part of a message, so its sender can send less of it. Those without payload
/// are answers, or questions for one.
fn carries_data(packet: &Packet<'_>) -> bool {
    packet.info.operation.carries_message() && packet.payload_len() > 0
}

/// The packet may be the peer's: it was not refused as one that this peer cannot have sent.
const fn is_of_peer(disposition: Disposition) -> bool {
    match disposition {
        Disposition::Accepted | Disposition::Buffered => true,
        Disposition::Dropped(reason) => matches!(
            reason,
            DropReason::Duplicate
                | DropReason::OutOfSequence
                | DropReason::OutOfOrderNoBuffer
                | DropReason::ReceiverNotReady
                | DropReason::ResponseGap
                | DropReason::StaleResponse
        ),
    }
}
