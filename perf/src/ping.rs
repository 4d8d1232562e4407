//! Latency: one message there and back at a time.
//!
//! The server sends back the bytes that it received, from their buffer, and the client compares all
//! of them, so that both directions are verified. With SEND, both sides wait for completions. With
//! WRITE, both watch the last byte of their buffer: every message ends with a *stamp* that differs
//! from the one before, and the last byte of a WRITE is in place only after the others.

use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use roced_client::{Access, RecvRequest, RemoteMemory, SendRequest};

use crate::{
    bw::client::look_after,
    cli::Op,
    control::{ControlChannel, ControlMessage, QpInfo, Run},
    pattern::{Expected, Mismatch},
    progress::{Progress, ProgressGoal},
    report::LatencyTimes,
    session::{Needs, RunSession, SessionEvent, TICK},
};

/// Receive buffers that a side posts: as many as lie in 16 MiB, 4 to 16. With end-to-end credits a
/// peer is told of each receive that it may use, so a receive queue of only a few buffers costs an
/// ACK every few messages.
fn buffers(run: &Run) -> u64 {
    ((16 << 20) / buffer_bytes(run).max(1)).clamp(4, 16)
}

/// Of so many sends one is signaled, as programs do that count microseconds: the echo says sooner
/// than a completion that a message has arrived.
const SENDS_PER_SIGNAL: u32 = 16;

/// Sends that are posted and not known to be complete.
const SENDS: u32 = 4 * SENDS_PER_SIGNAL;

/// Looks at a byte before the clock and the completion queue are looked at.
const WATCH_BURST: u32 = 16;

/// Round trips before the ones that count: caches, neighbors and sleepers wake up.
fn warm_up(count: u64) -> u64 {
    (count / 10).min(100)
}

/// Resources of each side: a buffer to send from, and buffers to receive into.
pub(crate) fn needs(run: &Run) -> Needs {
    let access = match run.op {
        Op::Write => Access::REMOTE_WRITE,
        Op::Send | Op::Read => Access::LOCAL_WRITE,
    };
    let memory_bytes = buffer_bytes(run) * (1 + buffers(run));
    Needs { qps: 1, sends: SENDS, receives: 2 * buffers(run) as u32, memory_bytes, access }
}

/// The part of the memory that the peer writes to.
pub(crate) fn offer(run: &Run) -> Option<(u64, u64)> {
    (run.op == Op::Write).then(|| (buffer_bytes(run), buffer_bytes(run)))
}

const fn buffer_bytes(run: &Run) -> u64 {
    run.size.next_multiple_of(64)
}

/// The last byte of message `sequence`: never 0, the value in a fresh buffer, and never that of the
/// message before.
const fn stamp(sequence: u64) -> u8 {
    (sequence % 255) as u8 + 1
}

/// State of both sides.
#[derive(Debug)]
struct PingSide<'a> {
    run: &'a Run,
    session: &'a mut RunSession,
    remote: RemoteMemory,
    events: Vec<SessionEvent>,
    /// Messages that came by SEND and were not looked at yet: number and bytes.
    arrived: VecDeque<(u64, u32)>,
    sends_under_way: u32,
    looked: Instant,
}

impl<'a> PingSide<'a> {
    fn new(run: &'a Run, session: &'a mut RunSession, peer: &QpInfo) -> anyhow::Result<Self> {
        let offered = peer.memory.map_or(0, |memory| memory.bytes);
        ensure!(
            run.op != Op::Write || offered >= run.size,
            "the peer offers {offered} bytes where {} are needed",
            run.size
        );
        let remote = peer.memory.map_or_else(RemoteMemory::default, |memory| RemoteMemory {
            va: memory.va,
            length: memory.bytes,
            rkey: memory.rkey,
        });
        let (events, arrived) = (Vec::new(), VecDeque::new());
        let side = Self { run, session, remote, events, arrived, sends_under_way: 0, looked: Instant::now() };
        if run.op == Op::Send {
            (0..buffers(run)).try_for_each(|buffer| side.post_receive(buffer))?;
        }
        Ok(side)
    }

    /// Where the buffer for the arrival of message `sequence` begins.
    fn arrival(&self, sequence: u64) -> usize {
        let buffer = if self.run.op == Op::Write { 0 } else { sequence % buffers(self.run) };
        (buffer_bytes(self.run) * (1 + buffer)) as usize
    }

    fn post_receive(&self, sequence: u64) -> anyhow::Result<()> {
        let begin = self.arrival(sequence);
        let sge = self.session.memory.sge(begin..begin + self.run.size as usize);
        self.session.qps[0].post_recv(&RecvRequest::new(&[sge]).id(sequence)).context("posting a receive")
    }

    /// Sends the message that lies at `from`.
    fn send(&mut self, from: usize, sequence: u64) -> anyhow::Result<()> {
        let sges = [self.session.memory.sge(from..from + self.run.size as usize)];
        let request = match self.run.op {
            Op::Write => SendRequest::write(&sges, self.remote),
            Op::Send | Op::Read => SendRequest::send(&sges),
        };
        let signals = (sequence + 1).is_multiple_of(SENDS_PER_SIGNAL.into());
        let request = if signals { request.signaled() } else { request };
        self.session.qps[0].post_send(&request.id(sequence))?;
        self.sends_under_way += 1;
        Ok(())
    }

    /// Waits until message `sequence` is there; `tick` is called now and then and says whether to
    /// go on.
    fn await_message(&mut self, sequence: u64, mut tick: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        let mut polls = 0u32;
        while !self.is_there(sequence, polls)? {
            polls = polls.wrapping_add(1);
            // Waiting for a completion takes its time; watching a byte does not, and the clock is
            // worth many looks at it.
            let look = self.run.op != Op::Write || polls.is_multiple_of(WATCH_BURST);
            if look && self.looked.elapsed() >= TICK {
                self.looked = Instant::now();
                if !tick()? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn is_there(&mut self, sequence: u64, polls: u32) -> anyhow::Result<bool> {
        if self.run.op == Op::Write {
            if self.session.memory.byte(self.arrival(sequence) + self.run.size as usize - 1) == stamp(sequence) {
                return Ok(true);
            }
            if polls.is_multiple_of(WATCH_BURST) {
                self.session.reap_now(&mut self.events)?;
                self.note();
            }
            // The daemon that brings the byte may share this core.
            thread::yield_now();
            return Ok(false);
        }
        if self.arrived.is_empty() {
            self.session.reap(&mut self.events)?;
            self.note();
        }
        let Some((id, bytes)) = self.arrived.pop_front() else {
            return Ok(false);
        };
        ensure!(id == sequence, "message {id} came where {sequence} was expected");
        ensure!(u64::from(bytes) == self.run.size, "{bytes} bytes came where {} were sent", self.run.size);
        Ok(true)
    }

    /// Waits until there is room for another send.
    fn await_room(&mut self) -> anyhow::Result<()> {
        while self.sends_under_way == SENDS {
            self.session.reap(&mut self.events)?;
            self.note();
        }
        Ok(())
    }

    fn note(&mut self) {
        for event in &self.events {
            match *event {
                // It, and those since the one before.
                SessionEvent::Sent { .. } => self.sends_under_way -= SENDS_PER_SIGNAL,
                SessionEvent::Received { id, bytes, .. } => self.arrived.push_back((id, bytes)),
            }
        }
    }
}

/// Result of the client.
#[derive(Debug)]
pub(crate) struct PingOutcome {
    /// All messages, those before the ones that count included.
    pub(crate) sent: u64,
    /// From the first round trip that counts to the last.
    pub(crate) elapsed: Duration,
    /// Of each that counts.
    pub(crate) times: LatencyTimes,
    /// Bytes compared, of those that count.
    pub(crate) compared_bytes: u64,
}

/// The client's half: `count` round trips.
///
/// # Errors
/// When work fails, data is wrong ([`Mismatch`]), or the server or the daemon is gone.
pub(crate) fn client(
    run: &Run,
    session: &mut RunSession,
    server: &QpInfo,
    channel: &mut ControlChannel,
    count: u64,
) -> anyhow::Result<PingOutcome> {
    let expected = Expected::new(run.seed, run.size);
    let mut side = PingSide::new(run, session, server)?;
    let progress = Progress::new(ProgressGoal::Messages(count), run.size);
    let (mut message, mut echo) = (vec![0; run.size as usize], vec![0; run.size as usize]);
    let (warm_up, mut times, mut compared_bytes) = (warm_up(count), LatencyTimes::new(), 0);
    let mut begin = Instant::now();
    for sequence in 0..warm_up + count {
        message.copy_from_slice(expected.message(0, sequence));
        *message.last_mut().expect("a message has a byte") = stamp(sequence);
        side.session.memory.write_at(0, &message);

        let posted = Instant::now();
        if sequence == warm_up {
            begin = posted;
        }
        side.send(0, sequence)?;
        let done = sequence.saturating_sub(warm_up);
        let went_on = side.await_message(sequence, || {
            look_after(channel)?;
            progress.show(done);
            Ok(true)
        })?;
        let arrived = Instant::now();
        ensure!(went_on, "the run was stopped");

        side.session.memory.read_at(side.arrival(sequence), &mut echo);
        if echo != message {
            return Err(Mismatch::between(0, sequence, &message, &echo).into());
        }
        if sequence >= warm_up {
            times.record(arrived.duration_since(posted));
            compared_bytes += run.size;
        }
        if run.op == Op::Send {
            side.post_receive(sequence + buffers(run))?;
        }
        // The buffer may change: the echo shows that the message arrived, and a retransmission is
        // not executed again.
        side.await_room()?;
    }
    Ok(PingOutcome { sent: warm_up + count, elapsed: begin.elapsed(), times, compared_bytes })
}

/// The server's half, ready for the client.
#[derive(Debug)]
pub(crate) struct Echo<'a>(PingSide<'a>);

impl<'a> Echo<'a> {
    /// To be made before the queue pair is connected: receives must be there before messages are.
    pub(crate) fn new(run: &'a Run, session: &'a mut RunSession, client: &QpInfo) -> anyhow::Result<Self> {
        PingSide::new(run, session, client).map(Self)
    }

    /// The queue pairs, to be connected.
    pub(crate) fn session(&self) -> &RunSession {
        self.0.session
    }

    /// Sends back every message until the client has finished.
    ///
    /// # Errors
    /// When work fails, or the client or the daemon is gone.
    pub(crate) fn run(self, channel: &mut ControlChannel) -> anyhow::Result<()> {
        let mut side = self.0;
        for sequence in 0.. {
            let came = side.await_message(sequence, || match channel.look()? {
                None => Ok(true),
                Some(ControlMessage::Finish { .. }) => Ok(false),
                Some(other) => bail!("the client said {other:?} in the middle of the run"),
            })?;
            if !came {
                return Ok(());
            }
            side.send(side.arrival(sequence), sequence)?;
            if side.run.op == Op::Send {
                // Before the echo is complete: message `sequence + buffers` is sent only when the
                // client has the echo of the one before it, and so this one; a duplicate of this
                // one, if one is still sent, is never executed.
                side.post_receive(sequence + buffers(side.run))?;
            }
            side.await_room()?;
        }
        unreachable!("a run ends before 2^64 messages")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_never_that_of_an_empty_buffer_nor_of_the_message_before() {
        for sequence in 0..1000 {
            assert_ne!(stamp(sequence), 0);
            assert_ne!(stamp(sequence), stamp(sequence + 1));
        }
    }

    #[test]
    fn few_round_trips_are_not_doubled_by_warming_up() {
        assert_eq!([1, 9, 10, 1000, 100_000].map(warm_up), [0, 0, 1, 100, 100]);
    }
}
