//! Errors as C knows them.
#![expect(unsafe_code, reason = "errno is a variable of C")]

use std::{
    ffi::c_int,
    fmt::Display,
    io::{self, Write as _},
    sync::LazyLock,
};

use roced_client::{Error, Refusal, trusted_variable};

/// A number of errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// Result of the library's own functions.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// An argument that cannot be.
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    /// Something that roced does not have.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// Something else still uses it.
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        explain(&error);
        Self(match error {
            Error::NoDaemon { .. } => libc::ENODEV,
            Error::NotPermitted { .. } => libc::EACCES,
            Error::Version { .. } => libc::EPROTO,
            Error::DaemonGone | Error::DaemonSilent { .. } | Error::Protocol { .. } => libc::EIO,
            Error::Refused { refusal, detail, .. } => refused(refusal, detail[0]),
            Error::QueueFull { .. } => libc::ENOMEM,
            Error::Kernel { errno, .. } => errno as c_int,
            Error::NotMapped { .. } | Error::NoRights { .. } => libc::EFAULT,
            Error::NoPageExchange { .. } | Error::StaysInPlace { .. } => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        })
    }
}

/// Writes the cause and the remedy to stderr, which a number cannot carry, if the program's user
/// asked for warnings. A full queue and an empty channel are no failures: programs post, and read
/// without waiting, until they meet them.
fn explain(error: &Error) {
    match error {
        Error::QueueFull { .. } => {}
        Error::Kernel { errno, .. } if *errno as c_int == libc::EAGAIN => {}
        _ => warn(error),
    }
}

/// Writes a line to stderr, if the program's user asked for warnings.
pub(crate) fn warn(text: impl Display) {
    static WANTED: LazyLock<bool> = LazyLock::new(|| trusted_variable("IBV_SHOW_WARNINGS").is_some());
    if *WANTED {
        drop(writeln!(io::stderr(), "libibverbs (roced): {text}"));
    }
}

fn refused(refusal: Refusal, detail: u64) -> c_int {
    match refusal {
        Refusal::Cm => c_int::try_from(detail).ok().filter(|errno| (1..4096).contains(errno)).unwrap_or(libc::EINVAL),
        Refusal::UnknownCall | Refusal::NotSupported | Refusal::NotProxied => libc::EOPNOTSUPP,
        Refusal::NoSuchDevice => libc::ENODEV,
        Refusal::InUse => libc::EBUSY,
        Refusal::Limit | Refusal::Memory => libc::ENOMEM,
        Refusal::NoRoute => libc::ENETUNREACH,
        Refusal::NotPermitted => libc::EPERM,
        Refusal::Forbidden => libc::EACCES,
        Refusal::WorkerTimeout => libc::ETIMEDOUT,
        Refusal::Stopping => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// Sets errno.
pub(crate) fn set(errno: Errno) {
    // SAFETY: the C library gives each thread its own variable, which is always there.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// 0 or the number of the error, as most verbs give it. Sets errno too, which some programs look
/// at.
pub(crate) fn number(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno.0
        }
    }
}

/// 0 or -1 and errno.
pub(crate) fn minus_one(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// A new object, or null and errno.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        std::ptr::null_mut()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ibv_post_send` and `ibv_post_recv` in RESET, `ibv_post_send` before RTS.
    #[test]
    fn work_that_the_state_does_not_take_is_an_invalid_argument() {
        for queue in ["send", "receive"] {
            assert_eq!(Errno::from(Error::NotReady { queue }), Errno::INVALID);
        }
    }
}
