//! Events as the device file gives them.

use std::mem::offset_of;

use roced_client::cm::{CmChannelEvent, CmParameters, CmPath, TakenCmEvent, cm_event, cm_service};

use super::{
    address::group_gid,
    body::{AnswerRoom, bytes_of},
    qp_attr::{DATAGRAM_QKEY, ah_attr},
    table::{DeviceChannel, errno_of},
};
use crate::{
    abi::{
        kernel::KernelAhAttr,
        rdma_cm::{DATA_BYTES, EVENT_PARAM_BYTES, UcmConnParam, UcmEce, UcmEventAnswer, UcmUdParam},
    },
    errno::Result,
};

/// The least room for an event: without the options of vendors.
pub(super) const BYTES_MIN: usize = offset_of!(UcmEventAnswer, reserved);

/// Queue pair of a multicast group.
const GROUP_QPN: u32 = 0x00ff_ffff;

/// Hop limit of a group, if its event has none.
const GROUP_HOP_LIMIT: u8 = 64;

/// Bytes of private data in events: always as many as the message of the peer has room for, since
/// no message says how many of them the peer has set.
mod data_bytes {
    pub(super) const REQUEST: u8 = 56;
    pub(super) const DATAGRAM_REQUEST: u8 = 180;
    pub(super) const RESPONSE: u8 = 196;
    pub(super) const DATAGRAM_RESPONSE: u8 = 136;
    pub(super) const REJECTION: u8 = 148;
}

/// A command that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    Done,
    /// No event waits for GET_EVENT, or another thread has taken it.
    Empty,
}

/// Parameters of an event, as bytes of the union.
type EventParameters = [u8; EVENT_PARAM_BYTES];

/// Gives the next event of a channel, if one waits.
pub(super) fn get(channel: &DeviceChannel, room: AnswerRoom) -> Result<Executed> {
    let Some(taken) = channel.channel.take().map_err(errno_of)? else { return Ok(Executed::Empty) };
    room.write(&answer(&taken));
    Ok(Executed::Done)
}

fn answer(taken: &TakenCmEvent) -> UcmEventAnswer {
    let event = &taken.event;
    UcmEventAnswer {
        uid: event.uid,
        id: event.id,
        event: event.kind,
        status: event.status.cast_unsigned(),
        param: parameters(taken),
        reserved: 0,
        ece: UcmEce { vendor_id: 0, attr_mod: 0 },
    }
}

fn parameters(taken: &TakenCmEvent) -> EventParameters {
    let event = &taken.event;
    let is_datagram = taken.service == cm_service::UD;
    match event.kind {
        cm_event::USER | cm_event::INTERNAL => return argument(event),
        cm_event::MULTICAST_JOIN => return of_group(taken),
        cm_event::CONNECT_REQUEST if is_datagram => return datagram(event, 0, 0, data_bytes::DATAGRAM_REQUEST),
        cm_event::ESTABLISHED if is_datagram => {
            let peer = event.parameters;
            return datagram(event, peer.qpn, peer.qkey, data_bytes::DATAGRAM_RESPONSE);
        }
        cm_event::UNREACHABLE if is_datagram && event.status > 0 => {
            return without_address(event, data_bytes::DATAGRAM_RESPONSE);
        }
        cm_event::REJECTED if is_datagram => return without_address(event, data_bytes::DATAGRAM_RESPONSE),
        _ => {}
    }
    match event.kind {
        cm_event::CONNECT_REQUEST => connection(event, data_bytes::REQUEST),
        cm_event::CONNECT_RESPONSE => connection(event, data_bytes::RESPONSE),
        cm_event::REJECTED => rejection(event),
        _ => [0; EVENT_PARAM_BYTES],
    }
}

/// The first bytes of the event's private data, and zeros.
fn private_data(event: &CmChannelEvent, bytes: u8) -> [u8; DATA_BYTES] {
    let mut field = [0; DATA_BYTES];
    let bytes = usize::from(bytes);
    field[..bytes].copy_from_slice(&event.private_data[..bytes]);
    field
}

/// The two words of an event that the program wrote.
fn argument(event: &CmChannelEvent) -> EventParameters {
    let mut parameters = [0; EVENT_PARAM_BYTES];
    parameters[..8].copy_from_slice(&event.private_data[..8]);
    parameters
}

/// Private data alone.
fn rejection(event: &CmChannelEvent) -> EventParameters {
    let mut none = *event;
    none.parameters = CmParameters::default();
    connection(&none, data_bytes::REJECTION)
}

fn connection(event: &CmChannelEvent, bytes: u8) -> EventParameters {
    let of = &event.parameters;
    let conn = UcmConnParam {
        qp_num: of.qpn,
        qkey: of.qkey,
        private_data: private_data(event, bytes),
        private_data_len: bytes,
        srq: of.srq,
        responder_resources: of.responder_resources,
        initiator_depth: of.initiator_depth,
        flow_control: of.flow_control,
        retry_count: of.retry_count,
        rnr_retry_count: of.rnr_retry_count,
        valid: 0,
    };
    bytes_of(&conn)
}

fn datagram(event: &CmChannelEvent, qp_num: u32, qkey: u32, bytes: u8) -> EventParameters {
    let path = &event.route.path;
    let ah_attr = ah_attr(path, path.remote_gid);
    ud(qp_num, qkey, ah_attr, private_data(event, bytes), bytes)
}

fn without_address(event: &CmChannelEvent, bytes: u8) -> EventParameters {
    let mut ah_attr = ah_attr(&CmPath::default(), [0; 16]);
    (ah_attr.is_global, ah_attr.port_num) = (0, 0);
    ud(0, 0, ah_attr, private_data(event, bytes), bytes)
}

fn of_group(taken: &TakenCmEvent) -> EventParameters {
    let path = &taken.event.route.path;
    let dgid = taken.group.map_or(path.remote_gid, |group| group_gid(&group));
    let mut ah_attr = ah_attr(path, dgid);
    if ah_attr.grh.hop_limit == 0 {
        ah_attr.grh.hop_limit = GROUP_HOP_LIMIT;
    }
    let qkey = match taken.event.parameters.qkey {
        0 => DATAGRAM_QKEY,
        qkey => qkey,
    };
    ud(GROUP_QPN, qkey, ah_attr, [0; DATA_BYTES], 0)
}

fn ud(
    qp_num: u32,
    qkey: u32,
    ah_attr: KernelAhAttr,
    private_data: [u8; DATA_BYTES],
    private_data_len: u8,
) -> EventParameters {
    bytes_of(&UcmUdParam { qp_num, qkey, ah_attr, private_data, private_data_len, reserved: [0; 7] })
}
