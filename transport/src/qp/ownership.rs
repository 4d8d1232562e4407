//! The owner of a queue pair: its turns, and the memory charged for it.

use roced_types::QpSizes;

use super::{Qp, replay::ReplayMemory, send_queue::SendQueue};
use crate::{congestion::send_rate::SendRate, recv_queue::RecvQueue, turns::fair::FairOwner};

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

    /// The account and client that its turns belong to.
    pub const fn owner(&self) -> FairOwner {
        FairOwner { account: self.account, client: self.client, weight: self.weight }
    }
}
