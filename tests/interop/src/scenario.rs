//! A scenario: a program of the distribution or a question of our own, the side that asks, the
//! network, and the faults on the way.

use std::fmt;

use crate::cm_test::CmTest;

/// The implementation at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Ours, on the host.
    Roced,
    /// Linux's, in the guest.
    Rxe,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Roced, Self::Rxe];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Roced => Self::Rxe,
            Self::Rxe => Self::Roced,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roced => "roced",
            Self::Rxe => "rxe",
        })
    }
}

/// Which of an interface's addresses are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Network {
    Ipv4,
    Ipv6,
    LinkLocal,
}

impl Network {
    pub(crate) const ALL: [Self; 3] = [Self::Ipv4, Self::Ipv6, Self::LinkLocal];

    /// Whether a GID, as `ibv_devinfo` writes it, is of this kind.
    pub(crate) fn is_of(self, gid: &str) -> bool {
        self == if gid.starts_with("fe80") {
            Self::LinkLocal
        } else if gid.starts_with("::ffff:") {
            Self::Ipv4
        } else {
            Self::Ipv6
        }
    }
}

impl Network {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::LinkLocal => "link-local",
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Faults of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    Drop,
    Duplicate,
    Corrupt,
    /// Marks of congestion (CE) on packets that may be marked: no frame is lost.
    Mark,
}

impl Harm {
    /// Those that stock programs are run with.
    pub(crate) const ALL: [Self; 3] = [Self::Drop, Self::Duplicate, Self::Corrupt];

    /// As `scripts/lab fault` and its counters call it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Drop => "--drop",
            Self::Duplicate => "--duplicate",
            Self::Corrupt => "--corrupt",
            Self::Mark => "--mark",
        }
    }
}

/// Shares of frames that are harmed.
pub(crate) const RATES: [&str; 3] = ["0", "0.5%", "2%"];

/// Test of a program of the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stock {
    RcPingpong,
    SrqPingpong,
    UcPingpong,
    UdPingpong,
    SendBw,
    SendLat,
    WriteBw,
    WriteLat,
    ReadBw,
    ReadLat,
    AtomicBw,
    AtomicLat,
    UcSendBw,
    UcWriteBw,
    UdSendBw,
}

impl Stock {
    pub(crate) const ALL: [Self; 15] = [
        Self::RcPingpong,
        Self::SrqPingpong,
        Self::UcPingpong,
        Self::UdPingpong,
        Self::SendBw,
        Self::SendLat,
        Self::WriteBw,
        Self::WriteLat,
        Self::ReadBw,
        Self::ReadLat,
        Self::AtomicBw,
        Self::AtomicLat,
        Self::UcSendBw,
        Self::UcWriteBw,
        Self::UdSendBw,
    ];

    /// The program, and its options that make it this.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::RcPingpong => "ibv_rc_pingpong",
            Self::SrqPingpong => "ibv_srq_pingpong -q 4",
            Self::UcPingpong => "ibv_uc_pingpong",
            Self::UdPingpong => "ibv_ud_pingpong",
            Self::SendBw => "ib_send_bw",
            Self::SendLat => "ib_send_lat",
            Self::WriteBw => "ib_write_bw",
            Self::WriteLat => "ib_write_lat",
            Self::ReadBw => "ib_read_bw",
            Self::ReadLat => "ib_read_lat",
            Self::AtomicBw => "ib_atomic_bw",
            Self::AtomicLat => "ib_atomic_lat",
            Self::UcSendBw => "ib_send_bw -c UC",
            Self::UcWriteBw => "ib_write_bw -c UC",
            Self::UdSendBw => "ib_send_bw -c UD",
        }
    }

    pub(crate) fn is_pingpong(self) -> bool {
        matches!(self, Self::RcPingpong | Self::SrqPingpong | Self::UcPingpong | Self::UdPingpong)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLat)
    }

    pub(crate) fn is_datagram(self) -> bool {
        matches!(self, Self::UdPingpong | Self::UdSendBw)
    }

    /// The server sends as well: answers, or messages of its own.
    pub(crate) fn is_answered(self) -> bool {
        !matches!(self, Self::UcSendBw | Self::UcWriteBw | Self::UdSendBw)
    }

    /// perftest lets its user choose it.
    pub(crate) fn has_traffic_class(self) -> bool {
        !self.is_pingpong()
    }

    /// It ends although messages are lost.
    pub(crate) fn bears_loss(self) -> bool {
        !matches!(self, Self::UcPingpong | Self::UdPingpong | Self::UcSendBw | Self::UdSendBw)
    }
}

/// Sizes of messages.
pub(crate) const SIZES: [u32; 5] = [2, 61, 4096, 65_536, 1 << 20];

/// Path MTUs.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// With `--ecn on`, the share of packets that the switch marks in each scenario, of those that may
/// be marked.
pub(crate) const MARKED_SHARE: &str = "10%";

/// The largest path MTU there is.
pub(crate) const MTU_MAX: u32 = 4096;

/// Questions to the programs of `ends.c`.
pub(crate) const QUESTIONS: [&str; 14] = [
    "operations",
    "psn-wrap",
    "reuse",
    "rnr",
    "rnr-exceeded",
    "retry-exceeded",
    "send-too-long",
    "wrong-key-write",
    "wrong-key-read",
    "wrong-key-atomic",
    "no-right-write",
    "no-right-read",
    "out-of-bounds-write",
    "out-of-bounds-read",
];

/// A traffic class, or type of service, that has ECT(0) in its ECN bits: may be marked.
pub(crate) const ECT0: u8 = 2;

/// Another one, for a switch that marks packets.
pub(crate) const MARKED: &str = "marked";

/// Programs of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Stock(Stock),
    /// `ends.c`, asked for this.
    Ends(&'static str),
    /// The project's own client, every operation both ways, against `rxe-peer.c`.
    Client,
    /// Programs of librdmacm.
    Cm(CmTest),
    /// The guest goes away under load, and another comes.
    Reboot,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) run: Run,
    pub(crate) client: Side,
    pub(crate) size: u32,
    pub(crate) mtu: u32,
    pub(crate) network: Network,
    pub(crate) harm: Option<(Harm, &'static str)>,
}

impl Scenario {
    /// Over IPv4 and an ordinary path MTU, with nothing in the way.
    pub(crate) fn plain(run: Run, client: Side) -> Self {
        Self { run, client, size: 65_536, mtu: 1024, network: Network::Ipv4, harm: None }
    }

    pub(crate) fn program(&self) -> String {
        match self.run {
            Run::Stock(stock) => stock.command().to_owned(),
            Run::Ends(what) => format!("ends {what}"),
            Run::Client => "e2e-client rxe".to_owned(),
            Run::Cm(test) => format!("rdma_cm: {}", test.program()),
            Run::Reboot => "guest reboots".to_owned(),
        }
    }

    /// The largest payload that a packet may have, where it is one for all connections.
    pub(crate) fn path_mtu(&self) -> Option<u32> {
        (!matches!(self.run, Run::Client | Run::Cm(_))).then_some(self.mtu)
    }

    /// The side that asks, and the side that is asked.
    pub(crate) fn direction(&self) -> String {
        format!("{} > {}", self.client, self.client.other())
    }

    pub(crate) fn faults(&self) -> String {
        self.harm
            .map_or_else(|| "-".to_owned(), |(harm, rate)| format!("{} {rate}", harm.option().trim_start_matches('-')))
    }

    /// The switch has a fault that keeps frames from arriving whole.
    pub(crate) fn loses_frames(&self) -> bool {
        matches!(self.harm, Some((Harm::Drop | Harm::Corrupt, _)))
    }

    /// Whether rxe's packets may be marked: its program asks for that by the ECN bits of the traffic
    /// class. `ecn`: roced's may. Without it, only where the switch marks.
    pub(crate) fn marks_rxe(&self, ecn: bool) -> bool {
        let has_option = match self.run {
            Run::Stock(stock) => stock.has_traffic_class(),
            // Those show how the two differ by themselves.
            Run::Ends(what) => what != "operations",
            // A server answers datagrams as it likes.
            Run::Cm(CmTest::Udaddy) => self.client == Side::Rxe,
            Run::Cm(test) => test.has_type_of_service(),
            Run::Client => true,
            Run::Reboot => false,
        };
        has_option && (ecn || self.is_marked())
    }

    /// The switch marks packets whether roced's may be marked or not.
    pub(crate) fn is_marked(&self) -> bool {
        matches!(self.harm, Some((Harm::Mark, _)))
    }

    /// The share of packets that the switch marks, of those that may be marked.
    pub(crate) fn marked_share(&self, ecn: bool) -> f64 {
        let percent = |rate: &str| rate.trim_end_matches('%').parse::<f64>().expect("a number") / 100.0;
        match (self.run, self.harm) {
            (_, Some((Harm::Mark, rate))) => percent(rate),
            // Its faults are for datagrams alone.
            (Run::Cm(CmTest::FifthLost), _) => 0.0,
            _ if ecn => percent(MARKED_SHARE),
            _ => 0.0,
        }
    }

    /// Whether there must be frames of that side: the client always asks; a server without a
    /// promise to answer may be silent.
    pub(crate) fn speaks(&self, side: Side) -> bool {
        let is_answered = match self.run {
            Run::Stock(stock) => stock.is_answered(),
            // The other end has no such queue pair.
            Run::Ends(what) => what != "retry-exceeded",
            Run::Cm(test) => test.is_answered(),
            Run::Client | Run::Reboot => true,
        };
        side == self.client || is_answered
    }

    pub(crate) fn bytes(&self) -> String {
        match self.run {
            Run::Stock(stock) if stock.is_atomic() => "8".to_owned(),
            Run::Stock(_) => self.size.to_string(),
            _ => "-".to_owned(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, direction, bytes) = (self.program(), self.direction(), self.bytes());
        write!(f, "{program}, {direction}, {bytes} bytes, MTU {}, {}, {}", self.mtu, self.network, self.faults())
    }
}
