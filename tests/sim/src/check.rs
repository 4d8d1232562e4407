//! The checkers. They look at frames, memory, completions and counters, never into the transport.
//! Each rule has a name, the first argument of `demand!` that is text; docs/simulator.md lists
//! them.

pub(crate) mod completion;
mod credits;
mod memory;
mod not_ready;
mod owed;
mod prompt;
mod read_order;
mod requester;
mod responder;
mod reuse;
mod tally;
mod unreliable;

pub(crate) use requester::What;
pub(crate) use tally::Tally;
