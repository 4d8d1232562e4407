//! A first program: a message from one host to another.
//!
//! With the address of the other host, `10.10.0.2:18603`, it sends; without one it receives. The
//! README shows it.

use std::{env, time::Duration};

use anyhow::{Context, ensure};
use roced_client::{
    Access, Completion, CompletionQueue, ConnectionOptions, Device, Listener, RecvRequest, Route, SendRequest,
};

const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> anyhow::Result<()> {
    let Some(address) = env::args().nth(1) else { return receive() };
    let route = Route::to(address.parse()?, TIMEOUT)?;
    let device = Device::open(&route.device()?)?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
    let qp = pd.queue_pair(&cq, &cq).create()?;
    let connection = route.connect(&qp, &ConnectionOptions::default())?;
    qp.post_send(&SendRequest::send_inline(b"hello, RDMA").signaled())?;
    println!("{:?} to {} is complete", completion(&cq)?.op, connection.peer()?);
    Ok(())
}

fn receive() -> anyhow::Result<()> {
    let listener = Listener::bind("[::]:18603".parse()?)?;
    println!("listening at {}", listener.address()?);
    let request = listener.next(TIMEOUT)?.context("no peer has come")?;
    let device = Device::open(&request.device()?)?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
    let (qp, memory) = (pd.queue_pair(&cq, &cq).create()?, pd.allocate(4096, Access::LOCAL_WRITE)?);
    qp.to_init(Access::NONE)?;
    qp.post_recv(&RecvRequest::new(&[memory.sge(..)]))?;
    let connection = request.accept(&qp, &ConnectionOptions::default())?;
    let length = completion(&cq)?.byte_len as usize;
    println!("{}: {}", connection.peer()?, String::from_utf8(memory.to_vec(0, length))?);
    Ok(())
}

fn completion(cq: &CompletionQueue) -> anyhow::Result<Completion> {
    let mut done = [Completion::EMPTY];
    ensure!(cq.wait(&mut done, TIMEOUT)? == 1, "nothing completes within {TIMEOUT:?}");
    Ok(done[0].ok()?)
}
