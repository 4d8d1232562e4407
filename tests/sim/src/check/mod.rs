//! The checkers. They look at frames, memory, completions and counters, never into the engine. Each rule has a name, the first
//! argument of `demand!` that is text; docs/simulator.md lists them.

pub(crate) mod completion;
mod credits;
mod memory;
mod requester;
mod responder;
mod tally;
mod unreliable;

pub(crate) use credits::Credits;
pub(crate) use tally::Tally;
pub(crate) use unreliable::Inbox;
