//! A program that waits for a completion while its daemon dies, in one of three ways of waiting.

use std::{os::fd::AsFd as _, thread, time::Duration};

use anyhow::{Result, bail, ensure};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    time::{ClockId, clock_gettime},
};
use roced_client::{
    Access, Completion, CompletionChannel, CompletionQueue, CqOptions, Device, Error, Notify, RecvRequest, Status,
};

use crate::end::say;

/// Receives that never complete but by the daemon's death.
const RECEIVES: usize = 4;

/// How it waits.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Waiting {
    /// Polling the completion queue without pause.
    Spin,
    /// In the library's blocking wait.
    Block,
    /// In a poll() of its own over the library's file descriptors.
    Poll,
}

/// Waits, then says when it learned of the daemon's end (nanoseconds of `CLOCK_MONOTONIC`).
pub(crate) fn wait(waiting: Waiting) -> Result<()> {
    let device = Device::open("roce0")?;
    let pd = device.protection_domain()?;
    let channel = device.channel()?;
    let own_poll = matches!(waiting, Waiting::Poll);
    let cq =
        device.completion_queue_with(&CqOptions { channel: own_poll.then_some(&channel), ..CqOptions::default() })?;
    let qp = pd.queue_pair(&cq, &cq).create()?;
    qp.to_init(Access::NONE)?;
    let memory = pd.allocate(64, Access::LOCAL_WRITE)?;
    for _ in 0..RECEIVES {
        qp.post_recv(&RecvRequest::new(&[memory.sge(..)]))?;
    }
    if own_poll {
        cq.arm(Notify::Any);
        ensure!(cq.poll(&mut [Completion::EMPTY])? == 0, "nothing was sent here");
    }
    say("waiting")?;
    let mut ended = match waiting {
        Waiting::Spin => spin(&cq)?,
        Waiting::Block => block(&cq)?,
        Waiting::Poll => {
            poll_by_hand(&device, &channel)?;
            Vec::new()
        }
    };
    let learned = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    ended.extend(drain(&cq)?);
    ensure!(ended == [Status::Fatal; RECEIVES], "work under way ended as {ended:?}");
    ensure!(!device.is_alive(), "the device says that the daemon lives");
    say(&format!("learned {}", Duration::from(learned).as_nanos()))
}

fn spin(cq: &CompletionQueue) -> Result<Vec<Status>> {
    loop {
        let mut one = [Completion::EMPTY];
        if cq.poll(&mut one)? == 1 {
            return Ok(vec![one[0].status]);
        }
        thread::yield_now();
    }
}

fn block(cq: &CompletionQueue) -> Result<Vec<Status>> {
    let mut one = [Completion::EMPTY];
    ensure!(cq.wait(&mut one, Duration::from_secs(60))? == 1, "the wait ended with nothing");
    Ok(vec![one[0].status])
}

fn poll_by_hand(device: &Device, channel: &CompletionChannel) -> Result<()> {
    loop {
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN), PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        ensure!(poll(&mut fds, PollTimeout::from(60_000_u16))? > 0, "poll() ended with nothing");
        match (channel.next_event(), device.next_event()) {
            (Err(Error::DaemonGone), _) | (_, Err(Error::DaemonGone)) => return Ok(()),
            (Err(error), _) | (_, Err(error)) => bail!(error),
            (Ok(_), Ok(_)) => {}
        }
    }
}

/// The remaining completions, to the last one: that the daemon is gone.
fn drain(cq: &CompletionQueue) -> Result<Vec<Status>> {
    let mut ended = Vec::new();
    let mut some = [Completion::EMPTY; 2 * RECEIVES];
    loop {
        match cq.poll(&mut some) {
            Ok(count) => ended.extend(some[..count].iter().map(|completion| completion.status)),
            Err(Error::DaemonGone) => return Ok(ended),
            Err(error) => bail!(error),
        }
    }
}
