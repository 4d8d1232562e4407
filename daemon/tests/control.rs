//! Client sessions from the socket: refusals, the ends of sessions, and freed resources.

mod served;

use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
};

use roced::{
    config::{AccountLimits, ClientLimits, DeviceLimits, LimitsConfig},
    net::NextHop,
};
use roced_abi::{
    VERSION,
    control::{
        AllocMemory, AllocPd, CreateAh, CreateAhRequest, CreateChannel, CreateCq, CreateCqRequest, CreateQp,
        CreateQpRequest, CreateSrq, CreateSrqRequest, DeallocPd, DeregMr, DestroyAh, DestroyChannel, DestroyCq,
        DestroyQp, DestroySrq, DeviceName, FreeMemory, Handle, Header, Hello, HelloRequest, Index, ListDevice,
        MESSAGE_BYTES, MemoryRequest, Message, ModifyQp, ModifyQpRequest, ModifySrq, ModifySrqRequest, Nothing,
        OpenDevice, QueryDevice, QueryGid, QueryPort, QueryQp, QueryQpStatistics, QuerySrq, Refusal, RegMr,
        RegMrRequest,
    },
};
use roced_types::{QpAttributes, WORK_REQUESTS_MAX, access, attribute, gid_of, service, state};
use served::{DEVICE, How, Raw, Served, eventually, is_alone};
use zerocopy::IntoBytes;

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

fn small(limits: ClientLimits) -> Served {
    Served::start_as(How { limits: LimitsConfig { client: limits, ..LimitsConfig::default() }, ..How::default() })
}

fn qp_request(pd: u32, cq: u32) -> CreateQpRequest {
    CreateQpRequest { pd, send_cq: cq, recv_cq: cq, service: service::RC, ..CreateQpRequest::default() }
}

/// A protection domain, a completion queue and a queue pair.
fn with_qp(raw: &mut Raw) -> (u32, u32, u32) {
    let pd = raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
    let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 16, channel: 0 }).expect("below the limit").cqn;
    let qp = raw.call::<CreateQp>(qp_request(pd, cq)).expect("below the limit").qpn;
    (pd, cq, qp)
}

/// A refusal with its two numbers.
type Told = (Refusal, [u64; 2]);

fn told<T: std::fmt::Debug>(result: Result<T, Told>) -> Told {
    result.expect_err("it is refused")
}

fn why<T: std::fmt::Debug>(result: Result<T, Told>) -> Refusal {
    told(result).0
}

#[test]
fn another_version_is_told_both_numbers() {
    let served = Served::start();
    let mut raw = Raw::connect(&served.socket);
    let refused = raw.call::<Hello>(HelloRequest { version: VERSION + 1, program: [0; 16] });
    assert_eq!(refused, Err((Refusal::Version, [VERSION.into(), u64::from(VERSION) + 1])));
    // It may try again, with a version that it has as well.
    assert_eq!(
        raw.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] }).expect("the right one").devices,
        1
    );
}

#[test]
fn calls_before_their_time_or_twice_are_refused() {
    let served = Served::start();
    let mut raw = Raw::connect(&served.socket);
    assert_eq!(why(raw.call::<ListDevice>(Index { index: 0 })), Refusal::OutOfOrder);
    assert_eq!(why(raw.call::<OpenDevice>(DeviceName::new(DEVICE))), Refusal::OutOfOrder);
    raw.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] }).expect("first");
    assert_eq!(why(raw.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] })), Refusal::OutOfOrder);
    assert_eq!(why(raw.call::<AllocPd>(Nothing {})), Refusal::OutOfOrder);
    assert_eq!(why(raw.call::<OpenDevice>(DeviceName::new("nonesuch"))), Refusal::NoSuchDevice);
    assert_eq!(why(raw.call::<OpenDevice>(DeviceName { name: [0xff; 64] })), Refusal::NoSuchDevice);
    assert_eq!(raw.call::<ListDevice>(Index { index: 0 }).expect("it exists").as_str(), Some(DEVICE));
    assert_eq!(why(raw.call::<ListDevice>(Index { index: 1 })), Refusal::NoSuchDevice);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("second");
    assert_eq!(why(raw.call::<OpenDevice>(DeviceName::new(DEVICE))), Refusal::OutOfOrder);
    assert_eq!(why(raw.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] })), Refusal::OutOfOrder);
    raw.call::<AllocPd>(Nothing {}).expect("now");
}

#[test]
fn an_unknown_call_is_refused_and_a_broken_message_ends_the_session() {
    let served = Served::start();
    let mut raw = opened(&served);
    for op in [0, 999, u32::MAX] {
        let reply = raw.say(op, &0u32).expect("the session lives");
        assert_eq!(Refusal::from_status(reply.header.status), Some(Refusal::UnknownCall), "{op}");
    }
    let message = Message::new(1, 1, &0u32);
    let other_magic = Message { header: Header { magic: 7, ..message.header }, ..message };
    let long = [message.as_bytes(), &[0]].concat();
    for broken in [&message.as_bytes()[..MESSAGE_BYTES - 1], &[7], long.as_slice(), other_magic.as_bytes()] {
        let raw = Raw::connect(&served.socket);
        raw.put(broken, &[]);
        assert!(raw.is_closed());
    }
    let client = opened(&served);
    client.put(message.as_bytes(), &[client.as_fd().as_raw_fd()]);
    assert!(client.is_closed());
    // No other session was disturbed.
    raw.call::<AllocPd>(Nothing {}).expect("still served");
}

#[test]
fn every_limit_holds_and_destroyed_objects_make_room() {
    let client = ClientLimits {
        qps: 2,
        cqs: 2,
        channels: 2,
        mrs: 2,
        pds: 2,
        ahs: 2,
        srqs: 2,
        attachments: 2,
        memory_mib: 1,
        ..ClientLimits::default()
    };
    let served = small(client);
    let mut raw = opened(&served);
    let refused = |limit: u64| (Refusal::Limit, [limit, 0]);

    let pds = [(); 2].map(|()| raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle);
    assert_eq!(told(raw.call::<AllocPd>(Nothing {})), refused(2));
    raw.call::<DeallocPd>(Handle { handle: pds[1] }).expect("unused");
    raw.call::<AllocPd>(Nothing {}).expect("room again");

    let channels = [(); 2].map(|()| raw.call::<CreateChannel>(Nothing {}).expect("below the limit").handle);
    assert_eq!(told(raw.call::<CreateChannel>(Nothing {})), refused(2));
    raw.call::<DestroyChannel>(Handle { handle: channels[0] }).expect("unused");

    let cq = CreateCqRequest { entries: 1, channel: 0 };
    let cqs = [(); 2].map(|()| raw.call::<CreateCq>(cq).expect("below the limit").cqn);
    assert_eq!(told(raw.call::<CreateCq>(cq)), refused(2));

    let qps = [(); 2].map(|()| raw.call::<CreateQp>(qp_request(pds[0], cqs[0])).expect("below the limit"));
    assert_eq!(told(raw.call::<CreateQp>(qp_request(pds[0], cqs[0]))), refused(2));
    assert_ne!(qps[0].worker, qps[1].worker, "the worker with fewer queue pairs gets the next");

    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("below the limit").handle;
    let mr = RegMrRequest { pd: pds[0], memory, length: 4096, ..RegMrRequest::default() };
    for _ in 0..2 {
        raw.call::<RegMr>(mr).expect("below the limit");
    }
    assert_eq!(told(raw.call::<RegMr>(mr)), refused(2));

    let ah = CreateAhRequest { pd: pds[0], dgid: mapped([10, 9, 0, 1]), ..CreateAhRequest::default() };
    let ahs = [(); 2].map(|()| raw.call::<CreateAh>(ah).expect("below the limit").handle);
    assert_eq!(told(raw.call::<CreateAh>(ah)), refused(2));
    raw.call::<DestroyAh>(Handle { handle: ahs[0] }).expect("it is there");
    assert_eq!(why(raw.call::<DestroyAh>(Handle { handle: ahs[0] })), Refusal::NoSuchObject);
    raw.call::<CreateAh>(ah).expect("room again");
}

const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[test]
fn an_address_is_checked_before_it_is_taken_and_followed_only_while_it_is_used() {
    let served = Served::start();
    let (mut raw, mut other) = (opened(&served), opened(&served));
    let pd = raw.call::<AllocPd>(Nothing {}).expect("a domain").handle;
    let good = CreateAhRequest { pd, dgid: mapped([10, 9, 0, 5]), ..CreateAhRequest::default() };
    for (wrong, refusal) in [
        (CreateAhRequest { pd: pd + 1, ..good }, Refusal::NoSuchObject),
        (CreateAhRequest { sgid_index: 1, ..good }, Refusal::NoSuchGid),
        (CreateAhRequest { sgid_index: 2, ..good }, Refusal::InvalidArgument),
        (CreateAhRequest { dgid: [0; 16], ..good }, Refusal::InvalidArgument),
        (CreateAhRequest { flow_label: 1 << 20, ..good }, Refusal::InvalidArgument),
        (CreateAhRequest { hop_limit: 256, ..good }, Refusal::InvalidArgument),
        (CreateAhRequest { traffic_class: 256, ..good }, Refusal::InvalidArgument),
        (CreateAhRequest { service_level: 8, ..good }, Refusal::InvalidArgument),
    ] {
        assert_eq!(why(raw.call::<CreateAh>(wrong)), refusal, "{wrong:?}");
    }
    assert_eq!(why(other.call::<CreateAh>(good)), Refusal::NoSuchObject, "another client's domain");
    let followed = || served.told.lock().expect("no thread panicked").followed.len();
    assert_eq!(followed(), 0, "refused memory is not followed");
    let ah = raw.call::<CreateAh>(good).expect("a route").handle;
    assert_eq!(followed(), 1);
    assert_eq!(why(other.call::<DestroyAh>(Handle { handle: ah })), Refusal::NoSuchObject);
    assert_eq!(told(raw.call::<DeallocPd>(Handle { handle: pd })), (Refusal::InUse, [1, 0]));
    raw.call::<DestroyAh>(Handle { handle: ah }).expect("it is there");
    assert_eq!(followed(), 0);
    raw.call::<CreateAh>(good).expect("a route");
    served.told.lock().expect("no thread panicked").elsewhere = None;
    let nobody = CreateAhRequest { dgid: mapped([10, 9, 0, 6]), ..good };
    assert_eq!(why(raw.call::<CreateAh>(nobody)), Refusal::NoRoute);
    // A client that goes leaves nothing behind.
    drop((raw, other));
    served.wait_until_empty();
    assert_eq!(followed(), 0);
}

#[test]
fn all_memory_counts_against_one_limit() {
    let served = small(ClientLimits { memory_mib: 1, ..ClientLimits::default() });
    let mut raw = opened(&served);
    let refused = Err((Refusal::Limit, [1 << 20, 0]));
    let ask = |raw: &mut Raw, bytes| raw.call::<AllocMemory>(MemoryRequest { bytes });
    assert_eq!(ask(&mut raw, (1 << 20) + 1), refused);
    assert_eq!(ask(&mut raw, u64::MAX), Err((Refusal::InvalidArgument, [0, u64::MAX])));
    assert_eq!(ask(&mut raw, 0), Err((Refusal::InvalidArgument, [0, 0])));
    // The session memfd takes a page of the megabyte.
    assert_eq!(ask(&mut raw, 1 << 20), refused);
    let all = ask(&mut raw, (1 << 20) - 4096).expect("the rest").handle;
    assert_eq!(ask(&mut raw, 1), refused);
    let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 1, channel: 0 });
    assert_eq!(why(cq), Refusal::Limit, "queues are memory as well");
    raw.call::<FreeMemory>(Handle { handle: all }).expect("unused");
    let (pd, cq, _) = with_qp(&mut raw);
    let big = CreateQpRequest { send_wrs: WORK_REQUESTS_MAX, ..qp_request(pd, cq) };
    assert_eq!(why(raw.call::<CreateQp>(big)), Refusal::Limit);
    let report = served.on_control_thread(|clients, _| clients.reports().next());
    let report = report.expect("one session");
    assert_eq!((report.device.as_str(), report.qps), (DEVICE, 1));
    assert!(report.memory_bytes >= 3 * 4096 && report.memory_bytes < 1 << 20, "{report:?}");
}

#[test]
fn a_device_is_shared_within_its_limits() {
    let device = DeviceLimits { qps: 1, mrs: 1, ahs: 1, srqs: 1, attachments: 1 };
    let account = AccountLimits { share_percent: 100, ..AccountLimits::default() };
    let limits = LimitsConfig { device, account, clients: 2, ..LimitsConfig::default() };
    let served = Served::start_as(How { limits, ..How::default() });
    let (mut first, mut second) = (opened(&served), opened(&served));
    let (pd, _, qp) = with_qp(&mut first);
    let other = second.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
    let cq = second.call::<CreateCq>(CreateCqRequest { entries: 1, channel: 0 }).expect("below the limit").cqn;
    assert_eq!(second.call::<CreateQp>(qp_request(other, cq)), Err((Refusal::Limit, [1, 0])));
    first.call::<DestroyQp>(Handle { handle: qp }).expect("it exists");
    second.call::<CreateQp>(qp_request(other, cq)).expect("room again");
    let memory = first.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("below the limit").handle;
    let mr = RegMrRequest { pd, memory, ..RegMrRequest::default() };
    first.call::<RegMr>(mr).expect("below the limit");
    assert_eq!(first.call::<RegMr>(mr), Err((Refusal::Limit, [1, 0])));

    // One client too many is told so.
    let mut third = Raw::connect(&served.socket);
    assert_eq!(third.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] }), Err((Refusal::Limit, [2, 0])));
    assert!(third.is_closed());
    drop(second);
    eventually("room for a client", || {
        Raw::connect(&served.socket).call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] }).is_ok()
    });
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let served = Served::start();
    let mut raw = opened(&served);
    let pd = raw.call::<AllocPd>(Nothing {}).expect("a domain").handle;
    let channel = raw.call::<CreateChannel>(Nothing {}).expect("a channel").handle;
    let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 4, channel }).expect("a queue").cqn;
    let qp = raw.call::<CreateQp>(qp_request(pd, cq)).expect("a queue pair").qpn;
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 8192 }).expect("memory").handle;
    let request = RegMrRequest { pd, memory, length: 8192, ..RegMrRequest::default() };
    let mr = raw.call::<RegMr>(request).expect("a region").handle;
    let handle = |handle| Handle { handle };
    let in_use = |users: u64| (Refusal::InUse, [users, 0]);

    assert_eq!(told(raw.call::<DeallocPd>(handle(pd))), in_use(2));
    assert_eq!(told(raw.call::<DestroyChannel>(handle(channel))), in_use(1));
    assert_eq!(told(raw.call::<DestroyCq>(handle(cq))), in_use(2));
    assert_eq!(told(raw.call::<FreeMemory>(handle(memory))), in_use(1));
    raw.call::<DestroyQp>(handle(qp)).expect("first");
    assert_eq!(told(raw.call::<DeallocPd>(handle(pd))), in_use(1));
    raw.call::<DeregMr>(handle(mr)).expect("unused");
    raw.call::<FreeMemory>(handle(memory)).expect("unused now");
    raw.call::<DeallocPd>(handle(pd)).expect("unused now");
    raw.call::<DestroyCq>(handle(cq)).expect("unused now");
    raw.call::<DestroyChannel>(handle(channel)).expect("unused now");

    // Once gone, gone.
    let gone = |number: u32| (Refusal::NoSuchObject, [number.into(), 0]);
    assert_eq!(told(raw.call::<DestroyQp>(handle(qp))), gone(qp));
    assert_eq!(told(raw.call::<DeregMr>(handle(mr))), gone(mr));
    assert_eq!(told(raw.call::<FreeMemory>(handle(memory))), gone(memory));
    assert_eq!(told(raw.call::<DeallocPd>(handle(pd))), gone(pd));
    assert_eq!(told(raw.call::<DestroyCq>(handle(cq))), gone(cq));
    assert_eq!(told(raw.call::<DestroyChannel>(handle(channel))), gone(channel));
    assert_eq!(told(raw.call::<QueryQpStatistics>(handle(qp))), gone(qp));
}

#[test]
fn objects_of_another_client_are_no_objects() {
    let served = Served::start();
    let (mut owner, mut thief) = (opened(&served), opened(&served));
    let (pd, cq, qp) = with_qp(&mut owner);
    let memory = owner.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("memory").handle;
    let own = thief.call::<AllocPd>(Nothing {}).expect("a domain").handle;
    assert_eq!(why(thief.call::<DestroyQp>(Handle { handle: qp })), Refusal::NoSuchObject);
    assert_eq!(why(thief.call::<QueryQp>(Handle { handle: qp })), Refusal::NoSuchObject);
    assert_eq!(why(thief.call::<DestroyCq>(Handle { handle: cq })), Refusal::NoSuchObject);
    assert_eq!(why(thief.call::<CreateQp>(qp_request(own, cq))), Refusal::NoSuchObject);
    assert_eq!(why(thief.call::<DeallocPd>(Handle { handle: pd })), Refusal::NoSuchObject);
    let mr = RegMrRequest { pd: own, memory, ..RegMrRequest::default() };
    assert_eq!(why(thief.call::<RegMr>(mr)), Refusal::NoSuchObject);
    let to_error = ModifyQpRequest {
        qpn: qp,
        mask: attribute::STATE,
        attributes: QpAttributes { state: state::ERR, ..QpAttributes::default() },
    };
    assert_eq!(why(thief.call::<ModifyQp>(to_error)), Refusal::NoSuchObject);
    assert_eq!(owner.call::<QueryQp>(Handle { handle: qp }).expect("it is there").state, state::RESET);
}

#[test]
fn numbers_out_of_range_name_their_field() {
    let served = Served::start();
    let mut raw = opened(&served);
    let (pd, cq, _) = with_qp(&mut raw);
    let wrong = |place: u64, value: u64| (Refusal::InvalidArgument, [place, value]);
    let base = qp_request(pd, cq);
    assert_eq!(told(raw.call::<CreateQp>(CreateQpRequest { send_sges: 33, ..base })), wrong(6, 33));
    assert_eq!(told(raw.call::<CreateQp>(CreateQpRequest { signal_all: 2, ..base })), wrong(9, 2));
    assert_eq!(why(raw.call::<CreateQp>(CreateQpRequest { service: 9, ..base })), Refusal::NotSupported);
    assert_eq!(
        told(raw.call::<CreateCq>(CreateCqRequest { entries: u32::MAX, channel: 0 })),
        wrong(0, u32::MAX.into())
    );
    assert_eq!(why(raw.call::<CreateCq>(CreateCqRequest { entries: 1, channel: 77 })), Refusal::NoSuchObject);
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("memory").handle;
    let mr = RegMrRequest { pd, memory, length: 4096, ..RegMrRequest::default() };
    assert_eq!(told(raw.call::<RegMr>(RegMrRequest { length: 4097, ..mr })), wrong(3, 4097));
    assert_eq!(told(raw.call::<RegMr>(RegMrRequest { offset: 1, ..mr })), wrong(3, 4096));
    assert_eq!(told(raw.call::<RegMr>(RegMrRequest { offset: u64::MAX, length: 0, ..mr })), wrong(2, u64::MAX));
    assert_eq!(told(raw.call::<RegMr>(RegMrRequest { va: u64::MAX, ..mr })), wrong(4, u64::MAX));
    let write_only = access::REMOTE_WRITE;
    assert_eq!(told(raw.call::<RegMr>(RegMrRequest { access: write_only, ..mr })), wrong(5, write_only.into()));
}

#[test]
fn keys_and_numbers_cannot_be_guessed_from_earlier_ones() {
    let served = Served::start();
    let mut raw = opened(&served);
    let pd = raw.call::<AllocPd>(Nothing {}).expect("a domain").handle;
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("memory").handle;
    let mr = RegMrRequest { pd, memory, ..RegMrRequest::default() };
    let mut keys: Vec<u32> = (0..64).map(|_| raw.call::<RegMr>(mr).expect("below the limit").rkey).collect();
    let steps: std::collections::BTreeSet<u32> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > 60, "keys follow a pattern: {steps:x?}");
    keys.sort_unstable_by_key(|key| key >> 8);
    keys.dedup_by_key(|key| *key >> 8);
    assert_eq!(keys.len(), 64, "each has an index of its own");
    assert!(keys.iter().all(|key| key >> 8 != 0));
}

#[test]
fn the_device_reports_its_attributes() {
    let served = Served::start();
    let mut raw = opened(&served);
    let device = raw.call::<QueryDevice>(Nothing {}).expect("open");
    assert_eq!(device.node_guid, [0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
    assert_eq!((device.max_qps, device.max_sges), (ClientLimits::default().qps, 32));
    let port = raw.call::<QueryPort>(Nothing {}).expect("open");
    assert_eq!((port.active, port.active_mtu_bytes, port.gid_entries), (1, 4096, 3));
    let gid = raw.call::<QueryGid>(Index { index: 0 }).expect("it exists");
    assert_eq!((gid.gid, gid.vlan), (gid_of([10, 9, 0, 1].into()), 0xffff));
    assert_eq!(raw.call::<QueryGid>(Index { index: 1 }).expect("an empty one").gid, [0; 16]);
    assert_eq!(raw.call::<QueryGid>(Index { index: 3 }), Err((Refusal::NoSuchGid, [3, 0])));
}

#[test]
fn a_path_is_checked_before_it_is_taken_and_followed_only_while_it_is_used() {
    let served = Served::start();
    let mut raw = opened(&served);
    let (.., qpn) = with_qp(&mut raw);
    let init = QpAttributes { state: state::INIT, ..QpAttributes::default() };
    let to_init = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
    let rtr = QpAttributes {
        state: state::RTR,
        path_mtu_bytes: 4096,
        dgid: gid_of([10, 9, 0, 2].into()),
        dest_qpn: 17,
        ..QpAttributes::default()
    };
    let to_rtr = attribute::STATE
        | attribute::AV
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN
        | attribute::MAX_DEST_RD_ATOMIC
        | attribute::MIN_RNR_TIMER;
    let mut modify = |mask, attributes| raw.call::<ModifyQp>(ModifyQpRequest { qpn, mask, attributes });
    let followed = || served.told.lock().expect("no thread panicked").followed.len();

    assert_eq!(modify(to_rtr, rtr), Err((Refusal::InvalidState, [state::RESET.into(), state::RTR.into()])));
    assert_eq!(followed(), 0, "refused memory is not followed");
    modify(to_init, init).expect("from RESET");
    assert_eq!(modify(to_rtr, QpAttributes { sgid_index: 1, ..rtr }), Err((Refusal::NoSuchGid, [1, 0])));
    assert_eq!(why(modify(to_rtr, QpAttributes { sgid_index: 2, ..rtr })), Refusal::InvalidArgument);
    assert_eq!(modify(to_rtr & !attribute::RQ_PSN, rtr), Err((Refusal::InvalidMask, [attribute::RQ_PSN.into(), 0])));
    served.told.lock().expect("no thread panicked").port.link_mtu_bytes = 1500;
    assert_eq!(modify(to_rtr, rtr), Err((Refusal::PathMtu, [4096, 1024])));
    served.told.lock().expect("no thread panicked").elsewhere = None;
    assert_eq!(why(modify(to_rtr, QpAttributes { path_mtu_bytes: 1024, ..rtr })), Refusal::NoRoute);
    assert_eq!(followed(), 0);
    served.told.lock().expect("no thread panicked").elsewhere = Some(NextHop::Resolving);
    modify(to_rtr, QpAttributes { path_mtu_bytes: 1024, ..rtr }).expect("all is well");
    assert_eq!(followed(), 1);
    let now = raw.call::<QueryQp>(Handle { handle: qpn }).expect("it exists");
    assert_eq!((now.state, now.path_resolving, now.dest_qpn), (state::RTR, 1, 17));

    let follow = *served.told.lock().expect("no thread panicked").followed.keys().next().expect("one");
    served.change(vec![roced::net::NetworkChange::NextHop(follow, NextHop::Unreachable)]);
    assert_eq!(raw.call::<QueryQp>(Handle { handle: qpn }).expect("it exists").path_resolving, 0);
    raw.call::<DestroyQp>(Handle { handle: qpn }).expect("it exists");
    assert_eq!(followed(), 0);
}

#[test]
fn a_worker_that_does_not_answer_is_told_of_and_calls_may_be_tried_again() {
    let served = Served::start();
    let set_stuck = |stuck| served.told.lock().expect("no thread panicked").stuck = stuck;
    let mut raw = opened(&served);
    let (pd, cq, qp) = with_qp(&mut raw);
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("memory").handle;
    let region = RegMrRequest { pd, memory, length: 4096, ..RegMrRequest::default() };
    let mr = raw.call::<RegMr>(region).expect("a region").handle;

    let srq = CreateSrqRequest { pd, wrs: 4, sges: 1 };
    let srqn = raw.call::<CreateSrq>(srq).expect("below the limit").srqn;

    set_stuck(true);
    assert_eq!(why(raw.call::<CreateSrq>(srq)), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<ModifySrq>(ModifySrqRequest { srqn, limit: 1 })), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<QuerySrq>(Handle { handle: srqn })), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<DestroySrq>(Handle { handle: srqn })), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<DeregMr>(Handle { handle: mr })), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<RegMr>(region)), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<DestroyQp>(Handle { handle: qp })), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<CreateQp>(qp_request(pd, cq))), Refusal::WorkerTimeout);
    assert_eq!(why(raw.call::<QueryQp>(Handle { handle: qp })), Refusal::WorkerTimeout);
    // Calls without a worker continue.
    raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("below the limit");
    raw.call::<AllocPd>(Nothing {}).expect("below the limit");
    set_stuck(false);
    assert_eq!(raw.call::<FreeMemory>(Handle { handle: memory }), Err((Refusal::InUse, [1, 0])));
    raw.call::<DeregMr>(Handle { handle: mr }).expect("second try");
    raw.call::<FreeMemory>(Handle { handle: memory }).expect("unused now");
    raw.call::<DestroyQp>(Handle { handle: qp }).expect("second try");
    raw.call::<DestroySrq>(Handle { handle: srqn }).expect("second try");

    // A client that goes while a worker is stuck is gone all the same, and the next is served.
    let gone = opened(&served);
    set_stuck(true);
    drop((raw, gone));
    served.wait_until_empty();
    set_stuck(false);
    with_qp(&mut opened(&served));
}

#[test]
fn a_client_that_does_not_read_replies_is_disconnected() {
    let served = Served::start();
    let mut other = opened(&served);
    let raw = opened(&served);
    let message = Message::new(<ListDevice as roced_abi::control::Call>::OP, 1, &Index { index: 0 });
    // Sends until the daemon closes the socket, with any unread replies in it.
    let mut bytes = 0;
    while nix::sys::socket::send(raw.as_fd().as_raw_fd(), message.as_bytes(), nix::sys::socket::MsgFlags::MSG_NOSIGNAL)
        .is_ok()
    {
        bytes += message.as_bytes().len();
        assert!(bytes < 64 << 20, "no side drops it");
    }
    other.call::<AllocPd>(Nothing {}).expect("still served");
    eventually("one session is left", || served.sessions() == 1);
}

/// Resources of this process: file descriptors, and mappings of memfds.
fn worker_memory() -> (usize, usize) {
    let fds = fs::read_dir("/proc/self/fd").expect("procfs").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    (fds, maps.lines().filter(|line| line.contains("/memfd:roced")).count())
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    if !is_alone("a_client_that_goes_leaves_nothing_behind") {
        return;
    }
    let served = Served::start();
    let crowd = |raw: &mut Raw| {
        let (pd, ..) = with_qp(raw);
        let channel = raw.call::<CreateChannel>(Nothing {}).expect("a channel").handle;
        let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 4, channel }).expect("a queue").cqn;
        let srq = raw.call::<CreateSrq>(CreateSrqRequest { pd, wrs: 4, sges: 1 }).expect("a shared queue").srqn;
        raw.call::<CreateQp>(CreateQpRequest { srq, ..qp_request(pd, cq) }).expect("a queue pair");
        let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 8192 }).expect("memory").handle;
        raw.call::<RegMr>(RegMrRequest { pd, memory, length: 8192, ..RegMrRequest::default() }).expect("a region");
    };
    // The first one lets tables grow.
    crowd(&mut opened(&served));
    served.wait_until_empty();
    // Threads of the user give it back.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let before = worker_memory();
    let is_given_back = || eventually("all is given back", || worker_memory() == before);
    for _ in 0..5 {
        let mut raw = opened(&served);
        crowd(&mut raw);
        let during = worker_memory();
        assert!(during.0 > before.0 && during.1 > before.1, "{during:?} {before:?}");
        drop(raw);
        served.wait_until_empty();
        is_given_back();
    }
    // One that ends it all by itself, and one that the daemon ends.
    let mut raw = opened(&served);
    crowd(&mut raw);
    raw.put(&[1, 2, 3], &[]);
    assert!(raw.is_closed());
    drop(raw);
    served.wait_until_empty();
    is_given_back();
}
