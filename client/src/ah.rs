//! Address handles: destinations of datagrams.

use std::sync::Arc;

use roced_abi::control::{CreateAh, CreateAhRequest, DestroyAh, Handle};

use crate::{
    device::Device,
    error::Result,
    gid::Gid,
    pd::{PdInner, ProtectionDomain},
};

/// Destination and path attributes of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressOptions {
    /// GID of the destination.
    pub gid: Gid,
    /// Index of the source GID in the device's table. `None` selects the GID that matches the
    /// destination ([`Device::gid_toward`]).
    pub sgid_index: Option<u32>,
    /// IP time to live or hop limit.
    pub hop_limit: u8,
    /// IP traffic class: DSCP in the upper six bits. The lower two bits (ECN) are the
    /// device's, and not looked at here.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits. If not 0, the UDP source port is derived from it.
    pub flow_label: u32,
    /// Priority in the VLAN tag, if the frame has one, 0 to 7.
    pub service_level: u8,
    /// Highest rate of datagrams to there, kbit/s, 0 for none.
    pub static_rate_kbit_per_s: u32,
}

impl AddressOptions {
    /// Options for destination `gid` with the usual defaults.
    pub const fn new(gid: Gid) -> Self {
        Self {
            gid,
            sgid_index: None,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
            static_rate_kbit_per_s: 0,
        }
    }
}

/// A destination for datagrams, usable by the queue pairs of its protection domain.
///
/// Clones name the same handle. Dropping the last clone destroys it.
///
/// Keep the handle until every send that uses it has completed: a work request stores only the
/// number of the handle, and the daemon looks it up when it transmits the datagram. If the handle
/// is gone by that time, the send fails with
/// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation).
///
/// ```no_run
/// # use roced_client::{AddressOptions, Device, SendRequest, ServiceType};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open("roce0")?;
/// # let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
/// let qp = pd.queue_pair(&cq, &cq).service(ServiceType::Ud).create()?;
/// qp.activate(0x1111_1111)?;
/// let peer: std::net::IpAddr = "10.10.0.2".parse()?;
/// let to = pd.address_handle(&AddressOptions::new(peer.into()))?;
/// // The queue pair number of the receiver, and its Q_Key.
/// qp.post_send(&SendRequest::send_inline(b"hello").to(&to, 0x123, 0x1111_1111))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    pd: Arc<PdInner>,
    handle: u32,
}

impl ProtectionDomain {
    /// Creates an address handle, which names the destination of datagrams. Keep it until the sends
    /// that use it have completed, see [`AddressHandle`].
    ///
    /// # Errors
    /// No route; no source GID; the session's limit; the daemon is gone. The presence of the
    /// destination is never checked.
    pub fn address_handle(&self, options: &AddressOptions) -> Result<AddressHandle> {
        AddressHandle::create(self, options)
    }
}

impl AddressHandle {
    pub(crate) fn create(pd: &ProtectionDomain, options: &AddressOptions) -> Result<Self> {
        let device: Device = pd.device();
        let sgid_index = match options.sgid_index {
            Some(index) => index,
            None => device.gid_toward(options.gid)?.index,
        };
        let request = CreateAhRequest {
            pd: pd.inner.handle,
            sgid_index,
            dgid: options.gid.0,
            flow_label: options.flow_label,
            hop_limit: options.hop_limit.into(),
            traffic_class: options.traffic_class.into(),
            service_level: options.service_level.into(),
            static_rate_kbit_per_s: options.static_rate_kbit_per_s,
        };
        let handle = pd.inner.device.session.call::<CreateAh>(request)?.handle;
        Ok(Self { inner: Arc::new(AhInner { pd: Arc::clone(&pd.inner), handle }) })
    }

    /// Number of the handle in this session.
    pub fn number(&self) -> u32 {
        self.inner.handle
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // Fails only if the session has ended, which destroys the handle as well.
        let _ = self.pd.device.session.call::<DestroyAh>(Handle { handle: self.handle });
    }
}
