//! Control messages: requests of a client to the daemon on the socket.
//!
//! A message is 256 bytes: [`Header`], then the call's body, then zeros. A reply has the request's
//! `op` and `sequence` and a `status`: 0, or a [`Refusal`] with two numbers of detail in place of
//! the body. File descriptors ride beside the reply that names them. The daemon may send [`Event`]s
//! between replies; their `op` is [`EVENT`].
//!
//! Every call is in `calls.rs`; its bodies are in the file of their subject. The first call is
//! [`Hello`]. The second is [`OpenDevice`] or [`OpenCm`], once: a session works on one device, or
//! with the connection manager. All other calls need it.

mod body;
mod calls;
mod cm;
mod cm_address;
mod device;
pub mod limit;
mod memory;
mod numbers;
mod qp;
mod queues;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

pub use self::{
    body::{Event, Handle, Nothing},
    calls::*,
    cm::*,
    device::*,
    memory::*,
    numbers::{gid_type, origin, rereg},
    qp::*,
    queues::*,
};

/// Bytes of every message in either direction.
pub const MESSAGE_BYTES: usize = 256;

/// Bytes of a body.
pub const BODY_BYTES: usize = MESSAGE_BYTES - size_of::<Header>();

/// Stands in [`Header::magic`]: "roce", so that another program on the socket is told apart from a
/// wrong version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"roce");

/// [`Header::op`] of a message that answers nothing: an [`Event`].
pub const EVENT: u32 = 0;

/// First bytes of every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// Number of the call, [`Call::OP`], or [`EVENT`].
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
    /// Operation, sequence and status.
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
    /// A call before its time, or twice: `Hello` first, `OpenDevice` or `OpenCm` second.
    OutOfOrder = 3,
    /// No device of that name.
    NoSuchDevice = 4,
    /// No object of that number in this session `[number]`.
    NoSuchObject = 5,
    /// Other objects still use it `[how many]`.
    InUse = 6,
    /// A limit is reached `[limit, which]`: see [`limit`].
    Limit = 7,
    /// A number in the call is out of its range `[place of the field in the call, value]`.
    InvalidArgument = 8,
    /// The queue pair's state does not allow this change `[present state, asked state]`.
    InvalidState = 9,
    /// An attribute that this change demands is missing, or one that it does not allow is there
    /// `[mask missing, mask too much]`.
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
    /// The request is known, but this version of roced does not implement it.
    NotSupported = 18,
    /// The file descriptor beside the call is missing, or is of no file that can be mapped so: see
    /// [`MapMemory`] `[errno]`.
    BadFile = 19,
    /// The kernel does not join the multicast group `[errno]`.
    Multicast = 20,
    /// The daemon does not proxy memory: by its config, or beside this version of NVIDIA's driver
    /// `[0 or major version]`.
    NotProxied = 21,
    /// The connection manager refuses `[errno, as Linux gives it in this case]`.
    Cm = 22,
    /// A rule of the operator does not allow this user the device, or the priority of a path
    /// `[place of the rule, from 0; 0, or the priority + 1]`.
    Forbidden = 23,
}

impl Refusal {
    /// The refusal that a status names.
    pub fn from_status(status: u32) -> Option<Self> {
        Self::try_read_from_bytes(&status.to_ne_bytes()).ok()
    }
}

/// A call: its number, request and reply.
pub trait Call {
    /// In [`Header::op`].
    const OP: u32;
    /// Body of the request.
    type Request: FromBytes + IntoBytes + Immutable + Copy;
    /// Body of the reply.
    type Reply: FromBytes + IntoBytes + Immutable + Copy;
}
