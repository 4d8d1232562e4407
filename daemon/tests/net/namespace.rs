//! Network namespaces that a test makes for itself and that vanish with it, whether it passes or
//! fails.

use std::{
    collections::HashMap,
    fs::File,
    net::IpAddr,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, setns},
    unistd::geteuid,
};
use roced::net::{Asker, DeviceInterface, FollowId, GidTableEntry, Net, NetError, NetworkChange, NextHop};
use roced_types::{AccountId, DeviceId};

/// A network namespace, `rt-<pid>-<number>-<name>`.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// A fresh one with its loopback up. `None`, with a printed reason, without the privilege.
    pub(crate) fn new(name: &str) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            println!("skipped: only root can make network namespaces");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = Self { name: format!("rt-{}-{number}-{name}", process::id()) };
        run("ip", &["netns", "add", &namespace.name]);
        namespace.ip("link set lo up");
        // Most tests want an IPv6 address to be usable at once; tests of duplicate detection turn
        // it on.
        namespace.sysctl("net.ipv6.conf.default.accept_dad=0");
        Some(namespace)
    }

    /// Runs `ip` in it.
    pub(crate) fn ip(&self, arguments: &str) {
        let arguments: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.split_whitespace()).collect();
        run("ip", &arguments);
    }

    /// The kernel's own neighbor entry for that address is stale.
    pub(crate) fn calls_stale(&self, neighbor: &str) -> bool {
        let output = Command::new("ip").args(["-n", &self.name, "neigh", "show", neighbor]).output();
        let output = output.expect("iproute2 is installed");
        String::from_utf8_lossy(&output.stdout).contains("STALE")
    }

    /// Neighbors that its kernel looks for.
    pub(crate) fn asked_neighbors(&self) -> usize {
        let arguments = ["-n", &self.name, "neigh", "show", "nud", "incomplete"];
        let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    /// IPv4 neighbors in its kernel's table, those included that did not answer.
    pub(crate) fn neighbors(&self) -> usize {
        let arguments = ["-n", &self.name, "-4", "neigh", "show", "nud", "all"];
        let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    /// Runs many lines of `ip` in it.
    pub(crate) fn ip_batch(&self, lines: &str) {
        let file = tempfile::NamedTempFile::new().expect("a scratch file");
        std::fs::write(file.path(), lines).expect("the scratch file can be written");
        run("ip", &["-n", &self.name, "-batch", file.path().to_str().expect("a scratch path is UTF-8")]);
    }

    /// Sets a kernel parameter of it.
    pub(crate) fn sysctl(&self, assignment: &str) {
        run("ip", &["netns", "exec", &self.name, "sysctl", "-qw", assignment]);
    }

    /// Puts VLAN `id` on an interface, up. False, with a printed reason, where the kernel has no
    /// VLAN interfaces.
    pub(crate) fn add_vlan(&self, interface: &str, id: u16) -> bool {
        let line = format!("-n {} link add link {interface} name {interface}.{id} type vlan id {id}", self.name);
        let status = Command::new("ip").args(line.split(' ')).status().expect("iproute2 is installed");
        if !status.success() {
            println!("skipped: this kernel has no VLAN interfaces (modprobe 8021q)");
            return false;
        }
        self.ip(&format!("link set {interface}.{id} up"));
        true
    }

    /// Joins `mine` here with `theirs` there, both up.
    pub(crate) fn join(&self, mine: &str, other: &Self, theirs: &str) {
        let line = format!("link add {mine} type veth peer name {theirs} netns {}", other.name);
        self.ip(&line);
        self.ip(&format!("link set {mine} up"));
        other.ip(&format!("link set {theirs} up"));
    }

    /// The name, for `ip`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The network of this namespace as a daemon in it sees it, with a device for each interface.
    pub(crate) fn open(&self, interfaces: &[&str], resolve_timeout: Duration) -> Result<Watched, NetError> {
        let interfaces: Vec<DeviceInterface> = (0..)
            .zip(interfaces)
            .map(|(id, name)| DeviceInterface { device: DeviceId(id), name: (*name).to_owned() })
            .collect();
        let net = self.inside(|| Net::open(&interfaces, resolve_timeout))?;
        Ok(Watched { net, heard: Vec::new(), hops: HashMap::new() })
    }

    /// Runs code in it. Sockets opened there stay there.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
        // Only that thread's namespace changes, and it ends at once.
        thread::scope(|scope| {
            let acting = scope.spawn(move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).expect("root may enter it");
                act()
            });
            acting.join().expect("the thread does not panic")
        })
    }

    /// Whether the kernel is a member of a multicast group on an interface.
    pub(crate) fn is_member(&self, group: &str, interface: &str) -> bool {
        let output = Command::new("ip").args(["-n", &self.name, "maddr", "show", "dev", interface]).output();
        let text = String::from_utf8(output.expect("iproute2 is installed").stdout).expect("it writes ASCII");
        // More users of a group stand behind it.
        text.lines().any(|line| line.split_whitespace().nth(1) == Some(group))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let deleted = Command::new("ip").args(["netns", "del", &self.name]).status();
        if !deleted.is_ok_and(|status| status.success()) {
            eprintln!("the network namespace {} is left over", self.name);
        }
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("iproute2 is installed");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {complaint}", arguments.join(" "));
}

/// A [`Net`] with the loop around it that the daemon has.
pub(crate) struct Watched {
    pub(crate) net: Net,
    /// Everything that it said since the last [`Self::until`].
    pub(crate) heard: Vec<NetworkChange>,
    hops: HashMap<FollowId, NextHop>,
}

impl Watched {
    /// Follows most.
    pub(crate) const ASKER: Asker = Asker::Account(AccountId(1000));

    /// The first device.
    pub(crate) fn device(&self) -> &roced::net::DeviceNet {
        self.net.device(DeviceId(0))
    }

    /// The first device's addresses by index.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.device().gids.entries().map(|(_, gid)| gid.address.to_string()).collect()
    }

    /// The GID of that address, which may have been given to the interface just before: the kernel
    /// takes a moment to let an IPv6 address be used, by a thread of its own, even where it does
    /// not look for duplicates.
    pub(crate) fn gid(&mut self, device: u32, address: &str) -> GidTableEntry {
        let address: IpAddr = address.parse().expect("the test knows addresses");
        let find = |net: &Self| {
            let mut gids = net.net.device(DeviceId(device)).gids.entries();
            gids.find(|(_, gid)| gid.address == address).map(|(_, gid)| *gid)
        };
        if find(self).is_none() {
            self.until(&format!("{address} is a GID"), |net| find(net).is_some());
        }
        find(self).expect("it is")
    }

    /// Follows a destination from the GID of the first device that has that address.
    pub(crate) fn follow(&mut self, source: &str, destination: &str) -> FollowId {
        let gid = self.gid(0, source);
        self.follow_from(gid, destination)
    }

    /// Follows a destination from a GID of the first device.
    pub(crate) fn follow_from(&mut self, gid: GidTableEntry, destination: &str) -> FollowId {
        self.follow_for(Self::ASKER, gid, destination)
    }

    /// Follows a destination for an asker.
    pub(crate) fn follow_for(&mut self, asker: Asker, gid: GidTableEntry, destination: &str) -> FollowId {
        let destination = destination.parse().expect("the test knows addresses");
        let (id, next) = self.net.follow(DeviceId(0), gid, destination, asker).expect("there is a route");
        self.hops.insert(id, next);
        id
    }

    /// The next hop as last told.
    pub(crate) fn hop(&self, id: FollowId) -> NextHop {
        self.hops[&id]
    }

    /// Runs the loop until `done`; gives how long that took.
    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        self.heard.clear();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "never: {what}; hops {:?}", self.hops);
            self.turn(Duration::from_millis(200));
        }
        start.elapsed()
    }

    /// Runs the loop for a while.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| *left > Duration::ZERO) {
            self.turn(left);
        }
    }

    fn turn(&mut self, longest: Duration) {
        let due = self.net.deadline().map_or(longest, |due| due.saturating_duration_since(Instant::now()));
        let wait = PollTimeout::try_from(due.min(longest) + Duration::from_millis(1)).expect("a second or less");
        let mut fds = [PollFd::new(self.net.fd(), PollFlags::POLLIN)];
        let mut changes = Vec::new();
        if poll(&mut fds, wait).expect("poll works") > 0 {
            changes.extend(self.net.on_readable().expect("netlink works"));
        }
        // As the control thread, which reads the clock first.
        let now = Instant::now();
        if self.net.deadline().is_some_and(|due| due <= now) {
            changes.extend(self.net.on_deadline());
        }
        for change in changes {
            if let NetworkChange::NextHop(id, next) = change {
                self.hops.insert(id, next);
            }
            self.heard.push(change);
        }
    }
}
