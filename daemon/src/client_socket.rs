//! The socket of clients: listening, credentials, messages with file descriptors.

pub mod connection;
pub mod listener;
