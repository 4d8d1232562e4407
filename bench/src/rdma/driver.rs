//! Keeps queue pairs full of one operation for a while.

use std::time::{Duration, Instant};

use anyhow::Context;
use roced_client::{Completion, SendRequest};

use super::Pairs;
use crate::{cpu, sample::Sample};

/// Completions taken at a time.
const REAPED_MAX: usize = 64;

/// Longest wait for a completion.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchWork {
    /// RDMA WRITE.
    Write,
    /// Fetch-and-add of 8 bytes.
    FetchAdd,
    /// Compare-and-swap of 8 bytes.
    CompareSwap,
}

/// The work of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    /// The operation.
    pub(crate) work: BenchWork,
    /// Bytes of each.
    pub(crate) message_bytes: usize,
    /// Work requests under way on each queue pair.
    pub(crate) depth: u32,
    /// For how long.
    pub(crate) time: Duration,
}

/// Does it, through all places of the memory in turn. The processor time is that of this thread
/// alone; the first error ends it.
pub(crate) fn drive(all: &[Pairs], what: Drive) -> anyhow::Result<Sample> {
    let cpu = cpu::of_this_thread();
    let mut lanes: Vec<SessionQps<'_>> = all.iter().map(|pairs| SessionQps::new(pairs, what)).collect();
    let (begin, mut done) = (Instant::now(), 0);
    for lane in &mut lanes {
        for qp in 0..lane.pairs.qps().len() {
            (0..what.depth).try_for_each(|_| lane.post(qp))?;
        }
    }
    loop {
        let goes_on = begin.elapsed() < what.time;
        for lane in &mut lanes {
            done += lane.reap(goes_on)?;
        }
        if lanes.iter().all(|lane| lane.under_way == 0) {
            break;
        }
    }
    let elapsed = begin.elapsed();
    let mut sample = Sample::stream(done, what.message_bytes as u64, elapsed, cpu::of_this_thread() - cpu);
    sample.retransmitted = Some(all.iter().map(Pairs::retransmitted).sum::<anyhow::Result<u64>>()?);
    Ok(sample)
}

/// The queue pairs of one session.
struct SessionQps<'a> {
    pairs: &'a Pairs,
    what: Drive,
    places: usize,
    posted: usize,
    under_way: usize,
    reaped: [Completion; REAPED_MAX],
    numbers: std::collections::HashMap<u32, usize>,
    heard: Instant,
}

impl<'a> SessionQps<'a> {
    fn new(pairs: &'a Pairs, what: Drive) -> Self {
        let bytes = pairs.local().len().min(pairs.remote().len());
        let numbers = pairs.qps().iter().enumerate().map(|(at, qp)| (qp.qpn(), at)).collect();
        let (posted, under_way, reaped) = (0, 0, [Completion::EMPTY; REAPED_MAX]);
        let (places, heard) = (bytes / what.message_bytes, Instant::now());
        Self { pairs, what, places, posted, under_way, reaped, numbers, heard }
    }

    fn post(&mut self, qp: usize) -> anyhow::Result<()> {
        let (bytes, at) = (self.what.message_bytes, self.posted % self.places * self.what.message_bytes);
        let sges = [self.pairs.local().sge(at..at + bytes)];
        let remote = self.pairs.remote().remote().at(at as u64);
        let request = match self.what.work {
            BenchWork::Write => SendRequest::write(&sges, remote),
            BenchWork::FetchAdd => SendRequest::fetch_add(&sges, remote, 1),
            BenchWork::CompareSwap => SendRequest::compare_swap(&sges, remote, 0, 1),
        };
        self.pairs.qps()[qp].post_send(&request)?;
        self.posted += 1;
        self.under_way += 1;
        Ok(())
    }

    /// Takes the completed work and, if it `goes_on`, posts as much again.
    fn reap(&mut self, goes_on: bool) -> anyhow::Result<u64> {
        let taken = self.pairs.cq().poll(&mut self.reaped)?;
        if taken == 0 {
            if self.under_way > 0 && self.heard.elapsed() > TIMEOUT {
                anyhow::bail!("{} work requests do not complete", self.under_way);
            }
            std::thread::yield_now();
            return Ok(0);
        }
        self.heard = Instant::now();
        self.under_way -= taken;
        for at in 0..taken {
            let completion = self.reaped[at].ok().context("work failed")?;
            if goes_on {
                let qp = self.numbers[&completion.qpn];
                self.post(qp)?;
            }
        }
        Ok(taken as u64)
    }
}
