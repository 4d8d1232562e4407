//! The owner of a queue pair: its turns, and the memory charged for it.

use alloc::sync::Arc;

use roced_types::QpSizes;

use super::{Qp, replay::ReplayMemory, send_queue::SendQueue};
use crate::{
    clock::Nanos,
    congestion::send_rate::SendRate,
    recv_queue::RecvQueue,
    turns::{account_turns::AccountTurns, fair::FairOwner, shared_rate::SharedRate},
};

impl Qp {
    /// Memory that a queue pair of granted sizes allocates at most, bytes: itself, its rate, its
    /// queues, and the requests that it may keep for replay.
    pub const fn memory_bytes(sizes: &QpSizes) -> u64 {
        size_of::<Self>() as u64
            + size_of::<SendRate>() as u64
            + SendQueue::memory_bytes(sizes)
            + RecvQueue::memory_bytes(sizes)
            + ReplayMemory::BYTES_MAX
    }

    /// Gives it to an owner. Queue pairs without one have their turns as those of one client.
    #[must_use]
    pub const fn with_owner(mut self, owner: FairOwner) -> Self {
        (self.account, self.client, self.weight) = (owner.account, owner.client, owner.weight);
        self
    }

    /// Has it share the highest rate of its account with others: of frames to a NIC.
    /// Acknowledgments do not wait, and count within a turn alone.
    #[must_use]
    pub fn with_account_rate(mut self, rate: Arc<SharedRate>) -> Self {
        self.base.account_turns = Some(AccountTurns::new(rate));
        self
    }

    /// Frames that it may send at `now` by the rate of its account, at most `most`.
    #[inline]
    pub(crate) fn frames_of_account(&self, now: Nanos, most: usize) -> usize {
        match &self.base.account_turns {
            Some(turns) if self.base.is_waived => turns.frames_of_rest(now, most),
            Some(turns) => turns.frames(most),
            None => most,
        }
    }

    /// A visit begins.
    #[inline]
    pub(crate) fn begin_visit(&mut self) {
        if let Some(turns) = &mut self.base.account_turns {
            turns.begin_visit();
        }
    }

    /// A visit at `now` is over, with these bytes of frames to a NIC. One that found nothing to
    /// send ends the turn at the rate of its account, but for a wait for a place among the packets
    /// in flight.
    #[inline]
    pub(crate) fn on_visited(&mut self, now: Nanos, nic_bytes: usize, has_more: bool) {
        let has_more = has_more || self.base.wants_grant;
        if let Some(turns) = &mut self.base.account_turns {
            turns.on_sent(now, nic_bytes, self.base.is_waived, has_more);
        }
    }

    /// Its account has sent so much without a turn that its rest does not leave at once.
    pub(crate) fn is_overdrawn(&self, now: Nanos) -> bool {
        self.base.account_turns.as_ref().is_some_and(|turns| turns.is_overdrawn(now)) && !self.base.is_local()
    }

    /// From now on it sends without regard to the rate of its account, or no longer.
    pub(crate) const fn waive_account_rate(&mut self, is_waived: bool) {
        self.base.is_waived = is_waived;
    }

    /// The account and client that its turns belong to.
    pub const fn owner(&self) -> FairOwner {
        FairOwner { account: self.account, client: self.client, weight: self.weight }
    }
}
