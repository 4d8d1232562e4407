//! A transfer of an honest user beside an attack: every byte is verified on arrival.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionQueue, ConnectOptions, Device, GRH_BYTES, Gid,
    MemoryRegion, ProtectionDomain, QueuePair, RecvRequest, SendRequest, ServiceType,
};

use crate::latency::Latencies;

const QKEY: u32 = 0x1234_5678;

/// Receives posted at a time.
const RECEIVES: usize = 256;

/// A message that has not arrived after this time counts as lost, where services lose.
const LOST_AFTER: Duration = Duration::from_millis(20);

/// A transfer.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Socket of the sending side's daemon.
    pub(crate) from: PathBuf,
    /// Socket of the receiving side's daemon, and its GID.
    pub(crate) to: (PathBuf, Gid),
    /// GID of the sending side.
    pub(crate) source: Gid,
    /// Service.
    pub(crate) service: ServiceType,
    /// Bytes of a message, a multiple of eight, at least 16.
    pub(crate) bytes: usize,
    /// Messages under way at most.
    pub(crate) window: u64,
}

/// Figures of a transfer over some time.
#[derive(Clone, Debug)]
pub(crate) struct TransferFigures {
    /// Messages that arrived with the right content.
    pub(crate) messages: u64,
    /// Messages that arrived with another content, twice, or from nowhere.
    pub(crate) wrong: u64,
    /// Messages that did not arrive.
    pub(crate) lost: u64,
    /// The connection has ended.
    pub(crate) ended: Option<String>,
    /// Verified bytes a second.
    pub(crate) gbit_per_s: f64,
    /// From posting to the receiver's completion.
    pub(crate) latencies: Latencies,
}

/// A transfer in progress.
#[derive(Debug)]
pub(crate) struct Victim {
    state: Arc<VictimState>,
    threads: Vec<JoinHandle<()>>,
    since: Instant,
    before: [u64; 3],
    bytes: usize,
    /// Queue pair number of the receiver.
    pub(crate) receiver_qpn: u32,
    /// Queue pair number of the sender.
    pub(crate) sender_qpn: u32,
}

#[derive(Debug)]
struct VictimState {
    stop: AtomicBool,
    paused: AtomicBool,
    /// Sequence number of the next message to be posted.
    posted: AtomicU64,
    /// Messages received or given up, as the sender's window counts them.
    finished: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
    lost: AtomicU64,
    ended: Mutex<Option<String>>,
    latencies: Mutex<Latencies>,
    /// Time of the posting of each message, ns since `begin`, by the lower bits of its number.
    posted_at: Vec<AtomicU64>,
    begin: Instant,
}

impl VictimState {
    fn end(&self, why: &anyhow::Error) {
        if !self.stop.load(Ordering::Relaxed) {
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| format!("{why:#}"));
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One side of the transfer.
struct Side {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    gid_index: u32,
}

impl Side {
    fn open(socket: &Path, peer: Gid, service: ServiceType, bytes: usize) -> Result<Self> {
        let name = Device::list_at(socket)?.into_iter().next().context("no device")?;
        let device = Device::open_at(socket, &name)?;
        let pd = device.protection_domain()?;
        let cq = device.completion_queue(1024)?;
        let qp = pd.queue_pair(&cq, &cq).service(service).send_wrs(512).recv_wrs(RECEIVES as u32).create()?;
        match service {
            ServiceType::Ud => qp.activate(QKEY)?,
            ServiceType::Rc | ServiceType::Uc => qp.to_init(Access::ALL)?,
        }
        let memory = pd.allocate((bytes + GRH_BYTES) * RECEIVES, Access::LOCAL_WRITE)?;
        let gid_index = device.gid_toward(peer)?.index;
        Ok(Self { pd, cq, qp, memory, gid_index })
    }
}

/// Word `at` of message `sequence`.
const fn word(sequence: u64, at: u64) -> u64 {
    if at == 0 { sequence } else { (sequence + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at) }
}

impl Victim {
    /// Begins a transfer.
    pub(crate) fn start(transfer: &Transfer) -> Result<Self> {
        let Transfer { from, to: (to, destination), source, service, bytes, window } = transfer.clone();
        let sender = Side::open(&from, destination, service, bytes)?;
        let receiver = Side::open(&to, source, service, bytes)?;
        for slot in 0..RECEIVES {
            receiver.post(slot, service, bytes)?;
        }
        let (ours, theirs) = (sender.qp.address(sender.gid_index)?, receiver.qp.address(receiver.gid_index)?);
        let options = ConnectOptions { rnr_retry: 7, ..ConnectOptions::default() };
        let handle = if service == ServiceType::Ud {
            Some(sender.pd.address_handle(&AddressOptions::new(destination))?)
        } else {
            receiver.qp.connect(&ours, &options)?;
            sender.qp.connect(&theirs, &options)?;
            None
        };
        let state = Arc::new(VictimState {
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            posted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            right: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            ended: Mutex::default(),
            latencies: Mutex::default(),
            posted_at: (0..RECEIVES).map(|_| AtomicU64::new(0)).collect(),
            begin: Instant::now(),
        });
        let (sends, receives) = (Arc::clone(&state), Arc::clone(&state));
        let (receiver_qpn, sender_qpn) = (receiver.qp.qpn(), sender.qp.qpn());
        let window = window.min(RECEIVES as u64 / 2);
        let threads = vec![
            thread::spawn(move || {
                if let Err(error) =
                    send(&sends, &sender, service, handle.as_ref().map(|to| (to, receiver_qpn)), bytes, window)
                {
                    sends.end(&error.context("the sender"));
                }
            }),
            thread::spawn(move || {
                if let Err(error) = receive(&receives, &receiver, service, bytes) {
                    receives.end(&error.context("the receiver"));
                }
            }),
        ];
        Ok(Self { state, threads, since: Instant::now(), before: [0; 3], bytes, receiver_qpn, sender_qpn })
    }

    /// Stops posting, or goes on.
    pub(crate) fn pause(&self, paused: bool) {
        self.state.paused.store(paused, Ordering::Relaxed);
    }

    /// Figures since the last call.
    pub(crate) fn take(&mut self) -> TransferFigures {
        let state = &self.state;
        let now = [&state.right, &state.wrong, &state.lost].map(|count| count.load(Ordering::Relaxed));
        let [messages, wrong, lost] = [0, 1, 2].map(|at| now[at] - self.before[at]);
        let seconds = self.since.elapsed().as_secs_f64();
        (self.before, self.since) = (now, Instant::now());
        TransferFigures {
            messages,
            wrong,
            lost,
            ended: state.ended.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            gbit_per_s: (messages * self.bytes as u64 * 8) as f64 / seconds / 1e9,
            latencies: std::mem::take(&mut *state.latencies.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Figures of the next `time`.
    pub(crate) fn measure(&mut self, time: Duration) -> TransferFigures {
        self.take();
        thread::sleep(time);
        self.take()
    }

    fn end(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of it was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.end();
    }
}

impl Side {
    fn post(&self, slot: usize, service: ServiceType, bytes: usize) -> Result<()> {
        let grh = if service == ServiceType::Ud { GRH_BYTES } else { 0 };
        let at = slot * (bytes + GRH_BYTES);
        let sges = [self.memory.sge(at..at + grh + bytes)];
        Ok(self.qp.post_recv(&RecvRequest::new(&sges).id(slot as u64))?)
    }
}

fn send(
    state: &VictimState,
    side: &Side,
    service: ServiceType,
    to: Option<(&AddressHandle, u32)>,
    bytes: usize,
    window: u64,
) -> Result<()> {
    let (mut sequence, mut reaped, mut message) = (0_u64, 0_u64, vec![0; bytes]);
    let mut done = [Completion::EMPTY; 16];
    let mut progress = (0, Instant::now());
    while !state.stop.load(Ordering::Relaxed) {
        let finished = state.finished.load(Ordering::Acquire);
        if finished != progress.0 {
            progress = (finished, Instant::now());
        }
        let has_room = sequence < finished + window && sequence < reaped + RECEIVES as u64;
        if has_room && !state.paused.load(Ordering::Relaxed) {
            for (at, place) in message.chunks_exact_mut(8).enumerate() {
                place.copy_from_slice(&word(sequence, at as u64).to_ne_bytes());
            }
            let slot = sequence as usize % RECEIVES;
            let at = slot * (bytes + GRH_BYTES);
            side.memory.write_at(at, &message);
            let sges = [side.memory.sge(at..at + bytes)];
            let request = SendRequest::send(&sges).id(sequence).signaled();
            let request = to.map_or(request, |(handle, qpn)| request.to(handle, qpn, QKEY));
            state.posted_at[slot].store(state.begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
            sequence += 1;
            state.posted.store(sequence, Ordering::Release);
            side.qp.post_send(&request)?;
        }
        let count =
            if has_room { side.cq.poll(&mut done)? } else { side.cq.wait(&mut done, Duration::from_micros(500))? };
        for completion in &done[..count] {
            completion.ok()?;
            reaped += 1;
        }
        // Only the receiver knows of a loss, and it cannot know of the last.
        if service != ServiceType::Rc && sequence > finished && progress.1.elapsed() > LOST_AFTER {
            state.lost.fetch_add(sequence - finished, Ordering::Relaxed);
            state.finished.fetch_max(sequence, Ordering::AcqRel);
        }
        if has_room && state.paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn receive(state: &VictimState, side: &Side, service: ServiceType, bytes: usize) -> Result<()> {
    let mut done = [Completion::EMPTY; 16];
    let mut expected = 0;
    let mut content = vec![0; bytes];
    let grh = if service == ServiceType::Ud { GRH_BYTES } else { 0 };
    while !state.stop.load(Ordering::Relaxed) {
        let count = side.cq.wait(&mut done, Duration::from_millis(50))?;
        for completion in &done[..count] {
            let completion = completion.ok()?;
            let slot = completion.wr_id as usize;
            side.memory.read_at(slot * (bytes + GRH_BYTES) + grh, &mut content);
            let words = content.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
            let sequence = words.clone().next().unwrap_or(u64::MAX);
            let is_whole = completion.byte_len as usize == grh + bytes
                && words.enumerate().all(|(at, found)| found == word(sequence, at as u64));
            if is_whole && sequence >= expected && sequence < state.posted.load(Ordering::Acquire) {
                // A forged message takes the place of a true one.
                if service == ServiceType::Rc {
                    state.lost.fetch_add(sequence - expected, Ordering::Relaxed);
                }
                expected = sequence + 1;
                state.right.fetch_add(1, Ordering::Relaxed);
                let posted = state.posted_at[sequence as usize % RECEIVES].load(Ordering::Relaxed);
                let time = state.begin.elapsed().saturating_sub(Duration::from_nanos(posted));
                state.latencies.lock().unwrap_or_else(PoisonError::into_inner).add(time);
                state.finished.fetch_max(expected, Ordering::AcqRel);
            } else {
                state.wrong.fetch_add(1, Ordering::Relaxed);
            }
            side.post(slot, service, bytes)?;
        }
    }
    Ok(())
}
