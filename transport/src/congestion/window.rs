//! Congestion window of one direction of a queue pair, as DCTCP has it (RFC 8257).
//!
//! ```text
//!   CNP, mark or loss ──► once a round trip: smaller, by the share of rounds with marks, or by half
//!   acknowledgment    ──► larger: by each packet up to a threshold, then by one a round trip
//! ```
//!
//! CNPs take the place of the marks that DCTCP's receivers echo: they say that there were marks,
//! not how many, so that the share counts rounds instead of packets. Plain data, and no timer: a
//! round ends when a packet that was sent after its begin is acknowledged, or after several losses
//! and timeouts the oldest packet.
//!
//! In the terms of RFC 8257 and RFC 5681: the share is DCTCP.Alpha, its weight g, the threshold
//! ssthresh; below it the window is in slow start, above it in congestion avoidance.

use super::control::CongestionControl;
use crate::{clock::Nanos, psn::Psn};

/// Packets of a window are counted in parts of this size, so that less than one packet in a round
/// trip can be said as well.
const ONE: u32 = 1 << 16;

/// Window of a connection that begins, or was idle.
const INITIAL: u32 = 16 * ONE;

/// Smallest window: one packet in 64 round trips.
const MIN: u32 = ONE / 64;

/// Share of marked rounds that is all of them.
const ALL: u16 = u16::MAX;

/// Weight of the last round in that share, as a shift: RFC 8257 has 1/16.
const SHARE_SHIFT: u32 = 4;

/// A share below this, after about 64 rounds without a mark, counts as none. The first mark after
/// it is taken for the first of many.
const SHARE_MIN: u16 = ALL / 64;

/// ACK timeouts without an answer after which the window is the smallest.
const TIMEOUTS_MAX: u8 = 5 * TIMEOUT;

/// Losses in one round that count as congestion: one in so many packets. Fewer can have another
/// cause, and a window that each of them halves leaves a network with one loss in a thousand
/// packets half empty (`transport/tests/pair/goodput.rs`).
const PACKETS_PER_LOSS: u32 = 20;

/// A window that nothing was acknowledged with for so long loses half for each such time: it says
/// little of the network at present. RFC 2861, with a fixed time in place of the retransmission timeout;
/// RFC 7661, which replaces it, needs the share of the window that was in use.
const IDLE: u16 = 10;

/// A round trip before one was measured.
const ROUND_TRIP_UNKNOWN: Nanos = Nanos::from_micros(100);

/// Longest gap between packets: losses are repaired within it, and the other direction waits for it
/// as well.
const GAP_MAX: Nanos = Nanos::from_millis(10);

/// In the round so far there was a mark.
const MARKED: u8 = 1;
/// The window was made smaller in this round.
const CUT: u8 = 2;
/// Packets waited because of this window in this round, or in the one before: only then it grows.
const FULL: u8 = 4;
const WAS_FULL: u8 = 8;
/// No algorithm: the window has no bound.
const OFF: u8 = 16;
/// One ACK timeout since the last acknowledgment, of at most seven.
const TIMEOUT: u8 = 32;
const TIMEOUTS: u8 = 7 * TIMEOUT;

/// Window of one direction: of requests, or of READ responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    /// In parts of a packet, [`ONE`] for each.
    size: u32,
    /// The round ends when this is acknowledged.
    round_end: Psn,
    /// Share of rounds with marks, lately.
    share: u16,
    /// Packets up to which the window grows by each acknowledged packet.
    threshold: u16,
    /// Time of the last acknowledgment, milliseconds modulo 2^16.
    acknowledged: u16,
    /// Packets lost in this round, each of which was sent again alone.
    losses: u8,
    flags: u8,
}

const _: () = assert!(size_of::<CongestionWindow>() == 16);

impl CongestionWindow {
    /// Window of a life that begins with `psn`.
    pub(crate) const fn new(control: CongestionControl, psn: Psn) -> Self {
        Self {
            size: INITIAL,
            round_end: psn,
            share: 0,
            threshold: u16::MAX,
            acknowledged: 0,
            losses: 0,
            flags: match control {
                CongestionControl::Off => OFF,
                CongestionControl::Window | CongestionControl::Dcqcn => 0,
            },
        }
    }

    /// Nothing reacts.
    pub(crate) const fn is_off(&self) -> bool {
        self.flags & OFF != 0
    }

    /// Packets that may be in flight, at least one, and at most as many as without congestion.
    #[inline]
    pub(crate) fn limit(&self, most: u32) -> u32 {
        if self.is_off() { most } else { (self.size / ONE).clamp(1, most) }
    }

    /// The window, in packets; fractions of the first one are told as well.
    pub(crate) fn packets(&self) -> f64 {
        f64::from(self.size) / f64::from(ONE)
    }

    /// Makes it as small as so many packets, without a cut.
    pub(crate) fn bound(&mut self, packets: u32) {
        self.size = self.size.min(packets.saturating_mul(ONE));
    }

    /// A packet waits because the window is full.
    #[inline]
    pub(crate) const fn on_full(&mut self) {
        self.flags |= FULL;
    }

    /// A packet is sent at `now` while none is in flight: all are acknowledged, or sent again.
    pub(crate) fn on_begin(&mut self, now: Nanos) {
        let idle = millis(now).wrapping_sub(self.acknowledged);
        if self.is_off() || idle < IDLE || self.size <= INITIAL {
            return;
        }
        self.threshold = self.threshold.max(whole(self.size / 4 * 3));
        self.size = (self.size >> u32::from(idle / IDLE).min(31)).max(INITIAL);
        self.acknowledged = millis(now);
    }

    /// So many packets were acknowledged at `now`, the oldest that is not is `oldest`, the next new
    /// one `frontier`. Without congestion the window would be `most` packets.
    pub(crate) fn on_acknowledged(&mut self, packets: u32, oldest: Psn, frontier: Psn, most: u32, now: Nanos) {
        if self.is_off() {
            return;
        }
        self.acknowledged = millis(now);
        self.flags &= !TIMEOUTS;
        let is_quiet = self.share == 0 && self.losses == 0 && self.flags & (MARKED | CUT) == 0;
        if is_quiet && self.size / ONE >= most {
            // Nothing ends rounds for a while, and a PSN is ahead of another for 2^23 packets only.
            self.round_end = frontier;
            return;
        }
        let ahead = u32::try_from(oldest.distance_from(self.round_end)).unwrap_or(0);
        let after_cut = match self.flags & (MARKED | CUT) {
            0 => packets,
            // Packets of before the mark do not count.
            flags if flags & MARKED != 0 => packets.min(ahead),
            // Packets may be of before the losses or the timeout that made it smaller.
            _ => 0,
        };
        if self.flags & (FULL | WAS_FULL) != 0 {
            self.grow(after_cut, most);
        }
        self.follow_round(oldest, frontier);
    }

    /// Ends the round when the oldest packet without an acknowledgment, of either direction, is not
    /// in it; the next new one is `frontier`.
    pub(crate) fn follow_round(&mut self, oldest: Psn, frontier: Psn) {
        if oldest.distance_from(self.round_end) >= 0 {
            self.end_round(frontier);
        }
    }

    /// Packets up to the threshold make it larger by one each, the others by one a round trip.
    fn grow(&mut self, packets: u32, most: u32) {
        let one = u64::from(ONE);
        let (size, acknowledged) = (u64::from(self.size), u64::from(packets.min(most)) * one);
        let at_once = acknowledged.min((u64::from(self.threshold) * one).saturating_sub(size));
        // Below one packet this is one for each, although more than a round trip lies between two:
        // else a sender that is left with little would never come up to others.
        let slowly = (acknowledged - at_once) * one / (size + at_once).max(one);
        let cap = u64::from(most) * one;
        self.size = (size + at_once + slowly).min(cap).min(u64::from(u32::MAX)) as u32;
    }

    fn end_round(&mut self, frontier: Psn) {
        let kept = self.share - (self.share >> SHARE_SHIFT);
        self.share = match self.flags & MARKED != 0 {
            true => kept + (ALL >> SHARE_SHIFT),
            false if kept < SHARE_MIN => 0,
            false => kept,
        };
        let was_full = if self.flags & FULL != 0 { WAS_FULL } else { 0 };
        self.flags = self.flags & (OFF | TIMEOUTS) | was_full;
        self.losses = 0;
        self.round_end = frontier;
    }

    /// A CNP came, or a response with a mark.
    pub(crate) fn on_mark(&mut self, frontier: Psn) {
        if self.is_off() {
            return;
        }
        if self.share == 0 {
            self.share = ALL;
        }
        let share = u64::from(self.share) + 1;
        self.cut(frontier, |size| size - ((u64::from(size) * share) >> 17) as u32);
        if self.flags & MARKED == 0 {
            // Also when a loss has made it smaller: the round is that of the mark.
            self.round_end = frontier;
        }
        self.flags |= MARKED;
    }

    /// A queue on the way shows by its delay: `part` of the window goes, of 65,536.
    pub(crate) fn on_delay(&mut self, part: u16, frontier: Psn) {
        if !self.is_off() {
            self.cut(frontier, |size| size - ((u64::from(size) * u64::from(part)) >> 16) as u32);
        }
    }

    /// One packet was lost, and is sent again alone.
    pub(crate) fn on_loss(&mut self, frontier: Psn) {
        self.losses = self.losses.saturating_add(1);
        if self.losses == u8::MAX || u32::from(self.losses) * PACKETS_PER_LOSS > self.size / ONE {
            self.on_losses(frontier);
        }
    }

    /// Packets were lost, it is not known how many, and all from the first one on are sent again:
    /// the round ends with that one's acknowledgment, at `round_end`.
    pub(crate) fn on_losses(&mut self, round_end: Psn) {
        if !self.is_off() {
            self.cut(round_end, |size| size / 2);
        }
    }

    /// No answer came in the time of the ACK timer. The first time is like a loss; after
    /// [`TIMEOUTS_MAX`] the window is the smallest.
    pub(crate) fn on_ack_timeout(&mut self, round_end: Psn) {
        if self.is_off() {
            return;
        }
        if self.flags & TIMEOUTS != TIMEOUTS {
            self.flags += TIMEOUT;
        }
        let is_dead = self.flags & TIMEOUTS >= TIMEOUTS_MAX;
        if is_dead {
            self.flags &= !(CUT | MARKED);
        }
        self.cut(round_end, |size| if is_dead { MIN } else { size / 2 });
    }

    /// Makes the window smaller, once in a round; the next round begins, and lasts to `round_end`.
    fn cut(&mut self, round_end: Psn, to: impl FnOnce(u32) -> u32) {
        if self.flags & CUT != 0 {
            return;
        }
        self.size = to(self.size).max(MIN);
        self.threshold = whole(self.size).max(2);
        self.round_end = round_end;
        self.flags |= CUT;
    }

    /// Time to wait after so many packets were sent at once, if they are more than the window. With
    /// `round_trip`, 0 if it is not known.
    pub(crate) fn gap(&mut self, packets: u32, round_trip: Nanos) -> Option<Nanos> {
        if self.is_off() || self.size / ONE >= packets {
            return None;
        }
        self.on_full();
        let round_trip = if round_trip == Nanos(0) { ROUND_TRIP_UNKNOWN } else { round_trip };
        let parts = u64::from(packets) * u64::from(ONE);
        Some(Nanos(round_trip.0.saturating_mul(parts) / u64::from(self.size)).min(GAP_MAX))
    }
}

/// Whole packets of a size.
fn whole(size: u32) -> u16 {
    u16::try_from(size / ONE).unwrap_or(u16::MAX)
}

/// Milliseconds of a time, nearly, modulo 2^16.
const fn millis(time: Nanos) -> u16 {
    (time.0 >> 20) as u16
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MOST: u32 = 128;

    /// A window and the sequence of a sender that always has work: each call of `round` sends a
    /// window and has it acknowledged.
    struct Sender {
        window: CongestionWindow,
        oldest: Psn,
        frontier: Psn,
        now: Nanos,
    }

    impl Sender {
        fn new() -> Self {
            let begin = Psn::new(0x00ff_ff00);
            let window = CongestionWindow::new(CongestionControl::Window, begin);
            Self { window, oldest: begin, frontier: begin, now: Nanos::from_millis(1) }
        }

        fn size(&self) -> f64 {
            self.window.packets()
        }

        /// Sends a window; `events` are those of the round; all is acknowledged after them.
        fn round(&mut self, events: impl FnOnce(&mut CongestionWindow, Psn)) {
            self.frontier = self.oldest.plus(self.window.limit(MOST));
            self.window.on_full();
            events(&mut self.window, self.frontier);
            while self.oldest != self.frontier {
                self.oldest = self.oldest.plus(1);
                self.now = self.now + Nanos::from_micros(1);
                self.window.on_acknowledged(1, self.oldest, self.frontier, MOST, self.now);
            }
        }
    }

    #[test]
    fn a_window_doubles_until_a_mark_and_grows_by_one_after_it() {
        let mut sender = Sender::new();
        let sizes: Vec<f64> = (0..4)
            .map(|_| {
                sender.round(|_, _| {});
                sender.size()
            })
            .collect();
        assert_eq!(sizes, [32.0, 64.0, 128.0, 128.0]);
        sender.round(|window, frontier| window.on_mark(frontier));
        assert!((63.9..=64.0).contains(&sender.size()), "the first mark: half, and no growth: {}", sender.size());
        for _ in 0..10 {
            sender.round(|_, _| {});
        }
        assert!((73.0..75.0).contains(&sender.size()), "{}", sender.size());
    }

    #[test]
    fn marks_and_losses_of_one_round_cut_once() {
        let mut sender = Sender::new();
        sender.round(|window, frontier| {
            for _ in 0..5 {
                window.on_mark(frontier);
                window.on_losses(frontier);
            }
        });
        assert!((7.9..=8.0).contains(&sender.size()), "{}", sender.size());
        sender.round(|window, frontier| window.on_losses(frontier));
        assert!((3.9..=4.0).contains(&sender.size()), "the next round has one of its own: {}", sender.size());
    }

    /// One marked round in four makes small cuts, marks in all rounds cut by half.
    #[test]
    fn cuts_follow_the_share_of_marked_rounds() {
        let mut sender = Sender::new();
        for round in 0..400 {
            sender.round(|window, frontier| {
                if round % 4 == 0 {
                    window.on_mark(frontier);
                }
            });
        }
        let rare = sender.size();
        assert!((15.0..50.0).contains(&rare), "{rare}");
        for _ in 0..200 {
            sender.round(|window, frontier| window.on_mark(frontier));
        }
        assert!(sender.size() < 0.03, "marks without end: less than one packet in a round trip: {}", sender.size());
        assert_eq!(sender.window.limit(MOST), 1);
    }

    #[test]
    fn less_than_one_packet_is_a_gap_between_packets() {
        let mut sender = Sender::new();
        let round_trip = Nanos::from_micros(40);
        assert_eq!(sender.window.gap(16, round_trip), None);
        assert_eq!(sender.window.gap(32, round_trip), Some(Nanos::from_micros(80)), "twice the window");
        for _ in 0..5 {
            sender.round(|window, frontier| window.on_losses(frontier));
        }
        assert_eq!(sender.size(), 0.5);
        assert_eq!(sender.window.gap(1, round_trip), Some(Nanos::from_micros(80)));
        assert_eq!(sender.window.gap(1, Nanos(0)), Some(Nanos::from_micros(200)), "no round trip was measured");
        for _ in 0..2 {
            sender.round(|_, _| {});
        }
        assert!(sender.size() >= 1.0 && sender.window.gap(1, round_trip).is_none());
    }

    #[test]
    fn the_smallest_window_is_left_with_the_first_packet_without_a_mark() {
        let mut sender = Sender::new();
        for _ in 0..100 {
            sender.round(|window, frontier| window.on_mark(frontier));
        }
        assert_eq!(sender.size(), 1.0 / 64.0);
        sender.round(|_, _| {});
        sender.round(|_, _| {});
        assert!((1.0..=2.1).contains(&sender.size()), "{}", sender.size());
    }

    /// With one packet in flight its CNP may come after its ACK.
    #[test]
    fn a_mark_that_comes_after_the_acknowledgment_does_not_hold_back_the_next_packet() {
        let mut sender = Sender::new();
        for _ in 0..100 {
            sender.round(|window, frontier| window.on_mark(frontier));
        }
        sender.window.on_mark(sender.frontier);
        assert_eq!(sender.size(), 1.0 / 64.0);
        sender.round(|_, _| {});
        assert!(sender.size() > 1.0, "{}", sender.size());
    }

    /// Of 128 packets seven must be lost, of sixteen one.
    #[test]
    fn single_losses_cut_when_they_are_many() {
        for (rounds, losses) in [(3, 7), (0, 1)] {
            let mut sender = Sender::new();
            for _ in 0..rounds {
                sender.round(|_, _| {});
            }
            let before = sender.size();
            for _ in 0..if losses > 1 { 10 } else { 0 } {
                sender.round(|window, frontier| (1..losses).for_each(|_| window.on_loss(frontier)));
            }
            assert!(sender.size() >= before, "{before}");
            let before = sender.size();
            sender.round(|window, frontier| (0..before as u32 / 20 + 1).for_each(|_| window.on_loss(frontier)));
            assert_eq!(sender.size(), before / 2.0);
        }
    }

    #[test]
    fn five_timeouts_without_an_answer_leave_the_least() {
        let mut sender = Sender::new();
        for timeout in 1..=5 {
            sender.window.on_ack_timeout(sender.frontier);
            let size = if timeout < 5 { 8.0 } else { 1.0 / 64.0 };
            assert_eq!(sender.size(), size, "{timeout}");
        }
        // The peer was there all the time: one ACK answers all packets of before the timeouts.
        let (oldest, frontier) = (sender.oldest.plus(100), sender.oldest.plus(101));
        sender.window.on_full();
        sender.window.on_acknowledged(100, oldest, frontier, MOST, sender.now);
        assert_eq!(sender.size(), 1.0 / 64.0, "they show no room");
        sender.window.on_full();
        sender.window.on_acknowledged(1, frontier, frontier.plus(1), MOST, sender.now);
        assert!(sender.size() > 1.0);
    }

    /// A mark before the timeouts does not make packets of before them count.
    #[test]
    fn the_fifth_timeout_ends_the_round_of_a_mark() {
        let mut sender = Sender::new();
        sender.window.on_full();
        sender.window.on_mark(sender.oldest.plus(1));
        (0..5).for_each(|_| sender.window.on_ack_timeout(sender.oldest.plus(1)));
        sender.window.on_acknowledged(50, sender.oldest.plus(50), sender.oldest.plus(51), MOST, sender.now);
        assert_eq!(sender.size(), 1.0 / 64.0);
    }

    #[test]
    fn no_gap_is_longer_than_ten_milliseconds() {
        let mut sender = Sender::new();
        (0..5).for_each(|_| sender.window.on_ack_timeout(sender.frontier));
        assert_eq!(sender.window.gap(1, Nanos::from_micros(100)), Some(Nanos(6_400_000)));
        assert_eq!(sender.window.gap(1, Nanos::from_millis(1)), Some(Nanos::from_millis(10)));
    }

    /// Rounds of a full window without marks are not counted, while PSNs go around their circle. That
    /// the window was full must be forgotten nevertheless.
    #[test]
    fn a_window_that_is_not_filled_after_millions_of_packets_stays_as_it_is() {
        let mut sender = Sender::new();
        for _ in 0..3 {
            sender.round(|_, _| {});
        }
        sender.window.on_full();
        for _ in 0..6 {
            sender.oldest = sender.oldest.plus(1 << 21);
            sender.frontier = sender.oldest.plus(MOST);
            sender.window.on_acknowledged(1 << 21, sender.oldest, sender.frontier, MOST, sender.now);
        }
        sender.now = sender.now + Nanos::from_millis(1000);
        sender.window.on_begin(sender.now);
        for _ in 0..10 {
            (sender.oldest, sender.frontier) = (sender.frontier, sender.frontier.plus(4));
            sender.window.on_acknowledged(4, sender.oldest, sender.frontier, MOST, sender.now);
        }
        assert!(sender.size() <= 24.0, "{}", sender.size());
    }

    /// Packets of before the mark do not count, although the round was that of the loss.
    #[test]
    fn a_mark_that_follows_a_loss_lasts_for_its_own_round() {
        let mut sender = Sender::new();
        let frontier = sender.oldest.plus(16);
        sender.window.on_full();
        sender.window.on_losses(sender.oldest.plus(1));
        sender.window.on_mark(frontier);
        let before = sender.size();
        sender.window.on_acknowledged(15, sender.oldest.plus(15), frontier, MOST, sender.now);
        assert_eq!(sender.size(), before);
    }

    #[test]
    fn one_acknowledgment_of_many_packets_stops_at_the_threshold() {
        let mut sender = Sender::new();
        sender.round(|window, frontier| window.on_losses(frontier));
        assert_eq!(sender.size(), 8.0);
        sender.window.on_mark(sender.frontier);
        let before = sender.size();
        assert!((3.9..=4.0).contains(&before));
        sender.window.on_full();
        let frontier = sender.frontier.plus(8);
        sender.window.on_acknowledged(8, frontier, frontier, MOST, sender.now);
        assert!(
            (5.5..6.1).contains(&sender.size()),
            "a threshold of three or four, then two for eight: {}",
            sender.size()
        );
    }

    #[test]
    fn a_sender_that_does_not_fill_its_window_gets_no_larger_one() {
        let mut sender = Sender::new();
        for _ in 0..100 {
            sender.frontier = sender.oldest.plus(4);
            sender.oldest = sender.frontier;
            sender.window.on_acknowledged(4, sender.oldest, sender.frontier, MOST, sender.now);
        }
        assert_eq!(sender.size(), 16.0);
    }

    #[test]
    fn a_window_that_was_not_used_begins_small_and_grows_fast_to_its_old_size() {
        let mut sender = Sender::new();
        for _ in 0..3 {
            sender.round(|_, _| {});
        }
        sender.window.on_begin(sender.now + Nanos::from_millis(9));
        assert_eq!(sender.size(), 128.0);
        sender.window.on_begin(sender.now + Nanos::from_millis(22));
        assert_eq!(sender.size(), 32.0, "two times ten milliseconds");
        let mut marked = Sender::new();
        marked.round(|window, frontier| window.on_mark(frontier));
        for _ in 0..92 {
            marked.round(|_, _| {});
        }
        let before = marked.size();
        assert!((96.0..100.0).contains(&before), "{before}");
        marked.window.on_begin(marked.now + Nanos::from_millis(1000));
        assert_eq!(marked.size(), 16.0);
        for _ in 0..3 {
            marked.round(|_, _| {});
        }
        assert!((70.0..80.0).contains(&marked.size()), "three quarters at once: {}", marked.size());
    }

    #[test]
    fn a_window_that_is_off_follows_nothing() {
        let mut window = CongestionWindow::new(CongestionControl::Off, Psn::new(0));
        window.on_mark(Psn::new(9));
        window.on_loss(Psn::new(9));
        window.on_losses(Psn::new(9));
        window.on_ack_timeout(Psn::new(9));
        window.on_begin(Nanos::from_millis(10_000));
        assert_eq!((window.limit(128), window.limit(1 << 22), window.gap(1000, Nanos(1))), (128, 1 << 22, None));
        assert_eq!(window.packets(), 16.0, "nothing has changed it");
    }
}
