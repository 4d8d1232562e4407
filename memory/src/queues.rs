//! Daemon's half of the memory shared with clients: rings, CQ rings, doorbells, sleep flags.
//!
//! The control thread makes these from fresh memfds and gives them to workers whole; each keeps its
//! mapping alive.
//!
//! ```text
//!   new_qp       QpRings   -> the worker that owns the queue pair      memfd -> client
//!   new_srq      SrqRing   -> the worker that owns the queue        memfd -> client
//!   new_cq       CqLane    -> each worker of the device                memfd -> client
//!   new_session  WorkerSession -> each worker of the device            memfd, wake eventfds -> client
//!   SleepBoard   WorkerState   -> each worker of the daemon            memfd (read-only) -> every client
//! ```
#![expect(unsafe_code, reason = "lays rings and words over mappings")]

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};
use roced_abi::{
    arm,
    cqe::Cqe,
    doorbell::{DOORBELL_BLOCK_BYTES, MappedDoorbells, WORKER_STATE_BYTES, WorkerState},
    layout::{CqLayout, QpLayout, SrqLayout, doorbell_block_offset, session_bytes, state_bytes, worker_state_offset},
    ring::{Consumer, MappedRing, Producer, RingShape},
};
use roced_transport::io::CqOverrun;
use roced_types::{AccountId, Cqn, QpSizes, Qpn, SessionId, Srqn, Status, completion_flags};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    access_log::touch,
    arm_word::ArmWord,
    channel::{CqChannel, CqEvents},
    mapping::{Mapping, Writers},
    quota::Room,
    shared_fd::SharedFd,
};

/// The rings of a queue pair, for the worker that owns it.
#[derive(Debug)]
pub struct QpRings {
    /// Its number.
    pub qpn: Qpn,
    /// The session.
    pub session: SessionId,
    /// The doorbell that its client rings, in the worker's block of that session.
    pub doorbell: u32,
    /// Limits of its work requests.
    pub sizes: QpSizes,
    /// Send work requests.
    pub send: Consumer<MappedRing<Arc<Mapping>>>,
    /// Receive work requests; none comes with a shared receive queue.
    pub recv: Consumer<MappedRing<Arc<Mapping>>>,
    /// It takes from a shared receive queue.
    pub shared: bool,
}

/// The ring of a shared receive queue, for the worker that owns it.
#[derive(Debug)]
pub struct SrqRing {
    /// Its number.
    pub srqn: Srqn,
    /// The session.
    pub session: SessionId,
    /// The doorbell that its client rings, in the worker's block of that session.
    pub doorbell: u32,
    /// Limits of its work requests.
    pub sizes: QpSizes,
    /// Receive work requests.
    pub recv: Consumer<MappedRing<Arc<Mapping>>>,
}

/// Creates the ring of a shared receive queue; `sizes` is the result of [`QpSizes::granted`]. The
/// fd is for the client.
///
/// # Errors
/// The kernel's.
pub fn new_srq(
    srqn: Srqn,
    session: SessionId,
    doorbell: u32,
    sizes: QpSizes,
    room: Room,
) -> Result<(SrqRing, OwnedFd), Errno> {
    let layout = SrqLayout::new(sizes);
    let (mapping, fd) = Mapping::create(c"roced-srq", layout.bytes, Writers::BothUntilSealed, room)?;
    let recv = Consumer::new(ring_at(&Arc::new(mapping), 0, layout.recv));
    Ok((SrqRing { srqn, session, doorbell, sizes, recv }, fd))
}

/// Creates the rings of a queue pair; `sizes` is the result of [`QpSizes::granted`]. The fd is for
/// the client.
///
/// # Errors
/// The kernel's.
pub fn new_qp(
    qpn: Qpn,
    session: SessionId,
    doorbell: u32,
    sizes: QpSizes,
    room: Room,
) -> Result<(QpRings, OwnedFd), Errno> {
    let layout = QpLayout::new(sizes);
    let (mapping, fd) = Mapping::create(c"roced-qp", layout.bytes, Writers::BothUntilSealed, room)?;
    let mapping = Arc::new(mapping);
    let send = Consumer::new(ring_at(&mapping, 0, layout.send));
    let recv = Consumer::new(ring_at(&mapping, layout.recv_offset, layout.recv));
    Ok((QpRings { qpn, session, doorbell, sizes, send, recv, shared: false }, fd))
}

/// One worker's CQ ring of a completion queue.
#[derive(Debug)]
pub struct CqRing {
    owner: SessionId,
    ring: CqRingPlace,
    events: Arc<CqEvents>,
    channel: Option<Arc<CqChannel>>,
    unpublished: bool,
    solicited: bool,
}

/// Where the completions of one CQ ring lie.
pub type CqRingPlace = Producer<MappedRing<Arc<Mapping>>>;

/// Creates new CQ rings for a completion queue, and the memfd for the client.
///
/// # Errors
/// The kernel's.
pub fn new_ring_places(layout: CqLayout, room: Room) -> Result<(Vec<CqRingPlace>, OwnedFd), Errno> {
    let (mapping, fd) = Mapping::create(c"roced-cq", layout.bytes, Writers::BothUntilSealed, room)?;
    let mapping = Arc::new(mapping);
    Ok((ring_places(&mapping, layout).collect(), fd))
}

fn ring_places(mapping: &Arc<Mapping>, layout: CqLayout) -> impl Iterator<Item = CqRingPlace> {
    (0..layout.cq_rings).map(move |index| Producer::new(ring_at(mapping, layout.cq_ring_offset(index), layout.cq_ring)))
}

/// Makes a completion queue of that session: one CQ ring for each worker, in their order, and the
/// memfd for the client.
///
/// # Errors
/// The kernel's.
pub fn new_cq(
    cqn: Cqn,
    owner: SessionId,
    layout: CqLayout,
    channel: Option<&Arc<CqChannel>>,
    room: Room,
) -> Result<(Vec<CqRing>, OwnedFd), Errno> {
    let (mapping, fd) = Mapping::create(c"roced-cq", layout.bytes, Writers::BothUntilSealed, room)?;
    let mapping = Arc::new(mapping);
    let events = Arc::new(CqEvents::new(cqn, ArmWord::new(&mapping)));
    if let Some(channel) = channel {
        channel.add_queue(&events);
    }
    let cq_ring = |ring| CqRing {
        owner,
        ring,
        events: Arc::clone(&events),
        channel: channel.cloned(),
        unpublished: false,
        solicited: false,
    };
    Ok((ring_places(&mapping, layout).map(cq_ring).collect(), fd))
}

impl CqRing {
    /// The completion queue.
    pub fn cqn(&self) -> Cqn {
        self.events.cqn
    }

    #[cfg(test)]
    pub(crate) fn events(&self) -> Arc<CqEvents> {
        Arc::clone(&self.events)
    }

    /// Adds a completion; the client sees it after [`Self::publish`].
    ///
    /// # Errors
    /// [`CqOverrun`] when the client left no room, or broke the CQ ring's index.
    pub fn push(&mut self, completion: &Cqe) -> Result<(), CqOverrun> {
        let words = <[u64; size_of::<Cqe>() / 8]>::read_from_bytes(completion.as_bytes())
            .expect("a completion is a whole number of words");
        touch(self.owner, self.owner);
        if !self.ring.push(&words).unwrap_or(false) {
            return Err(CqOverrun);
        }
        self.unpublished = true;
        self.solicited |=
            completion.flags & completion_flags::SOLICITED != 0 || completion.status != Status::Success as u8;
        Ok(())
    }

    /// Completions go to `ring` from now on; returns the old ring, with all of its entries visible
    /// to the client. The request for an event stays.
    pub fn change_ring(&mut self, ring: CqRingPlace) -> CqRingPlace {
        self.publish();
        std::mem::replace(&mut self.ring, ring)
    }

    /// Lets the client see all that was pushed, and sends the event that it asked for, if it did.
    /// Cheap when nothing was pushed.
    pub fn publish(&mut self) {
        if !self.unpublished {
            return;
        }
        touch(self.owner, self.owner);
        self.ring.publish();
        let fired = arm::fire(self.events.arm.word(), self.solicited);
        self.unpublished = false;
        self.solicited = false;
        if let (Some(wanted), Some(channel)) = (fired, &self.channel) {
            channel.notify(&self.events, wanted);
        }
    }
}

/// One session's doorbells on one worker, and the eventfd by which its client wakes that worker.
#[derive(Debug)]
pub struct WorkerSession {
    /// The session.
    pub session: SessionId,
    /// The account of its client, to be set by the maker of the session.
    pub account: AccountId,
    /// Turns of the account for each turn of one with weight 1; to be set likewise.
    pub weight: u8,
    /// The doorbell block.
    pub doorbells: MappedDoorbells<Arc<Mapping>>,
    /// Written by the client when the worker sleeps. To be watched edge-triggered and never read
    /// nor written.
    pub wake: SharedFd,
}

/// Makes a session's doorbell block, one for each of `workers` workers. The fds for the client: the
/// session memfd, and each worker's wake eventfd in order.
///
/// # Errors
/// The kernel's.
pub fn new_session(
    session: SessionId,
    workers: u32,
    room: Room,
) -> Result<(Vec<WorkerSession>, OwnedFd, Vec<OwnedFd>), Errno> {
    let account = room.account();
    let (mapping, fd) = Mapping::create(c"roced-session", session_bytes(workers), Writers::BothUntilSealed, room)?;
    let mapping = Arc::new(mapping);
    let mut halves = Vec::new();
    let mut wakes = Vec::new();
    for index in 0..workers {
        let base = mapping.at(doorbell_block_offset(index), DOORBELL_BLOCK_BYTES);
        // SAFETY: `at` checked that the block lies inside the mapping, which the Arc keeps; doorbell
        // blocks are a multiple of 64 bytes from the mapping's start, and this is the only thing
        // that is ever laid over them.
        let doorbells = unsafe { MappedDoorbells::new(base, Arc::clone(&mapping)) };
        let wake: OwnedFd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into();
        wakes.push(wake.try_clone().map_err(|error| error.raw_os_error().map_or(Errno::EMFILE, Errno::from_raw))?);
        let wake = SharedFd::new(wake, account.clone());
        halves.push(WorkerSession { session, account: AccountId::default(), weight: 1, doorbells, wake });
    }
    Ok((halves, fd, wakes))
}

/// Sleep flags of the workers: the state memfd, that every client maps for reading.
#[derive(Debug)]
pub struct SleepBoard {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
    workers: u32,
}

impl SleepBoard {
    /// The board of a daemon with `workers` workers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(workers: u32) -> Result<Self, Errno> {
        let (mapping, fd) =
            Mapping::create(c"roced-state", state_bytes(workers), Writers::DaemonOnly, Room::default())?;
        Ok(Self { mapping: Arc::new(mapping), fd, workers })
    }

    /// Workers of the daemon.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The memfd for clients.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The place where worker `index` says that it sleeps.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn worker(&self, index: u32) -> WorkerState<Arc<Mapping>> {
        assert!(index < self.workers, "a worker of the daemon");
        let base = self.mapping.at(worker_state_offset(index), WORKER_STATE_BYTES);
        // SAFETY: `at` checked that the state lies inside the mapping, which the Arc keeps; states
        // are a multiple of 64 bytes from the mapping's start, and only atomics are ever laid over
        // them.
        unsafe { WorkerState::new(base, Arc::clone(&self.mapping)) }
    }
}

fn ring_at(mapping: &Arc<Mapping>, offset: usize, shape: RingShape) -> MappedRing<Arc<Mapping>> {
    let base = mapping.at(offset, shape.bytes());
    // SAFETY: `at` checked that the ring lies inside the mapping, which the Arc keeps; the layouts
    // place rings on cache lines, and all access to them is by this ring's atomics (CQ rings and
    // rings do not overlap, a test of the layout says).
    unsafe { MappedRing::new(base, shape, Arc::clone(mapping)) }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::AsRawFd as _,
        sync::atomic::{AtomicU32, Ordering},
    };

    use nix::sys::socket::{MsgFlags, recv};
    use roced_abi::{arm::CompletionRequest, control::ChannelEvent, layout::armed};

    use super::*;

    const CQN: Cqn = Cqn(9);

    fn received(theirs: &OwnedFd) -> Option<u32> {
        let mut bytes = [0; 64];
        match recv(theirs.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(4) => Some(ChannelEvent::read_from_prefix(&bytes).expect("4 bytes").0.cqn),
            Err(Errno::EAGAIN) => None,
            other => panic!("an event or none: {other:?}"),
        }
    }

    fn cq_rings(count: u32) -> (Vec<CqRing>, OwnedFd) {
        let (ours, theirs) = CqChannel::create(None).expect("a socket pair");
        let layout = CqLayout::new(4, count).expect("small");
        let (cq_rings, _memfd) = new_cq(CQN, SessionId(1), layout, Some(&ours), Room::default()).expect("a memfd");
        (cq_rings, theirs)
    }

    fn complete(cq_ring: &mut CqRing, flags: u8) -> Result<(), CqOverrun> {
        cq_ring.push(&Cqe { flags, ..Cqe::default() })
    }

    #[test]
    fn one_request_makes_one_event_whichever_cq_ring_fires() {
        let (mut cq_rings, theirs) = cq_rings(2);
        complete(&mut cq_rings[0], 0).expect("room");
        cq_rings[0].publish();
        assert_eq!(received(&theirs), None, "no call asked");

        arm::arm(cq_rings[0].events.arm.word(), CompletionRequest::Any);
        cq_rings[0].publish();
        assert_eq!(received(&theirs), None, "nothing new was pushed");
        for cq_ring in &mut cq_rings {
            complete(cq_ring, 0).expect("room");
            cq_ring.publish();
        }
        assert_eq!((received(&theirs), received(&theirs)), (Some(CQN.0), None));
    }

    #[test]
    fn a_solicited_request_waits_for_a_solicited_completion_or_an_error() {
        let (mut cq_rings, theirs) = cq_rings(1);
        let cq_ring = &mut cq_rings[0];
        arm::arm(cq_ring.events.arm.word(), CompletionRequest::Solicited);
        complete(cq_ring, 0).expect("room");
        cq_ring.publish();
        assert_eq!(received(&theirs), None);
        complete(cq_ring, completion_flags::SOLICITED).expect("room");
        cq_ring.publish();
        assert_eq!(received(&theirs), Some(CQN.0));

        arm::arm(cq_ring.events.arm.word(), CompletionRequest::Solicited);
        cq_ring.push(&Cqe { status: Status::RemoteAccess as u8, ..Cqe::default() }).expect("room");
        cq_ring.publish();
        assert_eq!(received(&theirs), Some(CQN.0));
    }

    #[test]
    fn a_full_cq_ring_and_a_broken_index_are_overruns() {
        let (mut cq_rings, _theirs) = cq_rings(1);
        for _ in 0..4 {
            complete(&mut cq_rings[0], 0).expect("four fit");
        }
        assert_eq!(complete(&mut cq_rings[0], 0), Err(CqOverrun));

        let (mut cq_rings, _theirs) = self::cq_rings(1);
        let consumed = cq_rings[0].events.arm._keep.at(CqLayout::new(4, 1).expect("small").cq_ring_offset(0) + 64, 4);
        // SAFETY: the consumer index of the ring, mapped and aligned, an atomic for all code.
        unsafe { consumed.cast::<AtomicU32>().as_ref() }.store(77, Ordering::Relaxed);
        let overrun = (0..5).map(|_| complete(&mut cq_rings[0], 0)).find(Result::is_err);
        assert_eq!(overrun, Some(Err(CqOverrun)));
    }

    #[test]
    fn a_client_that_reads_no_events_delays_no_one_and_stays_armed() {
        let (ours, theirs) = CqChannel::create(None).expect("a socket pair");
        while ours.send(CQN) {}
        let layout = CqLayout::new(4, 1).expect("small");
        let (mut cq_rings, _memfd) = new_cq(CQN, SessionId(1), layout, Some(&ours), Room::default()).expect("a memfd");
        arm::arm(cq_rings[0].events.arm.word(), CompletionRequest::Any);
        complete(&mut cq_rings[0], 0).expect("room");
        cq_rings[0].publish();
        assert_eq!(cq_rings[0].events.arm.word().load(Ordering::Relaxed), armed::ANY);
        while received(&theirs).is_some() {}
        complete(&mut cq_rings[0], 0).expect("room");
        cq_rings[0].publish();
        assert_eq!(received(&theirs), Some(CQN.0));
    }

    #[test]
    fn each_worker_has_its_own_doorbells_and_wake() {
        use roced_abi::doorbell::{NamedWords, any_doorbell, drain_doorbells, ring_doorbell};
        let (halves, _memfd, wakes) = new_session(SessionId(1), 3, Room::default()).expect("small");
        assert_eq!((halves.len(), wakes.len()), (3, 3));
        ring_doorbell(&halves[1].doorbells, 4095);
        let mut named = NamedWords::default();
        assert!(!any_doorbell(&halves[0].doorbells, named) && !any_doorbell(&halves[2].doorbells, named));
        let mut rung = Vec::new();
        drain_doorbells(&halves[1].doorbells, &mut named, 64, |doorbell| rung.push(doorbell));
        assert_eq!(rung, [4095]);
    }

    #[test]
    fn workers_sleep_each_for_itself() {
        let board = SleepBoard::create(3).expect("a page");
        board.worker(1).asleep().store(1, Ordering::Relaxed);
        let asleep = |index| board.worker(index).asleep().load(Ordering::Relaxed);
        assert_eq!((asleep(0), asleep(1), asleep(2)), (0, 1, 0));
    }
}
