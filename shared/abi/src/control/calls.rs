//! Every call: its number, request and reply.

use roced_types::QpAttributes;

use super::{
    AllocMwReply, AllocMwRequest, BODY_BYTES, Call, CreateAhRequest, CreateCqReply, CreateCqRequest, CreateQpReply,
    CreateQpRequest, CreateSrqReply, CreateSrqRequest, DeviceAttributes, DeviceName, GidEntry, Handle, HelloReply,
    HelloRequest, Index, MapMemoryRequest, MemoryRequest, ModifyQpRequest, ModifySrqRequest, MulticastRequest, Nothing,
    OpenDeviceReply, PortAttributes, QpStatistics, RegMrReply, RegMrRequest, ReregMrRequest, ResizeCqRequest,
    SrqAttributes,
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

        /// The name of a call, for logs.
        pub const fn call_name(op: u32) -> &'static str {
            match op {
                $($op => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

calls! {
    /// The hand-shake: both say their version.
    1 Hello(HelloRequest) -> HelloReply;
    /// The device of that index, in the order of the config.
    2 ListDevice(Index) -> DeviceName;
    /// Opens a device. SameEndpoint the reply: the session memfd, the state memfd, then one wake eventfd
    /// for each worker of the device.
    3 OpenDevice(DeviceName) -> OpenDeviceReply;
    /// Capabilities of the device.
    4 QueryDevice(Nothing) -> DeviceAttributes;
    /// How the device's port is.
    5 QueryPort(Nothing) -> PortAttributes;
    /// The GID at that index.
    6 QueryGid(Index) -> GidEntry;
    /// Makes a protection domain.
    10 AllocPd(Nothing) -> Handle;
    /// Ends one that nothing uses.
    11 DeallocPd(Handle) -> Nothing;
    /// Makes memory that both map. SameEndpoint the reply: its memfd, sealed against resizing.
    12 AllocMemory(MemoryRequest) -> Handle;
    /// Gives up memory that no region lies in. The client may keep its mapping.
    13 FreeMemory(Handle) -> Nothing;
    /// Registers a part of such memory. The client has touched its pages.
    14 RegMr(RegMrRequest) -> RegMrReply;
    /// Ends a registration that no memory window is bound to. When the reply is there, nothing of
    /// the daemon touches the range any more.
    15 DeregMr(Handle) -> Nothing;
    /// Makes a memory window, bound to nothing.
    16 AllocMw(AllocMwRequest) -> AllocMwReply;
    /// Ends a memory window, bound or not. When the reply is there, its key opens nothing.
    17 DeallocMw(Handle) -> Nothing;
    /// Changes a registration to which no memory window is bound; its keys stay. Operations in
    /// flight on it may fail.
    18 ReregMr(ReregMrRequest) -> Nothing;
    /// Maps a part of a file of the client, with its descriptor beside this request (no other
    /// call takes one): a tmpfs file or memfd that cannot shrink, opened with the requested access.
    /// It is memory like that of [`AllocMemory`]; the client has populated its pages. With
    /// [`origin::PROXIED`](super::origin::PROXIED) nothing is mapped, and peers have no atomic
    /// operations there.
    19 MapMemory(MapMemoryRequest) -> Handle;
    /// Makes a completion channel. SameEndpoint the reply: the client's end of a socket pair; each event
    /// is one [`ChannelEvent`](super::ChannelEvent).
    20 CreateChannel(Nothing) -> Handle;
    /// Ends one that no completion queue uses.
    21 DestroyChannel(Handle) -> Nothing;
    /// Makes a completion queue. SameEndpoint the reply: its memfd (see
    /// [`CqLayout`](crate::layout::CqLayout)).
    22 CreateCq(CreateCqRequest) -> CreateCqReply;
    /// Ends one that no queue pair uses.
    23 DestroyCq(Handle) -> Nothing;
    /// Replaces the rings of a completion queue. The reply carries their memfd. After the reply no
    /// completion arrives in the old rings; completions in them are older than those in the new
    /// ones. The arm word stays in the first memfd.
    24 ResizeCq(ResizeCqRequest) -> CreateCqReply;
    /// Makes a queue pair in state RESET. SameEndpoint the reply: its memfd (see
    /// [`QpLayout`](crate::layout::QpLayout)).
    30 CreateQp(CreateQpRequest) -> CreateQpReply;
    /// Changes a queue pair's state or attributes.
    31 ModifyQp(ModifyQpRequest) -> Nothing;
    /// A queue pair's state and attributes.
    32 QueryQp(Handle) -> QpAttributes;
    /// Ends a queue pair. When the reply is there, it makes no more completions.
    33 DestroyQp(Handle) -> Nothing;
    /// Statistics of a queue pair.
    34 QueryQpStatistics(Handle) -> QpStatistics;
    /// Makes an address handle, which datagrams name to say where they go.
    40 CreateAh(CreateAhRequest) -> Handle;
    /// Ends one. Sends that still wait with it fail.
    41 DestroyAh(Handle) -> Nothing;
    /// Attaches a datagram queue pair to a multicast group: after the reply, messages to the group
    /// arrive. Attaching twice is the same as once.
    42 AttachMulticast(MulticastRequest) -> Nothing;
    /// Detaches it; ending a queue pair does that, too.
    43 DetachMulticast(MulticastRequest) -> Nothing;
    /// Makes a shared receive queue. SameEndpoint the reply: its memfd (see
    /// [`SrqLayout`](crate::layout::SrqLayout)).
    50 CreateSrq(CreateSrqRequest) -> CreateSrqReply;
    /// Arms or disarms its limit.
    51 ModifySrq(ModifySrqRequest) -> Nothing;
    /// A shared receive queue's attributes.
    52 QuerySrq(Handle) -> SrqAttributes;
    /// Ends one that no queue pair uses; its work completes nothing.
    53 DestroySrq(Handle) -> Nothing;
}
