//! Messages that find the queue pair of a datagram service: SIDR_REQ and SIDR_REP (IBTA v1 12.11).

use roced_types::Qpn;

use super::{
    AdditionalInfo, CommId, ServiceId,
    body::{BodyReader, BodyWriter},
};

/// Results of a SIDR_REP (IBTA v1 12.11.2).
pub mod sidr_status {
    /// The queue pair is there.
    pub const VALID: u8 = 0;
    /// No listener of that service ID.
    pub const UNSUPPORTED_SERVICE_ID: u8 = 1;
    /// The program refused.
    pub const REJECTED: u8 = 2;
    /// No queue pair.
    pub const NO_QP: u8 = 3;
}

/// SIDR_REQ: asks for the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's number of the question.
    pub request: CommId,
    /// Partition.
    pub pkey: u16,
    /// The listener.
    pub service_id: ServiceId,
    /// Private data, the CMA header included.
    pub private_data: [u8; 216],
}

impl SidrReq {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self {
            request: CommId(body.u32(0)),
            pkey: body.u16(4),
            service_id: ServiceId(body.u64(8)),
            private_data: body.bytes(16),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.request.0);
        body.u16(4, self.pkey);
        body.u64(8, self.service_id.0);
        body.bytes(16, self.private_data);
    }
}

/// SIDR_REP: the queue pair of a service, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The number in the SIDR_REQ.
    pub request: CommId,
    /// Result: [`sidr_status`].
    pub status: u8,
    /// Vendor of the options in the MAD's modifier, 24 bits; 0 without options.
    pub ece_vendor: u32,
    /// The queue pair.
    pub qpn: Qpn,
    /// The listener.
    pub service_id: ServiceId,
    /// Q_Key of its datagrams.
    pub qkey: u32,
    /// Additional information.
    pub info: AdditionalInfo,
    /// Private data.
    pub private_data: [u8; 136],
}

impl SidrRep {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        let [high, middle, low] = [6, 7, 11].map(|at| body.u8(at));
        Self {
            request: CommId(body.u32(0)),
            status: body.u8(4),
            ece_vendor: u32::from_be_bytes([0, high, middle, low]),
            qpn: body.qpn(8),
            service_id: ServiceId(body.u64(12)),
            qkey: body.u32(20),
            info: AdditionalInfo::read(body.u8(5), body, 24),
            private_data: body.bytes(96),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        let [_, high, middle, low] = self.ece_vendor.to_be_bytes();
        body.u32(0, self.request.0);
        body.u8(4, self.status);
        body.u8(5, self.info.length);
        body.bytes(6, [high, middle]);
        body.qpn(8, self.qpn);
        body.u8(11, low);
        body.u64(12, self.service_id.0);
        body.u32(20, self.qkey);
        body.bytes(24, self.info.bytes);
        body.bytes(96, self.private_data);
    }
}
