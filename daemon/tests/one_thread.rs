//! Objects of which the program has promised that one thread at a time uses them: they work as
//! others do, and have no locks.
#![expect(unsafe_code, reason = "makes the promise")]

mod served;

use std::fmt::Debug;

use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, CqOptions, Device, ProtectionDomain, QueuePair, RecvRequest,
    SendRequest, SharedReceiveQueue,
};
use served::{DEVICE, Served};

struct Objects {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    qps: [QueuePair; 2],
}

impl Objects {
    fn new(served: &Served, promised: bool) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let options = CqOptions { silent: true, ..CqOptions::default() };
        // SAFETY: each test here has one thread.
        let (cq, srq) = unsafe {
            if promised {
                (device.single_threaded_completion_queue(&options), pd.single_threaded_shared_receive_queue(64, 1))
            } else {
                (device.completion_queue_with(&options), pd.shared_receive_queue(64, 1))
            }
        };
        let (cq, srq) = (cq.expect("a queue"), srq.expect("a queue"));
        let qps = [0, 1].map(|_| {
            let builder = pd.queue_pair(&cq, &cq).shared_receives(&srq);
            // SAFETY: as above.
            let builder = if promised { unsafe { builder.single_threaded() } } else { builder };
            builder.create().expect("a queue pair")
        });
        for at in 0..2 {
            qps[at].connect(&qps[1 - at].address(0).expect("a GID"), &ConnectOptions::default()).expect("it is here");
        }
        Self { pd, cq, srq, qps }
    }
}

/// Locks that an object has, and those that it does without.
fn locks(object: &dyn Debug) -> (usize, usize) {
    let text = format!("{object:?}");
    (text.matches("promised: false").count(), text.matches("promised: true").count())
}

#[test]
fn single_threaded_objects_work_without_locks() {
    let served = Served::start();
    for promised in [false, true] {
        let Objects { pd, cq, srq, qps } = &Objects::new(&served, promised);
        for (object, count) in [(cq as &dyn Debug, 1), (srq, 1)] {
            assert_eq!(locks(object), if promised { (0, count) } else { (count, 0) });
        }
        let memory = pd.allocate(1 << 16, Access::ALL).expect("memory");
        cq.resize(512).expect("room");
        for round in 0..200 {
            let (from, to) = (memory.sge(..100), memory.sge(1000..1100));
            memory.fill(0, 100, round);
            srq.post_recv(&RecvRequest::new(&[to]).id(7)).expect("room");
            qps[usize::from(round % 2)].post_send(&SendRequest::send(&[from]).id(8).signaled()).expect("room");
            let mut ids = [0; 2];
            for id in &mut ids {
                let mut one = [Completion::EMPTY];
                while cq.poll(&mut one).expect("the daemon lives") == 0 {
                    std::thread::yield_now();
                }
                *id = one[0].ok().expect("it arrived").wr_id;
            }
            ids.sort_unstable();
            assert_eq!((ids, memory.to_vec(1000, 100)), ([7, 8], vec![round; 100]));
        }
    }
}
