//! Choices that an operator makes for an interface.

/// Mode in which the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// Native if the driver supports it, otherwise generic.
    Auto,
    /// In the driver.
    Native,
    /// In the network stack, with any driver.
    Generic,
}

/// Mover of frames between NIC and UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy if the driver supports it, otherwise copy.
    Auto,
    /// The NIC accesses the UMEM.
    Zerocopy,
    /// The kernel copies.
    Copy,
}
