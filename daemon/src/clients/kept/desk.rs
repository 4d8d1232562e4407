//! Where workers come with what they want of kept memory, and wait.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use roced_transport::io::MemoryFault;

use super::{
    ROOM,
    porter::{PORTERS, Shared},
};
use crate::clients::{credit::Credit, descriptor::Closing};

/// How long an access may block. A guess: a disk takes less, and a peer's ACK timeout is seldom shorter.
const BLOCKED_MAX: Duration = Duration::from_millis(20);

/// How long an access may take when it does not block but the machine has no core for it.
const STARVED_MAX: Duration = Duration::from_millis(500);

/// Where workers come with what they want, one at a time.
#[derive(Debug)]
pub(super) struct Desk {
    thread: Thread,
    uid: u32,
    credit: Arc<Credit>,
    /// Addresses whose bytes lie in the slot, to be written.
    staged: Range<u64>,
    /// Addresses whose bytes lie in the slot as they were at that moment.
    ahead: (Range<u64>, u64),
    /// Where the last read stopped.
    next: u64,
}

impl Desk {
    pub(super) fn new(thread: Thread, uid: u32, credit: Arc<Credit>) -> Self {
        Self { thread, uid, credit, staged: 0..0, ahead: (0..0, 0), next: 0 }
    }

    pub(super) fn wake_porter(&self) {
        self.thread.unpark();
    }

    pub(super) fn stage(&mut self, shared: &Shared, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let length = (self.staged.end - self.staged.start) as usize;
        if self.staged.end != address || length + bytes.len() > ROOM {
            self.settle(shared)?;
        }
        if shared.is_lost() {
            return Err(MemoryFault);
        }
        self.ahead.0 = 0..0;
        if self.staged.is_empty() {
            self.staged = address..address;
        }
        let at = (self.staged.end - self.staged.start) as usize;
        shared.slot().bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.staged.end += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn settle(&mut self, shared: &Shared) -> Result<(), MemoryFault> {
        let staged = std::mem::take(&mut self.staged);
        if staged.is_empty() {
            return Ok(());
        }
        let length = (staged.end - staged.start) as usize;
        match self.ask(shared, true, staged.start, length) {
            Ok(done) if done == length => return Ok(()),
            // As below: nobody's fault.
            Ok(0) => {}
            _ => shared.lose(),
        }
        Err(MemoryFault)
    }

    /// Reads `least` bytes, or up to `most`, to the slot.
    pub(super) fn read(
        &mut self,
        shared: &Shared,
        address: u64,
        least: usize,
        most: usize,
        moment: u64,
    ) -> Result<(), Errno> {
        self.ahead.0 = 0..0;
        match self.ask(shared, false, address, most)? {
            there if there >= least => {
                self.ahead = (address..address + there as u64, moment);
                Ok(())
            }
            // The process is gone, or is another program; its socket says so, too.
            0 => Err(Errno::ESRCH),
            _ => Err(Errno::EFAULT),
        }
    }

    pub(super) fn read_ahead(
        &mut self,
        shared: &Shared,
        address: u64,
        into: &mut [u8],
        room: u64,
        moment: u64,
    ) -> Result<(), MemoryFault> {
        let end = address + into.len() as u64;
        let (ahead, of) = &self.ahead;
        if !(*of == moment && ahead.start <= address && end <= ahead.end) {
            let goes_on = self.next == address;
            let most = if goes_on { room.min(ROOM as u64) as usize } else { into.len() };
            self.read(shared, address, into.len(), most, moment).map_err(|errno| {
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

    /// Has the porter do it.
    fn ask(&mut self, shared: &Shared, writes: bool, address: u64, length: usize) -> Result<usize, Errno> {
        if shared.is_lost() {
            return Err(Errno::EAGAIN);
        }
        let mut slot = shared.slot();
        (slot.writes, slot.address, slot.length) = (writes, address, length);
        drop(slot);
        shared.stage.store(PORTERS, Ordering::Release);
        self.thread.unpark();
        self.wait(shared)
    }

    pub(super) fn wait(&mut self, shared: &Shared) -> Result<usize, Errno> {
        let begin = Instant::now();
        let mut patience = BLOCKED_MAX;
        while shared.stage.load(Ordering::Acquire) == PORTERS {
            thread::yield_now();
            let waited = begin.elapsed();
            if waited < patience {
                continue;
            }
            // This is far beyond a turn already.
            if waited >= STARVED_MAX || is_blocked(shared.tid.load(Ordering::Relaxed)) {
                self.credit.spend(waited);
                *shared.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(Closing::begin(self.uid));
                shared.lose();
                return Err(Errno::EAGAIN);
            }
            patience += BLOCKED_MAX;
        }
        let slot = shared.slot();
        if !self.credit.spend(slot.blocked) {
            shared.lose();
        }
        slot.outcome
    }
}

/// Does this thread of ours wait for something other than a core?
fn is_blocked(tid: i32) -> bool {
    // "number (name) state ...", and the name is ours.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}
