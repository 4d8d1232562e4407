//! Shared receive queues: receive work that many queue pairs of one endpoint take from (IBTA v1
//! 10.2.9).
//!
//! ```text
//!   post_srq_recv ──► Srq ──► first packet of a message: one entry moves to that queue pair, and is its own from then on
//!                      └────► fewer entries than the limit: one event, and the limit is no more
//! ```
//!
//! An entry is in one place at any time, so it is never taken twice. A queue pair that fails
//! flushes the entry that it has; those here are for the others. One that is reset or ends in the
//! middle of a message gives its entry back.

use alloc::{boxed::Box, collections::VecDeque};

use roced_types::{Pdn, QpSizes, Sge, Srqn};

use crate::{recv_queue::RecvQueue, reject::Reject, table::Table, work::RecvWork};

/// Configuration of a shared receive queue; constant for its life.
#[derive(Clone, Copy, Debug)]
pub struct SrqConfig {
    /// Its number.
    pub srqn: Srqn,
    /// Owner of the memory regions that its work may name.
    pub pd: Pdn,
    /// Granted sizes; those of receives count.
    pub sizes: QpSizes,
}

/// A shared receive queue. All its memory is made with it.
#[derive(Debug)]
pub struct Srq {
    config: SrqConfig,
    queue: RecvQueue,
    /// With fewer entries than this there is an event; 0 for none.
    limit: u32,
    /// A caller found it full and wants to be told when it is not.
    room_wanted: bool,
    /// It stands in the list of those with room.
    unblocked: bool,
}

impl Srq {
    /// An empty queue without a limit.
    pub fn new(config: SrqConfig) -> Self {
        Self { queue: RecvQueue::new(&config.sizes), config, limit: 0, room_wanted: false, unblocked: false }
    }

    /// Its configuration.
    pub const fn config(&self) -> &SrqConfig {
        &self.config
    }

    /// The limit, 0 when it is not armed.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Memory that a queue of granted sizes allocates, bytes.
    pub const fn memory_bytes(sizes: &QpSizes) -> u64 {
        size_of::<Self>() as u64 + RecvQueue::memory_bytes(sizes)
    }

    /// Entries that are not taken.
    pub const fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Returns true if the queue has no entry.
    pub const fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The shared receive queues of an endpoint.
#[derive(Debug)]
pub(crate) struct Srqs {
    table: Table<Box<Srq>>,
    /// Queues with room where there was none, each once.
    unblocked: VecDeque<Srqn>,
    /// Queues that fell below their limit, each once.
    events: VecDeque<Srqn>,
}

impl Srqs {
    pub(crate) fn new(max: u32) -> Self {
        let table = Table::new(max);
        let max = max as usize;
        Self {
            table,
            unblocked: VecDeque::with_capacity(max),
            // Setting a limit first removes the event of the previous one.
            events: VecDeque::with_capacity(max),
        }
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.table.capacity()
    }

    pub(crate) fn insert(&mut self, srq: Box<Srq>) -> Result<(), (Box<Srq>, Reject)> {
        let srqn = srq.config.srqn;
        let reject = if srqn.index() < self.table.capacity() { Reject::NoRoom } else { Reject::NoSuchSrq(srqn) };
        self.table.insert(srqn.index(), srq).map_err(|srq| (srq, reject))
    }

    pub(crate) fn remove(&mut self, srqn: Srqn) -> Option<Box<Srq>> {
        self.unblocked.retain(|other| *other != srqn);
        self.events.retain(|other| *other != srqn);
        let mut srq = self.table.remove(srqn.index())?;
        (srq.room_wanted, srq.unblocked) = (false, false);
        Some(srq)
    }

    pub(crate) fn get(&self, srqn: Srqn) -> Option<&Srq> {
        self.table.get(srqn.index()).map(|srq| &**srq)
    }

    fn get_mut(&mut self, srqn: Srqn) -> Option<&mut Srq> {
        self.table.get_mut(srqn.index()).map(|srq| &mut **srq)
    }

    pub(crate) fn room(&mut self, srqn: Srqn) -> u32 {
        let Some(srq) = self.get_mut(srqn) else { return 0 };
        let room = srq.queue.room();
        srq.room_wanted |= room == 0;
        room
    }

    /// False when there is no such queue.
    pub(crate) fn post(&mut self, srqn: Srqn, work: &RecvWork<'_>) -> bool {
        self.get_mut(srqn).is_some_and(|srq| {
            srq.queue.push(work);
            true
        })
    }

    /// Arms the limit, or with 0 disarms it. A queue that has fewer entries already tells at once.
    pub(crate) fn set_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), Reject> {
        let srq = self.get_mut(srqn).ok_or(Reject::NoSuchSrq(srqn))?;
        srq.limit = limit;
        // An unreported event belongs to the previous limit.
        self.events.retain(|other| *other != srqn);
        self.check_limit(srqn);
        Ok(())
    }

    /// The buffers of the oldest entry.
    pub(crate) fn front(&self, srqn: Srqn) -> Option<&[Sge]> {
        self.get(srqn)?.queue.front()
    }

    /// Moves the oldest entry to `to`; false when there is none.
    pub(crate) fn take(&mut self, srqn: Srqn, to: &mut RecvQueue) -> bool {
        let Some(srq) = self.get_mut(srqn) else { return false };
        if !srq.queue.move_oldest(to) {
            return false;
        }
        if srq.room_wanted && !srq.unblocked {
            (srq.room_wanted, srq.unblocked) = (false, true);
            self.unblocked.push_back(srqn);
        }
        self.check_limit(srqn);
        true
    }

    /// Takes an entry back that a queue pair has and will not use. When there is no room, for more
    /// was posted than the queue holds, it is lost, as a program must expect that ends queue pairs
    /// with work in them.
    pub(crate) fn put_back(&mut self, srqn: Srqn, from: &mut RecvQueue) {
        if let Some(srq) = self.get_mut(srqn) {
            srq.queue.put_back(from);
        }
    }

    /// IBTA v1 10.2.9: the event comes once; the limit is disarmed by it.
    fn check_limit(&mut self, srqn: Srqn) {
        if let Some(srq) = self.get_mut(srqn)
            && srq.queue.len() < srq.limit
        {
            srq.limit = 0;
            self.events.push_back(srqn);
        }
    }

    #[inline]
    pub(crate) fn has_unblocked(&self) -> bool {
        !self.unblocked.is_empty()
    }

    #[inline]
    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn take_unblocked(&mut self) -> Option<Srqn> {
        let srqn = self.unblocked.pop_front()?;
        self.get_mut(srqn).expect("removal takes it from the list").unblocked = false;
        Some(srqn)
    }

    pub(crate) fn poll_event(&mut self) -> Option<Srqn> {
        self.events.pop_front()
    }
}
