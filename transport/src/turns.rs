//! Turns of queue pairs that send: their order by account and client, the packets that all have in
//! flight, and rates that a program or an operator sets.

pub mod fair;
pub(crate) mod gate;
pub(crate) mod in_flight;
pub(crate) mod pacing;
