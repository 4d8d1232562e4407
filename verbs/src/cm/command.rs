//! Commands: the bytes that librdmacm writes to its device file, by their number.

use std::{ffi::c_int, os::fd::BorrowedFd};

use roced_client::{Error, cm::CmChannel};

use super::{
    body::{AnswerRoom, Body, read},
    connection,
    event::{self, Executed},
    identifier, qp_attr, query,
    table::DeviceChannel,
};
use crate::{
    abi::rdma_cm::{UcmGetEvent, UcmHeader},
    errno::{Errno, Result},
};

/// Numbers of the commands.
mod number {
    pub(super) const CREATE_ID: u32 = 0;
    pub(super) const DESTROY_ID: u32 = 1;
    pub(super) const BIND_IP: u32 = 2;
    pub(super) const RESOLVE_IP: u32 = 3;
    pub(super) const RESOLVE_ROUTE: u32 = 4;
    pub(super) const QUERY_ROUTE: u32 = 5;
    pub(super) const CONNECT: u32 = 6;
    pub(super) const LISTEN: u32 = 7;
    pub(super) const ACCEPT: u32 = 8;
    pub(super) const REJECT: u32 = 9;
    pub(super) const DISCONNECT: u32 = 10;
    pub(super) const INIT_QP_ATTR: u32 = 11;
    pub(super) const GET_EVENT: u32 = 12;
    pub(super) const GET_OPTION: u32 = 13;
    pub(super) const SET_OPTION: u32 = 14;
    pub(super) const NOTIFY: u32 = 15;
    pub(super) const JOIN_IP_MCAST: u32 = 16;
    pub(super) const LEAVE_MCAST: u32 = 17;
    pub(super) const MIGRATE_ID: u32 = 18;
    pub(super) const QUERY: u32 = 19;
    pub(super) const BIND: u32 = 20;
    pub(super) const RESOLVE_ADDR: u32 = 21;
    pub(super) const JOIN_MCAST: u32 = 22;
    pub(super) const RESOLVE_IB_SERVICE: u32 = 23;
    pub(super) const WRITE_CM_EVENT: u32 = 24;
}

/// Executes the command in `bytes`.
pub(super) fn execute(channel: &DeviceChannel, bytes: &[u8]) -> Result<Executed> {
    const HEADER_BYTES: usize = size_of::<UcmHeader>();
    let header: UcmHeader = read(bytes, HEADER_BYTES)?;
    let bytes = bytes[HEADER_BYTES..].get(..header.r#in.into()).ok_or(Errno::INVALID)?;
    let body = Body { bytes, out: header.out };
    match header.cmd {
        number::GET_EVENT => {
            let command: UcmGetEvent = read(body.bytes, size_of::<UcmGetEvent>())?;
            event::get(channel, AnswerRoom::new(command.response, body.out, event::BYTES_MIN)?)
        }
        number::GET_OPTION | number::RESOLVE_IB_SERVICE => Err(Errno(libc::ENOSYS)),
        _ => about_identifier(header.cmd, channel, &body).map(|()| Executed::Done),
    }
}

fn about_identifier(number: u32, channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    match number {
        number::CREATE_ID => identifier::create(channel, body),
        number::DESTROY_ID => identifier::destroy(channel, body),
        number::BIND_IP => identifier::bind_ip(channel, body),
        number::BIND => identifier::bind(channel, body),
        number::RESOLVE_IP => identifier::resolve_ip(channel, body),
        number::RESOLVE_ADDR => identifier::resolve_address(channel, body),
        number::RESOLVE_ROUTE => identifier::resolve_route(channel, body),
        number::MIGRATE_ID => identifier::migrate(channel, body),
        number::SET_OPTION => identifier::set_option(channel, body),
        number::JOIN_IP_MCAST => identifier::join_ip(channel, body),
        number::JOIN_MCAST => identifier::join(channel, body),
        number::LEAVE_MCAST => identifier::leave(channel, body),
        number::LISTEN => connection::listen(channel, body),
        number::CONNECT => connection::connect(channel, body),
        number::ACCEPT => connection::accept(channel, body),
        number::REJECT => connection::reject(channel, body),
        number::DISCONNECT => connection::disconnect(channel, body),
        number::NOTIFY => connection::notify(channel, body),
        number::WRITE_CM_EVENT => connection::write_event(channel, body),
        number::QUERY => query::query(channel, body),
        number::QUERY_ROUTE => query::route(channel, body),
        number::INIT_QP_ATTR => qp_attr::init(channel, body),
        _ => Err(Errno::INVALID),
    }
}

/// Waits until an event waits on a channel.
pub(super) fn wait_for_event(fd: BorrowedFd<'_>) -> Result<()> {
    match CmChannel::wait(fd) {
        Ok(()) => Ok(()),
        // Not explained: an interrupted wait, and a channel without events, are no failures.
        Err(Error::Kernel { errno, .. }) => Err(Errno(errno as c_int)),
        Err(_) => Err(Errno(libc::EIO)),
    }
}
