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

mod arriving;
mod check;
mod connection;
mod connections;
mod counting;
mod earlier;
mod fault;
mod forger;
mod frame;
mod host;
mod layout;
mod leaver;
mod leaving;
mod lockstep;
mod makes;
mod message;
mod model;
mod network;
mod notified;
mod operation;
mod pattern;
mod random;
mod reference;
mod returning;
mod reuse;
mod say;
mod service;
mod settings;
mod shared;
mod stream;
mod table;
mod violation;
mod world;

pub use self::{
    connections::{ConnectionOutcome, ConnectionTally, NAMES, run_connections, run_crowd},
    say::say,
    table::Table,
    violation::Violation,
    world::{FRAMES, Outcome},
};

/// Runs a seed to its end, or to the first violation. With `trace` it prints each frame and event.
pub fn run(seed: u64, trace: bool) -> Outcome {
    world::World::new(seed, trace).run()
}

/// Names of the makes of peers.
pub const MAKES: [&str; 8] = reference::Make::NAMES;

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
