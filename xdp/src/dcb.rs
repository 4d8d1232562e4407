//! Data center bridging of a NIC (DCB) by the kernel's dcbnl: priority flow control (PFC), the
//! priority of each DSCP, and whether the NIC goes by DSCPs at all; global pause by ethtool.
//!
//! ```text
//!  NicDcb::settings ─► DcbMessage ─► NicControl (netlink, or a test) ─► DcbMessage ─► DcbSettings
//! ```
//!
//! A reply is checked once, when it becomes [`DcbSettings`]. Drivers without DCB, such as that of
//! veth, answer `EOPNOTSUPP`: there are no settings. A setting is written only by a call that names
//! it.

mod control;
mod message;
mod nic;
mod settings;

pub use control::{KernelControl, NicControl};
pub use message::{DcbDecodeError, DcbMessage};
pub use nic::{DcbError, NicDcb};
pub use settings::{
    DcbSettings, DcbxAgent, DcbxFlags, DscpPriority, EtsSettings, PfcSettings, PrioritySet, TrustedField,
};

/// Priorities of IEEE 802.1Q.
pub const PRIORITIES: u8 = 8;

/// DSCPs.
pub const DSCPS: u8 = 64;

#[cfg(test)]
mod tests;
