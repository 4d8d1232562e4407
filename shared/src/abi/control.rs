//! Control messages: what a client asks of the daemon on the socket.
//!
//! A message is 256 bytes: [`Header`], then the call's body, then zeros. A reply has the request's `op` and `sequence` and a
//! `status`: 0, or a [`Refusal`] with two numbers of detail in place of the body. File descriptors ride beside the reply that
//! names them. The daemon may send [`Event`]s between replies; their `op` is [`EVENT`].
//!
//! The first call is [`Hello`]. The second is [`OpenDevice`], once: a session works on one device. All else needs it.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use super::layout::QpSizes;

mod numbers;

pub use numbers::{PRIVILEGED_QKEY, access, attribute, event, gid_type, origin, rereg, service, state};

/// Bytes of every message in either direction.
pub const MESSAGE_BYTES: usize = 256;

/// Bytes of a body.
pub const BODY_BYTES: usize = MESSAGE_BYTES - size_of::<Header>();

/// Most entries of a port's table of partition keys.
pub const PKEYS_MAX: usize = 16;

/// Stands in [`Header::magic`]: "roce", so that a stranger on the socket is told apart from a wrong version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"roce");

/// [`Header::op`] of a message that answers nothing: an [`Event`].
pub const EVENT: u32 = 0;

/// First bytes of every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// Which call: [`Call::OP`], or [`EVENT`].
    pub op: u32,
    /// Chosen by the client, comes back in the reply.
    pub sequence: u32,
    /// In a reply: 0, or a [`Refusal`]. In a request: 0.
    pub status: u32,
}

/// A message as it crosses the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    /// What it is.
    pub header: Header,
    /// The call's request or reply, then zeros.
    pub body: [u8; BODY_BYTES],
}

const _: () = assert!(size_of::<Message>() == MESSAGE_BYTES);

impl Message {
    /// A message with `body` in front of zeros.
    pub fn new<B: IntoBytes + Immutable>(op: u32, sequence: u32, body: &B) -> Self {
        let mut message = Self { header: Header { magic: MAGIC, op, sequence, status: 0 }, body: [0; BODY_BYTES] };
        let bytes = body.as_bytes();
        message.body[..bytes.len()].copy_from_slice(bytes);
        message
    }

    /// A reply that refuses.
    pub fn refusal(op: u32, sequence: u32, refusal: Refusal, detail: [u64; 2]) -> Self {
        let mut message = Self::new(op, sequence, &detail);
        message.header.status = refusal as u32;
        message
    }

    /// The body as `B`; every bit pattern of a `B` is one.
    ///
    /// # Panics
    /// Never: that a body is not larger than the message is checked at compile time.
    pub fn body<B: FromBytes>(&self) -> B {
        const { assert!(size_of::<B>() <= BODY_BYTES, "a body fits its message") };
        B::read_from_prefix(&self.body).expect("a body fits its message").0
    }
}

/// Why a call was refused. The two numbers of detail are named in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, Immutable, KnownLayout)]
#[repr(u32)]
pub enum Refusal {
    /// The client speaks another version `[daemon's, client's]`.
    Version = 1,
    /// No such call `[op]`.
    UnknownCall = 2,
    /// A call before its time, or twice: `Hello` first, `OpenDevice` second.
    OutOfOrder = 3,
    /// No device of that name.
    NoSuchDevice = 4,
    /// No object of that number in this session `[number]`.
    NoSuchObject = 5,
    /// Other objects still use it `[how many]`.
    InUse = 6,
    /// A limit of the config is reached `[limit]`.
    Limit = 7,
    /// A number in the call is out of its range `[place of the field in the call, value]`.
    InvalidArgument = 8,
    /// The queue pair's state does not allow this change `[present state, asked state]`.
    InvalidState = 9,
    /// An attribute that this change demands is missing, or one that it does not allow is there `[mask missing, mask too much]`.
    InvalidMask = 10,
    /// The peer cannot be reached: no route to its address.
    NoRoute = 11,
    /// The path MTU is more than the device carries `[asked, largest]`.
    PathMtu = 12,
    /// No GID at that index `[index]`.
    NoSuchGid = 13,
    /// The kernel had no memory or would not lock it `[errno]`.
    Memory = 14,
    /// Only root may: a Q_Key with the top bit set.
    NotPermitted = 15,
    /// The daemon is stopping.
    Stopping = 16,
    /// A worker did not answer in time.
    WorkerTimeout = 17,
    /// What was asked for is known, but this version of roced does not have it.
    NotSupported = 18,
    /// The file descriptor beside the call is missing, or is of no file that can be mapped so: see [`MapMemory`] `[errno]`.
    BadFile = 19,
    /// The kernel does not join the multicast group `[errno]`.
    Multicast = 20,
}

impl Refusal {
    /// The refusal that a status names.
    pub fn from_status(status: u32) -> Option<Self> {
        Self::try_read_from_bytes(&status.to_ne_bytes()).ok()
    }
}

/// A call: its number, what goes in, what comes out.
pub trait Call {
    /// In [`Header::op`].
    const OP: u32;
    /// Body of the request.
    type Request: FromBytes + IntoBytes + Immutable + Copy;
    /// Body of the reply.
    type Reply: FromBytes + IntoBytes + Immutable + Copy;
}

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
    /// Opens a device. Beside the reply: the session memfd, the state memfd, then one wake eventfd for each worker of the device.
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
    /// Ends a registration that no memory window is bound to. When the reply is there, nothing of the daemon touches the range any more.
    15 DeregMr(Handle) -> Nothing;
    /// Makes a memory window, bound to nothing.
    16 AllocMw(AllocMwRequest) -> AllocMwReply;
    /// Ends a memory window, bound or not. When the reply is there, its key opens nothing.
    17 DeallocMw(Handle) -> Nothing;
    /// Changes a registration that no memory window is bound to; its keys stay. What is under way on it may fail.
    18 ReregMr(ReregMrRequest) -> Nothing;
    /// Maps a part of a file of the client, whose descriptor rides beside this request (no other takes one): a tmpfs file or memfd that cannot
    /// shrink, opened for what is asked. It is memory as that of [`AllocMemory`]; the client has touched its pages. With [`origin::KEPT`] nothing is
    /// mapped; peers have no atomic operations there.
    19 MapMemory(MapMemoryRequest) -> Handle;
    /// Makes a completion channel. Beside the reply: the client's end of a socket pair; each event is one [`super::control::ChannelEvent`].
    20 CreateChannel(Nothing) -> Handle;
    /// Ends one that no completion queue uses.
    21 DestroyChannel(Handle) -> Nothing;
    /// Makes a completion queue. Beside the reply: its memfd (see [`super::layout::CqLayout`]).
    22 CreateCq(CreateCqRequest) -> CreateCqReply;
    /// Ends one that no queue pair uses.
    23 DestroyCq(Handle) -> Nothing;
    /// Gives a completion queue other lanes. Beside the reply: their memfd. When the reply is there, nothing more comes by the lanes of before;
    /// what is in them is older than what is in the new ones. The arm word stays in the first memfd.
    24 ResizeCq(ResizeCqRequest) -> CreateCqReply;
    /// Makes a queue pair in state RESET. Beside the reply: its memfd (see [`super::layout::QpLayout`]).
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
    /// Attaches a datagram queue pair to a multicast group: when the reply is there, what is sent to it arrives. Twice is once.
    42 AttachMulticast(MulticastRequest) -> Nothing;
    /// Detaches it; ending a queue pair does that, too.
    43 DetachMulticast(MulticastRequest) -> Nothing;
    /// Makes a shared receive queue. Beside the reply: its memfd (see [`super::layout::SrqLayout`]).
    50 CreateSrq(CreateSrqRequest) -> CreateSrqReply;
    /// Arms or disarms its limit.
    51 ModifySrq(ModifySrqRequest) -> Nothing;
    /// A shared receive queue's attributes.
    52 QuerySrq(Handle) -> SrqAttributes;
    /// Ends one that no queue pair uses; its work completes nothing.
    53 DestroySrq(Handle) -> Nothing;
}

/// An empty body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Nothing {}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new_zeroed()
                }
            }
        )*
    };
}

bodies! {
    /// The client's half of the hand-shake.
    HelloRequest {
        /// [`super::VERSION`] of the client.
        version: u32,
    }
    /// The daemon's half.
    HelloReply {
        /// [`super::VERSION`] of the daemon.
        version: u32,
        /// This session, as logs and `rocectl` name it.
        session: u32,
        /// Devices that it has.
        devices: u32,
    }
    /// A place in a list.
    Index {
        /// From 0.
        index: u32,
    }
    /// A device's name, zero-padded UTF-8.
    DeviceName {
        /// The name's bytes.
        name: [u8; 64],
    }
    /// What an opened device looks like.
    OpenDeviceReply {
        /// Workers that serve it: lanes of a CQ, bell pages of the session, wake eventfds beside this reply.
        workers: u32,
        /// Workers of the whole daemon: size of the state memfd.
        workers_in_daemon: u32,
        /// For each worker of the device, its number in the daemon: its place in the state memfd.
        worker_ids: [u8; 64],
    }
    /// Limits of a device and of this session.
    DeviceAttributes {
        /// Node GUID, EUI-64 made from the MAC address, in wire order.
        node_guid: [u8; 8],
        /// Queue pairs of a session.
        max_qps: u32,
        /// Send or receive work requests of a queue pair.
        max_qp_wrs: u32,
        /// Scatter/gather entries of a work request.
        max_sges: u32,
        /// Inline bytes of a work request.
        max_inline_bytes: u32,
        /// Completion queues of a session.
        max_cqs: u32,
        /// Entries of a completion queue.
        max_cqes: u32,
        /// Memory regions of a session.
        max_mrs: u32,
        /// Protection domains of a session.
        max_pds: u32,
        /// Largest memory region, bytes.
        max_mr_bytes: u64,
        /// READs and atomic operations that a queue pair answers, or has outstanding, at a time.
        max_rd_atomic: u32,
        /// Largest message, bytes.
        max_message_bytes: u32,
        /// Address handles of a session.
        max_ahs: u32,
        /// Shared receive queues of a session.
        max_srqs: u32,
        /// Attachments of a session's queue pairs to multicast groups.
        max_attachments: u32,
        /// Zero.
        reserved: u32,
    }
    /// How a port is.
    PortAttributes {
        /// 1 when the link is up, else 0.
        active: u32,
        /// Largest path MTU that the link carries, bytes: 256 to 4096.
        active_mtu_bytes: u32,
        /// Entries of the GID table; some may be empty.
        gid_entries: u32,
        /// MTU of the link itself, bytes.
        link_mtu_bytes: u32,
        /// Speed of the link, Mbit/s, 0 when not known.
        speed_mbit_per_s: u32,
        /// Entries of the table of partition keys, at least 1.
        pkey_entries: u32,
        /// That table, then zeros.
        pkeys: [u16; PKEYS_MAX],
    }
    /// A GID.
    GidEntry {
        /// The address: IPv6, or IPv4 as `::ffff:a.b.c.d`; all zero when the entry is empty.
        gid: [u8; 16],
        /// Interface of the address.
        ifindex: u32,
        /// VLAN of that interface, or 0xffff.
        vlan: u32,
        /// By which RoCE it speaks: [`gid_type`].
        gid_type: u32,
    }
    /// A number that names an object of the session.
    Handle {
        /// As the call that made it replied.
        handle: u32,
    }
    /// How much memory.
    MemoryRequest {
        /// Bytes; rounded up to whole pages.
        bytes: u64,
    }
    /// A part of a file to map.
    MapMemoryRequest {
        /// Where it begins in the file, or its address: a multiple of 4096.
        offset: u64,
        /// Bytes: a multiple of 4096, all inside the file.
        bytes: u64,
        /// 1: for reading and writing. 0: for reading; no region with rights to write lies in it.
        writable: u32,
        /// [`origin`]: what it is to the client.
        origin: u32,
    }
    /// A memory region to register.
    RegMrRequest {
        /// Of [`AllocPd`].
        pd: u32,
        /// Of [`AllocMemory`].
        memory: u32,
        /// Where in that memory the region begins, bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The address by which work requests and peers name the first byte.
        va: u64,
        /// [`access`] bits.
        access: u32,
        /// Zero.
        reserved: u32,
    }
    /// A registered region.
    RegMrReply {
        /// For [`DeregMr`].
        handle: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    }
    /// A memory window to make.
    AllocMwRequest {
        /// Of [`AllocPd`].
        pd: u32,
        /// 1: opens to the queue pairs of its protection domain. 2: to the one queue pair that bound it.
        kind: u32,
    }
    /// A memory window.
    AllocMwReply {
        /// For [`DeallocMw`].
        handle: u32,
        /// A key of it that opens nothing: BIND_MW names the window by its upper 24 bits, and gives it other lower 8 bits.
        rkey: u32,
    }
    /// A change of a registration.
    ReregMrRequest {
        /// Of [`RegMr`].
        handle: u32,
        /// What changes: [`rereg`] bits. Fields of what does not are 0.
        changes: u32,
        /// See [`RegMrRequest`].
        pd: u32,
        /// See [`RegMrRequest`].
        memory: u32,
        /// See [`RegMrRequest`].
        offset: u64,
        /// See [`RegMrRequest`].
        length: u64,
        /// See [`RegMrRequest`].
        va: u64,
        /// See [`RegMrRequest`].
        access: u32,
        /// Zero.
        reserved: u32,
    }
    /// Where datagrams go.
    CreateAhRequest {
        /// Protection domain: only its queue pairs may name the handle.
        pd: u32,
        /// Index of the source GID.
        sgid_index: u32,
        /// The destination's GID.
        dgid: [u8; 16],
        /// Flow label, 20 bits; also makes the UDP source port when not 0.
        flow_label: u32,
        /// IP time to live or hop limit; 0 means 64.
        hop_limit: u32,
        /// IP traffic class: DSCP in the upper six bits.
        traffic_class: u32,
        /// Service level, 0 to 7: the priority in the VLAN tag, where there is one.
        service_level: u32,
    }
    /// A multicast group and who is of it.
    MulticastRequest {
        /// A datagram queue pair.
        qpn: u32,
        /// Index of the GID by whose interface the group is joined; not looked at when it is left.
        sgid_index: u32,
        /// The group: an IPv4 or IPv6 multicast address.
        group: [u8; 16],
    }
    /// A completion queue to make.
    CreateCqRequest {
        /// Entries of each lane, at least; a power of two is given.
        entries: u32,
        /// Channel for events, or 0.
        channel: u32,
    }
    /// A completion queue.
    CreateCqReply {
        /// Its number, also its handle.
        cqn: u32,
        /// Entries it got.
        entries: u32,
    }
    /// Another size for a completion queue.
    ResizeCqRequest {
        /// Which.
        cqn: u32,
        /// Entries of each lane, at least; a power of two is given.
        entries: u32,
    }
    /// A queue pair to make.
    CreateQpRequest {
        /// Protection domain.
        pd: u32,
        /// Completion queue of the send queue.
        send_cq: u32,
        /// Completion queue of the receive queue.
        recv_cq: u32,
        /// A [`service`].
        service: u32,
        /// Work requests of the send queue.
        send_wrs: u32,
        /// Work requests of the receive queue.
        recv_wrs: u32,
        /// Scatter/gather entries of a send.
        send_sges: u32,
        /// Scatter/gather entries of a receive.
        recv_sges: u32,
        /// Inline bytes of a send.
        inline_bytes: u32,
        /// 1: every send makes a completion, as if it were signaled.
        signal_all: u32,
        /// Shared receive queue, or 0. With one, the sizes of receives do not count.
        srq: u32,
    }
    /// A queue pair.
    CreateQpReply {
        /// Its number, also its handle.
        qpn: u32,
        /// The worker that owns it: an index into `OpenDeviceReply::worker_ids`.
        worker: u32,
        /// Its bell in that worker's page.
        bell: u32,
        /// Sizes it got, as [`QpSizes`].
        send_wrs: u32,
        /// See above.
        recv_wrs: u32,
        /// See above.
        send_sges: u32,
        /// See above.
        recv_sges: u32,
        /// See above.
        inline_bytes: u32,
    }
    /// A shared receive queue to make.
    CreateSrqRequest {
        /// Protection domain of the regions that its work names.
        pd: u32,
        /// Work requests.
        wrs: u32,
        /// Scatter/gather entries of each.
        sges: u32,
    }
    /// A shared receive queue. Every queue pair that takes from it lives on its worker.
    CreateSrqReply {
        /// Its number, also its handle.
        srqn: u32,
        /// The worker that owns it: an index into `OpenDeviceReply::worker_ids`.
        worker: u32,
        /// Its bell in that worker's page.
        bell: u32,
        /// Work requests that it got.
        wrs: u32,
        /// Scatter/gather entries that it got.
        sges: u32,
    }
    /// A change to a shared receive queue.
    ModifySrqRequest {
        /// Which.
        srqn: u32,
        /// With fewer work requests than this there is one [`event::SRQ_LIMIT`]; 0 for none.
        limit: u32,
    }
    /// Attributes of a shared receive queue.
    SrqAttributes {
        /// Work requests that it holds.
        wrs: u32,
        /// Scatter/gather entries of each.
        sges: u32,
        /// The limit; 0 when none is armed.
        limit: u32,
    }
    /// A change to a queue pair.
    ModifyQpRequest {
        /// Which.
        qpn: u32,
        /// Which of the attributes count: [`attribute`] bits.
        mask: u32,
        /// Their values.
        attributes: QpAttributes,
    }
    /// Attributes of a queue pair; verbs names (`ibv_qp_attr`) where there is one.
    QpAttributes {
        /// A [`state`].
        state: u32,
        /// [`access`] bits that the peer has, besides those of each region.
        access: u32,
        /// Path MTU, bytes: 256, 512, 1024, 2048 or 4096.
        path_mtu_bytes: u32,
        /// The peer's queue pair.
        dest_qpn: u32,
        /// First PSN expected.
        rq_psn: u32,
        /// First PSN sent.
        sq_psn: u32,
        /// READs and atomic operations that we have outstanding at most, 0 to 128.
        max_rd_atomic: u32,
        /// READs and atomic operations that we answer at a time, 0 to 128.
        max_dest_rd_atomic: u32,
        /// Code of the RNR NAK timer that we ask of the peer, 0 to 31.
        min_rnr_timer: u32,
        /// ACK timeout code: 4.096 us * 2^code, 0 for none, up to 31.
        timeout: u32,
        /// Retries after timeout or sequence error, 0 to 7.
        retry_cnt: u32,
        /// Retries after RNR NAK, 0 to 6, 7 for ever.
        rnr_retry: u32,
        /// Which entry of the port's table of partition keys.
        pkey_index: u32,
        /// Flow label, 20 bits; also makes the UDP source port when not 0.
        flow_label: u32,
        /// Index of the source GID.
        sgid_index: u32,
        /// IP time to live or hop limit; 0 means 64.
        hop_limit: u32,
        /// IP traffic class: DSCP in the upper six bits.
        traffic_class: u32,
        /// Service level, 0 to 7: the priority in the VLAN tag, where there is one.
        service_level: u32,
        /// The peer's GID.
        dgid: [u8; 16],
        /// Rate limit, bytes per second, 0 for none.
        rate_limit_bytes_per_s: u64,
        /// In a query: 1 while the next hop's address is still being resolved.
        path_resolving: u32,
        /// Q_Key that datagrams must have to be let in, of a UD queue pair.
        qkey: u32,
        /// Of a change: the state that the client takes the queue pair to be in; another one refuses the change.
        current_state: u32,
        /// In a query: 1 in state SQD while requests that were begun are not done.
        sq_draining: u32,
        /// Of a change to SQD: 1 asks for the event [`event::SQ_DRAINED`].
        sq_drained_event: u32,
        /// Zero.
        reserved: u32,
    }
    /// What a queue pair has counted since it was made; `rocectl qps --counters` has more.
    QpStatistics {
        /// Packets of its requests sent, retransmissions included.
        request_packets: u64,
        /// Packets of its answers sent: ACKs, NAKs, READ responses.
        response_packets: u64,
        /// Packets taken.
        received_packets: u64,
        /// Packets sent again, for whatever reason.
        retransmitted_packets: u64,
        /// Times that the ACK timer ran out.
        ack_timeouts: u64,
        /// NAKs "PSN sequence error" received.
        sequence_naks_received: u64,
        /// NAKs "PSN sequence error" sent.
        sequence_naks_sent: u64,
        /// READ responses found to be lost because a later answer came.
        implied_naks: u64,
        /// RNR NAKs received.
        rnr_naks_received: u64,
        /// RNR NAKs sent.
        rnr_naks_sent: u64,
        /// Duplicate requests answered.
        duplicate_requests: u64,
    }
    /// One event of a completion channel: a message of the channel's socket.
    ChannelEvent {
        /// The completion queue that fired.
        cqn: u32,
    }
    /// A message that answers nothing.
    Event {
        /// An [`event`].
        kind: u32,
        /// The object it is about.
        handle: u32,
    }
}

impl CreateQpRequest {
    /// The sizes asked for.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes {
            send_wrs: self.send_wrs,
            recv_wrs: self.recv_wrs,
            send_sges: self.send_sges,
            recv_sges: self.recv_sges,
            inline_bytes: self.inline_bytes,
        }
    }
}

impl CreateSrqRequest {
    /// The sizes asked for; nothing is sent.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes { send_wrs: 0, recv_wrs: self.wrs, send_sges: 0, recv_sges: self.sges, inline_bytes: 0 }
    }
}

impl CreateQpReply {
    /// The sizes it got.
    pub const fn sizes(&self) -> QpSizes {
        QpSizes {
            send_wrs: self.send_wrs,
            recv_wrs: self.recv_wrs,
            send_sges: self.send_sges,
            recv_sges: self.recv_sges,
            inline_bytes: self.inline_bytes,
        }
    }
}

impl DeviceName {
    /// The name cut to what fits.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 64];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self { name: bytes }
    }

    /// The name; `None` when it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..length]).ok()
    }
}
