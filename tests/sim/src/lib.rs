//! Whole endpoints in a simulated network, by seed.
//!
//! ```text
//!   applications ─► work ─► Endpoint ─► frames ─► Network (weather) ─► frames ─► Endpoint ─► memory, completions
//!                                          │                              │                        │
//!                                          └───────────── checkers (check/, message by message) ───┘
//! ```
//!
//! A seed decides everything: connections and their settings, the requests of applications, the
//! fate of each frame in the network. Time is virtual; nothing else is simulated: the transport is
//! the one that ships. The model of an application knows for each work request which packets it
//! must become, which bytes must reach which place in which order, and how it must end; the
//! checkers compare that with the frames that leave the endpoints, those that reach them, and their
//! completions and events.
//!
//! [`run_make`] has peers of other makes, [`run_connections`] the connection manager.

mod application;
mod arriving;
mod check;
mod connection;
mod connections;
mod counting;
mod drain;
mod earlier;
mod fault;
mod forger;
mod frame;
mod host;
mod keys;
mod layout;
mod leaving;
mod life;
mod lockstep;
mod makes;
mod message;
mod model;
mod network;
mod notifications;
mod notified;
mod operation;
mod pattern;
mod plain;
mod random;
mod returning;
mod reuse;
mod say;
mod service;
mod shared;
mod stream;
mod table;
mod traffic;
mod violation;
mod world;

pub use self::{
    connections::{ConnectionOutcome, ConnectionTally, NAMES, run_connections, run_crowd},
    say::say,
    table::Table,
    violation::Violation,
};

/// Result of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// Frames that left either host.
    pub frames: u64,
    /// Queue pairs that were there at a time.
    pub qps: usize,
    /// Which faults hit which operations, and how often.
    pub table: Table,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
}

/// Frames that a seed has at the least.
pub const FRAMES: u64 = 2_000;

/// Runs a seed to its end, or to the first violation. With `trace` it prints each frame and event.
pub fn run(seed: u64, trace: bool) -> Outcome {
    world::World::new(seed, trace).run()
}

/// Names of the makes of peers.
pub const MAKES: [&str; 8] = plain::Make::NAMES;

/// Result of the transport and a peer of a make.
#[derive(Debug)]
pub struct MakeOutcome {
    /// Frames that left either host.
    pub frames: u64,
    /// Which of [`MAKES`]; none when an assertion failed.
    pub make: Option<usize>,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
}

/// Runs a seed with a peer of another make, and the model beside the transport, to its end or to
/// the first violation.
pub fn run_make(seed: u64, trace: bool) -> MakeOutcome {
    let (frames, make, violation) = makes::World::new(seed, trace).run();
    MakeOutcome { frames, make: Some(make), violation }
}
