//! Protection domains: groups of memory regions and queue pairs that work together.

use std::sync::Arc;

use roced_abi::control::{AllocPd, DeallocPd, Handle, Nothing};

use crate::{
    device::{Device, DeviceInner},
    error::Result,
};

/// A protection domain. Clones name the same domain, which is deallocated when the last clone and
/// every object created from it are gone.
///
/// Queue pairs and their peers reach only memory of the same domain; a key of another domain fails
/// their work ([`Status::RemoteAccess`](crate::Status::RemoteAccess) if the peer named it,
/// [`Status::LocalProtection`](crate::Status::LocalProtection) if this end did). A session has at
/// most [`max_pds`](crate::DeviceAttributes::max_pds) domains.
///
/// ```no_run
/// # use roced_client::{Access, Device};
/// # fn main() -> roced_client::Result<()> {
/// # let device = Device::open("roce0")?;
/// // One domain for each customer: the peer of one never reaches memory of the other.
/// let (a, b) = (device.protection_domain()?, device.protection_domain()?);
/// let cq = device.completion_queue(16)?;
/// let qp = a.queue_pair(&cq, &cq).create()?;
/// // The peer of `qp` may write to the first region, and not to the second.
/// let open = a.allocate(4096, Access::REMOTE_WRITE)?;
/// let closed = b.allocate(4096, Access::REMOTE_WRITE)?;
/// # let _ = (qp, open, closed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) handle: u32,
}

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The session's limit; the daemon is gone.
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        let handle = self.inner.session.call::<AllocPd>(Nothing {})?.handle;
        Ok(ProtectionDomain::new(&self.inner, handle))
    }
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32) -> Self {
        Self { inner: Arc::new(PdInner { device: Arc::clone(device), handle }) }
    }

    /// Device of the domain.
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    /// Number of the domain in this session.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Fails only if the session has ended, which deallocates the domain as well.
        let _ = self.device.session.call::<DeallocPd>(Handle { handle: self.handle });
    }
}
