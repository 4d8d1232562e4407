//! Memory of a client that stays where it is: the kernel reads and writes it for us, by a descriptor that the client has opened.
//!
//! Some memory can neither be mapped by anybody else nor exchanged for pages that can: privately mapped files, huge pages, anything at all where
//! userfaultfd is forbidden. Its program passes a descriptor of its own `/proc/self/mem`. So we reach what that program reaches and nothing else, need
//! no privilege, and name no process by a number that may be another's by then.
//!
//! ```text
//!   worker ── asks ──► porter, a thread of the session ── pread, pwrite ──► kernel ──► the client's pages
//!      └── waits, but not for long ◄── done ─────┘
//! ```
//!
//! An access may meet a page that somebody has to bring first (a disk, a file system in user space, a userfaultfd), or an address space that its
//! program keeps locked. All of that may be the client's doing, so no worker does it itself. For what blocks, each user has a credit of time; who uses it
//! up, or blocks too long at once, loses the memory and with it the session. So the harm to others on the same worker is bounded.
//!
//! What can be done together is: pieces that are written one behind the other go in one piece, before anybody is told of them ([`KeptMemory::settle`]); and who
//! reads on where it stopped finds the bytes read ahead, in the same turn.

use std::{
    ops::Range,
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        resource::{UsageWho, getrusage},
        statfs::{PROC_SUPER_MAGIC, fstatfs},
        uio::{pread, pwrite},
    },
    unistd::gettid,
};
use roced_transport::io::MemoryFault;

use super::{
    credit::{Credit, credit_of},
    descriptor::{Closing, Descriptor},
    lost,
};

/// Most bytes of one access: sixteen packets of the largest path MTU.
const ROOM: usize = 64 << 10;

/// Files of procfs other than `mem` have nothing so far in; and nobody but root maps anything below.
const LOWEST: u64 = 64 << 10;

/// How long an access may block. A guess: a disk takes less, and a peer's ACK timeout is seldom shorter.
const BLOCKED_MAX: Duration = Duration::from_millis(20);

/// How long an access may take when it does not block but the machine has no core for it.
const STARVED_MAX: Duration = Duration::from_millis(500);

/// How long the porter looks for more to do before it sleeps; waking it costs up to 20 us.
const LINGER: Duration = Duration::from_micros(50);

/// What [`Shared::stage`] is: the worker has the slot, or the porter.
const OURS: u32 = 0;
const PORTERS: u32 = 1;

/// Memory that stays where it is.
#[derive(Debug)]
pub struct KeptMemory {
    porter: Arc<Porter>,
    address: u64,
    bytes: u64,
    writable: bool,
}

impl KeptMemory {
    /// `range` of the address space that `porter` has.
    ///
    /// # Errors
    /// `EFAULT` when its ends are not mapped for reading; `EAGAIN` when the porter has lost its memory or takes too long to look.
    pub(crate) fn new(porter: &Arc<Porter>, range: &Range<u64>, writable: bool) -> Result<Self, Errno> {
        if range.start < LOWEST || range.end > i64::MAX as u64 || range.is_empty() {
            return Err(Errno::EFAULT);
        }
        let mut desk = porter.desk();
        desk.settle(&porter.shared).map_err(|MemoryFault| Errno::EAGAIN)?;
        for address in [range.start, range.end - 1] {
            desk.read(&porter.shared, address, 1, 1, 0)?;
        }
        drop(desk);
        Ok(Self { porter: Arc::clone(porter), address: range.start, bytes: range.end - range.start, writable })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never: there is at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// May anything be written there?
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.porter.shared.lost.load(Ordering::Acquire)
    }

    /// Writes `bytes` to `offset`, at the latest when [`Self::settle`] returns.
    ///
    /// # Errors
    /// They cannot be written.
    ///
    /// # Panics
    /// When they do not fit, as `ClientMemory::write`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.check(offset, bytes.len());
        let mut desk = self.porter.desk();
        let mut address = self.address + offset;
        for piece in bytes.chunks(ROOM) {
            desk.stage(&self.porter.shared, address, piece)?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// What was written before is there when this returns.
    ///
    /// # Errors
    /// It cannot be written; the memory is lost.
    pub fn settle(&self) -> Result<(), MemoryFault> {
        self.porter.desk().settle(&self.porter.shared)
    }

    /// Copies what lies at `offset` to `into`. What the same moment has read ahead is not read again: whoever asks has another `moment` when the
    /// program may have changed something that it must see.
    ///
    /// # Errors
    /// It cannot be read.
    ///
    /// # Panics
    /// When the range does not lie inside, as [`Self::write`].
    pub fn read(&self, offset: u64, into: &mut [u8], moment: u64) -> Result<(), MemoryFault> {
        self.check(offset, into.len());
        let mut desk = self.porter.desk();
        desk.settle(&self.porter.shared)?;
        let mut address = self.address + offset;
        for piece in into.chunks_mut(ROOM) {
            let room = self.address + self.bytes - address;
            desk.read_ahead(&self.porter.shared, address, piece, room, moment)?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} lie outside {} bytes", self.bytes);
    }
}

/// Who reads and writes the memory of one address space.
#[derive(Debug)]
pub(crate) struct Porter {
    shared: Arc<Shared>,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Shared {
    /// [`OURS`] or [`PORTERS`].
    stage: AtomicU32,
    slot: Mutex<Slot>,
    lost: AtomicBool,
    ending: AtomicBool,
    /// Set when the porter is given up: until its thread comes back, its user has one descriptor more that does not close.
    given_up: Mutex<Option<Closing>>,
    /// The porter's thread, to see what it is about.
    tid: AtomicI32,
}

/// An access, and what became of it.
#[derive(Debug)]
struct Slot {
    writes: bool,
    address: u64,
    length: usize,
    /// Bytes that were read or written.
    outcome: Result<usize, Errno>,
    /// How long it blocked.
    blocked: Duration,
    bytes: Box<[u8]>,
}

/// Where workers come with what they want, one at a time.
#[derive(Debug)]
struct Desk {
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

impl Porter {
    /// Takes a client's descriptor of its `/proc/self/mem`.
    ///
    /// # Errors
    /// It is of something else (`EINVAL`); its user has no credit left (`EAGAIN`); no thread.
    pub(crate) fn new(descriptor: Descriptor) -> Result<Arc<Self>, Errno> {
        let uid = descriptor.uid();
        let credit = credit_of(uid).ok_or(Errno::EAGAIN)?;
        let shared = Arc::new(Shared {
            stage: AtomicU32::new(PORTERS),
            slot: Mutex::new(Slot {
                writes: false,
                address: 0,
                length: 0,
                outcome: Ok(0),
                blocked: Duration::ZERO,
                bytes: vec![0; ROOM].into_boxed_slice(),
            }),
            lost: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            given_up: Mutex::new(None),
            tid: AtomicI32::new(0),
        });
        let porters = Arc::clone(&shared);
        let work = move || carry(&porters, descriptor);
        let spawned = thread::Builder::new().name("roced-porter".into()).stack_size(128 << 10).spawn(work);
        let thread = spawned.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?.thread().clone();
        let desk = Desk { thread, uid, credit, staged: 0..0, ahead: (0..0, 0), next: 0 };
        let porter = Arc::new(Self { shared, desk: Mutex::new(desk) });
        // It looks at the descriptor first: to ask what it is of may block, too.
        porter.desk().wait(&porter.shared)?;
        Ok(porter)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.desk().thread.unpark();
    }
}

impl Desk {
    fn stage(&mut self, shared: &Shared, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let length = (self.staged.end - self.staged.start) as usize;
        if self.staged.end != address || length + bytes.len() > ROOM {
            self.settle(shared)?;
        }
        if shared.lost.load(Ordering::Acquire) {
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

    fn settle(&mut self, shared: &Shared) -> Result<(), MemoryFault> {
        let staged = std::mem::take(&mut self.staged);
        if staged.is_empty() {
            return Ok(());
        }
        let length = (staged.end - staged.start) as usize;
        let done = self.ask(shared, true, staged.start, length);
        if done != Ok(length) {
            lose(shared);
            return Err(MemoryFault);
        }
        Ok(())
    }

    /// Reads `least` bytes, or up to `most`, to the slot.
    fn read(&mut self, shared: &Shared, address: u64, least: usize, most: usize, moment: u64) -> Result<(), Errno> {
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

    fn read_ahead(
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
                    lose(shared);
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
        if shared.lost.load(Ordering::Acquire) {
            return Err(Errno::EAGAIN);
        }
        let mut slot = shared.slot();
        (slot.writes, slot.address, slot.length) = (writes, address, length);
        drop(slot);
        shared.stage.store(PORTERS, Ordering::Release);
        self.thread.unpark();
        self.wait(shared)
    }

    fn wait(&mut self, shared: &Shared) -> Result<usize, Errno> {
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
                lose(shared);
                return Err(Errno::EAGAIN);
            }
            patience += BLOCKED_MAX;
        }
        let slot = shared.slot();
        if !self.credit.spend(slot.blocked) {
            lose(shared);
        }
        slot.outcome
    }
}

impl Shared {
    /// For whoever has it by [`Self::stage`]: nobody else holds the lock then.
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From now on nothing of it is touched; the control thread ends the session.
fn lose(shared: &Shared) {
    if !shared.lost.swap(true, Ordering::AcqRel) {
        lost::ring();
    }
}

/// Does this thread of ours wait for something other than a core?
fn is_blocked(tid: i32) -> bool {
    // "number (name) state ...", and the name is ours.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// The porter's thread.
fn carry(shared: &Shared, descriptor: Descriptor) {
    shared.tid.store(gettid().as_raw(), Ordering::Relaxed);
    let (memory, uid) = descriptor.into_any_file();
    let is_memory = check(&memory);
    shared.slot().outcome = is_memory.map(|()| 0);
    shared.stage.store(OURS, Ordering::Release);
    let mut idle_since = Instant::now();
    while is_memory.is_ok() && !shared.lost.load(Ordering::Acquire) {
        if shared.stage.load(Ordering::Acquire) == PORTERS {
            access(&mut shared.slot(), &memory);
            shared.stage.store(OURS, Ordering::Release);
            idle_since = Instant::now();
        } else if shared.ending.load(Ordering::Acquire) {
            break;
        } else if idle_since.elapsed() < LINGER {
            thread::yield_now();
        } else {
            thread::park();
        }
    }
    // Whatever it turned out to be: closing it may take its time.
    let _closing = Closing::begin(uid);
    drop(memory);
}

/// Is it the memory of a process, open for reading and writing? That it is no other file of procfs shows when bytes are found where such have none.
fn check(memory: &impl std::os::fd::AsFd) -> Result<(), Errno> {
    let mode = OFlag::from_bits_retain(fcntl(memory, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
    let is_memory = mode == OFlag::O_RDWR && fstatfs(memory)?.filesystem_type() == PROC_SUPER_MAGIC;
    if is_memory { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Carries out what the slot says.
fn access(slot: &mut Slot, memory: &(impl std::os::fd::AsFd + AsRawFd)) {
    let waits = || getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches());
    let (begin, before) = (Instant::now(), waits());
    let bytes = &mut slot.bytes[..slot.length];
    // Below i64::MAX, as was looked at when the memory was registered.
    let at = slot.address as i64;
    slot.outcome = if slot.writes {
        let (body, tail) = bytes.split_at(bytes.len().saturating_sub(8));
        // A program that polls the last bytes sees all others once it sees those: they go by a call of their own.
        let all = |bytes: &[u8], at| match bytes {
            [] => Ok(0),
            bytes => pwrite(memory, bytes, at),
        };
        all(body, at).and_then(|count| {
            let rest = if count == body.len() { all(tail, at + body.len() as i64)? } else { 0 };
            Ok(count + rest)
        })
    } else {
        pread(memory, bytes, at)
    };
    slot.blocked = if waits() == before { Duration::ZERO } else { begin.elapsed() };
}
