//! Clients: who is connected, what they own, and the memory that they share with us.
//!
//! The control thread owns everything here. What a worker needs of it is made ready in [`queues`] and [`memory`] and handed over
//! whole, so that no lock lies between a client and its packets.

pub mod memory;
pub mod queues;
