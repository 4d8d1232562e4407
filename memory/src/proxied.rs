//! Memory of a client that stays where it is: the kernel reads and writes it for us, by a
//! descriptor that the client has opened.
//!
//! Some memory can neither be mapped by another process nor exchanged for pages that can: privately
//! mapped files, huge pages, any memory where userfaultfd is forbidden. Its program passes a
//! descriptor of its own `/proc/self/mem`. The daemon thus reaches the memory of that program and
//! nothing else, needs no privilege, and names no process by a number that may have been reused.
//!
//! ```text
//!   worker ── request ──► copy thread of the session ── pread, pwrite ──► kernel ──► pages
//!      └── waits for a bounded time ◄── done ──┘
//! ```
//!
//! An access may meet a page that must first be brought (from a disk, a file system in user space,
//! a userfaultfd) or made (zeros for a huge page), or an address space that its program keeps
//! locked. The client can cause all of these, so no worker performs the access itself, and a worker
//! waits no longer than the stall budget of the client's user allows (`stall_budget.rs`). A user
//! that spends it, or blocks too long at once, loses the memory and the session. The harm to others
//! on the same worker is therefore bounded.
//!
//! Accesses are combined where possible: adjacent writes go in one piece, before their completion
//! is reported ([`ProxiedMemory::settle`]); and a read that continues where the last one stopped
//! finds the bytes read ahead, in the same poll iteration.

mod copy_thread;
mod request_queue;
mod wait;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use nix::errno::Errno;
use roced_transport::io::{AtomicOperation, MemoryFault};

use self::{copy_thread::SharedRequests, request_queue::RequestQueue};
use super::{access_log, descriptor::Descriptor, poll_id::PollId};

/// Most bytes of one access: sixteen packets of the largest path MTU.
const ROOM: usize = 64 << 10;

/// Files of procfs other than `mem` have no bytes so far in; and only root maps memory below.
const LOWEST: u64 = 64 << 10;

/// Memory that stays where it is.
#[derive(Debug)]
pub struct ProxiedMemory {
    copy_thread: Arc<CopyThread>,
    address: u64,
    bytes: u64,
    writable: bool,
}

impl ProxiedMemory {
    /// `range` of the address space that `copy_thread` has.
    ///
    /// # Errors
    /// `EFAULT` when its ends are not mapped for reading; `EAGAIN` when the copy thread has lost
    /// its memory or takes too long to look.
    pub fn new(copy_thread: &Arc<CopyThread>, range: &Range<u64>, writable: bool) -> Result<Self, Errno> {
        if range.start < LOWEST || range.end > i64::MAX as u64 || range.is_empty() {
            return Err(Errno::EFAULT);
        }
        let mut requests = copy_thread.control_requests();
        requests.settle(&copy_thread.shared).map_err(|MemoryFault| Errno::EAGAIN)?;
        for address in [range.start, range.end - 1] {
            requests.read(&copy_thread.shared, address, 1, 1)?;
        }
        drop(requests);
        Ok(Self {
            copy_thread: Arc::clone(copy_thread),
            address: range.start,
            bytes: range.end - range.start,
            writable,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Returns false: there is at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns true if the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.copy_thread.shared.is_lost()
    }

    /// Writes `bytes` to `offset`, at the latest when [`Self::settle`] returns.
    ///
    /// # Errors
    /// They cannot be written.
    ///
    /// # Panics
    /// When they do not fit, as `ClientMemory::write`.
    pub fn write(&self, offset: u64, bytes: &[u8], poll: PollId) -> Result<(), MemoryFault> {
        self.check(offset, bytes.len());
        let mut requests = self.copy_thread.requests(poll);
        let mut address = self.address + offset;
        for piece in bytes.chunks(ROOM) {
            requests.stage(&self.copy_thread.shared, address, piece)?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Earlier writes have been performed when this returns.
    ///
    /// # Errors
    /// It cannot be written; the memory is lost.
    pub fn settle(&self, poll: PollId) -> Result<(), MemoryFault> {
        self.copy_thread.requests(poll).settle(&self.copy_thread.shared)
    }

    /// Copies the bytes at `offset` to `into`. Bytes read ahead in the same poll iteration are not
    /// read again: a caller that must see later changes of the program has another `poll`.
    ///
    /// # Errors
    /// It cannot be read.
    ///
    /// # Panics
    /// When the range does not lie inside, as [`Self::write`].
    pub fn read(&self, offset: u64, into: &mut [u8], poll: PollId) -> Result<(), MemoryFault> {
        self.check(offset, into.len());
        let mut requests = self.copy_thread.requests(poll);
        requests.settle(&self.copy_thread.shared)?;
        let mut address = self.address + offset;
        for piece in into.chunks_mut(ROOM) {
            let room = self.address + self.bytes - address;
            requests.read_ahead(&self.copy_thread.shared, address, piece, room)?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Executes an atomic operation on the eight bytes at `offset`, and returns the value before.
    /// Atomic against all access by this copy thread, so against that of all peers of the session;
    /// not against the program's own, because the kernel reads and writes (`IBV_ATOMIC_HCA`).
    ///
    /// # Errors
    /// It cannot be accessed; nothing has changed.
    ///
    /// # Panics
    /// When the bytes do not lie inside, as [`Self::write`].
    pub fn atomic(&self, offset: u64, operation: AtomicOperation, poll: PollId) -> Result<u64, MemoryFault> {
        let mut bytes = [0; 8];
        self.check(offset, bytes.len());
        let (shared, address) = (&self.copy_thread.shared, self.address + offset);
        // Until this is given back no other worker is served.
        let mut requests = self.copy_thread.requests(poll);
        requests.settle(shared)?;
        requests.forget_ahead();
        requests.read_ahead(shared, address, &mut bytes, 8)?;
        let before = u64::from_ne_bytes(bytes);
        let after = operation.after(before);
        if after != before {
            requests.stage(shared, address, &after.to_ne_bytes())?;
            requests.settle(shared)?;
        }
        Ok(before)
    }

    fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} lie outside {} bytes", self.bytes);
    }
}

/// Reader and writer of the memory of one address space.
#[derive(Debug)]
pub struct CopyThread {
    shared: Arc<SharedRequests>,
    requests: Mutex<RequestQueue>,
}

impl CopyThread {
    /// Takes a client's descriptor of its `/proc/self/mem`.
    ///
    /// # Errors
    /// It is of something else (`EINVAL`); its user has no stall budget left (`EAGAIN`); no thread.
    pub fn new(descriptor: Descriptor) -> Result<Arc<Self>, Errno> {
        let account = descriptor.account().clone();
        let stall_budget = account.stall_budget().ok_or(Errno::EAGAIN)?;
        let poll = stall_budget.next_look();
        let (shared, thread) = SharedRequests::begin(descriptor)?;
        let mut requests = RequestQueue::new(thread, account, stall_budget, poll);
        let looked = requests.welcome(&shared);
        let copy_thread = Arc::new(Self { shared, requests: Mutex::new(requests) });
        looked.map(|()| copy_thread)
    }

    /// As [`Self::requests`], for the control thread.
    fn control_requests(&self) -> MutexGuard<'_, RequestQueue> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let poll = requests.next_look();
        requests.now_is(poll);
        requests
    }

    /// A place in the request queue, for the accesses of one moment. If another worker is there,
    /// this waits until that worker is served; the wait counts once, for the worker that is there,
    /// and bounds the wait of both.
    fn requests(&self, poll: PollId) -> MutexGuard<'_, RequestQueue> {
        access_log::pause();
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.now_is(poll);
        requests
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.requests.get_mut().unwrap_or_else(PoisonError::into_inner).wake_copy_thread();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::IoSlice,
        os::{
            fd::{AsRawFd, OwnedFd},
            unix::net::UnixStream,
        },
        process::{Child, Command, Stdio},
        time::Duration,
    };

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use roced_types::{AccountId, WorkerId};

    use super::*;
    use crate::{
        accounts::{ClientAccount, ClientAccounts},
        descriptor::receive,
        stall_budget::AbandonedThread,
    };

    /// Memory of that process, as `account` would pass it.
    fn passed(pid: u32, account: &ClientAccount) -> Descriptor {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("it is ours");
        let (theirs, ours) = UnixStream::pair().expect("sockets");
        let rights = [memory.as_raw_fd()];
        let beside = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(b"x")], &beside, MsgFlags::empty(), None).expect("it goes");
        let incoming = receive(OwnedFd::from(ours), &mut [0], account).expect("it comes");
        let mut incoming = incoming.expect("few are in closing");
        incoming.descriptors.pop().expect("one")
    }

    /// A process, and where its stack is.
    fn process() -> (Child, Range<u64>) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a program that waits");
        let maps = || fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("it is ours");
        let stack = || {
            let maps = maps();
            let ends = maps.lines().find(|line| line.ends_with("[stack]"))?.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(ends.0, 16).ok()?..u64::from_str_radix(ends.1, 16).ok()?)
        };
        let stack = stack().expect("every program has one");
        (child, stack)
    }

    /// Its end may be seen by an access before it is by the session's socket.
    #[test]
    fn a_process_that_ends_while_peers_reach_it_is_not_at_fault() {
        let (mut child, stack) = process();
        let copy_thread = CopyThread::new(passed(child.id(), &ClientAccounts::default().account(AccountId(1))))
            .expect("memory of a process");
        let memory = ProxiedMemory::new(&copy_thread, &stack, true).expect("a stack");
        let mut bytes = [0; 100];
        let mut poll = PollId::first(WorkerId(0));
        memory.read(0, &mut bytes, poll).expect("it is there");
        memory.write(0, &bytes, poll).and_then(|()| memory.settle(poll)).expect("it is there");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        // As many as have a tail, and fewer.
        for length in [100, 8, 1] {
            memory.write(0, &bytes[..length], poll).expect("no thread looks yet");
            assert_eq!(memory.settle(poll), Err(MemoryFault));
            assert!(!memory.is_lost(), "{length} bytes written");
        }
        poll = poll.next();
        assert_eq!(memory.read(0, &mut bytes, poll), Err(MemoryFault));
        assert!(!memory.is_lost());
    }

    /// For any division into pieces: the cost of single bytes beyond the free part of a poll
    /// iteration is charged.
    #[test]
    fn very_many_small_pieces_in_a_poll_are_charged() {
        let account = ClientAccounts::default().account(AccountId(1));
        let (mut child, stack) = process();
        let copy_thread = CopyThread::new(passed(child.id(), &account)).expect("memory of a process");
        let memory = ProxiedMemory::new(&copy_thread, &stack, true).expect("a stack");
        // Most of the budget is spent.
        let (stall_budget, poll) = (account.stall_budget().expect("nearly all of it"), PollId::first(WorkerId(0)));
        let most = stall_budget.most(poll, 0).expect("none is given up");
        assert!(stall_budget.spend(poll, most - Duration::from_millis(5)));
        let ends = [0, memory.len() - 1];
        let pieces = ends.iter().cycle().take(1_000_000);
        let done = pieces.take_while(|at| memory.read(**at, &mut [0], poll).is_ok()).count();
        assert!(memory.is_lost(), "{done} pieces");
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }

    #[test]
    fn threads_of_a_user_with_too_many_silent_ones_are_not_awaited() {
        let account = ClientAccounts::default().account(AccountId(1));
        let (mut child, stack) = process();
        let copy_thread = CopyThread::new(passed(child.id(), &account)).expect("memory of a process");
        let memory = ProxiedMemory::new(&copy_thread, &stack, true).expect("a stack");
        let stall_budget = account.stall_budget().expect("all of it, nearly");
        let given_up = [(); 4].map(|()| AbandonedThread::begin(&stall_budget, &account));
        assert_eq!(memory.read(0, &mut [0], PollId::first(WorkerId(0))), Err(MemoryFault));
        assert!(memory.is_lost());
        drop(given_up);
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }
}
