//! Attachment of interfaces on a thread of its own.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
    thread,
};

use anyhow::Context as _;
use nix::sys::eventfd::{EfdFlags, EventFd};
use roced_types::{DeviceId, WorkerId};

use super::attachment::{Attached, LinkProperties, attach, check_mtu, check_queues, owners_again};
use crate::{
    config,
    sandbox::{Sandbox, ThreadKind},
};

/// Name of the threads that attach.
const ATTACH_THREAD: &str = "roced-attach";

/// An attempt to attach to the interface of a device.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) device: DeviceId,
    pub(super) config: config::DeviceConfig,
    /// Of the interface.
    pub(super) link: LinkProperties,
    /// The workers that have an endpoint of the device.
    pub(super) endpoints: Vec<WorkerId>,
    /// All workers.
    pub(super) workers: Vec<config::WorkerConfig>,
    /// Queues that it was served on last; 0 if it was not.
    pub(super) served_before: usize,
    /// Queues on which frames arrive, if they are the reason to attach again.
    pub(super) wanted_queues: u32,
}

impl Attempt {
    fn make(&self) -> anyhow::Result<Attached> {
        check_mtu(&self.config, self.link.mtu_bytes)?;
        let (workers, endpoints) = (self.workers.len() as u32, self.endpoints.len() as u32);
        let owners = check_queues(&self.config, &self.link, workers, endpoints.max(self.wanted_queues))?;
        let owners = owners_again(owners, &self.endpoints)?;
        let mut attached = attach(&self.config, &self.link, &owners, &self.workers, self.served_before)?;
        // Where the driver has changed its mind, it is not tried again and again.
        attached.0.queue_watch.expect(self.wanted_queues);
        Ok(attached)
    }
}

/// Makes attempts in threads of their own, and collects the results. A thread that is older than
/// the control thread's sandbox starts them: attaching takes more than the control thread may do.
#[derive(Debug)]
pub(super) struct Attacher {
    attempts: mpsc::Sender<Attempt>,
    results: mpsc::Receiver<(DeviceId, anyhow::Result<Attached>)>,
    doorbell: Arc<EventFd>,
}

/// Where an attempt leaves its result.
#[derive(Clone)]
struct AttachResults {
    sender: mpsc::Sender<(DeviceId, anyhow::Result<Attached>)>,
    doorbell: Arc<EventFd>,
}

impl AttachResults {
    fn give(&self, device: DeviceId, result: anyhow::Result<Attached>) {
        // Without a receiver the daemon stops: the attachment is undone.
        if self.sender.send((device, result)).is_ok() {
            let _ = self.doorbell.write(1);
        }
    }
}

/// Starts a thread for each attempt, until the daemon stops.
fn start_attempts(attempts: &mpsc::Receiver<Attempt>, results: &AttachResults) {
    while let Ok(attempt) = attempts.recv() {
        let (device, own) = (attempt.device, results.clone());
        let make = move || own.give(device, attempt.make());
        if let Err(error) = thread::Builder::new().name(ATTACH_THREAD.into()).spawn(make) {
            results.give(device, Err(error).context("no thread to attach the XDP program"));
        }
    }
}

impl Attacher {
    pub(super) fn start(sandbox: &Sandbox) -> anyhow::Result<Self> {
        let (sender, results) = mpsc::channel();
        let (attempts, to_start) = mpsc::channel();
        let doorbell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let (results_of_all, sandbox) = (AttachResults { sender, doorbell: Arc::clone(&doorbell) }, sandbox.clone());
        let begin = move || {
            sandbox.enter_or_abort(ThreadKind::Attach);
            start_attempts(&to_start, &results_of_all);
        };
        thread::Builder::new().name(ATTACH_THREAD.into()).spawn(begin).context("no thread to attach XDP programs")?;
        Ok(Self { attempts, results, doorbell })
    }

    /// Begins an attempt; at most one for each device at a time.
    pub(super) fn begin(&self, attempt: Attempt) -> anyhow::Result<()> {
        self.attempts.send(attempt).map_err(|_| anyhow::anyhow!("the thread that attaches XDP programs has ended"))
    }

    /// The next result.
    pub(super) fn next(&self) -> Option<(DeviceId, anyhow::Result<Attached>)> {
        // EAGAIN when the doorbell was not rung since.
        let _ = self.doorbell.read();
        self.results.try_recv().ok()
    }
}

impl AsFd for Attacher {
    /// Readable when there is a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
