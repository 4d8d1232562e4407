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

/// `BPF_MAP_TYPE_ARRAY` of one value of [`PAUSE_WORDS`] words, which can be mapped: pauses by the
/// other end of the link (PFC, PAUSE).
pub const MAP_PAUSES: &str = "pauses";

/// Priorities of IEEE 802.1Q.
pub const PRIORITIES: usize = 8;

/// u64 words of the value of [`MAP_PAUSES`]: those of [`PauseWord`], then five for each priority,
/// in the order of [`PriorityPauseWord`].
pub const PAUSE_WORDS: usize = PauseWord::Priorities as usize + PRIORITIES * PRIORITY_PAUSE_WORDS;

/// Words of a priority in the value of [`MAP_PAUSES`].
pub const PRIORITY_PAUSE_WORDS: usize = 5;

/// Bit of [`PauseWord::Honored`]: PAUSE frames, which pause all priorities.
pub const HONOR_GLOBAL_PAUSE: u64 = 256;

/// Place of a word in the value of [`MAP_PAUSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PauseWord {
    /// Bits of priorities that PFC frames pause, and [`HONOR_GLOBAL_PAUSE`]; 0 until the daemon has
    /// set them.
    Honored = 0,
    /// Duration of a quantum, the time of 512 bits on the link, in picoseconds. It follows the rate
    /// of the link.
    QuantumPicoseconds = 1,
    /// Honored frames. Rises after the other words that a frame changes, but may be seen before
    /// them.
    Frames = 2,
    /// Those of them that are PAUSE frames.
    GlobalFrames = 3,
    /// The first word of priority 0.
    Priorities = 4,
}

/// Place of a word among those of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PriorityPauseWord {
    /// Begin of its last pause, nanoseconds of CLOCK_MONOTONIC.
    BeginNanoseconds = 0,
    /// End of its last pause, likewise; 0 if a frame has ended it.
    UntilNanoseconds = 1,
    /// Honored frames that concern it.
    Frames = 2,
    /// Pauses before the last one that have ended, and all of them that a frame has ended.
    Ends = 3,
    /// Duration of all pauses before the last one, nanoseconds.
    DurationNanoseconds = 4,
}

impl PriorityPauseWord {
    /// Its place in the value of [`MAP_PAUSES`], for a priority below [`PRIORITIES`].
    pub const fn of(self, priority: usize) -> usize {
        PauseWord::Priorities as usize + priority * PRIORITY_PAUSE_WORDS + self as usize
    }
}

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
    /// A PFC or PAUSE frame that is honored: dropped.
    DropPause = 7,
}

impl Verdict {
    /// Every verdict, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::Redirected,
        Self::PassNoSocket,
        Self::PassNotIp,
        Self::PassNotRoce,
        Self::PassNotOurs,
        Self::PassFragment,
        Self::PassMalformed,
        Self::DropPause,
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
            Self::DropPause => "xdp_drop_pause",
        }
    }
}
