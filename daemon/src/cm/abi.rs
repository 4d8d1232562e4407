//! Identifiers, addresses and events as the client ABI has them.

use std::net::SocketAddr;

use roced_abi::control::{
    CM_NO_DEVICE, CmAddress, CmChannelEvent, CmParameters, CmPath, CmRoute, cm_event, cm_option, cm_port_space,
    cm_service,
};
use roced_cm::{
    identifiers::{CmErrno, EventKind, IdEvent, IdOption, IdRoute, IdService, Parameters},
    wire::PortSpace,
};
use roced_types::{Qpn, gid_of};
use zerocopy::FromZeros;

use super::CmDevice;

/// The default partition.
const PKEY: u16 = 0xffff;

/// The address of a call; `None` if it has none.
///
/// # Errors
/// [`CmErrno::Family`].
pub(super) fn address(of: &CmAddress) -> Result<Option<SocketAddr>, CmErrno> {
    of.socket_address().map_err(|_| CmErrno::Family)
}

fn cm_address(of: Option<SocketAddr>) -> CmAddress {
    of.map_or_else(CmAddress::default, CmAddress::from)
}

/// Addresses of an identifier, as its client knows them.
pub(super) fn cm_route(route: &IdRoute, devices: &[CmDevice]) -> CmRoute {
    let mut path = CmPath { device: CM_NO_DEVICE, ..CmPath::new_zeroed() };
    if let Some(device) = route.device {
        path.node_guid = device.adapter.0.to_be_bytes();
        path.local_gid = gid_of(device.address);
        path.remote_gid = route.destination.map_or([0; 16], |address| gid_of(address.ip()));
        let at = devices.iter().position(|candidate| candidate.id == device.device);
        path.device = at.map_or(CM_NO_DEVICE, |at| at as u32);
        path.gid_index = device.gid_index;
        path.pkey = PKEY;
    }
    if let Some(known) = route.path {
        path.mtu_bytes = known.mtu_bytes;
        path.flow_label = known.flow_label;
        path.traffic_class = known.traffic_class;
        path.hop_limit = known.hop_limit;
        path.service_level = known.service_level;
        path.packet_life_time = known.packet_life_time;
        path.rate = known.rate;
        path.is_resolved = 1;
    }
    CmRoute { source: cm_address(route.source), destination: cm_address(route.destination), path }
}

/// The message of an event.
pub(super) fn event_message(event: &IdEvent, sequence: u64, devices: &[CmDevice]) -> CmChannelEvent {
    let mut message = CmChannelEvent {
        sequence,
        uid: event.uid,
        id: event.key.number,
        owner: event.owner.number,
        kind: kind(event.kind),
        status: event.status,
        route: cm_route(&event.route, devices),
        parameters: cm_parameters(&event.parameters, event.private_data_bytes),
        starting_psn: event.starting_psn,
        remote_starting_psn: event.remote_starting_psn,
        ack_timeout: event.ack_timeout.into(),
        ..CmChannelEvent::new_zeroed()
    };
    message.private_data[..event.private_data.len()].copy_from_slice(&event.private_data);
    message
}

const fn kind(of: EventKind) -> u32 {
    match of {
        EventKind::AddressResolved => cm_event::ADDRESS_RESOLVED,
        EventKind::AddressError => cm_event::ADDRESS_ERROR,
        EventKind::RouteResolved => cm_event::ROUTE_RESOLVED,
        EventKind::ConnectRequest => cm_event::CONNECT_REQUEST,
        EventKind::ConnectResponse => cm_event::CONNECT_RESPONSE,
        EventKind::Unreachable => cm_event::UNREACHABLE,
        EventKind::Rejected => cm_event::REJECTED,
        EventKind::Established => cm_event::ESTABLISHED,
        EventKind::Disconnected => cm_event::DISCONNECTED,
        EventKind::DeviceRemoval => cm_event::DEVICE_REMOVAL,
        EventKind::MulticastJoin => cm_event::MULTICAST_JOIN,
        EventKind::MulticastError => cm_event::MULTICAST_ERROR,
        EventKind::TimeWaitExit => cm_event::TIMEWAIT_EXIT,
        EventKind::Written(number) => number,
    }
}

fn cm_parameters(of: &Parameters, private_data_bytes: u8) -> CmParameters {
    CmParameters {
        qpn: of.qpn.get(),
        qkey: of.qkey,
        responder_resources: of.responder_resources,
        initiator_depth: of.initiator_depth,
        flow_control: of.flow_control.into(),
        retry_count: of.retry_count,
        rnr_retry_count: of.rnr_retry_count,
        srq: of.srq.into(),
        private_data_bytes,
        reserved: 0,
    }
}

/// Properties of a program's end.
///
/// # Errors
/// [`CmErrno::Invalid`] if the queue pair number has more than 24 bits.
pub(super) const fn parameters(of: &CmParameters) -> Result<Parameters, CmErrno> {
    if of.qpn >> 24 != 0 {
        return Err(CmErrno::Invalid);
    }
    Ok(Parameters {
        qpn: Qpn::from_wire(of.qpn),
        qkey: of.qkey,
        responder_resources: of.responder_resources,
        initiator_depth: of.initiator_depth,
        flow_control: of.flow_control != 0,
        retry_count: of.retry_count,
        rnr_retry_count: of.rnr_retry_count,
        srq: of.srq != 0,
    })
}

/// Port space and service of a new identifier.
///
/// # Errors
/// [`CmErrno::Invalid`].
pub(super) const fn service(port_space: u32, service: u32) -> Result<(PortSpace, IdService), CmErrno> {
    Ok(match (port_space, service) {
        (cm_port_space::TCP, cm_service::RC) => (PortSpace::Tcp, IdService::Reliable),
        (cm_port_space::TCP, cm_service::UC) => (PortSpace::Tcp, IdService::Unreliable),
        (cm_port_space::UDP, cm_service::UD) => (PortSpace::Udp, IdService::Datagram),
        (cm_port_space::IPOIB, cm_service::UD) => (PortSpace::Ipoib, IdService::Datagram),
        _ => return Err(CmErrno::Invalid),
    })
}

/// An option of an identifier.
///
/// # Errors
/// [`CmErrno::NotImplemented`], [`CmErrno::Invalid`].
pub(super) fn option(number: u32, value: u32) -> Result<IdOption, CmErrno> {
    let byte = u8::try_from(value).map_err(|_| CmErrno::Invalid);
    Ok(match number {
        cm_option::TYPE_OF_SERVICE => IdOption::TypeOfService(byte?),
        cm_option::REUSE_ADDRESS => IdOption::ReuseAddress(value != 0),
        cm_option::FAMILY_ONLY => IdOption::FamilyOnly(value != 0),
        cm_option::ACK_TIMEOUT => IdOption::AckTimeout(byte?),
        _ => return Err(CmErrno::NotImplemented),
    })
}
