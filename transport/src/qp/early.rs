//! Packets of a queue pair that came before their turn: which are worth keeping, whose turn it is, when there is none to come.
//!
//! Nothing of a held packet has any effect before its turn: no byte in client memory, no receive work, no ACK. Programs poll the
//! last byte of a message, and a WRITE placed early would be overwritten by an earlier one that came late.

use roced_shared::ids::Qpn;

use super::{Qp, Turn, reliable::Reliable, responder::is_plain, service::Roles};
use crate::{
    clock::Nanos,
    counters::QpCount,
    held::{HeldList, HeldPackets, NotHeld, Side},
    io::{App, Segments},
    psn::Psn,
    reject::DropReason,
    wire::{frame::Packet, opcode::Operation},
};

/// What a queue pair holds in its endpoint's pool.
#[derive(Debug)]
pub(crate) struct Early {
    requests: HeldList,
    responses: HeldList,
}

impl Early {
    pub(crate) const fn new(qpn: Qpn) -> Self {
        Self {
            requests: HeldList::new(qpn.index(), Side::Requests),
            responses: HeldList::new(qpn.index(), Side::Responses),
        }
    }

    const fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty()
    }

    const fn list(&mut self, side: Side) -> &mut HeldList {
        match side {
            Side::Requests => &mut self.requests,
            Side::Responses => &mut self.responses,
        }
    }
}

impl Qp {
    /// Something is held.
    pub(crate) const fn holds_any(&self) -> bool {
        !self.early.is_empty()
    }

    /// A packet dropped for this reason is to be held instead. Only a reliable connection makes good what is missing. Nothing is held
    /// for a plain peer: what is held is acknowledged before it is sent again.
    pub(crate) fn may_hold(&self, packet: &Packet<'_>, reason: DropReason) -> Option<Side> {
        if !self.link.recovery.is_selective() {
            return None;
        }
        let is_answer = matches!(packet.info.operation, Operation::ReadResponse | Operation::AtomicAck);
        let side = match reason {
            DropReason::OutOfSequence if !is_plain(packet) => Side::Requests,
            DropReason::ResponseGap if is_answer => Side::Responses,
            _ => return None,
        };
        self.turn_of(side).map(|_| side)
    }

    /// Keeps a packet of [`Self::may_hold`].
    pub(crate) fn hold(
        &mut self,
        pool: &mut HeldPackets,
        side: Side,
        psn: Psn,
        frame: &Segments<'_>,
        now: Nanos,
    ) -> Result<(), NotHeld> {
        let turn = self.turn_of(side).ok_or(NotHeld::NoRoom)?;
        pool.hold(self.early.list(side), psn, turn, frame, now)?;
        self.link.counters.count(QpCount::OutOfOrderHeld);
        Ok(())
    }

    /// The slot of a packet whose turn it is.
    pub(crate) fn next_held(&self, pool: &HeldPackets) -> Option<(Side, u32)> {
        let find = |side, list| Some((side, pool.find(list, self.turn_of(side)?)?));
        find(Side::Requests, &self.early.requests).or_else(|| find(Side::Responses, &self.early.responses))
    }

    /// A packet had its turn.
    pub(crate) fn release(&mut self, pool: &mut HeldPackets, side: Side, slot: u32) {
        pool.release(self.early.list(side), slot);
    }

    /// Frees what no turn will come for; gives how many packets that were. What a requester sends again anyway (RNR NAK) or nobody
    /// waits for any more (error, another state) goes, and what lies behind its turn, which only a peer that lies can bring about.
    pub(crate) fn forget_held(&mut self, pool: &mut HeldPackets) -> u32 {
        let mut forgotten = 0;
        for side in [Side::Requests, Side::Responses] {
            let turn = self.turn_of(side);
            let list = self.early.list(side);
            if turn.is_none_or(|turn| list.is_behind(turn)) {
                forgotten += pool.release_all(list);
            }
        }
        forgotten
    }

    /// Frees everything; gives how many packets that were.
    pub(crate) fn forget_all_held(&mut self, pool: &mut HeldPackets) -> u32 {
        pool.release_all(&mut self.early.requests) + pool.release_all(&mut self.early.responses)
    }

    /// All that had its turn is done. What is still held lies behind a hole, which may be a new one.
    pub(crate) fn on_exposed<A: App>(&mut self, pool: &HeldPackets, turn: &mut Turn<'_, A>) {
        let Roles::Reliable(Reliable { requester, completer, responder, .. }) = &mut self.roles else { return };
        if let Some(since) = pool.oldest_arrival(&self.early.requests) {
            responder.on_hole(since, &mut self.link, turn.now);
        }
        if let Some(since) = pool.oldest_arrival(&self.early.responses) {
            completer.on_hole(since, &mut self.link, &mut self.send_queue, requester, turn);
        }
    }

    /// The PSN whose turn it is; `None` when packets of this side are not taken, or will all come again.
    fn turn_of(&self, side: Side) -> Option<Psn> {
        let roles = self.roles.reliable()?;
        let state = self.link.state;
        match side {
            Side::Requests => {
                (state.receives() && !roles.responder.is_waiting_for_receiver()).then(|| roles.responder.expected())
            }
            Side::Responses => state.sends().then(|| roles.completer.unacknowledged()),
        }
    }
}
