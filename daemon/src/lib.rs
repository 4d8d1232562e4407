//! The machine around the transport: everything that touches the kernel, a clock or a client.
//!
//! [`app`] is the only module that knows every part. `xdp` and `clients` do not know each other;
//! `worker` joins them.

pub mod admin;
pub mod app;
pub mod cli;
pub mod client_socket;
pub mod clients;
pub mod config;
mod log_limiter;
pub mod net;
mod numbers;
pub mod systemd;
pub mod worker;
