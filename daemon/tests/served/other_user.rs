//! A second user.
#![expect(unsafe_code, reason = "the library changes the user of all threads")]

use std::{fs, os::unix::fs::PermissionsExt};

use super::Served;

/// Does something as another user; only root can.
pub(crate) fn as_unprivileged_user<T: Send>(served: &Served, act: impl FnOnce() -> T + Send) -> T {
    let open = |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    open(served.socket.as_path(), 0o666);
    open(served.socket.parent().expect("a folder"), 0o711);
    let as_other = || {
        become_unprivileged();
        act()
    };
    std::thread::scope(|scope| scope.spawn(as_other).join()).expect("it ended well")
}

fn become_unprivileged() {
    // SAFETY: it changes the user of this thread, and nothing else.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
}
