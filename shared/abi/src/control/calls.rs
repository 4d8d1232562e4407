//! Every call: its number, request and reply.

use roced_types::QpAttributes;

use super::{
    AcceptCmRequest, AllocMwReply, AllocMwRequest, BODY_BYTES, BindCmRequest, Call, CmRoute, ConnectCmRequest,
    CreateAhRequest, CreateCmIdRequest, CreateCqReply, CreateCqRequest, CreateQpReply, CreateQpRequest, CreateSrqReply,
    CreateSrqRequest, DestroyCmIdRequest, DeviceAttributes, DeviceName, GidEntry, Handle, HelloReply, HelloRequest,
    Index, JoinCmGroupRequest, ListenCmRequest, MapAndRegMrReply, MapAndRegMrRequest, MapMemoryRequest, MemoryRequest,
    MigrateCmReply, MigrateCmRequest, ModifyQpRequest, ModifySrqRequest, MulticastRequest, Nothing, OpenDeviceReply,
    PortAttributes, QpStatistics, RegMrReply, RegMrRequest, RejectCmRequest, ReregMrRequest, ResizeCqRequest,
    ResolveCmAddressRequest, ResolveCmRouteRequest, SetCmOptionRequest, SrqAttributes, WriteCmEventRequest,
};

macro_rules! calls {
    ($($(#[$doc:meta])* $op:literal $name:ident($request:ty) -> $reply:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            impl Call for $name {
                const OP: u32 = $op;
                type Request = $request;
                type Reply = $reply;
            }

            const _: () = assert!(size_of::<$request>() <= BODY_BYTES && size_of::<$reply>() <= BODY_BYTES);
        )*

        /// Name of a call, for logs.
        pub const fn call_name(op: u32) -> &'static str {
            match op {
                $($op => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

calls! {
    /// Handshake: each side states its version.
    1 Hello(HelloRequest) -> HelloReply;
    /// Name of the device with this index, in the order of the config.
    2 ListDevice(Index) -> DeviceName;
    /// Opens a device. Descriptors with the reply: session memfd, state memfd, then one wake eventfd
    /// for each worker of the device.
    3 OpenDevice(DeviceName) -> OpenDeviceReply;
    /// Returns the capabilities of the device.
    4 QueryDevice(Nothing) -> DeviceAttributes;
    /// Returns the attributes of the port.
    5 QueryPort(Nothing) -> PortAttributes;
    /// Returns the entry of the GID table with this index.
    6 QueryGid(Index) -> GidEntry;
    /// Allocates a protection domain.
    10 AllocPd(Nothing) -> Handle;
    /// Deallocates a protection domain that nothing uses.
    11 DeallocPd(Handle) -> Nothing;
    /// Allocates memory for both sides to map. Descriptor with the reply: its memfd, sealed against
    /// resizing.
    12 AllocMemory(MemoryRequest) -> Handle;
    /// Frees memory that contains no region. The client may keep its own mapping.
    13 FreeMemory(Handle) -> Nothing;
    /// Registers a part of such memory. The client has populated its pages.
    14 RegMr(RegMrRequest) -> RegMrReply;
    /// Ends a registration to which no memory window is bound. After the reply the daemon does not
    /// access the range.
    15 DeregMr(Handle) -> Nothing;
    /// Allocates a memory window, unbound.
    16 AllocMw(AllocMwRequest) -> AllocMwReply;
    /// Deallocates a memory window, bound or not. After the reply its key is invalid.
    17 DeallocMw(Handle) -> Nothing;
    /// Changes a registration to which no memory window is bound; its keys stay the same.
    /// Operations in flight on it may fail.
    18 ReregMr(ReregMrRequest) -> Nothing;
    /// Maps a part of a file of the client. Descriptor with the request: a tmpfs file or memfd,
    /// opened with the requested access; by the daemon's config it must be sealed against shrinking
    /// and holes. The result is memory like that of [`AllocMemory`]; the client has populated its
    /// pages. With [`origin::PROXIED`](super::origin::PROXIED) nothing is mapped, and atomic
    /// operations of peers are atomic among peers alone.
    19 MapMemory(MapMemoryRequest) -> Handle;
    /// Creates a completion channel. Descriptor with the reply: the client's end of a socket pair;
    /// each event is one [`ChannelEvent`](super::ChannelEvent).
    20 CreateChannel(Nothing) -> Handle;
    /// Destroys a completion channel that no completion queue uses.
    21 DestroyChannel(Handle) -> Nothing;
    /// Creates a completion queue. Descriptor with the reply: its memfd (see
    /// [`CqLayout`](crate::layout::CqLayout)).
    22 CreateCq(CreateCqRequest) -> CreateCqReply;
    /// Destroys a completion queue that no queue pair uses.
    23 DestroyCq(Handle) -> Nothing;
    /// Replaces the rings of a completion queue. Descriptor with the reply: their memfd. After the
    /// reply no completion arrives in the old rings; completions in them are older than those in the
    /// new ones. The arm word stays in the first memfd.
    24 ResizeCq(ResizeCqRequest) -> CreateCqReply;
    /// Creates a queue pair in state RESET. Descriptor with the reply: its memfd (see
    /// [`QpLayout`](crate::layout::QpLayout)).
    30 CreateQp(CreateQpRequest) -> CreateQpReply;
    /// Changes the state or attributes of a queue pair.
    31 ModifyQp(ModifyQpRequest) -> Nothing;
    /// Returns the state and attributes of a queue pair.
    32 QueryQp(Handle) -> QpAttributes;
    /// Destroys a queue pair. After the reply it adds no completions.
    33 DestroyQp(Handle) -> Nothing;
    /// Returns the statistics of a queue pair.
    34 QueryQpStatistics(Handle) -> QpStatistics;
    /// Creates an address handle, which names the destination of datagrams.
    40 CreateAh(CreateAhRequest) -> Handle;
    /// Destroys an address handle. Sends that still use it fail.
    41 DestroyAh(Handle) -> Nothing;
    /// Attaches a datagram queue pair to a multicast group: after the reply it receives messages to
    /// the group. Attaching it again has no effect.
    42 AttachMulticast(MulticastRequest) -> Nothing;
    /// Detaches a queue pair from a multicast group; so does destroying it.
    43 DetachMulticast(MulticastRequest) -> Nothing;
    /// Creates a shared receive queue. Descriptor with the reply: its memfd (see
    /// [`SrqLayout`](crate::layout::SrqLayout)).
    50 CreateSrq(CreateSrqRequest) -> CreateSrqReply;
    /// Arms or disarms the limit of a shared receive queue.
    51 ModifySrq(ModifySrqRequest) -> Nothing;
    /// Returns the attributes of a shared receive queue.
    52 QuerySrq(Handle) -> SrqAttributes;
    /// Destroys a shared receive queue that no queue pair uses; its work completes nothing.
    53 DestroySrq(Handle) -> Nothing;
    /// [`MapMemory`] and [`RegMr`] in one call, with the descriptor of the first. On error neither
    /// has happened.
    60 MapAndRegMr(MapAndRegMrRequest) -> MapAndRegMrReply;
    /// [`DeregMr`], and [`FreeMemory`] if no other region lies in the memory.
    61 DeregMrAndFree(Handle) -> Nothing;
    /// Opens the connection manager in place of a device.
    70 OpenCm(Nothing) -> Nothing;
    /// Creates an event channel. Descriptor with the reply: the client's end of a socket pair; each
    /// event is one [`CmChannelEvent`](super::CmChannelEvent).
    71 CreateCmChannel(Nothing) -> Handle;
    /// Destroys an event channel and the identifiers that belong to it.
    72 DestroyCmChannel(Handle) -> Nothing;
    /// Creates an identifier.
    73 CreateCmId(CreateCmIdRequest) -> Handle;
    /// Destroys an identifier, or leaves a multicast group if the number is of a membership. After
    /// the reply no event of it is sent; a listener's requests that the client has not taken are
    /// refused.
    74 DestroyCmId(DestroyCmIdRequest) -> Nothing;
    /// Binds an identifier to an address of this host.
    75 BindCm(BindCmRequest) -> CmRoute;
    /// Finds the device and the neighbor that lead to a destination; an event says so.
    76 ResolveCmAddress(ResolveCmAddressRequest) -> CmRoute;
    /// Fills in the path; an event says so.
    77 ResolveCmRoute(ResolveCmRouteRequest) -> CmRoute;
    /// Listens.
    78 ListenCm(ListenCmRequest) -> CmRoute;
    /// Asks the peer for a connection, or for the queue pair of a datagram service.
    79 ConnectCm(ConnectCmRequest) -> Nothing;
    /// Accepts a request of a peer.
    80 AcceptCm(AcceptCmRequest) -> Nothing;
    /// Confirms the peer's acceptance.
    81 ConfirmCm(Handle) -> Nothing;
    /// Refuses a request of a peer.
    82 RejectCm(RejectCmRequest) -> Nothing;
    /// Disconnects; without a connection nothing happens.
    83 DisconnectCm(Handle) -> Nothing;
    /// The first packet of the peer came before its confirmation: the connection is established.
    84 EstablishCm(Handle) -> Nothing;
    /// Joins a multicast group; an event says so. The reply names the membership.
    85 JoinCmGroup(JoinCmGroupRequest) -> Handle;
    /// Moves an identifier to another channel, with its events that the client has not taken.
    86 MigrateCm(MigrateCmRequest) -> MigrateCmReply;
    /// Sets an option.
    87 SetCmOption(SetCmOptionRequest) -> Nothing;
    /// Sends an event to the identifier's own channel.
    88 WriteCmEvent(WriteCmEventRequest) -> Nothing;
}
