//! Where a worker thread runs.

use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use thiserror::Error;

/// Why a thread cannot be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PinError {
    /// The core does not exist, or this process may not use it.
    #[error("core {core} does not exist or is not one that this process may use (cpuset, taskset)")]
    NotAllowed {
        /// As the config names it.
        core: u32,
    },
    /// The kernel refused.
    #[error("core {core}: {errno}")]
    Kernel {
        /// As the config names it.
        core: u32,
        /// Why.
        errno: Errno,
    },
}

/// The name of worker `number`'s thread, as `top -H` shows it.
pub fn thread_name(number: u32) -> String {
    format!("roced-w{number}")
}

/// Checks that a thread of this process could be pinned to `core`.
///
/// # Errors
/// [`PinError`], with a text that names the core.
pub fn check_core(core: u32) -> Result<(), PinError> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(|errno| PinError::Kernel { core, errno })?;
    // `is_set` refuses numbers beyond the capacity of a set.
    if allowed.is_set(core as usize).unwrap_or(false) { Ok(()) } else { Err(PinError::NotAllowed { core }) }
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// [`PinError`], with a text that names the core.
pub fn pin_to(core: u32) -> Result<(), PinError> {
    let mut only = CpuSet::new();
    only.set(core as usize).map_err(|_| PinError::NotAllowed { core })?;
    sched_setaffinity(Pid::from_raw(0), &only).map_err(|errno| match errno {
        Errno::EINVAL => PinError::NotAllowed { core },
        errno => PinError::Kernel { core, errno },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_where_it_was_put_and_a_core_that_is_not_there_is_refused() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(Pid::from_raw(0)).expect("our own affinity");
            let core = (0..CpuSet::count() as u32).find(|core| allowed.is_set(*core as usize) == Ok(true));
            let core = core.expect("at least one core");
            check_core(core).expect("an allowed core");
            pin_to(core).expect("an allowed core");
            let now = sched_getaffinity(Pid::from_raw(0)).expect("our own affinity");
            assert_eq!((0..CpuSet::count()).filter(|core| now.is_set(*core) == Ok(true)).count(), 1);
        })
        .join()
        .expect("the thread ended well");
        assert_eq!(check_core(1_000_000), Err(PinError::NotAllowed { core: 1_000_000 }));
        assert_eq!(pin_to(1_000_000), Err(PinError::NotAllowed { core: 1_000_000 }));
    }
}
