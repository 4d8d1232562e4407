//! A region that is deregistered while a transfer is under way: by the one that exposes it, or by
//! the one that uses it.

use anyhow::Result;
use roced_client::{Access, ConnectOptions, RemoteMemory, SendRequest, Sge};

use crate::end::{End, hear, say};

/// Time enough for a test to take the network away for a moment: 268 ms, eight times.
fn options() -> ConnectOptions {
    ConnectOptions { timeout: 16, ..ConnectOptions::default() }
}

/// Exposes `bytes` until the test says a word, and then no more.
pub(crate) fn expose(bytes: usize) -> Result<()> {
    let end = End::open()?;
    let region = end.pd.allocate(bytes, Access::ALL)?;
    end.meet(Some(&region), &options())?;
    hear()?;
    drop(region);
    say("deregistered")?;
    hear()?;
    Ok(())
}

/// How a transfer goes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Direction {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

/// One message of `bytes`. Says when it is posted, drops the local region at a word from the test
/// that says so, and tells how the request ended.
pub(crate) fn transfer(direction: Direction, bytes: usize) -> Result<()> {
    let end = End::open()?;
    let region = end.pd.allocate(bytes, Access::LOCAL_WRITE)?;
    let theirs = end.meet(None, &options())?;
    let sges = [region.sge(..)];
    end.qp.post_send(&request(direction, &sges, theirs).signaled())?;
    say("posted")?;
    if hear()? == "deregister" {
        drop(region);
        say("deregistered")?;
    }
    say(&format!("ended {:?}", end.completion()?.status))
}

fn request<'a>(direction: Direction, sges: &'a [Sge], theirs: RemoteMemory) -> SendRequest<'a> {
    match direction {
        Direction::Write => SendRequest::write(sges, theirs),
        Direction::Read => SendRequest::read(sges, theirs),
    }
}
