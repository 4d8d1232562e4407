//! Completion queues.
//!
//! Each worker of the device fills a CQ ring of its own; a poll takes from all of the rings in
//! turn. Completions of one queue pair arrive in order; there is no order between queue pairs.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use roced_abi::{
    arm::{CompletionRequest, arm},
    control::{CreateCq, CreateCqRequest, DestroyCq, Handle, ResizeCq, ResizeCqRequest},
    cqe::Cqe,
    layout::CqLayout,
    ring::RingCorrupt,
};
use roced_types::{CompletionOp, Status, completion_flags, event::EventSubject};

use crate::{
    channel::{ChannelInner, CompletionChannel},
    completion::Completion,
    device::{Device, DeviceInner},
    error::{Error, Result},
    exclusive::Exclusive,
    mapping::{ClientMapping, Mode, cq_rings},
    outstanding::{Cookie, Outstanding, Queue},
    shared_work::SharedWork,
    socket::lock,
    worker_completions::{CqeWords, WorkerCompletions, cqe},
    yield_limiter::YieldLimiter,
};

/// Entries taken from one per-worker CQ ring before the next ring is served.
const CQ_RING_TURN: usize = 16;

/// Empty polls between reads of the clock.
const POLLS_PER_LOOK: u32 = 32;

/// Interval at which empty polls check that the daemon is alive: a system call of some 300 ns.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Options for creating a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqOptions<'a> {
    /// Minimum number of completions of each worker that the queue holds. A completion that finds
    /// no room fails its queue pair: count every work request that can be outstanding at a time.
    pub entries: u32,
    /// Channel that the queue reports to. `None` creates a private channel, for
    /// [`CompletionQueue::wait`].
    pub channel: Option<&'a CompletionChannel>,
    /// Creates the queue without a channel, for polling only; this saves a socket. `channel` must
    /// be `None`.
    pub silent: bool,
    /// Time that [`CompletionQueue::wait`] polls (and yields the core) before it sleeps. Sleeping
    /// and waking costs 2 to 20 us. It sleeps at once while other threads compute on the core.
    pub spin: Duration,
}

impl Default for CqOptions<'_> {
    fn default() -> Self {
        // The default of `spin` is a guess: about twice the cost of a wake-up on a virtual machine.
        Self { entries: 256, channel: None, silent: false, spin: Duration::from_micros(50) }
    }
}

/// Completions that [`CompletionQueue::arm`] requests a notification for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Any,
    /// The next completion that is solicited or has an error.
    Solicited,
}

/// A completion queue. Clones name the same queue, which is destroyed when the last clone and every
/// queue pair that uses it are gone.
///
/// ```no_run
/// # use std::time::Duration;
/// # use roced_client::{Completion, Device};
/// # fn main() -> roced_client::Result<()> {
/// let device = Device::open("roce0")?;
/// let cq = device.completion_queue(256)?;
/// let mut done = [Completion::EMPTY; 16];
/// // Busy polling: returns at once.
/// let reaped = cq.poll(&mut done)?;
/// for completion in &done[..reaped] {
///     println!("{}: {:?}", completion.wr_id, completion.status);
/// }
/// // Sleeping, with a timeout.
/// println!("{} completions", cq.wait(&mut done, Duration::from_secs(1))?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CqInner>,
}

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) device: Arc<DeviceInner>,
    /// `None` for a queue that is only polled.
    channel: Option<Arc<ChannelInner>>,
    /// True if the channel belongs to this queue alone.
    own_channel: bool,
    pub(crate) cqn: u32,
    entries: AtomicU32,
    spin: Duration,
    /// Initial mapping of the queue, which contains the arm word.
    mapping: Arc<ClientMapping>,
    state: Exclusive<Reaping>,
    empty_polls: AtomicU32,
    yields: YieldLimiter,
    looked: Mutex<Instant>,
    /// True while a thread sleeps on the channel; other threads wait for that thread.
    sleeper: Mutex<bool>,
    sleeper_left: Condvar,
}

/// State of a poll.
#[derive(Debug)]
pub(crate) struct Reaping {
    cq_rings: Vec<WorkerCompletions>,
    first: usize,
    /// Sorted by queue pair number.
    work: Vec<(u32, Arc<QpWork>)>,
}

/// Outstanding work of a queue pair.
#[derive(Debug)]
pub(crate) struct QpWork {
    pub(crate) tag: u32,
    pub(crate) send: Outstanding,
    pub(crate) recv: Outstanding,
    /// Used instead of `recv` with a shared receive queue.
    pub(crate) shared: Option<Arc<SharedWork>>,
    pub(crate) send_cq: Weak<CqInner>,
    pub(crate) recv_cq: Weak<CqInner>,
}

impl Device {
    /// Creates a completion queue with room for at least `entries` completions of each worker of
    /// the device.
    ///
    /// # Errors
    /// The session's limit; no memory; the daemon is gone.
    pub fn completion_queue(&self, entries: u32) -> Result<CompletionQueue> {
        CompletionQueue::create(self, &CqOptions { entries, ..CqOptions::default() }, Exclusive::locked)
    }

    /// Creates a completion queue with `options`.
    ///
    /// # Errors
    /// Those of [`Self::completion_queue`].
    pub fn completion_queue_with(&self, options: &CqOptions<'_>) -> Result<CompletionQueue> {
        CompletionQueue::create(self, options, Exclusive::locked)
    }

    /// Creates a completion queue as [`Self::completion_queue_with`], but without the lock. This
    /// saves some ten nanoseconds per poll.
    ///
    /// # Safety
    /// At any time, at most one thread calls methods of the queue, or creates, resets or destroys a
    /// queue pair that completes into it.
    ///
    /// # Errors
    /// Those of [`Self::completion_queue`].
    #[expect(unsafe_code, reason = "has preconditions that no type can express")]
    pub unsafe fn single_threaded_completion_queue(&self, options: &CqOptions<'_>) -> Result<CompletionQueue> {
        // SAFETY: the caller promised it; each method releases its access before it returns or
        // calls another.
        CompletionQueue::create(self, options, |reaping| unsafe { Exclusive::promised(reaping) })
    }
}

impl CompletionQueue {
    /// Creates a completion queue. `reaping` wraps its state in the lock, or promise, that keeps
    /// threads apart.
    pub(crate) fn create(
        device: &Device,
        options: &CqOptions<'_>,
        reaping: impl FnOnce(Reaping) -> Exclusive<Reaping>,
    ) -> Result<Self> {
        let channel = match options.channel {
            Some(shared) if !Arc::ptr_eq(&shared.inner.device, &device.inner) => {
                return Err(Error::OtherDevice { object: "the completion channel", owner: "the completion queue" });
            }
            Some(shared) => Some(Arc::clone(&shared.inner)),
            None if options.silent => None,
            None => Some(device.channel()?.inner),
        };
        let device = &device.inner;
        let handle = channel.as_ref().map_or(0, |channel| channel.handle);
        let request = CreateCqRequest { entries: options.entries, channel: handle };
        let (reply, [fd]) = device.session.call_with_fds::<CreateCq, 1>(request)?;
        // The queue now exists in the daemon: every later failure must destroy it there as well.
        let ended = |error| {
            let _ = device.session.call::<DestroyCq>(Handle { handle: reply.cqn });
            error
        };
        let layout = CqLayout::new(reply.entries, device.workers.len() as u32)
            .ok_or_else(|| ended(Error::Protocol { what: "an impossible completion queue" }))?;
        let mapping = ClientMapping::new(&fd, layout.bytes, Mode::Populated).map_err(ended)?;
        let inner = Arc::new(CqInner {
            device: Arc::clone(device),
            own_channel: options.channel.is_none() && !options.silent,
            cqn: reply.cqn,
            entries: AtomicU32::new(layout.cq_ring.entries()),
            spin: options.spin,
            state: reaping(Reaping {
                cq_rings: cq_rings(&mapping, layout).into_iter().map(WorkerCompletions::new).collect(),
                first: 0,
                work: Vec::new(),
            }),
            mapping,
            empty_polls: AtomicU32::new(0),
            yields: YieldLimiter::new(),
            looked: Mutex::new(Instant::now()),
            sleeper: Mutex::new(false),
            sleeper_left: Condvar::new(),
            channel,
        });
        if let Some(channel) = &inner.channel {
            channel.add(inner.cqn, &inner);
        }
        Ok(Self { inner })
    }

    /// Number of the queue.
    pub fn cqn(&self) -> u32 {
        self.inner.cqn
    }

    /// Number of completions of each worker that the queue holds.
    pub fn entries(&self) -> u32 {
        self.inner.entries.load(Ordering::Relaxed)
    }

    /// Resizes the queue to at least `entries` completions of each worker, more than before or
    /// fewer, while it is in use. Completions in the queue stay in it, in order. Polls by other
    /// threads wait for the answer of the daemon, some tens of microseconds.
    ///
    /// # Errors
    /// The session's limit; no memory; the daemon is gone. The queue is unchanged on error.
    pub fn resize(&self, entries: u32) -> Result<()> {
        let inner = &*self.inner;
        let device = &inner.device;
        // A worker may complete into its new CQ ring before the answer arrives: no thread may poll
        // the rings and start to wait in between.
        let mut state = inner.state.enter();
        let request = ResizeCqRequest { cqn: inner.cqn, entries };
        let (reply, [fd]) = device.session.call_with_fds::<ResizeCq, 1>(request)?;
        let broken = || {
            // Completions go to a ring that this process cannot see.
            device.session.set_gone();
            Error::Protocol { what: "an impossible completion queue" }
        };
        let layout = CqLayout::new(reply.entries, device.workers.len() as u32).ok_or_else(broken)?;
        let mapping =
            ClientMapping::new(&fd, layout.bytes, Mode::Populated).inspect_err(|_| device.session.set_gone())?;
        for (cq_ring, ring) in state.cq_rings.iter_mut().zip(cq_rings(&mapping, layout)) {
            cq_ring.add_ring(ring);
        }
        inner.entries.store(layout.cq_ring.entries(), Ordering::Relaxed);
        Ok(())
    }

    /// Number of sends that complete into this queue and have not been reaped, including those that
    /// have not completed.
    pub fn sends_outstanding(&self) -> usize {
        let state = self.inner.state.enter();
        let sends_here = |work: &QpWork| std::ptr::eq(work.send_cq.as_ptr(), Arc::as_ptr(&self.inner));
        state.work.iter().filter(|(_, work)| sends_here(work)).map(|(_, work)| work.send.len() as usize).sum()
    }

    /// Number of completions in the queue.
    ///
    /// # Errors
    /// The daemon violated the protocol.
    pub fn waiting(&self) -> Result<usize> {
        let mut state = self.inner.state.enter();
        let counts = state.cq_rings.iter_mut().map(WorkerCompletions::waiting);
        let count: std::result::Result<u32, RingCorrupt> = counts.sum();
        count.map(|count| count as usize).map_err(|_| self.inner.broken())
    }

    /// Reaps completions that are present, at most as many as `into` holds, and returns their
    /// number. Does not wait and does not allocate.
    ///
    /// # Errors
    /// [`Error::DaemonGone`], after all outstanding work has been returned with [`Status::Fatal`].
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize> {
        let inner = &*self.inner;
        let mut state = inner.state.enter();
        let taken = state.take(inner, into)?;
        if taken > 0 || into.is_empty() {
            return Ok(taken);
        }
        if !inner.look_now_and_then() {
            return Ok(0);
        }
        // The daemon is gone: first the completions it managed to write, next the outstanding work.
        let taken = state.take(inner, into)?;
        let given_up = state.give_up(inner, &mut into[taken..]);
        if taken + given_up == 0 { Err(Error::DaemonGone) } else { Ok(taken + given_up) }
    }

    /// Reaps at least one completion, as [`Self::poll`], and waits for it for at most `timeout`:
    /// polls for the queue's `spin` time, then sleeps. Returns 0 on timeout.
    ///
    /// # Errors
    /// Those of [`Self::poll`]; [`Error::SharedChannel`] if the queue reports to a channel given to
    /// it, or to none.
    pub fn wait(&self, into: &mut [Completion], timeout: Duration) -> Result<usize> {
        let Some(channel) = self.inner.channel.as_ref().filter(|_| self.inner.own_channel) else {
            return Err(Error::SharedChannel);
        };
        let begin = Instant::now();
        let deadline = begin.checked_add(timeout);
        let spin_end = begin + self.inner.spin.min(timeout);
        // One clock read for each look: the time after a yield is that before the next.
        let mut now = Some(begin);
        while let Some(before) = now {
            let taken = self.poll(into)?;
            if taken > 0 || into.is_empty() {
                return Ok(taken);
            }
            now = if before < spin_end { self.inner.yields.yield_core(before) } else { None };
        }
        loop {
            if !self.inner.become_sleeper(deadline) {
                return self.poll(into);
            }
            let _sleeper = Sleeper(&self.inner);
            self.arm(Notify::Any);
            let taken = self.poll(into)?;
            if taken > 0 {
                return Ok(taken);
            }
            match channel.wait_readable(deadline) {
                Ok(true) => {}
                Ok(false) => return self.poll(into),
                // The poll determines the result.
                Err(Error::DaemonGone) => return self.poll(into),
                Err(error) => return Err(error),
            }
            // Other events of this queue are stale.
            while let Ok(Some(_)) = channel.next_cqn() {}
            let taken = self.poll(into)?;
            if taken > 0 {
                return Ok(taken);
            }
        }
    }

    /// Requests one notification, for a completion that arrives from now on. Poll once more before
    /// waiting on the channel.
    pub fn arm(&self, notify: Notify) {
        let wanted = match notify {
            Notify::Any => CompletionRequest::Any,
            Notify::Solicited => CompletionRequest::Solicited,
        };
        arm(self.inner.mapping.first_word(), wanted);
    }
}

impl CqInner {
    /// Adds a queue pair, from now on the source of completions in this queue.
    pub(crate) fn add(&self, qpn: u32, work: &Arc<QpWork>) {
        let mut state = self.state.enter();
        if let Err(at) = state.work.binary_search_by_key(&qpn, |(qpn, _)| *qpn) {
            state.work.insert(at, (qpn, Arc::clone(work)));
        }
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&self, qpn: u32) {
        let mut state = self.state.enter();
        let Ok(at) = state.work.binary_search_by_key(&qpn, |(qpn, _)| *qpn) else { return };
        let (_, work) = state.work.remove(at);
        let shared = work.shared.as_deref();
        if work.send.len() + work.recv.len() + shared.map_or(0, SharedWork::len) > 0 {
            self.make_room(&mut state, qpn, shared);
        }
    }

    /// Clears outstanding work of queue pair `qpn`, which was reset, while no poll is in progress.
    pub(crate) fn forget(&self, qpn: u32, outstanding: &Outstanding) {
        let mut state = self.state.enter();
        let may_have_completions = outstanding.len() > 0;
        outstanding.clear();
        if may_have_completions {
            self.make_room(&mut state, qpn, None);
        }
    }

    /// Drops the completions of `qpn` that will not be reported: later work needs their slots. The
    /// worker publishes completions before it carries out a command, so all of them are here once a
    /// queue pair is reset or destroyed.
    fn make_room(&self, state: &mut Reaping, qpn: u32, shared: Option<&SharedWork>) {
        // The rings belong to the parent of a forked process.
        if self.device.session.is_of_this_process() && state.make_room(qpn, shared).is_err() {
            // The next poll finds the daemon gone.
            let _ = self.broken();
        }
    }

    fn broken(&self) -> Error {
        self.device.session.set_gone();
        Error::Protocol { what: "an impossible index of a CQ ring" }
    }

    /// Returns true if the daemon is known to be gone. Checks for it after a number of empty polls.
    fn look_now_and_then(&self) -> bool {
        let session = &self.device.session;
        if session.is_gone() {
            return true;
        }
        if !self.empty_polls.fetch_add(1, Ordering::Relaxed).is_multiple_of(POLLS_PER_LOOK) {
            return false;
        }
        let now = Instant::now();
        let mut looked = lock(&self.looked);
        if now.duration_since(*looked) < LOOK_INTERVAL {
            return false;
        }
        *looked = now;
        session.look()
    }

    /// Waits until no other thread sleeps on this queue and becomes the sleeper. Returns false if
    /// `deadline` passed first.
    fn become_sleeper(&self, deadline: Option<Instant>) -> bool {
        let mut taken = lock(&self.sleeper);
        while *taken {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            // At most a day: on some systems the condition variable accepts no longer timeout.
            let left = left.min(Duration::from_secs(86_400));
            taken = self.sleeper_left.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        true
    }
}

/// Guard of the thread that sleeps on a queue.
struct Sleeper<'a>(&'a CqInner);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        *lock(&self.0.sleeper) = false;
        self.0.sleeper_left.notify_one();
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.remove(self.cqn);
        }
        self.device.session.destroy::<DestroyCq>(EventSubject::Cq, self.cqn);
        if let Some(channel) = self.channel.as_ref().filter(|_| !self.own_channel) {
            channel.drop_stale();
        }
    }
}

impl Reaping {
    /// Takes completions from the CQ rings, a few from each in turn.
    fn take(&mut self, cq: &CqInner, into: &mut [Completion]) -> Result<usize> {
        let mut taken = 0;
        let mut idle_cq_rings = 0;
        while taken < into.len() && idle_cq_rings < self.cq_rings.len() {
            let turn = (into.len() - taken).min(CQ_RING_TURN);
            let (found, moved) =
                self.take_from(self.first, &mut into[taken..taken + turn]).ok_or_else(|| cq.broken())?;
            taken += found;
            idle_cq_rings = if moved { 0 } else { idle_cq_rings + 1 };
            self.first = (self.first + 1) % self.cq_rings.len();
        }
        Ok(taken)
    }

    /// Takes completions from one CQ ring and tells whether it held any entry; `None` if the ring
    /// is corrupt.
    fn take_from(&mut self, cq_ring: usize, into: &mut [Completion]) -> Option<(usize, bool)> {
        let mut found = 0;
        let mut moved = false;
        let mut words = CqeWords::default();
        while found < into.len() && self.cq_rings[cq_ring].pop(&mut words).ok()? {
            moved = true;
            // A completion of a queue pair that does not exist, or no longer is not reported.
            if let Some(completion) = completion(&self.work, &cqe(&words)) {
                into[found] = completion;
                found += 1;
            }
        }
        Some((found, moved))
    }

    /// Takes all completions out of the CQ rings, and drops those of queue pair `qpn` that a poll
    /// would not report. Those of receives of `shared` complete their receive.
    fn make_room(&mut self, qpn: u32, shared: Option<&SharedWork>) -> std::result::Result<(), RingCorrupt> {
        let Self { cq_rings, work, .. } = self;
        let stays = |cqe: &Cqe| {
            let stays = cqe.qpn != qpn || is_reported(work, cqe);
            if !stays && let Some(shared) = shared {
                // No effect on a send.
                let _wr_id = shared.complete(Cookie(cqe.wr_id));
            }
            stays
        };
        cq_rings.iter_mut().try_for_each(|cq_ring| cq_ring.make_room(stays))
    }

    /// Returns the work that was outstanding when the daemon died.
    fn give_up(&mut self, cq: &CqInner, into: &mut [Completion]) -> usize {
        let mut given = 0;
        let this = std::ptr::from_ref(cq);
        for (qpn, work) in &self.work {
            for (queue, outstanding, completes_here) in [
                (Queue::Send, &work.send, work.send_cq.as_ptr() == this),
                (Queue::Recv, &work.recv, work.recv_cq.as_ptr() == this),
            ] {
                while completes_here && given < into.len() {
                    let Some((wr_id, op)) = outstanding.give_up() else { break };
                    into[given] = Completion { wr_id, qpn: *qpn, op: operation(queue, op), ..Completion::EMPTY };
                    given += 1;
                }
            }
        }
        given
    }
}

/// True for a completion of outstanding work of a queue pair.
fn is_reported(work: &[(u32, Arc<QpWork>)], cqe: &Cqe) -> bool {
    let Ok(at) = work.binary_search_by_key(&cqe.qpn, |(qpn, _)| *qpn) else { return false };
    let work = &work[at].1;
    let cookie = Cookie(cqe.wr_id);
    match (cookie.queue(), &work.shared) {
        // A reset ends no shared receive that has completed.
        (Queue::Recv, Some(_)) => true,
        _ if cookie.tag() != work.tag => false,
        (Queue::Send, _) => work.send.holds(cookie.sequence()),
        (Queue::Recv, None) => work.recv.holds(cookie.sequence()),
    }
}

fn completion(work: &[(u32, Arc<QpWork>)], cqe: &Cqe) -> Option<Completion> {
    let at = work.binary_search_by_key(&cqe.qpn, |(qpn, _)| *qpn).ok()?;
    let work = &work[at].1;
    let cookie = Cookie(cqe.wr_id);
    let (wr_id, op) = match (cookie.queue(), &work.shared) {
        (Queue::Recv, Some(shared)) => (shared.complete(cookie)?, 0),
        _ if cookie.tag() != work.tag => return None,
        (Queue::Send, _) => work.send.complete(cookie.sequence())?,
        (Queue::Recv, None) => work.recv.complete(cookie.sequence())?,
    };
    let status = Status::from_byte(cqe.status).unwrap_or(Status::Fatal);
    let op = operation(cookie.queue(), op);
    Some(Completion {
        wr_id,
        qpn: cqe.qpn,
        status,
        op: if status == Status::Success { CompletionOp::from_byte(cqe.opcode).unwrap_or(op) } else { op },
        byte_len: cqe.byte_len,
        imm: (cqe.flags & completion_flags::IMM != 0).then_some(cqe.imm),
        invalidated: (cqe.flags & completion_flags::INVALIDATED != 0).then(|| u32::from_ne_bytes(cqe.imm)),
        solicited: cqe.flags & completion_flags::SOLICITED != 0,
        src_qpn: cqe.src_qpn,
        has_grh: cqe.flags & completion_flags::GRH != 0,
        has_ipv4: cqe.flags & completion_flags::IPV4 != 0,
        timestamp_ns: cqe.timestamp_ns,
        vendor_error: cqe.vendor_error,
    })
}

fn operation(queue: Queue, byte: u8) -> CompletionOp {
    match queue {
        Queue::Send => CompletionOp::from_byte(byte).unwrap_or(CompletionOp::Send),
        Queue::Recv => CompletionOp::Recv,
    }
}
