//! Memory that costs the daemon more than its client.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{FallocateFlags, fallocate};
use roced_abi::{
    control::{
        AllocMemory, AllocPd, CreateCq, CreateCqRequest, CreateQpRequest, MemoryRequest, Nothing, Refusal, RegMr,
        RegMrRequest, limit,
    },
    doorbell::ring_doorbell,
    layout::CqLayout,
    ring::{MappedRing, Producer},
    wqe::SendWqe,
};
use roced_types::{SendOp, Sge, access, send_flags, service};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{say, wait};
use crate::{
    actor::ActArguments,
    raw_client::{RawRefusal, RawSession},
    shared::Shared,
};

/// Bytes of a WRITE.
const PIECE: u64 = 1 << 20;

/// A session that writes to its own memory over a connection to itself.
struct SelfWriter {
    session: RawSession,
    sends: Producer<MappedRing<Arc<Shared>>>,
    words: usize,
    doorbell: u32,
    doorbells: Arc<Shared>,
    completions: Arc<Shared>,
    memory: OwnedFd,
    key: u32,
    reaped: u32,
    _other: Arc<Shared>,
}

impl SelfWriter {
    /// With one region of `bytes`, of which no page was touched.
    fn open(arguments: &ActArguments) -> Result<Self> {
        let mut session = RawSession::open(&arguments.socket)?;
        let (pd, _) = session.client.call::<AllocPd>(Nothing {})?;
        let (cq, mut fds) = session.client.call::<CreateCq>(CreateCqRequest { entries: 256, channel: 0 })?;
        let completions = Shared::whole(fds.pop().context("memory of the completion queue")?)?;
        let request = CreateQpRequest {
            pd: pd.handle,
            send_cq: cq.cqn,
            recv_cq: cq.cqn,
            service: service::RC,
            send_wrs: 16,
            recv_wrs: 16,
            send_sges: 1,
            recv_sges: 1,
            signal_all: 1,
            ..CreateQpRequest::default()
        };
        // The daemon seals doorbells and rings when they are used first: they are mapped before.
        let doorbells = session.doorbells()?;
        let make =
            |session: &mut RawSession| session.queue_pair(request)?.map_err(|refusal| anyhow::anyhow!("{refusal}"));
        let (left, right) = (make(&mut session)?, make(&mut session)?);
        let (rings, other) = (Shared::whole(&left.file)?, Shared::whole(&right.file)?);
        let (_, gid) = session.gid()?;
        session.connect(right.reply.qpn, gid, left.reply.qpn)?;
        session.connect(left.reply.qpn, gid, right.reply.qpn)?;
        let (memory, mut fds) = session.client.call::<AllocMemory>(MemoryRequest { bytes: arguments.bytes })?;
        let file = fds.pop().context("memory")?;
        let region = RegMrRequest {
            pd: pd.handle,
            memory: memory.handle,
            offset: 0,
            length: arguments.bytes,
            va: 0,
            access: access::LOCAL_WRITE | access::REMOTE_WRITE,
            reserved: 0,
        };
        let (region, _) = session.client.call::<RegMr>(region)?;
        Ok(Self {
            sends: rings.producer(0, left.layout.send),
            words: left.layout.send.stride_words(),
            doorbell: left.reply.doorbell,
            doorbells,
            completions,
            memory: file,
            key: region.lkey,
            reaped: 0,
            _other: other,
            session,
        })
    }

    /// The same with all pages, some of which were written.
    fn filled(arguments: &ActArguments) -> Result<Self> {
        let mut writer = Self::open(arguments)?;
        fill(&writer.memory, arguments.bytes)?;
        writer.write(0, PIECE, PIECE)?;
        Ok(writer)
    }

    /// Punches a hole of `bytes`, and writes there meanwhile.
    fn punch(&mut self, bytes: u64) -> Result<()> {
        let (file, length) = (self.memory.try_clone()?, i64::try_from(bytes)?);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punch = thread::spawn(move || fallocate(&file, flags, 0, length));
        let mut written = Ok(());
        while !punch.is_finished() && written.is_ok() {
            written = self.write(0, bytes - PIECE, PIECE);
        }
        punch.join().ok().context("a thread panicked")??;
        written
    }

    /// Writes a piece, and waits for its completion.
    fn write(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        let wqe = SendWqe {
            opcode: SendOp::Write as u8,
            flags: send_flags::SIGNALED,
            num_sge: 1,
            remote_va: to,
            rkey: self.key,
            ..SendWqe::default()
        };
        let sge = Sge { va: from, length: bytes as u32, lkey: self.key };
        let mut words = vec![0_u64; self.words];
        let slot = words.as_mut_bytes();
        slot[..64].copy_from_slice(wqe.as_bytes());
        slot[64..80].copy_from_slice(sge.as_bytes());
        let pushed = self.sends.push(&words).map_err(|_| anyhow::anyhow!("the ring is corrupt"))?;
        ensure!(pushed, "the ring is full");
        self.sends.publish();
        ring_doorbell(&self.block(), self.doorbell);
        self.session.wake();
        self.completion()
    }

    fn block(&self) -> impl roced_abi::doorbell::DoorbellBlock + use<> {
        RawBlock(Arc::clone(&self.doorbells))
    }

    fn completion(&mut self) -> Result<()> {
        let layout = CqLayout::new(256, self.session.opened.workers).context("a layout")?;
        let at = layout.cq_ring_offset(0);
        let begin = Instant::now();
        loop {
            let produced = self.completions.half(at).load(Ordering::Acquire);
            if produced != self.reaped {
                let place = at
                    + roced_abi::ring::RingShape::INDEX_BYTES
                    + (self.reaped % layout.cq_ring.entries()) as usize * 64;
                let mut bytes = [0_u8; 64];
                for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(
                        &self.completions.word(place / 8 + index).load(Ordering::Relaxed).to_ne_bytes(),
                    );
                }
                let cqe = roced_abi::cqe::Cqe::read_from_bytes(&bytes).ok().context("64 bytes")?;
                self.reaped = self.reaped.wrapping_add(1);
                self.completions.half(at + 64).store(self.reaped, Ordering::Release);
                ensure!(cqe.status == 0, "a WRITE ended with status {}", cqe.status);
                return Ok(());
            }
            ensure!(!self.session.client.has_ended(), "the daemon has ended the session");
            ensure!(begin.elapsed() < Duration::from_secs(30), "no completion within 30 s");
            self.session.wake();
            thread::yield_now();
        }
    }
}

struct RawBlock(Arc<Shared>);

impl roced_abi::doorbell::DoorbellBlock for RawBlock {
    fn summary(&self) -> &std::sync::atomic::AtomicU64 {
        self.0.word(0)
    }

    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        self.0.word(8 + index)
    }
}

/// Has every page of memory that was never touched written by the daemon.
pub(super) fn untouched(arguments: &ActArguments) -> Result<()> {
    let mut writer = SelfWriter::open(arguments)?;
    say("open")?;
    let mut at = PIECE;
    while at + PIECE <= arguments.bytes {
        // A refusal or an end of the session is a remedy.
        if writer.write(0, at, PIECE).is_err() {
            break;
        }
        at += PIECE;
    }
    say(&format!("written {at}"))?;
    wait()
}

/// Punches holes under writes of its own, without end.
pub(super) fn holes(arguments: &ActArguments) -> Result<()> {
    let mut writer = SelfWriter::filled(arguments)?;
    say("ready")?;
    loop {
        writer.punch(arguments.bytes)?;
        fill(&writer.memory, arguments.bytes)?;
    }
}

/// The same of small holes, in one session after the other: a hole that the daemon meets ends its
/// session. Says how many there were when the user is refused memory for the time of stalls, and
/// goes on.
pub(super) fn short_stalls(arguments: &ActArguments) -> Result<()> {
    let (mut sessions, mut was_refused) = (0, false);
    loop {
        match SelfWriter::filled(arguments) {
            Ok(mut writer) => {
                sessions += 1;
                if sessions == 1 {
                    say("ready")?;
                }
                while writer.punch(arguments.bytes).and_then(|()| fill(&writer.memory, arguments.bytes)).is_ok() {}
            }
            Err(error) if is_for_stalls(&error) => {
                if !std::mem::replace(&mut was_refused, true) {
                    say(&format!("refused after sessions: {sessions}"))?;
                }
                thread::sleep(Duration::from_millis(5));
            }
            // It was ended in the middle of its calls.
            Err(_) if sessions > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_for_stalls(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<RawRefusal>()
        .is_some_and(|refusal| refusal.status == Refusal::Limit as u32 && refusal.detail[1] == limit::STALLS)
}

/// Has every page of the file.
fn fill(file: &OwnedFd, bytes: u64) -> Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, i64::try_from(bytes)?)?)
}
