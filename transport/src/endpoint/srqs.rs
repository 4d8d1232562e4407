//! Shared receive queues of an endpoint: creation, posting, room, limits.

use alloc::boxed::Box;

use roced_types::Srqn;

use super::Endpoint;
use crate::{reject::Reject, srq::Srq, work::RecvWork};

impl Endpoint {
    /// Number of shared receive queues that can be added.
    pub const fn max_srqs(&self) -> u32 {
        self.resources.srqs.capacity()
    }

    /// Accepts receive work for a shared queue. The caller has checked [`Self::srq_room`].
    ///
    /// # Errors
    /// [`Reject::NoSuchSrq`].
    pub fn post_srq_recv(&mut self, srqn: Srqn, work: &RecvWork<'_>) -> Result<(), Reject> {
        if srqn.endpoint() == self.id && self.resources.srqs.post(srqn, work) {
            Ok(())
        } else {
            Err(Reject::NoSuchSrq(srqn))
        }
    }

    /// Number of receive work requests that may be posted to a shared queue. After 0,
    /// [`Self::take_unblocked_srq`] returns the queue once there is room.
    pub fn srq_room(&mut self, srqn: Srqn) -> u32 {
        if srqn.endpoint() == self.id { self.resources.srqs.room(srqn) } else { 0 }
    }

    /// Returns a shared queue that had no room when its room was queried and has room now.
    pub fn take_unblocked_srq(&mut self) -> Option<Srqn> {
        self.resources.srqs.take_unblocked()
    }

    /// Returns a shared queue that fell below its limit, once for each [`Self::set_srq_limit`].
    pub fn poll_srq_limit(&mut self) -> Option<Srqn> {
        self.resources.srqs.poll_event()
    }

    /// Adds a shared receive queue.
    ///
    /// # Errors
    /// Returns the queue if its number belongs to another endpoint ([`Reject::NoSuchSrq`]) or is in
    /// use ([`Reject::NoRoom`]).
    pub fn insert_srq(&mut self, srq: Box<Srq>) -> Result<(), (Box<Srq>, Reject)> {
        let srqn = srq.config().srqn;
        if srqn.endpoint() == self.id { self.resources.srqs.insert(srq) } else { Err((srq, Reject::NoSuchSrq(srqn))) }
    }

    /// Removes a shared receive queue. No queue pair may use it: such a queue pair would find no
    /// receive work.
    pub fn remove_srq(&mut self, srqn: Srqn) -> Option<Box<Srq>> {
        if srqn.endpoint() == self.id { self.resources.srqs.remove(srqn) } else { None }
    }

    /// Shared receive queue with this number.
    pub fn srq(&self, srqn: Srqn) -> Option<&Srq> {
        self.resources.srqs.get(srqn).filter(|_| srqn.endpoint() == self.id)
    }

    /// Sets the limit below which the queue raises one event; 0 for none.
    ///
    /// # Errors
    /// [`Reject::NoSuchSrq`].
    pub fn set_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), Reject> {
        if srqn.endpoint() == self.id {
            self.resources.srqs.set_limit(srqn, limit)
        } else {
            Err(Reject::NoSuchSrq(srqn))
        }
    }
}
