//! The connection manager by seed: hosts with programs, and a network that decides about each
//! management datagram.
//!
//! ```text
//!   programs ─ calls ─► Identifiers ─ MADs ─► queue pair 1 ─ frames ─► links, and the way back
//!      │  ◄─── events ───    │                                  │
//!      └──── checkers (check/): calls, events, datagrams ───────┘
//! ```
//!
//! Two or three hosts have programs that listen, connect, accept, refuse, disconnect, or do none of
//! that, and that are killed. Hosts crash and forget everything, stop in order, and lose their
//! device for a while. The identifiers, the connection manager below them and queue pair 1 are
//! those that ship; programs, queue pairs and the network are simulated, on a virtual clock.
//!
//! Each end of a connection has a number that travels in private data, so that the checkers know
//! which two ends belong together without a look at either connection manager.

mod agenda;
mod audit;
mod check;
mod crowd;
mod ends;
mod hosts;
mod links;
mod machine;
mod mad;
mod manners;
mod numbers;
mod programs;
mod steps;
mod surroundings;
mod tally;
mod world;

pub use self::tally::{ConnectionTally, NAMES};
use self::world::World;
use crate::violation::Violation;

/// Result of one seed with connections.
#[derive(Debug)]
pub struct ConnectionOutcome {
    /// Frames that left the hosts.
    pub frames: u64,
    /// Events and faults of the seed.
    pub tally: ConnectionTally,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
}

/// Runs a seed to its end, or to the first violation. With `trace` it prints each call, frame and
/// event.
pub fn run_connections(seed: u64, trace: bool) -> ConnectionOutcome {
    World::new(seed, trace).run()
}

/// Connects `connections` queue pairs of one program at once, and kills it.
pub fn run_crowd(seed: u64, connections: u32, trace: bool) -> ConnectionOutcome {
    crowd::run(seed, connections, trace)
}
