//! System calls that each kind of thread may make, with the arguments that matter. docs/sandbox.md
//! says how a missing one is found.
//!
//! Not in any list, for example: execve, ptrace, process_vm_*, io_uring_*, mount, setns, unshare,
//! keyctl, kill, perf_event_open, userfaultfd, init_module, and executable memory.

use libc::c_long;

use super::ThreadKind;

/// A system call that is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowedCall {
    /// Its name in libc: `SYS_read`.
    pub(super) name: &'static str,
    pub(super) number: c_long,
    /// Alternatives, each of which are conditions on arguments that all hold. None: any arguments.
    pub(super) only: &'static [&'static [Argument]],
}

/// A condition on an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument {
    pub(super) index: u8,
    pub(super) allowed: AllowedValue,
}

/// Values of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllowedValue {
    /// An `int` with these values of the bits in `mask`.
    Bits { mask: u32, value: u32 },
    /// No pointer.
    Null,
    /// The number of this process.
    OwnProcess,
}

/// The argument has this value.
const fn is(index: u8, value: i32) -> Argument {
    masked(index, -1, value)
}

/// The argument has this value where `mask` has bits.
const fn masked(index: u8, mask: i32, value: i32) -> Argument {
    let (mask, value) = (mask.cast_unsigned(), value.cast_unsigned());
    Argument { index, allowed: AllowedValue::Bits { mask, value } }
}

/// The argument is a null pointer.
const fn null(index: u8) -> Argument {
    Argument { index, allowed: AllowedValue::Null }
}

/// The argument is the number of this process.
const fn own_process(index: u8) -> Argument {
    Argument { index, allowed: AllowedValue::OwnProcess }
}

/// Calls by their names in libc, each with `: [alternative, ...]` of `[condition, ...]` or without.
macro_rules! calls {
    ($($(#[$attribute:meta])* $call:ident $(: $only:expr)?),* $(,)?) => {
        &[$($(#[$attribute])* AllowedCall { name: stringify!($call), number: libc::$call, only: calls!(@only $($only)?) }),*]
    };
    (@only) => { &[] };
    (@only $only:expr) => { &$only };
}

/// Requests of ioctl(2) that libc has not: `linux/sockios.h`.
const SIOCETHTOOL: i32 = 0x8946;
/// `linux/userfaultfd.h`.
const UFFDIO_REGISTER: u32 = 0xc020_aa00;

/// Commands of bpf(2): `linux/bpf.h`.
mod bpf {
    pub(super) const MAP_CREATE: i32 = 0;
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const MAP_UPDATE_ELEM: i32 = 2;
    pub(super) const MAP_DELETE_ELEM: i32 = 3;
    pub(super) const PROG_LOAD: i32 = 5;
    pub(super) const OBJ_GET_INFO_BY_FD: i32 = 15;
    pub(super) const BTF_LOAD: i32 = 18;
    pub(super) const MAP_FREEZE: i32 = 22;
    pub(super) const LINK_CREATE: i32 = 28;
}

/// `CLONE_DETACHED` of `linux/sched.h`, which has no effect and which musl sets.
const CLONE_DETACHED: i32 = 0x0040_0000;

/// Flags with which pthread_create(3) starts a thread. A child process has others.
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Flags of open(2) that write or make a file.
const WRITES: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// Every thread: memory, locks, time, descriptors that it has, the log, its end, a panic with its
/// backtrace, SIGBUS in memory of a client.
const EVERY: &[AllowedCall] = calls![
    SYS_brk,
    SYS_mmap: [&[masked(2, libc::PROT_EXEC, 0)]],
    SYS_mprotect: [&[masked(2, libc::PROT_EXEC, 0)]],
    SYS_mremap,
    SYS_munmap,
    SYS_madvise,
    SYS_futex,
    SYS_sched_yield,
    SYS_getcpu,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_restart_syscall,
    SYS_read,
    SYS_readv,
    SYS_write,
    SYS_writev,
    SYS_close,
    // Builds with debug assertions look at each descriptor before they close it.
    SYS_fcntl: [&[is(1, libc::F_GETFD)]],
    SYS_getrandom,
    SYS_getpid,
    SYS_gettid,
    // abort(3), and the handlers of signals.
    SYS_tgkill: [&[own_process(0), is(2, libc::SIGABRT)]],
    SYS_rt_sigaction: [&[is(0, libc::SIGABRT)], &[is(0, libc::SIGBUS)], &[is(0, libc::SIGSEGV)]],
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    // The begin and end of a thread of the standard library.
    SYS_sigaltstack,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_getaffinity,
    SYS_prctl: [&[is(0, libc::PR_SET_NAME)], &[is(0, libc::PR_SET_VMA)]],
    SYS_exit,
    SYS_exit_group,
    // A backtrace; Landlock leaves the daemon's own program to be read.
    SYS_getcwd,
    SYS_openat: [&[masked(2, WRITES, libc::O_RDONLY)]],
    #[cfg(target_arch = "x86_64")]
    SYS_open: [&[masked(1, WRITES, libc::O_RDONLY)]],
    #[cfg(target_arch = "x86_64")]
    SYS_readlink,
    SYS_readlinkat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_lseek,
];

/// Every thread but that which writes the log to stderr: a log that goes to the journal. Workers send
/// frames and events of completion channels by the same call.
const JOURNAL: &[AllowedCall] = calls![SYS_sendto];

/// A worker.
const WORKER: &[AllowedCall] = calls![
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_epoll_ctl,
    SYS_recvfrom,
    SYS_getsockopt,
    // Room in the socket of a completion channel.
    SYS_ioctl: [&[is(1, libc::TIOCOUTQ as i32)]],
    // Its own core; that of a thread that copies.
    SYS_sched_setaffinity,
    // Whether it waited for memory of a client.
    SYS_getrusage,
];

/// A thread that accesses proxied memory.
const COPY: &[AllowedCall] = calls![
    SYS_pread64,
    SYS_pwrite64,
    SYS_fstatfs,
    SYS_fcntl: [&[is(1, libc::F_GETFL)]],
    SYS_getrusage,
];

/// A thread of a user: calls of its clients. One with descriptors raises the limit for a moment.
/// It seals files of queues.
const USER: &[AllowedCall] = calls![
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_prlimit64: [&[is(0, 0), is(1, libc::RLIMIT_NOFILE as i32)]],
    // Sockets with data that the other end has not received.
    SYS_shutdown,
    SYS_ioctl: [&[is(1, libc::TIOCOUTQ as i32)]],
    SYS_fcntl: [&[is(1, libc::F_ADD_SEALS)]],
];

/// Questions to the kernel about its network, and the sockets for them; messages to the service
/// manager.
const NETWORK: &[AllowedCall] = calls![
    SYS_socket: [
        &[is(0, libc::AF_UNIX), masked(1, 0xf, libc::SOCK_DGRAM)],
        &[is(0, libc::AF_NETLINK), is(2, libc::NETLINK_ROUTE)],
        &[is(0, libc::AF_NETLINK), is(2, libc::NETLINK_GENERIC)],
        &[is(0, libc::AF_INET), masked(1, 0xf, libc::SOCK_DGRAM)],
        &[is(0, libc::AF_INET6), masked(1, 0xf, libc::SOCK_DGRAM)],
    ],
    SYS_bind,
    SYS_connect,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_setsockopt: [&[is(1, libc::SOL_SOCKET)], &[is(1, libc::SOL_NETLINK)]],
    SYS_ioctl: [
        &[is(1, SIOCETHTOOL)],
        &[is(1, libc::SIOCGIFINDEX as i32)],
        &[is(1, libc::SIOCGIFNAME as i32)],
    ],
    SYS_fcntl: [&[is(1, libc::F_SETFD)], &[is(1, libc::F_DUPFD_CLOEXEC)]],
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    SYS_ppoll,
];

/// The control thread and its helpers.
const CONTROL: &[AllowedCall] = calls![
    // Threads that copy, and of users.
    SYS_clone: [&[masked(0, !CLONE_DETACHED, THREAD)]],
    SYS_clone3,
    // Their own sandboxes: none of these calls gives anything back.
    SYS_capset,
    SYS_prctl: [&[is(0, libc::PR_SET_NO_NEW_PRIVS)], &[is(0, libc::PR_CAP_AMBIENT)]],
    SYS_landlock_restrict_self,
    SYS_seccomp: [&[is(0, libc::SECCOMP_SET_MODE_FILTER as i32)]],
    // Clients, operators, groups.
    SYS_socketpair: [&[is(0, libc::AF_UNIX)]],
    SYS_accept4,
    SYS_sendmsg,
    SYS_shutdown,
    SYS_setsockopt: [
        // Others reach packet filters (IPT_SO_SET_REPLACE).
        &[is(1, libc::IPPROTO_IP), is(2, libc::IP_ADD_MEMBERSHIP)],
        &[is(1, libc::IPPROTO_IPV6), is(2, libc::IPV6_ADD_MEMBERSHIP)],
    ],
    SYS_ioctl: [
        &[is(1, libc::TIOCOUTQ as i32)],
        &[is(1, libc::FIONBIO as i32)],
        // Missing pages of clients' memory are theirs to make.
        &[is(1, UFFDIO_REGISTER.cast_signed())],
    ],
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_epoll_ctl,
    SYS_epoll_create1,
    SYS_eventfd2,
    // Memory and rings of clients.
    SYS_memfd_create,
    SYS_ftruncate,
    SYS_mlock,
    SYS_mlock2,
    SYS_munlock,
    SYS_fcntl: [
        &[is(1, libc::F_GETFL)],
        &[is(1, libc::F_SETFL)],
        &[is(1, libc::F_ADD_SEALS)],
        &[is(1, libc::F_GET_SEALS)],
    ],
    SYS_fstatfs,
    // Addresses of the XDP program; verdicts.
    SYS_bpf: [&[is(0, bpf::MAP_LOOKUP_ELEM)], &[is(0, bpf::MAP_UPDATE_ELEM)], &[is(0, bpf::MAP_DELETE_ELEM)]],
    // Users of clients, and their privileged ports; the limit of descriptors, which a message with
    // many raises for a moment; the memory of the host.
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_capget,
    SYS_prlimit64: [&[is(0, 0), null(2)], &[is(0, 0), is(1, libc::RLIMIT_NOFILE as i32)]],
    SYS_sysinfo,
    SYS_uname,
    // The core that a thread that copies may use.
    SYS_sched_setaffinity,
    // The switch of NAPI threads; Landlock leaves nothing else to be written.
    SYS_openat: [&[masked(2, WRITES | libc::O_TMPFILE, libc::O_WRONLY)]],
    // Sockets, at the end.
    #[cfg(target_arch = "x86_64")]
    SYS_unlink,
    SYS_unlinkat: [&[is(2, 0)]],
];

/// Threads that attach to interfaces.
const ATTACH: &[AllowedCall] = calls![
    // One for each attempt.
    SYS_clone: [&[masked(0, !CLONE_DETACHED, THREAD)]],
    SYS_clone3,
    SYS_bpf: [
        &[is(0, bpf::MAP_CREATE)],
        &[is(0, bpf::MAP_LOOKUP_ELEM)],
        &[is(0, bpf::MAP_UPDATE_ELEM)],
        &[is(0, bpf::MAP_DELETE_ELEM)],
        &[is(0, bpf::PROG_LOAD)],
        &[is(0, bpf::OBJ_GET_INFO_BY_FD)],
        &[is(0, bpf::BTF_LOAD)],
        &[is(0, bpf::MAP_FREEZE)],
        &[is(0, bpf::LINK_CREATE)],
    ],
    SYS_socket: [&[is(0, libc::AF_XDP)]],
    SYS_setsockopt: [&[is(1, libc::SOL_XDP)]],
    SYS_uname,
    SYS_getuid,
    SYS_geteuid,
    SYS_capget,
    SYS_prlimit64: [&[is(0, 0), null(2)]],
    SYS_getdents64,
    // The switch of NAPI threads, their cores and their class.
    SYS_openat: [&[masked(2, WRITES | libc::O_TMPFILE, libc::O_WRONLY)]],
    SYS_sched_setaffinity,
    SYS_sched_getscheduler,
    SYS_sched_getparam,
    SYS_sched_setscheduler,
];

/// Sockets that glibc tries, one after the other, for questions about interfaces when the process
/// has no free descriptor. [`ThreadFilter`](super::filter::ThreadFilter) has them refused with
/// `EAFNOSUPPORT`.
pub(super) const NEVER_MADE: &[AllowedCall] = calls![
    SYS_socket: [
        &[is(0, libc::AF_AX25)],
        &[is(0, libc::AF_IPX)],
        &[is(0, libc::AF_APPLETALK)],
        &[is(0, libc::AF_NETROM)],
        &[is(0, libc::AF_X25)],
        &[is(0, libc::AF_ROSE)],
        &[is(0, libc::AF_ECONET)],
        &[is(0, libc::AF_ASH)],
    ],
];

/// The list of a kind of thread.
pub(super) fn calls_of(kind: ThreadKind) -> impl Iterator<Item = &'static AllowedCall> {
    let own: &[&[AllowedCall]] = match kind {
        ThreadKind::Attach => &[JOURNAL, NETWORK, ATTACH, NEVER_MADE],
        ThreadKind::Worker => &[JOURNAL, WORKER],
        // Threads that it starts have its filter beside their own.
        ThreadKind::Control => &[JOURNAL, NETWORK, CONTROL, COPY, NEVER_MADE],
        ThreadKind::Copy => &[JOURNAL, COPY],
        ThreadKind::User => &[JOURNAL, USER],
        ThreadKind::Log => &[],
    };
    EVERY.iter().chain(own.iter().copied().flatten())
}
