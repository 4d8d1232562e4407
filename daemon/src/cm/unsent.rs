//! Management datagrams without room at their worker. They wait here for some: their repetition
//! would come a quarter of a second later.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use roced_types::WorkerId;

use crate::{environment::WorkerAccess, worker::sent_mads::OutgoingMad};

/// Datagrams that wait for a worker: 2 MiB. A guess: DREQs to all peers of a large host, at the end
/// of the daemon.
const UNSENT_MAX: usize = 4096;

/// How soon a worker is asked again. It sends more than its queue holds in that time.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Datagrams that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct UnsentMads {
    queues: BTreeMap<WorkerId, VecDeque<OutgoingMad>>,
    asked: Option<Instant>,
}

impl UnsentMads {
    /// Gives a datagram to a worker, now or later; false if too many wait for it.
    pub(super) fn send(&mut self, worker: WorkerId, mad: OutgoingMad, workers: &mut dyn WorkerAccess) -> bool {
        if !self.queues.contains_key(&worker) && workers.send_mad(worker, mad) {
            return true;
        }
        let queue = self.queues.entry(worker).or_default();
        let has_room = queue.len() < UNSENT_MAX;
        if has_room {
            queue.push_back(mad);
            self.asked.get_or_insert_with(Instant::now);
        }
        has_room
    }

    /// When [`Self::send_waiting`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.asked? + ASK_AGAIN)
    }

    /// Gives workers as many of the datagrams that wait as they have room for.
    pub(super) fn send_waiting(&mut self, now: Instant, workers: &mut dyn WorkerAccess) {
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        self.queues.retain(|worker, queue| {
            while queue.front().is_some_and(|mad| workers.send_mad(*worker, *mad)) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        self.asked = (!self.queues.is_empty()).then_some(now);
    }
}

#[cfg(test)]
mod tests {
    use roced_transport::{
        io::Egress,
        management::MAD_BYTES,
        wire::{Path, PathSpec, Roce},
    };
    use roced_types::DeviceId;

    use super::*;
    use crate::worker::{
        command::{Answer, Command},
        mailbox::CallError,
    };

    /// Each has room for so many, and keeps the numbers of those that it took.
    struct FakeWorkers {
        room: [usize; 2],
        taken: [Vec<u16>; 2],
    }

    impl WorkerAccess for FakeWorkers {
        fn call(&mut self, _: WorkerId, _: Command) -> Result<Answer, CallError> {
            Err(CallError::Timeout)
        }

        fn send_mad(&mut self, WorkerId(worker): WorkerId, mad: OutgoingMad) -> bool {
            let worker = worker as usize;
            let has_room = self.room[worker] > 0;
            if has_room {
                self.room[worker] -= 1;
                self.taken[worker].push(u16::from_be_bytes([mad.bytes[0], mad.bytes[1]]));
            }
            has_room
        }
    }

    fn mad(number: u16) -> OutgoingMad {
        let spec = PathSpec {
            via: Egress::Nic { flow: 0 },
            source_mac: [2; 6],
            dest_mac: [4; 6],
            vlan: None,
            source: [1; 16],
            destination: [2; 16],
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V1,
        };
        let mut bytes = [0; MAD_BYTES];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        OutgoingMad { device: DeviceId(0), path: Path::new(&spec).expect("IPv6"), bytes }
    }

    #[test]
    fn datagrams_wait_for_room_and_keep_their_order() {
        let mut workers = FakeWorkers { room: [256, 10], taken: Default::default() };
        let (mut unsent, start) = (UnsentMads::default(), Instant::now());
        assert!((0..600).all(|number| unsent.send(WorkerId(0), mad(number), &mut workers)));
        assert!(unsent.send(WorkerId(1), mad(7), &mut workers), "another worker has room");
        assert_eq!((workers.taken[0].len(), workers.taken[1].len()), (256, 1));
        let mut now = start + Duration::from_secs(1);
        // One that comes later does not overtake those that wait.
        workers.room[0] = 300;
        assert!(unsent.send(WorkerId(0), mad(600), &mut workers));
        assert_eq!(workers.taken[0].len(), 256);
        for taken in [556, 601] {
            unsent.send_waiting(now, &mut workers);
            assert_eq!(workers.taken[0].len(), taken);
            (workers.room[0], now) = (300, now + ASK_AGAIN);
        }
        assert!(workers.taken[0].iter().copied().eq(0..=600));
        assert_eq!(unsent.deadline(), None);
    }

    #[test]
    fn a_worker_that_takes_none_is_asked_a_thousand_times_a_second_and_has_a_limit() {
        let mut workers = FakeWorkers { room: [0, 0], taken: Default::default() };
        let mut unsent = UnsentMads::default();
        let waiting = (0..5000).filter(|number| unsent.send(WorkerId(0), mad(*number), &mut workers)).count();
        assert_eq!(waiting, UNSENT_MAX);
        let due = unsent.deadline().expect("some wait");
        unsent.send_waiting(due, &mut workers);
        assert_eq!(unsent.deadline(), Some(due + ASK_AGAIN));
        workers.room[0] = 1;
        unsent.send_waiting(due, &mut workers);
        assert!(workers.taken[0].is_empty(), "not before");
        unsent.send_waiting(due + ASK_AGAIN, &mut workers);
        assert_eq!(workers.taken[0], [0]);
    }
}
