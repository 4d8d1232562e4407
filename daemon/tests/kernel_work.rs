//! Work of the kernel that a client makes long: closing descriptors that linger, freeing large
//! files, waking all that wait for a socket. A thread of the client's user does it, and other
//! clients notice nothing.

mod served;

use std::{
    io::{IoSliceMut, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    cmsg_space,
    fcntl::{FallocateFlags, fallocate},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        memfd::{MFdFlags, memfd_create},
        resource::{Resource, getrlimit, setrlimit},
        socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt, sockopt},
    },
    time::{ClockId, clock_gettime},
    unistd::geteuid,
};
use roced_abi::control::{
    AllocPd, Call as _, CreateChannel, CreateCq, CreateCqRequest, DeallocPd, DestroyChannel, DeviceName, FreeMemory,
    Handle, Hello, HelloRequest, MapMemory, MapMemoryRequest, Message, Nothing, OpenDevice, origin,
};
use roced_client::{Completion, ConnectOptions, CqOptions, Notify, SendRequest};
use served::{
    DEVICE, How, Raw, Served, eventually,
    other_user::as_unprivileged_user,
    pair::{NO_ACK_TIMER, SOON, open},
};
use zerocopy::IntoBytes as _;

/// How long closing one of the sockets takes.
const LINGER_S: i32 = 3;

/// Far longer than any call takes on a busy machine, and than none of these sockets takes.
const LATE: Duration = Duration::from_secs(1);

/// TCP sockets with unsent data, and the other ends, which do not read.
fn lingering(count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let pairs = (0..count).map(|_| {
        let mut socket = TcpStream::connect(address).expect("it listens");
        let (other, _) = listener.accept().expect("one comes");
        let linger = libc::linger { l_onoff: 1, l_linger: LINGER_S };
        setsockopt(&socket, sockopt::Linger, &linger).expect("an option of TCP");
        socket.set_nonblocking(true).expect("an option");
        while socket.write(&[0; 65536]).is_ok() {}
        (socket, other)
    });
    pairs.unzip()
}

fn raw_of(sockets: &[TcpStream]) -> Vec<RawFd> {
    sockets.iter().map(AsRawFd::as_raw_fd).collect()
}

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

/// The longest of another client's calls in a while.
fn longest_call(other: &mut Raw) -> Duration {
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < Duration::from_millis(500) {
        let call = Instant::now();
        let pd = other.call::<AllocPd>(Nothing {}).expect("room").handle;
        other.call::<DeallocPd>(Handle { handle: pd }).expect("unused");
        longest = longest.max(call.elapsed());
    }
    longest
}

fn hello() -> Message {
    Message::new(Hello::OP, 1, &HelloRequest { version: roced_abi::VERSION, program: [0; 16] })
}

/// Does something while the control thread stands still.
fn before_it_turns(served: &Served, act: impl FnOnce()) {
    let (hold, held) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| served.on_control_thread(move |_, _| _ = held.recv()));
        thread::sleep(Duration::from_millis(50));
        act();
        drop(hold);
    });
}

/// Beside a request that takes none, and beside one that takes another number.
#[test]
fn unexpected_descriptors_delay_no_other_client() {
    let served = Served::start();
    let mut other = opened(&served);
    let attacks: [fn(&Raw, &[RawFd]); 2] = [
        |raw, fds| raw.put(hello().as_bytes(), fds),
        |raw, fds| {
            let part = MapMemoryRequest { offset: 0, bytes: 4096, writable: 1, origin: origin::FILE_BACKED };
            raw.put(Message::new(MapMemory::OP, 3, &part).as_bytes(), fds);
        },
    ];
    for attack in attacks {
        let (sockets, _others) = lingering(6);
        let raw = opened(&served);
        before_it_turns(&served, || {
            attack(&raw, &raw_of(&sockets));
            drop(sockets);
        });
        let longest = longest_call(&mut other);
        assert!(longest < LATE, "{longest:?}");
        assert!(raw.is_closed(), "its session ends");
    }
}

/// Two messages come together, of which the first ends the session.
#[test]
fn descriptors_left_in_a_clients_socket_delay_no_other_client() {
    let served = Served::start();
    let mut other = opened(&served);
    let (sockets, _others) = lingering(6);
    let raw = Raw::connect(&served.socket);
    before_it_turns(&served, || {
        raw.put(&[1; 7], &[]);
        raw.put(hello().as_bytes(), &raw_of(&sockets));
        drop(sockets);
    });
    let longest = longest_call(&mut other);
    assert!(longest < LATE, "{longest:?}");
    eventually("its session ended", || served.sessions() == 1);
}

/// The daemon's end of a completion channel takes nothing.
#[test]
fn nothing_can_be_sent_into_a_completion_channel() {
    let served = Served::start();
    let mut other = opened(&served);
    let raw = opened(&served);
    raw.put(Message::new(CreateChannel::OP, 3, &Nothing {}).as_bytes(), &[]);
    let channel = descriptor_of_reply(&raw);
    let (sockets, _others) = lingering(6);
    let fds = raw_of(&sockets);
    let rights = [ControlMessage::ScmRights(&fds)];
    let sent =
        sendmsg::<()>(channel.as_raw_fd(), &[std::io::IoSlice::new(b"x")], &rights, MsgFlags::MSG_NOSIGNAL, None);
    drop((sockets, raw));
    let longest = longest_call(&mut other);
    assert!(longest < LATE, "{longest:?}");
    assert_eq!(sent, Err(nix::errno::Errno::EPIPE));
}

/// The descriptor beside the next message.
fn descriptor_of_reply(raw: &Raw) -> OwnedFd {
    use std::os::fd::FromRawFd as _;
    let mut bytes = [0; 512];
    let mut room = cmsg_space!([RawFd; 4]);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(raw.as_fd().as_raw_fd(), &mut pieces, Some(&mut room), MsgFlags::empty());
    let message = message.expect("a reply");
    let rights = message.cmsgs().expect("room for all").find_map(|message| match message {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    #[expect(unsafe_code, reason = "takes ownership of a descriptor that came by SCM_RIGHTS")]
    // SAFETY: the kernel has just created it for this process, and no other code knows of it.
    unsafe {
        OwnedFd::from_raw_fd(rights.expect("a descriptor"))
    }
}

/// Closing four of its descriptors occupies all threads of a user, and no others of it are kept for
/// them without end.
#[test]
fn a_user_with_descriptors_that_do_not_close_is_served_no_more() {
    if !geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = Served::start();
    let mut other = opened(&served);
    let mut raw = as_unprivileged_user(&served, || opened(&served));
    let (sockets, _others) = lingering(4);
    for socket in sockets {
        setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 4 * LINGER_S }).expect("an option");
        before_it_turns(&served, || {
            let part = MapMemoryRequest { offset: 0, bytes: 4096, writable: 1, origin: origin::FILE_BACKED };
            raw.put(Message::new(MapMemory::OP, 3, &part).as_bytes(), &[socket.as_raw_fd()]);
            drop(socket);
        });
        assert!(raw.get().is_some(), "it is no file in memory");
    }
    for _ in 0..300 {
        let channel = raw.call::<CreateChannel>(Nothing {}).expect("room").handle;
        raw.call::<DestroyChannel>(Handle { handle: channel }).expect("unused");
    }
    eventually("its session ended", || raw.say(AllocPd::OP, &Nothing {}).is_none());
    let again = || as_unprivileged_user(&served, || Raw::connect(&served.socket));
    assert!(again().is_closed(), "turned away");
    other.call::<AllocPd>(Nothing {}).expect("it is served");
    thread::sleep(Duration::from_secs(4 * LINGER_S as u64));
    let raw = again();
    raw.put(hello().as_bytes(), &[]);
    assert!(raw.get().is_some(), "they are closed, and it is served again");
}

/// A user at its limit of descriptors waits; it loses none, and no other user waits with it.
#[test]
fn a_user_with_many_slow_descriptors_is_served_on() {
    let served = Served::start();
    let mut other = opened(&served);
    let (sockets, others) = lingering(100);
    let raw = opened(&served);
    before_it_turns(&served, || {
        raw.put(hello().as_bytes(), &raw_of(&sockets));
        drop(sockets);
    });
    eventually("its session ended", || served.sessions() == 1);
    // Of the same user.
    let file = memfd_create(c"kernel_work", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    fallocate(&file, FallocateFlags::empty(), 0, 4096).expect("a page");
    let same = opened(&served);
    let part = MapMemoryRequest { offset: 0, bytes: 4096, writable: 1, origin: origin::FILE_BACKED };
    same.put(Message::new(MapMemory::OP, 3, &part).as_bytes(), &[file.as_raw_fd()]);
    let longest = longest_call(&mut other);
    assert!(longest < LATE, "{longest:?}");
    drop(others);
    let reply = same.get().expect("an answer");
    assert_eq!((reply.header.op, reply.header.status), (MapMemory::OP, 0), "as soon as the others are closed");
    drop(same);
}

/// Has threads of its users send and take all messages of this thread's user from now on: a walk was
/// long.
fn make_slow(served: &Served) {
    let raw = Raw::connect(&served.socket);
    let queue = LongQueue::at(&raw);
    raw.put(hello().as_bytes(), &[]);
    assert_eq!(raw.get().expect("an answer").header.status, 0);
    drop((raw, queue));
}

/// Sixty-four sessions of one user, each with sixteen calls in its socket that take some
/// milliseconds: all of them take seconds. Calls of another user are carried out meanwhile, in turns.
fn users_take_turns(are_slow: bool) {
    if !geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let served = Served::start();
    if are_slow {
        make_slow(&served);
    }
    let busy: Vec<_> = (0..64).map(|_| opened(&served)).collect();
    let (pairs, during) = as_unprivileged_user(&served, || {
        if are_slow {
            make_slow(&served);
        }
        let mut other = opened(&served);
        served.told.lock().expect("no test panics here").delay = Duration::from_millis(2);
        for raw in &busy {
            for sequence in 10..26 {
                let request = CreateCqRequest { entries: 1, channel: 0 };
                raw.put(Message::new(CreateCq::OP, sequence, &request).as_bytes(), &[]);
            }
        }
        // In commands that are carried out meanwhile: time depends on other programs of the machine,
        // and so does the longest of these waits.
        let given = || served.told.lock().expect("no test panics here").commands_given;
        let (begin, before, mut pairs) = (Instant::now(), given(), 0);
        while begin.elapsed() < Duration::from_millis(500) {
            let pd = other.call::<AllocPd>(Nothing {}).expect("room").handle;
            other.call::<DeallocPd>(Handle { handle: pd }).expect("unused");
            pairs += 1;
        }
        (pairs, given() - before)
    });
    served.told.lock().expect("no test panics here").delay = Duration::ZERO;
    println!("{during} of the other user's 1,024 calls during {pairs} times two of this one's");
    assert!(during < 32 * pairs, "{during} of the other user's 1,024 calls during {pairs} times two of this one's");
}

#[test]
fn calls_without_end_delay_those_of_another_user_by_few() {
    users_take_turns(false);
}

/// Each call waits for threads of its user, one that takes it and one that sends its reply.
#[test]
fn calls_of_slow_users_take_turns() {
    users_take_turns(true);
}

const LARGE: u64 = 512 << 20;

fn large_file() -> OwnedFd {
    let file = memfd_create(c"kernel_work", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    fallocate(&file, FallocateFlags::empty(), 0, LARGE as i64).expect("room");
    file
}

/// How long the control thread has computed so far.
fn computed(served: &Served) -> Duration {
    served.on_control_thread(|_, _| clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("it counts").into())
}

/// The last mapping of a file, and the last descriptor of another: half a gibibyte takes longer to
/// free than anything that the control thread does.
#[test]
fn large_files_are_freed_by_another_thread() {
    let served = Served::start();
    let mut raw = opened(&served);
    let part = |offset| MapMemoryRequest { offset, bytes: 4096, writable: 1, origin: origin::FILE_BACKED };
    let file = large_file();
    let memory = raw.call_with::<MapMemory>(part(0), &[file.as_raw_fd()]).expect("room").handle;
    drop(file);
    let before = computed(&served);
    raw.call::<FreeMemory>(Handle { handle: memory }).expect("unused");
    let freed = computed(&served) - before;
    assert!(freed < Duration::from_millis(10), "the last mapping: {freed:?}");

    let (file, before) = (large_file(), computed(&served));
    raw.put(Message::new(MapMemory::OP, 9, &part(LARGE)).as_bytes(), &[file.as_raw_fd()]);
    drop(file);
    raw.get().expect("it is refused");
    let freed = computed(&served) - before;
    assert!(freed < Duration::from_millis(10), "the last descriptor: {freed:?}");

    let (file, before) = (large_file(), computed(&served));
    raw.call_with::<MapMemory>(part(0), &[file.as_raw_fd()]).expect("room");
    drop(file);
    drop(raw);
    served.wait_until_empty();
    let freed = computed(&served) - before;
    assert!(freed < Duration::from_millis(10), "the end of a session: {freed:?}");
}

/// Entries of epoll sets that wait for a file: a message to it walks all of them.
struct LongQueue {
    _duplicates: Vec<OwnedFd>,
    _sets: Vec<Epoll>,
}

impl LongQueue {
    fn at(file: impl AsFd) -> Self {
        const DUPLICATES: u64 = 400;
        const SETS: u64 = 500;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(8192), hard).expect("within the hard one");
        let duplicate = |_| file.as_fd().try_clone_to_owned().expect("room");
        let duplicates: Vec<OwnedFd> = (0..DUPLICATES).map(duplicate).collect();
        let sets = (0..SETS).map(|_| {
            let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll set");
            for file in &duplicates {
                set.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("max_user_watches allows it");
            }
            set
        });
        let sets = sets.collect();
        // Longer than an earlier message has the next one expected to be quick.
        thread::sleep(Duration::from_millis(150));
        Self { _sets: sets, _duplicates: duplicates }
    }
}

/// A walk takes some 4 to 80 ms; the control thread computes less for all of these calls.
const NO_WALK: Duration = Duration::from_millis(20);

#[test]
fn very_many_waiters_at_a_clients_socket_are_woken_by_another_thread() {
    let served = Served::start();
    let mut other = opened(&served);
    let raw = opened(&served);
    let queue = LongQueue::at(&raw);
    let before = computed(&served);
    for sequence in 10..30 {
        raw.put(Message::new(AllocPd::OP, sequence, &Nothing {}).as_bytes(), &[]);
    }
    for sequence in 10..30 {
        let reply = raw.get().expect("an answer");
        assert_eq!((reply.header.sequence, reply.header.status), (sequence, 0), "in order");
    }
    let took = computed(&served) - before;
    assert!(took < NO_WALK, "{took:?}");
    let longest = longest_call(&mut other);
    assert!(longest < LATE, "{longest:?}");

    raw.put(Message::new(AllocPd::OP, 30, &Nothing {}).as_bytes(), &[]);
    drop((raw, queue, other));
    served.wait_until_empty();
}

/// The user's next sessions are served on, by its thread.
#[test]
fn the_user_of_a_long_wait_queue_is_served_on() {
    let served = Served::start();
    make_slow(&served);
    let mut same = opened(&served);
    for _ in 0..100 {
        let pd = same.call::<AllocPd>(Nothing {}).expect("room").handle;
        same.call::<DeallocPd>(Handle { handle: pd }).expect("unused");
    }
}

/// The worker that completes counts the events, and sends none.
#[test]
fn very_many_waiters_for_completions_are_woken_by_another_thread() {
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let device = open(&served);
    let channel = device.channel().expect("a channel");
    let options = CqOptions { entries: 128, channel: Some(&channel), ..CqOptions::default() };
    let cq = device.completion_queue_with(&options).expect("a queue");
    let pd = device.protection_domain().expect("a domain");
    let qps = [0, 1].map(|_| pd.queue_pair(&cq, &cq).create().expect("a queue pair"));
    let options = ConnectOptions { timeout: NO_ACK_TIMER, ..ConnectOptions::default() };
    for at in 0..2 {
        qps[at].connect(&qps[1 - at].address(0).expect("a GID"), &options).expect("it is here");
    }
    let queue = LongQueue::at(&channel);
    let before = served.workers_computed();
    for _ in 0..20 {
        cq.arm(Notify::Any);
        qps[0].post_send(&SendRequest::write_inline(b"", Default::default()).signaled()).expect("room");
        channel.wait(SOON).expect("the daemon lives").expect("an event");
        assert_eq!(cq.poll(&mut [Completion::EMPTY; 4]).expect("the daemon lives"), 1);
    }
    let took = served.workers_computed() - before;
    assert!(took < NO_WALK, "{took:?}");
    drop(queue);
}
