//! For threads that sort datagrams before the connection manager sees them.

use core::fmt::Debug;

use crate::{connection::PeerAddress, wire::CommId};

/// Is told of the numbers and peers by which a datagram may be recognized, from the thread of the
/// connection manager.
pub trait CmObserver: Debug + Send + Sync {
    /// A connection with `peer` has a number. No datagram has named it yet.
    fn on_number(&self, id: CommId, peer: &PeerAddress);

    /// That connection is gone.
    fn on_number_gone(&self, id: CommId, peer: &PeerAddress);

    /// A peer has confirmed its first connection: its address is not forged.
    fn on_connected(&self, peer: &PeerAddress);

    /// The last of these is over.
    fn on_disconnected(&self, peer: &PeerAddress);
}

/// Looks at nothing.
impl CmObserver for () {
    fn on_number(&self, _: CommId, _: &PeerAddress) {}

    fn on_number_gone(&self, _: CommId, _: &PeerAddress) {}

    fn on_connected(&self, _: &PeerAddress) {}

    fn on_disconnected(&self, _: &PeerAddress) {}
}
