//! Turns of queue pairs that send: their order by class, account and client, the packets that all
//! have in flight, rates that a program or an operator sets, and pauses by the link.

pub(crate) mod account_turns;
pub mod class_counters;
mod class_list;
pub(crate) mod class_lists;
pub mod class_pause;
pub mod classes;
pub mod fair;
pub(crate) mod gate;
pub(crate) mod in_flight;
pub(crate) mod pacing;
pub(crate) mod senders;
pub mod shared_rate;
mod turn_list;

/// Most frames of a turn: those that one queue pair of a client sends before the next.
pub(crate) const TURN_FRAMES: usize = 16;

/// Cost of a frame that its bytes do not have, in bytes: about the time of a worker for a frame of
/// 64 bytes, with the copy of this many more. A guess.
pub(crate) const FRAME_COST: u32 = 512;

/// Cost of a frame of the largest MTU.
pub(crate) const FULL_FRAME_COST: u32 = 4096 + FRAME_COST;
