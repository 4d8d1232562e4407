//! Congestion control: notifications that tell peers to send less, and windows and rates that follow
//! those of peers, marks, losses and ACK timeouts.

pub mod control;
pub mod dcqcn;
pub(crate) mod delay_guard;
pub mod notification;
pub(crate) mod send_rate;
pub mod window;
