//! Event channels: a socket that is readable if and only if an event waits.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv},
};
use roced_abi::control::{CmAddress, CmChannelEvent, DestroyCmChannel, Handle};
use zerocopy::{FromZeros, IntoBytes};

use super::{identifiers::IdentifierTable, session::CmSession};
use crate::error::{Error, Result};

/// An event channel of the connection manager. Dropping it destroys its identifiers.
#[derive(Debug)]
pub struct CmChannel {
    pub(super) session: Arc<CmSession>,
    pub(super) handle: u32,
    /// Absent once abandoned.
    socket: Option<OwnedFd>,
}

/// An event, and the properties of its identifier that a program needs to read it.
#[derive(Clone, Copy, Debug)]
pub struct TakenCmEvent {
    /// The event.
    pub event: CmChannelEvent,
    /// [`super::cm_service`] of the identifier.
    pub service: u32,
    /// The multicast group, of an event of a membership.
    pub group: Option<CmAddress>,
}

impl CmChannel {
    pub(super) fn new(session: Arc<CmSession>, handle: u32, socket: OwnedFd) -> Self {
        Self { session, handle, socket: Some(socket) }
    }

    /// The session of the channel.
    pub fn session(&self) -> &Arc<CmSession> {
        &self.session
    }

    /// Takes the next event, or returns `None`. Does not wait.
    ///
    /// After the end of the daemon each identifier that is bound to a device has one more event,
    /// [`super::cm_event::DEVICE_REMOVAL`].
    ///
    /// # Errors
    /// The daemon is gone, and all events were taken.
    pub fn take(&self) -> Result<Option<TakenCmEvent>> {
        let mut identifiers = self.session.identifiers()?;
        self.drop_stale(&identifiers);
        match self.receive_now(MsgFlags::empty()) {
            Ok(Some(event)) => {
                let service = identifiers.take(&event);
                self.drop_stale(&identifiers);
                Ok(Some(TakenCmEvent { event, service, group: identifiers.group(event.id) }))
            }
            Ok(None) => Ok(None),
            Err(error) if error.is_fatal() => {
                let (event, service) = identifiers.next_removal(self.handle).ok_or(error)?;
                Ok(Some(TakenCmEvent { event, service, group: None }))
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the next event. Waits unless the descriptor is non-blocking (`O_NONBLOCK`), as a read
    /// from it would.
    ///
    /// # Errors
    /// Those of [`Self::take`]; `EAGAIN`; `EINTR`.
    pub fn receive(&self) -> Result<TakenCmEvent> {
        loop {
            if let Some(taken) = self.take()? {
                return Ok(taken);
            }
            Self::wait(self.as_fd())?;
        }
    }

    /// Waits until the descriptor of a channel is readable, as a read from it would: the kernel
    /// decides about `O_NONBLOCK`, and about signals that interrupt the wait or let it continue.
    /// Takes nothing, and holds neither a lock nor memory: a thread may be canceled here.
    ///
    /// # Errors
    /// `EAGAIN`; `EINTR`.
    pub fn wait(socket: BorrowedFd<'_>) -> Result<()> {
        match recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK) {
            // The next attempt to take an event reports the end of the daemon.
            Ok(_) | Err(Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(Error::Kernel { call: "recv", errno }),
        }
    }

    /// Ends the channel without closing its descriptor, which the program has closed already: the
    /// number may be that of another file by now. Returns the number.
    pub fn abandon(mut self) -> Option<RawFd> {
        self.socket.take().map(IntoRawFd::into_raw_fd)
    }

    /// Drops events until the first is not stale.
    pub(super) fn drop_stale(&self, identifiers: &IdentifierTable) {
        // Errors are left to the next attempt to take an event.
        while let Ok(Some(event)) = self.receive_now(MsgFlags::MSG_PEEK) {
            if !identifiers.is_stale(self.handle, &event) {
                return;
            }
            let _ = self.receive_now(MsgFlags::empty());
        }
    }

    fn receive_now(&self, flags: MsgFlags) -> Result<Option<CmChannelEvent>> {
        let socket = self.socket.as_ref().ok_or(Error::DaemonGone)?;
        let mut event = CmChannelEvent::new_zeroed();
        loop {
            return match recv(socket.as_raw_fd(), event.as_mut_bytes(), flags | MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => Err(Error::DaemonGone),
                Ok(length) if length == size_of::<CmChannelEvent>() => Ok(Some(event)),
                Ok(_) => Err(Error::Protocol { what: "an event of the connection manager of another length" }),
                Err(Errno::EAGAIN) => Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => Err(Error::Kernel { call: "recv", errno }),
            };
        }
    }
}

impl AsFd for CmChannel {
    /// File descriptor for the program's own `poll()`: readable when [`CmChannel::take`] has a
    /// result, including that the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("only `abandon` takes it, which takes the channel").as_fd()
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // In a forked child the channel is its parent's.
        let Ok(mut identifiers) = self.session.identifiers() else { return };
        // Fails only if the session has ended, which destroys the channel as well.
        let _ = self.session.daemon.call::<DestroyCmChannel>(Handle { handle: self.handle });
        identifiers.remove_channel(self.handle);
    }
}
