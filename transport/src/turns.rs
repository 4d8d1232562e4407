//! Turns of queue pairs that send: their order by class, account and client, the packets that all
//! have in flight, and rates that a program or an operator sets.

mod class_list;
pub(crate) mod class_lists;
pub mod class_rate;
pub mod classes;
pub mod fair;
pub(crate) mod gate;
pub(crate) mod in_flight;
pub(crate) mod pacing;
pub(crate) mod senders;
mod turn_list;

/// Most frames of a turn: those that one queue pair of a client sends before the next.
pub(crate) const TURN_FRAMES: usize = 16;
