//! Errors between roced and an interface, each with a next step.

use std::{error::Error, io, time::Duration};

use caps::{CapSet, Capability};

use super::AttachedMode;

/// Why an interface or one of its queues cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The interface is not there.
    #[error("there is no network interface {interface}")]
    NoInterface {
        /// Its name.
        interface: Box<str>,
    },
    /// The process may not do this.
    #[error("{capability} is missing: {purpose} needs it")]
    MissingCapability {
        /// The missing capability.
        capability: Capability,
        /// Its purpose.
        purpose: &'static str,
    },
    /// The kernel refuses the program or its maps.
    #[error("the kernel {} does not accept the XDP program; Linux 5.18 or newer does", release())]
    Load(#[source] Box<dyn Error + Send + Sync>),
    /// The verifier of the kernel refuses the program.
    #[error("the verifier of kernel {} refuses the XDP program: please report it, with the log below", release())]
    Verifier(#[source] Box<dyn Error + Send + Sync>),
    /// A program of another owner is on the interface.
    #[error(
        "an XDP program is on {interface} already: `ip -d link show dev {interface}` names it; is another roced there?"
    )]
    ProgramPresent {
        /// The interface.
        interface: Box<str>,
    },
    /// Native mode needs an RX queue for each queue that can send to it.
    #[error(
        "{interface} has fewer RX queues than its peer has TX queues, so its driver refuses native XDP: \
         `ethtool -L {interface} rx N` adds some, xdp_mode = \"generic\" works without"
    )]
    TooFewQueues {
        /// The interface.
        interface: Box<str>,
    },
    /// The driver cannot run XDP programs on frames this long.
    #[error(
        "the MTU of {interface} or of its peer is too large for XDP in its driver: lower it, or use xdp_mode = \"generic\""
    )]
    MtuTooLarge {
        /// The interface.
        interface: Box<str>,
    },
    /// The interface does not take a program in this mode.
    #[error("{interface} does not take an XDP program in {mode} mode{}", hint(*.mode))]
    ModeRefused {
        /// The interface.
        interface: Box<str>,
        /// The mode that was tried.
        mode: AttachedMode,
        /// The kernel's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The attachment would have outlived a killed daemon.
    #[error(
        "this kernel attaches XDP programs to {interface} only for good, and roced wants them gone with itself: use Linux 5.9 or newer"
    )]
    NotALink {
        /// The interface.
        interface: Box<str>,
    },
    /// A map of the program cannot be read or written.
    #[error("the map `{map}` of the XDP program failed")]
    Map {
        /// Its name.
        map: &'static str,
        /// The kernel's error.
        source: aya::maps::MapError,
    },
    /// The map of pauses cannot be mapped.
    #[error("cannot map the pauses that the XDP program notes")]
    MapPauses(#[source] nix::errno::Errno),
    /// The queue still belongs to another socket.
    #[error(
        "queue {queue} of {interface} is in use: is another AF_XDP socket bound to it? (tried for {} ms)",
        waited.as_millis()
    )]
    QueueBusy {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// How long it was tried.
        waited: Duration,
    },
    /// The kernel refuses to bind a socket to the queue.
    #[error(
        "the kernel refuses a socket on queue {queue} of {interface}: `ethtool -l {interface}` says how many queues it has"
    )]
    QueueRefused {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The driver has no zero-copy mode for frames of several chunks.
    #[error(
        "{interface} has no zero-copy mode that roced can use on queue {queue}: copy_mode = \"auto\" or \"copy\" works"
    )]
    NoZeroCopy {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The frame memory cannot be locked.
    #[error(
        "the {} KiB of frame memory of queue {queue} of {interface} cannot be locked: grant CAP_IPC_LOCK, raise the limit \
         (`ulimit -l`, LimitMEMLOCK=), or lower umem_frames",
        bytes / 1024
    )]
    LockedMemory {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// How much was asked for.
        bytes: u64,
    },
    /// The frame memory could not be made.
    #[error("there is no frame memory ({} KiB) for queue {queue} of {interface}", bytes / 1024)]
    Umem {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// How much was asked for.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// Sizes that do not fit each other.
    #[error("queue {queue} of {interface}: {rule}")]
    BadSizes {
        /// The interface.
        interface: Box<str>,
        /// The queue.
        queue: u32,
        /// The rule.
        rule: &'static str,
    },
}

fn hint(mode: AttachedMode) -> &'static str {
    match mode {
        AttachedMode::Native => "; xdp_mode = \"generic\" works with any driver",
        AttachedMode::Generic => "",
    }
}

/// The first of `needed` that this thread lacks, as an error.
pub(super) fn missing_capability(needed: &[(Capability, &'static str)]) -> Option<XdpError> {
    let lacks = |capability| caps::has_cap(None, CapSet::Effective, capability).is_ok_and(|has| !has);
    let &(capability, purpose) = needed.iter().find(|(capability, _)| lacks(*capability))?;
    Some(XdpError::MissingCapability { capability, purpose })
}

/// The `errno` behind `error`, wherever in its chain.
pub(super) fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

/// Release of the running kernel.
fn release() -> String {
    nix::sys::utsname::uname().map_or_else(|_| "of this host".into(), |name| name.release().to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_is_found_wherever_it_lies() {
        let inner = io::Error::from_raw_os_error(libc::EBUSY);
        assert_eq!(errno(&inner), Some(libc::EBUSY));
        let outer = XdpError::QueueRefused { interface: "eth0".into(), queue: 3, source: inner };
        assert_eq!(errno(&outer), Some(libc::EBUSY));
        assert_eq!(errno(&XdpError::Load(Box::new(outer))), Some(libc::EBUSY));
        assert_eq!(errno(&XdpError::NoInterface { interface: "eth0".into() }), None);
        assert_eq!(errno(&io::Error::other("no number")), None);
    }

    #[test]
    fn a_busy_queue_is_named_with_a_hint() {
        let busy = XdpError::QueueBusy { interface: "eth0".into(), queue: 3, waited: Duration::from_millis(3001) };
        assert_eq!(
            busy.to_string(),
            "queue 3 of eth0 is in use: is another AF_XDP socket bound to it? (tried for 3001 ms)"
        );
    }
}
