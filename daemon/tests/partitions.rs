//! Partitions, by the client library: the port's table, and reachability.

mod served;

use std::time::Duration;

use roced_client::{
    Completion, ConnectOptions, Device, Error, QueuePair, RecvRequest, Refusal, SendRequest, ServiceType, Status,
};
use served::{DEVICE, Served};

const SOON: Duration = Duration::from_secs(20);

/// The index of the second key of the served device.
const SECOND: u32 = 1;

/// A queue pair of each service that is in the partition at `index`.
fn queue_pair(device: &Device, index: u32, service: ServiceType) -> QueuePair {
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    pd.queue_pair(&cq, &cq).service(service).pkey_index(index).create().expect("a queue pair")
}

fn status_of_a_send(device: &Device, indices: [u32; 2]) -> Status {
    let [here, there] = indices.map(|index| queue_pair(device, index, ServiceType::Rc));
    let options = ConnectOptions { timeout: 8, retry_cnt: 1, ..ConnectOptions::default() };
    here.connect(&there.address(0).expect("a GID"), &options).expect("it is there");
    there.connect(&here.address(0).expect("a GID"), &options).expect("it is here");
    there.post_recv(&RecvRequest::new(&[])).expect("room");
    here.post_send(&SendRequest::send_inline(b"").signaled()).expect("room");
    let mut one = [Completion::EMPTY];
    assert_eq!(here.send_cq().wait(&mut one, SOON).expect("the daemon lives"), 1, "it ends");
    one[0].status
}

#[test]
fn queue_pairs_hear_their_own_partition() {
    let served = Served::start();
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    assert_eq!(device.port().expect("a port").pkeys, [0xffff, 0x8001]);
    assert_eq!(status_of_a_send(&device, [0, 0]), Status::Success);
    assert_eq!(status_of_a_send(&device, [SECOND, SECOND]), Status::Success);
    assert_eq!(status_of_a_send(&device, [0, SECOND]), Status::TransportRetryExceeded);
    let nowhere = queue_pair(&device, 2, ServiceType::Ud);
    let refused = nowhere.activate(1);
    assert!(matches!(refused, Err(Error::Refused { refusal: Refusal::InvalidArgument, .. })), "{refused:?}");
}
