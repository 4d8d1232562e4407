//! Calls to the kernel about a NIC's settings: the seam where tests give recorded replies.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::DcbMessage;
use crate::{
    ethtool::{GlobalPause, global_pause, set_global_pause},
    netlink::Requests,
};

/// Carries requests about an interface to its driver, and the answers back.
pub trait NicControl {
    /// Messages in reply to a request of dcbnl, after its acknowledgment.
    ///
    /// # Errors
    /// The kernel's, or the driver's.
    fn exchange(&mut self, request: DcbMessage) -> io::Result<Vec<DcbMessage>>;

    /// Global pause of an interface; `None` if the driver does not say.
    ///
    /// # Errors
    /// The kernel's.
    fn global_pause(&mut self, interface: &str) -> io::Result<Option<GlobalPause>>;

    /// Sets global pause of an interface.
    ///
    /// # Errors
    /// The kernel's, or the driver's.
    fn set_global_pause(&mut self, interface: &str, pause: GlobalPause) -> io::Result<()>;
}

/// The kernel of this host.
#[derive(Debug)]
pub struct KernelControl {
    requests: Requests,
}

impl KernelControl {
    /// With a socket of its own.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Ok(Self { requests: Requests::open(NETLINK_ROUTE)? })
    }
}

impl NicControl for KernelControl {
    fn exchange(&mut self, request: DcbMessage) -> io::Result<Vec<DcbMessage>> {
        self.requests.get(request)
    }

    fn global_pause(&mut self, interface: &str) -> io::Result<Option<GlobalPause>> {
        global_pause(interface)
    }

    fn set_global_pause(&mut self, interface: &str, pause: GlobalPause) -> io::Result<()> {
        set_global_pause(interface, pause)
    }
}
