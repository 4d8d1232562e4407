//! A first program: two queue pairs of one process, a SEND and an RDMA WRITE from one to the other.
//!
//! `cargo run -p roced-client --example first`, with a roced running (`scripts/lab exec a -- …` has one).

use std::time::Duration;

use roced_client::{Access, Completion, ConnectOptions, Device, RecvRequest, SendRequest};

fn main() -> anyhow::Result<()> {
    let device = Device::open(&Device::list()?[0])?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
    let (a, b) = (pd.queue_pair(&cq, &cq).create()?, pd.queue_pair(&cq, &cq).create()?);
    let gid = device.gids()?[0].index;
    a.connect(&b.endpoint(gid)?, &ConnectOptions::default())?;
    b.connect(&a.endpoint(gid)?, &ConnectOptions::default())?;
    let memory = pd.allocate(4096, Access::ALL)?;
    b.post_recv(&RecvRequest::new(&[memory.sge(..100)]).id(1))?;
    a.post_send(&SendRequest::write_inline(b"a WRITE", memory.remote().at(100)))?;
    a.post_send(&SendRequest::send_inline(b"a SEND").id(2).signaled())?;

    let mut done = [Completion::EMPTY; 2];
    let mut reaped = 0;
    while reaped < 2 {
        let count = cq.wait(&mut done, Duration::from_secs(5))?;
        anyhow::ensure!(count > 0, "nothing completed within 5 s");
        for completion in &done[..count] {
            println!("work request {} done: {:?}", completion.ok()?.wr_id, completion.op);
        }
        reaped += count;
    }
    println!("{:?}", String::from_utf8_lossy(&memory.to_vec(0, 6)));
    println!("{:?}", String::from_utf8_lossy(&memory.to_vec(100, 7)));
    Ok(())
}
