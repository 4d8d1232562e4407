//! Descriptors that are slow to close or to wake.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        memfd::{MFdFlags, memfd_create},
        socket::{ControlMessage, MsgFlags, recv, sendmsg, setsockopt, sockopt},
    },
    unistd::{dup, ftruncate},
};
use roced_abi::control::{
    AllocPd, Call as _, CreateChannel, CreateQp, DestroyChannel, MapMemory, MapMemoryRequest, Message, Nothing, origin,
};
use roced_client::{CqOptions, Device, Notify, RecvRequest, SendRequest};
use zerocopy::IntoBytes as _;

use super::{
    objects::{LARGEST, with_queues},
    say, traffic, wait,
};
use crate::{actor::ActArguments, raw_client::RawSession, shared::Shared};

/// How long each socket lingers.
const LINGER_SECONDS: i32 = 1;

/// Sockets with a last close that waits, and the listener that keeps their peers.
fn lingering(count: u32) -> Result<(TcpListener, Vec<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sockets = Vec::new();
    for _ in 0..count {
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        socket.set_nonblocking(true)?;
        let bytes = vec![0; 1 << 16];
        while socket.write(&bytes).is_ok() {}
        socket.set_nonblocking(false)?;
        setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: LINGER_SECONDS })?;
        sockets.push(socket);
    }
    Ok((listener, sockets))
}

fn map_memory(sequence: u32) -> Message {
    let request = MapMemoryRequest { offset: 0, bytes: 4096, writable: 1, origin: origin::FILE_BACKED };
    Message::new(MapMemory::OP, sequence, &request)
}

/// Has replies of `count` descriptors wait in sockets, those of sessions that were ended for it
/// included.
pub(super) fn unread_replies(arguments: &ActArguments) -> Result<()> {
    let (mut sockets, mut calls, mut refusals) = (Vec::new(), 0, 0);
    while calls < arguments.count && refusals < 100 {
        let Ok(session) = RawSession::open(&arguments.socket) else {
            refusals += 1;
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        for sequence in 10..240 {
            let call = Message::new(CreateChannel::OP, sequence, &Nothing {});
            if session.client.send_bytes(call.as_bytes(), &[], MsgFlags::MSG_DONTWAIT).is_ok() {
                calls += 1;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        sockets.push(session.client);
    }
    say("ready")?;
    hold()
}

/// Keeps everything as it is: an end of the listener would end the lingering.
fn hold() -> Result<()> {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Has calls wait in front of the next message, so that this program has closed its sockets when
/// the daemon takes that.
fn delay(session: &mut RawSession) -> Result<()> {
    let request = with_queues(session, LARGEST)?;
    for _ in 0..60 {
        session.client.begin::<CreateQp>(&request, &[])?;
    }
    Ok(())
}

/// Passes all sockets in one message, which is cut.
pub(super) fn linger_truncated(arguments: &ActArguments) -> Result<()> {
    let (_listener, sockets) = lingering(arguments.count)?;
    let mut session = RawSession::open(&arguments.socket)?;
    let raw: Vec<RawFd> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    say("ready")?;
    delay(&mut session)?;
    session.client.send_bytes(map_memory(1).as_bytes(), &raw, MsgFlags::empty())?;
    drop(sockets);
    hold()
}

/// Has messages with sockets wait behind one that ends the session.
pub(super) fn linger_queued(arguments: &ActArguments) -> Result<()> {
    let (_listener, sockets) = lingering(arguments.count)?;
    let mut session = RawSession::open(&arguments.socket)?;
    say("ready")?;
    delay(&mut session)?;
    session.client.send_bytes(&[0; 256], &[], MsgFlags::empty())?;
    for socket in &sockets {
        // The session may have ended already.
        let _ = session.client.send_bytes(map_memory(9).as_bytes(), &[socket.as_raw_fd()], MsgFlags::empty());
    }
    drop(sockets);
    hold()
}

/// Passes sockets to the daemon's end of a channel, and destroys the channel.
pub(super) fn linger_channel(arguments: &ActArguments) -> Result<()> {
    let (_listener, sockets) = lingering(arguments.count)?;
    let mut session = RawSession::open(&arguments.socket)?;
    let (channel, fds) = session.client.call::<CreateChannel>(Nothing {})?;
    say("ready")?;
    for socket in &sockets {
        let raw = [socket.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&raw)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let piece = [std::io::IoSlice::new(b"x")];
        // A channel that takes nothing is the remedy.
        let _ = sendmsg::<()>(fds[0].as_raw_fd(), &piece, &rights, flags, None);
    }
    drop(sockets);
    drop(fds);
    session.client.call::<DestroyChannel>(channel)?;
    hold()
}

/// Watches `file` by `count` epoll instances, each by many duplicates.
fn watch(file: &OwnedFd, entries: u32) -> Result<(Vec<OwnedFd>, Vec<Epoll>)> {
    const DUPLICATES: u32 = 500;
    let duplicates: Vec<OwnedFd> = (0..DUPLICATES).map(|_| dup(file)).collect::<Result<_, Errno>>()?;
    let mut epolls = Vec::new();
    for _ in 0..entries.div_ceil(DUPLICATES) {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (number, duplicate) in (0..).zip(&duplicates) {
            epoll.add(duplicate, EpollEvent::new(EpollFlags::EPOLLIN, number)).context("max_user_watches")?;
        }
        epolls.push(epoll);
    }
    Ok((duplicates, epolls))
}

/// Has each reply walk a long wait queue.
pub(super) fn wait_queue_session(arguments: &ActArguments) -> Result<()> {
    let mut session = RawSession::open(&arguments.socket)?;
    let _watched = watch(&session.client.duplicate()?, arguments.count)?;
    say("ready")?;
    loop {
        session.client.call::<AllocPd>(Nothing {}).map(drop).or_else(|_| {
            session = RawSession::open(&arguments.socket)?;
            anyhow::Ok(())
        })?;
    }
}

/// Has each event of a completion channel walk a long wait queue.
pub(super) fn wait_queue_channel(arguments: &ActArguments) -> Result<()> {
    let name = Device::list_at(&arguments.socket)?.into_iter().next().context("no device")?;
    let device = Device::open_at(&arguments.socket, &name)?;
    let channel = device.channel()?;
    let file = std::os::fd::AsFd::as_fd(&channel).try_clone_to_owned()?;
    let cq = device.completion_queue_with(&CqOptions { channel: Some(&channel), ..CqOptions::default() })?;
    let (left, right) = traffic::connected_to_itself(&device, &cq)?;
    let _watched = watch(&file, arguments.count)?;
    say("ready")?;
    let mut done = [roced_client::Completion::EMPTY; 16];
    let mut events = [0; 64];
    loop {
        // A channel that is full gets no event.
        while recv(file.as_raw_fd(), &mut events, MsgFlags::MSG_DONTWAIT).is_ok_and(|bytes| bytes > 0) {}
        right.post_recv(&RecvRequest::new(&[]))?;
        cq.arm(Notify::Any);
        left.post_send(&SendRequest::send_inline(&[]).signaled())?;
        let mut completed = 0;
        while completed < 2 {
            completed += cq.poll(&mut done)?;
        }
    }
}

/// Maps a large file, and leaves its end to the daemon.
pub(super) fn large_file(arguments: &ActArguments) -> Result<()> {
    let file = memfd_create(c"large", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&file, i64::try_from(arguments.bytes)?)?;
    let mapped = Shared::whole(&file)?;
    for page in 0..mapped.words() / 512 {
        mapped.word(page * 512).store(1, std::sync::atomic::Ordering::Relaxed);
    }
    drop(mapped);
    let mut session = RawSession::open(&arguments.socket)?;
    let request = MapMemoryRequest { offset: 0, bytes: arguments.bytes, writable: 1, origin: origin::FILE_BACKED };
    let mapped = session.client.attempt::<MapMemory>(request, &[file.as_raw_fd()])?;
    drop(file);
    say(if mapped.is_ok() { "ready" } else { "refused" })?;
    wait()?;
    drop(session);
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}
