//! Identifiers that the daemon does not know: those of native InfiniBand addresses (`AF_IB`).
//!
//! librdmacm creates one to find out which half of the commands the kernel has: it binds it to the
//! address zero, queries it, and destroys it. Such an identifier exists, and leads nowhere.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, Ordering},
};

use roced_client::trusted_variable;

use super::address::IB_BYTES;
use crate::errno::{Errno, Result};

/// `RDMA_PS_IB`.
pub(super) const PORT_SPACE: u16 = 0x013f;

/// Numbers begin at the far end of those that the daemon gives: librdmacm's table ends here.
static NEXT: AtomicU32 = AtomicU32::new(u16::MAX as u32);

/// Their addresses, zeros before they are bound, by number.
#[derive(Default)]
pub(super) struct OwnIds(HashMap<u32, [u8; IB_BYTES]>);

impl OwnIds {
    pub(super) fn create(&mut self) -> u32 {
        let step = |number| Some(if number <= 1 { u16::MAX.into() } else { number - 1 });
        let number = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_default();
        self.0.insert(number, [0; IB_BYTES]);
        number
    }

    /// Destroys an identifier, if it is one of these.
    pub(super) fn destroy(&mut self, id: u32) -> bool {
        self.0.remove(&id).is_some()
    }

    pub(super) fn address(&self, id: u32) -> Option<&[u8; IB_BYTES]> {
        self.0.get(&id)
    }

    /// Binds an identifier to an address of `AF_IB`.
    pub(super) fn bind(&mut self, id: u32, address: [u8; IB_BYTES]) -> Result<()> {
        let known = self.0.get_mut(&id).ok_or(Errno(libc::EAFNOSUPPORT))?;
        if trusted_variable("ROCED_CM_AF_IB").is_some_and(|value| value == "0") {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        *known = address;
        Ok(())
    }
}
