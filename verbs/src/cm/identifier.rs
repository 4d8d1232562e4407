//! Commands about one identifier: its creation, addresses, options, groups and end.

use roced_client::cm::{CmAddress, cm_option, cm_port_space, cm_service};

use super::{
    address::SocketAddress,
    body::{AnswerRoom, Body, option_value, read},
    own_ids,
    table::{self, DeviceChannel, Found, errno_of},
};
use crate::{
    abi::rdma_cm::{
        UcmBind, UcmBindIp, UcmCreateId, UcmDestroyId, UcmEventsReported, UcmJoinGroup, UcmJoinIpGroup, UcmMigrate,
        UcmNumber, UcmResolveAddress, UcmResolveIp, UcmResolveRoute, UcmSetOption,
    },
    errno::{Errno, Result},
};

/// Levels of options: of the identifier, and of its InfiniBand path.
const LEVEL_ID: u32 = 0;

/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
const SEND_ONLY: u16 = 1;

const NUMBER_BYTES: usize = size_of::<UcmNumber>();
const EVENTS_BYTES: usize = size_of::<UcmEventsReported>();

pub(super) fn create(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmCreateId = read(body.bytes, size_of::<UcmCreateId>())?;
    let room = AnswerRoom::new(command.response, body.out, NUMBER_BYTES)?;
    // The kernel ignores the type of queue pair that a command names outside `RDMA_PS_IB`.
    let id = match u32::from(command.ps) {
        _ if command.ps == own_ids::PORT_SPACE => channel.own_ids().create(),
        space @ cm_port_space::TCP => {
            channel.channel.create_id(command.uid, space, cm_service::RC).map_err(errno_of)?
        }
        space @ (cm_port_space::UDP | cm_port_space::IPOIB) => {
            channel.channel.create_id(command.uid, space, cm_service::UD).map_err(errno_of)?
        }
        _ => return Err(Errno::INVALID),
    };
    room.write(&UcmNumber { id });
    Ok(())
}

pub(super) fn destroy(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmDestroyId = read(body.bytes, size_of::<UcmDestroyId>())?;
    let room = AnswerRoom::new(command.response, body.out, EVENTS_BYTES)?;
    let is_own = channel.own_ids().destroy(command.id);
    let events_reported = if is_own { 0 } else { channel.channel.destroy_id(command.id).map_err(errno_of)? };
    room.write(&UcmEventsReported { events_reported });
    Ok(())
}

pub(super) fn bind_ip(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmBindIp = read(body.bytes, size_of::<UcmBindIp>())?;
    bind_to(channel, command.id, SocketAddress::of(&command.addr)?)
}

pub(super) fn bind(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmBind = read(body.bytes, size_of::<UcmBind>())?;
    if command.reserved != 0 || command.addr_size == 0 {
        return Err(Errno::INVALID);
    }
    bind_to(channel, command.id, SocketAddress::of_length(&command.addr, command.addr_size)?)
}

fn bind_to(channel: &DeviceChannel, id: u32, address: SocketAddress) -> Result<()> {
    match address {
        SocketAddress::Ip(address) => channel.channel.bind(id, present(address)?).map_err(errno_of),
        SocketAddress::Ib(address) => channel.own_ids().bind(id, address),
    }
}

/// An address that must be there.
fn present(address: CmAddress) -> Result<CmAddress> {
    if address.family == 0 { Err(Errno(libc::EAFNOSUPPORT)) } else { Ok(address) }
}

pub(super) fn resolve_ip(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmResolveIp = read(body.bytes, size_of::<UcmResolveIp>())?;
    let (source, destination) = (SocketAddress::of(&command.src_addr)?, SocketAddress::of(&command.dst_addr)?);
    resolve(channel, command.id, source, destination, command.timeout_ms)
}

pub(super) fn resolve_address(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmResolveAddress = read(body.bytes, size_of::<UcmResolveAddress>())?;
    if command.reserved != 0 || command.dst_size == 0 {
        return Err(Errno::INVALID);
    }
    let source = SocketAddress::of_length(&command.src_addr, command.src_size)?;
    let destination = SocketAddress::of_length(&command.dst_addr, command.dst_size)?;
    resolve(channel, command.id, source, destination, command.timeout_ms)
}

fn resolve(
    channel: &DeviceChannel,
    id: u32,
    source: SocketAddress,
    destination: SocketAddress,
    timeout_ms: u32,
) -> Result<()> {
    let (source, destination) = (source.ip()?, present(destination.ip()?)?);
    channel.channel.resolve_address(id, source, destination, timeout_ms).map_err(errno_of)
}

pub(super) fn resolve_route(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmResolveRoute = read(body.bytes, size_of::<UcmResolveRoute>())?;
    channel.channel.resolve_route(command.id, command.timeout_ms).map_err(errno_of)
}

/// The command is written to the new channel, and names the old one.
pub(super) fn migrate(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmMigrate = read(body.bytes, size_of::<UcmMigrate>())?;
    let room = AnswerRoom::new(command.response, body.out, EVENTS_BYTES)?;
    let Found::Channel(old) = table::find(command.fd.cast_signed()) else { return Err(Errno::INVALID) };
    let events_reported = channel.channel.migrate(&old.channel, command.id).map_err(errno_of)?;
    room.write(&UcmEventsReported { events_reported });
    Ok(())
}

pub(super) fn set_option(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmSetOption = read(body.bytes, size_of::<UcmSetOption>())?;
    let is_datagram = channel.channel.identifier(command.id).map_err(errno_of)?.is_datagram();
    if command.level != LEVEL_ID {
        return Err(Errno(libc::ENOSYS));
    }
    let bytes = match command.optname {
        cm_option::TYPE_OF_SERVICE | cm_option::ACK_TIMEOUT => 1,
        cm_option::REUSE_ADDRESS | cm_option::FAMILY_ONLY => 4,
        _ => return Err(Errno(libc::ENOSYS)),
    };
    if command.optlen != bytes || is_datagram && command.optname == cm_option::ACK_TIMEOUT {
        return Err(Errno::INVALID);
    }
    let value = match bytes {
        1 => option_value::<1>(command.optval)?[0].into(),
        _ => u32::from_ne_bytes(option_value(command.optval)?),
    };
    channel.channel.set_option(command.id, command.optname, value).map_err(errno_of)
}

pub(super) fn join_ip(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmJoinIpGroup = read(body.bytes, size_of::<UcmJoinIpGroup>())?;
    let room = AnswerRoom::new(command.response, body.out, NUMBER_BYTES)?;
    let group = SocketAddress::of(&command.addr)?;
    join_group(channel, command.id, command.uid, group, false).map(|id| room.write(&UcmNumber { id }))
}

pub(super) fn join(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmJoinGroup = read(body.bytes, size_of::<UcmJoinGroup>())?;
    let room = AnswerRoom::new(command.response, body.out, NUMBER_BYTES)?;
    if command.join_flags > SEND_ONLY || command.addr_size == 0 {
        return Err(Errno::INVALID);
    }
    let group = SocketAddress::of_length(&command.addr, command.addr_size)?;
    let is_send_only = command.join_flags == SEND_ONLY;
    join_group(channel, command.id, command.uid, group, is_send_only).map(|id| room.write(&UcmNumber { id }))
}

fn join_group(channel: &DeviceChannel, id: u32, uid: u64, group: SocketAddress, is_send_only: bool) -> Result<u32> {
    let group = present(group.ip()?)?;
    channel.channel.join(id, uid, group, is_send_only).map_err(errno_of)
}

pub(super) fn leave(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmDestroyId = read(body.bytes, size_of::<UcmDestroyId>())?;
    let room = AnswerRoom::new(command.response, body.out, EVENTS_BYTES)?;
    let events_reported = channel.channel.leave(command.id).map_err(errno_of)?;
    room.write(&UcmEventsReported { events_reported });
    Ok(())
}
