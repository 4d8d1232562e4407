//! A host's shared receive queue: many queue pairs take from it, each entry goes to one message, in
//! the order in which they were posted. An entry is seen to be taken when its first byte is
//! written, or when it completes without any.

use std::collections::VecDeque;

use roced_transport::{
    endpoint::Endpoint,
    srq::{Srq, SrqConfig},
    work::RecvWork,
};
use roced_types::{EndpointId, QpSizes, Sge, Srqn};

use crate::{
    connection::End,
    layout::{PD, RECV_BYTES, SHARED_BUFFERS, SINK_KEY, SINK_VA},
    pattern::split,
    random::Random,
    stream::Receive,
    violation::{Checked, Violation, demand},
};

/// The wr_id of the first receive: neither a send nor a receive of a queue pair's own has it.
const SHARED_ID: u64 = 1 << 41;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Receives that no queue pair has taken, oldest first.
    list: VecDeque<Receive>,
    posted: u64,
    /// Buffers that wait for nothing.
    free: Vec<u32>,
    /// Receives that its application keeps posted, how late it puts new ones there, and when it
    /// does.
    depth: usize,
    late: u64,
    pub(crate) post_at: u64,
    sges: u32,
    /// Only datagrams take from it: some receives are short.
    pub(crate) for_datagrams: bool,
    /// There is to be an event with fewer receives than this; 0 when it is not armed.
    limit: u32,
    /// It fell below its limit, and no event said so.
    due: bool,
}

impl Shared {
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self {
            list: VecDeque::new(),
            posted: 0,
            free: (0..SHARED_BUFFERS).collect(),
            depth: random.pick(&[2, 8, 24]),
            late: random.pick(&[0, 0, 50_000, 500_000]),
            post_at: 0,
            sges: random.pick(&[1, 2, 4]),
            for_datagrams: random.one_in(4),
            limit: 0,
            due: false,
        }
    }

    /// The host went away with it, and made another.
    pub(crate) fn begin_anew(&mut self) {
        self.list.clear();
        self.free = (0..SHARED_BUFFERS).collect();
        (self.post_at, self.limit, self.due) = (0, 0, false);
    }

    /// Its creation attributes at that host.
    pub(crate) fn config(&self, host: usize) -> SrqConfig {
        let endpoint = EndpointId::new(host + 1).expect("a small number");
        let sizes = QpSizes { send_wrs: 1, recv_wrs: 32, send_sges: 1, recv_sges: self.sges, inline_bytes: 0 };
        SrqConfig { srqn: Srqn::new(endpoint, 0), pd: PD, sizes }
    }

    pub(crate) fn make(&self, host: usize) -> Box<Srq> {
        Box::new(Srq::new(self.config(host)))
    }

    /// Its application sees to it, at that host. Its buffers are in the sink from `base` on.
    pub(crate) fn post(&mut self, random: &mut Random, endpoint: &mut Endpoint, (host, base): (usize, u32), now: u64) {
        let lacking = self.depth.saturating_sub(self.list.len()).min(self.free.len());
        if lacking == 0 {
            return;
        }
        if self.late > 0 {
            if self.post_at == 0 {
                self.post_at = now + 1 + random.below(self.late);
            }
            if self.post_at > now {
                return;
            }
            self.post_at = 0;
        }
        let srqn = self.config(host).srqn;
        for _ in 0..lacking {
            let buffer = self.free.remove(random.below(self.free.len() as u64) as usize);
            let short = self.for_datagrams && random.one_in(8);
            let bytes = if short { random.below(100) as u32 } else { RECV_BYTES };
            let into = split(random, base + buffer * RECV_BYTES, bytes, self.sges);
            let mut sges = [Sge::default(); 32];
            for (sge, (offset, bytes)) in sges.iter_mut().zip(into.iter()) {
                *sge = Sge { va: SINK_VA + u64::from(offset), length: bytes, lkey: SINK_KEY };
            }
            let wr_id = SHARED_ID + self.posted;
            let work = RecvWork { wr_id, sges: &sges[..into.len()] };
            self.posted += 1;
            self.list.push_back(Receive { wr_id, into, buffer });
            assert!(endpoint.srq_room(srqn) > 0, "fewer buffers than room");
            endpoint.post_srq_recv(srqn, &work).expect("it is there");
        }
        if self.limit == 0 && !self.due && random.one_in(3) {
            // More than there are is told at once.
            self.limit = random.within(1, self.depth as u64 + 1) as u32;
            endpoint.set_srq_limit(srqn, self.limit).expect("it is there");
            self.check_limit();
        }
    }

    fn check_limit(&mut self) {
        if (self.list.len() as u32) < self.limit {
            (self.limit, self.due) = (0, true);
        }
    }

    /// The endpoint says that it fell below its limit.
    pub(crate) fn check_event(&mut self) -> Checked {
        demand!(self.due, "limit", "an event, and {} receives are left; the limit is {}", self.list.len(), self.limit);
        self.due = false;
        Ok(())
    }

    /// All events were taken.
    pub(crate) fn check_told(&self) -> Checked {
        demand!(
            !self.due,
            "limit",
            "{} receives are left, fewer than the limit, and no event says so",
            self.list.len()
        );
        Ok(())
    }
}

impl End {
    /// The receive that a message gets which begins now, or that the one under way has.
    pub(crate) fn next_receive<'e>(&'e self, shared: Option<&'e Shared>) -> Option<&'e Receive> {
        match shared.filter(|_| self.is_shared) {
            Some(shared) => self.taken.as_ref().or(shared.list.front()),
            None => self.receives.list.front(),
        }
    }

    /// It is seen to use that receive: with a shared queue it is its own from now on.
    pub(crate) fn claim(&mut self, shared: Option<&mut Shared>) {
        if self.is_shared
            && self.taken.is_none()
            && let Some(shared) = shared
        {
            self.taken = shared.list.pop_front();
            shared.check_limit();
        }
    }

    /// That receive completes.
    pub(crate) fn finish_receive(&mut self, mut shared: Option<&mut Shared>, wr_id: u64) -> Result<(), Violation> {
        if !self.is_shared {
            let receive = self.receives.take();
            let next = receive.as_ref().map(|receive| receive.wr_id);
            demand!(receive.is_some(), "completion-once", "receive {wr_id} completes and none is posted");
            demand!(next == Some(wr_id), "completion-order", "receive {wr_id} completes where {next:?} is next");
            return Ok(());
        }
        self.claim(shared.as_deref_mut());
        let receive = self.taken.take();
        let next = receive.as_ref().map(|receive| receive.wr_id);
        demand!(next == Some(wr_id), "shared-receive", "receive {wr_id} completes where {next:?} is the one it has");
        if let (Some(shared), Some(receive)) = (shared, receive) {
            shared.free.push(receive.buffer);
        }
        self.receives.completed += 1;
        Ok(())
    }
}

impl End {
    /// It is told that it takes no more from the shared queue.
    pub(crate) fn check_last_wqe(&mut self) -> Checked {
        let ends = self.may_fail && self.is_shared && !self.last_wqe && self.taken.is_none();
        demand!(ends, "last-wqe", "queue pair {:#x} takes no more: {:?} is with it", self.qpn, self.taken);
        self.last_wqe = true;
        Ok(())
    }

    /// No receive waits any more, of one that has failed.
    pub(crate) fn is_flushed(&self) -> bool {
        if self.is_shared { self.last_wqe } else { self.receives.list.is_empty() }
    }
}
