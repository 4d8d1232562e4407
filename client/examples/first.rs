//! A first program: an RDMA WRITE from one queue pair of this process to another.
//!
//! `cargo run -p roced-client --example first`, with a roced running: `scripts/lab exec a -- …` has
//! one. The README shows it.

use std::time::Duration;

use anyhow::{Context, ensure};
use roced_client::{Access, Completion, ConnectOptions, Device, SendRequest};

fn main() -> anyhow::Result<()> {
    let names = Device::list()?;
    let device = Device::open(names.first().context("the daemon has no device")?)?;
    let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
    let (a, b) = (pd.queue_pair(&cq, &cq).create()?, pd.queue_pair(&cq, &cq).create()?);
    let gid = device.gids()?.first().context("the device has no address")?.index;
    let options = ConnectOptions::default();
    a.connect(&b.address(gid)?, &options)?;
    b.connect(&a.address(gid)?, &options)?;
    let memory = pd.allocate(4096, Access::ALL)?;
    a.post_send(&SendRequest::write_inline(b"hello, RDMA", memory.remote()).signaled())?;
    let mut done = [Completion::EMPTY];
    ensure!(cq.wait(&mut done, Duration::from_secs(5))? == 1, "no completion within 5 s");
    println!("{:?}: {}", done[0].ok()?.op, String::from_utf8(memory.to_vec(0, 11))?);
    Ok(())
}
