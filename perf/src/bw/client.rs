//! The client's half: posts as much as may be under way, and takes note when it is done.

use std::{
    array,
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use roced_client::{Error, RecvRequest, RemoteMemory, SendRequest, Sge};

use super::{CREDIT_RECEIVES, gives_credit, server_offer, slot, slots_bytes};
use crate::{
    cli::Op,
    control::{ControlChannel, ControlMessage, PeerVerdict, QpInfo, Run},
    flow::{PostedWork, Sending, share},
    pattern::{self, Expected},
    progress::{Progress, ProgressGoal},
    report::LatencyTimes,
    session::{RunSession, SessionEvent, TICK},
};

/// Messages posted with one doorbell.
const POST_BURST: usize = 16;

/// Longest time without any completion: a 2 GiB message takes that long at 60 Mbit/s. A lost peer
/// or daemon is reported long before; this limit covers all other causes.
const NOTHING_MAX: Duration = Duration::from_secs(300);

/// The client's half of a run.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    run: &'a Run,
    session: &'a mut RunSession,
    qps: Vec<BwQp>,
    /// Expected bytes of READs.
    expected: Option<Expected>,
    outcome: BwOutcome,
}

/// One queue pair.
#[derive(Debug)]
struct BwQp {
    sending: Sending,
    /// The server's memory.
    remote: RemoteMemory,
    /// When the messages under way were posted.
    posted_at: VecDeque<Instant>,
}

/// Result of the client.
#[derive(Debug)]
pub(crate) struct BwOutcome {
    /// Messages of each queue pair.
    pub(crate) messages: Vec<u64>,
    /// From the first one posted to the last one complete.
    pub(crate) elapsed: Duration,
    /// From posting to completion.
    pub(crate) times: LatencyTimes,
    /// Bytes that this side compared.
    pub(crate) compared_bytes: u64,
}

impl<'a> Client<'a> {
    /// Ready to begin. `server` is the server's description of its queue pairs.
    ///
    /// # Errors
    /// When the server offers less memory than the run needs.
    pub(crate) fn new(
        run: &'a Run,
        session: &'a mut RunSession,
        server: &[QpInfo],
        goal: ProgressGoal,
    ) -> anyhow::Result<Self> {
        let quotas: Vec<Option<u64>> = match goal {
            ProgressGoal::Messages(total) => share(total, server.len() as u32).map(Some).collect(),
            ProgressGoal::Time(_) => vec![None; server.len()],
        };
        let mut qps = Vec::with_capacity(server.len());
        for (index, (address, quota)) in server.iter().zip(quotas).enumerate() {
            let needed = server_offer(run, index).map_or(0, |(_, bytes)| bytes);
            let offered = address.memory.map_or(0, |memory| memory.bytes);
            ensure!(offered >= needed, "the server offers {offered} bytes of memory where the run needs {needed}");
            let remote = address.memory.map_or_else(RemoteMemory::default, |memory| RemoteMemory {
                va: memory.va,
                length: memory.bytes,
                rkey: memory.rkey,
            });
            let sending = Sending::new(run.depth, quota, gives_credit(run));
            qps.push(BwQp { sending, remote, posted_at: VecDeque::with_capacity(run.depth as usize) });
        }
        match run.op {
            Op::Send | Op::Write => {
                pattern::make(run.seed, run.size, |at, piece| session.memory.write_at(at, piece));
            }
            Op::Read => {}
        }
        if gives_credit(run) {
            session.post_empty_receives(CREDIT_RECEIVES)?;
        }
        let expected = (run.op == Op::Read && run.verify).then(|| Expected::new(run.seed, run.size));
        let outcome =
            BwOutcome { messages: Vec::new(), elapsed: Duration::ZERO, times: LatencyTimes::new(), compared_bytes: 0 };
        Ok(Self { run, session, qps, expected, outcome })
    }

    /// Moves the data.
    ///
    /// # Errors
    /// When work fails, data is wrong, or the server or the daemon is gone.
    pub(crate) fn run(mut self, channel: &mut ControlChannel, goal: ProgressGoal) -> anyhow::Result<BwOutcome> {
        let progress = Progress::new(goal, self.run.size);
        let mut events = Vec::new();
        let begin = Instant::now();
        let (mut looked, mut moved) = (begin, begin);
        let mut end = match goal {
            ProgressGoal::Time(time) => Some(begin + time),
            ProgressGoal::Messages(_) => None,
        };
        let mut now = begin;
        while !self.qps.iter().all(|qp| qp.sending.is_done()) {
            if end.take_if(|end| now >= *end).is_some() {
                self.qps.iter_mut().for_each(|qp| qp.sending.stop());
            }
            for qp in 0..self.qps.len() {
                self.post(qp, now)?;
            }
            self.session.reap(&mut events)?;
            now = Instant::now();
            for event in &events {
                self.on_event(*event, now)?;
                moved = now;
            }
            if now.duration_since(looked) >= TICK {
                looked = now;
                look_after(channel)?;
                ensure!(now.duration_since(moved) < NOTHING_MAX, "nothing came for {} s", NOTHING_MAX.as_secs());
                progress.show(self.completed());
            }
        }
        self.outcome.elapsed = now.duration_since(begin);
        self.outcome.messages = self.qps.iter().map(|qp| qp.sending.completed()).collect();
        Ok(self.outcome)
    }

    fn completed(&self) -> u64 {
        self.qps.iter().map(|qp| qp.sending.completed()).sum()
    }

    /// Posts work requests up to the limit in flight.
    fn post(&mut self, qp: usize, now: Instant) -> anyhow::Result<()> {
        loop {
            let pair = &self.qps[qp];
            let wanted = pair.sending.room().min(POST_BURST as u64) as usize;
            if wanted == 0 {
                return Ok(());
            }
            let posts: [PostedWork; POST_BURST] = array::from_fn(|ahead| pair.sending.peek(ahead as u64));
            let sges: [[Sge; 1]; POST_BURST] = array::from_fn(|at| [self.sge(qp, posts[at])]);
            let requests: [SendRequest<'_>; POST_BURST] = array::from_fn(|at| self.request(qp, posts[at], &sges[at]));
            let posted = match self.session.qps[qp].post_sends(&requests[..wanted]) {
                Ok(posted) => posted,
                // The daemon has not yet released the slot of a completion that has already
                // arrived.
                Err(Error::QueueFull { .. }) => 0,
                Err(error) => return Err(error.into()),
            };
            let pair = &mut self.qps[qp];
            pair.sending.on_posted(posted as u64);
            pair.posted_at.extend(std::iter::repeat_n(now, posted));
            if posted < wanted {
                return Ok(());
            }
        }
    }

    /// Where the message lies on this side.
    fn sge(&self, qp: usize, post: PostedWork) -> Sge {
        let begin = match self.run.op {
            Op::Send | Op::Write => pattern::offset(qp as u32, post.sequence) as usize,
            Op::Read => self.slot(qp, post.sequence),
        };
        self.session.memory.sge(begin..begin + self.run.size as usize)
    }

    /// Where a message that is read comes to lie.
    fn slot(&self, qp: usize, sequence: u64) -> usize {
        (slots_bytes(self.run) * qp as u64 + slot(self.run, sequence)) as usize
    }

    fn request<'s>(&self, qp: usize, post: PostedWork, sges: &'s [Sge]) -> SendRequest<'s> {
        let remote = self.qps[qp].remote;
        let request = match self.run.op {
            Op::Send => SendRequest::send(sges),
            Op::Read => SendRequest::read(sges, remote.at(pattern::offset(qp as u32, post.sequence))),
            Op::Write => {
                let write = SendRequest::write(sges, remote.at(slot(self.run, post.sequence)));
                // The number of messages up to and with this one; the receiver knows the upper
                // half.
                let count = (post.sequence + 1) as u32;
                if post.notice && self.run.verify { write.imm(count.to_be_bytes()) } else { write }
            }
        };
        request.id(post.sequence).signaled()
    }

    fn on_event(&mut self, event: SessionEvent, now: Instant) -> anyhow::Result<()> {
        match event {
            SessionEvent::Sent { qp } => {
                let sequence = self.qps[qp].sending.completed();
                if self.expected.is_some() {
                    self.compare(qp, sequence)?;
                }
                let pair = &mut self.qps[qp];
                pair.sending.on_completed();
                let posted = pair.posted_at.pop_front().context("a completion of nothing that was posted")?;
                self.outcome.times.record(now.duration_since(posted));
            }
            SessionEvent::Received { qp, imm, .. } => {
                let count = imm.context("the server sent a message that is no credit")?;
                self.qps[qp].sending.on_credit(count)?;
                self.session.qps[qp].post_recv(&RecvRequest::new(&[]))?;
            }
        }
        Ok(())
    }

    fn compare(&mut self, qp: usize, sequence: u64) -> anyhow::Result<()> {
        let at = self.slot(qp, sequence);
        let memory = &self.session.memory;
        if let Some(expected) = &mut self.expected {
            expected.compare(qp as u32, sequence, |offset, into| memory.read_at(at + offset, into))?;
            self.outcome.compared_bytes += self.run.size;
        }
        Ok(())
    }
}

/// Looks after the control channel in the middle of a run.
pub(crate) fn look_after(channel: &mut ControlChannel) -> anyhow::Result<()> {
    match channel.look()? {
        None => Ok(()),
        Some(ControlMessage::Verdict(PeerVerdict { mismatch: Some(mismatch), .. })) => Err(mismatch.into()),
        Some(other) => bail!("the server said {other:?} in the middle of the run"),
    }
}
