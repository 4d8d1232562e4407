//! End of the daemon, in an order that leaves no party waiting.
//!
//! | step | at most |
//! |---|---|
//! | one worker does not answer | [`ANSWER_TIMEOUT`], 2 s |
//! | peers hear of the end and answer, until a second signal | [`DISCONNECTING_MAX`] and half a second |
//! | posted work of ended programs is sent | `LAST_WORK_TIME_MAX`, 1 s |
//! | objects are destroyed, queues closed, XDP programs detached | 20 s, a guess |
//! | the log is written | `FLUSH_MAX`, 1 s |
//!
//! Objects are a hundred thousand with the default limits, each a round trip to every worker.
//! `TimeoutStopSec` of `config/roced.service` has room for the sum; a test compares. Further
//! workers that do not answer take 2 s each, and the daemon aborts itself. A daemon that systemd
//! kills has told its peers before, and the kernel takes back the rest.
//!
//! [`ANSWER_TIMEOUT`]: crate::worker::workers::ANSWER_TIMEOUT

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signalfd::SignalFd,
};
use roced_types::WorkerId;
use roced_xdp::NicQueue;
use tracing::{error, info, warn};

use super::{Daemon, NetworkView, Order, management::MADS, order};
use crate::{
    clients::Clients,
    environment::Environment,
    log_thread,
    worker::{command::Command, poll_loop::Worker, received_mads::MadReceiver, workers::Workers},
};

/// Time for peers to answer that connections end with the daemon, since the last answer: a lost
/// datagram is repeated once within it.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Time for all of them: thousands of answers on a busy host.
const DISCONNECTING_MAX: Duration = Duration::from_secs(5);

/// How long peers may take to answer, each of those that are left.
struct AnswerWait {
    /// Connections without an answer, at least so far.
    least: usize,
    /// When the next answer is too late, and when all are.
    end: Instant,
    latest: Instant,
}

impl AnswerWait {
    fn new(waiting: usize, now: Instant) -> Self {
        Self { least: waiting, end: now + ANSWER_MAX, latest: now + DISCONNECTING_MAX }
    }

    /// A round that began at `began` has left `waiting` connections without an answer: whether to
    /// look again. An answer that came in time counts however late the round was.
    fn goes_on(&mut self, waiting: usize, began: Instant) -> bool {
        if waiting < self.least {
            self.least = waiting;
            self.end = self.latest.min(began + ANSWER_MAX);
        }
        waiting > 0 && began < self.end
    }
}

impl Daemon {
    /// Ends everything in an order that leaves no party waiting: clients, workers, XDP programs,
    /// files of sockets.
    pub(super) fn stop(self) {
        self.service.stopping();
        let Self { mut net, mut workers, threads, mut clients, mut devices, admin, mads, signals, .. } = self;
        let mut network_view = NetworkView { net: &mut net, devices: &mut devices };
        let mut environment = Environment { workers: &mut workers, network: &mut network_view };
        clients.stop(&mut environment);
        disconnect(&mads, &signals, &mut clients, &mut workers, &mut network_view);
        let mut environment = Environment { workers: &mut workers, network: &mut network_view };
        clients.destroy_objects(&mut environment);
        drop(clients);
        stop_workers(&mut workers, threads);
        drop(devices);
        drop(admin);
        info!("stopped");
    }
}

pub(super) fn stop_workers(workers: &mut Workers, threads: Vec<JoinHandle<Worker<NicQueue>>>) {
    for number in 0..workers.len() as u32 {
        if let Err(error) = workers.call(WorkerId(number), Command::Stop) {
            // It cannot be waited for either: the process ends, and the kernel takes everything
            // back.
            error!(worker = number, %error, "a worker does not stop");
            log_thread::flush_and_abort();
        }
    }
    for thread in threads {
        // Its queues are closed here. A worker that panicked has aborted the process.
        drop(thread.join());
    }
}

/// Tells the peers of all connections that these end, and waits for their answers for a bounded
/// time, or until another signal asks to stop. The clients have been stopped.
fn disconnect(
    mads: &MadReceiver,
    signals: &SignalFd,
    clients: &mut Clients,
    workers: &mut Workers,
    network_view: &mut NetworkView<'_>,
) {
    let mut wait = AnswerWait::new(clients.disconnecting(), Instant::now());
    let mut now = Instant::now();
    while wait.goes_on(clients.disconnecting(), now) {
        now = Instant::now();
        // Neighbors may have to be asked for before a datagram leaves.
        let changes = network_view.net.on_deadline();
        let mut environment = Environment { workers, network: network_view };
        clients.on_changes(&changes, &mut environment);
        clients.on_cm_deadline(now, &mut environment);
        let deadlines = [clients.cm_deadline(), network_view.net.deadline()];
        let until = deadlines.into_iter().flatten().fold(wait.end, Instant::min);
        // Rounded up, so that a deadline has passed when we wake for it.
        let left = until.saturating_duration_since(now) + Duration::from_micros(999);
        let [hears_network, _, _] = wait_for([network_view.net.fd(), mads.as_fd(), signals.as_fd()], left);
        if is_told_to_stop(signals) {
            return info!(
                left = clients.disconnecting(),
                "peers are not awaited: some may not hear that their connections end"
            );
        }
        let changes = if hears_network { network_view.net.on_readable() } else { Ok(Vec::new()) };
        let mut environment = Environment { workers, network: network_view };
        match changes {
            Ok(changes) => clients.on_changes(&changes, &mut environment),
            Err(error) => return warn!(%error, "some peers may not hear that their connections end"),
        }
        mads.drain(clients.room_for_mads(), |mad| clients.on_mad(&mad, &environment));
        while clients.take_datagrams(MADS, &mut environment) && now.elapsed() < ANSWER_MAX {}
    }
}

/// Which of these are readable, as soon as one is or `left` is over.
fn wait_for<const FDS: usize>(fds: [BorrowedFd<'_>; FDS], left: Duration) -> [bool; FDS] {
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // None is after an error, and the next wait has the same deadline.
    let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
    fds.map(|fd| fd.any() == Some(true))
}

/// Takes the signals that have come: true if one asks to stop.
fn is_told_to_stop(signals: &SignalFd) -> bool {
    let mut signals = std::iter::from_fn(|| signals.read_signal().ok().flatten());
    signals.any(|signal| order(&signal) == Order::Stop)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;
    use crate::{control_thread::block_signals, last_work::LAST_WORK_TIME_MAX, worker::workers::ANSWER_TIMEOUT};

    /// Destroying objects and leaving the interfaces: a guess.
    const DESTROYING_TIME: Duration = Duration::from_secs(20);

    #[test]
    fn the_unit_lets_the_daemon_stop_in_its_time() {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/roced.service");
        let unit = std::fs::read_to_string(unit).expect("the unit is there");
        let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s'));
        let limit = Duration::from_secs(limit.and_then(|seconds| seconds.parse().ok()).expect("in seconds"));
        let own = [ANSWER_TIMEOUT, DISCONNECTING_MAX, ANSWER_MAX, LAST_WORK_TIME_MAX, log_thread::FLUSH_MAX];
        let needed = own.iter().sum::<Duration>() + DESTROYING_TIME;
        assert!(needed <= limit, "{needed:?} of {limit:?}");
    }

    #[test]
    fn another_signal_to_stop_ends_the_wait_for_peers_and_a_reload_does_not() {
        let signals = block_signals().expect("signals of this thread");
        let look = |left| (wait_for([signals.as_fd()], left), is_told_to_stop(&signals));
        assert_eq!(look(Duration::ZERO), ([false], false));
        for (signal, stops) in [(Signal::SIGHUP, false), (Signal::SIGTERM, true), (Signal::SIGINT, true)] {
            raise(signal).expect("to this thread");
            let begin = Instant::now();
            assert_eq!(look(Duration::from_secs(60)), ([true], stops), "{signal}");
            assert!(begin.elapsed() < Duration::from_secs(30), "{signal} is awaited by the same call");
        }
        raise(Signal::SIGHUP).and_then(|()| raise(Signal::SIGTERM)).expect("to this thread");
        assert_eq!(look(Duration::from_secs(60)), ([true], true), "behind another one");
    }

    #[test]
    fn peers_that_answer_are_waited_for_and_silent_ones_for_half_a_second() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut silent = AnswerWait::new(7, start);
        assert!(silent.goes_on(7, at(0)) && silent.goes_on(7, at(499)) && !silent.goes_on(7, at(500)));
        // The host is busy: it looks late, and finds an answer that waited.
        let mut busy = AnswerWait::new(7, start);
        assert!(busy.goes_on(6, at(900)) && busy.goes_on(6, at(1399)));
        assert!(busy.goes_on(1, at(1500)) && !busy.goes_on(0, at(1500)));
        let mut slow = AnswerWait::new(700, start);
        let rounds = (1..700).take_while(|round| slow.goes_on(700 - round, at(*round as u64 * 100))).count();
        assert_eq!(rounds, 49, "five seconds for all");
    }
}
