//! Commands about connections.

use std::mem::offset_of;

use roced_client::cm::{CmParameters, cm_event};

use super::{
    body::{Body, read},
    table::{DeviceChannel, errno_of},
};
use crate::{
    abi::rdma_cm::{
        UcmAccept, UcmConnParam, UcmConnect, UcmDisconnect, UcmListen, UcmNotify, UcmReject, UcmWriteEvent,
    },
    errno::{Errno, Result},
};

/// `IBV_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: u32 = 4;

pub(super) fn listen(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmListen = read(body.bytes, size_of::<UcmListen>())?;
    // A number with a sign: without limit if it is negative.
    let backlog = u32::try_from(command.backlog.cast_signed()).unwrap_or(0);
    channel.channel.listen(command.id, backlog).map_err(errno_of)
}

pub(super) fn connect(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    // Older callers end before the options of vendors.
    let command: UcmConnect = read(body.bytes, offset_of!(UcmConnect, ece))?;
    if command.conn_param.valid == 0 {
        return Err(Errno::INVALID);
    }
    need_device(channel, command.id)?;
    let (parameters, private_data) = of_parameters(&command.conn_param);
    channel.channel.connect(command.id, parameters, private_data).map_err(errno_of)
}

/// With parameters the acceptance of a request, without them the confirmation of the peer's
/// response.
pub(super) fn accept(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmAccept = read(body.bytes, offset_of!(UcmAccept, ece))?;
    need_device(channel, command.id)?;
    if command.conn_param.valid == 0 {
        return channel.channel.confirm(command.id).map_err(errno_of);
    }
    let (parameters, private_data) = of_parameters(&command.conn_param);
    channel.channel.accept(command.id, command.uid, parameters, private_data).map_err(errno_of)
}

pub(super) fn reject(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmReject = read(body.bytes, size_of::<UcmReject>())?;
    need_device(channel, command.id)?;
    let private_data = &command.private_data[..command.private_data_len.into()];
    channel.channel.reject(command.id, command.reason.into(), private_data).map_err(errno_of)
}

pub(super) fn disconnect(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmDisconnect = read(body.bytes, size_of::<UcmDisconnect>())?;
    need_device(channel, command.id)?;
    channel.channel.disconnect(command.id).map_err(errno_of)
}

pub(super) fn notify(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmNotify = read(body.bytes, size_of::<UcmNotify>())?;
    if command.event != COMMUNICATION_ESTABLISHED {
        return Err(Errno::INVALID);
    }
    channel.channel.establish(command.id).map_err(errno_of)
}

pub(super) fn write_event(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmWriteEvent = read(body.bytes, size_of::<UcmWriteEvent>())?;
    if !matches!(command.event, cm_event::USER | cm_event::INTERNAL) {
        return Err(Errno::INVALID);
    }
    channel.channel.write_event(command.id, command.event, command.status, command.argument).map_err(errno_of)
}

fn need_device(channel: &DeviceChannel, id: u32) -> Result<()> {
    let identifier = channel.channel.identifier(id).map_err(errno_of)?;
    if identifier.has_device() { Ok(()) } else { Err(Errno::INVALID) }
}

fn of_parameters(of: &UcmConnParam) -> (CmParameters, &[u8]) {
    let parameters = CmParameters {
        qpn: of.qp_num,
        qkey: of.qkey,
        responder_resources: of.responder_resources,
        initiator_depth: of.initiator_depth,
        flow_control: of.flow_control,
        retry_count: of.retry_count.min(7),
        rnr_retry_count: of.rnr_retry_count.min(7),
        srq: of.srq,
        ..CmParameters::default()
    };
    // At most 255 bytes of 256.
    (parameters, &of.private_data[..of.private_data_len.into()])
}
