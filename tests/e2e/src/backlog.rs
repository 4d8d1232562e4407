//! Datagrams posted on many queue pairs as fast as they are taken, until the program is killed; and
//! the time that calls of another program take meanwhile.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use roced_client::{
    AddressOptions, CompletionQueue, Device, Error, Gid, ProtectionDomain, QueuePair, SendRequest, ServiceType,
};

use crate::end::say;

/// Datagrams that a queue pair can have posted.
const DEPTH: u32 = 4096;
const QKEY: u32 = 0x1234;
/// A queue pair that the peer does not have.
const NOT_THERE: u32 = 77;

/// A datagram queue pair that may send, and report no completion.
fn sender(pd: &ProtectionDomain, cq: &CompletionQueue, depth: u32) -> Result<QueuePair> {
    let builder = pd.queue_pair(cq, cq).service(ServiceType::Ud);
    let qp = builder.send_wrs(depth).recv_wrs(1).inline_bytes(0).create()?;
    qp.activate(QKEY)?;
    Ok(qp)
}

/// Keeps the send queues of `qps` queue pairs full.
pub(crate) fn keep_full(peer: Gid, qps: usize) -> Result<()> {
    let device = open()?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(1)?);
    let ah = pd.address_handle(&AddressOptions::new(peer))?;
    let qps = (0..qps).map(|_| sender(&pd, &cq, DEPTH)).collect::<Result<Vec<_>>>()?;
    let request = SendRequest::send_inline(&[]);
    let mut rounds = 0;
    loop {
        for qp in &qps {
            loop {
                match qp.post_send(&request.to(&ah, NOT_THERE, QKEY)) {
                    Ok(()) => {}
                    Err(Error::QueueFull { .. }) => break,
                    Err(error) => return Err(error).context("posting"),
                }
            }
        }
        rounds += 1;
        if rounds == 2 {
            say("full")?;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes calls for `time`, each with a command to a worker; says how long they took.
pub(crate) fn time_calls(time: Duration) -> Result<()> {
    let device = open()?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(1)?);
    let qp = sender(&pd, &cq, 1)?;
    say("calls")?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let since = Instant::now();
        qp.query()?;
        times.push(since.elapsed());
        thread::sleep(Duration::from_micros(200));
    }
    ensure!(!times.is_empty(), "no time for a call");
    times.sort_unstable();
    let [median, p99, most] =
        [times.len() / 2, times.len() * 99 / 100, times.len() - 1].map(|at| times[at].as_micros());
    say(&format!("calls {} median_us {median} p99_us {p99} most_us {most}", times.len()))
}

fn open() -> Result<Device> {
    let name = Device::list()?.into_iter().next().context("the daemon has no device")?;
    Ok(Device::open(&name)?)
}
