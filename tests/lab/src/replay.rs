//! Replaying a recording into the running network: the effect of a switch that kept frames back,
//! from an earlier life of the same connections or of others.
//!
//! ```text
//!   port of host a ── live frame for queue pair Q of b, the N-th ──► recorded frames that were for Q, `delay` later ──► port of host b
//! ```
//!
//! So replayed frames come as long as live ones do, and meet them wherever they are.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroU32,
    os::fd::AsFd as _,
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, ensure};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use roced_types::Qpn;

use crate::{port::Port, recording::Recording};

/// A port and the MAC address of the host behind it: `a0=02:00:00:00:00:01`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The port's name.
    pub port: String,
    /// The host's address.
    pub mac: [u8; 6],
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (port, mac) = text.split_once('=').context("a host is PORT=MAC")?;
        let bytes: Result<Vec<u8>, _> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
        let mac = bytes?.try_into().map_err(|_| anyhow::anyhow!("'{mac}' is no MAC address"))?;
        Ok(Self { port: port.to_owned(), mac })
    }
}

/// How the recording comes back.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Live frames to a host for each time that recorded ones follow.
    pub every: NonZeroU32,
    /// Recorded frames that follow at a time, in the order in which they were recorded.
    pub burst: NonZeroU32,
    /// From the live frame to those that follow.
    pub delay: Duration,
    /// When it ends, if no signal ends it before.
    pub limit: Option<Duration>,
}

/// Summary of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Live RoCE frames that were seen.
    pub live: u64,
    /// Recorded frames that were sent.
    pub replayed: u64,
    /// Of those, the ones for the very queue pair that the live frame was for.
    pub to_the_same: u64,
    /// Recorded frames for which a port had no room.
    pub not_sent: u64,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { live, replayed, to_the_same, not_sent } = self;
        write!(
            f,
            "replayed {replayed} frames beside {live} live ones, {to_the_same} to the same queue pair, {not_sent} not sent"
        )
    }
}

/// Two hosts, each with its port and the frames recorded for it.
pub struct Replay {
    ends: [End; 2],
    pace: Pace,
    /// Replays that follow later: the host, and the queue pair of the live frame.
    waiting: VecDeque<(Instant, usize, Qpn)>,
    done: Done,
}

struct End {
    mac: [u8; 6],
    port: Port,
    recording: Recording,
    /// Live frames to it since recorded ones followed.
    since: u32,
}

impl Replay {
    /// Reads the recording and opens the ports.
    ///
    /// # Errors
    /// A recording without a frame for either host; no such port.
    pub fn open(file: &Path, hosts: [Host; 2], pace: Pace) -> Result<Self> {
        let read = Recording::read(file, [hosts[0].mac, hosts[1].mac]);
        let (recordings, foreign) = read.with_context(|| file.display().to_string())?;
        ensure!(
            recordings.iter().any(|recording| !recording.is_empty()),
            "{}: no RoCE frame for one of the hosts, and {foreign} for others: was it recorded in this lab?",
            file.display()
        );
        let [first, second] = hosts;
        let [to_first, to_second] = recordings;
        let end = |host: Host, recording| {
            Ok::<_, Error>(End { mac: host.mac, port: Port::open(&host.port)?, recording, since: 0 })
        };
        let ends = [end(first, to_first)?, end(second, to_second)?];
        Ok(Self { ends, pace, waiting: VecDeque::new(), done: Done::default() })
    }

    /// Recorded frames for either host.
    pub fn frames(&self) -> usize {
        self.ends.iter().map(|end| end.recording.len()).sum()
    }

    /// Replays until SIGINT, SIGTERM or the limit of time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(mut self) -> Result<Done> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block()?;
        let ended = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let end = self.pace.limit.map(|limit| Instant::now() + limit);
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) || ended.read_signal()?.is_some() {
                return Ok(self.done);
            }
            self.send_due_frames(now)?;
            if !self.take_arrivals(now)? {
                self.sleep(&ended, end)?;
            }
        }
    }

    /// Looks at some live frames of each port; false when there was none.
    fn take_arrivals(&mut self, now: Instant) -> Result<bool> {
        let mut any = false;
        for from in 0..self.ends.len() {
            for _ in 0..32 {
                let Some(arrival) = self.ends[from].port.arrival()? else { break };
                any = true;
                self.done.live += 1;
                let Some(to) = self.ends.iter().position(|end| end.mac == arrival.to) else { continue };
                self.ends[to].since += 1;
                if self.ends[to].since >= self.pace.every.get() {
                    self.ends[to].since = 0;
                    self.waiting.push_back((now + self.pace.delay, to, arrival.dest_qpn));
                    self.send_due_frames(now)?;
                }
            }
        }
        Ok(any)
    }

    fn send_due_frames(&mut self, now: Instant) -> Result<()> {
        while let Some((_, to, qpn)) = self.waiting.pop_front_if(|(due, ..)| *due <= now) {
            let End { port, recording, .. } = &mut self.ends[to];
            let (same, frames) = recording.next(qpn, self.pace.burst.get() as usize);
            for frame in frames {
                if port.send(frame)? {
                    self.done.replayed += 1;
                    self.done.to_the_same += u64::from(same);
                } else {
                    self.done.not_sent += 1;
                }
            }
        }
        Ok(())
    }

    /// Until a frame arrives, something is due, or it is to end.
    fn sleep(&self, ended: &SignalFd, end: Option<Instant>) -> Result<()> {
        let due = self.waiting.front().map(|(due, ..)| *due);
        let next = [due, end].into_iter().flatten().min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        // Rounded down, lest it be late: the last millisecond is spun.
        let timeout = left.map_or(Ok(PollTimeout::NONE), |left| PollTimeout::try_from(left.as_millis().min(1000)))?;
        let [first, second] = &self.ends;
        let mut fds =
            [first.port.as_fd(), second.port.as_fd(), ended.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_as_the_script_writes_it() {
        let host: Host = "a0=02:00:0a:00:00:ff".parse().expect("a host");
        assert_eq!(host, Host { port: "a0".into(), mac: [2, 0, 10, 0, 0, 255] });
        for wrong in ["", "a0", "a0=", "a0=02:00:00:00:00", "a0=02:00:00:00:00:00:00", "a0=02:00:00:00:00:100"] {
            assert!(wrong.parse::<Host>().is_err(), "{wrong}");
        }
    }
}
