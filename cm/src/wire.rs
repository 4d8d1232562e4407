//! Management datagrams of the communication management class (IBTA v1 12.6, 13.4), as bytes and as
//! types.
//!
//! ```text
//!   BTH (UD SEND only, to QP 1) · DETH (Q_Key 0x80010000, from QP 1) · MAD of 256 bytes · ICRC
//!                                                                      header 24 · message 232
//! ```
//!
//! Each MAD has its full length; unused bytes are zero, and private data has no length: a receiver
//! gets all of it. Fields that IBTA reserves are not kept.

mod body;
mod cma;
mod connection;
mod ending;
mod mad;
mod path;
mod refusal;
mod service_id;
mod sidr;

pub use cma::{CmaAddress, CmaHeader, CmaHeaderError};
pub use connection::{Rep, Req, ReservedService, Rtu, TransportService};
pub use ending::{Drep, Dreq};
pub use mad::{Attribute, CmMessage, Discard, MAD_BYTES, Mad, is_request, receiver_number};
pub use path::ConnectionPath;
pub use refusal::{AdditionalInfo, Mra, Rej, RejectedMessage, reject_reason};
pub use service_id::{PortSpace, ServiceId};
pub use sidr::{SidrRep, SidrReq, sidr_status};

/// Number of a connection at one end. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// Name of a conversation, which answers repeat. Connection managers do not match by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionId(pub u64);

/// Name of a channel adapter: the node GUID of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaGuid(pub u64);
