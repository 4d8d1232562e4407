//! Every call: its number, what goes in, what comes out.

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
    /// Opens a device. Beside the reply: the session memfd, the state memfd, then one wake eventfd
    /// for each worker of the device.
    3 OpenDevice(DeviceName) -> OpenDeviceReply;
    /// What the device can do.
    4 QueryDevice(Nothing) -> DeviceAttributes;
    /// How the device's port is.
    5 QueryPort(Nothing) -> PortAttributes;
    /// The GID at that index.
    6 QueryGid(Index) -> GidEntry;
    /// Makes a protection domain.
    10 AllocPd(Nothing) -> Handle;
    /// Ends one that nothing uses.
    11 DeallocPd(Handle) -> Nothing;
    /// Makes memory that both map. Beside the reply: its memfd, sealed against resizing.
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
    /// Changes a registration that no memory window is bound to; its keys stay. What is under way
    /// on it may fail.
    18 ReregMr(ReregMrRequest) -> Nothing;
    /// Maps a part of a file of the client, whose descriptor rides beside this request (no other
    /// takes one): a tmpfs file or memfd that cannot shrink, opened for what is asked. It is memory
    /// as that of [`AllocMemory`]; the client has touched its pages. With
    /// [`origin::PROXIED`](super::origin::PROXIED) nothing is mapped; peers have no atomic
    /// operations there.
    19 MapMemory(MapMemoryRequest) -> Handle;
    /// Makes a completion channel. Beside the reply: the client's end of a socket pair; each event
    /// is one [`ChannelEvent`](super::ChannelEvent).
    20 CreateChannel(Nothing) -> Handle;
    /// Ends one that no completion queue uses.
    21 DestroyChannel(Handle) -> Nothing;
    /// Makes a completion queue. Beside the reply: its memfd (see
    /// [`CqLayout`](crate::layout::CqLayout)).
    22 CreateCq(CreateCqRequest) -> CreateCqReply;
    /// Ends one that no queue pair uses.
    23 DestroyCq(Handle) -> Nothing;
    /// Gives a completion queue other lanes. Beside the reply: their memfd. When the reply is
    /// there, nothing more comes by the lanes of before; what is in them is older than what is in
    /// the new ones. The arm word stays in the first memfd.
    24 ResizeCq(ResizeCqRequest) -> CreateCqReply;
    /// Makes a queue pair in state RESET. Beside the reply: its memfd (see
    /// [`QpLayout`](crate::layout::QpLayout)).
    30 CreateQp(CreateQpRequest) -> CreateQpReply;
    /// Changes a queue pair's state or attributes.
    31 ModifyQp(ModifyQpRequest) -> Nothing;
    /// A queue pair's state and attributes.
    32 QueryQp(Handle) -> QpAttributes;
    /// Ends a queue pair. When the reply is there, it makes no more completions.
    33 DestroyQp(Handle) -> Nothing;
    /// What a queue pair has counted so far.
    34 QueryQpStatistics(Handle) -> QpStatistics;
    /// Makes an address handle, which datagrams name to say where they go.
    40 CreateAh(CreateAhRequest) -> Handle;
    /// Ends one. Sends that still wait with it fail.
    41 DestroyAh(Handle) -> Nothing;
    /// Attaches a datagram queue pair to a multicast group: when the reply is there, what is sent
    /// to it arrives. Twice is once.
    42 AttachMulticast(MulticastRequest) -> Nothing;
    /// Detaches it; ending a queue pair does that, too.
    43 DetachMulticast(MulticastRequest) -> Nothing;
    /// Makes a shared receive queue. Beside the reply: its memfd (see
    /// [`SrqLayout`](crate::layout::SrqLayout)).
    50 CreateSrq(CreateSrqRequest) -> CreateSrqReply;
    /// Arms or disarms its limit.
    51 ModifySrq(ModifySrqRequest) -> Nothing;
    /// A shared receive queue's attributes.
    52 QuerySrq(Handle) -> SrqAttributes;
    /// Ends one that no queue pair uses; its work completes nothing.
    53 DestroySrq(Handle) -> Nothing;
}
