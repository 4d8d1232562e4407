//! Completion queues.
#![expect(unsafe_code, reason = "objects of C, and completions in the program's memory")]

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    mem,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use roced_client::{Completion, CompletionQueue, CqOptions, NoCancellation, Notify};

use crate::{
    abi::{
        completion::Wc,
        context::Context as ContextFace,
        object::CqEx as Face,
        object::{CompChannel as ChannelFace, Cq as CqFace},
    },
    acknowledge::Acknowledgments,
    channel::VerbsChannel,
    context, cq_ex,
    errno::{self, Errno, Result},
    object::{Object, Pointer, Users},
};

/// Completions taken at a time: they lie on the stack in between.
const BATCH: usize = 16;

/// Bits of `ibv_wc::wc_flags`.
pub(crate) mod wc_flag {
    pub(crate) const GRH: u32 = 1 << 0;
    pub(crate) const IMM: u32 = 1 << 1;
    pub(crate) const INVALIDATED: u32 = 1 << 3;
}

/// A completion queue. Every one has the fields of an extended one.
pub(crate) type Cq = Object<Face, CqState>;

/// The library's part of a completion queue.
pub(crate) struct CqState {
    pub(crate) cq: CompletionQueue,
    pub(crate) users: Users,
    pub(crate) completions: Acknowledgments,
    pub(crate) events: Acknowledgments,
    /// For programs that read completions field by field: see [`cq_ex`].
    pub(crate) current: UnsafeCell<Completion>,
    /// Held from the beginning of such a taking to its end.
    pub(crate) taking: UnsafeCell<libc::pthread_mutex_t>,
    /// The program promised that one thread at a time takes.
    pub(crate) single_threaded: bool,
    /// Polls that found nothing since the last that did.
    empty_polls: AtomicU32,
}

/// After so many empty polls, a few microseconds, the thread yields: with few cores, it waits for
/// the daemon itself.
const POLLS_BEFORE_YIELD: u32 = 64;

impl CqState {
    /// Takes completions that are there, at most as many as `into` holds.
    pub(crate) fn take(&self, into: &mut [Completion]) -> Result<usize> {
        let taken = self.cq.poll(into)?;
        if taken > 0 {
            self.empty_polls.store(0, Ordering::Relaxed);
        } else if self.empty_polls.load(Ordering::Relaxed) < POLLS_BEFORE_YIELD {
            self.empty_polls.fetch_add(1, Ordering::Relaxed);
        } else {
            thread::yield_now();
        }
        Ok(taken)
    }
}

/// Parameters of a new queue.
pub(crate) struct CqRequest {
    pub(crate) entries: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ChannelFace,
    pub(crate) vector: u32,
    pub(crate) single_threaded: bool,
}

/// `ibv_create_cq`.
pub(crate) unsafe extern "C" fn create(
    context: *mut ContextFace,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ChannelFace,
    vector: c_int,
) -> *mut CqFace {
    let _whole = NoCancellation::new();
    let wanted = || -> Result<CqRequest> {
        Ok(CqRequest {
            entries: u32::try_from(entries).map_err(|_| Errno::INVALID)?,
            cq_context,
            channel,
            vector: u32::try_from(vector).map_err(|_| Errno::INVALID)?,
            single_threaded: false,
        })
    };
    // SAFETY: the program's context is ours, and so is its channel.
    errno::pointer(wanted().and_then(|wanted| unsafe { make(context, &wanted) })).cast()
}

/// Makes one.
///
/// # Safety
/// Context and channel are ours.
pub(crate) unsafe fn make(context: *mut ContextFace, wanted: &CqRequest) -> Result<*mut Face> {
    // SAFETY: the caller vouches for it.
    let own = unsafe { context::of(context) };
    if wanted.entries == 0 || wanted.entries > own.attributes.max_cqes || wanted.vector != 0 {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller vouches for it.
    let channel = (!wanted.channel.is_null()).then(|| unsafe { VerbsChannel::of(wanted.channel) });
    let options = CqOptions {
        entries: wanted.entries,
        channel: channel.map(|channel| &channel.own.channel),
        // Waiting is possible only by a channel.
        silent: channel.is_none(),
        ..CqOptions::default()
    };
    let queue = if wanted.single_threaded {
        // SAFETY: by that attribute, or by a thread domain, the program promises that one thread at
        // a time uses it.
        unsafe { own.device.single_threaded_completion_queue(&options) }
    } else {
        own.device.completion_queue_with(&options)
    }?;
    let cqn = queue.cqn();
    // SAFETY: zeros are numbers, null pointers, and functions that are not there.
    let mut face: Face = unsafe { mem::zeroed() };
    face.context = context;
    face.channel = wanted.channel;
    face.cq_context = wanted.cq_context;
    face.handle = cqn;
    face.cqe = queue.entries() as c_int;
    face.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    face.cond = libc::PTHREAD_COND_INITIALIZER;
    cq_ex::give_functions(&mut face);
    let queue = Cq::leak(
        face,
        CqState {
            cq: queue,
            users: Users::default(),
            completions: Acknowledgments::default(),
            events: Acknowledgments::default(),
            current: UnsafeCell::new(Completion::EMPTY),
            taking: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            single_threaded: wanted.single_threaded,
            empty_polls: AtomicU32::new(0),
        },
    );
    own.objects().cqs.insert(cqn, Pointer(queue.cast()));
    if let Some(channel) = channel {
        channel.own.cqs().insert(cqn, Pointer(queue));
    }
    // SAFETY: it was made a few lines up.
    Ok(unsafe { (*queue).face() })
}

/// `ibv_resize_cq`.
pub(crate) unsafe extern "C" fn resize(cq: *mut CqFace, entries: c_int) -> c_int {
    let _whole = NoCancellation::new();
    let resized = || -> Result<()> {
        // SAFETY: the program's queue is ours, and so is its context.
        let (queue, own) = unsafe { (Cq::of(cq), context::of((*cq).context)) };
        let entries = u32::try_from(entries).map_err(|_| Errno::INVALID)?;
        if entries == 0 || entries > own.attributes.max_cqes {
            return Err(Errno::INVALID);
        }
        if is_too_small(&queue.own.cq, entries as usize)? {
            return Err(Errno::INVALID);
        }
        queue.own.cq.resize(entries)?;
        // SAFETY: as above.
        unsafe { (*queue.face()).cqe = queue.own.cq.entries() as c_int };
        Ok(())
    };
    errno::number(resized())
}

/// Time that a shrinking queue waits for work posted before. A send completes within microseconds
/// where the daemon has a core.
const SHRINK_TIMEOUT: Duration = Duration::from_millis(50);

/// More completions lie in the queue than `entries`. They would stay; but programs are promised
/// that a queue too small for them is refused, and that those of datagrams which they have just
/// posted count.
fn is_too_small(cq: &CompletionQueue, entries: usize) -> Result<bool> {
    let deadline = Instant::now() + SHRINK_TIMEOUT;
    while cq.waiting()? <= entries {
        if cq.sends_outstanding() <= entries || Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(true)
}

/// `ibv_destroy_cq`: waits until its events are acknowledged.
pub(crate) unsafe extern "C" fn destroy(cq: *mut CqFace) -> c_int {
    let _whole = NoCancellation::new();
    let ended = || -> Result<()> {
        // SAFETY: the program's queue is ours, and so are its context and channel.
        unsafe {
            let queue = Cq::of(cq);
            queue.own.users.none()?;
            let cqn = queue.own.cq.cqn();
            context::of((*cq).context).objects().cqs.remove(&cqn);
            if !(*cq).channel.is_null() {
                VerbsChannel::of((*cq).channel).own.cqs().remove(&cqn);
            }
            queue.own.completions.wait();
            queue.own.events.wait();
            drop(Cq::free(cq));
        }
        Ok(())
    };
    errno::number(ended())
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify(cq: *mut CqFace, solicited_only: c_int) -> c_int {
    // SAFETY: the program's queue is ours.
    let queue = unsafe { Cq::of(cq) };
    queue.own.cq.arm(if solicited_only == 0 { Notify::Any } else { Notify::Solicited });
    0
}

/// `ibv_poll_cq`: how many, or a negative number.
pub(crate) unsafe extern "C" fn poll(cq: *mut CqFace, room: c_int, to: *mut Wc) -> c_int {
    // SAFETY: the program's queue is ours.
    let queue = &unsafe { Cq::of(cq) }.own;
    let room = usize::try_from(room).unwrap_or(0);
    // Latency-bound programs poll for one at a time: no room for more is cleared.
    let polled = if room == 1 {
        // SAFETY: the program gave room for one.
        unsafe { take(queue, &mut [Completion::EMPTY; 1], to) }
    } else {
        // SAFETY: the program gave room for `room`.
        unsafe { take_batches(queue, room, to) }
    };
    match polled {
        Ok(taken) => taken as c_int,
        Err(error) => -errno::number(Err(error)),
    }
}

/// Takes available completions, at most `room`, a batch at a time.
unsafe fn take_batches(queue: &CqState, room: usize, to: *mut Wc) -> Result<usize> {
    let mut batch = [Completion::EMPTY; BATCH];
    let mut taken = 0;
    while taken < room {
        let most = (room - taken).min(BATCH);
        // SAFETY: the caller gave room for `room`, of which `taken` are used.
        match unsafe { take(queue, &mut batch[..most], to.add(taken)) } {
            Ok(more) => {
                taken += more;
                if more < most {
                    break;
                }
            }
            Err(error) if taken == 0 => return Err(error),
            // The next poll says so.
            Err(_) => break,
        }
    }
    Ok(taken)
}

/// Takes at most as many as `batch` holds.
unsafe fn take(queue: &CqState, batch: &mut [Completion], to: *mut Wc) -> Result<usize> {
    let taken = queue.take(batch)?;
    for (place, completion) in batch[..taken].iter().enumerate() {
        // SAFETY: the caller vouches for room for as many as the batch holds.
        unsafe { to.add(place).write(wc(completion)) };
    }
    Ok(taken)
}

/// Properties of a completion besides its fields.
pub(crate) fn flags(it: &Completion) -> u32 {
    let grh = if it.has_grh { wc_flag::GRH } else { 0 };
    let imm = if it.imm.is_some() { wc_flag::IMM } else { 0 };
    let invalidated = if it.invalidated.is_some() { wc_flag::INVALIDATED } else { 0 };
    grh | imm | invalidated
}

/// Immediate data as it stood on the wire, or the key that no longer opens anything.
pub(crate) fn imm_data(it: &Completion) -> [u8; 4] {
    it.imm.or_else(|| it.invalidated.map(u32::to_ne_bytes)).unwrap_or_default()
}

/// Of a datagram the kind of header that brought it, as adapters tell it where InfiniBand has the
/// service level (IBTA A17.4.5.1): with UDP, and by IPv6 or IPv4. UCX reads it.
pub(crate) fn service_level(it: &Completion) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match (it.has_grh, it.has_ipv4) {
        (false, _) => 0,
        (true, false) => UDP | IPV6,
        (true, true) => UDP | IPV4,
    }
}

fn wc(it: &Completion) -> Wc {
    Wc {
        wr_id: it.wr_id,
        status: it.status as u32,
        opcode: it.op as u32,
        vendor_err: it.vendor_error,
        byte_len: it.byte_len,
        imm_data: imm_data(it),
        qp_num: it.qpn,
        src_qp: it.src_qpn,
        wc_flags: flags(it),
        pkey_index: 0,
        slid: 0,
        sl: service_level(it),
        dlid_path_bits: 0,
    }
}
