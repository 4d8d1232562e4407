//! The machine around the transport: everything that touches the kernel, a clock or a client.
//!
//! | module | content |
//! |---|---|
//! | [`control_thread`] | control thread; the only module that connects the others |
//! | [`config`], [`cli`], [`systemd`], [`admin`] | configuration, command line, service manager, admin socket |
//! | [`client_socket`] | socket of clients: messages with file descriptors |
//! | [`accounts`] | users with all their programs: limits, shares, rules of the operator |
//! | [`clients`] | connections of clients: admission, order of service, end |
//! | [`calls`] | control calls of a session, its objects and paths; sends commands to [`worker`] |
//! | `cm` | connection manager: identifiers, event channels, management datagrams |
//! | [`environment`] | interface of [`clients`], [`calls`] and `cm` to [`worker`] and [`net`] |
//! | [`worker`] | worker threads: endpoints between NIC queues and client memory; imports none of the others |
//! | [`net`] | view of the kernel's network |
//! | `numbers`, `log_limiter` | numbers and keys given to clients; limits on log lines that clients cause |
//! | `log_thread` | thread that writes the log |
//! | `peer_groups` | supplementary groups of the peer of a socket |
//! | [`sandbox`] | confinement of each thread: capabilities, files, system calls |
//! | `last_work` | bounds of work that was posted before the end of a queue pair or a session |
//!
//! Workers reach the interface through [`worker::nic::Nic`], which the crate `xdp` implements.

pub mod accounts;
pub mod admin;
pub mod calls;
pub mod cli;
pub mod client_socket;
pub mod clients;
mod cm;
pub mod config;
pub mod control_thread;
mod dcb;
pub mod environment;
mod last_work;
mod log_limiter;
mod log_thread;
pub mod net;
mod numbers;
mod peer_groups;
pub mod sandbox;
pub mod systemd;
pub mod worker;
