//! Interface between the XDP program (C, in `ebpf/`) and the daemon: names of maps, their keys, the
//! verdict counters. The C side has the same facts in `ebpf/src/steer.h`; a test of `tests/xdp`
//! compares the two.
#![no_std]

/// Bit of an address's value: RoCEv2 for it is ours.
pub const ROCE_V2: u8 = 1;

/// Bit of an address's value: RoCEv1 for it is ours.
pub const ROCE_V1: u8 = 2;

/// Name of the program in the object file.
pub const PROGRAM: &str = "roced_xdp";

/// `BPF_MAP_TYPE_XSKMAP`: RX queue number (u32) to AF_XDP socket.
pub const MAP_SOCKETS: &str = "sockets";

/// `BPF_MAP_TYPE_HASH`: [`AddressKey`] to a u8 of [`ROCE_V2`] and [`ROCE_V1`]. The daemon keeps it
/// equal to the addresses of the device and the multicast groups that its queue pairs are attached
/// to.
pub const MAP_ADDRESSES: &str = "addresses";

/// `BPF_MAP_TYPE_PERCPU_ARRAY`: [`Verdict`] as u32 to a u64 count of frames.
pub const MAP_VERDICTS: &str = "verdicts";

/// Most addresses of its own that a device has in the address map.
pub const GIDS_MAX: u32 = 1024;

/// Most multicast groups of a device in the address map: they never take the room of its own
/// addresses.
pub const GROUPS_MAX: u32 = 4096;

/// Most addresses of one device that the address map holds.
pub const ADDRESSES_MAX: u32 = GIDS_MAX + GROUPS_MAX;

/// Most RX queues of one device.
pub const QUEUES_MAX: u32 = 256;

/// An address as the map's key: IPv6, or IPv4 mapped into it (`::ffff:a.b.c.d`), network byte
/// order. The same 16 bytes are the GID
/// (`roced_types::gid_of`).
pub type AddressKey = [u8; 16];

/// Action of the XDP program on a frame and its reason; the index into [`MAP_VERDICTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Verdict {
    /// RoCE for one of our addresses: given to the AF_XDP socket of its RX queue.
    Redirected = 0,
    /// RoCE for us, but no socket is bound on its RX queue: passed to the kernel.
    PassNoSocket = 1,
    /// Neither IPv4 nor IPv6 nor RoCEv1, or more than two VLAN tags: passed.
    PassNotIp = 2,
    /// IP, but not UDP to port 4791 (IPv6 extension headers included): passed.
    PassNotRoce = 3,
    /// RoCE, but the destination is not an address of this device: passed.
    PassNotOurs = 4,
    /// A fragment of an IP packet: passed, the kernel reassembles or refuses it.
    PassFragment = 5,
    /// Ends inside its own headers, or its IP or UDP length says more bytes than the frame has:
    /// passed.
    PassMalformed = 6,
}

impl Verdict {
    /// Every verdict, in the order of the counters.
    pub const ALL: [Self; 7] = [
        Self::Redirected,
        Self::PassNoSocket,
        Self::PassNotIp,
        Self::PassNotRoce,
        Self::PassNotOurs,
        Self::PassFragment,
        Self::PassMalformed,
    ];

    /// The counter's name, as `rocectl counters` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redirected => "xdp_redirected",
            Self::PassNoSocket => "xdp_pass_no_socket",
            Self::PassNotIp => "xdp_pass_not_ip",
            Self::PassNotRoce => "xdp_pass_not_roce",
            Self::PassNotOurs => "xdp_pass_not_ours",
            Self::PassFragment => "xdp_pass_fragment",
            Self::PassMalformed => "xdp_pass_malformed",
        }
    }
}
