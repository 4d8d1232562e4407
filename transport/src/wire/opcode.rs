//! Opcodes: the one table that answers every question about one (IBTA v1 9.2.1, table 38; annexes
//! A14, A17, A19).
//!
//! The three high bits are the transport service, the five low ones the operation. The table also
//! has opcodes that this transport does not implement, so that such packets are measured correctly
//! and refused for the right reason.

use core::fmt;

/// The first byte of a BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Entry of the table, `None` for an undefined opcode.
    #[inline]
    pub const fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE[self.0 as usize].as_ref()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x}", self.0)
    }
}

/// Transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. Implemented by no known adapter.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification (annex A17).
    Cnp,
    /// Extended reliable connection (annex A14).
    Xrc,
}

/// Operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Carries data to a receive work request.
    Send,
    /// Carries data to an address.
    Write,
    /// Asks for data at an address.
    ReadRequest,
    /// Carries the data that was asked for.
    ReadResponse,
    /// Acknowledges, or refuses.
    Ack,
    /// Answers an atomic request.
    AtomicAck,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Makes earlier writes visible or persistent (annex A19).
    Flush,
    /// Writes eight bytes at once (annex A19).
    AtomicWrite,
    /// Tells a sender of congestion.
    Cnp,
    /// A code of the service that the specification keeps for later.
    Reserved,
}

impl Operation {
    /// Returns true for answers to requests: the requester's side handles them.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck)
    }

    /// Returns true for operations of which each packet carries a part of a message.
    pub const fn carries_message(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::ReadResponse)
    }
}

/// Position of a packet in its message. Operations of one packet are [`Position::Only`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// All of it.
    Only,
}

impl Position {
    /// First or only.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Last or only.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Entry of the table for an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
    /// Where in its message it stands.
    pub position: Position,
    /// Has an RDETH.
    pub has_rdeth: bool,
    /// Has a DETH.
    pub has_deth: bool,
    /// Has an XRCETH.
    pub has_xrceth: bool,
    /// Has a FETH.
    pub has_feth: bool,
    /// Has a RETH.
    pub has_reth: bool,
    /// Has an AtomicETH.
    pub has_atomic: bool,
    /// Has an AETH.
    pub has_aeth: bool,
    /// Has an AtomicAckETH.
    pub has_atomic_ack: bool,
    /// Has immediate data.
    pub has_imm: bool,
    /// Has an IETH.
    pub has_ieth: bool,
    /// Bytes of BTH and extension headers; a CNP's sixteen reserved bytes count as such.
    pub header_bytes: usize,
    /// May carry a payload.
    pub payload: bool,
}

/// Headers that may follow the BTH, in wire order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    Rdeth,
    Deth,
    Xrceth,
    Feth,
    Reth,
    Atomic,
    Aeth,
    AtomicAck,
    Imm,
    Ieth,
    CnpReserved,
}

impl Extension {
    const fn bytes(self) -> usize {
        match self {
            Self::Rdeth | Self::Xrceth | Self::Feth | Self::Aeth | Self::Imm | Self::Ieth => 4,
            Self::Deth | Self::AtomicAck => 8,
            Self::Reth | Self::CnpReserved => 16,
            Self::Atomic => 28,
        }
    }
}

const fn describe(service: Service, operation: Operation, position: Position, extensions: &[Extension]) -> OpcodeInfo {
    let payload = matches!(
        operation,
        Operation::Send | Operation::Write | Operation::ReadResponse | Operation::AtomicWrite | Operation::Reserved
    );
    let mut info = OpcodeInfo {
        service,
        operation,
        position,
        has_rdeth: false,
        has_deth: false,
        has_xrceth: false,
        has_feth: false,
        has_reth: false,
        has_atomic: false,
        has_aeth: false,
        has_atomic_ack: false,
        has_imm: false,
        has_ieth: false,
        header_bytes: super::bth::Bth::BYTES,
        payload,
    };
    let mut at = 0;
    while at < extensions.len() {
        let extension = extensions[at];
        // The reader takes them in the order of the enum.
        assert!(at == 0 || (extensions[at - 1] as u8) < extension as u8);
        match extension {
            Extension::Rdeth => info.has_rdeth = true,
            Extension::Deth => info.has_deth = true,
            Extension::Xrceth => info.has_xrceth = true,
            Extension::Feth => info.has_feth = true,
            Extension::Reth => info.has_reth = true,
            Extension::Atomic => info.has_atomic = true,
            Extension::Aeth => info.has_aeth = true,
            Extension::AtomicAck => info.has_atomic_ack = true,
            Extension::Imm => info.has_imm = true,
            Extension::Ieth => info.has_ieth = true,
            Extension::CnpReserved => {}
        }
        info.header_bytes += extension.bytes();
        at += 1;
    }
    info
}

macro_rules! opcodes {
    ($($name:ident = $code:literal: $service:ident $operation:ident $position:ident [$($extension:ident),*],)*) => {
        $(
            #[doc = concat!(stringify!($service), " ", stringify!($operation), ", ", stringify!($position),
                $(" + ", stringify!($extension),)* ".")]
            pub const $name: Opcode = Opcode($code);
        )*

        static TABLE: [Option<OpcodeInfo>; 256] = ENTRIES;

        const ENTRIES: [Option<OpcodeInfo>; 256] = {
            let mut table = [None; 256];
            $({
                assert!(table[$code as usize].is_none());
                table[$code as usize] = Some(describe(
                    Service::$service, Operation::$operation, Position::$position, &[$(Extension::$extension),*]));
            })*
            table
        };
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00: Rc Send First [],
    RC_SEND_MIDDLE = 0x01: Rc Send Middle [],
    RC_SEND_LAST = 0x02: Rc Send Last [],
    RC_SEND_LAST_IMM = 0x03: Rc Send Last [Imm],
    RC_SEND_ONLY = 0x04: Rc Send Only [],
    RC_SEND_ONLY_IMM = 0x05: Rc Send Only [Imm],
    RC_WRITE_FIRST = 0x06: Rc Write First [Reth],
    RC_WRITE_MIDDLE = 0x07: Rc Write Middle [],
    RC_WRITE_LAST = 0x08: Rc Write Last [],
    RC_WRITE_LAST_IMM = 0x09: Rc Write Last [Imm],
    RC_WRITE_ONLY = 0x0a: Rc Write Only [Reth],
    RC_WRITE_ONLY_IMM = 0x0b: Rc Write Only [Reth, Imm],
    RC_READ_REQUEST = 0x0c: Rc ReadRequest Only [Reth],
    RC_READ_RESPONSE_FIRST = 0x0d: Rc ReadResponse First [Aeth],
    RC_READ_RESPONSE_MIDDLE = 0x0e: Rc ReadResponse Middle [],
    RC_READ_RESPONSE_LAST = 0x0f: Rc ReadResponse Last [Aeth],
    RC_READ_RESPONSE_ONLY = 0x10: Rc ReadResponse Only [Aeth],
    RC_ACK = 0x11: Rc Ack Only [Aeth],
    RC_ATOMIC_ACK = 0x12: Rc AtomicAck Only [Aeth, AtomicAck],
    RC_COMPARE_SWAP = 0x13: Rc CompareSwap Only [Atomic],
    RC_FETCH_ADD = 0x14: Rc FetchAdd Only [Atomic],
    RC_SEND_LAST_INVALIDATE = 0x16: Rc Send Last [Ieth],
    RC_SEND_ONLY_INVALIDATE = 0x17: Rc Send Only [Ieth],
    RC_FLUSH = 0x1c: Rc Flush Only [Feth, Reth],
    RC_ATOMIC_WRITE = 0x1d: Rc AtomicWrite Only [Reth],

    RC_RESERVED_15 = 0x15: Rc Reserved Only [],
    RC_RESERVED_18 = 0x18: Rc Reserved Only [],
    RC_RESERVED_19 = 0x19: Rc Reserved Only [],
    RC_RESERVED_1A = 0x1a: Rc Reserved Only [],
    RC_RESERVED_1B = 0x1b: Rc Reserved Only [],
    RC_RESERVED_1E = 0x1e: Rc Reserved Only [],
    RC_RESERVED_1F = 0x1f: Rc Reserved Only [],

    UC_SEND_FIRST = 0x20: Uc Send First [],
    UC_SEND_MIDDLE = 0x21: Uc Send Middle [],
    UC_SEND_LAST = 0x22: Uc Send Last [],
    UC_SEND_LAST_IMM = 0x23: Uc Send Last [Imm],
    UC_SEND_ONLY = 0x24: Uc Send Only [],
    UC_SEND_ONLY_IMM = 0x25: Uc Send Only [Imm],
    UC_WRITE_FIRST = 0x26: Uc Write First [Reth],
    UC_WRITE_MIDDLE = 0x27: Uc Write Middle [],
    UC_WRITE_LAST = 0x28: Uc Write Last [],
    UC_WRITE_LAST_IMM = 0x29: Uc Write Last [Imm],
    UC_WRITE_ONLY = 0x2a: Uc Write Only [Reth],
    UC_WRITE_ONLY_IMM = 0x2b: Uc Write Only [Reth, Imm],

    RD_SEND_FIRST = 0x40: Rd Send First [Rdeth, Deth],
    RD_SEND_MIDDLE = 0x41: Rd Send Middle [Rdeth, Deth],
    RD_SEND_LAST = 0x42: Rd Send Last [Rdeth, Deth],
    RD_SEND_LAST_IMM = 0x43: Rd Send Last [Rdeth, Deth, Imm],
    RD_SEND_ONLY = 0x44: Rd Send Only [Rdeth, Deth],
    RD_SEND_ONLY_IMM = 0x45: Rd Send Only [Rdeth, Deth, Imm],
    RD_WRITE_FIRST = 0x46: Rd Write First [Rdeth, Deth, Reth],
    RD_WRITE_MIDDLE = 0x47: Rd Write Middle [Rdeth, Deth],
    RD_WRITE_LAST = 0x48: Rd Write Last [Rdeth, Deth],
    RD_WRITE_LAST_IMM = 0x49: Rd Write Last [Rdeth, Deth, Imm],
    RD_WRITE_ONLY = 0x4a: Rd Write Only [Rdeth, Deth, Reth],
    RD_WRITE_ONLY_IMM = 0x4b: Rd Write Only [Rdeth, Deth, Reth, Imm],
    RD_READ_REQUEST = 0x4c: Rd ReadRequest Only [Rdeth, Deth, Reth],
    RD_READ_RESPONSE_FIRST = 0x4d: Rd ReadResponse First [Rdeth, Aeth],
    RD_READ_RESPONSE_MIDDLE = 0x4e: Rd ReadResponse Middle [Rdeth],
    RD_READ_RESPONSE_LAST = 0x4f: Rd ReadResponse Last [Rdeth, Aeth],
    RD_READ_RESPONSE_ONLY = 0x50: Rd ReadResponse Only [Rdeth, Aeth],
    RD_ACK = 0x51: Rd Ack Only [Rdeth, Aeth],
    RD_ATOMIC_ACK = 0x52: Rd AtomicAck Only [Rdeth, Aeth, AtomicAck],
    RD_COMPARE_SWAP = 0x53: Rd CompareSwap Only [Rdeth, Deth, Atomic],
    RD_FETCH_ADD = 0x54: Rd FetchAdd Only [Rdeth, Deth, Atomic],

    UD_SEND_ONLY = 0x64: Ud Send Only [Deth],
    UD_SEND_ONLY_IMM = 0x65: Ud Send Only [Deth, Imm],

    CNP = 0x81: Cnp Cnp Only [CnpReserved],

    XRC_SEND_FIRST = 0xa0: Xrc Send First [Xrceth],
    XRC_SEND_MIDDLE = 0xa1: Xrc Send Middle [Xrceth],
    XRC_SEND_LAST = 0xa2: Xrc Send Last [Xrceth],
    XRC_SEND_LAST_IMM = 0xa3: Xrc Send Last [Xrceth, Imm],
    XRC_SEND_ONLY = 0xa4: Xrc Send Only [Xrceth],
    XRC_SEND_ONLY_IMM = 0xa5: Xrc Send Only [Xrceth, Imm],
    XRC_WRITE_FIRST = 0xa6: Xrc Write First [Xrceth, Reth],
    XRC_WRITE_MIDDLE = 0xa7: Xrc Write Middle [Xrceth],
    XRC_WRITE_LAST = 0xa8: Xrc Write Last [Xrceth],
    XRC_WRITE_LAST_IMM = 0xa9: Xrc Write Last [Xrceth, Imm],
    XRC_WRITE_ONLY = 0xaa: Xrc Write Only [Xrceth, Reth],
    XRC_WRITE_ONLY_IMM = 0xab: Xrc Write Only [Xrceth, Reth, Imm],
    XRC_READ_REQUEST = 0xac: Xrc ReadRequest Only [Xrceth, Reth],
    XRC_READ_RESPONSE_FIRST = 0xad: Xrc ReadResponse First [Aeth],
    XRC_READ_RESPONSE_MIDDLE = 0xae: Xrc ReadResponse Middle [],
    XRC_READ_RESPONSE_LAST = 0xaf: Xrc ReadResponse Last [Aeth],
    XRC_READ_RESPONSE_ONLY = 0xb0: Xrc ReadResponse Only [Aeth],
    XRC_ACK = 0xb1: Xrc Ack Only [Aeth],
    XRC_ATOMIC_ACK = 0xb2: Xrc AtomicAck Only [Aeth, AtomicAck],
    XRC_COMPARE_SWAP = 0xb3: Xrc CompareSwap Only [Xrceth, Atomic],
    XRC_FETCH_ADD = 0xb4: Xrc FetchAdd Only [Xrceth, Atomic],
    XRC_SEND_LAST_INVALIDATE = 0xb6: Xrc Send Last [Xrceth, Ieth],
    XRC_SEND_ONLY_INVALIDATE = 0xb7: Xrc Send Only [Xrceth, Ieth],
}

/// Most bytes of BTH and extension headers.
pub const HEADER_BYTES_MAX: usize = {
    let (mut most, mut at) = (0, 0);
    while at < ENTRIES.len() {
        if let Some(info) = &ENTRIES[at]
            && info.header_bytes > most
        {
            most = info.header_bytes;
        }
        at += 1;
    }
    most
};

/// The RC opcode of a SEND, WRITE or READ response that stands at `position` of its message, with
/// immediate data or without.
///
/// # Panics
/// When there is none: other operations are not cut into packets and have a constant each;
/// immediate data stands only in the packet that ends a SEND or WRITE.
pub const fn rc(operation: Operation, position: Position, imm: bool) -> Opcode {
    use Operation::{ReadResponse, Send, Write};
    use Position::{First, Last, Middle, Only};
    match (operation, position, imm) {
        (Send, First, false) => RC_SEND_FIRST,
        (Send, Middle, false) => RC_SEND_MIDDLE,
        (Send, Last, false) => RC_SEND_LAST,
        (Send, Last, true) => RC_SEND_LAST_IMM,
        (Send, Only, false) => RC_SEND_ONLY,
        (Send, Only, true) => RC_SEND_ONLY_IMM,
        (Write, First, false) => RC_WRITE_FIRST,
        (Write, Middle, false) => RC_WRITE_MIDDLE,
        (Write, Last, false) => RC_WRITE_LAST,
        (Write, Last, true) => RC_WRITE_LAST_IMM,
        (Write, Only, false) => RC_WRITE_ONLY,
        (Write, Only, true) => RC_WRITE_ONLY_IMM,
        (ReadResponse, First, false) => RC_READ_RESPONSE_FIRST,
        (ReadResponse, Middle, false) => RC_READ_RESPONSE_MIDDLE,
        (ReadResponse, Last, false) => RC_READ_RESPONSE_LAST,
        (ReadResponse, Only, false) => RC_READ_RESPONSE_ONLY,
        _ => panic!("RC has no such packet"),
    }
}

/// The UC opcode of a SEND or WRITE that stands at `position` of its message, with immediate data
/// or without.
///
/// # Panics
/// As [`rc`], and for a READ response: an unreliable connection has none.
pub const fn uc(operation: Operation, position: Position, imm: bool) -> Opcode {
    assert!(matches!(operation, Operation::Send | Operation::Write), "UC has no such packet");
    // The same operations in the same order; the high bits are the service.
    Opcode(UC_SEND_FIRST.0 | rc(operation, position, imm).0)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// The header lengths as the specification's table 38 and annexes A14, A17 and A19 give them,
    /// opcode by opcode.
    #[test]
    fn header_lengths_are_the_specifications() {
        let sends = |base: u8, extra: usize| {
            [(0, 12), (1, 12), (2, 12), (3, 16), (4, 12), (5, 16)].map(|(low, bytes)| (base + low, bytes + extra))
        };
        let writes = |base: u8, extra: usize| {
            [(6, 28), (7, 12), (8, 12), (9, 16), (10, 28), (11, 32)].map(|(low, bytes)| (base + low, bytes + extra))
        };
        let replies = |base: u8, extra: usize| {
            [(13, 16), (14, 12), (15, 16), (16, 16), (17, 16), (18, 24)].map(|(low, bytes)| (base + low, bytes + extra))
        };
        let requests =
            |base: u8, extra: usize| [(12, 28), (19, 40), (20, 40)].map(|(low, bytes)| (base + low, bytes + extra));
        let mut expected = [None; 256];
        let all = [sends(0, 0), writes(0, 0), replies(0, 0), sends(0x20, 0), writes(0x20, 0)]
            .into_iter()
            .chain([sends(0x40, 12), writes(0x40, 12), replies(0x40, 4), sends(0xa0, 4), writes(0xa0, 4)])
            .chain([replies(0xa0, 0)])
            .flatten()
            .chain(requests(0, 0).into_iter().chain(requests(0x40, 12)).chain(requests(0xa0, 4)))
            .chain([(0x16, 16), (0x17, 16), (0xb6, 20), (0xb7, 20), (0x1c, 32), (0x1d, 28)])
            .chain([0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f].map(|reserved| (reserved, 12)))
            .chain([(0x64, 20), (0x65, 24), (0x81, 28)]);
        for (code, bytes) in all {
            expected[code as usize] = Some(bytes);
        }
        for code in 0..=255 {
            assert_eq!(
                Opcode(code).info().map(|info| info.header_bytes),
                expected[code as usize],
                "opcode 0x{code:02x}"
            );
        }
        assert_eq!(expected.iter().flatten().count(), 25 + 7 + 12 + 21 + 2 + 1 + 23);
        assert_eq!(HEADER_BYTES_MAX, 52);
    }

    #[test]
    fn the_high_bits_are_the_service_and_the_flags_add_up() {
        for (code, info) in (0..=255u8).filter_map(|code| Some((code, Opcode(code).info()?))) {
            let service =
                [Service::Rc, Service::Uc, Service::Rd, Service::Ud, Service::Cnp, Service::Xrc][code as usize >> 5];
            assert_eq!(info.service, service);
            let four = [info.has_rdeth, info.has_xrceth, info.has_feth, info.has_aeth, info.has_imm, info.has_ieth];
            let bytes = 12
                + four.iter().filter(|has| **has).count() * 4
                + usize::from(info.has_deth) * 8
                + usize::from(info.has_atomic_ack) * 8
                + usize::from(info.has_reth) * 16
                + usize::from(info.has_atomic) * 28
                + usize::from(service == Service::Cnp) * 16;
            assert_eq!(bytes, info.header_bytes, "opcode 0x{code:02x}");
        }
    }

    #[test]
    fn uc_gives_every_opcode_of_the_service() {
        let all: std::vec::Vec<_> = (0x20..0x40).filter_map(|code| Some((code, Opcode(code).info()?))).collect();
        assert_eq!(all.len(), 12);
        for (code, info) in all {
            assert_eq!(uc(info.operation, info.position, info.has_imm), Opcode(code));
        }
    }

    #[test]
    fn rc_gives_every_segmented_opcode() {
        let mut given = 0;
        for code in 0..=0x1f {
            let Some(info) = Opcode(code).info() else { continue };
            if matches!(info.operation, Operation::Send | Operation::Write | Operation::ReadResponse) && !info.has_ieth
            {
                assert_eq!(rc(info.operation, info.position, info.has_imm), Opcode(code));
                given += 1;
            }
        }
        assert_eq!(given, 16);
    }
}
