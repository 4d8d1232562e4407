//! How fast a queue pair may send. `poll_transmit` asks before each frame.

pub mod gate;
pub mod pacing;
pub(crate) mod under_way;
