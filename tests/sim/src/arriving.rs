//! Required effects of a frame without an answer, from the moment that an endpoint is given it
//! until it gives it back: these bytes to that place and this completion, or nothing.

use std::fmt;

use roced_transport::io::WorkCompletion;
use roced_types::{CompletionOp, Status, completion_flags};

use crate::{
    connection::End,
    frame::{self, Seen},
    message::{Kind, Message, Outcome},
    pattern::Pieces,
    shared::Shared,
    stream::Receive,
    violation::{Checked, Violation, demand},
};

/// A frame that an endpoint is being given.
pub(crate) struct Arriving {
    /// The checker that reports a forbidden effect.
    checker: &'static str,
    psn: u32,
    /// Its bytes, and their place: from byte `start` of these pieces on. None when it must do
    /// nothing.
    bytes: Vec<u8>,
    into: Pieces,
    start: u32,
    /// They go to a receive.
    takes: bool,
    /// Bytes that were written.
    done: u32,
    /// Of the receive that it completes.
    completes: Option<Received>,
    completed: bool,
}

impl fmt::Debug for Arriving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, into, start, done, .. } = self;
        write!(f, "{done} of {} bytes done, at {start} of {into:?}, ", bytes.len())?;
        write!(f, "completed {}, as it must: {:?}", self.completed, self.completes)
    }
}

/// Contents of the completion of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Received {
    op: CompletionOp,
    byte_len: u32,
    flags: u8,
    imm: [u8; 4],
    src_qpn: u32,
}

impl Received {
    const fn of(cqe: &WorkCompletion) -> Self {
        let WorkCompletion { op, byte_len, flags, imm, src_qpn, .. } = *cqe;
        Self { op, byte_len, flags, imm, src_qpn }
    }
}

impl Arriving {
    /// One that must do nothing.
    pub(crate) fn nothing(checker: &'static str, psn: u32) -> Self {
        Self {
            checker,
            psn,
            bytes: Vec::new(),
            into: Pieces::default(),
            start: 0,
            takes: false,
            done: 0,
            completes: None,
            completed: false,
        }
    }

    /// Required effect of a frame of an unreliable connection at its end `own`, which listens, and
    /// where the key of the generation `good` opens memory.
    pub(crate) fn unreliable(own: &End, peer: &mut End, shared: Option<&Shared>, good: u32, seen: &Seen<'_>) -> Self {
        let nothing = Self::nothing("unreliable", seen.psn);
        let Some((id, packet)) = peer.stream.admit(seen) else { return nothing };
        let message = peer.stream.message(id).expect("found");
        let (start, last) = (packet * peer.stream.mtu(), packet + 1 == message.packets);
        let receive = own.next_receive(shared);
        let place = place(message, start, seen.payload.len() as u32, last, good, receive);
        let Some(into) = place else {
            peer.stream.inbox.under_way = None;
            return nothing;
        };
        let op = if message.kind == Kind::Send { CompletionOp::Recv } else { CompletionOp::RecvWriteImm };
        let completes = (last && message.takes_receive()).then(|| Received {
            op,
            byte_len: message.length,
            flags: flags(seen),
            imm: seen.imm.unwrap_or_default(),
            src_qpn: peer.qpn,
        });
        let takes = message.kind == Kind::Send;
        if last {
            peer.stream.inbox.under_way = None;
        }
        Self { bytes: seen.payload.to_vec(), into, start, takes, completes, ..nothing }
    }

    /// Required effect of a datagram at a queue pair with this Q_Key, for which this receive is
    /// next.
    pub(crate) fn datagram(receive: Option<&Receive>, qkey: u32, seen: &Seen<'_>, frame: &[u8]) -> Self {
        let nothing = Self::nothing("datagram", seen.psn);
        let deth = seen.deth.expect("of this service");
        let Some(receive) = receive else { return nothing };
        let bytes = [&frame::grh(frame), seen.payload].concat();
        if deth.qkey != qkey || bytes.len() as u32 > receive.into.bytes() {
            return nothing;
        }
        let completes = Some(Received {
            op: CompletionOp::Recv,
            byte_len: bytes.len() as u32,
            flags: flags(seen) | completion_flags::GRH | if frame::is_ipv4(frame) { completion_flags::IPV4 } else { 0 },
            imm: seen.imm.unwrap_or_default(),
            src_qpn: deth.source_qpn,
        });
        Self { bytes, into: receive.into.clone(), takes: true, completes, ..nothing }
    }

    fn violation(&self, text: &str) -> Violation {
        Violation { checker: self.checker, text: format!("PSN {}: {text}: {self:?}", self.psn) }
    }

    /// Bytes reach the receiver's sink at `at`.
    pub(crate) fn check_write(&mut self, own: &mut End, shared: Option<&mut Shared>, at: u32, bytes: &[u8]) -> Checked {
        let (done, end) = (self.done as usize, self.done as usize + bytes.len());
        if end > self.bytes.len() {
            return Err(self.violation(&format!("{} bytes at {at}, and there are no more to write", bytes.len())));
        }
        let place = self.into.at(self.start + self.done);
        demand!(
            place.is_some_and(|(offset, run)| offset == at && bytes.len() as u32 <= run),
            "memory",
            "{} bytes at {at}, the next belong to {place:?}: {self:?}",
            bytes.len()
        );
        if self.takes {
            own.claim(shared);
        }
        demand!(self.bytes[done..end] == *bytes, "memory", "wrong bytes at {at}: {self:?}");
        self.done = end as u32;
        Ok(())
    }

    /// A receive of `own` completes.
    pub(crate) fn check_recv(&mut self, own: &mut End, shared: Option<&mut Shared>, cqe: &WorkCompletion) -> Checked {
        let Some(meant) = self.completes.filter(|_| !self.completed) else {
            return Err(self.violation("a receive completes"));
        };
        demand!(self.done as usize == self.bytes.len(), "memory", "a receive completes before its bytes are there");
        own.finish_receive(shared, cqe.wr_id)?;
        if cqe.status != Status::Success || Received::of(cqe) != meant {
            return Err(self.violation(&format!("a receive completes as {cqe:?}")));
        }
        self.completed = true;
        Ok(())
    }

    /// The endpoint is done with it.
    pub(crate) fn check_done(&self) -> Checked {
        demand!(
            self.done as usize == self.bytes.len() && self.completed == self.completes.is_some(),
            "delivery",
            "a frame arrived and was not taken, or not all of it: {self:?}"
        );
        Ok(())
    }
}

/// Where a message's bytes go; `None` when this packet of it must be dropped.
fn place(
    message: &Message,
    start: u32,
    bytes: u32,
    last: bool,
    good: u32,
    receive: Option<&Receive>,
) -> Option<Pieces> {
    if message.kind == Kind::Send {
        return receive.map(|receive| &receive.into).filter(|into| start + bytes <= into.bytes()).cloned();
    }
    let opens = message.outcome != Outcome::RemoteAccess && message.generation.is_none_or(|it| it == good);
    let taken = !(last && message.imm.is_some()) || receive.is_some();
    // IBTA v1 C9-88: no bytes, no check of the key.
    let opens = opens || message.length == 0;
    let mut into = Pieces::default();
    into.push(message.remote, message.length);
    (opens && taken).then_some(into)
}

fn flags(seen: &Seen<'_>) -> u8 {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    flag(seen.imm.is_some(), completion_flags::IMM) | flag(seen.solicited, completion_flags::SOLICITED)
}
