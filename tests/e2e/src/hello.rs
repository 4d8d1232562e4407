//! A client of another version of the client ABI, which the library cannot be.

use std::{env, os::fd::AsRawFd as _};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::{
    socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt},
    time::TimeVal,
};
use roced_abi::{
    SOCKET_VARIABLE,
    control::{Call as _, Hello, HelloRequest, MESSAGE_BYTES, Message, Refusal},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Says hello as a client of `version`, and fails with the daemon's answer when it refuses.
pub(crate) fn say_hello(version: u32) -> Result<()> {
    let path = env::var_os(SOCKET_VARIABLE).context("run by scripts/lab exec")?;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path.as_os_str())?)?;
    let hello = HelloRequest { version, program: [0; 16] };
    send(socket.as_raw_fd(), Message::new(Hello::OP, 1, &hello).as_bytes(), MsgFlags::MSG_NOSIGNAL)?;
    let mut bytes = [0; MESSAGE_BYTES];
    let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
    ensure!(length == MESSAGE_BYTES, "the daemon answered {length} bytes");
    let reply = Message::read_from_bytes(&bytes[..]).map_err(|_| anyhow::anyhow!("not a message"))?;
    match Refusal::from_status(reply.header.status) {
        None => Ok(()),
        Some(refusal) => bail!("refused: {refusal:?}, {:?}", reply.body::<[u64; 2]>()),
    }
}
