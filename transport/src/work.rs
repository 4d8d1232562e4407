//! Work requests as the caller of the transport posts them, checked.

use roced_types::{Qpn, SendOp, Sge};

/// A send work request that passed its checks. Keys and ranges are checked when the data is
/// touched, each time.
#[derive(Clone, Copy, Debug)]
pub struct SendWork<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// `send_flags` bits.
    pub flags: u8,
    /// Immediate data in wire order.
    pub imm: [u8; 4],
    /// Remote address of a WRITE, READ, FLUSH or atomic operation. Of BIND_MW: address of the window.
    pub remote_va: u64,
    /// Remote key of a WRITE, READ, FLUSH or atomic operation; the key to invalidate; of BIND_MW the
    /// new key of the window.
    pub rkey: u32,
    /// Of an atomic operation: the value to store or to add. Of an atomic WRITE: the eight bytes in
    /// memory order. Of a FLUSH and BIND_MW: bytes.
    pub swap_or_add: u64,
    /// Of compare and swap: the expected value. Of a FLUSH: its
    /// [`operand`](roced_types::flush::operand). Of BIND_MW: the region and the rights
    /// ([`BindWindow`](roced_types::BindWindow)).
    pub compare: u64,
    /// Of a datagram: where to.
    pub to: DatagramTo,
    /// Where the data lies.
    pub data: WorkData<'a>,
}

/// Where a datagram goes. Of other services: zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramTo {
    /// Number of the address handle; whether there is one is checked when it is sent.
    pub ah: u32,
    /// The receiver.
    pub qpn: Qpn,
    /// The Q_Key; with the top bit set, the sending queue pair's own.
    pub qkey: u32,
}

impl DatagramTo {
    /// Nowhere: of no datagram.
    pub const NOWHERE: Self = Self { ah: 0, qpn: Qpn::from_wire(0), qkey: 0 };
}

/// Where the data of a work request lies.
#[derive(Clone, Copy, Debug)]
pub enum WorkData<'a> {
    /// In client memory.
    Sges(&'a [Sge]),
    /// Here.
    Inline(&'a [u8]),
}

/// A receive work request that passed its checks.
#[derive(Clone, Copy, Debug)]
pub struct RecvWork<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Memory for the received message.
    pub sges: &'a [Sge],
}
