//! How fast a queue pair may send. `poll_transmit` asks before each frame.

pub mod gate;
pub(crate) mod in_flight;
pub mod pacing;
