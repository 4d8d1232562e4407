//! The socket that clients connect to.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, listen, setsockopt,
        socket, sockopt,
    },
    unistd::{Gid, Group, chown},
};
use roced_memory::{accounts::ClientAccounts, shared_fd::SharedFd};
use thiserror::Error;
use tracing::info;

use super::connection::{ClientConnection, ClientProcess};
use crate::{
    accounts::{access::AccessRules, subordinate::SubordinateUids},
    peer_groups::groups_of,
};

/// Buffer of replies and events that a client has not received, bytes: for some eighty. The kernel
/// counts it for the daemon's cgroup.
const SEND_BUFFER: usize = 32 << 10;

/// Why the daemon cannot listen for clients.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The path does not fit a socket address.
    #[error("{} is too long for a socket address (at most 107 bytes): choose a shorter control.socket", .0.display())]
    PathTooLong(PathBuf),
    /// The path has a listener already.
    #[error("something listens at {} already: is another roced running? Give this one another control.socket", .0.display())]
    InUse(PathBuf),
    /// There is a file that is no socket.
    #[error("{} exists and is no socket: move it away, or choose another control.socket", .0.display())]
    NotASocket(PathBuf),
    /// The config names a group that does not exist.
    #[error("there is no group {0}: create it (`groupadd --system {0}`), or change control.group")]
    NoSuchGroup(String),
    /// The kernel said no.
    #[error("cannot {what} {}: {errno}", .path.display())]
    Kernel {
        /// The attempted action.
        what: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
}

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub struct ClientListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that another's is not removed.
    file: Option<(u64, u64)>,
    /// A descriptor to let go of when there are no more: else a connection that cannot be taken
    /// would wake us for ever.
    reserve: Option<OwnedFd>,
    /// Accounts of all connections.
    accounts: ClientAccounts,
    subordinate: SubordinateUids,
    rules: AccessRules,
}

impl ClientListener {
    /// Listens at `path`, accessible according to `group` (if given) and `mode`. A socket file
    /// without a listener is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, group: Option<&str>, mode: u32) -> Result<Self, ListenError> {
        let address = UnixAddr::new(path).map_err(|_| ListenError::PathTooLong(path.into()))?;
        let kernel = |what| move |errno| ListenError::Kernel { what, path: path.into(), errno };
        let group = match group {
            Some(name) => match Group::from_name(name).map_err(kernel("look up the group for"))? {
                Some(group) => Some(group.gid),
                None => return Err(ListenError::NoSuchGroup(name.into())),
            },
            None => None,
        };
        remove_stale(path, &address)?;
        let socket = seqpacket().map_err(kernel("make a socket for"))?;
        bind(socket.as_raw_fd(), &address).map_err(kernel("bind"))?;
        let file = fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let (accounts, subordinate) = (ClientAccounts::default(), SubordinateUids::of_system());
        let listener = Self {
            socket,
            path: path.into(),
            file,
            reserve: reserve(),
            accounts,
            subordinate,
            rules: AccessRules::default(),
        };
        // No connection is possible before the permissions are right: it does not listen yet.
        if group.is_some() {
            chown(path, None, group).map_err(kernel("set the group of"))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| kernel("set the mode of")(errno_of(&error)))?;
        listen(&listener.socket, Backlog::new(128).expect("within the limit of the kernel"))
            .map_err(kernel("listen at"))?;
        info!(path = %path.display(), mode = format_args!("{mode:o}"), "listening for clients");
        Ok(listener)
    }

    /// Sets the rules that decide about the devices and limits of clients.
    #[must_use]
    pub fn with_rules(mut self, rules: AccessRules) -> Self {
        self.rules = rules;
        self
    }

    /// Accounts of all connections.
    pub fn accounts(&self) -> &ClientAccounts {
        &self.accounts
    }

    /// The next client that wants in; `None` when there is none. Never waits.
    pub fn accept(&mut self) -> Option<ClientConnection> {
        // The last connection that was turned away may have been closed after the descriptor was kept
        // again.
        self.reserve = self.reserve.take().or_else(reserve);
        loop {
            match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
                Ok(raw) => return self.connection(owned(raw)),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // One per poll iteration: the socket stays readable.
                Err(Errno::EMFILE | Errno::ENFILE) if self.reserve.take().is_some() => {
                    self.turn_away();
                    return None;
                }
                Err(_) => return None,
            }
        }
    }

    fn connection(&self, socket: OwnedFd) -> Option<ClientConnection> {
        // It cannot fail: the kernel takes any number.
        let _ = setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER);
        // Fails only when the other end is gone already.
        let credentials = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        let (pid, uid) = (credentials.pid(), credentials.uid());
        let account = self.subordinate.account_of(uid);
        let groups = || {
            let supplementary = groups_of(&socket).ok()?;
            Some(supplementary.into_iter().map(Gid::as_raw).chain([credentials.gid()]).collect())
        };
        let Some(access) = self.rules.of(uid, account, groups) else {
            // Without its groups, where a rule asks for them, a program has no rights. A thread of
            // its user's closes the socket: descriptors may be left in it.
            drop(SharedFd::new(socket, Some(self.accounts.account(account))));
            return None;
        };
        let process = ClientProcess { pid, uid, account, access };
        Some(ClientConnection::new(socket, process, &self.accounts))
    }

    /// Takes the next connection and drops it, with the descriptor that was kept for this.
    fn turn_away(&mut self) {
        match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // A thread of its user's closes it.
            Ok(raw) => drop(self.connection(owned(raw))),
            // It ended by itself, or another thread took the descriptor: it will be reported again.
            Err(_errno) => {}
        }
        self.reserve = reserve();
    }
}

impl AsFd for ClientListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for ClientListener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| self.file == Some((file.dev(), file.ino())));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            info!(path = %self.path.display(), %error, "the socket file stays");
        }
    }
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

/// Removes the socket file of a daemon that is no more.
fn remove_stale(path: &Path, address: &UnixAddr) -> Result<(), ListenError> {
    let Ok(file) = fs::symlink_metadata(path) else { return Ok(()) };
    if !file.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    let kernel = |what| move |errno| ListenError::Kernel { what, path: path.into(), errno };
    let probe = seqpacket().map_err(kernel("make a socket for"))?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => {}
        // It was accepted, has a full backlog, or is of another socket type: alive in any case.
        _ => return Err(ListenError::InUse(path.into())),
    }
    fs::remove_file(path).map_err(|error| kernel("remove the stale socket")(errno_of(&error)))
}

#[expect(unsafe_code, reason = "accept4 of nix gives a bare descriptor")]
fn owned(raw: i32) -> OwnedFd {
    // SAFETY: accept4 has just created this descriptor, and no other code knows of it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

fn reserve() -> Option<OwnedFd> {
    fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("roced.sock");
        (folder, path)
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let (_folder, path) = scratch();
        let stale = seqpacket().expect("a socket");
        bind(stale.as_raw_fd(), &UnixAddr::new(&path).expect("short")).expect("free");
        drop(stale);
        let first = ClientListener::bind(&path, None, 0o600).expect("replaces the stale one");
        assert!(matches!(ClientListener::bind(&path, None, 0o600), Err(ListenError::InUse(_))));
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let (_folder, path) = scratch();
        fs::write(&path, "precious").expect("writable");
        assert!(matches!(ClientListener::bind(&path, None, 0o600), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read(&path).expect("still there"), b"precious");
    }

    #[test]
    fn mistakes_in_the_config_are_named() {
        let (folder, path) = scratch();
        let error = ClientListener::bind(&path, Some("no-such-group-here"), 0o600).expect_err("no such group");
        assert!(error.to_string().contains("groupadd"));
        assert!(!path.exists());
        let long = folder.path().join("x".repeat(200));
        assert!(matches!(ClientListener::bind(&long, None, 0o600), Err(ListenError::PathTooLong(_))));
        let nowhere = folder.path().join("no/such/folder");
        assert!(matches!(
            ClientListener::bind(&nowhere, None, 0o600),
            Err(ListenError::Kernel { what: "bind", errno: Errno::ENOENT, .. })
        ));
    }

    #[test]
    fn the_file_of_a_successor_is_not_removed() {
        let (_folder, path) = scratch();
        let first = ClientListener::bind(&path, None, 0o600).expect("free");
        fs::remove_file(&path).expect("ours");
        let second = ClientListener::bind(&path, None, 0o600).expect("free again");
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
