//! Two network namespaces and their links: pairs of veth interfaces that are all made alike.
//!
//! A pair for each kind of contestant, so that none has to share a queue, an XDP program or an
//! offload with another. The script that starts the benchmark removes the namespaces, however this
//! process ends.

use std::{fs::File, net::Ipv4Addr, process::Command, thread};

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkSide {
    /// The side that begins.
    A,
    /// The side that answers.
    B,
}

impl NetworkSide {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other one.
    pub(crate) const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// A core of its own, if there are two.
    pub(crate) fn core(self) -> usize {
        usize::from(self.number() - 1) % thread::available_parallelism().map_or(1, usize::from)
    }

    const fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// As it is named.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }
}

/// A pair of interfaces, of which each host has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    /// The daemons'.
    Roce,
    /// Raw AF_XDP frames: made exactly as the daemons'.
    Raw,
    /// TCP with every offload off: its frames are those of a wire.
    TcpPlain,
    /// TCP with the offloads that veth has by default.
    Tcp,
    /// Daemons of which host b, which receives, has its NAPI moved (`--napi`): made as the first
    /// pair, and theirs alone, because such a setting is the device's.
    RoceNapi,
    /// Daemons of two queues, with a worker for each.
    RoceTwo,
    /// Daemons of two queues, of which each worker of host b has the queue at which the other's
    /// frames arrive: all of them are forwarded.
    RoceCrossed,
    /// Raw frames with the receiver's NAPI moved.
    RawNapi,
}

impl Pair {
    const ALL: [Self; 8] = [
        Self::Roce,
        Self::Raw,
        Self::TcpPlain,
        Self::Tcp,
        Self::RoceNapi,
        Self::RoceTwo,
        Self::RoceCrossed,
        Self::RawNapi,
    ];

    /// Whether it is there for `--napi` only.
    pub(crate) const fn moves_napi(self) -> bool {
        matches!(self, Self::RoceNapi | Self::RawNapi)
    }

    /// Queues of the interfaces.
    pub(crate) const fn queues(self) -> usize {
        match self {
            Self::RoceTwo | Self::RoceCrossed => 2,
            _ => 1,
        }
    }

    const fn number(self) -> u8 {
        self as u8
    }

    /// The interface's name on either host.
    pub(crate) fn interface(self) -> String {
        format!("eth{}", self.number())
    }

    /// The address of a host on it.
    pub(crate) const fn address(self, side: NetworkSide) -> Ipv4Addr {
        Ipv4Addr::new(10, 10 + self.number(), 0, side.number())
    }

    /// The interface's hardware address.
    pub(crate) const fn mac(self, side: NetworkSide) -> [u8; 6] {
        [2, 0, 0, 0, self.number(), side.number()]
    }

    /// Arguments of `ethtool -K`. Of frames that XDP reads, checksums are finished and VLAN tags
    /// stand in the bytes.
    const fn features(self) -> &'static [&'static str] {
        match self {
            Self::TcpPlain => &["tso", "off", "gso", "off", "gro", "off", "tx", "off"],
            Self::Tcp => &[],
            _ => &["tx", "off", "txvlan", "off", "rxvlan", "off"],
        }
    }
}

/// The two hosts.
#[derive(Debug)]
pub(crate) struct BenchNetwork {
    name: String,
}

impl BenchNetwork {
    /// Makes the namespaces `NAME-a` and `NAME-b` and all pairs between them.
    pub(crate) fn new(name: &str, mtu: u32) -> anyhow::Result<Self> {
        let network = Self { name: name.to_owned() };
        for side in NetworkSide::BOTH {
            let space = network.space(side);
            run("ip", &["netns", "add", &space])?;
            run("ip", &["-n", &space, "link", "set", "lo", "up"])?;
        }
        for pair in Pair::ALL {
            network.connect(pair, mtu)?;
        }
        Ok(network)
    }

    fn connect(&self, pair: Pair, mtu: u32) -> anyhow::Result<()> {
        let (a, b, interface, mtu) =
            (self.space(NetworkSide::A), self.space(NetworkSide::B), pair.interface(), mtu.to_string());
        let [mac_a, mac_b] = NetworkSide::BOTH.map(|side| pair.mac(side).map(|byte| format!("{byte:02x}")).join(":"));
        let queues = pair.queues().to_string();
        let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
        let here = ["link", "add", &interface, "netns", &a, "mtu", &mtu, "address", &mac_a];
        let there = ["type", "veth", "peer", "name", &interface, "netns", &b, "mtu", &mtu, "address", &mac_b];
        run("ip", &[&here[..], &queues, &there, &queues].concat())?;
        for side in NetworkSide::BOTH {
            let (space, address) = (self.space(side), format!("{}/24", pair.address(side)));
            if !pair.features().is_empty() {
                let ethtool = ["netns", "exec", &space, "ethtool", "-K", &interface];
                run("ip", &[&ethtool[..], pair.features()].concat())?;
            }
            run("ip", &["-n", &space, "addr", "add", &address, "dev", &interface])?;
            run("ip", &["-n", &space, "link", "set", &interface, "up"])?;
        }
        // Nothing that is measured waits for an address to be found.
        for side in NetworkSide::BOTH {
            let (space, peer) = (self.space(side), pair.address(side.peer()).to_string());
            let mac = pair.mac(side.peer()).map(|byte| format!("{byte:02x}")).join(":");
            run("ip", &["-n", &space, "neigh", "replace", &peer, "lladdr", &mac, "dev", &interface])?;
        }
        Ok(())
    }

    /// The namespace of a host.
    pub(crate) fn space(&self, side: NetworkSide) -> String {
        format!("{}-{}", self.name, side.letter())
    }

    /// `program` as it is started on a host.
    pub(crate) fn command(&self, side: NetworkSide, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(side)]).arg(program);
        command
    }

    /// Calls `make` on a host: the objects that it makes there (sockets, programs on interfaces)
    /// stay there, regardless of their user.
    pub(crate) fn on<T: Send>(
        &self,
        side: NetworkSide,
        make: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let path = format!("/run/netns/{}", self.space(side));
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let space = File::open(&path).with_context(|| path.clone())?;
                setns(space, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))?;
                make()
            });
            thread.join().expect("a thread of ours does not panic")
        })
    }
}

/// Runs a command to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
