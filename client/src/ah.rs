//! Address handles: where datagrams go.

use std::sync::Arc;

use roced_shared::abi::control::{CreateAh, CreateAhRequest, DestroyAh, Handle};

use crate::{
    device::Device,
    error::Result,
    gid::Gid,
    pd::{PdInner, ProtectionDomain},
};

/// Where a datagram goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressOptions {
    /// The destination.
    pub gid: Gid,
    /// Which of our GIDs it comes from. `None`: the one that fits the destination's ([`Device::gid_toward`]).
    pub sgid_index: Option<u32>,
    /// IP time to live or hop limit.
    pub hop_limit: u8,
    /// IP traffic class: DSCP in the upper six bits. The lower two, of ECN, are not sent: there is no congestion control to react to them.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; also makes the UDP source port when not 0.
    pub flow_label: u32,
    /// Priority in the VLAN tag, where there is one, 0 to 7.
    pub service_level: u8,
}

impl AddressOptions {
    /// To `gid`, as is usual.
    pub const fn new(gid: Gid) -> Self {
        Self { gid, sgid_index: None, hop_limit: 64, traffic_class: 0, flow_label: 0, service_level: 0 }
    }
}

/// An address that datagrams can be sent to by the queue pairs of its protection domain. Clones name the same one; it ends with the
/// last. Sends that still wait with it then fail: keep it until they are complete.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    pd: Arc<PdInner>,
    handle: u32,
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
        };
        let handle = pd.inner.device.session.call::<CreateAh>(request)?.handle;
        Ok(Self { inner: Arc::new(AhInner { pd: Arc::clone(&pd.inner), handle }) })
    }

    /// Its number in this session.
    pub fn number(&self) -> u32 {
        self.inner.handle
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // Fails only when the session is over, and then the handle is too.
        let _ = self.pd.device.session.call::<DestroyAh>(Handle { handle: self.handle });
    }
}
