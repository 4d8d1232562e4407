//! States of queue pairs and events, from the library through control thread and workers.

mod served;

use std::time::Duration;

use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, DeviceEvent, Error, QpAttributes, QueuePair,
    RecvRequest, Refusal, SendRequest, Status, attribute, state,
};
use served::{DEVICE, Served, eventually};

const SOON: Duration = Duration::from_secs(20);

struct Pair {
    device: Device,
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
}

impl Pair {
    fn new(served: &Served, entries: u32) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(entries).expect("a queue");
        let other = device.completion_queue(64).expect("a queue");
        let a = pd.queue_pair(&cq, &cq).create().expect("a queue pair");
        let b = pd.queue_pair(&other, &other).create().expect("a queue pair");
        Self { device, cq, a, b }
    }

    fn connected(served: &Served, entries: u32) -> Self {
        let pair = Self::new(served, entries);
        let options = ConnectOptions::default();
        pair.a.connect(&pair.b.address(0).expect("a GID"), &options).expect("b is here");
        pair.b.connect(&pair.a.address(0).expect("a GID"), &options).expect("a is here");
        pair
    }

    fn event(&self) -> DeviceEvent {
        let mut event = None;
        eventually("an event", || {
            event = self.device.next_event().expect("alive");
            event.is_some()
        });
        event.expect("it came")
    }

    fn ends_with(&self, wr_id: u64, status: Status) {
        let mut one = [Completion::EMPTY];
        assert_eq!(self.cq.wait(&mut one, SOON).expect("alive"), 1);
        assert_eq!((one[0].wr_id, one[0].status), (wr_id, status));
    }
}

fn refusal(outcome: Result<(), Error>) -> (Refusal, [u64; 2]) {
    match outcome {
        Err(Error::Refused { refusal, detail, .. }) => (refusal, detail),
        other => panic!("a refusal, not {other:?}"),
    }
}

#[test]
fn a_drained_queue_pair_tells_takes_work_and_goes_on() {
    let served = Served::start();
    let pair = Pair::connected(&served, 64);
    pair.a.to_sqd(true).expect("from RTS");
    assert_eq!(pair.event(), DeviceEvent::SqDrained { qpn: pair.a.qpn() });
    pair.b.post_recv(&RecvRequest::new(&[])).expect("room");
    pair.a.post_send(&SendRequest::send_inline(b"").id(5).signaled()).expect("a drained queue takes work");
    let attributes = pair.a.query().expect("alive");
    assert_eq!((attributes.state, attributes.sq_draining), (state::SQD, 0));
    pair.a.resume().expect("drained");
    pair.ends_with(5, Status::Success);
    // It is in RTS: another change from SQD is a mistake, and told as one.
    let refused = refusal(pair.a.resume());
    assert_eq!(refused, (Refusal::InvalidArgument, [attribute::CURRENT_STATE.into(), state::SQD.into()]));
}

#[test]
fn a_change_that_the_table_does_not_have_is_refused_by_its_bits() {
    let served = Served::start();
    let pair = Pair::connected(&served, 64);
    let modify = |mask, state| pair.a.modify(attribute::STATE | mask, &QpAttributes { state, ..Default::default() });
    assert_eq!(refusal(modify(0, state::INIT)), (Refusal::InvalidState, [state::RTS.into(), state::INIT.into()]));
    let excess = attribute::TIMEOUT | attribute::RETRY_CNT;
    assert_eq!(refusal(modify(excess, state::RTS)), (Refusal::InvalidMask, [0, excess.into()]));
    assert_eq!(pair.a.query().expect("alive").state, state::RTS);
}

#[test]
fn a_request_in_rtr_establishes_communication() {
    let served = Served::start();
    let pair = Pair::new(&served, 64);
    let options = ConnectOptions::default();
    pair.b.to_init(Access::ALL).expect("from RESET");
    pair.b.to_rtr(&pair.a.address(0).expect("a GID"), &options).expect("a is here");
    pair.b.post_recv(&RecvRequest::new(&[])).expect("room");
    pair.a.connect(&pair.b.address(0).expect("a GID"), &options).expect("b is here");
    pair.a.post_send(&SendRequest::send_inline(b"").id(1).signaled()).expect("room");
    assert_eq!(pair.event(), DeviceEvent::CommunicationEstablished { qpn: pair.b.qpn() });
}

#[test]
fn a_full_completion_queue_is_told_by_its_own_number() {
    let served = Served::start();
    let pair = Pair::connected(&served, 4);
    let entries = u64::from(pair.cq.entries());
    for wr_id in 0..=entries {
        pair.a.post_send(&SendRequest::write_inline(b"", Default::default()).id(wr_id).signaled()).expect("room");
    }
    let mut events = [pair.event(), pair.event()];
    events.sort_by_key(|event| matches!(event, DeviceEvent::QpFatal { .. }));
    let expected = [DeviceEvent::CqError { cqn: pair.cq.cqn() }, DeviceEvent::QpFatal { qpn: pair.a.qpn() }];
    assert_eq!(events, expected);
    for wr_id in 0..entries {
        pair.ends_with(wr_id, Status::Success);
    }
}

#[test]
fn a_rate_limit_is_set_and_told_and_ends() {
    let served = Served::start();
    let pair = Pair::connected(&served, 64);
    let limit = |kbit_per_s, burst_bytes| {
        pair.a.limit_rate(kbit_per_s, burst_bytes).expect("in RTS");
        let now = pair.a.query().expect("alive");
        assert_eq!((now.rate_limit_kbit_per_s, now.rate_limit_burst_bytes), (kbit_per_s, burst_bytes));
    };
    limit(1_000_000, 0);
    limit(1_000_000, 1 << 20);
    limit(0, 0);
}
