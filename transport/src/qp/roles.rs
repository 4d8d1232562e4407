//! Roles of a queue pair, which provide its transport service.

use super::{
    base::QpBase,
    context::{Context, Transmission},
    datagram::Datagram,
    key_change::Waiter,
    reliable::Reliable,
    send_queue::SendQueue,
    service_type::ServiceType,
    unreliable::Unreliable,
};
use crate::{
    clock::Nanos,
    io::{App, Wire},
    reject::DropReason,
    wire::frame::Packet,
};

/// Roles for each transport service; each service has its own file.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a pointer would cost each packet of a reliable connection, and most are"
)]
pub(super) enum Roles {
    Reliable(Reliable),
    Unreliable(Unreliable),
    Datagram(Datagram),
}

/// Forwards a call to the roles of any service.
macro_rules! each {
    ($roles:expr, $it:ident => $call:expr) => {
        match $roles {
            Roles::Reliable($it) => $call,
            Roles::Unreliable($it) => $call,
            Roles::Datagram($it) => $call,
        }
    };
}

impl Roles {
    pub(super) fn new(service: ServiceType, window_packets: u32) -> Self {
        match service {
            ServiceType::Rc => Self::Reliable(Reliable::new(window_packets)),
            ServiceType::Uc => Self::Unreliable(Unreliable::default()),
            ServiceType::Ud => Self::Datagram(Datagram::default()),
        }
    }

    pub(super) fn reset(&mut self, window_packets: u32) {
        match self {
            Self::Reliable(it) => it.reset(window_packets),
            Self::Unreliable(it) => *it = Unreliable::default(),
            Self::Datagram(it) => *it = Datagram::default(),
        }
    }

    /// Enters RTR: its attributes are set.
    pub(super) fn begin_to_receive(&mut self, base: &QpBase) {
        match self {
            Self::Reliable(it) => it.begin_to_receive(base),
            Self::Unreliable(it) => it.begin_to_receive(base),
            Self::Datagram(_) => {}
        }
    }

    /// Enters RTS: its attributes are set.
    pub(super) fn begin_to_send(&mut self, base: &QpBase, queue: &SendQueue) {
        match self {
            Self::Reliable(it) => it.begin_to_send(base, queue),
            Self::Unreliable(it) => it.begin_to_send(base),
            Self::Datagram(it) => it.begin_to_send(base),
        }
    }

    /// Applies attributes that changed while the send queue is drained.
    pub(super) fn renew_attributes(&mut self, mask: u32, base: &QpBase) {
        match self {
            Self::Reliable(it) => it.renew_attributes(mask, base),
            // These services keep no copies of attributes.
            Self::Unreliable(_) | Self::Datagram(_) => {}
        }
    }

    /// All requests that were begun are complete.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Reliable(it) => it.is_drained(),
            Self::Unreliable(it) => it.is_drained(),
            // A datagram leaves whole or not at all.
            Self::Datagram(_) => true,
        }
    }

    pub(super) fn set_rate(&mut self, kbit_per_s: u32) {
        each!(self, it => it.set_rate(kbit_per_s));
    }

    #[inline]
    pub(super) fn on_packet<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        match self {
            Self::Reliable(it) => it.on_packet(packet, cx),
            Self::Unreliable(it) => it.on_packet(packet, cx),
            Self::Datagram(it) => it.on_packet(packet, cx),
        }
    }

    pub(super) fn on_timeout<A: App>(&mut self, cx: &mut Context<'_, A>) {
        match self {
            Self::Reliable(it) => it.on_timeout(cx),
            Self::Unreliable(it) if cx.base.state.sends() => it.on_timeout(cx.now),
            Self::Datagram(it) if cx.base.state.sends() => it.on_timeout(cx.now),
            Self::Unreliable(_) | Self::Datagram(_) => {}
        }
    }

    /// Handles the end of a key change that one of the roles waits for: it was made in every table,
    /// or cannot be made.
    pub(super) fn on_key_change<A: App>(&mut self, waiter: Waiter, done: bool, cx: &mut Context<'_, A>) {
        match self {
            Self::Reliable(it) => it.on_key_change(waiter, done, cx),
            Self::Unreliable(it) => it.on_key_change(done, cx),
            // Datagrams request no key changes.
            Self::Datagram(_) => {}
        }
    }

    #[inline]
    pub(super) fn deadline(&self, base: &QpBase) -> Nanos {
        match self {
            Self::Reliable(it) => it.deadline(base),
            Self::Unreliable(it) if base.state.sends() => it.deadline().min(base.rate_deadline()),
            Self::Datagram(it) if base.state.sends() => it.deadline().min(base.account_deadline()),
            Self::Unreliable(_) | Self::Datagram(_) => Nanos::NEVER,
        }
    }

    /// Notes that receive work was posted. Returns true when the peer must be told.
    pub(super) fn on_receive_posted(&mut self, base: &QpBase) -> bool {
        match self {
            Self::Reliable(it) => it.responder.on_receive_posted(base),
            // These services have no answers.
            Self::Unreliable(_) | Self::Datagram(_) => false,
        }
    }

    /// The roles of a reliable connection.
    pub(super) const fn reliable(&self) -> Option<&Reliable> {
        match self {
            Self::Reliable(it) => Some(it),
            Self::Unreliable(_) | Self::Datagram(_) => None,
        }
    }

    /// As [`Self::reliable`], but mutable.
    pub(super) const fn reliable_mut(&mut self) -> Option<&mut Reliable> {
        match self {
            Self::Reliable(it) => Some(it),
            Self::Unreliable(_) | Self::Datagram(_) => None,
        }
    }

    /// Sends one frame.
    #[inline]
    pub(super) fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        each!(self, it => it.transmit(cx, wire))
    }

    /// Sends the last answers of a failed queue pair, if its service has answers.
    /// Answers with memory of this host are to be sent.
    pub(super) fn owes_memory(&self) -> bool {
        matches!(self, Self::Reliable(it) if it.responder.owes_memory())
    }

    pub(super) fn transmit_final_answers<A: App, W: Wire>(
        &mut self,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        match self {
            Self::Reliable(it) => it.transmit_final_answers(cx, wire),
            Self::Unreliable(_) | Self::Datagram(_) => Transmission::Idle,
        }
    }
}
