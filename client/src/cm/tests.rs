//! Channels against a daemon in a thread, which does as each test orders.

use std::{
    collections::HashMap,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recvmsg, send, sendmsg, socketpair},
    },
};
use roced_abi::{
    VERSION,
    control::{
        AcceptCm, AcceptCmRequest, BindCm, Call as _, CmPath, CmRoute, CreateCmChannel, CreateCmId, CreateCmIdRequest,
        DestroyCmChannel, DestroyCmId, DestroyCmIdRequest, Handle, Hello, HelloReply, JoinCmGroup, MESSAGE_BYTES,
        Message, MigrateCm, MigrateCmReply, MigrateCmRequest, Refusal,
    },
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{
    CM_NO_DEVICE, CmAddress, CmChannel, CmChannelEvent, CmParameters, CmSession, TakenCmEvent, cm_event, cm_port_space,
    cm_service,
};
use crate::error::{Error, Result};

/// Identifiers of a daemon that sends events as it is told.
#[derive(Default)]
struct FakeManager {
    last: u32,
    sequence: u64,
    /// The daemon's ends of channels.
    channels: HashMap<u32, OwnedFd>,
    /// Channel and uid of each identifier.
    ids: HashMap<u32, (u32, u64)>,
    /// Events of each identifier that a migration may repeat.
    sent: HashMap<u32, Vec<CmChannelEvent>>,
    /// Identifiers with peers that were refused, because an acceptance was too long.
    refused: Vec<u32>,
}

/// A daemon in a thread of its own, and its session.
struct FakeDaemon {
    manager: Arc<Mutex<FakeManager>>,
    session: Arc<CmSession>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FakeManager {
    /// Sends an event of `owner`, about `id`, to the owner's channel.
    fn send(&mut self, owner: u32, id: u32, kind: u32) {
        let (_, uid) = self.ids[&owner];
        self.send_as(owner, id, kind, uid);
    }

    fn send_as(&mut self, owner: u32, id: u32, kind: u32, uid: u64) {
        self.sequence += 1;
        let path = CmPath { device: 0, flow_label: id, ..CmPath::default() };
        let route = CmRoute { path, ..CmRoute::default() };
        let event =
            CmChannelEvent { sequence: self.sequence, uid, id, owner, kind, route, ..CmChannelEvent::default() };
        self.sent.entry(owner).or_default().push(event);
        self.write(self.ids[&owner].0, &event);
    }

    fn write(&self, channel: u32, event: &CmChannelEvent) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(self.channels[&channel].as_raw_fd(), event.as_bytes(), flags).expect("the channel has room");
    }

    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Answers a call; the descriptor goes with the reply.
    fn answer(&mut self, call: &Message) -> (Message, Option<OwnedFd>) {
        let (op, sequence) = (call.header.op, call.header.sequence);
        let handle = |handle| Message::new(op, sequence, &Handle { handle });
        let reply = match op {
            Hello::OP => {
                let hello = HelloReply { version: VERSION, ..HelloReply::new_zeroed() };
                Message::new(op, sequence, &hello)
            }
            CreateCmChannel::OP => {
                let (here, there) = pair();
                let number = self.number();
                self.channels.insert(number, here);
                return (handle(number), Some(there));
            }
            CreateCmId::OP => {
                let request: CreateCmIdRequest = call.body();
                let number = self.number();
                self.ids.insert(number, (request.channel, request.uid));
                handle(number)
            }
            JoinCmGroup::OP => handle(self.number()),
            DestroyCmChannel::OP => {
                self.channels.remove(&call.body::<Handle>().handle);
                handle(0)
            }
            DestroyCmId::OP => {
                self.ids.remove(&call.body::<DestroyCmIdRequest>().id);
                handle(0)
            }
            MigrateCm::OP => {
                let MigrateCmRequest { taken, id, channel } = call.body();
                self.ids.get_mut(&id).expect("it is there").0 = channel;
                let stale = self.sequence;
                let mut events = self.sent.remove(&id).unwrap_or_default();
                for event in events.iter_mut().filter(|event| event.sequence > taken) {
                    self.sequence += 1;
                    event.sequence = self.sequence;
                    self.write(channel, event);
                }
                self.sent.insert(id, events);
                Message::new(op, sequence, &MigrateCmReply { stale })
            }
            BindCm::OP => Message::refusal(op, sequence, Refusal::Cm, [Errno::EADDRINUSE as u64, 0]),
            AcceptCm::OP => {
                let request: AcceptCmRequest = call.body();
                if usize::from(request.parameters.private_data_bytes) > request.private_data.len() {
                    self.refused.push(request.id);
                    return (Message::refusal(op, sequence, Refusal::Cm, [Errno::EINVAL as u64, 0]), None);
                }
                self.ids.get_mut(&request.id).expect("it is there").1 = request.uid;
                handle(0)
            }
            _ => handle(0),
        };
        (reply, None)
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair of sockets")
}

fn serve(socket: &OwnedFd, manager: &Mutex<FakeManager>) {
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, None, MsgFlags::empty()).expect("receive");
        if received.bytes == 0 {
            return;
        }
        let call = Message::read_from_bytes(&bytes).expect("a message");
        let (reply, fd) = manager.lock().expect("no test failed").answer(&call);
        let raw: Vec<RawFd> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(reply.as_bytes())], rights, MsgFlags::empty(), None)
            .expect("send");
    }
}

impl FakeDaemon {
    fn start() -> Self {
        let (ours, theirs) = pair();
        let manager = Arc::new(Mutex::new(FakeManager::default()));
        let of_thread = Arc::clone(&manager);
        let thread = thread::spawn(move || serve(&theirs, &of_thread));
        let session = CmSession::open_over(ours).expect("a session");
        Self { manager, session, thread: Some(thread) }
    }

    fn channel(&self) -> CmChannel {
        self.session.channel().expect("a channel")
    }

    fn send(&self, owner: u32, kind: u32) {
        self.manager.lock().expect("no test failed").send(owner, owner, kind);
    }

    /// The daemon dies: its ends of all sockets are closed.
    fn die(&mut self) {
        self.session.daemon.set_gone();
        self.thread.take().expect("it dies once").join().expect("it ended well");
        self.manager.lock().expect("no test failed").channels.clear();
    }
}

fn id(channel: &CmChannel, uid: u64) -> u32 {
    channel.create_id(uid, cm_port_space::TCP, cm_service::RC).expect("an identifier")
}

fn is_readable(channel: &CmChannel) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("poll") > 0
}

fn taken(channel: &CmChannel) -> Option<(u32, u32)> {
    channel.take().expect("the daemon lives").map(|taken| (taken.event.id, taken.event.kind))
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    match result.expect_err("it is refused") {
        Error::Kernel { errno, .. } => errno,
        Error::Refused { refusal: Refusal::Cm, detail, .. } => Errno::from_raw(detail[0] as i32),
        other => panic!("{other}"),
    }
}

fn set_nonblocking(channel: &CmChannel, on: bool) {
    let flags = if on { OFlag::O_NONBLOCK } else { OFlag::empty() };
    fcntl(channel.as_fd(), FcntlArg::F_SETFL(flags)).expect("fcntl");
}

#[test]
fn events_of_a_destroyed_identifier_leave_the_channel_unreadable() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let (first, second) = (id(&channel, 1), id(&channel, 2));
    for kind in [cm_event::ADDRESS_RESOLVED, cm_event::ROUTE_RESOLVED] {
        daemon.send(first, kind);
    }
    daemon.send(second, cm_event::ADDRESS_RESOLVED);
    daemon.send(first, cm_event::DISCONNECTED);
    assert_eq!(taken(&channel), Some((first, cm_event::ADDRESS_RESOLVED)));
    assert_eq!(channel.destroy_id(first).expect("it is there"), 1);
    assert!(is_readable(&channel));
    assert_eq!(taken(&channel), Some((second, cm_event::ADDRESS_RESOLVED)));
    assert!(!is_readable(&channel), "the last event is of no identifier");
    assert_eq!(channel.destroy_id(second).expect("it is there"), 1);
    assert_eq!(errno(channel.destroy_id(second)), Errno::ENOENT);
}

#[test]
fn a_migrated_identifier_has_each_event_once_and_in_order() {
    let daemon = FakeDaemon::start();
    let (old, new) = (daemon.channel(), daemon.channel());
    let (moved, stays) = (id(&old, 1), id(&old, 2));
    daemon.send(moved, cm_event::ADDRESS_RESOLVED);
    daemon.send(moved, cm_event::ROUTE_RESOLVED);
    daemon.send(stays, cm_event::ADDRESS_RESOLVED);
    daemon.send(moved, cm_event::CONNECT_RESPONSE);
    assert_eq!(taken(&old), Some((moved, cm_event::ADDRESS_RESOLVED)));
    assert_eq!(new.migrate(&old, moved).expect("it moves"), 1);
    assert_eq!(taken(&old), Some((stays, cm_event::ADDRESS_RESOLVED)));
    assert!(!is_readable(&old));
    daemon.send(moved, cm_event::DISCONNECTED);
    for kind in [cm_event::ROUTE_RESOLVED, cm_event::CONNECT_RESPONSE, cm_event::DISCONNECTED] {
        assert_eq!(taken(&new), Some((moved, kind)));
    }
    assert!(!is_readable(&new));
    assert_eq!(errno(old.disconnect(moved)), Errno::EINVAL);
    assert_eq!(new.destroy_id(moved).expect("it is there"), 4);
}

/// Its first channel has copies of the events that moved, one of them behind that of another.
#[test]
fn an_identifier_that_returns_has_its_events_once_and_in_order() {
    let daemon = FakeDaemon::start();
    let (first, second) = (daemon.channel(), daemon.channel());
    let (returns, stays) = (id(&first, 1), id(&first, 2));
    daemon.send(returns, cm_event::ADDRESS_RESOLVED);
    daemon.send(stays, cm_event::ADDRESS_RESOLVED);
    daemon.send(returns, cm_event::ROUTE_RESOLVED);
    assert_eq!(second.migrate(&first, returns).expect("it moves"), 0);
    assert_eq!(first.migrate(&second, returns).expect("it returns"), 0);
    assert!(!is_readable(&second));
    let expected = [(stays, cm_event::ADDRESS_RESOLVED), (returns, cm_event::ADDRESS_RESOLVED)];
    assert_eq!([taken(&first), taken(&first)], expected.map(Some));
    assert_eq!(taken(&first), Some((returns, cm_event::ROUTE_RESOLVED)));
    assert!(!is_readable(&first));
}

#[test]
fn a_request_counts_for_its_listener_and_has_no_event_before_it_is_accepted() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let listener = id(&channel, 7);
    let new = {
        let mut manager = daemon.manager.lock().expect("no test failed");
        let new = manager.number();
        let of_listener = manager.ids[&listener].0;
        manager.ids.insert(new, (of_listener, 0));
        manager.send(listener, new, cm_event::CONNECT_REQUEST);
        manager.send(new, new, cm_event::DISCONNECTED);
        new
    };
    assert_eq!(errno(channel.identifier(new)), Errno::ENOENT);
    assert_eq!(taken(&channel), Some((new, cm_event::CONNECT_REQUEST)));
    assert!(!is_readable(&channel), "the request was not accepted");
    assert!(channel.identifier(new).expect("it is there").connection.expect("the peer's").is_passive);
    // As with Linux, that refuses the peer: the daemon hears of it.
    for bytes in [197, 255, 256, 1000] {
        assert_eq!(errno(channel.accept(new, 9, CmParameters::default(), &vec![1; bytes])), Errno::EINVAL);
    }
    assert_eq!(daemon.manager.lock().expect("no test failed").refused, [new; 4]);
    assert_eq!(channel.identifier(new).expect("it is there").uid, 0);
    assert_eq!(errno(channel.reject(new, 28, &[1; 149])), Errno::EINVAL);
    channel.reject(new, 28, &[1; 148]).expect("it is not too long");
    channel.accept(new, 8, CmParameters::default(), &[1; 196]).expect("it is accepted");
    daemon.send(new, cm_event::ESTABLISHED);
    let event = channel.take().expect("the daemon lives").expect("an event").event;
    assert_eq!((event.uid, event.id, event.kind), (8, new, cm_event::ESTABLISHED));
    assert_eq!(channel.destroy_id(new).expect("it is there"), 1);
    assert_eq!(channel.destroy_id(listener).expect("it is there"), 1);
}

#[test]
fn a_membership_counts_its_events_and_takes_them_along() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let owner = id(&channel, 1);
    let group = CmAddress { family: 2, ..CmAddress::default() };
    let join = || channel.join(owner, 5, group, false).expect("it joins");
    let (first, second) = (join(), join());
    {
        let mut manager = daemon.manager.lock().expect("no test failed");
        manager.send_as(owner, first, cm_event::MULTICAST_JOIN, 5);
        manager.send_as(owner, second, cm_event::MULTICAST_JOIN, 6);
    }
    let TakenCmEvent { event, group: of_event, .. } = channel.take().expect("the daemon lives").expect("an event");
    assert_eq!((event.id, event.uid, of_event), (first, 5, Some(group)));
    let of_owner = channel.identifier(owner).expect("it is there");
    assert_eq!(of_owner.route.path.device, CM_NO_DEVICE, "a group's path is no path of the identifier");
    assert_eq!((channel.leave(first).expect("left"), channel.leave(second).expect("left")), (1, 0));
    assert!(!is_readable(&channel));
    assert_eq!(errno(channel.leave(first)), Errno::ENOENT);
    assert_eq!(channel.destroy_id(owner).expect("it is there"), 1);
}

#[test]
fn records_follow_events_that_were_taken() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let id = id(&channel, 1);
    daemon.send(id, cm_event::CONNECT_RESPONSE);
    assert!(!channel.identifier(id).expect("it is there").has_device());
    assert_eq!(taken(&channel), Some((id, cm_event::CONNECT_RESPONSE)));
    let record = channel.identifier(id).expect("it is there");
    assert!(record.has_device() && record.route.path.flow_label == id);
    assert!(!record.connection.expect("the peer's").is_passive);
    let address = CmAddress::default();
    assert_eq!(errno(channel.bind(id, address)), Errno::EADDRINUSE);
}

#[test]
fn the_flag_that_fcntl_sets_decides_about_waiting() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let id = id(&channel, 1);
    set_nonblocking(&channel, true);
    assert_eq!(errno(channel.receive()), Errno::EAGAIN);
    daemon.send(id, cm_event::ADDRESS_RESOLVED);
    assert_eq!(channel.receive().expect("an event").event.id, id);
    set_nonblocking(&channel, false);
    let manager = Arc::clone(&daemon.manager);
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        manager.lock().expect("no test failed").send(id, id, cm_event::ROUTE_RESOLVED);
    });
    assert_eq!(channel.receive().expect("an event").event.kind, cm_event::ROUTE_RESOLVED);
    later.join().expect("it ended well");
}

#[test]
fn epoll_reports_levels_and_edges() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let id = id(&channel, 1);
    let (level, edge) =
        (EpollFlags::EPOLLIN, EpollFlags::EPOLLIN | EpollFlags::EPOLLET).map_both(|flags| watch(&channel, flags));
    let ready = |epoll: &Epoll| epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).expect("epoll") == 1;
    assert!(!ready(&level) && !ready(&edge));
    daemon.send(id, cm_event::ADDRESS_RESOLVED);
    daemon.send(id, cm_event::ROUTE_RESOLVED);
    assert!(ready(&level) && ready(&level) && ready(&edge) && !ready(&edge));
    assert!(taken(&channel).is_some() && ready(&level) && !ready(&edge));
    daemon.send(id, cm_event::CONNECT_RESPONSE);
    assert!(ready(&edge));
    channel.destroy_id(id).expect("it is there");
    assert!(!ready(&level) && !ready(&edge));
}

trait MapBoth<T> {
    fn map_both<R>(self, map: impl Fn(T) -> R) -> (R, R);
}

impl<T> MapBoth<T> for (T, T) {
    fn map_both<R>(self, map: impl Fn(T) -> R) -> (R, R) {
        (map(self.0), map(self.1))
    }
}

fn watch(channel: &CmChannel, flags: EpollFlags) -> Epoll {
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("epoll");
    epoll.add(channel, EpollEvent::new(flags, 0)).expect("epoll_ctl");
    epoll
}

/// A thread that receives, while another destroys the identifier of the event that woke it: it returns
/// the event or waits on, and the count says which.
#[test]
fn a_destroyed_identifier_and_a_waiting_receiver_agree_on_its_events() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let keeper = id(&channel, 1);
    for _ in 0..300 {
        let id = id(&channel, 2);
        let received = AtomicU32::new(0);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                loop {
                    let event = channel.receive().expect("an event").event;
                    if event.id == keeper {
                        return;
                    }
                    assert_eq!(event.id, id);
                    received.fetch_add(1, Ordering::SeqCst);
                }
            });
            daemon.send(id, cm_event::ADDRESS_RESOLVED);
            let events = channel.destroy_id(id).expect("it is there");
            daemon.send(keeper, cm_event::USER);
            receiver.join().expect("it ended well");
            assert_eq!(received.load(Ordering::SeqCst), events);
        });
        assert!(!is_readable(&channel));
    }
    assert_eq!(channel.destroy_id(keeper).expect("it is there"), 300);
}

#[expect(unsafe_code, reason = "a call without arguments")]
fn this_thread() -> libc::pthread_t {
    // SAFETY: the call only returns a number.
    unsafe { libc::pthread_self() }
}

#[expect(unsafe_code, reason = "a call that the test may make until the thread is joined")]
fn signal_thread(thread: libc::pthread_t, signal: Signal) {
    // SAFETY: the thread was not joined yet.
    assert_eq!(unsafe { libc::pthread_kill(thread, signal as i32) }, 0);
}

extern "C" fn ignore(_: i32) {}

/// A signal interrupts the wait if its handler is installed so, and does not if it restarts calls.
#[test]
fn a_signal_interrupts_the_wait_unless_it_restarts() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let id = id(&channel, 1);
    for (flags, signal) in [(SaFlags::empty(), Signal::SIGUSR1), (SaFlags::SA_RESTART, Signal::SIGUSR2)] {
        let action = SigAction::new(SigHandler::Handler(ignore), flags, SigSet::empty());
        // SAFETY: the handler does nothing.
        #[expect(unsafe_code, reason = "installs a handler")]
        unsafe { sigaction(signal, &action) }.expect("a handler");
        let (told, thread) = mpsc::channel();
        let has_ended = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                told.send(this_thread()).expect("it is waited for");
                let result = channel.receive().map(|taken| taken.event.id);
                has_ended.store(true, Ordering::SeqCst);
                result
            });
            let thread = thread.recv().expect("it started");
            let deadline = Instant::now() + Duration::from_millis(200);
            while !has_ended.load(Ordering::SeqCst) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
                signal_thread(thread, signal);
            }
            if flags == SaFlags::SA_RESTART {
                daemon.send(id, cm_event::ADDRESS_RESOLVED);
            }
            receiver.join().expect("it ended well")
        });
        match flags == SaFlags::SA_RESTART {
            true => assert_eq!(result.expect("it waited on"), id),
            false => assert_eq!(errno(result), Errno::EINTR),
        }
    }
}

#[test]
fn after_the_end_of_the_daemon_each_bound_identifier_loses_its_device_once() {
    let mut daemon = FakeDaemon::start();
    let (channel, other) = (daemon.channel(), daemon.channel());
    let (bound, unbound, of_other) = (id(&channel, 1), id(&channel, 2), id(&other, 3));
    daemon.send(bound, cm_event::ADDRESS_RESOLVED);
    daemon.send(of_other, cm_event::ADDRESS_RESOLVED);
    assert_eq!(taken(&channel), Some((bound, cm_event::ADDRESS_RESOLVED)));
    daemon.die();
    assert!(is_readable(&channel));
    let removal = channel.receive().expect("the removal").event;
    assert_eq!((removal.id, removal.uid, removal.kind), (bound, 1, cm_event::DEVICE_REMOVAL));
    for _ in 0..2 {
        assert!(matches!(channel.receive(), Err(Error::DaemonGone)));
    }
    assert_eq!(other.receive().expect("it waited").event.kind, cm_event::ADDRESS_RESOLVED);
    assert_eq!(other.receive().expect("the removal").event.kind, cm_event::DEVICE_REMOVAL);
    assert!(channel.disconnect(bound).is_err_and(|error| error.is_fatal()));
    assert_eq!(channel.destroy_id(bound).expect("it is there"), 2);
    assert_eq!(channel.destroy_id(unbound).expect("it is there"), 0);
}

#[test]
fn an_abandoned_channel_leaves_its_descriptor_open() {
    let daemon = FakeDaemon::start();
    let channel = daemon.channel();
    let number = channel.as_fd().as_raw_fd();
    assert_eq!(channel.abandon(), Some(number));
    // SAFETY: the number is open and has no owner any more.
    #[expect(unsafe_code, reason = "takes over a descriptor")]
    let socket = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) };
    fcntl(&socket, FcntlArg::F_GETFD).expect("it is open");
}
