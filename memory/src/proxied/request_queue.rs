//! Requests of workers for proxied memory, and their waiting.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use roced_transport::io::MemoryFault;

use super::{
    ROOM,
    copy_thread::{COPY_THREADS, ITSELF, SharedRequests, Used, is_blocked},
    wait::{Scene, TooLong, wait},
};
use crate::{
    accounts::ClientAccount,
    poll_id::PollId,
    stall_budget::{AbandonedThread, StallBudget},
};

/// Requests of workers, one at a time.
#[derive(Debug)]
pub(super) struct RequestQueue {
    thread: Thread,
    account: ClientAccount,
    stall_budget: Arc<StallBudget>,
    /// Addresses of the bytes in the slot, to be written.
    staged: Range<u64>,
    /// Addresses of the bytes in the slot, as read at that moment.
    ahead: (Range<u64>, PollId),
    /// Where the last read stopped.
    next: u64,
    /// Now, for the current worker.
    poll: PollId,
    /// Bytes moved since the copy thread was last asked for any.
    moved: u64,
}

impl RequestQueue {
    pub(super) fn new(thread: Thread, account: ClientAccount, stall_budget: Arc<StallBudget>, poll: PollId) -> Self {
        Self { thread, account, stall_budget, staged: 0..0, ahead: (0..0, poll), next: 0, poll, moved: 0 }
    }
    /// The next look of the control thread.
    pub(super) fn next_look(&self) -> PollId {
        self.stall_budget.next_look()
    }

    pub(super) fn now_is(&mut self, poll: PollId) {
        self.poll = poll;
    }

    pub(super) fn wake_copy_thread(&self) {
        self.thread.unpark();
    }

    pub(super) fn stage(&mut self, shared: &SharedRequests, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let length = (self.staged.end - self.staged.start) as usize;
        if self.staged.end != address || length + bytes.len() > ROOM {
            self.settle(shared)?;
        }
        if shared.is_lost() {
            return Err(MemoryFault);
        }
        self.ahead.0 = 0..0;
        self.moved += bytes.len() as u64;
        if self.staged.is_empty() {
            self.staged = address..address;
        }
        let at = (self.staged.end - self.staged.start) as usize;
        shared.slot().bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.staged.end += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn settle(&mut self, shared: &SharedRequests) -> Result<(), MemoryFault> {
        let staged = std::mem::take(&mut self.staged);
        if staged.is_empty() {
            return Ok(());
        }
        let length = (staged.end - staged.start) as usize;
        match self.ask(shared, true, staged.start, length) {
            Ok(done) if done == length => return Ok(()),
            // As in `read`: the process is gone, or is another program; nothing else is wrong.
            Ok(0) => {}
            _ => shared.lose(),
        }
        Err(MemoryFault)
    }

    /// Reads `least` bytes, or up to `most`, to the slot.
    pub(super) fn read(
        &mut self,
        shared: &SharedRequests,
        address: u64,
        least: usize,
        most: usize,
    ) -> Result<(), Errno> {
        self.ahead.0 = 0..0;
        match self.ask(shared, false, address, most)? {
            there if there >= least => {
                self.ahead = (address..address + there as u64, self.poll);
                Ok(())
            }
            // The process is gone, or is another program; its socket says so, too.
            0 => Err(Errno::ESRCH),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Data that was read before is read again.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead.0 = 0..0;
    }

    pub(super) fn read_ahead(
        &mut self,
        shared: &SharedRequests,
        address: u64,
        into: &mut [u8],
        room: u64,
    ) -> Result<(), MemoryFault> {
        let end = address + into.len() as u64;
        self.moved += into.len() as u64;
        let (ahead, of) = &self.ahead;
        if !(*of == self.poll && ahead.start <= address && end <= ahead.end) {
            let goes_on = self.next == address;
            let most = if goes_on { room.min(ROOM as u64) as usize } else { into.len() };
            self.read(shared, address, into.len(), most).map_err(|errno| {
                if errno != Errno::ESRCH {
                    shared.lose();
                }
                MemoryFault
            })?;
        }
        self.next = end;
        let at = (address - self.ahead.0.start) as usize;
        into.copy_from_slice(&shared.slot().bytes[at..at + into.len()]);
        Ok(())
    }

    /// Has the copy thread do it.
    fn ask(&mut self, shared: &SharedRequests, writes: bool, address: u64, length: usize) -> Result<usize, Errno> {
        if shared.is_lost() {
            return Err(Errno::EAGAIN);
        }
        let most = self.most(shared)?;
        let mut slot = shared.slot();
        (slot.writes, slot.address, slot.length) = (writes, address, length);
        drop(slot);
        shared.stage.store(COPY_THREADS, Ordering::Release);
        self.thread.unpark();
        self.wait(shared, most)
    }

    /// The copy thread checks its descriptor before anything else: this check may block as well.
    pub(super) fn welcome(&mut self, shared: &SharedRequests) -> Result<(), Errno> {
        let most = self.most(shared)?;
        self.wait(shared, most).map(drop)
    }

    fn most(&mut self, shared: &SharedRequests) -> Result<Duration, Errno> {
        let moved = std::mem::take(&mut self.moved);
        self.stall_budget.most(self.poll, moved).ok_or(Errno::EAGAIN).inspect_err(|_| shared.lose())
    }

    fn wait(&mut self, shared: &SharedRequests, most: Duration) -> Result<usize, Errno> {
        let used = Used::by([ITSELF, shared.tid()]);
        match wait(&mut AtWork { shared, begin: Instant::now(), used, has_our_core: false }, most) {
            Ok(counts) => {
                let slot = shared.slot();
                if !self.stall_budget.spend(self.poll, counts.max(slot.took)) {
                    shared.lose();
                }
                slot.outcome
            }
            Err(TooLong(waited)) => {
                self.stall_budget.spend(self.poll, waited);
                shared.give_up(AbandonedThread::begin(&self.stall_budget, &self.account));
                Err(Errno::EAGAIN)
            }
        }
    }
}

/// A copy thread that was asked.
struct AtWork<'a> {
    shared: &'a SharedRequests,
    begin: Instant,
    used: Used,
    has_our_core: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if self.has_our_core {
            self.shared.take_core_back();
        }
    }
}

impl Scene for AtWork<'_> {
    fn step(&mut self) {
        thread::yield_now();
    }

    fn lend_core(&mut self) {
        self.has_our_core = true;
        self.shared.lend_core();
    }

    fn is_done(&mut self) -> bool {
        self.shared.stage.load(Ordering::Acquire) != COPY_THREADS
    }

    fn waited(&self) -> Duration {
        self.begin.elapsed()
    }

    fn used(&mut self) -> Duration {
        self.used.so_far()
    }

    fn is_blocked(&self) -> bool {
        is_blocked(self.shared.tid())
    }
}
