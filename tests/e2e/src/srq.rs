//! Messages of many peers to one program, which has a few receives for all of them and posts more
//! only when the limit event says so.
//!
//! ```text
//!   scatter            ── number, pattern ──► gather       over a connection: each arrives, in order
//!   scatter-datagrams  ── number, pattern ──► gather       again and again until it is answered
//!                      ◄────── number ───────
//! ```

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use roced_client::{
    Access, Completion, CompletionOp, ConnectOptions, DeviceEvent, Error, GRH_BYTES, MemoryRegion, RecvRequest,
    SendRequest, ServiceType, SharedReceiveQueue,
};

use crate::{
    end::{Address, End, TIMEOUT, say},
    unreliable::listen,
};

/// Longer than two packets at the largest path MTU.
const BYTES_MAX: usize = 12_000;
/// One packet at the largest path MTU.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// Receives for all peers together, not many more than they send at a time.
const RECEIVES: usize = 32;
/// With fewer than this the receiver is told.
const LIMIT: u32 = 14;
/// So many the receiver posts at a time, at least. When the limit is told that many are not in the
/// queue, nor with a queue pair that receives.
const REFILL: usize = 12;
/// Messages of one peer on their way.
const WINDOW: u32 = 8;
/// How long an answer is waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(10);
/// The sender of datagrams, in place of a peer's number.
const DATAGRAMS: usize = 100;

fn contents(peer: usize, message: u32) -> Vec<u8> {
    let max = if peer == DATAGRAMS { DATAGRAM_BYTES_MAX } else { BYTES_MAX };
    let length = 1 + (message as usize * 977 + peer * 4001) % max;
    (0..length).map(|at| (at * 7 + at / 253) as u8 ^ (message as usize * 31 + peer * 89) as u8).collect()
}

/// Sends `messages` messages as peer number `peer`.
pub(crate) fn scatter(peer: usize, messages: u32) -> Result<()> {
    let end = End::open()?;
    let memory = end.pd.allocate(WINDOW as usize * BYTES_MAX, Access::NONE)?;
    end.meet(None, &ConnectOptions::default())?;
    let completed = |message: u32| -> Result<()> {
        ensure!(end.completion()?.ok()?.wr_id == u64::from(message), "messages complete out of their order");
        Ok(())
    };
    for message in 0..messages {
        if message >= WINDOW {
            completed(message - WINDOW)?;
        }
        let bytes = contents(peer, message);
        let at = (message % WINDOW) as usize * BYTES_MAX;
        memory.write_at(at, &bytes);
        let data = [memory.sge(at..at + bytes.len())];
        end.qp.post_send(&SendRequest::send(&data).imm(message.to_be_bytes()).id(message.into()).signaled())?;
    }
    (messages.saturating_sub(WINDOW)..messages).try_for_each(completed)?;
    say("scattered")
}

/// Sends `datagrams` datagrams, each until it is answered.
pub(crate) fn scatter_datagrams(datagrams: u32) -> Result<()> {
    let end = End::of(ServiceType::Ud)?;
    let memory = end.pd.allocate(DATAGRAM_BYTES_MAX + GRH_BYTES, Access::LOCAL_WRITE)?;
    let room = [memory.sge(DATAGRAM_BYTES_MAX..)];
    for _ in 0..RECEIVES {
        end.qp.post_recv(&RecvRequest::new(&room))?;
    }
    let to = end.meet_for_datagrams()?;
    for number in 0..datagrams {
        let (bytes, begin) = (contents(DATAGRAMS, number), Instant::now());
        memory.write_at(0, &bytes);
        let data = [memory.sge(..bytes.len())];
        let mut answered = false;
        while !answered {
            ensure!(begin.elapsed() < TIMEOUT, "datagram {number} is not answered");
            end.qp.post_send(&to.of(SendRequest::send(&data)).imm(number.to_be_bytes()).signaled())?;
            let mut one = [Completion::EMPTY];
            while !answered && end.cq.wait(&mut one, ANSWER_TIMEOUT)? == 1 {
                let done = one[0].ok()?;
                if done.op == CompletionOp::Recv {
                    end.qp.post_recv(&RecvRequest::new(&room))?;
                    // Or to an earlier try, which came late.
                    answered = done.imm == Some(number.to_be_bytes());
                }
            }
        }
    }
    say("scattered")
}

/// The receives that all queue pairs take from.
struct Pool {
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
    /// Buffers that are not posted.
    free: Vec<u64>,
    /// The limit was told, and nothing was posted since.
    is_low: bool,
}

impl Pool {
    fn new(end: &End) -> Result<Self> {
        let srq = end.pd.shared_receive_queue(RECEIVES as u32, 1)?;
        let memory = end.pd.allocate(RECEIVES * BYTES_MAX, Access::LOCAL_WRITE)?;
        Ok(Self { srq, memory, free: (0..RECEIVES as u64).collect(), is_low: false })
    }

    /// Posts all that is free, and asks to be told again.
    fn fill(&mut self) -> Result<()> {
        while let Some(buffer) = self.free.pop() {
            let at = buffer as usize * BYTES_MAX;
            let room = [self.memory.sge(at..at + BYTES_MAX)];
            loop {
                match self.srq.post_recv(&RecvRequest::new(&room).id(buffer)) {
                    // The ring is full an instant longer than the queue.
                    Err(Error::QueueFull { .. }) => thread::yield_now(),
                    outcome => break outcome?,
                }
            }
        }
        self.is_low = false;
        Ok(self.srq.arm_limit(LIMIT)?)
    }
}

/// The receiver: a queue pair for each peer, and one for datagrams, all with receives of one queue.
struct Gatherer {
    hub: End,
    pool: Pool,
    ends: Vec<End>,
    /// The number of the next message of each.
    next: Vec<u32>,
    post: End,
    answer_to: Address,
    next_datagram: u32,
    /// How often the limit was told.
    told: usize,
}

/// Takes `messages` messages of each of `peers` peers, and `datagrams` of one more; when the test
/// says that all were sent it ends its queue pairs.
pub(crate) fn gather(peers: usize, messages: u32, datagrams: u32) -> Result<()> {
    let mut gatherer = Gatherer::meet(peers)?;
    let (all_sent, begin) = (listen(), Instant::now());
    loop {
        let sent = all_sent.load(Ordering::Relaxed);
        // A message that was acknowledged or answered has its completion.
        if !gatherer.take()? && sent {
            break;
        }
        gatherer.hear_events()?;
        ensure!(begin.elapsed() < TIMEOUT, "of the peers came {:?}", gatherer.next);
    }
    let Gatherer { next, next_datagram, told, .. } = &gatherer;
    ensure!(next.iter().all(|next| *next == messages), "of the peers came {next:?} messages");
    ensure!(*next_datagram == datagrams, "{next_datagram} datagrams came");
    // Nothing else has posted more than the first few.
    let all = peers * messages as usize + datagrams as usize;
    ensure!(*told >= all.div_ceil(RECEIVES) - 1, "the limit was told {told} times");
    gatherer.end()?;
    say("gathered")
}

impl Gatherer {
    fn meet(peers: usize) -> Result<Self> {
        let hub = End::open()?;
        let mut pool = Pool::new(&hub)?;
        pool.fill()?;
        let ends = (0..peers).map(|_| hub.sharing(&pool.srq, ServiceType::Rc)).collect::<Result<Vec<_>>>()?;
        let post = hub.sharing(&pool.srq, ServiceType::Ud)?;
        // A try that is lost spends a retry, and a sender that finds no receive tries again after
        // this: 10.24 ms, so that a receiver that the machine keeps waiting for a second does not
        // cost all of them.
        let options = ConnectOptions { min_rnr_timer: 20, ..ConnectOptions::default() };
        for end in &ends {
            end.meet(None, &options)?;
        }
        let answer_to = post.meet_for_datagrams()?;
        Ok(Self { hub, pool, ends, next: vec![0; peers], post, answer_to, next_datagram: 0, told: 0 })
    }

    /// Takes the messages that have come; false when none has.
    fn take(&mut self) -> Result<bool> {
        let mut some = [Completion::EMPTY; RECEIVES];
        let count = self.hub.cq.wait(&mut some, Duration::from_millis(5))?;
        for done in &some[..count] {
            let done = done.ok()?;
            if done.op == CompletionOp::Send {
                continue;
            }
            if done.qpn == self.post.qp.qpn() {
                self.take_datagram(&done)?;
            } else {
                let peer =
                    self.ends.iter().position(|end| end.qp.qpn() == done.qpn).context("a queue pair of no peer")?;
                ensure!(number(&done)? == self.next[peer], "not message {} of peer {peer}: {done:?}", self.next[peer]);
                self.check(&done, peer, 0)?;
                self.next[peer] += 1;
            }
            self.pool.free.push(done.wr_id);
        }
        Ok(count > 0)
    }

    fn take_datagram(&mut self, done: &Completion) -> Result<()> {
        ensure!(done.has_grh, "no GRH: {done:?}");
        self.check(done, DATAGRAMS, GRH_BYTES)?;
        let number = number(done)?;
        ensure!(number <= self.next_datagram, "datagram {number} in place of {}", self.next_datagram);
        self.next_datagram = self.next_datagram.max(number + 1);
        let answer = self.answer_to.of(SendRequest::send(&[])).imm(number.to_be_bytes());
        Ok(self.post.qp.post_send(&answer.signaled())?)
    }

    /// Checks that the bytes behind the first `skip` are those that were sent.
    fn check(&self, done: &Completion, peer: usize, skip: usize) -> Result<()> {
        let wanted = contents(peer, number(done)?);
        ensure!(done.byte_len as usize == skip + wanted.len(), "{done:?} has not {} bytes", wanted.len());
        let arrived = self.pool.memory.to_vec(done.wr_id as usize * BYTES_MAX + skip, wanted.len());
        ensure!(arrived == wanted, "a message of peer {peer} differs from the one sent: {done:?}");
        Ok(())
    }

    fn hear_events(&mut self) -> Result<()> {
        while let Some(event) = self.hub.pd.device().next_event()? {
            match event {
                DeviceEvent::SrqLimit { srqn } if srqn == self.pool.srq.srqn() => {
                    ensure!(!self.pool.is_low, "the limit was told twice");
                    self.told += 1;
                    self.pool.is_low = true;
                }
                // A peer that was quicker than we.
                DeviceEvent::CommunicationEstablished { .. } => {}
                other => bail!("{other:?}"),
            }
        }
        if self.pool.is_low && self.pool.free.len() >= REFILL {
            self.pool.fill()?;
        }
        Ok(())
    }

    /// All queue pairs fail, and each tells its last work request.
    fn end(&self) -> Result<()> {
        let all = || self.ends.iter().chain([&self.post]);
        all().try_for_each(|end| end.qp.to_error())?;
        let mut left: Vec<u32> = all().map(|end| end.qp.qpn()).collect();
        let begin = Instant::now();
        while !left.is_empty() {
            ensure!(begin.elapsed() < TIMEOUT, "{left:?} tell no last work request");
            match self.hub.pd.device().next_event()? {
                Some(DeviceEvent::LastWqe { qpn }) => left.retain(|other| *other != qpn),
                _ => thread::yield_now(),
            }
        }
        Ok(())
    }
}

fn number(done: &Completion) -> Result<u32> {
    Ok(u32::from_be_bytes(done.imm.context("no immediate data")?))
}
