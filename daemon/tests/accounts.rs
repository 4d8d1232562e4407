//! Accounts: limits of all programs of a user together, and the room that they leave for others.

#![expect(unsafe_code, reason = "takes ownership of received descriptors")]

mod served;

use std::{
    collections::BTreeMap,
    io::IoSliceMut,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use roced::config::{AccessRule, AccountLimits, AccountName, LimitsConfig, RuleLimits};
use roced_abi::{
    VERSION,
    control::{
        AcceptCm, AcceptCmRequest, AllocMemory, AllocPd, Call, CmParameters, ConnectCm, ConnectCmRequest, CreateAh,
        CreateAhRequest, CreateCmChannel, CreateCq, CreateCqRequest, CreateQp, CreateQpRequest, DestroyCmChannel,
        DestroyQp, DeviceName, FreeMemory, Handle, Hello, HelloRequest, Index, ListDevice, MemoryRequest, Message,
        Nothing, OpenCm, OpenDevice, Refusal, limit::AccountResource,
    },
};
use roced_report::AccountReport;
use served::{DEVICE, How, Raw, Served, eventually, other_user::as_unprivileged_user};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A client with the objects that a queue pair needs.
struct QpMaker {
    raw: Raw,
    request: CreateQpRequest,
}

impl QpMaker {
    fn new(served: &Served) -> Self {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
        let pd = raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
        let request = CreateCqRequest { entries: 16, ..CreateCqRequest::default() };
        let cq = raw.call::<CreateCq>(request).expect("below the limit").cqn;
        let request = CreateQpRequest {
            pd,
            send_cq: cq,
            recv_cq: cq,
            service: 2,
            send_wrs: 1,
            recv_wrs: 1,
            send_sges: 1,
            recv_sges: 1,
            ..CreateQpRequest::default()
        };
        Self { raw, request }
    }

    fn make(&mut self) -> Result<u32, (Refusal, [u64; 2])> {
        self.raw.call::<CreateQp>(self.request).map(|made| made.qpn)
    }

    /// As many as it gets, up to `most`, and the refusal of the next.
    fn make_all(&mut self, most: usize) -> (Vec<u32>, Option<(Refusal, [u64; 2])>) {
        let mut made = Vec::new();
        while made.len() < most {
            match self.make() {
                Ok(qpn) => made.push(qpn),
                Err(refused) => return (made, Some(refused)),
            }
        }
        (made, None)
    }
}

fn served(account: AccountLimits, qps: u32) -> Served {
    let mut limits = LimitsConfig { account, ..LimitsConfig::default() };
    limits.device.qps = qps;
    Served::start_as(How { limits, ..How::default() })
}

fn report(served: &Served) -> AccountReport {
    served
        .on_control_thread(|clients, _| clients.account_reports(&BTreeMap::new()))
        .into_iter()
        .next()
        .expect("there is one")
}

/// All sessions of a user count together, for every session its own limits besides.
#[test]
fn the_limit_of_an_account_holds_for_all_its_sessions_together() {
    let served = served(AccountLimits { qps: Some(5), share_percent: 100, ..AccountLimits::default() }, 64);
    let mut makers = [(); 3].map(|()| QpMaker::new(&served));
    let [first, second, third] = &mut makers;
    assert_eq!(first.make_all(3).1, None);
    let (made, refused) = second.make_all(64);
    assert_eq!((made.len(), refused), (2, Some((Refusal::Limit, [5, AccountResource::Qps.of_account()]))));
    assert!(third.make().is_err());
    let account = report(&served);
    assert_eq!((account.taken["qps"], account.refused["qps"], account.taken["clients"]), (5, 2, 3));
    second.raw.call::<DestroyQp>(Handle { handle: made[0] }).expect("it is there");
    third.make().expect("there is room again");
    drop(makers);
    served.wait_until_empty();
    eventually("all is given back", || {
        let account = report(&served);
        account.taken.values().all(|taken| *taken == 0) && account.refused["qps"] == 2
    });
}

/// One user that takes as many queue pairs as it gets leaves enough for the next one.
#[test]
fn one_account_cannot_take_all_queue_pairs_of_a_device() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = served(AccountLimits::default(), 40);
    let mut greedy: Vec<QpMaker> = (0..4).map(|_| QpMaker::new(&served)).collect();
    let (made, refused): (Vec<_>, Vec<_>) = greedy.iter_mut().map(|maker| maker.make_all(64)).unzip();
    assert_eq!(made.iter().map(Vec::len).sum::<usize>(), 30, "three quarters");
    assert_eq!(refused[0], Some((Refusal::Limit, [30, AccountResource::Qps.share()])));
    as_unprivileged_user(&served, || {
        let (made, refused) = QpMaker::new(&served).make_all(64);
        assert_eq!(made.len(), 8, "three quarters of the rest");
        assert_eq!(refused, Some((Refusal::Limit, [8, AccountResource::Qps.share()])));
    });
}

/// The daemon's own memory for a queue pair counts before it is made, and completely.
#[test]
fn memory_of_large_queue_pairs_is_limited() {
    let served = served(AccountLimits { daemon_memory_mib: 120, ..AccountLimits::default() }, 64);
    let mut maker = QpMaker::new(&served);
    let large = CreateQpRequest {
        send_wrs: 32_768,
        recv_wrs: 32_768,
        send_sges: 32,
        recv_sges: 32,
        inline_bytes: 512,
        ..maker.request
    };
    let small = std::mem::replace(&mut maker.request, large);
    let (made, refused) = maker.make_all(64);
    assert_eq!(refused, Some((Refusal::Limit, [120 << 20, AccountResource::DaemonMemory.of_account()])));
    assert_eq!(made.len(), 2, "of 52 MiB each");
    assert!(report(&served).taken["daemon_memory_mib"] > 100 << 20);
    maker.request = small;
    maker.make().expect("a small one has room");
    for qpn in made {
        maker.raw.call::<DestroyQp>(Handle { handle: qpn }).expect("it is there");
    }
    assert!(report(&served).taken["daemon_memory_mib"] < 1 << 20);
}

/// An object and the descriptor that comes with it: an event channel, and its end of the program,
/// without which it ends.
fn made_with_file(raw: &Raw, request: &Message) -> Result<(u32, OwnedFd), (Refusal, [u64; 2])> {
    raw.put(request.as_bytes(), &[]);
    let mut bytes = [0; size_of::<Message>()];
    let mut room = nix::cmsg_space!([RawFd; 4]);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(raw.as_fd().as_raw_fd(), &mut pieces, Some(&mut room), MsgFlags::empty());
    let files = message.expect("a reply").cmsgs().expect("room").find_map(|control| match control {
        ControlMessageOwned::ScmRights(files) => Some(files),
        _ => None,
    });
    let reply = Message::read_from_bytes(&bytes).expect("a whole message");
    if let Some(refusal) = Refusal::from_status(reply.header.status) {
        return Err((refusal, reply.body()));
    }
    let file = files.expect("a descriptor beside the reply")[0];
    // SAFETY: it has just been received, and nothing else has it.
    Ok((reply.body::<Handle>().handle, unsafe { OwnedFd::from_raw_fd(file) }))
}

fn make_channel(raw: &mut Raw) -> Result<(u32, OwnedFd), (Refusal, [u64; 2])> {
    made_with_file(raw, &Message::new(CreateCmChannel::OP, 0, &Nothing {}))
}

/// Each event channel counts before it is made, with all events that it can ever have.
#[test]
fn memory_of_event_channels_is_limited() {
    let served = served(AccountLimits { daemon_memory_mib: 2, ..AccountLimits::default() }, 64);
    let opened = || {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenCm>(Nothing {}).expect("after the greeting");
        raw
    };
    let mut raw = opened();
    let mut made = Vec::new();
    let refused = loop {
        match make_channel(&mut raw) {
            Ok(channel) => made.push(channel),
            Err(refused) => break refused,
        }
        assert!(made.len() < 100, "a limit is reached");
    };
    assert_eq!(refused, (Refusal::Limit, [2 << 20, AccountResource::DaemonMemory.of_account()]));
    assert!((20..=40).contains(&made.len()), "{} channels", made.len());
    let full = report(&served);
    assert_eq!(full.refused["daemon_memory_mib"], 1);
    assert_eq!(make_channel(&mut opened()).map(drop), Err(refused), "another session of the user's");
    raw.call::<DestroyCmChannel>(Handle { handle: made[0].0 }).expect("it is there");
    let of_one = full.taken["daemon_memory_mib"] / made.len() as u64;
    assert_eq!(report(&served).taken["daemon_memory_mib"], full.taken["daemon_memory_mib"] - of_one);
    made.push(make_channel(&mut raw).expect("there is room again"));
    drop(raw);
    served.wait_until_empty();
    eventually("all is given back", || report(&served).taken["daemon_memory_mib"] == 0);
}

/// Mapped memory of all sessions of a user together has a limit, and a refusal takes nothing.
#[test]
fn mapped_memory_of_an_account_is_limited() {
    let served = served(AccountLimits { memory_mib: Some(8), ..AccountLimits::default() }, 64);
    let mut makers = [(); 2].map(|()| QpMaker::new(&served));
    let mut alloc = |at: usize, mib: u64| makers[at].raw.call::<AllocMemory>(MemoryRequest { bytes: mib << 20 });
    alloc(0, 5).expect("below the limit");
    let refused = (Refusal::Limit, [8 << 20, AccountResource::MappedMemory.of_account()]);
    assert_eq!(alloc(1, 4).map(|_| ()), Err(refused));
    alloc(1, 2).expect("below the limit");
}

/// Freed memory counts until a thread of the user's has unmapped it; a call that needs its place
/// waits for that.
#[test]
fn freed_memory_may_be_allocated_again_at_once() {
    const BYTES: u64 = 192 << 20;
    let served = served(AccountLimits { memory_mib: Some(256), ..AccountLimits::default() }, 64);
    let mut maker = QpMaker::new(&served);
    let before = report(&served).taken["memory_mib"];
    for _ in 0..4 {
        let request = Message::new(AllocMemory::OP, 0, &MemoryRequest { bytes: BYTES });
        let (handle, file) = made_with_file(&maker.raw, &request).expect("the last one is gone");
        assert_eq!(report(&served).taken["memory_mib"], before + BYTES);
        fallocate(&file, FallocateFlags::empty(), 0, BYTES as i64).expect("the host has room");
        // Ours is the last mapping: to unmap it frees the pages.
        drop(file);
        maker.raw.call::<FreeMemory>(Handle { handle }).expect("it is there");
    }
    eventually("it is given back", || report(&served).taken["memory_mib"] == before);
}

/// The connection manager takes a queue pair only of a session of the same user: the peer of
/// another user's connection would take that for stale.
#[test]
fn a_connection_names_no_queue_pair_of_another_user() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = served(AccountLimits::default(), 64);
    let mut owner = QpMaker::new(&served);
    let qpn = owner.make().expect("below the limit");
    let opened = || {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenCm>(Nothing {}).expect("after the greeting");
        raw
    };
    // The identifier is missing in each case: that is the answer if the queue pair may be named.
    let of = |qpn| CmParameters { qpn, ..CmParameters::default() };
    let connect = |raw: &mut Raw, qpn| {
        let request = ConnectCmRequest { parameters: of(qpn), ..ConnectCmRequest::default() };
        raw.call::<ConnectCm>(request).map(|_| ())
    };
    let refused = |errno: Errno| Err((Refusal::Cm, [errno as u64, 0]));
    assert_eq!(connect(&mut opened(), qpn), refused(Errno::ENOENT), "another session of the user's");
    as_unprivileged_user(&served, || {
        let mut other = QpMaker::new(&served);
        let own = other.make().expect("below the limit");
        let mut raw = opened();
        assert_eq!(connect(&mut raw, own), refused(Errno::ENOENT));
        assert_eq!(connect(&mut raw, qpn), refused(Errno::EINVAL));
        assert_eq!(connect(&mut raw, 0x00ab_cdef), refused(Errno::EINVAL), "of no session");
        let request = AcceptCmRequest { parameters: of(qpn), ..AcceptCmRequest::default() };
        assert_eq!(raw.call::<AcceptCm>(request).map(|_| ()), refused(Errno::EINVAL));
    });
    drop(owner);
}

/// A device without another table has the class selector of the DSCP as priority.
#[test]
fn a_rule_decides_about_the_priorities_of_packets() {
    let priorities = Some([0, 3].into_iter().collect());
    let rule = AccessRule { priorities, ..AccessRule::default() };
    let for_another = AccessRule { users: vec![AccountName::Numbered(4_000_000)], ..AccessRule::default() };
    let served = Served::start_as(How { access: vec![for_another, rule], ..How::default() });
    let QpMaker { mut raw, request: CreateQpRequest { pd, .. } } = QpMaker::new(&served);
    let mut dgid = [0; 16];
    dgid[10..].copy_from_slice(&[0xff, 0xff, 10, 9, 0, 5]);
    let to = |traffic_class| CreateAhRequest { pd, dgid, traffic_class, ..CreateAhRequest::default() };
    for allowed in [0, 28, 96, 127] {
        raw.call::<CreateAh>(to(allowed)).expect("of priority 0 or 3");
    }
    for (refused, priority) in [(32, 1), (128, 4), (192, 6), (255, 7)] {
        assert_eq!(raw.call::<CreateAh>(to(refused)).map(drop), Err((Refusal::Forbidden, [1, priority + 1])));
    }
}

/// Rules decide about users by their uids, and about all others.
#[test]
fn rules_decide_which_devices_a_user_sees_and_how_much_it_has() {
    let own = nix::unistd::getuid().as_raw();
    let limits = RuleLimits { qps: Some(2), ..RuleLimits::default() };
    let for_own = AccessRule { users: vec![AccountName::Numbered(own)], limits, ..AccessRule::default() };
    let for_others = AccessRule { devices: Some(Vec::new()), ..AccessRule::default() };
    let served = Served::start_as(How { access: vec![for_own, for_others], ..How::default() });
    assert_eq!(QpMaker::new(&served).make_all(8).1, Some((Refusal::Limit, [2, AccountResource::Qps.of_account()])));
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED in part: only root can act as another user");
        return;
    }
    as_unprivileged_user(&served, || {
        let mut raw = Raw::connect(&served.socket);
        let hello = HelloRequest { version: VERSION, program: [0; 16] };
        assert_eq!(raw.call::<Hello>(hello).expect("it may connect").devices, 0);
        assert_eq!(raw.call::<ListDevice>(Index { index: 0 }).map(drop), Err((Refusal::NoSuchDevice, [0, 0])));
        assert_eq!(raw.call::<OpenDevice>(DeviceName::new(DEVICE)).map(drop), Err((Refusal::Forbidden, [1, 0])));
    });
}
