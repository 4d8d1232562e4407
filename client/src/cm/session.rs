//! Session with the daemon's connection manager.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use roced_abi::control::{CreateCmChannel, Nothing, OpenCm};

use super::{channel::CmChannel, identifiers::IdentifierTable};
use crate::{
    error::{Error, Result},
    socket::{DaemonSession, default_path, lock},
};

/// The session of [`crate::Connection`] and its like, and its socket: each session is a client of
/// the daemon, of which a user has a limited number.
static SHARED: Mutex<Option<(PathBuf, Weak<CmSession>)>> = Mutex::new(None);

/// A session with the daemon's connection manager. It ends with the last channel.
#[derive(Debug)]
pub struct CmSession {
    pub(super) daemon: DaemonSession,
    identifiers: Mutex<IdentifierTable>,
}

impl CmSession {
    /// Opens a session with the daemon at the socket named by `ROCED_SOCKET`, or at the default
    /// socket.
    ///
    /// # Errors
    /// Those of [`Device::list`](crate::Device::list); a daemon without a connection manager.
    pub fn open() -> Result<Arc<Self>> {
        Self::open_at(&default_path())
    }

    /// The session that this process shares, at the socket of [`Self::open`].
    pub(crate) fn shared() -> Result<Arc<Self>> {
        let path = default_path();
        // Never waited for: in a forked child it may be held by a thread that does not exist there.
        let known = SHARED.try_lock().ok().and_then(|shared| {
            let (of, session) = shared.as_ref()?;
            session.upgrade().filter(|session| *of == path && session.daemon.is_of_this_process() && session.is_alive())
        });
        if let Some(session) = known {
            return Ok(session);
        }
        let session = Self::open_at(&path)?;
        if let Ok(mut shared) = SHARED.try_lock() {
            *shared = Some((path, Arc::downgrade(&session)));
        }
        Ok(session)
    }

    /// Opens a session with the daemon that listens at `socket`.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_at(socket: &Path) -> Result<Arc<Self>> {
        Self::with(DaemonSession::open(socket)?.0)
    }

    /// Opens a session over `socket`, which is already connected to the daemon. Takes ownership of
    /// the socket.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_over(socket: OwnedFd) -> Result<Arc<Self>> {
        Self::with(DaemonSession::over(socket)?.0)
    }

    fn with(daemon: DaemonSession) -> Result<Arc<Self>> {
        daemon.call::<OpenCm>(Nothing {})?;
        Ok(Arc::new(Self { daemon, identifiers: Mutex::default() }))
    }

    /// The session with the daemon itself.
    pub(crate) fn daemon(&self) -> &DaemonSession {
        &self.daemon
    }

    /// Creates an event channel.
    ///
    /// # Errors
    /// The limit of the session; the daemon is gone.
    pub fn channel(self: &Arc<Self>) -> Result<CmChannel> {
        let (reply, [socket]) = self.daemon.call_with_fds::<CreateCmChannel, 1>(Nothing {})?;
        Ok(CmChannel::new(Arc::clone(self), reply.handle, socket))
    }

    /// Checks whether the daemon still serves this session. One system call.
    pub fn is_alive(&self) -> bool {
        !self.daemon.look()
    }

    /// Locks the table of identifiers. In a forked child the lock may be held by a thread that does
    /// not exist there.
    pub(super) fn identifiers(&self) -> Result<MutexGuard<'_, IdentifierTable>> {
        if self.daemon.is_of_this_process() { Ok(lock(&self.identifiers)) } else { Err(Error::OtherProcess) }
    }
}
