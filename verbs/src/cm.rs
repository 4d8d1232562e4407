//! The connection manager of programs that use librdmacm: its device file, answered in the process.
//!
//! ```text
//!   program ─► librdmacm ─► write(/dev/infiniband/rdma_cm) ─► hooks ─► command ─► roced-client ─► daemon
//!                 └─ poll, fcntl of the descriptor: the kernel: it is a socket of the daemon's
//! ```
//!
//! librdmacm stays the distribution's. It lists devices before it opens its device file, so the
//! list redirects the calls of librdmacm alone (`slots`) to functions here (`hooks`). A descriptor
//! that they opened is an event channel, found by number and inode (`table`); calls with any other
//! descriptor go on to the function that the slot named before.
//!
//! A write is a command (`command`): most become a call of the daemon; queries and attributes of
//! queue pairs are answered from the records of `roced_client::cm`. The structs are in
//! `abi/rdma_cm.rs`.

mod address;
mod body;
mod command;
mod connection;
mod event;
mod hooks;
mod identifier;
mod own_ids;
mod qp_attr;
mod query;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod unending;

pub(crate) use slots::redirect;
