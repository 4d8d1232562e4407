//! The RoCEv2 transport as a pure state machine.
//!
//! Time, frames and work requests go in; frames, completions and memory writes come out through the
//! two traits of [`io`]. No clock, socket, thread or unsafe code is here, and nothing allocates
//! while packets flow.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ah;
pub mod clock;
pub mod congestion;
pub mod counters;
pub mod endpoint;
pub mod io;
pub mod mr;
mod multicast;
mod out_of_order;
pub mod partition;
pub mod psn;
pub mod qp;
pub mod recovery;
pub mod reject;
mod slot_list;
pub mod srq;
pub mod table;
pub mod timers;
pub mod wire;
pub mod work;
