//! Queries of an identifier: addresses, GIDs and path.

use std::mem::offset_of;

use roced_client::{
    cm::{CmIdentifier, CmPath},
    mtu_code,
};

use super::{
    address::{IB_BYTES, write_ib, write_ip},
    body::{AnswerRoom, Body, read},
    table::{DeviceChannel, errno_of},
};
use crate::{
    abi::{
        kernel::KernelPathRec,
        rdma_cm::{UcmQuery, UcmQueryAddressAnswer, UcmQueryPathAnswer, UcmQueryRouteAnswer},
    },
    errno::{Errno, Result},
    query::PORT,
};

/// Kinds of queries.
mod option {
    pub(super) const ADDRESSES: u32 = 0;
    pub(super) const PATHS: u32 = 1;
    pub(super) const GIDS: u32 = 2;
}

/// Index of the device: none, as `ibv_get_device_index` says. librdmacm compares GUIDs instead.
const NO_INDEX: u32 = u32::MAX;

/// A path record's selector for an exact value.
const EXACTLY: u8 = 2;

/// Flags of a path: for messages and datagrams, the first one, to the peer and back.
const PATH_FLAGS: u32 = 0x2b;

/// Bytes of a path in the answer (`struct ibv_path_data`).
const PATH_BYTES: usize = 72;

pub(super) fn query(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmQuery = read(body.bytes, size_of::<UcmQuery>())?;
    let least = match command.option {
        option::PATHS => size_of::<UcmQueryPathAnswer>(),
        option::ADDRESSES | option::GIDS => offset_of!(UcmQueryAddressAnswer, ibdev_index),
        _ => return Err(Errno(libc::ENOSYS)),
    };
    let room = AnswerRoom::new(command.response, body.out, least)?;
    let own = channel.own_ids().address(command.id).copied();
    if let Some(address) = own {
        answer_own(&address, command.option, room);
        return Ok(());
    }
    let identifier = channel.channel.identifier(command.id).map_err(errno_of)?;
    match command.option {
        option::PATHS => answer_paths(&identifier, room),
        option::ADDRESSES => room.write(&addresses(&identifier)),
        _ => room.write(&gids(&identifier)),
    }
    Ok(())
}

pub(super) fn route(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmQuery = read(body.bytes, size_of::<UcmQuery>())?;
    let room = AnswerRoom::new(command.response, body.out, offset_of!(UcmQueryRouteAnswer, ibdev_index))?;
    let identifier = channel.channel.identifier(command.id).map_err(errno_of)?;
    let path = &identifier.route.path;
    let mut answer = UcmQueryRouteAnswer {
        node_guid: node_guid(&identifier),
        ib_route: [path_record(path), path_record(&CmPath::default())],
        src_addr: [0; 28],
        dst_addr: [0; 28],
        num_paths: path.is_resolved.into(),
        port_num: port(&identifier),
        reserved: [0; 3],
        ibdev_index: NO_INDEX,
        reserved1: 0,
    };
    write_ip(&identifier.route.source, &mut answer.src_addr);
    write_ip(&identifier.route.destination, &mut answer.dst_addr);
    room.write(&answer);
    Ok(())
}

/// An identifier of `AF_IB` has the address that it was bound to, no peer and no device.
fn answer_own(address: &[u8; IB_BYTES], option: u32, room: AnswerRoom) {
    if option == option::PATHS {
        return room.write(&UcmQueryPathAnswer { num_paths: 0, reserved: 0 });
    }
    let mut answer = empty();
    answer.src_addr[..IB_BYTES].copy_from_slice(address);
    answer.src_size = IB_BYTES as u16;
    room.write(&answer);
}

fn empty() -> UcmQueryAddressAnswer {
    UcmQueryAddressAnswer {
        node_guid: 0,
        port_num: 0,
        reserved: 0,
        pkey: 0,
        src_size: 0,
        dst_size: 0,
        src_addr: [0; 128],
        dst_addr: [0; 128],
        ibdev_index: NO_INDEX,
        reserved1: 0,
    }
}

fn with_device(identifier: &CmIdentifier) -> UcmQueryAddressAnswer {
    let pkey = if identifier.has_device() { identifier.route.path.pkey.to_be() } else { 0 };
    UcmQueryAddressAnswer { node_guid: node_guid(identifier), port_num: port(identifier), pkey, ..empty() }
}

fn addresses(identifier: &CmIdentifier) -> UcmQueryAddressAnswer {
    let mut answer = with_device(identifier);
    answer.src_size = write_ip(&identifier.route.source, &mut answer.src_addr);
    answer.dst_size = write_ip(&identifier.route.destination, &mut answer.dst_addr);
    answer
}

fn gids(identifier: &CmIdentifier) -> UcmQueryAddressAnswer {
    let (mut answer, route) = (with_device(identifier), &identifier.route);
    let service = |port: u16| u64::from(identifier.port_space) << 16 | u64::from(port);
    let (here, there) = (service(route.source.port), service(route.destination.port));
    answer.src_size = write_ib(&route.path.local_gid, route.path.pkey, here, &mut answer.src_addr);
    answer.dst_size = write_ib(&route.path.remote_gid, route.path.pkey, there, &mut answer.dst_addr);
    answer
}

fn answer_paths(identifier: &CmIdentifier, room: AnswerRoom) {
    const HEAD_BYTES: usize = size_of::<UcmQueryPathAnswer>();
    let path = &identifier.route.path;
    let mut answer = [0; HEAD_BYTES + PATH_BYTES];
    let fits = room.bytes() >= answer.len();
    if path.is_resolved == 0 {
        return room.write_all(&answer[..HEAD_BYTES]);
    }
    answer[..4].copy_from_slice(&1u32.to_ne_bytes());
    answer[HEAD_BYTES..].copy_from_slice(&path_data(path));
    room.write_all(if fits { &answer } else { &answer[..HEAD_BYTES] });
}

/// A path as `struct ibv_path_data`.
fn path_data(path: &CmPath) -> [u8; PATH_BYTES] {
    let mut data = [0; PATH_BYTES];
    data[..4].copy_from_slice(&PATH_FLAGS.to_ne_bytes());
    let record = &mut data[8..];
    record[8..24].copy_from_slice(&path.remote_gid);
    record[24..40].copy_from_slice(&path.local_gid);
    let flow_and_hops = (path.flow_label & 0xf_ffff) << 8 | u32::from(path.hop_limit);
    record[44..48].copy_from_slice(&flow_and_hops.to_be_bytes());
    record[48] = path.traffic_class;
    // Reversible, one path.
    record[49] = 0x80 | 1;
    record[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    record[52..54].copy_from_slice(&u16::from(path.service_level & 0xf).to_be_bytes());
    let exactly = |value: u8| EXACTLY << 6 | value & 0x3f;
    record[54] = exactly(mtu_code(path.mtu_bytes));
    record[55] = exactly(path.rate);
    record[56] = exactly(path.packet_life_time);
    data
}

fn path_record(path: &CmPath) -> KernelPathRec {
    let is_resolved = path.is_resolved != 0;
    let selector = if is_resolved { EXACTLY } else { 0 };
    KernelPathRec {
        dgid: path.remote_gid,
        sgid: path.local_gid,
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        reversible: is_resolved.into(),
        mtu: mtu_code(path.mtu_bytes).into(),
        pkey: path.pkey.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: is_resolved.into(),
        sl: path.service_level,
        mtu_selector: selector,
        rate_selector: selector,
        rate: path.rate,
        packet_life_time_selector: selector,
        packet_life_time: path.packet_life_time,
        preference: 0,
    }
}

fn node_guid(identifier: &CmIdentifier) -> u64 {
    if identifier.has_device() { u64::from_ne_bytes(identifier.route.path.node_guid) } else { 0 }
}

fn port(identifier: &CmIdentifier) -> u8 {
    if identifier.has_device() { PORT } else { 0 }
}
