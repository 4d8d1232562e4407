//! Commands as librdmacm writes them, against a daemon in a thread that knows the calls' shapes.

use std::{
    ffi::{CStr, CString, c_void},
    fs,
    io::{IoSlice, IoSliceMut},
    mem,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    path::PathBuf,
    process::Command,
    ptr,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recvmsg, send, sendmsg, socketpair,
};
use roced_abi::{
    VERSION,
    control::{
        AcceptCm, AcceptCmRequest, BindCm, Call as _, CmRoute, ConnectCm, ConnectCmRequest, CreateCmChannel,
        CreateCmId, CreateCmIdRequest, Handle, Hello, HelloReply, JoinCmGroup, ListenCm, MESSAGE_BYTES, Message,
        ResolveCmAddress, ResolveCmAddressRequest, ResolveCmRoute, SetCmOption, SetCmOptionRequest,
    },
};
use roced_client::cm::{
    CM_NO_DEVICE, CmAddress, CmChannelEvent, CmParameters, CmPath, CmSession, cm_event, cm_family, cm_service,
};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use super::{command::execute, event::Executed, slots, table::DeviceChannel};
use crate::errno::{Errno, Result};

const GUID: [u8; 8] = [2, 0, 0, 0xff, 0xfe, 0, 0, 1];
const LOCAL_GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
const REMOTE_GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];

/// The device file over a daemon in a thread.
struct DeviceFile {
    channel: DeviceChannel,
    /// The daemon's end of the channel.
    events: OwnedFd,
    calls: Receiver<Message>,
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair of sockets")
}

fn address(last: u8, port: u16) -> CmAddress {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[10, 0, 0, last]);
    CmAddress { address, scope: 0, family: cm_family::IPV4, port }
}

fn a_route() -> CmRoute {
    let path = CmPath {
        node_guid: GUID,
        local_gid: LOCAL_GID,
        remote_gid: REMOTE_GID,
        device: 0,
        gid_index: 3,
        mtu_bytes: 1024,
        flow_label: 0x000c_0450,
        pkey: 0xffff,
        traffic_class: 0x20,
        hop_limit: 64,
        service_level: 1,
        packet_life_time: 16,
        rate: 0,
        is_resolved: 1,
    };
    CmRoute { source: address(1, 0x1234), destination: address(2, 7174), path }
}

/// Replies to each call with zeros, the next number or the route of all tests.
fn serve(socket: &OwnedFd, events: &Sender<OwnedFd>, calls: &Sender<Message>) {
    let (mut bytes, mut last) = ([0; MESSAGE_BYTES], 0);
    loop {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, None, MsgFlags::empty()).expect("receive");
        if received.bytes == 0 {
            return;
        }
        let call = Message::read_from_bytes(&bytes).expect("a message");
        let (op, sequence) = (call.header.op, call.header.sequence);
        let mut there = None;
        let reply = match op {
            Hello::OP => {
                let hello = HelloReply { version: VERSION, ..HelloReply::new_zeroed() };
                Message::new(op, sequence, &hello)
            }
            BindCm::OP | ResolveCmAddress::OP | ResolveCmRoute::OP | ListenCm::OP => {
                Message::new(op, sequence, &a_route())
            }
            CreateCmChannel::OP | CreateCmId::OP | JoinCmGroup::OP => {
                last += 1;
                if op == CreateCmChannel::OP {
                    let ends = pair();
                    events.send(ends.0).expect("it is waited for");
                    there = Some(ends.1);
                }
                Message::new(op, sequence, &Handle { handle: last })
            }
            _ => Message::new(op, sequence, &Handle::default()),
        };
        // A test that asks for no calls has gone on.
        let _ = calls.send(call);
        let raw: Vec<RawFd> = there.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(reply.as_bytes())], rights, MsgFlags::empty(), None)
            .expect("send");
    }
}

impl DeviceFile {
    fn open() -> Self {
        let (ours, theirs) = pair();
        let ((to_test, events), (report, calls)) = (channel(), channel());
        thread::spawn(move || serve(&theirs, &to_test, &report));
        let session = CmSession::open_over(ours).expect("a session");
        let channel = DeviceChannel::new(session.channel().expect("a channel"));
        Self { channel, events: events.recv().expect("the daemon's end"), calls }
    }

    /// Executes a command whose answer is `OUT` bytes at most, written to the address at `response`
    /// of the body; returns the answer.
    fn command<const OUT: usize>(&self, number: u32, response: Option<usize>, body: &[u8]) -> Result<[u8; OUT]> {
        let mut answer = [0u8; OUT];
        let mut body = body.to_vec();
        if let Some(at) = response {
            let to = (&raw mut answer).expose_provenance() as u64;
            body[at..at + 8].copy_from_slice(&to.to_ne_bytes());
        }
        let executed = self.execute(number, &body, body.len(), OUT)?;
        assert_eq!(executed, Executed::Done);
        // SAFETY: the answer was written through its address.
        #[expect(unsafe_code, reason = "the command writes to an address")]
        Ok(unsafe { ptr::read_volatile(&raw const answer) })
    }

    fn execute(&self, number: u32, body: &[u8], length: usize, out: usize) -> Result<Executed> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&(length as u16).to_ne_bytes());
        bytes.extend_from_slice(&(out as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        execute(&self.channel, &bytes)
    }

    /// An identifier of TCP or UDP.
    fn id(&self, port_space: u16) -> u32 {
        self.id_of_type(port_space, 0)
    }

    fn id_of_type(&self, port_space: u16, qp_type: u8) -> u32 {
        let mut body = [0; 24];
        body[0] = 9;
        body[16..18].copy_from_slice(&port_space.to_ne_bytes());
        body[18] = qp_type;
        u32::from_ne_bytes(self.command(0, Some(8), &body).expect("an identifier"))
    }

    fn bind(&self, id: u32) {
        let mut body = [0; 136];
        body[..4].copy_from_slice(&id.to_ne_bytes());
        body[4] = 16;
        body[8..16].copy_from_slice(&[2, 0, 0, 0, 10, 0, 0, 1]);
        self.command::<0>(20, None, &body).expect("it is bound");
    }

    /// Sends an event, and takes it.
    fn event(&self, event: CmChannelEvent) -> [u8; 336] {
        send(self.events.as_raw_fd(), event.as_bytes(), MsgFlags::empty()).expect("the channel has room");
        self.command(12, Some(0), &[0; 8]).expect("an event")
    }

    /// The last call of this kind.
    fn call(&self, op: u32) -> Message {
        self.calls.try_iter().filter(|call| call.header.op == op).last().expect("it was called")
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn with_id<const BYTES: usize>(id: u32, at: usize, more: &[(usize, u32)]) -> [u8; BYTES] {
    let mut body = [0; BYTES];
    for (at, value) in more.iter().chain([&(at, id)]) {
        body[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    body
}

fn an_event(id: u32, sequence: u64, kind: u32) -> CmChannelEvent {
    let mut private_data = [0; 200];
    (0..).zip(&mut private_data).for_each(|(at, byte)| *byte = at);
    let parameters = CmParameters {
        qpn: 0x111,
        qkey: 0x222,
        responder_resources: 5,
        initiator_depth: 6,
        flow_control: 1,
        retry_count: 4,
        rnr_retry_count: 3,
        srq: 1,
        private_data_bytes: 1,
        reserved: 0,
    };
    CmChannelEvent {
        sequence,
        uid: 9,
        id,
        owner: id,
        kind,
        status: 0,
        route: a_route(),
        parameters,
        starting_psn: 0x00a1_b2c3,
        remote_starting_psn: 0x00d4_e5f6,
        ack_timeout: 17,
        reserved: 0,
        private_data,
    }
}

/// As in the kernel, where a type of its own is that of an `RDMA_PS_IB` identifier alone.
#[test]
fn the_service_of_an_identifier_is_that_of_its_port_space() {
    let file = DeviceFile::open();
    let spaces = [(0x0106, cm_service::RC), (0x0111, cm_service::UD), (0x0002, cm_service::UD)];
    for (port_space, service) in spaces {
        // None, RC, UC, UD, and XRC.
        for qp_type in [0, 2, 3, 4, 9] {
            file.id_of_type(port_space, qp_type);
            let request: CreateCmIdRequest = file.call(CreateCmId::OP).body();
            assert_eq!((request.port_space, request.service), (port_space.into(), service), "type {qp_type}");
        }
    }
}

/// Number, bytes of the body, bytes of the answer, and the field with the answer's address.
const SIZES: [(u32, usize, usize, Option<usize>); 24] = [
    (0, 24, 4, Some(8)),
    (1, 16, 4, Some(0)),
    (2, 40, 0, None),
    (3, 64, 0, None),
    (4, 8, 0, None),
    (5, 16, 200, Some(0)),
    (6, 280, 0, None),
    (7, 8, 0, None),
    (8, 288, 0, None),
    (9, 264, 0, None),
    (10, 4, 0, None),
    (11, 16, 144, Some(0)),
    (12, 8, 324, Some(0)),
    (14, 24, 0, None),
    (15, 8, 0, None),
    (16, 48, 4, Some(0)),
    (17, 16, 4, Some(0)),
    (18, 16, 4, Some(0)),
    (19, 16, 272, Some(0)),
    (20, 136, 0, None),
    (21, 272, 0, None),
    (22, 152, 4, Some(0)),
    (24, 320, 0, None),
    // The query of paths.
    (19, 16, 8, Some(0)),
];

#[test]
fn commands_that_are_too_short_and_answers_without_room_are_refused() {
    let device = DeviceFile::open();
    for (number, bytes, out, response) in SIZES {
        let mut body = vec![0xff; bytes];
        if number == 19 {
            body[12..].copy_from_slice(&u32::from(out == 8).to_ne_bytes());
        }
        assert_eq!(device.execute(number, &body[1..], bytes - 1, 512), Err(Errno::INVALID), "{number}");
        assert_eq!(device.execute(number, &body, bytes + 1, 512), Err(Errno::INVALID), "{number}");
        if let Some(at) = response {
            assert_eq!(device.execute(number, &body, bytes, out - 1), Err(Errno(libc::ENOSPC)), "{number}");
            body[at..at + 8].fill(0);
            assert_eq!(device.execute(number, &body, bytes, out), Err(Errno(libc::EFAULT)), "{number}");
        }
    }
    for (number, error) in [(13, libc::ENOSYS), (23, libc::ENOSYS), (25, libc::EINVAL), (u32::MAX, libc::EINVAL)] {
        assert_eq!(device.execute(number, &[0; 16], 16, 0), Err(Errno(error)), "{number}");
    }
    assert_eq!(execute(&device.channel, &[0; 7]), Err(Errno::INVALID));
}

#[test]
fn identifiers_that_are_not_there_and_not_bound_are_refused() {
    let device = DeviceFile::open();
    let id = device.id(0x106);
    for (number, at, bytes) in [(4, 0, 8), (7, 0, 8), (10, 0, 4), (15, 0, 8), (6, 272, 288), (9, 0, 264)] {
        let mut body = vec![0; bytes];
        body[at..at + 4].copy_from_slice(&777u32.to_ne_bytes());
        match number {
            15 => body[4] = 4,
            6 => body[271] = 1,
            _ => {}
        }
        assert_eq!(device.execute(number, &body, bytes, 0), Err(Errno(libc::ENOENT)), "{number}");
    }
    assert_eq!(device.execute(10, &id.to_ne_bytes(), 4, 0), Err(Errno::INVALID));
    assert_eq!(device.command::<144>(11, Some(0), &with_id::<16>(id, 8, &[(12, 1)])), Err(Errno::INVALID));
    assert_eq!(device.command::<4>(1, Some(0), &with_id::<16>(id, 8, &[])), Ok([0; 4]));
}

/// The sequence by which librdmacm finds out whether the kernel knows `AF_IB`.
#[test]
fn the_probe_of_native_addresses_succeeds_without_a_device() {
    let device = DeviceFile::open();
    let id = device.id(0x13f);
    assert!(id > 60_000);
    let mut bind = with_id::<136>(id, 0, &[(4, 48)]);
    bind[8..10].copy_from_slice(&27u16.to_ne_bytes());
    bind[8 + 24..8 + 32].copy_from_slice(&0x0106_0000_u64.to_be_bytes());
    bind[8 + 32..8 + 40].copy_from_slice(&0xffff_ffff_ffff_0000_u64.to_be_bytes());
    device.command::<0>(20, None, &bind).expect("it is bound");
    let answer = device.command::<280>(19, Some(0), &with_id::<16>(id, 8, &[])).expect("it is queried");
    assert_eq!((answer[8], &answer[12..16]), (0, &[48, 0, 0, 0][..]), "no port, the source's size, no destination");
    assert_eq!(answer[16..64], bind[8..56]);
    let destroy = with_id::<16>(id, 8, &[]);
    assert_eq!(device.command::<4>(1, Some(0), &destroy), Ok([0; 4]));
    assert_eq!(device.command::<4>(1, Some(0), &destroy), Err(Errno(libc::ENOENT)));
    // No identifier of IP can be bound to such an address.
    bind[..4].copy_from_slice(&device.id(0x106).to_ne_bytes());
    assert_eq!(device.command::<0>(20, None, &bind), Err(Errno(libc::EAFNOSUPPORT)));
}

#[test]
fn addresses_arrive_at_the_daemon_by_either_half_of_the_commands() {
    let device = DeviceFile::open();
    let id = device.id(0x106);
    let peer = [2, 0, 0x1c, 0x06, 10, 0, 0, 2];
    let mut old = with_id::<64>(id, 56, &[(60, 2000)]);
    old[28..36].copy_from_slice(&peer);
    device.command::<0>(3, None, &old).expect("it is resolved");
    let by_old: ResolveCmAddressRequest = device.call(ResolveCmAddress::OP).body();
    let mut new = with_id::<272>(id, 0, &[(4, 2000), (8, 16 << 16)]);
    new[144..152].copy_from_slice(&peer);
    device.command::<0>(21, None, &new).expect("it is resolved");
    let by_new: ResolveCmAddressRequest = device.call(ResolveCmAddress::OP).body();
    assert_eq!(by_old, by_new);
    assert_eq!((by_new.destination, by_new.source.family), (address(2, 7174), 0));
    // An address of another length than its family has.
    new[10] = 15;
    assert_eq!(device.command::<0>(21, None, &new), Err(Errno::INVALID));
}

#[test]
fn queries_have_the_addresses_and_the_path_of_the_last_reply() {
    let device = DeviceFile::open();
    let id = device.id(0x106);
    let query = |option| with_id::<16>(id, 8, &[(12, option)]);
    let unbound = device.command::<280>(19, Some(0), &query(0)).expect("it is queried");
    assert_eq!((&unbound[..16], word(&unbound, 272)), (&[0; 16][..], u32::MAX));
    device.bind(id);
    let of_addresses = device.command::<280>(19, Some(0), &query(0)).expect("it is queried");
    assert_eq!((&of_addresses[..8], of_addresses[8], &of_addresses[10..12]), (&GUID[..], 1, &[0xff, 0xff][..]));
    assert_eq!(of_addresses[12..24], [16, 0, 16, 0, 2, 0, 0x12, 0x34, 10, 0, 0, 1]);
    assert_eq!(of_addresses[144..152], [2, 0, 0x1c, 0x06, 10, 0, 0, 2]);
    let gids = device.command::<272>(19, Some(0), &query(2)).expect("it is queried");
    assert_eq!((&gids[12..16], &gids[16 + 8..40]), (&[48, 0, 48, 0][..], &LOCAL_GID[..]));
    assert_eq!((&gids[144..146], &gids[152..168]), (&27u16.to_ne_bytes()[..], &REMOTE_GID[..]));
    let paths = device.command::<80>(19, Some(0), &query(1)).expect("it is queried");
    assert_eq!((word(&paths, 0), word(&paths, 8)), (1, 0x2b));
    let record = &paths[16..];
    assert_eq!((&record[8..24], &record[24..40]), (&REMOTE_GID[..], &LOCAL_GID[..]));
    assert_eq!(record[44..57], [0x0c, 0x04, 0x50, 64, 0x20, 0x81, 0xff, 0xff, 0, 1, 0x83, 0x80, 0x90]);
    let of_head = device.command::<79>(19, Some(0), &query(1)).expect("it is queried");
    assert_eq!((word(&of_head, 0), word(&of_head, 8)), (1, 0), "a path is written whole or not at all");
    let route = device.command::<208>(5, Some(0), &with_id::<16>(id, 8, &[])).expect("it is queried");
    assert_eq!((&route[..8], &route[8..24], &route[24..40]), (&GUID[..], &REMOTE_GID[..], &LOCAL_GID[..]));
    assert_eq!((word(&route, 8 + 48), &route[8 + 52..8 + 54]), (3, &[0xff, 0xff][..]));
    assert_eq!((&route[136..144], &route[164..172]), (&of_addresses[16..24], &of_addresses[144..152]));
    assert_eq!((word(&route, 192), route[196], word(&route, 200)), (1, 1, u32::MAX));
}

#[test]
fn private_data_and_parameters_arrive_in_both_directions() {
    let device = DeviceFile::open();
    let id = device.id(0x106);
    device.bind(id);
    let mut connect = with_id::<288>(id, 272, &[(0, 0x77)]);
    connect[8..64].fill(0xab);
    (connect[264], connect[265], connect[266], connect[267]) = (56, 1, 7, 8);
    (connect[269], connect[270]) = (9, 6);
    assert_eq!(device.command::<0>(6, None, &connect), Err(Errno::INVALID), "the parameters are not valid");
    connect[271] = 1;
    device.command::<0>(6, None, &connect[..280]).expect("it connects, as an older caller");
    let asked: ConnectCmRequest = device.call(ConnectCm::OP).body();
    let CmParameters { qpn, responder_resources, retry_count, private_data_bytes, .. } = asked.parameters;
    assert_eq!((qpn, responder_resources, retry_count, private_data_bytes), (0x77, 7, 7, 56));
    assert_eq!(asked.private_data[..57], [&[0xab; 56][..], &[0]].concat());
    connect[264] = 57;
    assert_eq!(device.command::<0>(6, None, &connect), Err(Errno::INVALID));
    let event = device.event(an_event(id, 1, cm_event::CONNECT_RESPONSE));
    assert_eq!((word(&event, 0), word(&event, 8), word(&event, 12), word(&event, 16)), (9, id, 5, 0));
    let conn = &event[20..];
    assert_eq!((word(conn, 0), conn[264], conn[265], conn[266], conn[267]), (0x111, 196, 1, 5, 6));
    assert_eq!((conn[8..204].to_vec(), conn[204]), ((0..196).collect(), 0));
    let rejected = device.event(CmChannelEvent { status: 28, ..an_event(id, 2, cm_event::REJECTED) });
    assert_eq!((word(&rejected, 16), word(&rejected, 20), rejected[20 + 264]), (28, 0, 148));
    let silent = device.event(CmChannelEvent { status: -libc::ETIMEDOUT, ..an_event(id, 3, cm_event::UNREACHABLE) });
    assert!(silent[20..].iter().all(|byte| *byte == 0));
    let user = device.event(an_event(id, 4, cm_event::USER));
    assert_eq!(user[20..32], [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0]);
    assert_eq!(word(&device.command::<4>(1, Some(0), &with_id::<16>(id, 8, &[])).expect("it is there"), 0), 4);
}

#[test]
fn datagram_events_name_the_peer() {
    let device = DeviceFile::open();
    let id = device.id(0x111);
    let event = device.event(an_event(id, 1, cm_event::ESTABLISHED));
    let ud = &event[20..];
    assert_eq!((word(ud, 0), word(ud, 4), &ud[8..24], word(ud, 24)), (0x111, 0x222, &REMOTE_GID[..], 0x000c_0450));
    assert_eq!((ud[28], ud[29], ud[30], ud[37], ud[38], ud[296]), (3, 64, 0x20, 1, 1, 136));
    let mut join = with_id::<152>(id, 16, &[(20, 16)]);
    (join[8], join[24]) = (5, 2);
    join[28..32].copy_from_slice(&[239, 1, 2, 3]);
    let membership = word(&device.command::<4>(22, Some(0), &join).expect("it joins"), 0);
    let joined = CmChannelEvent { id: membership, uid: 5, ..an_event(id, 2, cm_event::MULTICAST_JOIN) };
    let joined = CmChannelEvent { parameters: CmParameters::default(), ..joined };
    let event = device.event(joined);
    assert_eq!((word(&event, 0), word(&event, 8), word(&event, 12)), (5, membership, 12));
    let ud = &event[20..];
    assert_eq!((word(ud, 0), word(ud, 4), &ud[18..24]), (0x00ff_ffff, 0x0123_4567, &[0xff, 0xff, 239, 1, 2, 3][..]));
    assert_eq!(word(&device.command::<4>(17, Some(0), &with_id::<16>(membership, 8, &[])).expect("it leaves"), 0), 1);
}

fn qp_attr(device: &DeviceFile, id: u32, state: u32) -> Result<[u8; 144]> {
    device.command(11, Some(0), &with_id::<16>(id, 8, &[(12, state)]))
}

#[test]
fn queue_pairs_of_the_active_side_get_the_attributes_of_the_response() {
    let device = DeviceFile::open();
    let id = device.id(0x106);
    device.bind(id);
    let init = qp_attr(&device, id, 1).expect("not connected yet");
    assert_eq!((word(&init, 0), word(&init, 4), word(&init, 36), init[133]), (0x39, 1, 0, 1));
    let mut connect = with_id::<288>(id, 272, &[]);
    (connect[266], connect[269], connect[271]) = (7, 5, 1);
    device.command::<0>(6, None, &connect).expect("it connects");
    let init = qp_attr(&device, id, 1).expect("it is connecting");
    assert_eq!((word(&init, 0), word(&init, 36)), (0x39, 0b1110));
    assert_eq!(qp_attr(&device, id, 2), Err(Errno::INVALID), "the peer is not known yet");
    device.event(an_event(id, 1, cm_event::CONNECT_RESPONSE));
    let rtr = qp_attr(&device, id, 2).expect("the peer is known");
    assert_eq!((word(&rtr, 0), word(&rtr, 12), word(&rtr, 24), word(&rtr, 32)), (0x12_9181, 3, 0x00a1_b2c3, 0x111));
    assert_eq!((&rtr[40..56], rtr[60], rtr[61], rtr[69], rtr[70]), (&REMOTE_GID[..], 3, 64, 1, 1));
    assert_eq!((rtr[131], rtr[132]), (5, 12));
    let rts = qp_attr(&device, id, 3).expect("the peer is known");
    assert_eq!((word(&rts, 0), word(&rts, 28)), (0x1_2e01, 0x00d4_e5f6));
    assert_eq!((rts[130], rts[134], rts[135], rts[136]), (6, 17, 5, 3));
    let timeout = 21u8;
    let mut option = with_id::<24>(id, 8, &[(16, 3), (20, 1)]);
    option[..8].copy_from_slice(&((&raw const timeout).expose_provenance() as u64).to_ne_bytes());
    device.command::<0>(14, None, &option).expect("it is set");
    let set: SetCmOptionRequest = device.call(SetCmOption::OP).body();
    assert_eq!((set.id, set.option, set.value), (id, 3, 21));
    assert_eq!(qp_attr(&device, id, 3).expect("the peer is known")[134], 21);
    option[20] = 4;
    assert_eq!(device.command::<0>(14, None, &option), Err(Errno::INVALID));
    option[12] = 1;
    assert_eq!(device.command::<0>(14, None, &option), Err(Errno(libc::ENOSYS)));
    assert_eq!(qp_attr(&device, id, 4), Err(Errno::INVALID));
}

#[test]
fn queue_pairs_of_the_passive_side_get_the_depths_of_the_acceptance() {
    let device = DeviceFile::open();
    let listener = device.id(0x106);
    let request = CmChannelEvent { id: 500, ..an_event(listener, 1, cm_event::CONNECT_REQUEST) };
    let event = device.event(request);
    assert_eq!((word(&event, 8), event[20 + 264], event[20 + 266]), (500, 56, 5));
    let rts = qp_attr(&device, 500, 3).expect("the peer is known");
    assert_eq!((rts[130], rts[135], rts[136]), (6, 4, 3), "depth and retries of the request");
    let mut accept = with_id::<296>(500, 280, &[]);
    (accept[0], accept[8 + 266], accept[8 + 267], accept[8 + 271]) = (77, 2, 1, 1);
    device.command::<0>(8, None, &accept).expect("it is accepted");
    let accepted: AcceptCmRequest = device.call(AcceptCm::OP).body();
    assert_eq!((accepted.uid, accepted.id, accepted.parameters.responder_resources), (77, 500, 2));
    assert_eq!(qp_attr(&device, 500, 2).expect("the peer is known")[131], 2);
    assert_eq!(qp_attr(&device, 500, 3).expect("the peer is known")[130], 1);
}

#[test]
fn datagram_queue_pairs_get_the_key_of_the_connection_manager() {
    let device = DeviceFile::open();
    let id = device.id(0x111);
    device.bind(id);
    for state in [1, 2, 3] {
        let attributes = qp_attr(&device, id, state).expect("it is bound");
        assert_eq!((word(&attributes, 0), word(&attributes, 20)), (0x71, 0x0123_4567));
    }
    let path = CmPath { device: CM_NO_DEVICE, ..a_route().path };
    let lost = CmChannelEvent { route: CmRoute { path, ..a_route() }, ..an_event(id, 1, cm_event::ADDRESS_ERROR) };
    device.event(lost);
    assert_eq!(qp_attr(&device, id, 1), Err(Errno::INVALID));
}

/// A module with the calls of librdmacm, and functions that show where they go.
const LIKE_LIBRDMACM: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int open_device(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int use_another_file(void)
{
	struct stat status;
	int fd = open("/dev/null", O_RDWR);
	int works = fd >= 0 && fstat(fd, &status) == 0 && S_ISCHR(status.st_mode) && write(fd, "x", 1) == 1;
#ifdef WITH_CLOSE
	works = works && close(fd) == 0;
#endif
	return works;
}
"#;

/// An opened module of the name of librdmacm, which is closed at the end.
struct OpenModule(*mut c_void);

impl OpenModule {
    fn open(path: &CStr, flags: i32) -> Self {
        // SAFETY: a library that does nothing by itself.
        #[expect(unsafe_code, reason = "opens a library")]
        let library = unsafe { libc::dlopen(path.as_ptr(), flags) };
        assert!(!library.is_null(), "{path:?}: is librdmacm1 there (scripts/setup)?");
        Self(library)
    }

    fn call(&self, name: &CStr) -> i32 {
        // SAFETY: the function is in the source above, and takes no arguments.
        #[expect(unsafe_code, reason = "calls a function of a library")]
        unsafe {
            let function = libc::dlsym(self.0, name.as_ptr());
            assert!(!function.is_null(), "{name:?}");
            mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(function)()
        }
    }
}

impl Drop for OpenModule {
    fn drop(&mut self) {
        // SAFETY: it was opened, and nothing of it is in use.
        #[expect(unsafe_code, reason = "closes a library")]
        let closed = unsafe { libc::dlclose(self.0) };
        assert_eq!(closed, 0);
        assert_eq!(slots::redirected(), 0);
    }
}

fn module_folder() -> PathBuf {
    std::env::temp_dir().join(format!("roced-verbs-slots-{}", std::process::id()))
}

fn compile_module(options: &[&str]) -> CString {
    let folder = module_folder();
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let (source, library) = (folder.join("module.c"), folder.join("librdmacm.so.1"));
    fs::write(&source, LIKE_LIBRDMACM).expect("as above");
    // Another file each time, because the loader knows files by their inode.
    let _ = fs::remove_file(&library);
    let shared = ["-shared", "-fPIC", "-O1", "-Wl,-soname,librdmacm.so.1", "-o"];
    let compiled = Command::new("cc").args(shared).arg(&library).arg(&source).args(options).status();
    assert!(compiled.expect("a C compiler: scripts/setup").success());
    CString::new(library.into_os_string().into_encoded_bytes()).expect("a path")
}

/// The distribution's library, and libraries that were linked in other ways. One test, for they
/// have one name.
#[test]
fn the_slots_of_librdmacm_are_found_however_it_is_linked_and_opened() {
    for flags in [libc::RTLD_LAZY, libc::RTLD_NOW, libc::RTLD_LAZY | libc::RTLD_GLOBAL, libc::RTLD_NOW] {
        let _module = OpenModule::open(c"librdmacm.so.1", flags);
        slots::redirect();
        assert_eq!(slots::redirected(), 4, "open, fstat, write and close");
    }
    let with_close = "-DWITH_CLOSE";
    for options in [
        &["-Wl,-z,lazy", with_close][..],
        &["-Wl,-z,now,-z,relro", with_close],
        &["-Wl,-z,now,-z,relro", "-fno-plt", with_close],
        &["-D_FILE_OFFSET_BITS=64", with_close],
        &["-D_FORTIFY_SOURCE=2", with_close],
    ] {
        let module = OpenModule::open(&compile_module(options), libc::RTLD_LAZY);
        for _ in 0..3 {
            slots::redirect();
            assert_eq!(module.call(c"use_another_file"), 1, "{options:?}");
            assert_eq!(slots::redirected(), 4, "{options:?}");
            assert_ne!(module.call(c"open_device"), -libc::ENOENT, "{options:?}");
        }
    }
    let incomplete = OpenModule::open(&compile_module(&[]), libc::RTLD_NOW);
    slots::redirect();
    assert_eq!(slots::redirected(), 0, "a module without one of the slots is left alone");
    assert_eq!((incomplete.call(c"use_another_file"), incomplete.call(c"open_device")), (1, -libc::ENOENT));
    fs::remove_dir_all(module_folder()).expect("it is there");
}
