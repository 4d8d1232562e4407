//! Capabilities that each kind of thread keeps, each with its reason. Capabilities belong to a
//! thread in Linux; the others of the process keep theirs.

use std::sync::OnceLock;

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::{sys::utsname::uname, unistd::geteuid};

use super::ThreadKind;

/// Linux before this version asks for CAP_BPF at each access to a map, from others than root.
const MAPS_WITHOUT_CAP_BPF: (u32, u32) = (5, 19);

/// Capabilities that a kind of thread uses, with their purposes. It keeps those that the daemon was
/// given.
const fn used(kind: ThreadKind) -> &'static [(Capability, &'static str)] {
    match kind {
        ThreadKind::Attach => &[
            (
                Capability::CAP_NET_ADMIN,
                "attaches the XDP program, gives NAPI threads, switches GRO on, writes DCB settings (dcb = \"apply\")",
            ),
            (Capability::CAP_BPF, "loads the XDP program"),
            (Capability::CAP_NET_RAW, "opens AF_XDP sockets"),
            (Capability::CAP_IPC_LOCK, "locks the frames of a queue, where RLIMIT_MEMLOCK is finite"),
            (Capability::CAP_SYS_NICE, "pins NAPI threads (napi = \"threaded\"), where it was given"),
            (Capability::CAP_DAC_OVERRIDE, "writes /sys/class/net/*/threaded as another user than root"),
        ],
        ThreadKind::Control => &[
            (Capability::CAP_NET_ADMIN, "has the kernel resolve neighbors; undoes NAPI threads and GRO"),
            (Capability::CAP_IPC_LOCK, "locks memory of clients, where RLIMIT_MEMLOCK is finite"),
            (Capability::CAP_BPF, "changes the addresses of the XDP program, before Linux 5.19"),
            (Capability::CAP_DAC_OVERRIDE, "writes /sys/class/net/*/threaded as another user than root"),
        ],
        ThreadKind::Worker | ThreadKind::Copy | ThreadKind::User | ThreadKind::Log => &[],
    }
}

/// Capabilities that a thread of this kind keeps of those that the daemon has.
fn kept(kind: ThreadKind, held: &CapsHashSet) -> CapsHashSet {
    let is_needed = |capability: Capability| match capability {
        // Root owns the files.
        Capability::CAP_DAC_OVERRIDE => !geteuid().is_root(),
        Capability::CAP_BPF => kind == ThreadKind::Attach || !maps_need_no_capability(),
        _ => true,
    };
    let used = used(kind).iter().map(|(capability, _)| *capability);
    used.filter(|capability| held.contains(capability) && is_needed(*capability)).collect()
}

fn maps_need_no_capability() -> bool {
    let Ok(name) = uname() else { return false };
    version(&name.release().to_string_lossy()).is_some_and(|version| version >= MAPS_WITHOUT_CAP_BPF)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Capabilities that the daemon had when the first thread was confined.
static HELD: OnceLock<CapsHashSet> = OnceLock::new();

/// Capabilities that threads of this kind have, by name.
pub(super) fn kept_now(kind: ThreadKind) -> impl Iterator<Item = Capability> {
    let kept = HELD.get().map(|held| kept(kind, held)).unwrap_or_default();
    used(kind).iter().map(|(capability, _)| *capability).filter(move |capability| kept.contains(capability))
}

/// Takes all other capabilities from the calling thread, and from the programs that it could
/// execute if it could.
pub(super) fn keep_only(kind: ThreadKind) -> Result<(), CapsError> {
    let held = caps::read(None, CapSet::Permitted)?;
    let kept = kept(kind, &held);
    // The first thread is confined when the daemon has all.
    HELD.get_or_init(|| held);
    // Only with that capability: the unit gives none of it, but has bounds of its own.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::read(None, CapSet::Bounding)? {
            caps::drop(None, CapSet::Bounding, capability)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_that_was_not_given_or_has_no_reason() {
        let all = caps::all();
        for kind in ThreadKind::ALL {
            assert!(kept(kind, &CapsHashSet::new()).is_empty());
            let reasons = used(kind);
            assert!(kept(kind, &all).iter().all(|kept| reasons.iter().any(|(capability, _)| capability == kept)));
        }
        for kind in [ThreadKind::Worker, ThreadKind::Copy, ThreadKind::User, ThreadKind::Log] {
            assert!(kept(kind, &all).is_empty(), "{kind:?}");
        }
        assert!(!kept(ThreadKind::Control, &all).contains(&Capability::CAP_NET_RAW));
    }

    #[test]
    fn the_version_of_the_kernel_is_read_from_its_release() {
        assert_eq!(version("6.18.44-fc-v782"), Some((6, 18)));
        assert_eq!(version("5.19-rc1"), Some((5, 19)));
        assert_eq!(version("odd"), None);
    }
}
