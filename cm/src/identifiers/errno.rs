//! Errors of calls about identifiers: those that Linux gives, by their numbers on Linux.

use thiserror::Error;

/// Reasons why a call about an identifier was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmErrno {
    /// `ENOENT`: no such identifier.
    #[error("no such identifier")]
    NoEntry = 2,
    /// `ENOMEM`: a limit is reached.
    #[error("too many identifiers")]
    NoMemory = 12,
    /// `EACCES`: a port below 1024.
    #[error("the port is privileged")]
    Access = 13,
    /// `ENODEV`: the address is not on a device.
    #[error("no device has the address")]
    NoDevice = 19,
    /// `EINVAL`: the call does not fit the identifier's state, or a value is out of its range.
    #[error("the call does not fit the identifier")]
    Invalid = 22,
    /// `ENOSYS`: an unknown option.
    #[error("not implemented")]
    NotImplemented = 38,
    /// `EAFNOSUPPORT`: neither IPv4 nor IPv6.
    #[error("address family not supported")]
    Family = 97,
    /// `EADDRINUSE`: the port is taken.
    #[error("the port is in use")]
    AddressInUse = 98,
    /// `EADDRNOTAVAIL`: the address is not of this host, or the port is taken for all addresses.
    #[error("the address is not available")]
    AddressNotAvailable = 99,
    /// `ENETUNREACH`: no route.
    #[error("no route to the destination")]
    NetUnreachable = 101,
    /// `EISCONN`: the connection is established already.
    #[error("the connection is established")]
    IsConnected = 106,
    /// `ETIMEDOUT`: no answer.
    #[error("no answer")]
    TimedOut = 110,
}

impl CmErrno {
    /// Number of the error.
    pub const fn number(self) -> i32 {
        self as i32
    }
}
