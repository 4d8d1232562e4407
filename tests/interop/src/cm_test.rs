//! Tests of a connection manager against the other, by programs of the distribution's librdmacm.

/// Rounds of `rping`.
pub(crate) const ROUNDS: usize = 20;
/// Datagrams of a connection, in the order in which they are sent.
pub(crate) const DATAGRAMS: [&str; 5] = ["REQ", "REP", "RTU", "DREQ", "DREP"];
/// A multicast group, and the MAC address of its frames, as in `/proc/net/dev_mcast`.
const GROUP: &str = "239.9.8.7";
pub(crate) const GROUP_MAC: &str = "01005e090807";

/// A test of a connection manager against the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmTest {
    /// READ, WRITE and SEND, and a comparison of the data.
    Rping,
    /// So many connections at a time.
    Ucmatose(u8),
    /// Datagrams to a service that SIDR finds.
    Udaddy,
    /// Sockets over RDMA, with a comparison of the data.
    Rstream,
    WriteBw,
    /// `rping`, with one of the datagrams lost: REQ, REP, RTU, DREQ, DREP.
    Lost(u8),
    /// `ucmatose`, with a fifth of the datagrams lost, in both directions.
    FifthLost,
    /// Datagrams to a multicast group, which the receiver has joined.
    Mckey,
    /// The same by a sender that is no full member.
    MckeySendOnly,
    /// No listener at the port.
    NoListener,
    /// The server's program is killed under load.
    ServerKilled,
    ClientKilled,
    /// The client's program is killed when it is accepted, before it confirms that.
    KilledBeforeRtu,
    /// roced's daemon is killed under load, and started again.
    DaemonKilled,
    /// The guest's power fails, and the next guest connects with the same queue pair number.
    PowerFails,
}

impl CmTest {
    pub(crate) fn program(self) -> String {
        match self {
            Self::Rping => format!("rping -v -V -C {ROUNDS}"),
            Self::Ucmatose(connections) => format!("ucmatose -c {connections}"),
            Self::Udaddy => "udaddy -c 4".to_owned(),
            Self::Rstream => "rstream -T v -S 65536 -I 4 -C 8".to_owned(),
            Self::WriteBw => "ib_write_bw -R -F -n 50 -s 65536 -u 16".to_owned(),
            Self::Lost(nth) => format!("{}, {} lost", Self::Rping.program(), DATAGRAMS[usize::from(nth) - 1]),
            Self::FifthLost => format!("{}, 20 % of datagrams lost", Self::Ucmatose(10).program()),
            Self::Mckey => format!("mckey -m {GROUP} -C 10"),
            Self::MckeySendOnly => format!("{} -o", Self::Mckey.program()),
            Self::NoListener => "rping, no listener".to_owned(),
            Self::ServerKilled => "rping, server killed".to_owned(),
            Self::ClientKilled => "rping, client killed".to_owned(),
            Self::KilledBeforeRtu => "rping, client killed before its RTU".to_owned(),
            Self::DaemonKilled => "rping, daemon killed".to_owned(),
            Self::PowerFails => "same QPN after a power failure".to_owned(),
        }
    }

    /// The client's user chooses it, and the server takes it from the request for a connection.
    pub(crate) fn has_type_of_service(self) -> bool {
        matches!(self, Self::Ucmatose(_) | Self::WriteBw | Self::FifthLost)
    }

    /// The server sends as well: joining a group takes no datagram.
    pub(crate) fn is_answered(self) -> bool {
        !matches!(self, Self::Mckey | Self::MckeySendOnly)
    }
}
