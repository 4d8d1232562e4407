//! Operators that the admin socket answers: root, the daemon's own user, and the members of one
//! group, by the kernel's word. It tells the groups of a process at the moment when it connected.

use std::{
    fs, io,
    os::{fd::AsFd, unix::fs::PermissionsExt as _},
    path::Path,
};

use nix::{
    sys::socket::UnixCredentials,
    unistd::{Group, chown, geteuid},
};
use tracing::warn;

use crate::peer_groups::groups_of;

/// The group of operators, unless the config names another; the packages create it.
pub(crate) const DEFAULT_GROUP: &str = "roced-admin";

/// The operators.
#[derive(Debug)]
pub(super) struct AdminAccess {
    group: Option<Group>,
}

impl AdminAccess {
    /// The group of that name; without a name the usual one, if there is such.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::NotFound`] if the named group does not exist.
    pub(super) fn new(group: Option<&str>) -> io::Result<Self> {
        let name = group.unwrap_or(DEFAULT_GROUP);
        match (Group::from_name(name)?, group) {
            (None, Some(_)) => {
                let problem =
                    format!("there is no group {name}: create it (`groupadd --system {name}`), or change admin.group");
                Err(io::Error::new(io::ErrorKind::NotFound, problem))
            }
            (found, _) => Ok(Self { group: found }),
        }
    }

    /// Gives the socket at `path` to the operators: only they can open it.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn give(&mut self, path: &Path) -> io::Result<()> {
        let set_mode = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        // Before another group has it.
        set_mode(0o600)?;
        let Some(group) = &self.group else { return Ok(()) };
        if let Err(errno) = chown(path, None, Some(group.gid)) {
            // Run by hand, without CAP_CHOWN.
            warn!(group = group.name, %errno, "the admin socket is for root and the daemon's user alone");
            self.group = None;
            return Ok(());
        }
        set_mode(0o660)
    }

    /// Whether the process at the other end of a socket is an operator's.
    pub(super) fn allows(&self, socket: &impl AsFd, credentials: UnixCredentials) -> bool {
        let uid = credentials.uid();
        if uid == 0 || uid == geteuid().as_raw() {
            return true;
        }
        let Some(Group { gid, .. }) = &self.group else { return false };
        credentials.gid() == gid.as_raw() || groups_of(socket).is_ok_and(|groups| groups.contains(gid))
    }

    /// The operators, for those that are not.
    pub(super) fn describe(&self) -> String {
        let group = self.group.as_ref().map(|group| format!(", and members of the group {}", group.name));
        format!("only root and the user that roced runs as{} may ask", group.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use nix::{
        sys::socket::{getsockopt, sockopt::PeerCredentials},
        unistd::{Gid, getegid},
    };

    use super::*;

    #[test]
    fn root_the_own_user_and_the_group_may_ask_and_no_other() {
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        let of_test = getsockopt(&ours, PeerCredentials).expect("they are told");
        let raw = |uid, gid| {
            let mut credentials = libc::ucred::from(of_test);
            (credentials.uid, credentials.gid) = (uid, gid);
            UnixCredentials::from(credentials)
        };
        let group = |gid| {
            Some(Group {
                name: "operators".into(),
                passwd: Default::default(),
                gid: Gid::from_raw(gid),
                mem: Vec::new(),
            })
        };
        let access = AdminAccess { group: group(7777) };
        for (uid, gid, may) in [(0, 1, true), (geteuid().as_raw(), 1, true), (4444, 7777, true), (4444, 7778, false)] {
            assert_eq!(access.allows(&ours, raw(uid, gid)), may, "{uid} {gid}");
        }
        assert!(!AdminAccess { group: None }.allows(&ours, raw(4444, getegid().as_raw())));
        assert!(access.describe().contains("operators"));
    }

    #[test]
    fn a_named_group_must_exist() {
        let problem = AdminAccess::new(Some("no-such-group-here")).expect_err("there is none");
        assert!(problem.to_string().contains("groupadd"));
        AdminAccess::new(None).expect("the usual one may be missing");
    }
}
