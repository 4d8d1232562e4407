//! Deferred answers: the peer's answers about a request while READs or atomic operations before it
//! are not completely answered (missing, no receive posted, refused). They are acted upon when the
//! earlier answers have arrived.
//!
//! A refusal may overtake earlier answers, because a responder gives those before it refuses. The
//! responder does not repeat lost ones, so the wait for them is bounded.

use super::{Context, QpBase, completer::Completer, requester::Requester};
use crate::{clock::Nanos, io::App, psn::Psn, wire::aeth::NakCode};

/// Latest answer about a request that is not the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredAnswer {
    pub(super) psn: Psn,
    pub(super) said: PeerAnswer,
    /// Latest time to act on it.
    pub(super) due: Nanos,
}

/// Content of a deferred answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerAnswer {
    /// The request did not arrive; later ones did.
    Missing,
    /// The request found no receive; send it again after the time of this code.
    NotReady(u8),
    /// The request is refused, and the peer executes no more.
    Refused(NakCode),
}

impl Completer {
    /// Defers an answer about the request with `psn`. Packets that will be sent again anyway need
    /// none, because the peer will answer them again: without selective recovery, everything from
    /// the gap on.
    pub(super) fn remember(&mut self, psn: Psn, said: PeerAnswer, base: &QpBase, requester: &Requester) {
        let is_refused = matches!(self.behind, Some(DeferredAnswer { said: PeerAnswer::Refused(_), .. }));
        let is_before_cursor = psn.distance_from(requester.cursor()) < 0;
        if base.recovery.is_selective() && is_before_cursor && !is_refused {
            self.behind = Some(DeferredAnswer { psn, said, due: Nanos::NEVER });
        }
    }

    /// Defers a refusal of the request with `psn`, which may have overtaken earlier answers.
    pub(super) fn remember_refusal(&mut self, psn: Psn, code: NakCode, base: &QpBase, now: Nanos) {
        let is_refused = matches!(self.behind, Some(DeferredAnswer { said: PeerAnswer::Refused(_), .. }));
        if !is_refused {
            let due = now + self.refusal_delay(base);
            self.behind = Some(DeferredAnswer { psn, said: PeerAnswer::Refused(code), due });
        }
    }

    /// Restarts the wait after an answer: others may follow.
    pub(super) fn put_off_refusal(&mut self, base: &QpBase, now: Nanos) {
        let delay = self.refusal_delay(base);
        if let Some(DeferredAnswer { said: PeerAnswer::Refused(_), due, .. }) = &mut self.behind {
            *due = now + delay;
        }
    }

    fn refusal_delay(&self, base: &QpBase) -> Nanos {
        self.selective.patience().max(base.recovery.probe_floor).max(base.recovery.reorder_delay)
    }

    /// Gives up the answers before a refused request.
    pub(super) fn end_refused<A: App>(&mut self, cx: &mut Context<'_, A>) {
        if let Some(DeferredAnswer { psn, said: PeerAnswer::Refused(code), .. }) = self.behind.take() {
            self.flush_before(psn, cx);
            self.on_remote_error(code, cx);
        }
    }

    /// Acts on the deferred answer if it is about the oldest request.
    pub(super) fn act_on_behind<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        let oldest = self.unacknowledged();
        let Some(DeferredAnswer { said, .. }) = self.behind.take_if(|behind| behind.psn == oldest) else { return };
        if !cx.base.state.sends() {
            return;
        }
        match said {
            PeerAnswer::Missing => self.on_sequence_nak(requester, cx),
            PeerAnswer::NotReady(timer) => self.on_rnr(timer, requester, cx),
            PeerAnswer::Refused(code) => self.on_remote_error(code, cx),
        }
    }
}
