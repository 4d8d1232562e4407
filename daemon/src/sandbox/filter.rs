//! Filters of system calls (seccomp): a list becomes a program of the kernel's, which kills the
//! process at any other call.
#![expect(unsafe_code, reason = "seccomp(2) takes a pointer to the filter")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env::consts::ARCH,
    io, process,
};

use libc::{c_long, c_ushort};
use nix::errno::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use super::{
    ThreadKind,
    syscalls::{AllowedCall, AllowedValue, Argument, NEVER_MADE, calls_of},
};

/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: without it, Linux before 5.16 switches off speculation past
/// stores for a thread with a filter, and the data path would be slower. The filters are against
/// bugs of the daemon, which executes no foreign code.
const SPEC_ALLOW: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;

/// `struct sock_fprog` of `linux/filter.h`.
#[repr(C)]
struct SockFilterProgram {
    length: c_ushort,
    filter: *const sock_filter,
}

/// Filter of a kind of thread.
#[derive(Debug)]
pub(super) struct ThreadFilter {
    /// The list.
    allowed: BpfProgram,
    /// `clone3` does not exist: its flags lie in memory, where no filter sees them, and the C
    /// library uses `clone` in its place.
    without_clone3: BpfProgram,
    /// [`NEVER_MADE`] fails.
    without_old_sockets: BpfProgram,
    /// Names of the calls in the list, in their order.
    calls: BTreeSet<&'static str>,
}

impl ThreadFilter {
    /// The filter of a kind of thread, not installed.
    pub(super) fn of(kind: ThreadKind) -> Result<Self, BackendError> {
        let allowed = rules(calls_of(kind))?;
        let calls = calls_of(kind).map(|call| call.name.trim_start_matches("SYS_")).collect();
        let allowed = program(allowed, SeccompAction::KillProcess, SeccompAction::Allow)?;
        let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let missing = SeccompAction::Errno(Errno::ENOSYS as u32);
        let unsupported = SeccompAction::Errno(Errno::EAFNOSUPPORT as u32);
        Ok(Self {
            allowed,
            without_clone3: program(clone3, SeccompAction::Allow, missing)?,
            without_old_sockets: program(rules(NEVER_MADE.iter())?, SeccompAction::Allow, unsupported)?,
            calls,
        })
    }

    /// Names of the calls in the list.
    pub(super) fn calls(&self) -> impl Iterator<Item = &'static str> {
        self.calls.iter().copied()
    }

    /// Installs it in the calling thread, for ever. Threads that it starts inherit it.
    pub(super) fn install(&self, kind: ThreadKind) -> io::Result<()> {
        if matches!(kind, ThreadKind::Attach | ThreadKind::Control) {
            install(&self.without_clone3)?;
            install(&self.without_old_sockets)?;
        }
        install(&self.allowed)
    }
}

fn install(program: &[sock_filter]) -> io::Result<()> {
    let program = SockFilterProgram { length: program.len() as c_ushort, filter: program.as_ptr() };
    // SAFETY: the kernel copies the filter, which is as long as it says and lives until the call
    // returns; it writes nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, SPEC_ALLOW, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn program(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, others, listed, ARCH.try_into()?)?.try_into()
}

/// Rules by number of the call. A call that is listed several times is allowed if one of them
/// allows it; no rules allow it with any arguments.
fn rules<'a>(calls: impl Iterator<Item = &'a AllowedCall>) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let mut all: BTreeMap<c_long, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for call in calls {
        let rules = all.entry(call.number).or_insert_with(|| Some(Vec::new()));
        match rules {
            Some(_) if call.only.is_empty() => *rules = None,
            Some(rules) => {
                for arguments in call.only {
                    rules.push(SeccompRule::new(conditions(arguments)?)?);
                }
            }
            None => {}
        }
    }
    Ok(all.into_iter().map(|(number, rules)| (number, rules.unwrap_or_default())).collect())
}

fn conditions(arguments: &[Argument]) -> Result<Vec<SeccompCondition>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    // The kernel ignores the upper half of the register where an argument is an int.
    let condition = |argument: &Argument| match argument.allowed {
        AllowedValue::Bits { mask, value } => {
            SeccompCondition::new(argument.index, Dword, SeccompCmpOp::MaskedEq(mask.into()), value.into())
        }
        AllowedValue::Null => SeccompCondition::new(argument.index, Qword, SeccompCmpOp::Eq, 0),
        AllowedValue::OwnProcess => {
            SeccompCondition::new(argument.index, Dword, SeccompCmpOp::Eq, process::id().into())
        }
    };
    arguments.iter().map(condition).collect()
}
