//! The worker threads: each owns some RX queues, the endpoints of their devices, and everything that hangs on them.
//!
//! ```text
//!                   commands, answers (mailbox)            events
//!   control thread ◄──────────────────────────► worker ──────────► control thread
//!                                               │    ▲
//!                                   frames for  ▼    │  frames from
//!                                        other workers (handoff)
//! ```
//!
//! A worker shares nothing that is written on the data path but the bounded queues drawn here. Objects are made and freed by
//! the control thread; a worker only moves them.

pub mod command;
pub mod endpoints;
pub mod events;
pub mod handoff;
pub mod holdings;
pub mod idle;
pub mod mailbox;
pub mod metrics;
pub mod nic;
mod orders;
pub mod outlet;
pub mod patience;
pub mod pin;
pub mod ready;
pub mod seats;
pub mod table;
pub mod turn;
pub mod wake;
pub mod workers;
