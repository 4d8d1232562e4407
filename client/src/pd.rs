//! Protection domains: groups of memory regions and queue pairs that work together.

use std::sync::Arc;

use roced_abi::control::{AllocPd, DeallocPd, Handle, Nothing};

use crate::{
    device::{Device, DeviceInner},
    error::Result,
};

/// A protection domain. Clones name the same domain, which is deallocated when the last clone and
/// every object created from it are gone.
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
