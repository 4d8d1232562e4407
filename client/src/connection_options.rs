//! Options of connections.

use std::time::Duration;

use crate::access::Access;

/// Options of a connection.
///
/// ```no_run
/// # use std::time::Duration;
/// # use roced_client::{Access, Connection, ConnectionOptions, QueuePair, Route};
/// # fn connect(route: Route, qp: &QueuePair) -> roced_client::Result<Connection> {
/// // The peer may write, and is told the purpose; it has two seconds to accept.
/// let options = ConnectionOptions {
///     access: Access::REMOTE_WRITE,
///     private_data: b"log replica 3",
///     timeout: Duration::from_secs(2),
///     ..ConnectionOptions::default()
/// };
/// let connection = route.connect(qp, &options)?;
/// # Ok(connection)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions<'a> {
    /// Rights of the peer on local memory; the rights of each region apply in addition.
    pub access: Access,
    /// READs and atomic operations of the peer answered at a time, at most 128.
    pub responder_resources: u8,
    /// READs and atomic operations outstanding at a time, at most 128.
    pub initiator_depth: u8,
    /// Retries of the peer's queue pair after a timeout, at most 7.
    pub retry_count: u8,
    /// Retries of the peer's queue pair while no receive is posted here, at most 7, which is for
    /// ever.
    pub rnr_retry_count: u8,
    /// Bytes for the peer's program: at most 56 with a request, 196 with an acceptance.
    pub private_data: &'a [u8],
    /// Time limit for the peer's answer.
    pub timeout: Duration,
}

impl Default for ConnectionOptions<'_> {
    fn default() -> Self {
        Self {
            access: Access::ALL,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: &[],
            timeout: Duration::from_secs(20),
        }
    }
}
