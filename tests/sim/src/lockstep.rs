//! The transport's queue pair against the plain model, step by step: each frame that the transport
//! gets and each work request goes to both, and all that the transport then writes, completes and
//! sends must be something that the model allows.
//!
//! The specification leaves choices open: when to acknowledge, which packets to send again, whether
//! a packet that comes early is kept. So the model has a lower bound, all that must have happened
//! by now, and an upper bound, all that may have; the transport's output decides between the two.

mod credits;
mod requester;
mod responder;

use std::fmt;

use roced_transport::io::WorkCompletion;

use self::{requester::RequesterShadow, responder::ResponderShadow};
use crate::{
    reference::{Memory, Packet, Receive, Work},
    violation::{Checked, demand},
};

/// Creation attributes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) mtu: u32,
    pub(crate) rd_atomic: u32,
    pub(crate) window: u64,
    pub(crate) rnr_timer: u8,
    /// It may keep packets that come before their turn: requests, and answers.
    pub(crate) keeps: [bool; 2],
    /// First PSN of its own requests, and of its peer's.
    pub(crate) psns: [u64; 2],
    pub(crate) dest_qpn: u32,
    /// It has end-to-end flow control.
    pub(crate) credits: bool,
    /// Where answers of the peer land in the sink: from here on.
    pub(crate) landing: u32,
    pub(crate) sink_bytes: usize,
}

/// Effect of the transport on its host.
#[derive(Clone)]
pub(crate) enum Did {
    Write { at: u32, bytes: Vec<u8> },
    Atomic { at: u32, before: u64, after: u64 },
    Sent(WorkCompletion),
    Received(WorkCompletion),
}

impl fmt::Debug for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { at, bytes } => write!(f, "{} bytes at {at}", bytes.len()),
            Self::Atomic { at, before, after } => write!(f, "a word at {at} from {before:#x} to {after:#x}"),
            Self::Sent(cqe) => write!(f, "work {} ends with status {:?}", cqe.wr_id, cqe.status),
            Self::Received(cqe) => write!(f, "receive {:#x} ends with status {:?}", cqe.wr_id, cqe.status),
        }
    }
}

/// The model beside the transport.
#[derive(Debug)]
pub(crate) struct Shadow {
    settings: Settings,
    pub(crate) requester: RequesterShadow,
    responder: ResponderShadow,
}

impl Shadow {
    pub(crate) fn new(settings: Settings) -> Self {
        let (requester, responder) = (RequesterShadow::new(settings), ResponderShadow::new(settings));
        Self { settings, requester, responder }
    }

    pub(crate) fn post(&mut self, work: Work) {
        self.requester.post(work);
    }

    pub(crate) fn post_receive(&mut self, receive: Receive) {
        self.responder.post_receive(receive);
    }

    /// The transport refused a request, or the other side refused one of its own.
    pub(crate) const fn is_over(&self) -> bool {
        self.responder.is_over() || self.requester.is_over()
    }

    /// A whole frame is about to be given to the transport.
    pub(crate) fn on_packet(&mut self, packet: Packet) {
        if packet.is_request() {
            self.responder.on_request(packet);
        } else {
            self.requester.on_answer(packet);
        }
    }

    /// The transport has had a turn and did this.
    pub(crate) fn on_done(&mut self, done: impl Iterator<Item = Did>) -> Checked {
        for did in done {
            match did {
                Did::Sent(cqe) => self.requester.check_completion(&cqe)?,
                Did::Write { at, bytes } if at >= self.settings.landing => self.requester.check_placed(at, &bytes)?,
                did => {
                    let over = self.is_over();
                    self.responder.check_effect(did, over)?;
                }
            }
        }
        demand!(
            self.is_over() || self.responder.is_whole(),
            "lockstep",
            "a request that was expected is not executed: {}",
            self.responder.missing()
        );
        self.responder.on_turn();
        if self.is_over() { Ok(()) } else { self.requester.check_progress() }
    }

    /// A frame leaves the transport; `memory` is that of its host.
    pub(crate) fn check_sent(&mut self, packet: &Packet, memory: &Memory) -> Checked {
        demand!(
            packet.dest_qpn == self.settings.dest_qpn && packet.mig_req,
            "lockstep",
            "a packet of another queue pair, or as of one that migrates: {packet:?}"
        );
        if packet.is_request() {
            self.requester.check_request(packet, memory)
        } else {
            self.responder.check_answer(packet, memory)
        }
    }
}
