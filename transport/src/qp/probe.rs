//! Tail probe: sends the oldest packet again when a requested answer is late, long before the ACK
//! timer of the specification expires.
//!
//! That timer begins at milliseconds; its base and its count (`retry_cnt`) belong to the client and
//! stay unchanged. The probe waits as long as measured round trips take, doubles the wait each
//! time, and gives up after [`PROBES_MAX`].
//!
//! A packet that was sent twice for no other reason gives no measurement, so a path slower than the
//! wait would never be measured: each probe ends the measurement that would have shown it.
//! Therefore the wait keeps the length that the last probe gave it until a round trip is measured
//! (as in RFC 6298).

use crate::{clock::Nanos, psn::Psn, rtt::RoundTrip};

/// Probes without an answer before the rest is left to the ACK timer: the last waits 128 times as
/// long as the first.
const PROBES_MAX: u8 = 8;

/// Limit of a doubled wait: the round trip of any path on earth. When packet after packet is lost
/// before the first measurement, no wait exceeds this.
const WAIT_MAX: Nanos = Nanos::from_millis(256);

/// Maximum number of doublings; more lengthen no wait.
const DOUBLINGS_MAX: u8 = 16;

/// Timing of the tail probe.
#[derive(Debug)]
pub(crate) struct TailProbe {
    rtt: RoundTrip,
    /// Last PSN for which an answer was requested.
    asked: Psn,
    /// Last PSN for which an answer will be requested, by a probe if by nothing else.
    last: Psn,
    /// Packet with an answer that will be measured.
    timed: Option<Timed>,
    deadline: Nanos,
    /// Time before the deadline at which the peer is asked about a packet that it missed: where
    /// much of a round trip is queueing delay, an answer takes far less once sending has stopped.
    ask_at: Nanos,
    /// No answer is requested before the deadline, so none can be late.
    asks_late: bool,
    /// Probes since the last answer.
    sent: u8,
    /// Doublings of the wait since the last measurement.
    doublings: u8,
}

#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: Psn,
    at: Nanos,
    /// The packet was sent before, and a NAK or a gap showed that it is missing. An answer that
    /// arrives sooner than possible still belongs to the first transmission.
    again: bool,
}

impl TailProbe {
    /// Creates the timing of a life with first packet `psn`.
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            rtt: RoundTrip::default(),
            asked: psn.minus(1),
            last: psn.minus(1),
            timed: None,
            deadline: Nanos::NEVER,
            ask_at: Nanos::NEVER,
            asks_late: false,
            sent: 0,
            doublings: 0,
        }
    }

    pub(crate) const fn rtt(&self) -> &RoundTrip {
        &self.rtt
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline.min(self.ask_at)
    }

    /// Returns true when it is time to ask, once per wait.
    pub(crate) fn take_asking(&mut self, now: Nanos) -> bool {
        let is_due = self.ask_at <= now;
        if is_due {
            self.ask_at = Nanos::NEVER;
        }
        is_due
    }

    /// Notes that a packet that asks for an answer was sent for the first time: PSNs `first` to
    /// `last`.
    pub(crate) fn on_asked(&mut self, first: Psn, last: Psn, now: Nanos, floor: Nanos) {
        (self.asked, self.last) = (last, last);
        self.measure(first, now);
        self.on_asked_again(now, floor);
    }

    /// Starts a measurement, if none is running, with packet `psn`, which asks for an answer and
    /// was sent for the first time.
    pub(crate) fn measure(&mut self, psn: Psn, now: Nanos) {
        if self.timed.is_none() {
            self.timed = Some(Timed { psn, at: now, again: false });
        }
    }

    /// Notes that the peer was asked how far it has received. Unless the probe did this, the
    /// question may have overtaken the packets that it asks about, so the probe asks once more.
    pub(crate) fn on_solicited(&mut self, now: Nanos, floor: Nanos) {
        if self.deadline == Nanos::NEVER {
            (self.asked, self.asks_late) = (self.last, false);
        }
        self.restart(now, floor);
        self.ask_at = Nanos::NEVER;
    }

    /// Notes that an unsignaled message was sent, with `psn`. If no later packet asks, a probe
    /// does.
    pub(crate) fn on_unasked(&mut self, psn: Psn, now: Nanos, floor: Nanos) {
        if psn.distance_from(self.last) > 0 {
            self.last = psn;
        }
        if self.deadline == Nanos::NEVER {
            self.asks_late = true;
            self.restart(now, floor);
        }
    }

    /// Notes that a packet that asks for an answer was sent after the cursor went back.
    pub(crate) fn on_asked_again(&mut self, now: Nanos, floor: Nanos) {
        if self.deadline == Nanos::NEVER || self.asks_late {
            self.asks_late = false;
            self.restart(now, floor);
        }
    }

    /// Notes that the oldest packet was sent again, for any reason. It asks about all packets. If
    /// it is `missing`, according to a NAK or a gap, its answer is measured.
    pub(crate) fn on_sent_again(&mut self, missing: Option<Psn>, now: Nanos, floor: Nanos) {
        (self.asked, self.asks_late) = (self.last, false);
        self.timed = missing.map(|psn| Timed { psn, at: now, again: true });
        self.restart(now, floor);
    }

    /// Processes an answer: the oldest unacknowledged PSN is now `oldest`. Returns the round trip if
    /// one was measured.
    pub(crate) fn on_progress(&mut self, oldest: Psn, now: Nanos, floor: Nanos) -> Option<Nanos> {
        self.sent = 0;
        let measured = self.on_measured(oldest, now);
        if self.last.distance_from(oldest) >= 0 {
            self.asks_late = self.asked.distance_from(oldest) < 0;
            self.restart(now, floor);
        } else {
            (self.deadline, self.ask_at) = (Nanos::NEVER, Nanos::NEVER);
        }
        measured
    }

    /// Takes and returns a measurement if the timed packet is before `oldest`, that is, answered.
    pub(crate) fn on_measured(&mut self, oldest: Psn, now: Nanos) -> Option<Nanos> {
        let timed = self.timed.filter(|timed| oldest.distance_from(timed.psn) > 0)?;
        self.timed = None;
        let round_trip = now - timed.at;
        if timed.again && round_trip < self.rtt.soonest() {
            self.rtt.doubt();
            return None;
        }
        self.rtt.add(round_trip);
        self.doublings = 0;
        Some(round_trip)
    }

    /// The next probe would be the first to ask.
    pub(crate) const fn asks_late(&self) -> bool {
        self.asks_late
    }

    /// Stops: everything outstanding is about to be sent again, so there is nothing to wait for.
    pub(crate) fn stop(&mut self) {
        (self.timed, self.deadline, self.ask_at) = (None, Nanos::NEVER, Nanos::NEVER);
    }

    /// Advances the deadline to `due`: packets without an answer by then are lost.
    pub(crate) fn hasten(&mut self, due: Nanos) {
        self.deadline = self.deadline.min(due);
    }

    /// Restarts the wait of a pending probe, because the peer has packets behind the oldest.
    pub(crate) fn put_off(&mut self, now: Nanos, floor: Nanos) {
        if self.deadline != Nanos::NEVER {
            self.restart(now, floor);
        }
    }

    /// Returns true when it is time to probe, and stops; sending the probe restarts the wait.
    pub(crate) fn take_due(&mut self, now: Nanos) -> bool {
        if self.deadline > now {
            return false;
        }
        (self.deadline, self.ask_at) = (Nanos::NEVER, Nanos::NEVER);
        if self.asks_late {
            return true;
        }
        self.sent = self.sent.saturating_add(1);
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        true
    }

    fn restart(&mut self, now: Nanos, floor: Nanos) {
        (self.deadline, self.ask_at) = (Nanos::NEVER, Nanos::NEVER);
        if self.sent >= PROBES_MAX {
            return;
        }
        let first = self.rtt.patience().max(floor);
        if self.doublings > 0 {
            let wait = Nanos(first.0.saturating_mul(1 << self.doublings)).min(first.max(WAIT_MAX));
            self.deadline = now + wait;
            return;
        }
        self.deadline = now + first;
        if self.timed.is_some_and(|timed| timed.again) {
            let (usual, least) = (self.rtt.usual().max(floor), self.rtt.least());
            if least > Nanos(0) && usual + least < first {
                self.ask_at = now + usual;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    const FLOOR: Nanos = Nanos::from_micros(100);
    const PSN: Psn = Psn::new(0x00ff_ffff);

    #[test]
    fn each_probe_waits_twice_as_long_and_eight_are_enough() {
        let mut probe = TailProbe::new(PSN);
        probe.on_asked(PSN, PSN, Nanos(0), FLOOR);
        probe.on_progress(PSN.plus(1), Nanos(10_000), FLOOR);
        assert_eq!(probe.deadline(), Nanos::NEVER, "all is answered");
        let mut now = Nanos::from_millis(1);
        probe.on_asked(PSN.plus(1), PSN.plus(1), now, FLOOR);
        for number in 0..8 {
            assert_eq!(probe.deadline(), now + Nanos(100_000 << number));
            now = probe.deadline();
            assert!(!probe.take_due(now - Nanos(1)) && probe.take_due(now));
            probe.on_sent_again(None, now, FLOOR);
        }
        assert_eq!(probe.deadline(), Nanos::NEVER);
    }

    #[test]
    fn no_wait_is_longer_than_the_longest_path() {
        let mut probe = TailProbe::new(PSN);
        probe.on_asked(PSN, PSN, Nanos(0), FLOOR);
        let (mut now, mut longest) = (Nanos(0), Nanos(0));
        for number in 0..100 {
            longest = longest.max(probe.deadline() - now);
            now = probe.deadline();
            assert!(probe.take_due(now));
            probe.on_sent_again(None, now, FLOOR);
            // The next packet is lost as well.
            probe.on_progress(PSN.plus(number), now, FLOOR);
            probe.on_asked(PSN.plus(number + 1), PSN.plus(number + 1), now, FLOOR);
        }
        assert_eq!(longest, WAIT_MAX);
    }

    #[test]
    fn a_path_that_takes_longer_than_the_wait_is_measured_all_the_same() {
        let mut probe = TailProbe::new(PSN);
        let (mut now, mut psn, mut probes) = (Nanos(0), PSN, Vec::new());
        // Then the path becomes slower by a factor of four hundred.
        for path in [[Nanos::from_micros(50); 4], [Nanos::from_millis(20); 4]].concat() {
            probe.on_asked(psn, psn, now, FLOOR);
            let mut count = 0;
            while probe.deadline() < now + path {
                let due = probe.deadline();
                assert!(probe.take_due(due));
                probe.on_sent_again(None, due, FLOOR);
                count += 1;
            }
            (now, psn) = (now + path, psn.plus(1));
            probe.on_progress(psn, now, FLOOR);
            probes.push(count);
        }
        assert_eq!(probes, [0, 0, 0, 0, 7, 1, 0, 0], "until the wait is longer than the path");
    }

    /// Half of the round trip is queueing delay, which disappears when sending stops.
    #[test]
    fn behind_a_queue_missing_packets_are_requested_before_the_probe() {
        let mut probe = TailProbe::new(PSN);
        for (psn, took) in [(0, 200_000), (1, 400_000), (2, 400_000), (3, 400_000), (4, 400_000), (5, 400_000)] {
            let at = Nanos(1_000_000 * u64::from(psn));
            probe.on_asked(PSN.plus(psn), PSN.plus(psn), at, FLOOR);
            probe.on_progress(PSN.plus(psn + 1), at + Nanos(took), FLOOR);
        }
        let now = Nanos::from_millis(100);
        probe.on_asked(PSN.plus(6), PSN.plus(6), now, FLOOR);
        let (usual, patience) = (probe.rtt().usual(), probe.rtt().patience());
        assert!(usual + probe.rtt().least() < patience, "{usual:?} {patience:?}");
        assert_eq!(probe.deadline(), now + patience, "nothing is missing");
        probe.on_sent_again(Some(PSN.plus(6)), now, FLOOR);
        assert_eq!(probe.deadline(), now + usual);
        assert!(!probe.take_asking(now + usual - Nanos(1)) && probe.take_asking(now + usual));
        assert!(!probe.take_due(now + usual));
        probe.on_solicited(now + usual, FLOOR);
        assert_eq!(probe.deadline(), now + usual + patience, "the probe, without an answer");
    }

    /// A packet that asks after all gives its answer a full wait.
    #[test]
    fn a_question_begins_the_wait_anew() {
        let mut probe = TailProbe::new(PSN);
        probe.on_asked(PSN, PSN, Nanos(0), FLOOR);
        probe.on_progress(PSN.plus(1), Nanos(10_000), FLOOR);
        probe.on_unasked(PSN.plus(1), Nanos(10_000), FLOOR);
        probe.on_asked(PSN.plus(2), PSN.plus(2), Nanos(70_000), FLOOR);
        assert_eq!(probe.deadline(), Nanos(170_000));
        probe.on_unasked(PSN.plus(3), Nanos(90_000), FLOOR);
        assert_eq!(probe.deadline(), Nanos(170_000), "later packets do not put it off");
        probe.on_progress(PSN.plus(3), Nanos(120_000), FLOOR);
        assert!(probe.asks_late(), "the last was not asked about");
        assert_eq!(probe.deadline(), Nanos(220_000));
    }

    #[test]
    fn asking_late_is_no_sign_of_a_slow_path() {
        let mut probe = TailProbe::new(PSN);
        probe.on_asked(PSN, PSN, Nanos(0), FLOOR);
        probe.on_progress(PSN.plus(1), Nanos(10_000), FLOOR);
        let mut now = Nanos(10_000);
        for psn in 1..20 {
            let (psn, next) = (PSN.plus(psn), PSN.plus(psn + 1));
            probe.on_unasked(psn, now, FLOOR);
            now = now + FLOOR;
            assert!(probe.take_due(now), "as soon as the first time");
            probe.on_sent_again(None, now, FLOOR);
            assert!(probe.take_due(now + FLOOR), "now an answer is late");
            probe.on_sent_again(None, now + FLOOR, FLOOR);
            assert_eq!(probe.deadline(), now + FLOOR + Nanos(2 * FLOOR.0));
            now = now + Nanos(2 * FLOOR.0);
            probe.on_progress(next, now, FLOOR);
            assert_eq!(probe.deadline(), Nanos::NEVER);
            // A measurement resets the doubling.
            probe.doublings = 0;
        }
    }

    #[test]
    fn retransmitted_packets_measure_no_round_trip() {
        let mut probe = TailProbe::new(PSN);
        probe.on_asked(PSN, PSN, Nanos(0), FLOOR);
        probe.on_sent_again(None, Nanos(5000), FLOOR);
        probe.on_progress(PSN.plus(1), Nanos(6000), FLOOR);
        assert_eq!(probe.rtt().least(), Nanos(0));
    }
}
