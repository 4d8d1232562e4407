//! DCB of one interface: reading and changing its settings.

use std::io;

use nix::errno::Errno;
use thiserror::Error;

use super::{
    control::NicControl,
    message::{DcbDecodeError, DcbMessage},
    settings::{DcbSettings, DscpPriority, PfcSettings, TrustedField},
};
use crate::ethtool::GlobalPause;

/// Why settings cannot be read or changed.
#[derive(Debug, Error)]
pub enum DcbError {
    /// The kernel or the driver refuses.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// The reply is not as it should be.
    #[error(transparent)]
    Reply(#[from] DcbDecodeError),
}

/// DCB of an interface.
#[derive(Debug)]
pub struct NicDcb<C> {
    interface: String,
    control: C,
}

impl<C: NicControl> NicDcb<C> {
    /// That of `interface`.
    pub fn new(interface: &str, control: C) -> Self {
        Self { interface: interface.to_owned(), control }
    }

    /// Its name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// All settings; `None` if the driver, or the kernel, has no DCB.
    ///
    /// # Errors
    /// [`DcbError`].
    pub fn settings(&mut self) -> Result<Option<DcbSettings>, DcbError> {
        match self.control.exchange(DcbMessage::get(&self.interface)) {
            Ok(replies) => Ok(Some(replies.first().ok_or(DcbDecodeError::NoReply)?.settings()?)),
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets priority flow control. Some NICs take their link down and up for it.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn set_pfc(&mut self, pfc: &PfcSettings) -> Result<(), DcbError> {
        self.change(DcbMessage::set_pfc(&self.interface, pfc))
    }

    /// Adds priorities of DSCPs. Others of the same DSCPs stay, except with drivers that have one
    /// for each.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn add_dscp_priorities(&mut self, entries: &[DscpPriority]) -> Result<(), DcbError> {
        self.change(DcbMessage::add_dscp_priorities(&self.interface, entries))
    }

    /// Removes priorities of DSCPs.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn remove_dscp_priorities(&mut self, entries: &[DscpPriority]) -> Result<(), DcbError> {
        self.change(DcbMessage::remove_dscp_priorities(&self.interface, entries))
    }

    /// Sets the fields that the priority of a frame is taken from.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn set_trust(&mut self, fields: &[TrustedField]) -> Result<(), DcbError> {
        self.change(DcbMessage::set_trust(&self.interface, fields))
    }

    /// Global pause; `None` if the driver does not say.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn global_pause(&mut self) -> Result<Option<GlobalPause>, DcbError> {
        Ok(self.control.global_pause(&self.interface)?)
    }

    /// Sets global pause.
    ///
    /// # Errors
    /// [`DcbError::Refused`].
    pub fn set_global_pause(&mut self, pause: GlobalPause) -> Result<(), DcbError> {
        Ok(self.control.set_global_pause(&self.interface, pause)?)
    }

    fn change(&mut self, request: DcbMessage) -> Result<(), DcbError> {
        let replies = self.control.exchange(request)?;
        replies.iter().try_for_each(|reply| reply.result()).map_err(|errno| DcbError::Refused(errno.into()))
    }
}
