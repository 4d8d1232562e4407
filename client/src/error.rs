//! Errors: cause, responsible side and remedy.

use std::path::PathBuf;

use nix::errno::Errno;
use roced_abi::{
    VERSION,
    control::{
        Refusal, call_name, cm_event,
        limit::{self, AccountResource},
    },
};
use roced_types::Status;
use thiserror::Error;

/// Side responsible for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This program: it made an impossible request.
    Yours,
    /// The daemon on this host, its configuration, or its absence.
    Daemon,
    /// The peer, or the network on the way to it.
    Peer,
    /// The kernel of this host.
    Kernel,
}

/// Cause of a failed call. The text names the remedy; [`Error::side`] names the responsible side.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon listens on the socket.
    #[error(
        "no roced listens at {}: start it (`systemctl start roced`), or name its socket in ROCED_SOCKET; a container mounts the folder of the socket, not the socket",
        .path.display()
    )]
    NoDaemon {
        /// Path of the socket.
        path: PathBuf,
    },
    /// Permission denied on the daemon's socket.
    #[error(
        "{0} does not let this user in: join the group of the socket, which `ls -l {0}` shows, and log in again (in a container: --group-add)",
        .path.display()
    )]
    NotPermitted {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path does not fit a socket address.
    #[error("{} is too long for a socket address (at most 107 bytes)", .path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// Daemon and library have different versions of the client ABI.
    #[error(
        "the daemon speaks version {daemon} of the client ABI and this library version {VERSION}: update the older one"
    )]
    Version {
        /// Version of the daemon.
        daemon: u64,
    },
    /// The process that answers on the socket is not roced, or it violated the protocol.
    #[error("the server on the daemon's socket broke the protocol ({what}): is it a roced of the same build?")]
    Protocol {
        /// Description of the violation.
        what: &'static str,
    },
    /// The daemon ended this session, or is gone. Outstanding work completes with
    /// [`Status::Fatal`].
    #[error("the daemon is gone or ended this session: see its log, then open the device again")]
    DaemonGone,
    /// The daemon did not answer in time.
    #[error("the daemon did not answer {call} within {seconds} s: is its process stopped or starved?")]
    DaemonSilent {
        /// Name of the call.
        call: &'static str,
        /// Time waited, in seconds.
        seconds: u64,
    },
    /// The daemon refused a call.
    #[error("{}", describe(*.refusal, .call, *.detail))]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// Reason of the refusal.
        refusal: Refusal,
        /// Two numbers that belong to the reason, see [`Refusal`].
        detail: [u64; 2],
    },
    /// The connection manager made no connection.
    #[error("{}", describe_connection(*.event, *.status))]
    NotConnected {
        /// Event in place of the connection ([`crate::cm::cm_event`]).
        event: u32,
        /// A negative errno, or the reason of the peer.
        status: i32,
    },
    /// A queue has no room: reap completions, then post again.
    ///
    /// A full queue can return this error directly after a completion was reaped, because the
    /// daemon's worker returns the slot a moment later. Make the queue larger than the number of
    /// outstanding requests.
    #[error("the {queue} queue is full ({depth} work requests): reap completions first, or make the queue deeper")]
    QueueFull {
        /// "send", "receive" or "shared receive".
        queue: &'static str,
        /// Depth of the queue, in work requests.
        depth: u32,
    },
    /// A request has more scatter/gather entries than its queue supports.
    #[error("{asked} scatter/gather entries where the queue pair was made for {limit}")]
    TooManySges {
        /// Entries of the request.
        asked: usize,
        /// Entries that the queue supports.
        limit: u32,
    },
    /// A request has more inline data than the queue pair supports.
    #[error("{asked} bytes of inline data where the queue pair was made for {limit}")]
    InlineTooLong {
        /// Bytes of the request.
        asked: usize,
        /// Bytes that the queue pair supports.
        limit: u32,
    },
    /// Inline data with an operation that carries no data to the peer.
    #[error("a READ or an atomic operation brings data in, a local one has none: inline data is for SEND and WRITE")]
    InlineRead,
    /// The service of the queue pair does not support the operation.
    #[error("a queue pair of service {service} has no {operation}: its service was chosen when it was made")]
    WrongService {
        /// Service of the queue pair.
        service: &'static str,
        /// The requested operation.
        operation: &'static str,
    },
    /// A datagram without a destination.
    #[error("a datagram needs to know where it goes: say so with SendRequest::to")]
    NoAddress,
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    SharedReceives,
    /// The state of the queue pair does not accept such work.
    #[error("the queue pair takes no {queue} work in this state: connect it first")]
    NotReady {
        /// "send" or "receive".
        queue: &'static str,
    },
    /// The device has no address of the address family of the peer.
    #[error("the device has no address from which {gid} could be reached: give its interface one")]
    NoSourceGid {
        /// GID of the peer.
        gid: crate::Gid,
    },
    /// The link of the device, or that of the peer, is too narrow for RoCE.
    #[error("no path MTU: {whose} link carries not even 256 bytes of payload: raise the MTU of its interface")]
    NoPathMtu {
        /// "this device's" or "the peer's".
        whose: &'static str,
    },
    /// The GID table of the device is empty at that index.
    #[error("the device has no GID at index {index}: `rocectl status` shows the table")]
    NoSuchGid {
        /// The index.
        index: u32,
    },
    /// The completion queue does not have a channel of its own.
    #[error("this completion queue reports to a shared channel: wait on that one")]
    SharedChannel,
    /// Objects, such as a protection domain and a completion queue, belong to different devices.
    #[error("{object} belongs to another device than {owner}: create both from one `Device`")]
    OtherDevice {
        /// The object that was passed, such as "the completion queue of sends".
        object: &'static str,
        /// The object of the call, such as "the protection domain".
        owner: &'static str,
    },
    /// A range lies outside the memory.
    #[error("bytes {offset} to {offset} + {length} lie outside {size} bytes of memory")]
    OutOfRange {
        /// Start of the range.
        offset: usize,
        /// Length of the range.
        length: usize,
        /// Size of the memory.
        size: usize,
    },
    /// A range of the program is not mapped, or is empty.
    #[error("no memory is mapped at 0x{address:x}, or the length is 0")]
    NotMapped {
        /// The first address that is not mapped.
        address: usize,
    },
    /// Memory of the program that the daemon can neither map nor have the kernel copy: memory of a
    /// device, or the kernel's own.
    #[error(
        "memory at 0x{address:x} ({}) cannot be registered: no other process can access it",
        if .name.is_empty() { "without a name" } else { .name }
    )]
    OtherMemory {
        /// Start of the memory.
        address: usize,
        /// Its name in `/proc/self/maps`.
        name: String,
    },
    /// The program lacks the right to read the memory, or to write it where writing was requested.
    #[error("the program itself lacks the access to 0x{address:x} that it would grant the device")]
    NoRights {
        /// Start of the memory.
        address: usize,
    },
    /// The kernel does not allow page exchange in this program.
    #[error(
        "the program's own memory cannot be shared ({errno}): that needs Linux 5.19 with userfaultfd, allowed by seccomp, and no limit on the size of files; memory of Device::allocate goes without"
    )]
    NoPageExchange {
        /// Error of the kernel.
        errno: Errno,
    },
    /// Private memory stays in place, and the daemon cannot have the kernel copy it, or not with
    /// the rights asked for.
    #[error(
        "private memory stays in place, because {because}, and cannot be registered like that; ROCED_PRIVATE_MEMORY=migrated exchanges its pages all the same"
    )]
    StaysInPlace {
        /// The reason, as a clause.
        because: &'static str,
    },
    /// The environment variable `ROCED_PRIVATE_MEMORY` has an unknown value.
    #[error("ROCED_PRIVATE_MEMORY is \"{value}\": allowed are auto, migrated and proxied")]
    PrivateMemoryVariable {
        /// Its value.
        value: Box<str>,
    },
    /// A forked child used an object that its parent opened.
    #[error("this was opened by the process that forked this one: open the device again here")]
    OtherProcess,
    /// A system call failed.
    #[error("the kernel refuses {call}: {errno}{}", next_step(*errno))]
    Kernel {
        /// Name of the system call.
        call: &'static str,
        /// Error of the system call.
        errno: Errno,
    },
}

impl Error {
    /// Side responsible for the failure.
    pub fn side(&self) -> Side {
        match self {
            Self::NoDaemon { .. }
            | Self::NotPermitted { .. }
            | Self::Version { .. }
            | Self::Protocol { .. }
            | Self::DaemonGone
            | Self::DaemonSilent { .. } => Side::Daemon,
            Self::Refused { refusal, .. } => match refusal {
                Refusal::NoRoute => Side::Peer,
                Refusal::Memory | Refusal::Multicast => Side::Kernel,
                Refusal::Version | Refusal::Stopping | Refusal::WorkerTimeout | Refusal::NotProxied => Side::Daemon,
                _ => Side::Yours,
            },
            Self::NotConnected { .. } => Side::Peer,
            Self::Kernel { .. } | Self::NoPageExchange { .. } => Side::Kernel,
            _ => Side::Yours,
        }
    }

    /// True if the session has ended, with every object opened in it.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::DaemonGone | Self::DaemonSilent { .. } | Self::Protocol { .. })
    }

    pub(crate) const fn kernel(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Kernel { call, errno }
    }

    pub(crate) fn refused(op: u32, status: u32, detail: [u64; 2]) -> Self {
        match Refusal::from_status(status) {
            Some(Refusal::Version) => Self::Version { daemon: detail[0] },
            Some(refusal) => Self::Refused { call: call_name(op), refusal, detail },
            None => Self::Protocol { what: "a refusal that this version does not know" },
        }
    }
}

fn describe(refusal: Refusal, call: &str, [first, second]: [u64; 2]) -> String {
    let why = match refusal {
        Refusal::Version => format!("the daemon speaks version {first}, this library version {second}"),
        Refusal::UnknownCall => "the daemon does not know this call: daemon and library are of different builds, although of one version".into(),
        Refusal::OutOfOrder => "a call before its time, or twice".into(),
        Refusal::NoSuchDevice => "no device of that name: `rocectl status` lists them".into(),
        Refusal::Forbidden => {
            let of = match second.checked_sub(1) {
                None => "the device: ask its operator".to_owned(),
                Some(priority) => format!("priority {priority}: use a traffic class of another, or ask its operator"),
            };
            format!("a rule of the daemon's config, access[{first}], does not allow this user {of}")
        }
        Refusal::NoSuchObject => format!("there is no object {first}, or no longer"),
        Refusal::InUse => format!("{first} other objects still use it: end those first"),
        Refusal::Limit => describe_limit(first, second),
        Refusal::InvalidArgument => format!("argument {first} cannot be {second}"),
        Refusal::InvalidState => {
            format!("a queue pair in state {} cannot go to {}", state_name(first), state_name(second))
        }
        Refusal::InvalidMask => {
            format!("attributes 0x{first:x} are missing, 0x{second:x} do not belong to this change")
        }
        Refusal::NoRoute => "there is no route to the peer's address: check it, and `ip route get`".into(),
        Refusal::PathMtu => format!("path MTU {first} is more than the {second} that the link carries"),
        Refusal::NoSuchGid => format!("the device has no GID at index {first}"),
        Refusal::Memory => {
            format!("the daemon got no memory ({}): check its LimitMEMLOCK and the machine's free memory", errno(first))
        }
        Refusal::NotPermitted => "only root may: a Q_Key with the top bit set is privileged".into(),
        Refusal::Stopping => "the daemon is stopping".into(),
        Refusal::WorkerTimeout => "a worker of the daemon did not answer in time: is the machine overloaded?".into(),
        Refusal::BadFile if first == Errno::EPERM as u64 => {
            "the daemon maps no memory of which this program can take pages (unsealed_memory under [limits.client] of its \
             config), nor a file for writing that is sealed against that: take memory of `allocate`"
                .into()
        }
        Refusal::BadFile => format!(
            "the memory's file cannot be mapped by the daemon ({}): it must be a memfd or tmpfs file that is as long as the \
             memory, open for the requested access",
            errno(first)
        ),
        Refusal::Multicast => {
            format!("the kernel does not join the multicast group: {}", std::io::Error::from_raw_os_error(first as i32))
        }
        Refusal::NotProxied => describe_not_proxied(first),
        Refusal::NotSupported => "this version of roced does not have that".into(),
        Refusal::Cm => describe_cm(first),
    };
    format!("{call} refused: {why}")
}

fn describe_connection(event: u32, status: i32) -> String {
    const NO_LISTENER: i32 = 8;
    match (event, status) {
        (cm_event::ADDRESS_ERROR | cm_event::ROUTE_ERROR, status) => {
            format!("no route to the peer: {}", Errno::from_raw(-status).desc())
        }
        (cm_event::REJECTED, NO_LISTENER) => "the peer has no listener at that port".to_owned(),
        (cm_event::REJECTED, reason) => format!("the peer refused the connection (reason {reason})"),
        (cm_event::UNREACHABLE, _) => "the peer does not answer: is its connection manager reachable?".to_owned(),
        (cm_event::DEVICE_REMOVAL, _) => "the device is gone".to_owned(),
        (event, status) => format!("the connection failed (event {event}, status {status})"),
    }
}

fn describe_cm(number: u64) -> String {
    let error = std::io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(libc::EINVAL));
    format!("the connection manager's answer is: {error}")
}

fn describe_not_proxied(driver: u64) -> String {
    let why = match driver {
        0 => "the daemon's config forbids that (proxied_memory under [limits.client])".into(),
        _ => format!(
            "NVIDIA's driver {driver} may crash the kernel when the daemon does that \
             (proxied_memory under [limits.client] of its config decides)"
        ),
    };
    format!("this memory can only be proxied, and {why}: take memory of `allocate`, or shared memory of the program")
}

fn describe_limit(limit: u64, which: u64) -> String {
    if let Some((resource, is_share)) = AccountResource::from_refusal(which) {
        return describe_limit_of_account(limit, resource, is_share);
    }
    let whose = match which {
        limit::MAPPINGS_OF_ACCOUNT => "one user's programs",
        limit::MAPPINGS => "all programs",
        limit::STALLS => {
            return format!(
                "memory of this user's programs has had the daemon's workers wait for longer than it may (stall budget): try again in {limit} ms"
            );
        }
        _ => {
            return format!(
                "the limit of {limit} is reached: end something, or raise it under [limits] in the daemon's config"
            );
        }
    };
    format!(
        "the daemon maps {limit} pieces of memory and queues for {whose}, as many as it may: register fewer, larger pieces, end something, or raise vm.max_map_count (sysctl) and restart the daemon"
    )
}

fn describe_limit_of_account(limit: u64, resource: AccountResource, is_share: bool) -> String {
    let (noun, key) = (resource.noun(), resource.key());
    if is_share {
        return format!(
            "all programs of your user together have {limit} {noun}, their share of the rest that other users leave: end something, or raise the limits of the daemon or limits.account.share_percent in its config"
        );
    }
    format!(
        "all programs of your user together may have {limit} {noun}: end something, or raise limits.account.{key} in the daemon's config"
    )
}

fn errno(raw: u64) -> Errno {
    Errno::from_raw(i32::try_from(raw).unwrap_or(0))
}

fn state_name(state: u64) -> &'static str {
    match state {
        0 => "RESET",
        1 => "INIT",
        2 => "RTR",
        3 => "RTS",
        4 => "SQD",
        5 => "SQE",
        6 => "ERR",
        _ => "unknown",
    }
}

/// Failure of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("work request {wr_id} failed: {}", status_text(*.status))]
pub struct WorkError {
    /// Identifier of the work request, chosen by the program.
    pub wr_id: u64,
    /// Status of the work request.
    pub status: Status,
}

impl WorkError {
    /// Side responsible for the failure.
    pub fn side(&self) -> Side {
        match self.status {
            Status::Fatal => Side::Daemon,
            Status::BadResponse
            | Status::RemoteInvalidRequest
            | Status::RemoteAccess
            | Status::RemoteOperation
            | Status::TransportRetryExceeded
            | Status::RnrRetryExceeded => Side::Peer,
            _ => Side::Yours,
        }
    }
}

/// Remedy of an exhausted limit, to follow the kernel's error.
const fn next_step(errno: Errno) -> &'static str {
    match errno {
        Errno::EMFILE => ": raise the limit of open files (ulimit -n)",
        Errno::ENFILE => ": raise fs.file-max",
        Errno::ENOMEM => ": is memory free, and are mappings below vm.max_map_count?",
        Errno::EPERM | Errno::ENOSYS => ": does a seccomp profile forbid it?",
        _ => "",
    }
}

const fn status_text(status: Status) -> &'static str {
    match status {
        Status::Success => "it did not",
        Status::LocalLength => "the received message is longer than its buffer, or the sent one longer than allowed",
        Status::LocalQpOperation => "the queue pair cannot carry it out",
        Status::LocalProtection => {
            "a local key, range or right did not hold: is the memory region still there, with LOCAL_WRITE?"
        }
        Status::WorkRequestFlushed => "flushed, because the queue pair failed before: look at the first failure",
        Status::WindowBind => {
            "the memory window could not be bound: was it invalidated before, has the region the right WINDOW_BIND, is the \
             range inside the region?"
        }
        Status::BadResponse => "the peer answered something that fits no request",
        Status::RemoteInvalidRequest => {
            "the peer found it invalid: is its receive buffer long enough, are its rights on?"
        }
        Status::RemoteAccess => "the peer refused key, range or right",
        Status::RemoteOperation => "the peer could not carry it out",
        Status::TransportRetryExceeded => "the peer did not answer: is it there, and the path MTU not too large?",
        Status::RnrRetryExceeded => "the peer had no receive posted for too long",
        Status::Fatal => "the daemon is gone: nothing is known of it",
    }
}

/// Result of the calls of this library.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_system_call_names_its_remedy() {
        let text = |errno| Error::Kernel { call: "eventfd", errno }.to_string();
        assert!(text(Errno::EMFILE).starts_with("the kernel refuses eventfd: EMFILE"));
        assert!(text(Errno::EMFILE).ends_with("(ulimit -n)"));
        assert!(text(Errno::EIO).ends_with("I/O error"));
    }

    #[test]
    fn every_refusal_has_a_text_and_a_side() {
        let mut known = 0;
        for status in 1..64 {
            let error = Error::refused(30, status, [22, 2]);
            if Refusal::from_status(status).is_some() {
                known += 1;
                assert!(!error.to_string().is_empty());
                assert!(status == Refusal::Version as u32 || error.to_string().starts_with("CreateQp refused: "));
            } else {
                assert!(matches!(error, Error::Protocol { .. }), "{status}");
            }
        }
        assert_eq!(known, 23);
        let side = |refusal| Error::Refused { call: "", refusal, detail: [0; 2] }.side();
        assert_eq!((side(Refusal::NoRoute), side(Refusal::InUse)), (Side::Peer, Side::Yours));
    }
}
