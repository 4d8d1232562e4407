//! The netlink socket that hears of changes.

use std::{io, os::fd::AsFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use roced_xdp::netlink::{DATAGRAM_BYTES, count_unreadable, messages};

/// Room for events that we were not told of in time. Beyond it the kernel says so and everything is
/// read anew.
const EVENT_BUFFER_BYTES: usize = 1 << 20;

// RTNLGRP_* as bind() takes them: bit (group - 1).
const GROUPS: u32 = 1 << 0 // links
    | 1 << 2 // neighbors
    | 1 << 4 // IPv4 addresses
    | 1 << 6 // IPv4 routes
    | 1 << 7 // IPv4 rules
    | 1 << 8 // IPv6 addresses
    | 1 << 10 // IPv6 routes
    | 1 << 18; // IPv6 rules

/// Hears of changes.
#[derive(Debug)]
pub(super) struct KernelEvents {
    socket: Socket,
    datagram: Vec<u8>,
    /// Messages so far that this library could not read.
    unreadable: u64,
}

/// Result of a receive.
#[derive(Debug)]
pub(super) enum Heard {
    /// These changes, in order.
    Changes(Vec<RouteNetlinkMessage>),
    /// Changes were lost: read everything anew.
    Lost,
}

impl KernelEvents {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(EVENT_BUFFER_BYTES as u32)?;
        Ok(Self { socket, datagram: Vec::with_capacity(DATAGRAM_BYTES), unreadable: 0 })
    }

    /// For epoll.
    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes all that waits.
    pub(super) fn drain(&mut self) -> io::Result<Heard> {
        let mut changes = Vec::new();
        let mut lost = false;
        loop {
            self.datagram.clear();
            match self.socket.recv_from(&mut self.datagram, 0) {
                Ok((_, from)) if from.port_number() == 0 => {
                    for message in messages(&self.datagram) {
                        match message.map(|message| message.payload) {
                            Ok(NetlinkPayload::InnerMessage(inner)) => changes.push(inner),
                            Ok(_) => {}
                            Err(error) => count_unreadable(&mut self.unreadable, &error),
                        }
                    }
                }
                // Only the kernel, port 0, is a trusted source.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(if lost { Heard::Lost } else { Heard::Changes(changes) });
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
