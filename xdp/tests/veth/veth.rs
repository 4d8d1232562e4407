//! Two hosts, `a` and `b`, each a network namespace with one end of a veth pair.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr},
    process::{self, Child, Command, Output, Stdio},
    sync::{
        RwLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns};
use roced_xdp::{AttachedMode, CopyMode, NicQueue, NicQueueConfig, XdpError, XdpMode, XdpProgram};

/// Name of the interface, the same on both hosts.
pub(crate) const INTERFACE: &str = "veth0";

/// Programs that a test runs in both namespaces.
pub(crate) const MODES: [(XdpMode, AttachedMode); 2] =
    [(XdpMode::Native, AttachedMode::Native), (XdpMode::Generic, AttachedMode::Generic)];

/// The pair. Dropping it removes both namespaces and with them the interfaces.
pub(crate) struct Pair {
    pub(crate) a: Host,
    pub(crate) b: Host,
}

pub(crate) struct Host {
    namespace: String,
    pub(crate) address: IpAddr,
    address_v6: &'static str,
}

/// One end in use: the program and its queues.
pub(crate) struct End {
    pub(crate) program: XdpProgram,
    pub(crate) queues: Vec<NicQueue>,
}

impl Pair {
    /// A pair with `mtu`, and as many RX and TX queues on each side as said.
    pub(crate) fn new(mtu: u32, queues_a: u32, queues_b: u32) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("rt-{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let host = |letter, last, address_v6| Host {
            namespace: format!("{prefix}{letter}"),
            address: Ipv4Addr::new(10, 77, 0, last).into(),
            address_v6,
        };
        // Made before anything can fail, so that its drop cleans up in any case.
        let pair = Self { a: host('a', 1, "fd00:77::1/64"), b: host('b', 2, "fd00:77::2/64") };
        ip(&["netns", "add", &pair.a.namespace]);
        ip(&["netns", "add", &pair.b.namespace]);
        let (rx, tx) = (queues_b.to_string(), queues_b.to_string());
        let peer = ["peer", "name", INTERFACE, "netns", &pair.b.namespace, "numrxqueues", &rx, "numtxqueues", &tx];
        let (rx, tx) = (queues_a.to_string(), queues_a.to_string());
        let mut add = vec!["-n", &pair.a.namespace, "link", "add", INTERFACE];
        add.extend(["numrxqueues", &rx, "numtxqueues", &tx, "type", "veth"]);
        add.extend(peer);
        ip(&add);
        for host in [&pair.a, &pair.b] {
            host.ip(&["link", "set", INTERFACE, "mtu", &mtu.to_string(), "up"]);
            host.ip(&["address", "add", &format!("{}/24", host.address), "dev", INTERFACE]);
            host.ip(&["address", "add", host.address_v6, "dev", INTERFACE, "nodad"]);
        }
        // The namespaces must see each other's carrier before frames pass.
        let up = |host: &Host| host.ip(&["link", "show", INTERFACE]).contains("state UP");
        while !(up(&pair.a) && up(&pair.b)) {
            thread::sleep(Duration::from_millis(2));
        }
        pair
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for host in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", &host.namespace]).output();
        }
    }
}

impl Host {
    /// Result of `work` on this host: interfaces are looked up in the namespace of the thread.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                self.enter();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The calling thread is on this host from now on.
    pub(crate) fn enter(&self) {
        let namespace = File::open(self.namespace_path()).expect("the namespace is there");
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("root enters a namespace");
    }

    /// Where its network namespace can be opened.
    pub(crate) fn namespace_path(&self) -> String {
        format!("/var/run/netns/{}", self.namespace)
    }

    /// `program` to be run on this host, as one process.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// ip(8) on this host; returns its output.
    pub(crate) fn ip(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-n", &*self.namespace];
        all.extend(arguments);
        ip(&all)
    }

    /// Whether an XDP program is on the interface, as `ip -d link` says.
    pub(crate) fn has_program(&self) -> bool {
        self.ip(&["-d", "link", "show", INTERFACE]).contains("xdp")
    }

    /// The program on this host. A process that another test starts has all our descriptors until
    /// its exec closes them, and is told of as started before that: a program that this test gave
    /// up may stay for that long.
    pub(crate) fn attach(&self, mode: XdpMode) -> XdpProgram {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            match self.run(|| XdpProgram::attach(INTERFACE, mode)) {
                Err(XdpError::ProgramPresent { .. }) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                attached => return attached.unwrap_or_else(|error| panic!("{error}: {error:?}")),
            }
        }
    }

    pub(crate) fn open(&self, config: &NicQueueConfig) -> NicQueue {
        self.try_open(config).unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    /// Opens a queue while no process is started: see [`start`].
    pub(crate) fn try_open(&self, config: &NicQueueConfig) -> Result<NicQueue, XdpError> {
        let _no_start = no_start();
        self.run(|| NicQueue::open(config))
    }

    /// The program with this host's address, and the queues from 0 on, bound.
    pub(crate) fn serve(&self, mode: (XdpMode, AttachedMode), queues: u32) -> End {
        let configs = (0..queues).map(|queue| NicQueueConfig { queue, ..config() });
        self.serve_with(mode, configs)
    }

    pub(crate) fn serve_with(
        &self,
        (asked, got): (XdpMode, AttachedMode),
        configs: impl Iterator<Item = NicQueueConfig>,
    ) -> End {
        let mut program = self.attach(asked);
        assert_eq!(program.mode(), got);
        let queues: Vec<_> = configs.map(|config| self.open(&config)).collect();
        for queue in &queues {
            program.bind_socket(queue.queue(), queue.socket()).expect("a socket on its queue");
        }
        program.set_addresses(&[self.address], roced_steering::ROCE_V2).expect("room for an address");
        End { program, queues }
    }
}

/// A queue as a test wants it: small, so that rings run over soon.
pub(crate) fn config() -> NicQueueConfig {
    NicQueueConfig {
        link_mtu_bytes: 9000,
        interface: INTERFACE.into(),
        queue: 0,
        copy_mode: CopyMode::Auto,
        umem_frames: 512,
        chunk_bytes: 4096,
        rx_ring_entries: 256,
        tx_ring_entries: 128,
        fill_ring_entries: 256,
        completion_ring_entries: 128,
        busy_deadline: Duration::from_secs(3),
    }
}

/// Held by every opener of a queue, and alone by a starter of processes.
static STARTING: RwLock<()> = RwLock::new(());

/// Prevents the start of processes while a queue is opened: see [`start`].
pub(crate) fn no_start() -> impl Drop {
    STARTING.read().expect("no panic while starting")
}

/// Starts a process. libxdp makes its socket so that new processes inherit it, and only when it is
/// bound does [`NicQueue::open`] change that: a process started in between by another test would
/// keep that queue busy.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    let _no_open = STARTING.write().expect("no panic while opening");
    command.spawn()
}

fn ip(arguments: &[&str]) -> String {
    let mut command = Command::new("ip");
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = start(&mut command).and_then(Child::wait_with_output).expect("ip(8) is there");
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}
