//! All workers as the control thread sees them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use roced_types::{DeviceId, Qpn, WorkerId};

use super::{
    command::{Answer, Command, Mailbox},
    endpoints::{EndpointLocation, Endpoints},
    mailbox::CallError,
    nic::Nic,
    pin,
    poll_loop::Worker,
    sent_mads::{OutgoingMad, OutgoingMads},
    wake::Waker,
};

/// How long the control thread waits for an answer. A poll iteration takes microseconds, on a
/// machine under load milliseconds; a worker that needs this long is taken for dead.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker from outside.
#[derive(Debug)]
pub struct WorkerHandle {
    /// Commands.
    pub mailbox: Mailbox,
    /// Management datagrams to be sent.
    pub outgoing: Arc<OutgoingMads>,
    /// Wakes it.
    pub waker: Arc<Waker>,
    /// Its poll iterations.
    pub heartbeat: Arc<AtomicU64>,
}

/// All workers: their endpoints, and the way to command them.
#[derive(Debug)]
pub struct Workers {
    handles: Vec<WorkerHandle>,
    endpoints: Arc<Endpoints>,
    /// Poll iterations of each worker when the watchdog looked last.
    last_polls: Vec<u64>,
    /// Poll iterations of each worker that let a call time out, when it did.
    silent_since: Vec<Option<u64>>,
}

impl Workers {
    /// Workers by number, and their endpoints.
    pub fn new(handles: Vec<WorkerHandle>, endpoints: Arc<Endpoints>) -> Self {
        let last_polls = vec![u64::MAX; handles.len()];
        let silent_since = vec![None; handles.len()];
        Self { handles, endpoints, last_polls, silent_since }
    }

    /// Number of workers.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// No workers.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The endpoints of a device: which worker runs each. The order is that of completion queue
    /// CQ rings and doorbell block.
    pub fn of_device(&self, device: DeviceId) -> impl Iterator<Item = EndpointLocation> + '_ {
        self.endpoints.of_device(device)
    }

    /// Where the queue pair `qpn` lives.
    pub fn of_qpn(&self, qpn: Qpn) -> Option<EndpointLocation> {
        self.endpoints.of_qpn(qpn)
    }

    /// Sends a command to `worker` and waits for its answer, at most [`ANSWER_TIMEOUT`]. A worker
    /// that let a call time out and has not polled since is not awaited again: a session with a
    /// thousand objects must not delay the control thread, and the watchdog with it, a thousand
    /// times.
    ///
    /// # Errors
    /// [`CallError`] when there is none.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn call(&mut self, worker: WorkerId, command: Command) -> Result<Answer, CallError> {
        let number = worker.0 as usize;
        let handle = &mut self.handles[number];
        let turns = handle.heartbeat.load(Ordering::Relaxed);
        let wait = if self.silent_since[number] == Some(turns) { Duration::ZERO } else { ANSWER_TIMEOUT };
        let answer = handle.mailbox.call(command, Instant::now() + wait);
        self.silent_since[number] = matches!(answer, Err(CallError::Timeout)).then_some(turns);
        answer
    }

    /// Gives `worker` a management datagram to send, and does not wait for it. The worker drops and
    /// counts a datagram of a device that it does not serve, or that finds no room in the endpoint
    /// for 20 ms.
    ///
    /// # Errors
    /// The datagram if 256 wait already.
    ///
    /// # Panics
    /// When there is no such worker.
    #[expect(clippy::result_large_err, reason = "a datagram without room goes back to its sender")]
    pub fn send_mad(&self, worker: WorkerId, mad: OutgoingMad) -> Result<(), OutgoingMad> {
        let handle = &self.handles[worker.0 as usize];
        handle.outgoing.push(mad)?;
        handle.waker.wake();
        Ok(())
    }

    /// The workers that have neither polled since the last call nor sleep: they are stuck, or their
    /// cores are taken from them.
    pub fn find_stuck(&mut self) -> Vec<WorkerId> {
        let mut stuck = Vec::new();
        for (number, (handle, last)) in self.handles.iter().zip(&mut self.last_polls).enumerate() {
            let polls = handle.heartbeat.load(Ordering::Relaxed);
            if polls == *last && !handle.waker.is_asleep() {
                stuck.push(WorkerId(number as u32));
            }
            *last = polls;
        }
        stuck
    }
}

/// Aborts the process when its thread unwinds: a daemon without one of its workers is of no use,
/// and the kernel gets its traffic back at once.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Starts `worker` in a thread of its own, on `core` if given, which is confined by `confine` first;
/// it gives the worker back when it was told to stop.
///
/// # Errors
/// The kernel's, when it gives no thread.
pub fn spawn<N: Nic + Send + 'static>(
    mut worker: Worker<N>,
    core: Option<u32>,
    confine: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<Worker<N>>> {
    thread::Builder::new().name(pin::thread_name(worker.id().0)).spawn(move || {
        let _abort = AbortOnPanic;
        if let Some(core) = core {
            // The start-up checked the core; if it went away since, an unpinned worker still
            // serves.
            if let Err(error) = pin::pin_to(core) {
                tracing::warn!(worker = worker.id().0, %error, "not pinned");
            }
        }
        confine();
        worker.run();
        worker
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::mailbox::mailbox;

    #[test]
    fn a_silent_worker_is_waited_for_once_and_again_when_it_turned() {
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        let (mailbox, _inbox) = mailbox(Arc::clone(&waker));
        let heartbeat = Arc::new(AtomicU64::new(7));
        let outgoing = OutgoingMads::new();
        let handle = WorkerHandle { mailbox, outgoing, waker, heartbeat: Arc::clone(&heartbeat) };
        let endpoints = Arc::new(Endpoints::new([(DeviceId(0), WorkerId(0))]).expect("one endpoint"));
        let mut workers = Workers::new(vec![handle], endpoints);
        let mut time = || {
            let begin = Instant::now();
            let answer = workers.call(WorkerId(0), Command::QueryQp(Qpn::GSI));
            assert!(matches!(answer, Err(CallError::Timeout)), "{answer:?}");
            begin.elapsed()
        };
        assert!(time() >= ANSWER_TIMEOUT);
        assert!(time() < ANSWER_TIMEOUT / 2);
        assert!(time() < ANSWER_TIMEOUT / 2);
        heartbeat.store(8, Ordering::Relaxed);
        assert!(time() >= ANSWER_TIMEOUT);
    }

    #[test]
    fn a_worker_that_neither_turns_nor_sleeps_is_stuck() {
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        let (mailbox, _inbox) = mailbox(Arc::clone(&waker));
        let heartbeat = Arc::new(AtomicU64::new(0));
        let outgoing = OutgoingMads::new();
        let handle = WorkerHandle { mailbox, outgoing, waker: Arc::clone(&waker), heartbeat: Arc::clone(&heartbeat) };
        let endpoints = Arc::new(Endpoints::new([(DeviceId(0), WorkerId(0))]).expect("one endpoint"));
        let mut workers = Workers::new(vec![handle], endpoints);
        assert!(workers.find_stuck().is_empty(), "it has just begun");
        assert_eq!(workers.find_stuck(), [WorkerId(0)]);
        heartbeat.store(1, Ordering::Relaxed);
        assert!(workers.find_stuck().is_empty());
        waker.announce_sleep();
        assert!(workers.find_stuck().is_empty());
        waker.announce_awake();
        assert_eq!(workers.find_stuck(), [WorkerId(0)]);
    }
}
