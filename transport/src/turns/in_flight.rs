//! Packets in flight of all queue pairs of an endpoint.
//!
//! Each has a window of its own, made for a connection that is alone. A thousand of them are a
//! thousand windows, more than the rings of any receiver hold: the excess is lost, and costs more
//! than waiting would. Packets in flight are therefore counted for all of them, and at the limit
//! queue pairs with new packets to send wait in line:
//!
//! ```text
//!   senders ─► visit ─► nothing may be added ─► line ─► room: admitted ─► senders, a quantum each
//! ```
//!
//! The line is one of classes, of accounts, and of the clients of each account ([`Senders`]), by the
//! packets that they add: a client with a thousand queue pairs adds as many as one with a single one. One
//! queue pair at a time is admitted, and the next when it was visited: it is in line again by then
//! if it has more, so that a client with one queue pair misses none of its turns when there is room
//! for many.
//!
//! Retransmissions and answers do not wait in line. A dead peer must not keep the others waiting:
//! packets that were not answered for a while are no longer on a ring and do not count, and none
//! are added while others wait. There are two generations of counts: additions count in the present
//! one, and the previous one is dropped after its time. Answers remove the oldest, so that a peer
//! that answers one packet now and then does not keep the others counted.

use super::{
    class_lists::Places,
    classes::{ClassConfig, DeviceRates, TrafficClasses},
    fair::FairOwner,
    senders::Senders,
};
use crate::clock::Nanos;

/// Duration of a generation. A guess: about twice the time of 512 packets of 1 KiB at 1 Gbit/s, and
/// well under the shortest ACK timeouts in use.
const GENERATION: Nanos = Nanos::from_millis(10);

/// Cost of a packet: so many that the quantum of a class with a share of 1 % is a whole number.
const COST: u32 = 100;

/// Counts of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlightShare {
    /// All of its packets in flight, and those of them added in `generation` and in the one before.
    /// The rest is older and does not count.
    packets: u32,
    added: u32,
    added_before: u32,
    generation: u64,
    /// It waited in line, and may add packets in flight at its next visit: one more than the place
    /// of its class, or 0.
    admitted: u8,
}

impl InFlightShare {
    /// It has come from the line.
    pub(crate) const fn is_admitted(&self) -> bool {
        self.admitted != 0
    }
}

/// The sum, and the line.
#[derive(Debug)]
pub(crate) struct InFlight {
    limit: u64,
    quantum: u32,
    generation: u64,
    began: Nanos,
    /// Of this generation and of the one before, each at its parity.
    counts: [u64; 2],
    /// Each in its turn is admitted once.
    line: Senders,
    /// Places of classes with one that was admitted and not visited yet: it may wait for the rate
    /// or the share of its class, and others do not wait for it.
    admitted: Places,
    /// Places of classes that wait for their rate or are paused: nothing is promised to them.
    closed: Places,
}

impl InFlight {
    /// At most `limit` packets, which are given out `quantum` at a time, for queue pairs in the
    /// slots below `slots`.
    pub(crate) fn new(limit: u32, quantum: u32, slots: u32) -> Self {
        let line = Senders::new(slots, quantum * COST);
        let limit = limit.max(1).into();
        Self { limit, quantum, generation: 1, began: Nanos(0), counts: [0; 2], line, admitted: 0, closed: 0 }
    }

    /// Gives queue pairs classes, before one of the slots below `slots` is added.
    pub(crate) fn set_classes(&mut self, slots: u32, classes: &TrafficClasses) {
        // Rates hold where frames leave.
        let config = classes.config.map(|class| ClassConfig::new(class.selection));
        let rates = DeviceRates::default();
        let classes = TrafficClasses { config, max_rate_kbit_per_s: 0, rates, ..classes.clone() };
        self.line = Senders::with_classes(slots, self.quantum * COST, &classes).leave_an_eighth();
    }

    /// A new queue pair in a slot, of this class; it has nothing in flight.
    pub(crate) fn add(&mut self, slot: u32, owner: FairOwner, class: u8) {
        self.line.add(slot, owner, class);
    }

    /// Changes the class of a queue pair.
    pub(crate) fn set_class(&mut self, slot: u32, owner: FairOwner, class: u8) {
        self.line.set_class(slot, owner, class);
    }

    /// Packets that may be added.
    fn room(&self) -> u32 {
        // No more than the limit, which has 32 bits.
        self.limit.saturating_sub(self.counts[0] + self.counts[1]) as u32
    }

    /// It has as many packets under way now.
    pub(crate) fn count(&mut self, share: &mut InFlightShare, packets: u32) {
        if share.packets == packets {
            return;
        }
        self.age(share);
        if packets > share.packets {
            share.added += packets - share.packets;
            self.counts[self.parity()] += u64::from(packets - share.packets);
        } else {
            let older = share.packets - share.added_before - share.added;
            let counted = (share.packets - packets).saturating_sub(older);
            let before = counted.min(share.added_before);
            let now = counted - before;
            (share.added, share.added_before) = (share.added - now, share.added_before - before);
            let parity = self.parity();
            self.counts[parity] -= u64::from(now);
            self.counts[parity ^ 1] -= u64::from(before);
        }
        share.packets = packets;
    }

    /// Its packets have the age of their addition.
    const fn age(&self, share: &mut InFlightShare) {
        (share.added, share.added_before) = match self.generation - share.generation {
            0 => (share.added, share.added_before),
            1 => (0, share.added),
            _ => (0, 0),
        };
        share.generation = self.generation;
    }

    const fn parity(&self) -> usize {
        (self.generation & 1) as usize
    }

    /// Its packets in flight were not answered for so long that they no longer count.
    const fn is_unanswered(&self, share: &InFlightShare) -> bool {
        let counted = match self.generation - share.generation {
            0 => share.added + share.added_before,
            1 => share.added,
            _ => 0,
        };
        share.packets > 0 && counted == 0
    }

    /// Time goes on.
    pub(crate) fn on_time(&mut self, now: Nanos) {
        self.line.on_time(now);
        for _ in 0..self.counts.len() {
            if now - self.began < GENERATION {
                return;
            }
            self.began = self.began + GENERATION;
            self.generation += 1;
            self.counts[(self.generation & 1) as usize] = 0;
        }
        self.began = now;
    }

    /// When those in line are to be looked at again, though nothing has come.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.line.is_empty() { Nanos::NEVER } else { self.began + GENERATION }
    }

    /// True if a waiting queue pair can continue.
    pub(crate) fn can_admit(&self) -> bool {
        self.can_admit_except(0)
    }

    fn can_admit_except(&self, passed: Places) -> bool {
        !self.line.is_empty_except(self.admitted | passed) && self.room() > self.promised()
    }

    /// Packets that those that were admitted may add at least.
    const fn promised(&self) -> u32 {
        (self.admitted & !self.closed).count_ones().saturating_mul(self.quantum)
    }

    /// These classes wait for their rate, as places.
    pub(crate) const fn set_closed(&mut self, closed: Places) {
        self.closed = closed;
    }

    /// The slot of the first in line, of another class than those that were passed over; it is to be
    /// passed to [`Self::admit`] and visited, or to [`Self::pass_over`].
    pub(crate) fn next_in_line(&mut self, passed: Places) -> Option<u32> {
        if !self.can_admit_except(passed) {
            return None;
        }
        self.line.pop_except(self.began, self.admitted | passed)
    }

    /// The first in line cannot be visited now: it is the last of its class, the place of which is
    /// returned.
    pub(crate) fn pass_over(&mut self, slot: u32) -> Places {
        self.charge(slot, 0);
        self.line.push_back(slot);
        1 << self.line.place(slot)
    }

    /// One that was admitted has added so many packets. An admission costs its account one at least.
    pub(crate) fn charge(&mut self, slot: u32, packets: u32) {
        if packets == 0 {
            self.line.charge_visit(slot, COST);
        } else {
            self.line.charge(self.began, slot, packets * COST, 0);
        }
    }

    /// It has left the line, and its next visit may add packets in flight.
    pub(crate) fn admit(&mut self, slot: u32, share: &mut InFlightShare) {
        let place = self.line.place(slot);
        share.admitted = place + 1;
        self.admitted |= 1 << place;
    }

    /// It is visited: how many packets it may add.
    pub(crate) fn grant(&mut self, share: &mut InFlightShare) -> u32 {
        let place = core::mem::take(&mut share.admitted).checked_sub(1);
        let admitted = place.is_some();
        self.admitted &= !place.map_or(0, |place| 1 << place);
        // A queue pair that was not in line neither passes those that are, nor takes the share
        // promised to them; where nothing is answered no more is added while others wait.
        if admitted && !self.is_unanswered(share) || self.line.is_empty() {
            self.room().saturating_sub(self.promised())
        } else {
            0
        }
    }

    /// It would have sent more than it may. One that waits for an answer is visited again when that
    /// comes.
    pub(crate) fn stand_in_line(&mut self, slot: u32, share: &InFlightShare) {
        if !self.is_unanswered(share) {
            self.line.push_back(slot);
        }
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, slot: u32, share: &mut InFlightShare) {
        self.count(share, 0);
        let _nothing = self.grant(share);
        self.line.forget(slot);
    }
}

#[cfg(test)]
mod tests {
    use roced_types::{AccountId, SessionId};

    use super::*;
    use crate::turns::classes::Selection;

    /// For queue pairs of one client.
    fn in_flight(slots: u32) -> InFlight {
        let mut all = InFlight::new(32, 16, slots);
        (0..slots).for_each(|slot| all.add(slot, FairOwner::default(), 0));
        all
    }

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn those_in_line_come_before_others_and_in_their_order() {
        let mut all = in_flight(4);
        let mut shares = [InFlightShare::default(); 4];
        assert_eq!(all.grant(&mut shares[0]), 32);
        all.count(&mut shares[0], 32);
        for index in [1, 2] {
            assert_eq!(all.grant(&mut shares[index]), 0);
            all.stand_in_line(index as u32, &shares[index]);
            all.stand_in_line(index as u32, &shares[index]);
        }
        assert_eq!(all.next_in_line(0), None);
        all.count(&mut shares[0], 20);
        assert_eq!((all.grant(&mut shares[0]), all.grant(&mut shares[3])), (0, 0), "others wait");
        assert_eq!(all.next_in_line(0), Some(1));
        all.admit(1, &mut shares[1]);
        assert_eq!(all.next_in_line(0), None, "one at a time");
        assert_eq!(all.grant(&mut shares[1]), 12);
        assert_eq!(all.next_in_line(0), Some(2));
    }

    /// Account 1 has a thousand queue pairs in line, and gets half.
    #[test]
    fn an_account_with_one_queue_pair_in_line_is_admitted_as_often_as_one_with_a_thousand() {
        let mut all = InFlight::new(32, 16, 1001);
        let owner = |account, client| FairOwner { account: AccountId(account), client: SessionId(client), weight: 1 };
        let mut shares = [InFlightShare::default(); 1001];
        for slot in 0..1001 {
            all.add(slot, owner(u32::from(slot < 1000), slot % 3), 0);
            all.stand_in_line(slot, &shares[slot as usize]);
        }
        let mut admitted = 0;
        for _ in 0..100 {
            let slot = all.next_in_line(0).expect("there is room");
            admitted += u32::from(slot == 1000);
            all.admit(slot, &mut shares[slot as usize]);
            assert_eq!(all.next_in_line(0), None, "it may have more, and is not in line yet");
            assert!(all.grant(&mut shares[slot as usize]) >= 16);
            all.charge(slot, 16);
            all.stand_in_line(slot, &shares[slot as usize]);
        }
        assert_eq!(admitted, 50);
    }

    /// A READ adds its whole window of responses.
    #[test]
    fn shares_of_the_line_are_of_packets() {
        let mut all = InFlight::new(32, 16, 2);
        let mut shares = [InFlightShare::default(); 2];
        let mut added = [0; 2];
        for slot in 0..2 {
            all.add(slot, FairOwner { account: AccountId(slot), client: SessionId(slot), weight: 1 }, 0);
            all.stand_in_line(slot, &shares[slot as usize]);
        }
        for _ in 0..1000 {
            let slot = all.next_in_line(0).expect("there is room");
            all.admit(slot, &mut shares[slot as usize]);
            assert_eq!(all.grant(&mut shares[slot as usize]), 32);
            let packets = if slot == 0 { 128 } else { 16 };
            added[slot as usize] += packets;
            all.charge(slot, packets);
            all.stand_in_line(slot, &shares[slot as usize]);
        }
        assert!((0.95..1.05).contains(&(f64::from(added[0]) / f64::from(added[1]))), "{added:?}");
    }

    /// Also where room comes bit by bit, and the strict class would take each.
    #[test]
    fn strict_classes_leave_others_an_eighth_of_the_line() {
        let mut classes = TrafficClasses::default();
        classes.config[6] = ClassConfig::new(Selection::Strict);
        let mut all = InFlight::new(16, 16, 2);
        all.set_classes(2, &classes);
        let (mut shares, mut admitted) = ([InFlightShare::default(); 2], [0; 2]);
        for (slot, class) in [(0, 0), (1, 6)] {
            all.add(slot, FairOwner::default(), class);
            all.stand_in_line(slot, &shares[slot as usize]);
        }
        for _ in 0..8000 {
            let slot = all.next_in_line(0).expect("there is room");
            let share = &mut shares[slot as usize];
            all.admit(slot, share);
            assert!(all.grant(share) > 0);
            all.charge(slot, 1);
            admitted[slot as usize] += 1;
            all.stand_in_line(slot, share);
        }
        assert!((950..1050).contains(&admitted[0]), "{admitted:?}");
    }

    /// One that cannot be visited delays no other.
    #[test]
    fn one_that_is_passed_over_is_the_last_in_line() {
        let mut all = in_flight(3);
        let shares = [InFlightShare::default(); 3];
        (0..3).for_each(|slot| all.stand_in_line(slot, &shares[slot as usize]));
        assert_eq!(all.next_in_line(0), Some(0));
        all.pass_over(0);
        assert_eq!((all.next_in_line(0), all.next_in_line(0), all.next_in_line(0)), (Some(1), Some(2), Some(0)));
    }

    #[test]
    fn stale_packets_do_not_count_as_in_flight() {
        let mut all = in_flight(2);
        let [mut dead, mut alive] = [InFlightShare::default(); 2];
        all.on_time(at(1000));
        all.count(&mut dead, 32);
        all.stand_in_line(1, &alive);
        assert_eq!(all.deadline(), at(1010));
        all.on_time(at(1010));
        assert!(!all.can_admit());
        all.on_time(at(1020));
        assert!(all.can_admit());
        all.count(&mut alive, 30);
        all.count(&mut dead, 0);
        assert_eq!(all.room(), 2, "it is not taken off twice");
    }

    /// A peer that answers just enough keeps only its latest packets counted.
    #[test]
    fn an_answer_now_and_then_does_not_keep_the_rest_counted() {
        let mut all = in_flight(2);
        let [mut slow, mut other] = [InFlightShare::default(); 2];
        all.on_time(at(1000));
        all.count(&mut slow, 32);
        all.stand_in_line(1, &other);
        for millis in 1..40 {
            all.on_time(at(1000 + millis));
            if millis % 9 == 0 {
                // One is answered, one is sent.
                all.count(&mut slow, 31);
                all.count(&mut slow, 32);
            }
        }
        assert_eq!(all.room(), 32 - 2, "those of the last two generations count");
        assert_eq!(all.next_in_line(0), Some(1));
        all.admit(1, &mut other);
        assert_eq!(all.grant(&mut slow), 30 - 16, "the promise is kept");
        assert_eq!(all.grant(&mut other), 30);
        all.count(&mut slow, 0);
        assert_eq!(all.room(), 32, "it is not taken off twice");
    }

    /// The rest is the newest: it counts longer.
    #[test]
    fn answers_take_away_the_oldest() {
        let mut all = in_flight(2);
        let mut share = InFlightShare::default();
        all.on_time(at(1000));
        all.count(&mut share, 10);
        all.on_time(at(1010));
        all.count(&mut share, 20);
        all.count(&mut share, 8);
        assert_eq!(all.room(), 32 - 8);
        all.on_time(at(1020));
        assert_eq!(all.room(), 32 - 8, "they are of the generation before");
        all.on_time(at(1030));
        assert_eq!(all.room(), 32);
    }

    #[test]
    fn a_removed_queue_pair_leaves_nothing_in_flight() {
        let mut all = in_flight(4);
        let mut shares = [InFlightShare::default(); 3];
        all.count(&mut shares[0], 40);
        all.stand_in_line(1, &shares[1]);
        all.stand_in_line(2, &shares[2]);
        all.remove(0, &mut shares[0]);
        assert_eq!(all.next_in_line(0), Some(1));
        all.admit(1, &mut shares[1]);
        all.remove(1, &mut shares[1]);
        all.remove(2, &mut shares[2]);
        assert_eq!((all.room(), all.admitted, all.deadline()), (32, 0, Nanos::NEVER));
    }
}
