//! What the peer says of a request while READs or atomic operations before it are not all answered:
//! that it is missing, that no receive is there for it, that it is refused. It is acted upon when
//! their answers are here.
//!
//! Answers that a refusal has overtaken are still to come, for a responder gives them before it
//! refuses. Where they are lost nobody gives them again, so the wait for them is bounded.

use super::{Context, QpBase, completer::Completer, requester::Requester, send_queue::SendQueue};
use crate::{clock::Nanos, io::App, psn::Psn, wire::aeth::NakCode};

/// The last word about a request that is not the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredAnswer {
    pub(super) psn: Psn,
    pub(super) said: PeerAnswer,
    /// When it is acted upon at the latest.
    pub(super) due: Nanos,
}

/// What was said of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerAnswer {
    /// It did not arrive, and others behind it did.
    Missing,
    /// It found no receive; to be sent again after the time of this code.
    NotReady(u8),
    /// It is refused, and the peer does no more.
    Refused(NakCode),
}

impl Completer {
    /// The peer said that of the request with `psn`. What is sent again anyway, as all from the gap
    /// on is without selective recovery, it will be said of again.
    pub(super) fn remember(&mut self, psn: Psn, said: PeerAnswer, base: &QpBase, requester: &Requester) {
        let is_refused = matches!(self.behind, Some(DeferredAnswer { said: PeerAnswer::Refused(_), .. }));
        let is_before_cursor = psn.distance_from(requester.cursor()) < 0;
        if base.recovery.is_selective() && is_before_cursor && !is_refused {
            self.behind = Some(DeferredAnswer { psn, said, due: Nanos::NEVER });
        }
    }

    /// The peer refused the request with `psn`, behind answers that may have been overtaken.
    pub(super) fn remember_refusal(&mut self, psn: Psn, code: NakCode, base: &QpBase, now: Nanos) {
        let is_refused = matches!(self.behind, Some(DeferredAnswer { said: PeerAnswer::Refused(_), .. }));
        if !is_refused {
            let due = now + self.refusal_delay(base);
            self.behind = Some(DeferredAnswer { psn, said: PeerAnswer::Refused(code), due });
        }
    }

    /// An answer came: others may follow.
    pub(super) fn put_off_refusal(&mut self, base: &QpBase, now: Nanos) {
        let delay = self.refusal_delay(base);
        if let Some(DeferredAnswer { said: PeerAnswer::Refused(_), due, .. }) = &mut self.behind {
            *due = now + delay;
        }
    }

    fn refusal_delay(&self, base: &QpBase) -> Nanos {
        self.selective.patience().max(base.recovery.probe_floor).max(base.recovery.reorder_delay)
    }

    /// The answers before a refused request do not come any more.
    pub(super) fn end_refused<A: App>(&mut self, base: &mut QpBase, queue: &mut SendQueue, cx: &mut Context<'_, A>) {
        if let Some(DeferredAnswer { psn, said: PeerAnswer::Refused(code), .. }) = self.behind.take() {
            self.flush_before(psn, base, queue, cx);
            self.on_remote_error(code, base, queue, cx);
        }
    }

    /// The oldest request may be the one that something was said of.
    pub(super) fn act_on_behind<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        let oldest = self.unacknowledged();
        let Some(DeferredAnswer { said, .. }) = self.behind.take_if(|behind| behind.psn == oldest) else { return };
        if !base.state.sends() {
            return;
        }
        match said {
            PeerAnswer::Missing => self.on_sequence_nak(base, queue, requester, cx),
            PeerAnswer::NotReady(timer) => self.on_rnr(timer, base, queue, requester, cx),
            PeerAnswer::Refused(code) => self.on_remote_error(code, base, queue, cx),
        }
    }
}
