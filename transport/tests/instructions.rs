//! Operations that must not depend on the number of queue pairs of an endpoint, counted in
//! instructions: adding one, removing one, reading the counters.
//!
//! The same call is made in a child process, single-stepped by `ptrace(2)`, of an endpoint with few
//! queue pairs and of one with many. A walk over all of them, or over a list in which all of them
//! stand, costs at least an instruction each. Time says nothing here, and is not looked at.

use std::{
    env,
    hint::black_box,
    io,
    process::{Command, Stdio},
};

use nix::{
    sys::{
        ptrace,
        signal::{Signal, raise},
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use roced_transport::{
    endpoint::{Endpoint, EndpointConfig},
    partition::Partitions,
    qp::{Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
};
use roced_types::{Cqn, EndpointId, Pdn, QpAttributes, QpSizes, Qpn, attribute, state};

const FEW: u32 = 100;
const MANY: u32 = 10_000;
/// Instructions by which two counts may differ: none is known of, a walk over [`MANY`] takes a
/// hundred times as many.
const SLACK: u64 = 100;

/// In the child's environment: the call, and of how many queue pairs.
const CALL: &str = "ROCED_COUNTED_CALL";
const COUNT: &str = "ROCED_COUNTED_QPS";

/// Its name, and the action of the child.
type Call = (&'static str, fn(&mut Endpoint));

const CALLS: [Call; 4] = [
    ("insert_qp", insert),
    ("remove_qp", remove),
    ("remove_qp, attached to a group", remove_attached),
    ("counters", read),
];

fn main() {
    if let (Ok(call), Ok(count)) = (env::var(CALL), env::var(COUNT)) {
        return be_counted(&call, count.parse().expect("a number"));
    }
    for (call, _) in CALLS {
        let counts = [FEW, MANY].map(|count| instructions(call, count));
        let [few, many] = match counts {
            [Ok(few), Ok(many)] => [few, many],
            [Err(error), _] | [_, Err(error)] => {
                println!("skipped: a process cannot be traced here: {error}");
                return;
            }
        };
        println!("{call}: {few} instructions of {FEW} queue pairs, {many} of {MANY}");
        assert!(
            few.abs_diff(many) <= SLACK,
            "{call} takes {few} instructions with {FEW} queue pairs and {many} with {MANY}"
        );
    }
}

/// Instructions of a call, those of the two stops around it included.
fn instructions(call: &str, count: u32) -> io::Result<u64> {
    let mut child =
        Command::new(env::current_exe()?).env(CALL, call).env(COUNT, count.to_string()).stdin(Stdio::null()).spawn()?;
    let counted = step_through(Pid::from_raw(child.id() as i32));
    let killed = child.kill();
    let _status = child.wait()?;
    killed.and(counted)
}

/// Steps from the first stop that the child makes to the second.
fn step_through(child: Pid) -> io::Result<u64> {
    let stop = WaitStatus::Stopped(child, Signal::SIGSTOP);
    match waitpid(child, None)? {
        first if first == stop => {}
        other => return Err(io::Error::other(format!("it ended before the call: {other:?}"))),
    }
    let mut steps = 0;
    loop {
        ptrace::step(child, None)?;
        match waitpid(child, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => steps += 1,
            last if last == stop => return Ok(steps),
            other => panic!("the child ended within the call: {other:?}"),
        }
    }
}

fn be_counted(call: &str, count: u32) {
    let (_, run) = CALLS.into_iter().find(|(name, _)| *name == call).expect("one of them");
    let mut endpoint = endpoint(count + 1);
    for at in 1..=count {
        endpoint.insert_qp(Box::new(qp(number(at)))).map_err(|(_, reject)| reject).expect("a free number");
        to_init(&mut endpoint, number(at));
    }
    for group in 0..8 {
        endpoint.attach(number(1), [0xff, group, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]).expect("room");
    }
    ptrace::traceme().expect("a process may be traced by its parent");
    run(&mut endpoint);
}

/// Does `what` between two stops; the result ends behind them.
fn between_stops<T>(what: impl FnOnce() -> T) {
    raise(Signal::SIGSTOP).expect("to itself");
    let result = black_box(what());
    raise(Signal::SIGSTOP).expect("to itself");
    drop(result);
}

fn insert(endpoint: &mut Endpoint) {
    let qp = Box::new(qp(number(0)));
    between_stops(|| endpoint.insert_qp(qp).is_ok());
}

/// Of one in the middle: it stands behind others in the list of senders.
fn remove(endpoint: &mut Endpoint) {
    let qpn = number(FEW / 2);
    between_stops(|| endpoint.remove_qp(qpn));
}

fn remove_attached(endpoint: &mut Endpoint) {
    between_stops(|| endpoint.remove_qp(number(1)));
}

fn read(endpoint: &mut Endpoint) {
    between_stops(|| endpoint.counters());
}

/// Numbers all over the index space, each once.
fn number(at: u32) -> Qpn {
    Qpn::new(EndpointId::new(1).expect("small"), at.wrapping_mul(0x9e37_79b1) % Qpn::INDEX_COUNT)
}

fn endpoint(qps: u32) -> Endpoint {
    Endpoint::new(EndpointConfig {
        id: EndpointId::new(1).expect("small"),
        max_mrs: 64,
        max_ahs: 0,
        max_srqs: 0,
        max_attachments: 1024,
        max_qps: qps,
        total_window_packets: 192,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    })
}

fn qp(qpn: Qpn) -> Qp {
    Qp::new(QpConfig {
        qpn,
        service: ServiceType::Ud,
        pd: Pdn(1),
        send_cq: Cqn(1),
        recv_cq: Cqn(1),
        sizes: QpSizes { send_wrs: 1, recv_wrs: 1, send_sges: 1, recv_sges: 1, inline_bytes: 0 },
        signal_all: true,
        credits: true,
        window_packets: 128,
    })
}

fn to_init(endpoint: &mut Endpoint, qpn: Qpn) {
    use attribute::{PKEY_INDEX, PORT, QKEY, STATE};
    let attributes = QpAttributes { state: state::INIT, ..QpAttributes::default() };
    endpoint.modify_qp(qpn, STATE | PKEY_INDEX | PORT | QKEY, &attributes, None).expect("all that it wants");
}
