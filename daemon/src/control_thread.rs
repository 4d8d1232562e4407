//! The daemon as a whole: the only module that knows every part.
//!
//! ```text
//!   config ─► network read, everything checked ─► XDP programs, queues ─► workers
//!       ─► sockets ─► addresses ─► ready
//!
//!   control thread, one epoll set:
//!     clients · netlink · operators · workers' events · signals · deadlines
//! ```
//!
//! The control thread creates and frees every object; workers only use them. It waits for workers
//! only, and never without a deadline.

mod answers;
mod attacher;
mod attachment;
mod devices;
mod management;
mod network_view;
mod pause_storms;
mod queue_watch;
mod reload;
mod reports;
mod served_device;
mod stall_attribution;
mod start;
mod stopping;
mod waiting;
mod watchdog;
mod xdp_watch;

use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd, siginfo},
    },
};
use roced_memory::{
    access_log, heap,
    thread_start::{HelperThread, on_thread_start},
};
use roced_transport::{denied_sources::DeniedSources, own_addresses::OwnAddresses};
use roced_types::{DeviceId, WorkerId, gid_of};
use roced_xdp::NicQueue;
use tracing::{error, info, warn};

use self::{
    attacher::Attacher,
    network_view::{NetworkView, gid_prefix},
    pause_storms::PauseStormLog,
    served_device::ServedDevice,
    stall_attribution::StallAttribution,
    start::{Checked, Started},
    watchdog::{Health, Watchdog},
};
use crate::{
    accounts::access::AccessRules,
    admin::Admin,
    calls::DeviceSetup,
    client_socket::listener::ClientListener,
    clients::Clients,
    config::{Config, ConfigSource},
    environment::Environment,
    log_thread,
    net::{Net, NetworkChange},
    sandbox::{Confinement, Sandbox, ServedPaths, ThreadKind},
    systemd::ServiceManager,
    worker::{
        command::{Command, QueueMailbox},
        events::{EventReceiver, WorkerEvent},
        poll_loop::Worker,
        received_mads::MadReceiver,
        workers::Workers,
    },
};

/// Tokens of the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum WakeSource {
    Signals,
    Network,
    Workers,
    Clients,
    Operators,
    Attached,
    Mads,
}

impl WakeSource {
    const ALL: [Self; 7] =
        [Self::Signals, Self::Network, Self::Workers, Self::Clients, Self::Operators, Self::Attached, Self::Mads];
}

/// Longest wait of the control thread: the watchdog looks at least that often.
const WAIT_MAX: Duration = watchdog::PERIOD;

/// How long the control thread looks for the next thing to do, yielding, before it sleeps: programs
/// make their objects by many calls one after the other, each a few microseconds of work, and being
/// woken costs ten times that.
const POLL_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Events of workers before everything else has its turn. Some take a command to each worker.
const WORKER_EVENTS: usize = 64;

/// Serves the devices of `config` until SIGTERM or SIGINT.
///
/// # Errors
/// The reason why it cannot serve, or cannot continue, as a chain that ends in a next step.
pub fn run(config: Config, source: ConfigSource, confinement: Confinement) -> anyhow::Result<()> {
    // Before any thread is made, so that every thread has them blocked and the control thread reads
    // them.
    let signals = block_signals().context("cannot take signals")?;
    run_until(config, source, signals, confinement)
}

fn run_until(
    mut config: Config,
    source: ConfigSource,
    signals: SignalFd,
    confinement: Confinement,
) -> anyhow::Result<()> {
    let mut service = ServiceManager::from_environment();
    let Some(checked) = waiting::check(&mut config, &source, &signals, &mut service)? else { return Ok(()) };
    // Dropped last, when the sockets are gone.
    let mut folders = SocketFolders::default();
    let sandbox = sandbox(confinement, &config, &source)?;
    let mut daemon = Daemon::start(config, source, signals, service, checked, &mut folders, sandbox)?;
    let served = daemon.open_up().and_then(|()| {
        folders.keep();
        // Not before the folders are made, which all rules for files are made of.
        let of_log = daemon.sandbox.clone();
        log_thread::have_it(move || of_log.enter_or_abort(ThreadKind::Log));
        daemon.sandbox.enter(ThreadKind::Control).context(NO_SANDBOX)?;
        daemon.sandbox.log();
        daemon.serve()
    });
    daemon.stop();
    served
}

/// The next step where a thread cannot be confined.
const NO_SANDBOX: &str = "the daemon cannot be confined: `roced run --no-sandbox` runs it without that";

fn sandbox(confinement: Confinement, config: &Config, source: &ConfigSource) -> anyhow::Result<Sandbox> {
    if confinement == Confinement::Off {
        return Ok(Sandbox::off());
    }
    let sockets = vec![config.control.socket.clone(), config.admin.socket.clone()];
    let sandbox = Sandbox::prepare(ServedPaths { config: source.file.clone(), sockets }).context(NO_SANDBOX)?;
    let helpers = sandbox.clone();
    on_thread_start(move |thread| {
        helpers.enter_or_abort(match thread {
            HelperThread::Copy => ThreadKind::Copy,
            HelperThread::User => ThreadKind::User,
        });
    });
    Ok(sandbox)
}

/// Signals that would end the process, which no operator wants.
const IGNORED_SIGNALS: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Stop,
    Reload,
    Nothing,
}

fn order(signal: &siginfo) -> Order {
    let sender = signal.ssi_pid;
    match Signal::try_from(signal.ssi_signo as i32) {
        Ok(Signal::SIGHUP) => Order::Reload,
        Ok(ignored) if IGNORED_SIGNALS.contains(&ignored) => {
            info!(sender, "{ignored} ignored");
            Order::Nothing
        }
        _ => {
            info!(signal = signal.ssi_signo, sender, "stopping");
            Order::Stop
        }
    }
}

fn block_signals() -> Result<SignalFd, Errno> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().chain(IGNORED_SIGNALS) {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Folders of sockets that this daemon has created. Dropping it removes those that are empty.
#[derive(Debug, Default)]
struct SocketFolders(Vec<PathBuf>);

impl SocketFolders {
    /// Creates the folder of a socket, with the mode that the unit's `RuntimeDirectory` has, if
    /// there is none: `/run` is empty after a boot, and no unit creates the folder for a daemon run
    /// by hand.
    fn make_for(&mut self, socket: &Path) -> io::Result<()> {
        match socket.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
                fs::create_dir(folder)?;
                self.0.push(folder.to_owned());
                // Regardless of the umask.
                fs::set_permissions(folder, Permissions::from_mode(0o755))
            }
            _ => Ok(()),
        }
    }

    /// Leaves them: the daemon serves, and containers may mount them from now on.
    fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for SocketFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // One that is not empty has a file of another daemon.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Everything, while it serves.
struct Daemon {
    config: Config,
    source: ConfigSource,
    epoll: Epoll,
    signals: SignalFd,
    net: Net,
    devices: Vec<ServedDevice>,
    attacher: Attacher,
    workers: Workers,
    /// By number of worker.
    queue_mailboxes: Vec<QueueMailbox<NicQueue>>,
    threads: Vec<JoinHandle<Worker<NicQueue>>>,
    events: EventReceiver,
    mads: MadReceiver,
    clients: Clients,
    admin: Admin,
    service: ServiceManager,
    watchdog: Watchdog,
    pause_storms: PauseStormLog,
    stall_attribution: StallAttribution,
    sandbox: Sandbox,
    watchdog_due: Instant,
    watch_devices_at: Instant,
    since: Instant,
}

impl Daemon {
    /// Starts everything but the traffic.
    fn start(
        config: Config,
        source: ConfigSource,
        signals: SignalFd,
        service: ServiceManager,
        checked: Checked,
        folders: &mut SocketFolders,
        sandbox: Sandbox,
    ) -> anyhow::Result<Self> {
        heap::return_large_blocks();
        // First the sockets: another roced that serves is not disturbed, and clients that come now
        // wait.
        let control = &config.control;
        for socket in [&control.socket, &config.admin.socket] {
            folders.make_for(socket).with_context(|| format!("cannot create the folder of {}", socket.display()))?;
        }
        let names = config.devices.iter().map(|device| device.name.as_str());
        let rules = AccessRules::look_up(&config.access, names)?;
        let listener = ClientListener::bind(&control.socket, control.group.as_deref(), control.mode)?.with_rules(rules);
        let admin = Admin::open(&config.admin.socket, config.admin.group.as_deref())
            .with_context(|| format!("cannot listen for operators at {}", config.admin.socket.display()))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let attacher = Attacher::start(&sandbox)?;
        let Started { devices, mut workers, queue_mailboxes, threads, events, mads, board } =
            start::start(&config, &checked, &sandbox)?;
        let setup = |device: &ServedDevice| {
            DeviceSetup::new((device.id, &device.config), workers.of_device(device.id), &config.limits.device)
        };
        let setups = devices.iter().map(setup).collect();
        let rules = config.access.iter().map(|rule| rule.limits.clone()).collect();
        let clients = Clients::new(listener, setups, config.limits.clone(), rules, board, mads.filters())
            .inspect_err(|_| stopping::stop_workers(&mut workers, Vec::new()))?;
        let mut net = checked.net;
        for device in &devices {
            let attachment = device.attachment().expect("just attached");
            net.limit_packets(device.id, attachment.packet_bytes_max);
        }
        let now = Instant::now();
        Ok(Self {
            config,
            source,
            epoll,
            signals,
            net,
            devices,
            attacher,
            workers,
            queue_mailboxes,
            threads,
            events,
            mads,
            clients,
            admin,
            service,
            watchdog: Watchdog::default(),
            pause_storms: PauseStormLog::default(),
            stall_attribution: StallAttribution::default(),
            sandbox,
            watchdog_due: now + watchdog::PERIOD,
            watch_devices_at: now + watchdog::PERIOD,
            since: now,
        })
    }

    /// Watches everything, and takes frames from the kernel: their receivers are served now.
    fn open_up(&mut self) -> anyhow::Result<()> {
        for source in WakeSource::ALL {
            self.epoll.add(self.fd(source), EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?;
        }
        let devices: Vec<_> = self.devices.iter().map(|device| device.id).collect();
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        devices.iter().try_for_each(|device| network_view.set_addresses(*device))?;
        devices.into_iter().for_each(|device| self.set_own_addresses(device));
        self.deny_peers();
        Ok(())
    }

    /// Tells the workers from which addresses no frame comes to a device by its network.
    fn set_own_addresses(&mut self, device: DeviceId) {
        let gids = self.net.device(device).gids.entries().map(|(_, gid)| gid_of(gid.address));
        let addresses = OwnAddresses::new(gids);
        for worker in (0..self.workers.len() as u32).map(WorkerId) {
            // A worker without an endpoint of the device refuses.
            if let Err(error) = self.workers.call(worker, Command::SetOwnAddresses(device, addresses.clone())) {
                warn!(worker = worker.0, %error, "a worker does not know the addresses of its device");
            }
        }
    }

    /// Keeps traffic away from the networks that the config denies.
    fn deny_peers(&mut self) {
        let denied = &self.config.net.denied_peers;
        let sources = DeniedSources::new(denied.iter().map(gid_prefix));
        self.net.set_denied(denied.clone());
        let endpoints = (0..self.workers.len() as u32)
            .map(WorkerId)
            .flat_map(|worker| self.devices.iter().map(move |device| (worker, device.id)));
        for (worker, device) in endpoints.collect::<Vec<_>>() {
            // A worker without an endpoint of the device refuses.
            if let Err(error) = self.workers.call(worker, Command::SetDeniedSources(device, sources.clone())) {
                warn!(worker = worker.0, %error, "a worker does not know the networks that are denied");
            }
        }
    }

    fn fd(&self, source: WakeSource) -> BorrowedFd<'_> {
        match source {
            WakeSource::Signals => self.signals.as_fd(),
            WakeSource::Network => self.net.fd(),
            WakeSource::Workers => self.events.as_fd(),
            WakeSource::Clients => self.clients.as_fd(),
            WakeSource::Operators => self.admin.as_fd(),
            WakeSource::Attached => self.attacher.as_fd(),
            WakeSource::Mads => self.mads.as_fd(),
        }
    }

    /// Serves until a signal says stop.
    fn serve(&mut self) -> anyhow::Result<()> {
        let status = self.status_line();
        self.service.ready(Instant::now(), &status);
        info!("{status}");
        let mut look_until = Instant::now();
        loop {
            let mut events = [EpollEvent::empty(); WakeSource::ALL.len()];
            let looks = Instant::now() < look_until;
            let ready = match self.epoll.wait(&mut events, if looks { EpollTimeout::ZERO } else { self.wait() }) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno).context("the control thread cannot wait"),
            };
            if ready > 0 {
                look_until = Instant::now() + POLL_BEFORE_SLEEP;
            } else if looks {
                thread::yield_now();
            }
            let is_ready = |source| events[..ready].iter().any(|event| event.data() == source as u64);
            if is_ready(WakeSource::Signals)
                && let Some(signal) = self.signals.read_signal().context("cannot read signals")?
            {
                match order(&signal) {
                    Order::Stop => return Ok(()),
                    Order::Reload => self.reload(),
                    Order::Nothing => {}
                }
            }
            if is_ready(WakeSource::Workers) {
                self.on_worker_events();
            }
            if is_ready(WakeSource::Mads) {
                self.on_mads();
            }
            if is_ready(WakeSource::Network) {
                let changes = self.net.on_readable()?;
                self.on_changes(&changes)?;
            }
            if is_ready(WakeSource::Clients) {
                let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
                let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
                self.clients.on_readable(&mut environment);
            }
            if is_ready(WakeSource::Operators) {
                self.answer_operators();
            }
            if is_ready(WakeSource::Attached) {
                self.on_attached()?;
            }
            self.on_deadlines()?;
        }
    }

    fn status_line(&self) -> String {
        format!("serving {} device(s) on {} worker(s)", self.devices.len(), self.workers.len())
    }

    /// How long nothing needs to be done unless something happens.
    fn wait(&self) -> EpollTimeout {
        let now = Instant::now();
        let deadlines = [
            Some(self.watchdog_due),
            Some(self.watch_devices_at),
            self.net.deadline(),
            self.clients.deadline(),
            self.admin.deadline(),
            self.service.deadline(),
        ];
        let retries = self.devices.iter().filter_map(ServedDevice::deadline);
        let until = deadlines
            .into_iter()
            .flatten()
            .chain(retries)
            .min()
            .map_or(WAIT_MAX, |next| next.saturating_duration_since(now));
        // Rounded up, so that a deadline has passed when we wake for it.
        let millis = until.min(WAIT_MAX).as_nanos().div_ceil(1_000_000);
        EpollTimeout::from(millis as u16)
    }

    fn on_deadlines(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.net.deadline().is_some_and(|due| due <= now) {
            let changes = self.net.on_deadline();
            self.on_changes(&changes)?;
        }
        if self.clients.deadline().is_some_and(|due| due <= now) {
            let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
            self.clients.on_deadline(now, &mut Environment { workers: &mut self.workers, network: &mut network_view });
        }
        if self.clients.are_mads_due(now) {
            self.on_mads();
        }
        if self.admin.deadline().is_some_and(|due| due <= now) {
            self.answer_operators();
        }
        if self.watchdog_due <= now {
            self.watchdog_due = now + watchdog::PERIOD;
            self.watch_workers(now);
        }
        self.watch_devices(now);
        self.retry_devices(now);
        Ok(())
    }

    fn watch_workers(&mut self, now: Instant) {
        let stuck = self.workers.find_stuck();
        if let Some(sessions) = self.stall_attribution.look(stuck.first().copied(), access_log::blocking_sessions) {
            self.clients.on_blocked(sessions);
        }
        match self.watchdog.look(now, &stuck) {
            Health::Good => {}
            Health::Stuck(worker, so_far) => {
                warn!(
                    worker = worker.0,
                    seconds = so_far.as_secs(),
                    "a worker makes no progress: does it get its core?"
                );
            }
            Health::Dead(worker, so_far) => {
                error!(
                    worker = worker.0,
                    seconds = so_far.as_secs(),
                    "a worker no longer makes progress; the daemon ends itself"
                );
                log_thread::flush_and_abort();
            }
        }
        self.service.on_deadline(now);
    }

    fn on_worker_events(&mut self) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        self.events.drain(WORKER_EVENTS, |event| match event {
            WorkerEvent::PauseStorm { device, storm } => {
                self.pause_storms.tell(device, &self.config.devices[device.0 as usize], storm);
            }
            _ => self.clients.on_worker_event(event, &mut environment),
        });
    }

    fn on_changes(&mut self, changes: &[NetworkChange]) -> anyhow::Result<()> {
        self.follow_interfaces(changes);
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        for change in changes {
            if let NetworkChange::Gids(device) = change {
                network_view.set_addresses(*device)?;
            }
        }
        for change in changes {
            if let NetworkChange::Gids(device) = change {
                self.set_own_addresses(*device);
            }
        }
        self.tell_clients(changes);
        Ok(())
    }

    fn tell_clients(&mut self, changes: &[NetworkChange]) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        self.clients.on_changes(changes, &mut environment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_socket_is_created_once_and_open_to_clients() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let socket = scratch.path().join("roced/roced.sock");
        let mut folders = SocketFolders::default();
        folders.make_for(&socket).expect("there is none");
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        let folder = socket.parent().expect("of two components");
        assert_eq!(mode(folder), 0o755);
        // One that exists is left alone; one without a parent is an error.
        fs::set_permissions(folder, Permissions::from_mode(0o700)).expect("it is ours");
        folders.make_for(&socket).expect("nothing to do");
        assert_eq!(mode(folder), 0o700);
        assert!(folders.make_for(&scratch.path().join("none/none/roced.sock")).is_err());
    }

    #[test]
    fn folders_of_a_failed_start_are_removed_while_they_are_empty() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let make = |name: &str| {
            let mut folders = SocketFolders::default();
            folders.make_for(&scratch.path().join(name).join("roced.sock")).expect("it can be made");
            folders
        };
        drop(make("empty"));
        assert!(!scratch.path().join("empty").exists());
        let folders = make("used");
        fs::write(scratch.path().join("used/other.sock"), "").expect("it can be written");
        drop(folders);
        assert!(scratch.path().join("used/other.sock").exists());
        make("kept").keep();
        drop(make("kept"));
        assert!(scratch.path().join("kept").exists(), "it was there before the second daemon");
    }
}
