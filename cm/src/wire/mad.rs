//! Management datagrams: header, and the message by its attribute (IBTA v1 13.4.2).

use thiserror::Error;

use super::{
    CommId, Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, TransactionId,
    body::{BODY_BYTES, BodyReader, BodyWriter},
};

/// Bytes of a MAD, always all of them.
pub const MAD_BYTES: usize = HEADER_BYTES + BODY_BYTES;

const HEADER_BYTES: usize = 24;
const BASE_VERSION: u8 = 1;
/// Communication management.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// Kinds of message, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// [`Req`].
    Req = 0x10,
    /// [`Mra`].
    Mra = 0x11,
    /// [`Rej`].
    Rej = 0x12,
    /// [`Rep`].
    Rep = 0x13,
    /// [`Rtu`].
    Rtu = 0x14,
    /// [`Dreq`].
    Dreq = 0x15,
    /// [`Drep`].
    Drep = 0x16,
    /// [`SidrReq`].
    SidrReq = 0x17,
    /// [`SidrRep`].
    SidrRep = 0x18,
    /// Load alternate path: not on Ethernet.
    Lap = 0x19,
    /// Answer to a LAP.
    Apr = 0x1a,
}

impl Attribute {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    /// The kind of that number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|attribute| attribute.number() == number)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self as u16
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Asks for a connection.
    Req(Req),
    /// Asks for patience.
    Mra(Mra),
    /// Refuses.
    Rej(Rej),
    /// Accepts a REQ.
    Rep(Rep),
    /// Confirms a REP.
    Rtu(Rtu),
    /// Ends a connection.
    Dreq(Dreq),
    /// Answers a DREQ.
    Drep(Drep),
    /// Asks for the queue pair of a datagram service.
    SidrReq(SidrReq),
    /// Answers a SIDR_REQ.
    SidrRep(SidrRep),
}

impl CmMessage {
    /// Its kind.
    pub const fn attribute(&self) -> Attribute {
        match self {
            Self::Req(_) => Attribute::Req,
            Self::Mra(_) => Attribute::Mra,
            Self::Rej(_) => Attribute::Rej,
            Self::Rep(_) => Attribute::Rep,
            Self::Rtu(_) => Attribute::Rtu,
            Self::Dreq(_) => Attribute::Dreq,
            Self::Drep(_) => Attribute::Drep,
            Self::SidrReq(_) => Attribute::SidrReq,
            Self::SidrRep(_) => Attribute::SidrRep,
        }
    }
}

/// Reasons why a datagram to queue pair 1 is no message of a connection manager. It is dropped and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Discard {
    /// Another length than [`MAD_BYTES`].
    #[error("{0} bytes, a MAD has {MAD_BYTES}")]
    Length(usize),
    /// Another version of management datagrams.
    #[error("base version {0}, not {BASE_VERSION}")]
    BaseVersion(u8),
    /// Another class: not for connection managers.
    #[error("management class {0:#04x}, not {CLASS:#04x}")]
    Class(u8),
    /// Another version of the class.
    #[error("class version {0}, not {CLASS_VERSION}")]
    ClassVersion(u8),
    /// Another method: connection managers send only.
    #[error("method {0:#04x}, not {METHOD_SEND:#04x}")]
    Method(u8),
    /// LAP or APR: Ethernet has no alternate paths.
    #[error("{0:?} about an alternate path")]
    AlternatePath(Attribute),
    /// An unknown message.
    #[error("attribute {0:#06x}")]
    Attribute(u16),
}

/// A management datagram of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction.
    pub transaction: TransactionId,
    /// Attribute modifier: options of the vendor in REQ, REP and SIDR_REP, else 0.
    pub modifier: u32,
    /// Message.
    pub message: CmMessage,
}

/// The number that the receiver of an answer gave to the connection that it is about: a REQ or
/// SIDR_REQ has none. Looks at nothing else but the header.
pub fn receiver_number(bytes: &[u8; MAD_BYTES]) -> Option<CommId> {
    let number = |at| CommId(u32::from_be_bytes(core::array::from_fn(|byte| bytes[HEADER_BYTES + at + byte])));
    match attribute_of(bytes)? {
        Attribute::Req | Attribute::SidrReq | Attribute::Lap | Attribute::Apr => None,
        Attribute::SidrRep => Some(number(0)),
        Attribute::Mra | Attribute::Rej | Attribute::Rep | Attribute::Rtu | Attribute::Dreq | Attribute::Drep => {
            Some(number(4))
        }
    }
}

/// The attribute of a datagram of connection managers, which has this class, versions and method.
fn attribute_of(bytes: &[u8; MAD_BYTES]) -> Option<Attribute> {
    let is_of_managers = bytes[..4] == [BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND];
    is_of_managers.then(|| Attribute::from_number(u16::from_be_bytes([bytes[16], bytes[17]])))?
}

/// Whether a datagram is about a connection of which the receiver's number is not known: it asks
/// for one (REQ, SIDR_REQ), or takes back such a request (a REJ that names no number). Looks at
/// nothing but the header and that number.
pub fn is_request(bytes: &[u8; MAD_BYTES]) -> bool {
    match attribute_of(bytes) {
        Some(Attribute::Req | Attribute::SidrReq) => true,
        Some(Attribute::Rej) => receiver_number(bytes) == Some(CommId(0)),
        _ => false,
    }
}

impl Mad {
    /// The datagram in `bytes`, the payload of a datagram to queue pair 1.
    ///
    /// # Errors
    /// [`Discard`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Discard> {
        let Ok(bytes) = <&[u8; MAD_BYTES]>::try_from(bytes) else { return Err(Discard::Length(bytes.len())) };
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a MAD is longer than its header");
        let [base_version, class, class_version, method, ..] = *header;
        if base_version != BASE_VERSION {
            return Err(Discard::BaseVersion(base_version));
        }
        if class != CLASS {
            return Err(Discard::Class(class));
        }
        if class_version != CLASS_VERSION {
            return Err(Discard::ClassVersion(class_version));
        }
        if method != METHOD_SEND {
            return Err(Discard::Method(method));
        }
        let body = BodyReader(body.try_into().expect("the rest of a MAD is its message"));
        let number = u16::from_be_bytes([header[16], header[17]]);
        let message = match Attribute::from_number(number).ok_or(Discard::Attribute(number))? {
            Attribute::Req => CmMessage::Req(Req::read(body)),
            Attribute::Mra => CmMessage::Mra(Mra::read(body)),
            Attribute::Rej => CmMessage::Rej(Rej::read(body)),
            Attribute::Rep => CmMessage::Rep(Rep::read(body)),
            Attribute::Rtu => CmMessage::Rtu(Rtu::read(body)),
            Attribute::Dreq => CmMessage::Dreq(Dreq::read(body)),
            Attribute::Drep => CmMessage::Drep(Drep::read(body)),
            Attribute::SidrReq => CmMessage::SidrReq(SidrReq::read(body)),
            Attribute::SidrRep => CmMessage::SidrRep(SidrRep::read(body)),
            attribute @ (Attribute::Lap | Attribute::Apr) => return Err(Discard::AlternatePath(attribute)),
        };
        let transaction = u64::from_be_bytes(core::array::from_fn(|byte| header[8 + byte]));
        let modifier = u32::from_be_bytes(core::array::from_fn(|byte| header[20 + byte]));
        Ok(Self { transaction: TransactionId(transaction), modifier, message })
    }

    /// The datagram as bytes.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        let (header, body) = bytes.split_first_chunk_mut::<HEADER_BYTES>().expect("a MAD is longer than its header");
        header[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        header[8..16].copy_from_slice(&self.transaction.0.to_be_bytes());
        header[16..18].copy_from_slice(&self.message.attribute().number().to_be_bytes());
        header[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        let body = &mut BodyWriter(body.try_into().expect("the rest of a MAD is its message"));
        match &self.message {
            CmMessage::Req(message) => message.write(body),
            CmMessage::Mra(message) => message.write(body),
            CmMessage::Rej(message) => message.write(body),
            CmMessage::Rep(message) => message.write(body),
            CmMessage::Rtu(message) => message.write(body),
            CmMessage::Dreq(message) => message.write(body),
            CmMessage::Drep(message) => message.write(body),
            CmMessage::SidrReq(message) => message.write(body),
            CmMessage::SidrRep(message) => message.write(body),
        }
        bytes
    }
}
