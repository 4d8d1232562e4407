//! Messages that end a connection: DREQ and DREP (IBTA v1 12.6.10, 12.6.11).

use roced_types::Qpn;

use super::{
    CommId,
    body::{BodyReader, BodyWriter},
};

/// DREQ: ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's number of the connection.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: [u8; 220],
}

impl Dreq {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self {
            local: CommId(body.u32(0)),
            remote: CommId(body.u32(4)),
            remote_qpn: body.qpn(8),
            private_data: body.bytes(12),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.qpn(8, self.remote_qpn);
        body.bytes(12, self.private_data);
    }
}

/// DREP: answers a DREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's number of the connection.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// Private data.
    pub private_data: [u8; 224],
}

impl Drep {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self { local: CommId(body.u32(0)), remote: CommId(body.u32(4)), private_data: body.bytes(8) }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.bytes(8, self.private_data);
    }
}
