//! The worker threads: each owns some RX queues, the endpoints of their devices, and everything
//! that hangs on them.
//!
//! ```text
//!                   commands, answers (mailbox)            events
//!   control thread ◄──────────────────────────► worker ──────────► control thread
//!                                               │    ▲
//!                                   frames for  ▼    │  frames from
//!                                        other workers (handoff)
//! ```
//!
//! With other threads of the daemon, a worker shares nothing that is written on the data path
//! except the bounded queues drawn here. Objects are created and freed by the control thread; a
//! worker only moves them.

mod abi;
mod catch_up;
pub mod client_fault;
pub mod command;
pub mod delayed_kick;
mod doorbell_bounds;
pub mod endpoints;
pub mod events;
mod execute;
pub mod handoff;
pub mod idle;
pub mod mad_filters;
pub mod mailbox;
pub mod metrics;
pub mod nic;
pub mod pin;
pub mod poll_loop;
mod posted;
pub mod qp_table;
pub mod received_mads;
mod route;
pub mod sent_mads;
pub mod table;
mod tell;
pub mod tx_dispatch;
pub mod wake;
pub mod worker_memory;
pub mod workers;
