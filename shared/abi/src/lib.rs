//! Client to daemon: one socket for control, and memory that both map.
//!
//! A client connects to the daemon's `SOCK_SEQPACKET` socket and speaks [`control`]: fixed-size
//! requests, each answered by one reply in order, file descriptors beside it by `SCM_RIGHTS`. The
//! data path never touches the socket: work goes through rings ([`ring`], entries in [`wqe`] and
//! [`cqe`], places in [`layout`]), a [`doorbell`] tells the worker which queue pair has something.
//!
//! ```text
//!            client maps                                   daemon maps
//!   session memfd   doorbell blocks, one per worker         (client writes, worker clears)
//!   state memfd     which worker sleeps, read-only here    (worker writes)
//!   QP memfd        SQ ring, RQ ring                       (client produces)
//!   CQ memfd        arm word, one ring per worker          (worker produces)
//!   memory memfds   memory regions                         (both)
//! ```
//!
//! The daemon makes and seals every memfd, but for memory that a client brings
//! ([`control::MapMemory`]). Everything in them can be changed by the client at any moment, so the
//! daemon copies once, checks the copy, and keeps no state of its own there.
#![no_std]

pub mod arm;
pub mod control;
pub mod cqe;
pub mod doorbell;
pub mod layout;
pub mod ring;
pub mod sync;
pub mod wqe;
pub mod yield_pause;

/// Version of everything in this module. Client and daemon must have the same; the hand-shake says
/// so before anything else.
pub const VERSION: u32 = 17;

/// Where the daemon listens for clients unless the config says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/roced/roced.sock";

/// Environment variable by which a client is told another socket path.
pub const SOCKET_VARIABLE: &str = "ROCED_SOCKET";

/// Most entries of a completion queue.
pub const COMPLETIONS_MAX: u32 = 1 << 20;
