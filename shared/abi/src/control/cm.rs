//! Bodies of calls about the connection manager, and its events.
//!
//! A session that calls [`OpenCm`](super::OpenCm) in place of [`OpenDevice`](super::OpenDevice) has
//! no device of its own: it has event channels and identifiers (`rdma_cm_id`), which belong to a
//! channel each. Numbers of identifiers are 1 to 65,535. Operations that take time reply at once;
//! an event on the identifier's channel reports the result. A [`Refusal::Cm`](super::Refusal::Cm)
//! names the errno that Linux gives in the same case.

use super::body::bodies;

/// Family of a [`CmAddress`].
pub mod cm_family {
    /// No address.
    pub const NONE: u16 = 0;
    /// IPv4: `AF_INET`.
    pub const IPV4: u16 = 2;
    /// IPv6: `AF_INET6`.
    pub const IPV6: u16 = 10;
}

/// Port spaces, with the numbers of rdma_cm (`rdma_port_space`).
pub mod cm_port_space {
    /// IP over InfiniBand: datagrams.
    pub const IPOIB: u32 = 0x0002;
    /// Connections.
    pub const TCP: u32 = 0x0106;
    /// Datagrams.
    pub const UDP: u32 = 0x0111;
}

/// Services of a queue pair, with the numbers of verbs (`ibv_qp_type`).
pub mod cm_service {
    /// Reliable connection.
    pub const RC: u32 = 2;
    /// Unreliable connection.
    pub const UC: u32 = 3;
    /// Datagrams.
    pub const UD: u32 = 4;
}

/// Options of an identifier, with the numbers of rdma_cm (`RDMA_OPTION_ID_*`).
pub mod cm_option {
    /// Traffic class of the path.
    pub const TYPE_OF_SERVICE: u32 = 0;
    /// Share the port with other identifiers.
    pub const REUSE_ADDRESS: u32 = 1;
    /// IPv6 alone, not IPv4 as well.
    pub const FAMILY_ONLY: u32 = 2;
    /// ACK timeout of the queue pair: exponent.
    pub const ACK_TIMEOUT: u32 = 3;
}

/// Events, with the numbers of rdma_cm (`rdma_cm_event_type`).
pub mod cm_event {
    /// The destination and its device are known.
    pub const ADDRESS_RESOLVED: u32 = 0;
    /// They are not; the status is a negative errno.
    pub const ADDRESS_ERROR: u32 = 1;
    /// The path is known.
    pub const ROUTE_RESOLVED: u32 = 2;
    /// It is not; the status is a negative errno.
    pub const ROUTE_ERROR: u32 = 3;
    /// A peer asks a listener for a connection; `id` is a new identifier.
    pub const CONNECT_REQUEST: u32 = 4;
    /// The peer accepted: connect the queue pair, then confirm.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// The connection failed; the status is a negative errno.
    pub const CONNECT_ERROR: u32 = 6;
    /// The peer does not answer (negative errno), or has no such service (status of a SIDR_REP).
    pub const UNREACHABLE: u32 = 7;
    /// The peer refused; the status is the reason.
    pub const REJECTED: u32 = 8;
    /// The connection is established.
    pub const ESTABLISHED: u32 = 9;
    /// The connection is over.
    pub const DISCONNECTED: u32 = 10;
    /// The device is gone.
    pub const DEVICE_REMOVAL: u32 = 11;
    /// The multicast group is joined; `id` is the number of the membership.
    pub const MULTICAST_JOIN: u32 = 12;
    /// It is not; the status is a negative errno.
    pub const MULTICAST_ERROR: u32 = 13;
    /// Packets of the connection are no longer under way.
    pub const TIMEWAIT_EXIT: u32 = 15;
    /// Of the program itself ([`WriteCmEvent`](super::super::WriteCmEvent)).
    pub const USER: u32 = 18;
    /// Of librdmacm itself.
    pub const INTERNAL: u32 = 19;
}

/// [`CmPath::device`] of an identifier that is not bound to a device.
pub const CM_NO_DEVICE: u32 = u32::MAX;

/// Longest private data of a [`ConnectCmRequest`]: 180 of datagram services, 56 of connections.
pub const CM_CONNECT_DATA_BYTES: usize = 180;
/// Longest private data of an [`AcceptCmRequest`]: 196 of connections, 136 of datagram services.
pub const CM_ACCEPT_DATA_BYTES: usize = 196;
/// Longest private data of a [`RejectCmRequest`]: 148 of connections, 136 of datagram services.
pub const CM_REJECT_DATA_BYTES: usize = 148;

bodies! {
    /// An IP address and a port.
    CmAddress {
        /// In network byte order; IPv4 in the first four bytes, then zeros.
        address: [u8; 16],
        /// Interface of a link-local IPv6 address, else 0.
        scope: u32,
        /// [`cm_family`].
        family: u16,
        /// Port, in the byte order of the machine.
        port: u16,
    }
    /// An identifier to create.
    CreateCmIdRequest {
        /// The client's own number: in every event of the identifier.
        uid: u64,
        /// Channel of its events.
        channel: u32,
        /// [`cm_port_space`].
        port_space: u32,
        /// [`cm_service`].
        service: u32,
        /// Zero.
        reserved: u32,
    }
    /// An identifier, or a membership of a multicast group, to destroy.
    DestroyCmIdRequest {
        /// Sequence number of the identifier's last event that the client has taken, or 0. Requests
        /// of peers in later events are refused.
        taken: u64,
        /// Identifier or membership.
        id: u32,
        /// Zero.
        reserved: u32,
    }
    /// The address to bind an identifier to.
    BindCmRequest {
        /// Address; port 0 is a free one.
        address: CmAddress,
        /// Identifier.
        id: u32,
    }
    /// The destination to resolve.
    ResolveCmAddressRequest {
        /// Address of this host; family 0 leaves the choice to the route. Not looked at if the
        /// identifier is bound.
        source: CmAddress,
        /// Address of the peer.
        destination: CmAddress,
        /// Identifier.
        id: u32,
        /// Time for the neighbor to answer, ms.
        timeout_ms: u32,
    }
    /// The route to resolve.
    ResolveCmRouteRequest {
        /// Identifier.
        id: u32,
        /// Not 0.
        timeout_ms: u32,
    }
    /// A listener.
    ListenCmRequest {
        /// Identifier; bound to the IPv4 address 0.0.0.0 and a free port if it is not bound.
        id: u32,
        /// Requests that the program has not received, at most; 0 and more than 1,024 are 1,024.
        backlog: u32,
    }
    /// The path of an identifier.
    CmPath {
        /// Node GUID of the device, in wire order; zeros if there is no device.
        node_guid: [u8; 8],
        /// GID of this end.
        local_gid: [u8; 16],
        /// GID of the other end; zeros before it is known.
        remote_gid: [u8; 16],
        /// Index of the device in [`ListDevice`](super::ListDevice), or [`CM_NO_DEVICE`].
        device: u32,
        /// Index of the local GID.
        gid_index: u32,
        /// 0 before the route is resolved.
        mtu_bytes: u32,
        /// 20 bits.
        flow_label: u32,
        /// Partition.
        pkey: u16,
        /// Traffic class of the frames.
        traffic_class: u8,
        /// Hop limit of the frames.
        hop_limit: u8,
        /// Service level.
        service_level: u8,
        /// Exponent.
        packet_life_time: u8,
        /// Rate in the code of IBTA; 0 is that of the port.
        rate: u8,
        /// 1 if the route is resolved.
        is_resolved: u8,
    }
    /// Addresses of an identifier.
    CmRoute {
        /// Of this end.
        source: CmAddress,
        /// Of the other end; family 0 before it is known.
        destination: CmAddress,
        /// Device and path.
        path: CmPath,
    }
    /// Properties of one end of a connection.
    CmParameters {
        /// Queue pair.
        qpn: u32,
        /// Q_Key, of datagram services.
        qkey: u32,
        /// READ and atomic requests executed at a time.
        responder_resources: u8,
        /// READ and atomic requests issued at a time.
        initiator_depth: u8,
        /// Not 0: end-to-end credits.
        flow_control: u8,
        /// Retries of the queue pair, at most 7.
        retry_count: u8,
        /// Retries after RNR NAKs, at most 7.
        rnr_retry_count: u8,
        /// Not 0: receives come from a shared receive queue.
        srq: u8,
        /// Bytes of the private data.
        private_data_bytes: u8,
        /// Zero.
        reserved: u8,
    }
    /// The connection, or the datagram service, to ask for.
    ConnectCmRequest {
        /// Identifier.
        id: u32,
        /// Properties of this end.
        parameters: CmParameters,
        /// Private data, then zeros.
        private_data: [u8; CM_CONNECT_DATA_BYTES],
    }
    /// A connection, or the queue pair of a datagram service, to accept.
    AcceptCmRequest {
        /// The identifier's [`CreateCmIdRequest::uid`], from now on.
        uid: u64,
        /// Identifier, of a [`cm_event::CONNECT_REQUEST`].
        id: u32,
        /// Properties of this end.
        parameters: CmParameters,
        /// Private data, then zeros.
        private_data: [u8; CM_ACCEPT_DATA_BYTES],
    }
    /// A connection to refuse.
    RejectCmRequest {
        /// Identifier.
        id: u32,
        /// Reason: 0 and 28 are the program's own, 35 is a vendor option.
        reason: u32,
        /// Bytes of the private data.
        private_data_bytes: u32,
        /// Private data, then zeros.
        private_data: [u8; CM_REJECT_DATA_BYTES],
    }
    /// A multicast group to join.
    JoinCmGroupRequest {
        /// As that of an identifier, in the events of the membership.
        uid: u64,
        /// Group; the port does not count.
        group: CmAddress,
        /// Identifier.
        id: u32,
        /// Not 0: only send to it.
        send_only: u32,
    }
    /// Another channel for an identifier.
    MigrateCmRequest {
        /// Sequence number of the identifier's last event that the client has taken, or 0. Later
        /// ones are sent again on the new channel, with new sequence numbers.
        taken: u64,
        /// Identifier.
        id: u32,
        /// The new channel.
        channel: u32,
    }
    /// An identifier has moved.
    MigrateCmReply {
        /// Its events up to this sequence number are stale, on each channel and for good.
        stale: u64,
    }
    /// An option to set.
    SetCmOptionRequest {
        /// Identifier.
        id: u32,
        /// [`cm_option`].
        option: u32,
        /// Its value.
        value: u32,
    }
    /// An event of the program for itself.
    WriteCmEventRequest {
        /// Comes back in the first eight bytes of the event's private data.
        argument: u64,
        /// Identifier.
        id: u32,
        /// [`cm_event::USER`] or [`cm_event::INTERNAL`].
        kind: u32,
        /// Status of the event.
        status: u32,
        /// Zero.
        reserved: u32,
    }
    /// An event: one message of the channel's socket.
    CmChannelEvent {
        /// Of the session, counting from 1.
        sequence: u64,
        /// The identifier's, when the event happened; the listener's of a
        /// [`cm_event::CONNECT_REQUEST`], the membership's of a [`cm_event::MULTICAST_JOIN`].
        uid: u64,
        /// Identifier that the event is about: the new one of a [`cm_event::CONNECT_REQUEST`], the
        /// membership of a [`cm_event::MULTICAST_JOIN`].
        id: u32,
        /// Identifier that the event belongs to: the listener of a [`cm_event::CONNECT_REQUEST`],
        /// the identifier that joined of a [`cm_event::MULTICAST_JOIN`], else `id`.
        owner: u32,
        /// [`cm_event`].
        kind: u32,
        /// 0, a negative errno, or the peer's reason.
        status: i32,
        /// Addresses of the identifier now.
        route: CmRoute,
        /// Properties of the peer. Depths are as this end uses them: responder resources are the
        /// peer's initiator depth, and the other way round.
        parameters: CmParameters,
        /// PSN that this end's queue pair expects first.
        starting_psn: u32,
        /// PSN that the peer's queue pair expects first.
        remote_starting_psn: u32,
        /// ACK timeout of this end's queue pair: exponent.
        ack_timeout: u32,
        /// Zero.
        reserved: u32,
        /// Private data, then zeros; all bytes of the message are the peer's.
        private_data: [u8; 200],
    }
}

const _: () = assert!(size_of::<CmChannelEvent>() <= 512);
