//! Likelihood of a packet of an unreliable connection: whether it may be the peer's.
//!
//! Nothing tells a packet behind a loss from a forged one but its UDP source port and the distance
//! of its PSN. The distance is limited by the time since the last packet, because a peer sends only
//! so fast:
//!
//! ```text
//!            late              |        JUMP_MIN + time since the last packet        |
//!   ... unlikely | duplicate   0   from this life's port: accepted                   | unlikely ...
//!                              0 1 2 3   from another port: accepted, a guess in OTHER_PORT_BAR_MEAN
//! ```
//!
//! A peer that changes its port and loses more packets at the same time is known by its patience:
//! its old port is silent for [`SILENCE`], and from the new one comes a packet for each
//! [`RUN_REACH`] PSNs that it is ahead, their PSNs close behind each other.
//!
//! A peer that has sent more than [`JUMP_MAX`] unaccepted packets is taken again when its PSNs
//! come around.

use super::life::{Fit, QUARANTINE, SourcePort};
use crate::{clock::Nanos, reject::DropReason};

/// Maximum distance behind the expected PSN at which a packet counts as late or duplicate. A guess:
/// more than any network's delays (3 ms at 25 million packets a second).
const LATE_PSNS: i32 = 1 << 16;

/// Distance ahead of the expected PSN that a packet may have at any time. A longer burst that a
/// queue dropped costs the packets of [`JUMP_TIME`] for each of its packets in addition: the peer
/// seldom sends as fast.
pub(crate) const JUMP_MIN: i32 = 1 << 10;

/// Greatest distance: a forger must guess two bits of the PSN even after long silence. A guess:
/// a second of a sender of 4 million packets a second.
pub(crate) const JUMP_MAX: i32 = 1 << 22;

/// Time of silence for each further packet: 50 million packets a second, the rate of a link of
/// 400 Gbit/s with packets of 1024 bytes.
pub(crate) const JUMP_TIME: Nanos = Nanos(20);

/// PSNs from the expected one on that are accepted from another port: a peer that changes its port
/// may lose a packet or two at the same time.
pub(crate) const OTHER_PORT_PSNS: i32 = 4;

/// Time without an accepted packet after which a run of packets from another port may be the
/// peer's.
const SILENCE: Nanos = QUARANTINE;

/// PSNs ahead for each packet of a run: a forger that counts through all PSNs must send a packet
/// for each so many.
pub(crate) const RUN_REACH: i32 = 1 << 8;

/// Packets of a run at least, however close it is.
pub(crate) const RUN_MIN: i32 = 4;

/// Packets of one port that is not this life's, each a few PSNs ahead of the one before.
#[derive(Debug, Default)]
struct PortRun {
    port: u16,
    /// Distance of the last one from the expected PSN.
    last: i32,
    /// Number of packets, less those of other runs in between.
    count: i32,
    /// Time of the last packet that was accepted before.
    heard: Nanos,
}

impl PortRun {
    /// Notes a packet; returns the number of those in its run.
    fn count(&mut self, port: u16, ahead: i32) -> i32 {
        if self.count > 0 && self.port == port && (1..=OTHER_PORT_PSNS).contains(&(ahead - self.last)) {
            (self.last, self.count) = (ahead, self.count.saturating_add(1));
            return self.count;
        }
        self.count -= 1;
        if self.count <= 0 {
            (self.port, self.last, self.count) = (port, ahead, 1);
            return 1;
        }
        0
    }
}

/// Knowledge about the packets of one life.
#[derive(Debug, Default)]
pub(super) struct Likelihood {
    source: SourcePort,
    /// Time of the last accepted packet.
    heard: Nanos,
    /// Packets from another port since then.
    run: PortRun,
}

impl Likelihood {
    /// Checks a packet `ahead` of the expected PSN. True if it is no more than a guess: it may
    /// change nothing unless it is taken, and [`Self::refuse`] must be called otherwise.
    ///
    /// # Errors
    /// [`DropReason`]: it is late, or not the peer's.
    #[inline]
    pub(super) fn check(&mut self, port: u16, ahead: i32, now: Nanos) -> Result<bool, DropReason> {
        let is_guess = !self.source.is_own(port) && self.check_other(port, ahead, now)?;
        match ahead {
            0..=JUMP_MIN => Ok(is_guess),
            // Its own message was accepted or lost already; the message in progress is another.
            ..0 if ahead >= -LATE_PSNS => Err(DropReason::Duplicate),
            1.. if ahead <= self.jump(now) => Ok(is_guess),
            _ => Err(DropReason::BeyondWindow),
        }
    }

    #[cold]
    fn check_other(&mut self, port: u16, ahead: i32, now: Nanos) -> Result<bool, DropReason> {
        let is_silent = !self.source.is_unknown() && now.0.saturating_sub(self.heard.0) >= SILENCE.0;
        let is_near = (0..OTHER_PORT_PSNS).contains(&ahead);
        if is_silent && ahead >= 0 {
            if self.run.heard != self.heard {
                self.run = PortRun { heard: self.heard, ..PortRun::default() };
            }
            let run = self.run.count(port, ahead);
            if !is_near && run >= RUN_MIN.max(ahead / RUN_REACH + 1) {
                return Ok(false);
            }
        }
        self.source.check_other(port, if is_near { Fit::Due } else { Fit::Not }, None, now)
    }

    /// Notes that a guess was not taken, and gives the reason for its drop.
    pub(super) const fn refuse(&mut self, now: Nanos) -> DropReason {
        self.source.refuse(now)
    }

    /// Notes that a packet was accepted.
    #[inline]
    pub(super) fn on_taken(&mut self, port: u16, now: Nanos) {
        self.heard = now;
        self.source.on_taken(port, false, now);
    }

    #[cold]
    fn jump(&self, now: Nanos) -> i32 {
        // The peer may have sent for long before this end was ready.
        if self.source.is_unknown() {
            return JUMP_MAX;
        }
        let more = now.0.saturating_sub(self.heard.0) / JUMP_TIME.0;
        JUMP_MIN + more.min((JUMP_MAX - JUMP_MIN) as u64) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_millis(5);

    fn heard() -> Likelihood {
        let mut likelihood = Likelihood::default();
        likelihood.on_taken(7, NOW);
        likelihood
    }

    #[test]
    fn a_jump_is_as_long_as_the_silence_before() {
        let mut likelihood = heard();
        let farthest = |likelihood: &mut Likelihood, silence: Nanos| {
            let fits = |ahead: &i32| likelihood.check(7, *ahead, NOW + silence).is_ok();
            [JUMP_MIN, JUMP_MIN + 10, JUMP_MAX, JUMP_MAX + 1].into_iter().rfind(fits)
        };
        assert_eq!(farthest(&mut likelihood, Nanos(0)), Some(JUMP_MIN));
        assert_eq!(farthest(&mut likelihood, Nanos(199)), Some(JUMP_MIN));
        assert_eq!(farthest(&mut likelihood, Nanos(200)), Some(JUMP_MIN + 10));
        assert_eq!(farthest(&mut likelihood, Nanos(u64::MAX / 2)), Some(JUMP_MAX));
    }

    #[test]
    fn late_packets_are_duplicates_and_all_others_unlikely() {
        let mut likelihood = heard();
        let ends = [-1, -LATE_PSNS, -LATE_PSNS - 1, JUMP_MIN + 1, i32::MIN >> 8];
        let [duplicate, beyond] = [DropReason::Duplicate, DropReason::BeyondWindow].map(Err);
        assert_eq!(ends.map(|ahead| likelihood.check(7, ahead, NOW)), [duplicate, duplicate, beyond, beyond, beyond]);
    }

    #[test]
    fn another_port_fits_close_to_the_expected_packet_and_guesses_seldom() {
        let mut likelihood = heard();
        let refused = Err(DropReason::OtherSourcePort);
        assert_eq!([0, 3].map(|ahead| likelihood.check(8, ahead, NOW)), [Ok(true); 2]);
        assert_eq!([4, 0].map(|ahead| likelihood.check(8, ahead, NOW)), [refused; 2]);
        assert_eq!(likelihood.check(7, 0, NOW), Ok(false), "the peer itself is not barred");
        assert_eq!(likelihood.check(8, 0, NOW + SILENCE), Ok(true));
    }

    /// Packets of a run from another port until one is accepted, that begins `ahead`.
    fn run(ahead: i32, silence: Nanos, mut between: impl FnMut(&mut Likelihood)) -> Option<i32> {
        let mut likelihood = heard();
        (1..100_000).find(|count| {
            between(&mut likelihood);
            likelihood.check(8, ahead + count, NOW + silence).is_ok()
        })
    }

    #[test]
    fn a_run_from_another_port_is_as_long_as_it_is_far() {
        let lengths = [10, 2_000, 100_000].map(|ahead| run(ahead, SILENCE, |_| {}));
        assert_eq!(lengths, [Some(4), Some(8), Some(393)]);
        assert_eq!(run(10, Nanos(SILENCE.0 - 1), |_| {}), None, "the peer was just heard");
        assert_eq!(run(JUMP_MAX, SILENCE, |_| {}), None);
        // A packet of another run takes one away.
        let mut other = 0;
        let mut disturb = |likelihood: &mut Likelihood| {
            other += 1;
            if other % 2 == 0 {
                let _refused = likelihood.check(9, 5_000_000, NOW + SILENCE);
            }
        };
        assert!(run(10, SILENCE, &mut disturb).is_some_and(|count| (5..20).contains(&count)));
    }

    #[test]
    fn the_first_packet_comes_from_any_port_and_may_be_far_ahead() {
        let mut likelihood = Likelihood::default();
        assert_eq!(likelihood.check(9, JUMP_MAX, Nanos(0)), Ok(false));
        assert!(likelihood.check(9, JUMP_MAX + 1, Nanos(0)).is_err());
    }
}
