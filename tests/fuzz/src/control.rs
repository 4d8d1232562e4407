//! Target `control`: messages on the daemon's socket, from up to three clients; their sessions are
//! served as the daemon serves them.
//!
//! Every whole message is answered, by its number, with a reply or a refusal that has a name; a
//! broken one ends its session and no other. The daemon's report of a client agrees with its
//! replies. When all have gone, nothing is left behind.

use std::{
    fs::File,
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{
            AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
        },
    },
    unistd::ftruncate,
};
use roced::{
    calls::DeviceSetup,
    client_socket::listener::ClientListener,
    clients::Clients,
    config::{AccountLimits, ClientLimits, DeviceLimits, LimitsConfig, PacketPriorities},
    environment::Environment,
    net::{FollowId, NetworkChange, NextHop},
    worker::mad_filters::MadFilters,
};
use roced_abi::{
    VERSION,
    control::{
        AllocMemory, AllocMw, AllocPd, AttachMulticast, Call, CreateAh, CreateChannel, CreateCq, CreateQp, CreateSrq,
        DeallocMw, DeallocPd, DeregMr, DeregMrAndFree, DestroyAh, DestroyChannel, DestroyCq, DestroyQp, DestroySrq,
        DetachMulticast, DeviceName, EVENT, FreeMemory, Hello, HelloRequest, ListDevice, MAGIC, MESSAGE_BYTES,
        MapAndRegMr, MapAndRegMrRequest, MapMemory, MapMemoryRequest, Message, ModifyQp, ModifyQpRequest, ModifySrq,
        OpenDevice, QueryDevice, QueryGid, QueryPort, QueryQp, QueryQpStatistics, QuerySrq, Refusal, RegMr,
        RegMrRequest, ReregMr, ResizeCq,
    },
};
use roced_memory::queues::SleepBoard;
use roced_types::{QpAttributes, access, attribute, service, state};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    input::Input,
    machine::{Crew, DEVICE, Net, QPS, SRQS},
    seeds::Seed,
};

const NAME: &str = "fuzz0";
/// Steps of one run.
const STEPS_MAX: usize = 60;
const CLIENTS: usize = 3;

/// Kinds of objects that a client names by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pd,
    Memory,
    Mr,
    Mw,
    Ah,
    Channel,
    Cq,
    Qp,
    Srq,
}

/// A call: its request's length, which of its numbers name objects (offset, kind), and the object
/// that it makes or ends.
#[derive(Clone, Copy)]
struct Shape {
    op: u32,
    bytes: usize,
    names: &'static [(usize, Kind)],
    /// Its reply begins with their numbers, in this order.
    makes: &'static [Kind],
    ends: Option<Kind>,
}

const fn shape<C: Call>(names: &'static [(usize, Kind)], makes: &'static [Kind], ends: Option<Kind>) -> Shape {
    Shape { op: C::OP, bytes: size_of::<C::Request>(), names, makes, ends }
}

const SHAPES: [Shape; 36] = [
    shape::<Hello>(&[], &[], None),
    shape::<ListDevice>(&[], &[], None),
    shape::<OpenDevice>(&[], &[], None),
    shape::<QueryDevice>(&[], &[], None),
    shape::<QueryPort>(&[], &[], None),
    shape::<QueryGid>(&[], &[], None),
    shape::<AllocPd>(&[], &[Kind::Pd], None),
    shape::<DeallocPd>(&[(0, Kind::Pd)], &[], Some(Kind::Pd)),
    shape::<AllocMemory>(&[], &[Kind::Memory], None),
    shape::<FreeMemory>(&[(0, Kind::Memory)], &[], Some(Kind::Memory)),
    shape::<RegMr>(&[(0, Kind::Pd), (4, Kind::Memory)], &[Kind::Mr], None),
    shape::<DeregMr>(&[(0, Kind::Mr)], &[], Some(Kind::Mr)),
    shape::<CreateChannel>(&[], &[Kind::Channel], None),
    shape::<DestroyChannel>(&[(0, Kind::Channel)], &[], Some(Kind::Channel)),
    shape::<CreateCq>(&[(4, Kind::Channel)], &[Kind::Cq], None),
    shape::<ResizeCq>(&[(0, Kind::Cq)], &[], None),
    shape::<DestroyCq>(&[(0, Kind::Cq)], &[], Some(Kind::Cq)),
    shape::<CreateQp>(&[(0, Kind::Pd), (4, Kind::Cq), (8, Kind::Cq), (40, Kind::Srq)], &[Kind::Qp], None),
    shape::<ModifyQp>(&[(0, Kind::Qp)], &[], None),
    shape::<QueryQp>(&[(0, Kind::Qp)], &[], None),
    shape::<DestroyQp>(&[(0, Kind::Qp)], &[], Some(Kind::Qp)),
    shape::<QueryQpStatistics>(&[(0, Kind::Qp)], &[], None),
    shape::<AllocMw>(&[(0, Kind::Pd)], &[Kind::Mw], None),
    shape::<DeallocMw>(&[(0, Kind::Mw)], &[], Some(Kind::Mw)),
    shape::<CreateAh>(&[(0, Kind::Pd)], &[Kind::Ah], None),
    shape::<DestroyAh>(&[(0, Kind::Ah)], &[], Some(Kind::Ah)),
    shape::<ReregMr>(&[(0, Kind::Mr), (8, Kind::Pd), (12, Kind::Memory)], &[], None),
    shape::<CreateSrq>(&[(0, Kind::Pd)], &[Kind::Srq], None),
    shape::<ModifySrq>(&[(0, Kind::Srq)], &[], None),
    shape::<QuerySrq>(&[(0, Kind::Srq)], &[], None),
    shape::<DestroySrq>(&[(0, Kind::Srq)], &[], Some(Kind::Srq)),
    shape::<AttachMulticast>(&[(0, Kind::Qp)], &[], None),
    shape::<DetachMulticast>(&[(0, Kind::Qp)], &[], None),
    shape::<MapMemory>(&[], &[Kind::Memory], None),
    shape::<MapAndRegMr>(&[(24, Kind::Pd)], &[Kind::Memory, Kind::Mr], None),
    shape::<DeregMrAndFree>(&[(0, Kind::Mr)], &[], Some(Kind::Mr)),
];

/// Bits of the byte behind a call's place in [`SHAPES`].
mod how {
    /// Numbers of objects are places among those that there are.
    pub(super) const BY_PLACE: u8 = 1;
    /// A `ModifyQp` with the mask and attributes of the usual change to a state; the state is the
    /// first byte behind the QPN.
    pub(super) const USUAL: u8 = 2;
    /// The number of the call is another.
    pub(super) const OTHER_OP: u8 = 4;
}

/// A client and the content of its replies.
struct Raw {
    socket: OwnedFd,
    sequence: u32,
    objects: Vec<(Kind, u32)>,
    has_device: bool,
}

/// A daemon without a NIC, in this thread.
struct Daemon {
    clients: Clients,
    crew: Crew,
    net: Net,
    raws: [Option<Raw>; CLIENTS],
    socket: PathBuf,
}

thread_local! {
    /// Where the socket lies: made once, a run takes long enough.
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a scratch folder");
    /// Four pages that clients bring: to write, and to read.
    static FILES: [OwnedFd; 2] = {
        let file = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        ftruncate(&file, 4 * 4096).expect("four pages");
        let to_read = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("it can be opened");
        [file, to_read.into()]
    };
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut daemon = Daemon::new();
    if input.byte() & 1 == 0 {
        daemon.call(0, &SHAPES[0], HelloRequest { version: VERSION, program: [0; 16] }.as_bytes(), 0);
        daemon.call(0, &SHAPES[2], DeviceName::new(NAME).as_bytes(), 0);
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let step = input.byte();
        let client = usize::from(step >> 4) % CLIENTS;
        match step % 16 {
            0..11 => daemon.any_call(client, &mut input),
            11 => daemon.broken(client, &mut input),
            12 => daemon.raws[client] = None,
            13 => daemon.poll(input.byte()),
            _ => daemon.change(input.byte()),
        }
        daemon.check_reports();
    }
    daemon.end();
}

/// The request at the front of `bytes`, or of as many zeros as are missing.
fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut body = bytes.to_vec();
    body.resize(length, 0);
    body
}

impl Daemon {
    fn new() -> Self {
        let socket = FOLDER.with(|folder| folder.path().join("socket"));
        let listener = ClientListener::bind(&socket, None, 0o600).expect("a path of our own");
        let limits = LimitsConfig {
            clients: 2,
            account: AccountLimits { clients: Some(2), share_percent: 100, ..AccountLimits::default() },
            client: ClientLimits {
                qps: 4,
                cqs: 4,
                channels: 2,
                mrs: 4,
                pds: 3,
                ahs: 3,
                srqs: 2,
                attachments: 3,
                memory_mib: 4,
                ..ClientLimits::default()
            },
            device: DeviceLimits { qps: 6, mrs: 6, ahs: 4, srqs: SRQS, attachments: 4 },
            ..LimitsConfig::default()
        };
        let crew = Crew::hire(2, limits.device.mrs);
        // Not the one that the workers write: no worker sleeps here.
        let board = SleepBoard::create(2).expect("a memfd");
        let setup = DeviceSetup {
            id: DEVICE,
            name: NAME.into(),
            window_packets: 64,
            credits: true,
            priorities: PacketPriorities::default(),
            pkeys: vec![roced_transport::partition::Pkey::DEFAULT],
            endpoints: crew.places.clone(),
            qps_per_endpoint: QPS,
        };
        let filters = Arc::new(MadFilters::new(1000));
        let clients = Clients::new(listener, vec![setup], limits, Vec::new(), board, &filters).expect("an epoll set");
        Self { clients, crew, net: Net::new(), raws: [const { None }; CLIENTS], socket }
    }

    fn with_outside(&mut self, act: impl FnOnce(&mut Clients, &mut Environment<'_>)) {
        act(&mut self.clients, &mut Environment { workers: &mut self.crew, network: &mut self.net });
    }

    fn serve(&mut self) {
        self.with_outside(Clients::on_readable);
    }

    /// The client of that number, which connects if it has not.
    fn raw(&mut self, client: usize) -> &mut Raw {
        if self.raws[client].is_none() {
            let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
            connect(fd.as_raw_fd(), &UnixAddr::new(&self.socket).expect("short")).expect("a listener is there");
            self.serve();
            self.raws[client] = Some(Raw::new(fd));
        }
        self.raws[client].as_mut().expect("made above")
    }

    fn any_call(&mut self, client: usize, input: &mut Input<'_>) {
        let shape = &SHAPES[usize::from(input.byte()) % SHAPES.len()];
        let how = input.byte();
        let other = if how & how::OTHER_OP != 0 { u32::from(input.u16()) } else { 0 };
        let is_usual = shape.op == ModifyQp::OP && how & how::USUAL != 0;
        let mut body = padded(input.take(if is_usual { 6 } else { shape.bytes }), shape.bytes);
        if how & how::BY_PLACE != 0 {
            let raw = self.raw(client);
            for (at, kind) in shape.names {
                let known: Vec<u32> =
                    raw.objects.iter().filter(|(other, _)| other == kind).map(|(_, name)| *name).collect();
                let place = usize::from(body[*at]);
                // The last place stands for none.
                let name = known.get(place % (known.len() + 1)).copied().unwrap_or(0);
                body[*at..at + 4].copy_from_slice(&name.to_le_bytes());
            }
        }
        if is_usual {
            body = usual(&body);
        }
        self.call(client, shape, &body, other);
    }

    /// The answer to the last message of a client; `None` when its session has ended. A turn of the
    /// daemon ends after a time, and a new client waits for the place of one that has left, while
    /// the daemon has work: it is readable, or has a deadline.
    fn reply(&mut self, client: usize) -> Option<Message> {
        for _ in 0..100 {
            self.serve();
            let raw = self.raws[client].as_mut().expect("it has just spoken");
            let reply = raw.reply();
            if !matches!(reply, Err(Errno::EAGAIN)) {
                return reply.expect("a socket that can be read");
            }
            if let Some(due) = self.clients.deadline() {
                // A call may wait for threads of its user, which close files.
                let wait = due.saturating_duration_since(Instant::now());
                assert!(wait < Duration::from_secs(10), "it owes an answer before");
                thread::sleep(wait.min(Duration::from_millis(20)));
                let now = Instant::now();
                self.with_outside(|clients, environment| clients.on_deadline(now, environment));
            } else {
                let mut fds = [PollFd::new(self.clients.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1), "the daemon is idle and owes an answer");
            }
        }
        panic!("the daemon does not answer");
    }

    /// Says something and takes the answer.
    fn call(&mut self, client: usize, shape: &Shape, body: &[u8], other: u32) {
        let raw = self.raw(client);
        raw.sequence = raw.sequence.wrapping_add(0x1000_0001);
        let mut message = Message::new(shape.op ^ other, raw.sequence, &[0u8; 0]);
        message.body[..body.len()].copy_from_slice(body);
        // A file beside the calls that take one, by the last number of their memory: none, to
        // write, to read.
        let takes_file = matches!(message.header.op, MapMemory::OP | MapAndRegMr::OP);
        let which = if takes_file { usize::from(message.body[20]) % 3 } else { 0 };
        FILES.with(|files| raw.put(message.as_bytes(), which.checked_sub(1).map(|which| files[which].as_raw_fd())));
        let reply = self.reply(client);
        let raw = self.raws[client].as_mut().expect("it has just spoken");
        let Some(reply) = reply else {
            // One too many: it was told so, and that was all.
            self.raws[client] = None;
            return;
        };
        assert_eq!((reply.header.op, reply.header.sequence), (message.header.op, raw.sequence));
        if reply.header.status != 0 {
            Refusal::from_status(reply.header.status).expect("a refusal has a name");
        } else if let Some(shape) = SHAPES.iter().find(|shape| shape.op == message.header.op) {
            raw.remember(shape, &message.body, &reply);
        }
    }

    /// A message that is none.
    fn broken(&mut self, client: usize, input: &mut Input<'_>) {
        let length = usize::from(input.u16()) % 300;
        let mut bytes = padded(input.take(length), length);
        if bytes.len() == MESSAGE_BYTES && bytes[..4] == MAGIC.to_le_bytes() {
            bytes.pop();
        }
        let raw = self.raw(client);
        raw.put(&bytes, None);
        assert!(self.reply(client).is_none(), "its session ends");
        self.raws[client] = None;
    }

    /// Workers turn, and their messages are heard.
    fn poll(&mut self, what: u8) {
        self.crew.now = self.crew.now + roced_transport::clock::Nanos(1 << (what % 40));
        for _ in 0..4 {
            self.crew.poll();
        }
        self.crew.events.clear();
        while let Some(event) = self.crew.events.pop() {
            self.with_outside(|clients, environment| clients.on_worker_event(event, environment));
        }
    }

    /// The network is not as it was.
    fn change(&mut self, what: u8) {
        let next = match what >> 4 & 3 {
            0 => NextHop::Resolving,
            1 => NextHop::Unreachable,
            2 => NextHop::Local(DEVICE),
            _ => NextHop::Reachable { mac: [4; 6], vlan: None, source_mac: [2; 6], mtu_bytes: 1500 },
        };
        let change = match what & 3 {
            0 => {
                self.net.port.link_up = !self.net.port.link_up;
                NetworkChange::Link(DEVICE)
            }
            1 => NetworkChange::Gids(DEVICE),
            2 => {
                self.net.elsewhere = (what & 0x80 == 0).then_some(next);
                return;
            }
            _ => NetworkChange::NextHop(FollowId::new(u64::from(what >> 6)), next),
        };
        self.with_outside(|clients, environment| clients.on_changes(&[change], environment));
    }

    /// The daemon's report of its clients agrees with the replies that they had.
    fn check_reports(&self) {
        let mut reported: Vec<_> = self.clients.reports().map(|report| (report.qps, report.mrs)).collect();
        let count = |raw: &Raw, kind| raw.objects.iter().filter(|(other, _)| *other == kind).count() as u32;
        for raw in self.raws.iter().flatten() {
            let told = (count(raw, Kind::Qp), count(raw, Kind::Mr));
            let at = reported.iter().position(|report| *report == told);
            assert!(at.is_some() || !raw.has_device, "{told:?} queue pairs and regions are not reported: {reported:?}");
            at.map(|at| reported.swap_remove(at));
        }
    }

    /// The objects of clients that went are given back, however many pieces that takes.
    fn give_back(&mut self) {
        for _ in 0..100 {
            self.with_outside(|clients, environment| clients.on_deadline(Instant::now(), environment));
        }
    }

    /// All go, and nothing is left.
    fn end(mut self) {
        self.poll(0);
        self.raws = [const { None }; CLIENTS];
        self.serve_until_empty();
        assert!(self.net.followed.is_empty(), "no destination is followed without a client: {:?}", self.net.followed);
        assert!(self.net.joined.is_empty(), "no group is joined without a client: {:?}", self.net.joined);
        assert!(self.clients.reports().next().is_none());
        // A new client gets all that the limits give: the objects of the others were given back.
        self.call(0, &SHAPES[0], HelloRequest { version: VERSION, program: [0; 16] }.as_bytes(), 0);
        self.call(0, &SHAPES[2], DeviceName::new(NAME).as_bytes(), 0);
        for step in everything() {
            let mut input = Input(&step);
            let before = self.raws[0].as_ref().expect("it is there").objects.len();
            self.any_call(0, &mut input);
            let after = self.raws[0].as_ref().expect("it is there").objects.len();
            assert_eq!(after, before + 1, "{step:?} makes something");
        }
        self.raws[0] = None;
        self.serve_until_empty();
        self.crew.release();
    }

    /// All sessions end. A thread of the user may be at a message of one.
    fn serve_until_empty(&mut self) {
        let begin = Instant::now();
        loop {
            self.serve();
            self.give_back();
            if self.clients.is_empty() {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "all sessions end");
            thread::yield_now();
        }
    }
}

impl Raw {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, sequence: 0, objects: Vec::new(), has_device: false }
    }

    fn put(&self, bytes: &[u8], file: Option<RawFd>) {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let raw = file.map(|file| [file]);
        let rights = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
        match sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], rights.as_slice(), flags, None) {
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
            Err(error) => panic!("there is room for a message: {error}"),
        }
    }

    /// The answer to the last message, events passed over; `None` when the session has ended,
    /// `EAGAIN` while there is none. Descriptors beside it are dropped.
    fn reply(&self) -> Result<Option<Message>, Errno> {
        loop {
            let mut bytes = [0; MESSAGE_BYTES + 1];
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(length) => {
                    let message = Message::read_from_bytes(&bytes[..length]).expect("a whole message");
                    if message.header.op != EVENT || message.header.sequence != 0 {
                        return Ok(Some(message));
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    fn remember(&mut self, shape: &Shape, body: &[u8], reply: &Message) {
        self.has_device |= shape.op == OpenDevice::OP;
        for (kind, number) in shape.makes.iter().zip(reply.body.chunks_exact(4)) {
            let object = (*kind, u32::from_le_bytes(number.try_into().expect("four bytes")));
            if self.objects.contains(&object) {
                // `DeregMrAndFree` frees memory without its number.
                assert_eq!(*kind, Kind::Memory, "{object:?} is new");
            } else {
                self.objects.push(object);
            }
        }
        if let Some(kind) = shape.ends {
            let name = u32::from_le_bytes([body[0], body[1], body[2], body[3]]);
            let at = self.objects.iter().position(|object| *object == (kind, name));
            self.objects.swap_remove(at.expect("it was there"));
        }
    }
}

/// The usual change of a queue pair to a state, from its number, the state, and a byte of further
/// choices.
fn usual(body: &[u8]) -> Vec<u8> {
    use attribute::*;
    let what = body[5];
    let (state, mask) = match body[4] % 6 {
        0 => (state::RESET, 0),
        1 if what & 16 != 0 => (state::INIT, PKEY_INDEX | PORT | QKEY),
        2 if what & 16 != 0 => (state::RTR, 0),
        3 if what & 16 != 0 => (state::RTS, SQ_PSN),
        1 => (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS),
        2 => (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
        3 => (state::RTS, TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC),
        4 => (state::ERR, 0),
        _ => (u32::from(what & 7), u32::from(what) << (what & 15)),
    };
    let mut dgid = OURS;
    dgid[15] ^= what >> 5;
    let request = ModifyQpRequest {
        qpn: u32::from_le_bytes([body[0], body[1], body[2], body[3]]),
        mask: mask | STATE,
        attributes: QpAttributes {
            state,
            access: access::ALL,
            path_mtu_bytes: 1024,
            dest_qpn: 0x102,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            hop_limit: 64,
            dgid,
            ..QpAttributes::default()
        },
    };
    request.as_bytes().to_vec()
}

/// A multicast group, as a GID.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0, 0, 1];

/// The first address of the network, as a GID.
const OURS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1];

/// Calls that make one of everything, and of queue pairs as many as a client may have: place in
/// [`SHAPES`], how, request.
fn everything() -> Vec<Vec<u8>> {
    let call = |place: u8, body: &[u8]| [&[place, how::BY_PLACE], body].concat();
    let at = |op: u32| SHAPES.iter().position(|shape| shape.op == op).expect("all calls are there") as u8;
    // The last number is the place of a shared receive queue, of which there is one, or none.
    let queue_pair = |srq| {
        let numbers = [0u32, 0, 0, 2, 4, 4, 1, 1, 0, 0, srq];
        call(at(CreateQp::OP), numbers.as_bytes())
    };
    let mut calls = vec![
        call(at(AllocPd::OP), &[]),
        call(at(AllocMemory::OP), &8192u64.to_le_bytes()),
        call(at(CreateChannel::OP), &[]),
        call(at(CreateCq::OP), [16u32, 0].as_bytes()),
        call(at(CreateAh::OP), &[&[0; 8][..], &OURS, &[0; 16]].concat()),
        call(at(AllocMw::OP), [0u32, 2].as_bytes()),
        call(at(RegMr::OP), &[&[0; 16][..], &4096u64.to_le_bytes(), &[0; 8], &[7, 0, 0, 0]].concat()),
    ];
    calls.push(call(at(CreateSrq::OP), [0u32, 4, 1].as_bytes()));
    calls.extend([0, 1, 0, 1].map(queue_pair));
    calls
}

/// An orderly client, and how each call fares on its own.
pub(crate) fn seeds() -> Vec<Seed> {
    let at = |op: u32| SHAPES.iter().position(|shape| shape.op == op).expect("all calls are there") as u8;
    let mut orderly = vec![0];
    for call in everything() {
        orderly.push(0);
        // Requests are padded with zeros only at the end of a run.
        let bytes = SHAPES[usize::from(call[0])].bytes;
        orderly.extend(padded(&call, bytes + 2));
    }
    for state in [1, 2, 3, 4, 0] {
        orderly.extend([0, at(ModifyQp::OP), how::BY_PLACE | how::USUAL, 0, 0, 0, 0, state, 0]);
        orderly.extend([13, 10]);
    }
    for op in [
        QueryQp::OP,
        QueryQpStatistics::OP,
        QuerySrq::OP,
        DestroyQp::OP,
        DestroySrq::OP,
        DestroyCq::OP,
        DeregMr::OP,
        DeallocMw::OP,
        DestroyAh::OP,
        FreeMemory::OP,
        DeallocPd::OP,
    ] {
        orderly.extend([0, at(op), how::BY_PLACE, 0, 0, 0, 0]);
    }
    let alone = SHAPES.iter().enumerate().map(|(place, shape)| {
        let bytes =
            [&[0, 0, place as u8, how::BY_PLACE], &vec![1; shape.bytes][..], &[11, 3, 0, 1, 2, 3, 13, 5]].concat();
        Seed { name: format!("call-{}", shape.op), bytes }
    });
    let mut group = vec![0];
    let datagrams = [0u32, 0, 0, service::UD, 4, 4, 1, 1, 0, 0];
    let queue_pair = [&[at(CreateQp::OP), how::BY_PLACE], datagrams.as_bytes()].concat();
    for call in everything().into_iter().take(4).chain([queue_pair]) {
        group.push(0);
        group.extend(padded(&call, SHAPES[usize::from(call[0])].bytes + 2));
    }
    for op in [AttachMulticast::OP, AttachMulticast::OP, DetachMulticast::OP, AttachMulticast::OP, DestroyQp::OP] {
        group.extend([0, at(op), how::BY_PLACE, 0, 0, 0, 0]);
        if op != DestroyQp::OP {
            group.extend([&[0; 4][..], &GROUP].concat());
        }
    }
    let group = Seed { name: "group".into(), bytes: group };
    // Memory that the client brings, to write and to read, with regions in it that may and may not
    // be.
    let mut brought = vec![0, 0, at(AllocPd::OP), 0];
    for (writable, origin, access) in [(1, 1, access::ALL), (0, 2, access::REMOTE_READ), (0, 2, access::ALL)] {
        let map = MapMemoryRequest { offset: 4096, bytes: 2 * 4096, writable, origin };
        brought.extend([&[0, at(MapMemory::OP), 0][..], map.as_bytes()].concat());
        let region = RegMrRequest { length: 5000, access, ..RegMrRequest::default() };
        brought.extend([&[0, at(RegMr::OP), how::BY_PLACE][..], region.as_bytes()].concat());
        brought.extend([0, at(FreeMemory::OP), how::BY_PLACE, 0, 0, 0, 0]);
        brought.extend([0, at(DeregMr::OP), how::BY_PLACE, 0, 0, 0, 0]);
        brought.extend([0, at(FreeMemory::OP), how::BY_PLACE, 0, 0, 0, 0]);
    }
    // The same by one call, and both ways to end it.
    for end in [DeregMrAndFree::OP, DeregMr::OP] {
        let memory = MapMemoryRequest { offset: 4096, bytes: 2 * 4096, writable: 1, origin: 1 };
        let region = RegMrRequest { length: 5000, access: access::ALL, ..RegMrRequest::default() };
        let request = MapAndRegMrRequest { memory, region };
        brought.extend([&[0, at(MapAndRegMr::OP), how::BY_PLACE][..], request.as_bytes()].concat());
        brought.extend([0, at(end), how::BY_PLACE, 0, 0, 0, 0]);
        brought.extend([0, at(FreeMemory::OP), how::BY_PLACE, 0, 0, 0, 0]);
    }
    let brought = Seed { name: "brought".into(), bytes: brought };
    let ungreeted = Seed { name: "ungreeted".into(), bytes: [&[1, 0, 6, 0][..], &[0, 0, 0, 1, 0, 0, 0]].concat() };
    alone.chain([Seed { name: "orderly".into(), bytes: orderly }, group, brought, ungreeted]).collect()
}
