//! Server side: receives and compares data and returns credits; for READ it only offers its
//! buffers.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use roced_client::{Error, RecvRequest, SendRequest};

use super::{NOTICE_RECEIVES, gives_credit, slot, slots_bytes};
use crate::{
    cli::Op,
    control::{ControlChannel, ControlMessage, Run},
    flow::Receiving,
    pattern::{self, Expected, Mismatch},
    session::{RunSession, SessionEvent, TICK},
};

/// How long messages may still be missing after the client said that all of them are complete.
const MISSING_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's half of a run.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    run: &'a Run,
    session: &'a mut RunSession,
    qps: Vec<Receiving>,
    expected: Option<Expected>,
    compared_bytes: u64,
}

impl<'a> Server<'a> {
    /// Ready for the client. To be made before the queue pairs are connected: receives must be
    /// there before messages are.
    pub(crate) fn new(run: &'a Run, session: &'a mut RunSession) -> anyhow::Result<Self> {
        let qps = vec![Receiving::new(run.depth); session.qps.len()];
        match run.op {
            Op::Read => pattern::make(run.seed, run.size, |at, piece| session.memory.write_at(at, piece)),
            Op::Write => session.post_empty_receives(NOTICE_RECEIVES)?,
            Op::Send => {}
        }
        let expected = (run.op != Op::Read && run.verify).then(|| Expected::new(run.seed, run.size));
        let server = Self { run, session, qps, expected, compared_bytes: 0 };
        if run.op == Op::Send {
            for qp in 0..server.qps.len() {
                (0..u64::from(run.depth)).try_for_each(|sequence| server.post_receive(qp, sequence))?;
            }
        }
        Ok(server)
    }

    /// The queue pairs, to be connected.
    pub(crate) fn session(&self) -> &RunSession {
        self.session
    }

    /// Serves until the client has finished; gives the bytes that were compared.
    ///
    /// # Errors
    /// When data is wrong ([`Mismatch`]), messages are missing, work fails, or the client or the
    /// daemon is gone.
    pub(crate) fn run(mut self, channel: &mut ControlChannel) -> anyhow::Result<u64> {
        let mut events = Vec::new();
        let (mut looked, mut moved) = (Instant::now(), Instant::now());
        let mut finish: Option<Vec<u64>> = None;
        loop {
            self.session.reap(&mut events)?;
            for event in &events {
                self.on_event(*event)?;
            }
            let now = Instant::now();
            if !events.is_empty() {
                moved = now;
            }
            if now.duration_since(looked) >= TICK || events.is_empty() {
                looked = now;
                match channel.look()? {
                    None => {}
                    Some(ControlMessage::Finish { messages })
                        if finish.is_none() && messages.len() == self.qps.len() =>
                    {
                        (finish, moved) = (Some(messages), now);
                    }
                    Some(other) => bail!("the client said {other:?} in the middle of the run"),
                }
            }
            if let Some(messages) = &finish {
                if self.has_all(messages) {
                    return Ok(self.compared_bytes);
                }
                if now.duration_since(moved) > MISSING_TIMEOUT {
                    bail!("{} messages were complete at the client and never came here", self.missing(messages));
                }
            }
        }
    }

    /// All messages of the client have been compared. The server does not know of WRITEs without
    /// comparison.
    fn has_all(&self, messages: &[u64]) -> bool {
        !gives_credit(self.run) || self.missing(messages) == 0
    }

    fn missing(&self, messages: &[u64]) -> u64 {
        messages.iter().zip(&self.qps).map(|(sent, qp)| sent.saturating_sub(qp.consumed())).sum()
    }

    fn on_event(&mut self, event: SessionEvent) -> anyhow::Result<()> {
        let qp = match event {
            SessionEvent::Sent { qp } => {
                self.qps[qp].on_credit_completed();
                qp
            }
            SessionEvent::Received { qp, imm: Some(count), .. } if self.run.op == Op::Write => {
                let upto = self.qps[qp].notice(count);
                let news = upto - self.qps[qp].consumed();
                ensure!(
                    news <= u64::from(self.run.depth),
                    "the client told of {news} messages, more than there can be"
                );
                for _ in 0..news {
                    self.consume(qp)?;
                }
                self.session.qps[qp].post_recv(&RecvRequest::new(&[]))?;
                qp
            }
            SessionEvent::Received { qp, bytes, imm: None, .. } if self.run.op == Op::Send => {
                let sequence = self.qps[qp].consumed();
                if u64::from(bytes) != self.run.size {
                    let expected = Expected::new(self.run.seed, self.run.size);
                    let found = self.session.memory.to_vec(self.slot(qp, sequence), bytes as usize);
                    let sent = expected.message(qp as u32, sequence);
                    return Err(Mismatch::between(qp as u32, sequence, sent, &found).into());
                }
                self.consume(qp)?;
                self.post_receive(qp, sequence + u64::from(self.run.depth))?;
                qp
            }
            SessionEvent::Received { .. } => bail!("a message came that does not belong to this run"),
        };
        self.give_credit(qp)
    }

    /// The next message of a queue pair lies in its slot: looks at it.
    fn consume(&mut self, qp: usize) -> anyhow::Result<()> {
        let sequence = self.qps[qp].consumed();
        let at = self.slot(qp, sequence);
        let memory = &self.session.memory;
        if let Some(expected) = &mut self.expected {
            expected.compare(qp as u32, sequence, |offset, into| memory.read_at(at + offset, into))?;
            self.compared_bytes += self.run.size;
        }
        self.qps[qp].on_consumed();
        Ok(())
    }

    fn slot(&self, qp: usize, sequence: u64) -> usize {
        (slots_bytes(self.run) * qp as u64 + slot(self.run, sequence)) as usize
    }

    /// Posts the receive for message `sequence` of a queue pair.
    fn post_receive(&self, qp: usize, sequence: u64) -> anyhow::Result<()> {
        let begin = self.slot(qp, sequence);
        let sge = self.session.memory.sge(begin..begin + self.run.size as usize);
        self.session.qps[qp].post_recv(&RecvRequest::new(&[sge]).id(sequence)).context("posting a receive")
    }

    fn give_credit(&mut self, qp: usize) -> anyhow::Result<()> {
        if !gives_credit(self.run) {
            return Ok(());
        }
        if let Some(count) = self.qps[qp].next_credit() {
            let credit = SendRequest::send(&[]).imm(count.to_be_bytes()).signaled();
            match self.session.qps[qp].post_send(&credit) {
                Ok(()) => {}
                Err(Error::QueueFull { .. }) => bail!("the send queue is full of credits: more than can be under way"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
