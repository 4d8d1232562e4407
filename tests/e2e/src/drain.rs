//! A send queue that drains under load and goes on.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use roced_client::{Access, Completion, ConnectOptions, DeviceEvent, SendRequest, state};

use crate::end::{End, hear, say};

/// WRITEs posted for each round; the window holds a part of them.
const BATCH: u64 = 32;
const BYTES: usize = 64 * 1024;

/// Posts a batch, lets the queue drain, sees that nothing moves, and goes on, `rounds` times.
pub(crate) fn drain(rounds: u64) -> Result<()> {
    let end = End::open()?;
    let source = end.pd.allocate(BYTES, Access::LOCAL_WRITE)?;
    let theirs = end.meet(None, &ConnectOptions::default())?;
    let device = end.pd.device();
    let mut stopped_early = 0;
    for round in 0..rounds {
        for wr_id in round * BATCH..(round + 1) * BATCH {
            end.qp.post_send(&SendRequest::write(&[source.sge(..)], theirs).id(wr_id).signaled())?;
        }
        end.qp.to_sqd(true)?;
        let limit = Instant::now() + Duration::from_secs(60);
        while device.next_event()? != Some(DeviceEvent::SqDrained { qpn: end.qp.qpn() }) {
            ensure!(Instant::now() < limit, "no event that the send queue has drained");
            std::thread::sleep(Duration::from_millis(1));
        }
        let attributes = end.qp.query()?;
        ensure!((attributes.state, attributes.sq_draining) == (state::SQD, 0), "{attributes:?}");
        // All completions of the drained work are here; the rest waits until the queue goes on.
        let mut next = round * BATCH;
        let mut some = [Completion::EMPTY; BATCH as usize];
        let done = end.cq.poll(&mut some)?;
        for completion in &some[..done] {
            ensure!(completion.ok()?.wr_id == next, "{completion:?} out of order");
            next += 1;
        }
        stopped_early += u64::from(next < (round + 1) * BATCH);
        end.qp.resume()?;
        while next < (round + 1) * BATCH {
            ensure!(end.completion()?.ok()?.wr_id == next, "out of order");
            next += 1;
        }
    }
    ensure!(stopped_early > 0, "no round stopped before its end");
    say("drained")
}

/// Has memory to which a peer writes.
pub(crate) fn expect() -> Result<()> {
    let end = End::open()?;
    let region = end.pd.allocate(BYTES, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?;
    end.meet(Some(&region), &ConnectOptions::default())?;
    hear().map(drop)
}
