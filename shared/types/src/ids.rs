//! Numbers with a type each, so that no two can be mistaken for one another.
//!
//! A [`Qpn`] contains an [`EndpointId`] of the owner of the queue pair (one worker and one device),
//! so that the destination QPN of a frame identifies the owner. An endpoint has several of them
//! ([`EndpointIds`]):
//!
//! ```text
//!   23        18 17                     0
//!  +------------+------------------------+
//!  | EndpointId |         index          |
//!  +------------+------------------------+
//! ```

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 24-bit queue pair number. 0 and 1 (SMI and GSI) are never a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Qpn(u32);

impl Qpn {
    /// Bits of the index below the endpoint.
    pub const INDEX_BITS: u32 = 18;
    /// Queue pairs that one endpoint can number.
    pub const INDEX_COUNT: u32 = 1 << Self::INDEX_BITS;
    /// The general services interface, where connection managers speak (IBTA v1 3.9.4).
    pub const GSI: Self = Self(1);
    /// The destination of multicast datagrams.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// The low 24 bits of `value`, as they stand in a header.
    pub const fn from_wire(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The queue pair `index` of `endpoint`.
    ///
    /// # Panics
    /// When `index` has more than [`Self::INDEX_BITS`] bits: the caller hands out indices below its
    /// own table's size.
    pub const fn new(endpoint: EndpointId, index: u32) -> Self {
        assert!(index < Self::INDEX_COUNT, "a queue pair index has 18 bits");
        Self(((endpoint.0 as u32) << Self::INDEX_BITS) | index)
    }

    /// The 24 bits as a number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The endpoint that owns this queue pair.
    pub const fn endpoint(self) -> EndpointId {
        EndpointId(((self.0 >> Self::INDEX_BITS) & 0x3f) as u8)
    }

    /// The place in that endpoint's table.
    pub const fn index(self) -> u32 {
        self.0 & (Self::INDEX_COUNT - 1)
    }

    /// True for the numbers that the specification keeps for itself: SMI, GSI and multicast.
    pub const fn is_reserved(self) -> bool {
        // One compare: in 24 bits, multicast is next to SMI.
        self.0.wrapping_add(1) & 0x00ff_ffff <= 2
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// A shared receive queue: the endpoint that its queue pairs belong to, and a place in that
/// endpoint's table, in 24 bits as those of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Srqn(u32);

impl Srqn {
    /// The queue `index` of `endpoint`.
    ///
    /// # Panics
    /// As [`Qpn::new`].
    pub const fn new(endpoint: EndpointId, index: u32) -> Self {
        Self(Qpn::new(endpoint, index).0)
    }

    /// The 24 bits as a number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The endpoint that owns it.
    pub const fn endpoint(self) -> EndpointId {
        Qpn(self.0).endpoint()
    }

    /// The place in that endpoint's table.
    pub const fn index(self) -> u32 {
        Qpn(self.0).index()
    }
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srq 0x{:06x}", self.0)
    }
}

/// One worker's part of one device: the unit that owns queue pairs. At most [`EndpointId::COUNT`]
/// in a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u8);

impl EndpointId {
    /// Endpoints that a QPN can name.
    pub const COUNT: usize = 64;

    /// The endpoint `number`, or `None` when a QPN could not name it.
    pub const fn new(number: usize) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number as u8)) } else { None }
    }

    /// Its number, an index into the daemon's table of endpoints.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// Numbers that stand for one endpoint in the numbers of its queue pairs. A daemon with few
/// endpoints gives several to each, so that a QPN has as many unpredictable bits as it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointIds {
    /// The least of them: each leaves this remainder when divided by `endpoints`.
    first: u8,
    endpoints: u8,
}

impl EndpointIds {
    /// All numbers that leave the remainder `endpoint` when divided by `endpoints`.
    ///
    /// # Panics
    /// Without endpoints, or if `endpoint` is none of them, or with more than
    /// [`EndpointId::COUNT`].
    pub const fn of(endpoint: EndpointId, endpoints: usize) -> Self {
        assert!((endpoint.0 as usize) < endpoints && endpoints <= EndpointId::COUNT, "an endpoint is one of all");
        Self { first: endpoint.0, endpoints: endpoints as u8 }
    }

    /// The endpoint has this number.
    pub const fn contains(self, id: EndpointId) -> bool {
        id.0 % self.endpoints == self.first
    }

    /// One of the numbers, by random bits.
    pub const fn pick(self, random: u32) -> EndpointId {
        let count = (EndpointId::COUNT as u32 - self.first as u32).div_ceil(self.endpoints as u32);
        EndpointId(self.first + (random % count) as u8 * self.endpoints)
    }
}

impl From<EndpointId> for EndpointIds {
    fn from(id: EndpointId) -> Self {
        Self::of(id, EndpointId::COUNT)
    }
}

/// Most worker threads of a daemon: each needs an [`EndpointId`] for every device that it serves.
pub const WORKERS_MAX: u32 = EndpointId::COUNT as u32;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// A completion queue, unique in the daemon.
    Cqn, "cq{}"
);
number!(
    /// A protection domain, unique in the daemon.
    Pdn, "pd{}"
);
number!(
    /// A piece of client memory that the daemon has mapped, unique in the daemon.
    MemoryObjectId, "memory{}"
);
number!(
    /// A client's connection, unique in the daemon's life.
    SessionId, "session{}"
);
number!(
    /// The account of a user: the uid, or for a subordinate uid that of its owner.
    AccountId, "account{}"
);
number!(
    /// A worker thread, 0 for the first one in the config.
    WorkerId, "worker{}"
);
number!(
    /// A device of the daemon, 0 for the first one in the config.
    DeviceId, "device{}"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qpn_names_its_endpoint_and_index() {
        let endpoint = EndpointId::new(63).expect("63 is the last endpoint");
        let qpn = Qpn::new(endpoint, Qpn::INDEX_COUNT - 2);
        assert_eq!((qpn.endpoint(), qpn.index()), (endpoint, Qpn::INDEX_COUNT - 2));
        assert_eq!(Qpn::from_wire(qpn.get() | 0xab00_0000), qpn);
        assert!(EndpointId::new(64).is_none());
        assert!(Qpn::from_wire(0xffff_ffff).is_reserved());
    }
}
