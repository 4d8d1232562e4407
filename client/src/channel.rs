//! Completion channels: one file descriptor that reports completions of many queues.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv},
};
use roced_abi::control::{ChannelEvent, CreateChannel, DestroyChannel, Handle, Nothing};
use zerocopy::{FromZeros, IntoBytes};

use crate::{
    cq::{CompletionQueue, CqInner},
    device::{Device, DeviceInner},
    error::{Error, Result},
    socket::lock,
};

/// A completion channel. Clones name the same channel, which is destroyed when the last clone and
/// every completion queue that reports to it are gone.
///
/// A completion queue reports once for each [`CompletionQueue::arm`]. Poll the queue after arming
/// it and before waiting: completions that arrived earlier are not reported.
///
/// ```no_run
/// use std::time::Duration;
///
/// use roced_client::{Completion, CqOptions, Device, Notify};
///
/// # fn main() -> roced_client::Result<()> {
/// let device = Device::open("roce0")?;
/// let channel = device.channel()?;
/// let options = CqOptions { entries: 64, channel: Some(&channel), ..CqOptions::default() };
/// let cq = device.completion_queue_with(&options)?;
/// // Queue pairs with this completion queue have work posted here.
/// let mut done = [Completion::EMPTY; 16];
/// loop {
///     cq.arm(Notify::Any);
///     let count = cq.poll(&mut done)?;
///     for completion in &done[..count] {
///         println!("work request {} is complete: {:?}", completion.wr_id, completion.status);
///     }
///     if count == 0 && channel.wait(Duration::from_secs(10))?.is_none() {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(crate) inner: Arc<ChannelInner>,
}

#[derive(Debug)]
pub(crate) struct ChannelInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) handle: u32,
    socket: OwnedFd,
    reporting: Mutex<Reporting>,
}

/// The completion queues that report to a channel. Locked while an event is taken, so that the
/// first event that waits is always of one of them: the file descriptor of a channel without such
/// events is not readable.
#[derive(Debug, Default)]
struct Reporting {
    queues: HashMap<u32, Weak<CqInner>>,
    /// Events of destroyed queues may wait behind the first.
    has_stale: bool,
}

impl Device {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// The session's limit; the daemon is gone.
    pub fn channel(&self) -> Result<CompletionChannel> {
        let (reply, [fd]) = self.inner.session.call_with_fds::<CreateChannel, 1>(Nothing {})?;
        Ok(CompletionChannel::new(&self.inner, reply.handle, fd))
    }
}

impl CompletionChannel {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32, socket: OwnedFd) -> Self {
        Self {
            inner: Arc::new(ChannelInner { device: Arc::clone(device), handle, socket, reporting: Mutex::default() }),
        }
    }

    /// Returns the next completion queue that reported, or `None`. Does not wait.
    ///
    /// # Errors
    /// The daemon is gone; poll every completion queue for the work that this ended.
    pub fn next_event(&self) -> Result<Option<CompletionQueue>> {
        loop {
            let mut reporting = lock(&self.inner.reporting);
            let Some(cqn) = self.inner.take(&mut reporting)? else { return Ok(None) };
            // Without a holder, a queue is being destroyed.
            if let Some(inner) = reporting.queues.get(&cqn).and_then(Weak::upgrade) {
                return Ok(Some(CompletionQueue { inner }));
            }
        }
    }

    /// Returns the number of the next completion queue that reports. Waits unless the file
    /// descriptor is non-blocking (`O_NONBLOCK`), as a read from it would. The queue may have been
    /// destroyed meanwhile.
    ///
    /// # Errors
    /// Those of [`Self::next_event`]; `EAGAIN`; `EINTR`.
    pub fn receive(&self) -> Result<u32> {
        loop {
            // Waits as the kernel does: restarted after a signal or not, and ended by
            // `shutdown()`.
            let first = self.inner.receive(MsgFlags::MSG_PEEK)?;
            first.ok_or(Error::Kernel { call: "recv", errno: Errno::EAGAIN })?;
            // Another thread may have taken it meanwhile.
            if let Some(cqn) = self.inner.next_cqn()? {
                return Ok(cqn);
            }
        }
    }

    /// Waits for the next completion queue that reports, for at most `timeout`. Returns `None` on
    /// timeout.
    ///
    /// # Errors
    /// Those of [`Self::next_event`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<CompletionQueue>> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(queue) = self.next_event()? {
                return Ok(Some(queue));
            }
            if !self.inner.wait_readable(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for CompletionChannel {
    /// File descriptor for the program's own `poll()`: readable when
    /// [`CompletionChannel::next_event`] has a result, including that the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.socket.as_fd()
    }
}

impl ChannelInner {
    pub(crate) fn add(&self, cqn: u32, queue: &Arc<CqInner>) {
        lock(&self.reporting).queues.insert(cqn, Arc::downgrade(queue));
    }

    pub(crate) fn remove(&self, cqn: u32) {
        lock(&self.reporting).queues.remove(&cqn);
    }

    /// Drops the events of queues that have been removed and destroyed: the daemon sends none any
    /// more.
    pub(crate) fn drop_stale(&self) {
        let mut reporting = lock(&self.reporting);
        reporting.has_stale = true;
        self.drop_first_stale(&mut reporting);
    }

    /// Returns the number of the next queue that reported, or `None`.
    pub(crate) fn next_cqn(&self) -> Result<Option<u32>> {
        self.take(&mut lock(&self.reporting))
    }

    fn take(&self, reporting: &mut Reporting) -> Result<Option<u32>> {
        loop {
            let Some(cqn) = self.receive_now(MsgFlags::empty())? else { return Ok(None) };
            self.drop_first_stale(reporting);
            if reporting.queues.contains_key(&cqn) {
                return Ok(Some(cqn));
            }
        }
    }

    /// Drops events until the first is of a queue that reports to this channel.
    fn drop_first_stale(&self, reporting: &mut Reporting) {
        while reporting.has_stale {
            match self.receive_now(MsgFlags::MSG_PEEK) {
                Ok(Some(cqn)) if reporting.queues.contains_key(&cqn) => return,
                Ok(Some(_)) => _ = self.receive_now(MsgFlags::empty()),
                // The next call returns an error again.
                Ok(None) | Err(_) => reporting.has_stale = false,
            }
        }
    }

    fn receive_now(&self, flags: MsgFlags) -> Result<Option<u32>> {
        loop {
            match self.receive(flags | MsgFlags::MSG_DONTWAIT) {
                Err(Error::Kernel { errno: Errno::EINTR, .. }) => {}
                other => return other,
            }
        }
    }

    fn receive(&self, flags: MsgFlags) -> Result<Option<u32>> {
        let mut event = ChannelEvent::new_zeroed();
        match recv(self.socket.as_raw_fd(), event.as_mut_bytes(), flags) {
            Ok(length) if length == size_of::<ChannelEvent>() => Ok(Some(event.cqn)),
            Err(Errno::EAGAIN) => Ok(None),
            Ok(0) | Err(Errno::ECONNRESET) => {
                self.device.session.set_gone();
                Err(Error::DaemonGone)
            }
            Ok(_) => Err(Error::Protocol { what: "a channel event of another length" }),
            Err(errno) => Err(Error::Kernel { call: "recv", errno }),
        }
    }

    /// Waits until the file descriptor is readable. Returns false if `deadline` passed first;
    /// `None` means no deadline.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up, to avoid spinning during the last millisecond.
                let up = if left.is_zero() { left } else { left + Duration::from_micros(999) };
                PollTimeout::try_from(up).unwrap_or(PollTimeout::MAX)
            });
            let session = &self.device.session;
            let mut fds = [
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                // `POLLHUP` is reported without being requested.
                PollFd::new(session.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut fds, timeout) {
                Ok(0) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                Ok(0) => return Ok(false),
                Ok(_) if fds[0].any() == Some(true) => return Ok(true),
                Ok(_) => {
                    session.set_gone();
                    return Err(Error::DaemonGone);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::Kernel { call: "poll", errno }),
            }
        }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // Fails only if the session has ended, which destroys the channel as well.
        let _ = self.device.session.call::<DestroyChannel>(Handle { handle: self.handle });
    }
}
