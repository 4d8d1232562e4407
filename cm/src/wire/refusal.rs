//! Messages in place of the expected answer: MRA and REJ (IBTA v1 12.6.6, 12.6.7).

use super::{
    CommId,
    body::{BodyReader, BodyWriter},
};

/// Reasons of a REJ (IBTA v1 12.6.7.2) that connection managers of IP have.
pub mod reject_reason {
    /// No queue pair.
    pub const NO_QP: u16 = 1;
    /// No resources.
    pub const NO_RESOURCES: u16 = 3;
    /// No answer in time.
    pub const TIMEOUT: u16 = 4;
    /// Unsupported request.
    pub const UNSUPPORTED: u16 = 5;
    /// No such connection.
    pub const INVALID_COMM_ID: u16 = 6;
    /// No listener of that service ID.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// Unknown service type.
    pub const INVALID_TRANSPORT_SERVICE: u16 = 9;
    /// The queue pair is connected already: one end has forgotten the connection.
    pub const STALE_CONNECTION: u16 = 10;
    /// No such GID; the additional information has one.
    pub const INVALID_GID: u16 = 12;
    /// The path MTU is too large.
    pub const INVALID_PATH_MTU: u16 = 26;
    /// The program refused; private data is the program's.
    pub const CONSUMER_DEFINED: u16 = 28;
    /// Options of the vendor are not supported.
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Additional information of a REJ or a SIDR_REP. Its length may be wrong on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdditionalInfo {
    pub(super) length: u8,
    pub(super) bytes: [u8; Self::BYTES_MAX],
}

impl AdditionalInfo {
    /// Room for it.
    pub const BYTES_MAX: usize = 72;
    /// None.
    pub const NONE: Self = Self { length: 0, bytes: [0; Self::BYTES_MAX] };

    /// The first [`Self::BYTES_MAX`] of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut info = Self::NONE;
        let length = bytes.len().min(Self::BYTES_MAX);
        info.bytes[..length].copy_from_slice(&bytes[..length]);
        info.length = length as u8;
        info
    }

    /// The information, as long as it says and there is room for.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(Self::BYTES_MAX)]
    }

    pub(super) fn read(length: u8, body: BodyReader<'_>, at: usize) -> Self {
        Self { length, bytes: body.bytes(at) }
    }
}

/// The message that a REJ or an MRA answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedMessage {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another one, or none: a timeout.
    Other,
    /// A number without a meaning.
    Reserved,
}

impl RejectedMessage {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    const fn bits(self) -> u8 {
        self as u8
    }
}

/// MRA: the message arrived; its answer takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's number of the connection.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// The message that arrived.
    pub message: RejectedMessage,
    /// Time until the answer: 4.096 us to the power of two of it, 5 bits.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: [u8; 222],
}

impl Mra {
    /// Without private data.
    pub const fn new(local: CommId, remote: CommId, message: RejectedMessage, service_timeout: u8) -> Self {
        Self { local, remote, message, service_timeout, private_data: [0; 222] }
    }

    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self {
            local: CommId(body.u32(0)),
            remote: CommId(body.u32(4)),
            message: RejectedMessage::from_bits(body.bits(8, 7, 6)),
            service_timeout: body.bits(9, 7, 3),
            private_data: body.bytes(10),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.bits(8, 7, 6, self.message.bits());
        body.bits(9, 7, 3, self.service_timeout);
        body.bytes(10, self.private_data);
    }
}

/// REJ: refuses a connection, or ends the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's number of the connection, 0 without one.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// The refused message.
    pub message: RejectedMessage,
    /// Reason: [`reject_reason`].
    pub reason: u16,
    /// Additional information.
    pub info: AdditionalInfo,
    /// Private data.
    pub private_data: [u8; 148],
}

impl Rej {
    /// About a connection of which the sender keeps nothing.
    pub const fn of_unknown_peer(remote: CommId, message: RejectedMessage, reason: u16) -> Self {
        Self { local: CommId(0), remote, message, reason, info: AdditionalInfo::NONE, private_data: [0; 148] }
    }

    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self {
            local: CommId(body.u32(0)),
            remote: CommId(body.u32(4)),
            message: RejectedMessage::from_bits(body.bits(8, 7, 6)),
            reason: body.u16(10),
            info: AdditionalInfo::read(body.bits(9, 7, 1), body, 12),
            private_data: body.bytes(84),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.bits(8, 7, 6, self.message.bits());
        body.bits(9, 7, 1, self.info.length);
        body.u16(10, self.reason);
        body.bytes(12, self.info.bytes);
        body.bytes(84, self.private_data);
    }
}
