//! The confinement of the daemon's threads, each in a process of its own: a call that is not in a
//! thread's list kills the process, and everything that a thread may do goes on.
//!
//! The test runs itself: [`a_thread_of_the_daemon`] is the other process.
#![expect(unsafe_code, reason = "system calls that no safe function makes")]

use std::{
    collections::{BTreeSet, HashMap},
    env,
    fs::{self, File},
    io::ErrorKind,
    os::unix::process::ExitStatusExt,
    panic,
    path::Path,
    process::{self, Command, ExitStatus, Output},
    thread,
    time::{Duration, Instant},
};

use libc::{c_int, c_long};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        eventfd::EventFd,
        memfd::{MFdFlags, memfd_create},
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket, socketpair},
    },
    unistd::ftruncate,
};
use roced::sandbox::{Sandbox, ServedPaths, ThreadKind};

/// Environment of the other process: kind of thread, and its act.
const KIND: &str = "ROCED_TEST_THREAD";
const ACT: &str = "ROCED_TEST_ACT";

/// Folder of the config file of the other process.
const FOLDER: &str = "ROCED_TEST_FOLDER";

/// Nothing but a call of the kernel's with four arguments. The kernel checks pointers, and each is
/// null or of memory that stays.
fn call(number: c_long, arguments: [usize; 4]) -> c_long {
    let [first, second, third, fourth] = arguments;
    // SAFETY: callers pass no pointer to memory of this program that the call could change.
    unsafe { libc::syscall(number, first, second, third, fourth) }
}

/// A system call, and its result if the thread lives.
type Act = fn() -> c_long;

/// Acts of a program that was taken over, none of which is in any list.
const NEVER: [(&str, Act); 31] = [
    ("execve", || call(libc::SYS_execve, [c"/bin/true".as_ptr().addr(), 0, 0, 0])),
    ("execveat", || call(libc::SYS_execveat, [0; 4])),
    ("a child process", || call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0])),
    ("ptrace", || call(libc::SYS_ptrace, [libc::PTRACE_TRACEME as usize, 0, 0, 0])),
    ("process_vm_readv", || call(libc::SYS_process_vm_readv, [process::id() as usize, 0, 0, 0])),
    ("pidfd_getfd", || call(libc::SYS_pidfd_getfd, [0; 4])),
    ("kill", || call(libc::SYS_kill, [process::id() as usize, 0, 0, 0])),
    ("a signal to a thread", || call(libc::SYS_tgkill, [process::id() as usize, process::id() as usize, 9, 0])),
    ("io_uring_setup", || call(libc::SYS_io_uring_setup, [1, 0, 0, 0])),
    ("io_uring_enter", || call(libc::SYS_io_uring_enter, [0; 4])),
    ("userfaultfd", || call(libc::SYS_userfaultfd, [0; 4])),
    ("perf_event_open", || call(libc::SYS_perf_event_open, [0; 4])),
    ("a raw socket of all frames", || call(libc::SYS_socket, [17, 3, 0, 0])),
    ("a raw IP socket", || call(libc::SYS_socket, [2, 3, 1, 0])),
    ("a TCP socket", || call(libc::SYS_socket, [2, 1, 0, 0])),
    ("bpf: run a program", || call(libc::SYS_bpf, [10, 0, 0, 0])),
    ("bpf: pin an object", || call(libc::SYS_bpf, [6, 0, 0, 0])),
    ("executable memory", || call(libc::SYS_mmap, [0, 4096, 7, 0x22])),
    ("memory made executable", || call(libc::SYS_mprotect, [0, 4096, 5, 0])),
    ("mount", || call(libc::SYS_mount, [0; 4])),
    ("unshare", || call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0])),
    ("setns", || call(libc::SYS_setns, [0; 4])),
    ("setuid", || call(libc::SYS_setuid, [0; 4])),
    ("keyctl", || call(libc::SYS_keyctl, [0; 4])),
    ("init_module", || call(libc::SYS_init_module, [0; 4])),
    ("dumpable", || call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0])),
    ("chmod", || call(libc::SYS_fchmodat, [0; 4])),
    ("rules of iptables", || set_option(libc::IPPROTO_IP, IPT_SO_SET_REPLACE)),
    ("rules of ip6tables", || set_option(libc::IPPROTO_IPV6, IPT_SO_SET_REPLACE)),
    ("an IP header of its own", || set_option(libc::IPPROTO_IP, libc::IP_HDRINCL)),
    ("a policy of IPsec", || set_option(libc::IPPROTO_IPV6, IPV6_IPSEC_POLICY)),
];

/// Acts that some threads may do and these may not.
const NOT_THESE: [(&str, Act, &[ThreadKind]); 14] = {
    use ThreadKind::{Attach, Control, Copy, Log, User, Worker};
    [
        ("bpf: load", || call(libc::SYS_bpf, [5, 0, 0, 0]), &[Control, Worker, Copy, User, Log]),
        ("bpf: change a map", || call(libc::SYS_bpf, [2, 0, 0, 0]), &[Worker, Copy, User, Log]),
        ("an AF_XDP socket", || call(libc::SYS_socket, [44, 3, 0, 0]), &[Control, Worker, Copy, User, Log]),
        ("a thread", || call(libc::SYS_clone3, [0; 4]), &[Worker, Copy, User, Log]),
        ("a limit of another kind", || call(libc::SYS_prlimit64, [0, 0, 1, 0]), &[Worker, Copy, User, Log]),
        ("take a message", || call(libc::SYS_recvmsg, [0; 4]), &[Worker, Copy, Log]),
        ("send descriptors", || call(libc::SYS_sendmsg, [usize::MAX, 0, 0, 0]), &[Attach, Worker, Copy, Log]),
        ("send", || call(libc::SYS_sendto, [usize::MAX, 0, 0, 0]), &[Log]),
        ("join a group", || set_option(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP), &[Attach, Worker, Copy, User, Log]),
        (
            "join a group of IPv6",
            || set_option(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
            &[Attach, Worker, Copy, User, Log],
        ),
        ("an option of a socket", || set_option(libc::SOL_SOCKET, libc::SO_SNDBUF), &[Worker, Copy, User, Log]),
        ("an option of AF_XDP", || set_option(libc::SOL_XDP, 1), &[Control, Worker, Copy, User, Log]),
        ("accept4", || call(libc::SYS_accept4, [0; 4]), &[Attach, Worker, Copy, User, Log]),
        ("write a file", write_a_file, &[Worker, Copy, User, Log]),
    ]
};

/// `linux/netfilter_ipv4/ip_tables.h` and that of IPv6: replaces a table of packet filters.
const IPT_SO_SET_REPLACE: c_int = 64;
/// `linux/in6.h`.
const IPV6_IPSEC_POLICY: c_int = 34;

/// Of no socket: allowed, it is refused with `EBADF`.
fn set_option(level: c_int, option: c_int) -> c_long {
    call(libc::SYS_setsockopt, [usize::MAX, level as usize, option as usize, 0])
}

fn write_a_file() -> c_long {
    // The folder of the last process is gone by now; the call is not carried out in any case.
    call(libc::SYS_openat, [libc::AT_FDCWD as usize, c"/none/at/all".as_ptr().addr(), libc::O_WRONLY as usize, 0])
}

fn act(name: &str) -> Act {
    let never = NEVER.iter().map(|(act, call)| (act, call));
    let not_these = NOT_THESE.iter().map(|(act, call, _)| (act, call));
    *never.chain(not_these).find(|(act, _)| **act == name).expect("an act of the tables").1
}

fn kind(name: &str) -> ThreadKind {
    ThreadKind::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind of thread")
}

/// The other process.
#[test]
#[ignore = "a part of the other tests, in processes of its own"]
fn a_thread_of_the_daemon() {
    let (Some(name), Some(act_name)) = (env::var(KIND).ok(), env::var(ACT).ok()) else { return };
    let kind = kind(&name);
    // A thousand dumps of a test's processes are of no use.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("less is always allowed");
    let folder = env::var(FOLDER).expect("a folder");
    let config = Path::new(&folder).join("roced.toml");
    let sandbox = Sandbox::prepare(ServedPaths { config, sockets: Vec::new() }).expect("this kernel has seccomp");
    if matches!(kind, ThreadKind::Copy | ThreadKind::User) {
        sandbox.enter(ThreadKind::Control).expect("the control thread is confined");
    }
    let confined = thread::spawn(move || {
        sandbox.enter(kind).expect("the thread is confined");
        if act_name == "its work" {
            do_its_work(kind, Path::new(&folder));
            if sandbox.restricts_files() {
                check_files(kind, Path::new(&folder));
            } else {
                eprintln!("skipped in part: this kernel has no Landlock");
            }
        } else {
            let result = act(&act_name)();
            println!("still alive: {act_name} gave {result}");
        }
        process::exit(0);
    });
    confined.join().expect("it does not return");
}

fn do_its_work(kind: ThreadKind, folder: &Path) {
    // Memory, small and large, and given back; a map with random keys; time; a panic.
    drop((vec![7_u8; 64], vec![7_u8; 64 << 20], HashMap::from([(1, 2)])));
    thread::sleep(Duration::from_millis(1));
    assert!(Instant::now().elapsed() < Duration::from_secs(60));
    assert!(panic::catch_unwind(|| panic!("with a backtrace")).is_err());
    eprintln!("a line of the log");
    let own = File::open(env::current_exe().expect("this program")).expect("for the backtrace");
    drop(own);
    if matches!(kind, ThreadKind::Attach | ThreadKind::Control) {
        // As glibc does in a process without a free descriptor.
        let made = call(libc::SYS_socket, [libc::AF_AX25 as usize, libc::SOCK_DGRAM as usize, 0, 0]);
        assert_eq!((made, Errno::last()), (-1, Errno::EAFNOSUPPORT));
    }
    match kind {
        ThreadKind::Worker => {
            let stat = fs::read_to_string("/proc/self/stat").expect("it looks whether others compute");
            assert!(stat.contains(") "), "{stat}");
            refused_with_ebadf(libc::SYS_sendto, "frames, and events of channels");
        }
        ThreadKind::Control => {
            assert_eq!(fs::read(folder.join("roced.toml")).expect("a reload"), b"new");
            let file = memfd_create(c"rings", MFdFlags::MFD_ALLOW_SEALING).expect("rings of a client");
            ftruncate(&file, 4096).expect("of a size");
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("sealed");
            let channel = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
            drop(channel.expect("a completion channel"));
            for family in [AddressFamily::Inet, AddressFamily::Inet6] {
                socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("a group's");
            }
            netlink();
            for (level, option) in [
                (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
                (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
                (libc::SOL_SOCKET, libc::SO_SNDBUF),
            ] {
                assert_eq!((set_option(level, option), Errno::last()), (-1, Errno::EBADF), "a group, a channel");
            }
            refused_with_ebadf(libc::SYS_sendmsg, "a reply");
            EventFd::new().expect("an eventfd");
            assert_eq!(thread::spawn(|| 7).join().expect("a thread that copies"), 7);
        }
        ThreadKind::Attach => {
            netlink();
            assert!(Path::new("/sys/class/net/lo/queues").exists());
            assert_eq!(thread::spawn(|| 7).join().expect("an attempt"), 7);
        }
        ThreadKind::User => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).expect("room for descriptors of a message");
            setrlimit(Resource::RLIMIT_NOFILE, limit.0, limit.1).expect("for a moment");
            let sealed = call(libc::SYS_fcntl, [usize::MAX, libc::F_ADD_SEALS as usize, 0, 0]);
            assert_eq!((sealed, Errno::last()), (-1, Errno::EBADF), "a file of queues");
            refused_with_ebadf(libc::SYS_recvmsg, "a call of a client");
            refused_with_ebadf(libc::SYS_sendmsg, "a reply");
            refused_with_ebadf(libc::SYS_sendto, "an event of a channel");
        }
        ThreadKind::Copy | ThreadKind::Log => {}
    }
}

/// The call reaches the kernel, with no descriptor.
fn refused_with_ebadf(number: c_long, what: &str) {
    assert_eq!((call(number, [usize::MAX, 0, 0, 0]), Errno::last()), (-1, Errno::EBADF), "{what}");
}

/// Files that a thread has no use for cannot be opened.
fn check_files(kind: ThreadKind, folder: &Path) {
    let refused = |path: &Path| File::open(path).expect_err("not its file").kind() == ErrorKind::PermissionDenied;
    assert!(refused(Path::new("/dev/full")));
    let config = folder.join("roced.toml");
    match kind {
        ThreadKind::Control => {
            let written = File::options().write(true).open(config);
            assert_eq!(written.expect_err("nothing writes it").kind(), ErrorKind::PermissionDenied);
        }
        _ => assert!(refused(&config)),
    }
}

fn netlink() {
    let open = |protocol| socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(protocol));
    drop(open(SockProtocol::NetlinkRoute).expect("the kernel's network"));
}

fn run(kind: ThreadKind, act: &str, folder: &Path) -> Output {
    let mut other = Command::new(env::current_exe().expect("this program"));
    other.args(["--exact", "a_thread_of_the_daemon", "--ignored", "--nocapture"]);
    other.envs([(KIND, kind.name()), (ACT, act), ("RUST_BACKTRACE", "1")]).env(FOLDER, folder);
    other.output().expect("this program again")
}

fn died_of_sigsys(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGSYS)
}

#[test]
fn a_thread_that_leaves_its_list_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut alive = Vec::new();
    let mut check = |kind: ThreadKind, act: &'static str| {
        let output = run(kind, act, folder.path());
        if !died_of_sigsys(output.status) {
            alive.push((kind, act, output.status, String::from_utf8_lossy(&output.stdout).into_owned()));
        }
    };
    for kind in ThreadKind::ALL {
        NEVER.iter().for_each(|(act, _)| check(kind, act));
    }
    for (act, _, kinds) in &NOT_THESE {
        kinds.iter().for_each(|kind| check(*kind, act));
    }
    assert!(alive.is_empty(), "{alive:#?}");
}

#[test]
fn a_thread_that_does_its_work_lives() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("roced.toml");
    for kind in ThreadKind::ALL {
        fs::write(&config, "old").expect("a config");
        // As editors do: another file in its place.
        fs::write(folder.path().join("new"), "new").expect("a new one");
        fs::rename(folder.path().join("new"), &config).expect("in the place of the old one");
        let output = run(kind, "its work", folder.path());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind:?}: {:?}\n{said}", output.status);
        assert!(said.contains("a line of the log") && said.contains("do_its_work"), "no backtrace in\n{said}");
    }
}

/// Without its tightest list a thread would still be confined by those that it inherited.
#[test]
fn the_unit_allows_all_that_the_daemon_does() {
    let listed = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").arg("syscall-filter").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(all) = listed(&[]) else {
        println!("skipped: systemd-analyze is not installed (scripts/setup --test)");
        return;
    };
    let sets = sets(&all);
    let unit = include_str!("../../config/roced.service");
    let mut allowed = BTreeSet::new();
    // The sets that systemd adds to each list.
    expand("@default", &sets, &mut |call| _ = allowed.insert(call.to_owned()));
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (forbids, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
        for name in names.split_whitespace() {
            expand(name, &sets, &mut |call| {
                _ = if forbids { allowed.remove(call) } else { allowed.insert(call.to_owned()) };
            });
        }
    }
    assert!(!allowed.contains("ptrace") && !allowed.contains("io_uring_setup"), "the sets are read");
    let sandbox = Sandbox::prepare(ServedPaths { config: "/etc/roced/roced.toml".into(), sockets: Vec::new() });
    for thread in sandbox.expect("this kernel has seccomp").report().threads {
        let missing: Vec<_> = thread.system_calls.iter().filter(|call| !allowed.contains(*call)).collect();
        // The real-time class of NAPI threads takes a drop-in in any case.
        let expected: &[&str] = if thread.thread == "attach" { &["sched_setscheduler"] } else { &[] };
        assert_eq!(missing, expected, "{}", thread.thread);
    }
}

/// Sets of system calls by name, as systemd-analyze prints them.
fn sets(all: &str) -> HashMap<&str, Vec<&str>> {
    let (mut sets, mut set) = (HashMap::<_, Vec<_>>::new(), "");
    for line in all.lines() {
        let word = line.trim();
        if line.starts_with('@') {
            set = word;
        } else if line.starts_with(' ') && !word.is_empty() && !word.starts_with('#') {
            sets.entry(set).or_default().push(word);
        }
    }
    sets
}

fn expand(name: &str, sets: &HashMap<&str, Vec<&str>>, each: &mut impl FnMut(&str)) {
    if name.starts_with('@') {
        sets.get(name).into_iter().flatten().for_each(|member| expand(member, sets, each));
    } else {
        each(name);
    }
}

#[test]
fn a_core_dump_has_no_memory_of_clients() {
    drop(Sandbox::prepare(ServedPaths { config: "roced.toml".into(), sockets: Vec::new() }));
    let filter = fs::read_to_string("/proc/self/coredump_filter").expect("core(5)");
    let filter = u32::from_str_radix(filter.trim(), 16).expect("a number");
    // Shared memory without a name (memfds, frames), of files, and of huge pages.
    assert_eq!(filter & (1 << 1 | 1 << 3 | 1 << 6), 0, "{filter:x}");
    assert_eq!(filter & 1, 1, "stacks and heap are in it: {filter:x}");
}
