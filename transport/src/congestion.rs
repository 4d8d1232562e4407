//! How fast a queue pair may send. `poll_transmit` asks before each frame. And the notifications
//! that tell peers to send less, and windows and rates that follow those of peers, marks, losses
//! and ACK timeouts.

pub mod control;
pub mod dcqcn;
pub mod gate;
pub(crate) mod in_flight;
pub mod notification;
pub mod pacing;
pub(crate) mod send_rate;
pub mod window;
