//! Tests of a session with fake daemons at the other end of its socket.

use std::{io, mem, sync::mpsc, thread};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::{
        resource::{UsageWho, getrusage},
        socket::socketpair,
    },
    unistd::Pid,
};
use roced_abi::control::{DestroyQp, MapAndRegMr};
use zerocopy::FromZeros;

use super::*;

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair of sockets")
}

/// A session with a daemon that has greeted and says nothing more, and that daemon's socket.
fn silent_daemon() -> (DaemonSession, OwnedFd) {
    let (ours, theirs) = sockets();
    let daemon = thread::spawn(move || {
        answer_hello(&theirs);
        theirs
    });
    let (session, _) = DaemonSession::over(ours).expect("a session");
    (session, daemon.join().expect("it answered"))
}

/// Answers calls until the client is gone, with the next of `statuses`; returns the number of
/// descriptors beside each.
fn daemon(socket: &OwnedFd, statuses: &[u32]) -> Vec<usize> {
    let (mut bytes, mut space) = ([0; MESSAGE_BYTES], cmsg_space!([RawFd; FDS_MAX]));
    let mut seen = Vec::new();
    loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::empty());
        let received = received.expect("receive");
        if received.bytes == 0 {
            return seen;
        }
        let mut fds = Vec::new();
        for message in received.cmsgs().expect("control messages") {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just created them for this process.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let call = Message::read_from_bytes(&bytes).expect("a message");
        let mut reply = if call.header.op == Hello::OP {
            let hello = HelloReply { version: VERSION, ..HelloReply::new_zeroed() };
            Message::new(Hello::OP, call.header.sequence, &hello)
        } else {
            Message::new(call.header.op, call.header.sequence, &[0u64; 2])
        };
        reply.header.status = statuses[seen.len()];
        seen.push(fds.len());
        let pieces = [IoSlice::new(reply.as_bytes())];
        sendmsg::<()>(socket.as_raw_fd(), &pieces, &[], MsgFlags::empty(), None).expect("send");
    }
}

#[test]
fn the_descriptor_of_proxied_memory_is_passed_until_the_daemon_has_it() {
    let (ours, theirs) = sockets();
    let refusal = control::Refusal::Memory as u32;
    let passed = thread::scope(|scope| {
        let daemon = scope.spawn(move || daemon(&theirs, &[0, refusal, 0, 0, 0]));
        let (session, _) = DaemonSession::over(ours).expect("a session");
        let (file, request) = (io::stdin(), || FromZeros::new_zeroed());
        session.call_proxied::<MapAndRegMr>(request(), file.as_fd()).expect_err("it is refused");
        for _ in 0..3 {
            session.call_proxied::<MapAndRegMr>(request(), file.as_fd()).expect("it succeeds");
        }
        drop(session);
        daemon.join().expect("the daemon ended well")
    });
    assert_eq!(passed, [0, 1, 1, 0, 0]);
}

/// Each thread has the reply to its own call, whichever thread receives it.
#[test]
fn calls_of_several_threads_are_under_way_at_a_time() {
    const THREADS: u32 = 3 * UNDER_WAY_MAX as u32;
    const CALLS: u32 = 10;
    let (ours, theirs) = sockets();
    let daemon = thread::spawn(move || answer_together(&theirs, THREADS * CALLS));
    let (session, _) = DaemonSession::over(ours).expect("a session");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                for call in 0..CALLS {
                    let handle = thread * CALLS + call;
                    let is_refused = session.call::<DestroyQp>(Handle { handle }).is_err();
                    assert_eq!(is_refused, handle % 2 == 1, "{handle}");
                }
            });
        }
    });
    let rounds = daemon.join().expect("it answered all");
    let mut events = Vec::new();
    // Behind them: that the daemon is gone.
    while let Ok(Some(event)) = session.next_event() {
        events.push(event.handle);
    }
    assert_eq!(events, (0..rounds).collect::<Vec<_>>());
}

/// A daemon that takes the calls that may be under way and ends: no thread waits for its time
/// to pass.
#[test]
fn the_end_of_the_daemon_ends_the_calls_of_all_threads() {
    const THREADS: usize = 4 * UNDER_WAY_MAX;
    let (ours, theirs) = sockets();
    let daemon = thread::spawn(move || {
        answer_hello(&theirs);
        let taken: Vec<Message> = (0..UNDER_WAY_MAX).map(|_| receive_call(&theirs)).collect();
        assert_eq!(taken.len(), UNDER_WAY_MAX);
        // The other threads wait for room.
        thread::sleep(Duration::from_millis(200));
    });
    let (session, _) = DaemonSession::over(ours).expect("a session");
    let began = Instant::now();
    let results: Vec<_> = thread::scope(|scope| {
        let call = || session.call::<DestroyQp>(Handle { handle: 1 });
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(call)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it returns")).collect()
    });
    daemon.join().expect("it ended");
    assert!(results.iter().all(|result| matches!(result, Err(Error::DaemonGone))), "{results:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// A thread receives, and keeps the events that come.
#[test]
fn a_look_for_events_does_not_wait_for_calls() {
    let (session, _theirs) = silent_daemon();
    let (sequence, _) = session.begin::<DestroyQp>(&Handle { handle: 1 }, None).expect("there is room");
    lock(&session.calls).is_receiving = true;
    let began = Instant::now();
    assert_eq!(session.next_event().expect("the daemon is there").map(|event| event.handle), None);
    session.keep_event(&Message::new(control::EVENT, 0, &Event { kind: 1, handle: 7 }));
    assert_eq!(session.next_event().expect("the daemon is there").map(|event| event.handle), Some(7));
    assert!(began.elapsed() < Duration::from_secs(CALL_SECONDS / 2), "{:?}", began.elapsed());
    assert_eq!(lock(&session.calls).under_way[0].sequence, sequence);
}

/// A program that was stopped for long: the reply has come meanwhile, and the thread that
/// receives takes it after another one has seen that its own is late.
#[test]
fn a_late_reply_is_waited_for_while_a_thread_receives() {
    let (session, _theirs) = silent_daemon();
    let (sequence, _) = session.begin::<DestroyQp>(&Handle { handle: 1 }, None).expect("there is room");
    lock(&session.calls).is_receiving = true;
    let late = thread::scope(|scope| {
        let late = scope.spawn(|| session.reply_to(sequence, "DestroyQp", Instant::now()));
        while lock(&session.calls).waiting == 0 && !late.is_finished() {
            thread::yield_now();
        }
        let mut calls = lock(&session.calls);
        let reply = Message::new(DestroyQp::OP, sequence, &[0u64; 2]);
        let taken = session.take_in(&mut calls, (reply, Vec::new()));
        calls.is_receiving = false;
        session.tell_waiting(&calls);
        drop(calls);
        taken.and(late.join().expect("it returns"))
    });
    assert_eq!(late.expect("the session serves").0.header.sequence, sequence);
}

/// A thread that is canceled in its call ends behind it, and others go on.
#[test]
fn a_canceled_thread_keeps_no_other_from_its_calls() {
    let (ours, theirs) = sockets();
    let (asks, asked) = mpsc::channel();
    let daemon = thread::spawn(move || {
        answer_hello(&theirs);
        let first = receive_call(&theirs);
        asks.send(()).expect("it is waited for");
        for call in [first, receive_call(&theirs)] {
            send_message(&theirs, &Message::new(call.header.op, call.header.sequence, &[0u64; 2]));
        }
        theirs
    });
    let (session, _) = DaemonSession::over(ours).expect("a session");
    let call = || session.call::<DestroyQp>(Handle { handle: 1 }).is_ok();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let canceled = scope.spawn(move || {
            // SAFETY: a query.
            tell.send(unsafe { libc::pthread_self() }).expect("it is waited for");
            let is_ok = call();
            // Rust's threads do not survive a cancellation.
            mem::forget(NoCancellation::new());
            is_ok
        });
        let thread = told.recv().expect("it runs");
        asked.recv().expect("it calls");
        // SAFETY: the thread waits for its reply.
        assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
        let other = scope.spawn(call);
        assert!(other.join().expect("it returns") && canceled.join().expect("it returns"));
    });
    drop(daemon.join().expect("it answered both"));
}

/// A child of a program has a copy of the socket: what it received would be its parent's.
#[test]
fn a_child_takes_no_event_of_its_parent() {
    let (ours, theirs) = sockets();
    let daemon = thread::spawn(move || {
        answer_hello(&theirs);
        send_message(&theirs, &Message::new(control::EVENT, 0, &Event { kind: 1, handle: 7 }));
        theirs
    });
    let (mut session, _) = DaemonSession::over(ours).expect("a session");
    let _theirs = daemon.join().expect("it sent an event");
    session.pid += 1;
    assert!(matches!(session.next_event(), Err(Error::OtherProcess)));
    session.pid -= 1;
    assert_eq!(session.next_event().expect("it is there").map(|event| event.handle), Some(7));
}

/// A daemon that has as many calls as may be under way before it answers the first, in another
/// order, with an event before them; the last ones, when threads have ended, one by one. It
/// refuses odd handles. Returns the number of events.
fn answer_together(socket: &OwnedFd, calls: u32) -> u32 {
    answer_hello(socket);
    let (mut left, mut rounds) = (calls, 0);
    while left > 0 {
        let together = if rounds < 3 { UNDER_WAY_MAX } else { 1 };
        let batch: Vec<Message> = (0..together).map(|_| receive_call(socket)).collect();
        send_message(socket, &Message::new(control::EVENT, 0, &Event { kind: 1, handle: rounds }));
        for call in batch.iter().rev() {
            let Handle { handle } = call.body();
            let mut reply = Message::new(call.header.op, call.header.sequence, &[0u64; 2]);
            reply.header.status = handle % 2;
            send_message(socket, &reply);
        }
        left -= together as u32;
        rounds += 1;
    }
    rounds
}

fn receive_call(socket: &OwnedFd) -> Message {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, None, MsgFlags::empty()).expect("receive").bytes;
    assert_eq!(received, MESSAGE_BYTES, "the client ended early");
    Message::read_from_bytes(&bytes).expect("a message")
}

fn send_message(socket: &OwnedFd, message: &Message) {
    let pieces = [IoSlice::new(message.as_bytes())];
    sendmsg::<()>(socket.as_raw_fd(), &pieces, &[], MsgFlags::empty(), None).expect("send");
}

fn answer_hello(socket: &OwnedFd) {
    let hello = HelloReply { version: VERSION, ..HelloReply::new_zeroed() };
    send_message(socket, &Message::new(Hello::OP, receive_call(socket).header.sequence, &hello));
}

/// Limits this thread and its later threads to one core.
fn pin() {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).expect("cores of this thread");
    let first = (0..CpuSet::count()).find(|core| allowed.is_set(*core).expect("in range"));
    let mut one = CpuSet::new();
    one.set(first.expect("it runs on a core")).expect("in range");
    sched_setaffinity(this, &one).expect("it may");
}

/// Client, daemon and threads that compute share a core. A yield there lasts for their time
/// slices, and counts as an involuntary switch; a thread that sleeps until the reply comes
/// leaves its core voluntarily.
#[test]
fn calls_sleep_beside_threads_that_compute() {
    const CALLS: u16 = 200;
    let (ours, theirs) = sockets();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            pin();
            for _ in 0..8 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            scope.spawn(move || daemon(&theirs, &[0; CALLS as usize + 1]));
            let (session, _) = DaemonSession::over(ours).expect("a session");
            let slept = || getrusage(UsageWho::RUSAGE_THREAD).expect("of this thread").voluntary_context_switches();
            let (before, file) = (slept(), io::stdin());
            for _ in 0..CALLS {
                session.call_proxied::<MapAndRegMr>(FromZeros::new_zeroed(), file.as_fd()).expect("it succeeds");
            }
            slept() - before
        });
        let slept = calls.join();
        done.store(true, Ordering::Relaxed);
        let slept = slept.expect("all calls succeed");
        assert!(slept > i64::from(CALLS) / 4, "{slept} of {CALLS} calls slept");
    });
}
