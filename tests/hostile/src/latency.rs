//! Times of many events, and a client that measures the control thread.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use roced_abi::control::{AllocPd, DeallocPd, Nothing};

use crate::raw_client::RawSession;

/// Times of events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    /// Adds one.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The time that `permille` of 1000 events do not exceed, ms; no number without an event.
    pub(crate) fn permille_ms(&self, permille: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }

    /// The longest, ms.
    pub(crate) fn most_ms(&self) -> f64 {
        self.permille_ms(1000)
    }
}

/// A client that makes two calls each millisecond and measures their replies. A call without a
/// reply counts with its present age.
#[derive(Debug)]
pub(crate) struct ControlProbe {
    stop: Arc<AtomicBool>,
    under_way: Arc<Mutex<Option<Instant>>>,
    thread: JoinHandle<Result<Latencies>>,
}

impl ControlProbe {
    /// Begins to measure.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let mut session = RawSession::open(socket)?;
        let (stop, under_way) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (stopped, shown) = (Arc::clone(&stop), Arc::clone(&under_way));
        let probe = move || {
            let mut latencies = Latencies::default();
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(begin);
                let (pd, _) = session.client.call::<AllocPd>(Nothing {})?;
                session.client.call::<DeallocPd>(pd)?;
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
                latencies.add(begin.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            Ok(latencies)
        };
        Ok(Self { stop, under_way, thread: thread::spawn(probe) })
    }

    /// Ends, and returns the times of all calls.
    pub(crate) fn finish(self) -> Result<Latencies> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the probe panicked")?
    }

    /// Age of the call under way.
    pub(crate) fn silence(&self) -> Duration {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).map_or(Duration::ZERO, |begin| begin.elapsed())
    }
}
