//! Shared receive queues of an endpoint: made, posted to, asked for room.

use alloc::boxed::Box;

use roced_types::Srqn;

use super::Endpoint;
use crate::{reject::Reject, srq::Srq, work::RecvWork};

impl Endpoint {
    /// Shared receive queues that there is room for.
    pub const fn max_srqs(&self) -> u32 {
        self.srqs.capacity()
    }

    /// Takes receive work for a shared queue; the caller asked [`Self::srq_room`].
    ///
    /// # Errors
    /// [`Reject::NoSuchSrq`].
    pub fn post_srq_recv(&mut self, srqn: Srqn, work: &RecvWork<'_>) -> Result<(), Reject> {
        if srqn.endpoint() == self.id && self.srqs.post(srqn, work) { Ok(()) } else { Err(Reject::NoSuchSrq(srqn)) }
    }

    /// How much receive work may be posted to a shared queue. After a 0,
    /// [`Self::take_unblocked_srq`] names it when there is room.
    pub fn srq_room(&mut self, srqn: Srqn) -> u32 {
        if srqn.endpoint() == self.id { self.srqs.room(srqn) } else { 0 }
    }

    /// A shared queue that had no room when it was asked and has some now.
    pub fn take_unblocked_srq(&mut self) -> Option<Srqn> {
        self.srqs.take_unblocked()
    }

    /// A shared queue that fell below its limit, once for each [`Self::set_srq_limit`].
    pub fn poll_srq_limit(&mut self) -> Option<Srqn> {
        self.srqs.poll_event()
    }

    /// Adds a shared receive queue.
    ///
    /// # Errors
    /// The queue back: its number is not of this endpoint ([`Reject::NoSuchSrq`]) or taken
    /// ([`Reject::NoRoom`]).
    pub fn insert_srq(&mut self, srq: Box<Srq>) -> Result<(), (Box<Srq>, Reject)> {
        let srqn = srq.config().srqn;
        if srqn.endpoint() == self.id { self.srqs.insert(srq) } else { Err((srq, Reject::NoSuchSrq(srqn))) }
    }

    /// Removes a shared receive queue, which no queue pair has any more: one that has would find no
    /// receive work.
    pub fn remove_srq(&mut self, srqn: Srqn) -> Option<Box<Srq>> {
        if srqn.endpoint() == self.id { self.srqs.remove(srqn) } else { None }
    }

    /// A shared receive queue.
    pub fn srq(&self, srqn: Srqn) -> Option<&Srq> {
        self.srqs.get(srqn).filter(|_| srqn.endpoint() == self.id)
    }

    /// With fewer than `limit` entries there is one event from now on; 0 for none.
    ///
    /// # Errors
    /// [`Reject::NoSuchSrq`].
    pub fn set_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), Reject> {
        if srqn.endpoint() == self.id { self.srqs.set_limit(srqn, limit) } else { Err(Reject::NoSuchSrq(srqn)) }
    }
}
