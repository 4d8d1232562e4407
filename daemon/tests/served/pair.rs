//! Two connected queue pairs of one program.

use std::time::Duration;

use roced_client::{Completion, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QueuePair, SendRequest};

use super::{DEVICE, Served};

/// Two connected queue pairs of one program.
pub(crate) struct Pair {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) a: QueuePair,
    pub(crate) b: QueuePair,
}

impl Pair {
    pub(crate) fn new(served: &Served) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        Self::of(&device.protection_domain().expect("a domain"))
    }

    /// Of a domain that is there.
    pub(crate) fn of(pd: &ProtectionDomain) -> Self {
        let (pd, device) = (pd.clone(), pd.device());
        let cq = device.completion_queue(64).expect("a queue");
        let make = || pd.queue_pair(&cq, &cq).create().expect("a queue pair");
        let (a, b) = (make(), make());
        let options = ConnectOptions::default();
        a.connect(&b.endpoint(0).expect("a GID"), &options).expect("b is here");
        b.connect(&a.endpoint(0).expect("a GID"), &options).expect("a is here");
        Self { pd, cq, a, b }
    }

    /// Posts, and waits for its end.
    pub(crate) fn send(&self, request: &SendRequest<'_>) -> Completion {
        self.a.post_send(&(*request).signaled()).expect("room");
        self.reap()
    }

    pub(crate) fn reap(&self) -> Completion {
        let mut one = [Completion::EMPTY];
        assert_eq!(
            self.cq.wait(&mut one, Duration::from_secs(20)).expect("the daemon lives"),
            1,
            "a completion is missing"
        );
        one[0]
    }
}

/// Bytes by which a mistake shows.
pub(crate) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}
