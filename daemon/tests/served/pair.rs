//! Two connected queue pairs of one program, and their operations.

use std::time::Duration;

use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, SendRequest,
};

use super::{DEVICE, Served};

/// Longer than anything that ends takes.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The code for no ACK timer. For tests that count packets: on a busy host a worker may run later
/// than 67 ms, and would then retransmit unacknowledged packets.
pub(crate) const NO_ACK_TIMER: u32 = 0;

/// Two connected queue pairs of one program.
pub(crate) struct Pair {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) a: QueuePair,
    pub(crate) b: QueuePair,
}

impl Pair {
    pub(crate) fn new(served: &Served) -> Self {
        Self::over(served, 0)
    }

    /// Over the GID at that index.
    pub(crate) fn over(served: &Served, gid: u32) -> Self {
        Self::of(&open(served).protection_domain().expect("a domain"), gid)
    }

    /// Of a domain that is there.
    pub(crate) fn of(pd: &ProtectionDomain, gid: u32) -> Self {
        Self::connected(pd, gid, &ConnectOptions::default())
    }

    /// Connected so.
    pub(crate) fn connected(pd: &ProtectionDomain, gid: u32, options: &ConnectOptions) -> Self {
        let (pd, device) = (pd.clone(), pd.device());
        let cq = device.completion_queue(256).expect("a queue");
        let make =
            || pd.queue_pair(&cq, &cq).send_sges(32).recv_sges(32).inline_bytes(512).create().expect("a queue pair");
        let (a, b) = (make(), make());
        a.connect(&b.address(gid).expect("a GID"), options).expect("b is here");
        b.connect(&a.address(gid).expect("a GID"), options).expect("a is here");
        Self { device, pd, cq, a, b }
    }

    /// The first queue pair of each is connected to the other's: where there is one worker they
    /// lend each other payload.
    pub(crate) fn connect_first(&self, other: &Self) {
        let ends = [&self.a, &other.a];
        ends.iter().for_each(|qp| qp.reset().expect("from anywhere"));
        let [ours, theirs] = ends.map(|qp| qp.address(0).expect("a GID"));
        self.a.connect(&theirs, &ConnectOptions::default()).expect("it is here");
        other.a.connect(&ours, &ConnectOptions::default()).expect("it is here");
    }

    /// Memory that both may do everything with.
    pub(crate) fn memory(&self) -> MemoryRegion {
        self.pd.allocate(1 << 20, Access::ALL).expect("memory")
    }

    /// Posts, and waits for its end.
    pub(crate) fn send(&self, request: &SendRequest<'_>) -> Completion {
        self.a.post_send(&(*request).signaled()).expect("room");
        self.reap(1)[0]
    }

    pub(crate) fn reap(&self, count: usize) -> Vec<Completion> {
        reap(&self.cq, count)
    }
}

/// The only device, opened.
pub(crate) fn open(served: &Served) -> Device {
    Device::open_at(&served.socket, DEVICE).expect("it is served")
}

/// Waits for `count` completions.
pub(crate) fn reap(cq: &CompletionQueue, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut some = [Completion::EMPTY; 7];
        let room = some.len().min(count - all.len());
        let got = cq.wait(&mut some[..room], SOON).expect("the daemon lives");
        assert!(got > 0, "completions are missing: {all:?}");
        all.extend_from_slice(&some[..got]);
    }
    all
}

/// Bytes by which a mistake shows.
pub(crate) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}
