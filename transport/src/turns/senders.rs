//! Queue pairs that may have something to send, by traffic class: the order of their turns.
//!
//! ```text
//!   strict classes, the highest first ─► classes with shares ─► accounts, clients, slots
//!                                        (deficit round robin)    (`FairList` of the class)
//!                                        and frames to no NIC,
//!                                        by turns
//! ```
//!
//! A class has its turn only below its highest rate, and while it is not paused. Without classes
//! there is one list, and the order is that of it. Every operation takes constant time beside that
//! of [`FairList`].

use alloc::boxed::Box;

use super::{
    TURN_FRAMES,
    class_counters::ClassCounters,
    class_lists::{ClassLists, Places},
    class_pause::PauseStorm,
    classes::{CLASSES, TrafficClasses},
    fair::{FairList, FairOwner},
    turn_list::TurnList,
};
use crate::clock::Nanos;

/// Slots that wait for their turns, each at most once.
#[derive(Debug)]
pub(crate) struct Senders {
    /// Without classes.
    only: TurnList,
    classes: Option<Box<ClassLists>>,
}

impl Senders {
    /// For the slots below `slots`, none of which has an owner, without classes. An account that is
    /// charged `turn_cost` gives way to the next.
    pub(crate) fn new(slots: u32, turn_cost: u32) -> Self {
        Self { only: TurnList::new(slots, turn_cost), classes: None }
    }

    /// As [`Self::new`], with the classes that priorities have.
    pub(crate) fn with_classes(slots: u32, turn_cost: u32, classes: &TrafficClasses) -> Self {
        let classes = Box::new(ClassLists::new(slots, turn_cost, classes));
        Self { only: TurnList::new(0, turn_cost), classes: Some(classes) }
    }

    /// Strict classes do not go first without end: others that wait have an eighth of the cost.
    pub(crate) fn leave_an_eighth(mut self) -> Self {
        if let Some(classes) = &mut self.classes {
            classes.strict_most = 7 * i64::from(classes.turn_cost);
        }
        self
    }

    /// Gives a slot to an owner, with packets of a class.
    ///
    /// # Panics
    /// As [`FairList::add`].
    pub(crate) fn add(&mut self, slot: u32, owner: FairOwner, class: u8) {
        match &mut self.classes {
            None => self.only.list.add(slot, owner),
            Some(classes) => classes.add(slot, owner, class),
        }
    }

    /// Changes the class of a slot; a listed one is the last of its client there.
    pub(crate) fn set_class(&mut self, slot: u32, owner: FairOwner, class: u8) {
        if let Some(classes) = &mut self.classes {
            classes.set_class(slot, owner, class);
        }
    }

    /// As [`FairList::forget`].
    pub(crate) fn forget(&mut self, slot: u32) {
        self.turns(slot).list.forget(slot);
        if let Some(classes) = &mut self.classes {
            classes.forget_rest();
        }
    }

    /// No slot is listed that the rate and the pauses of its class let send, as of the last call
    /// with a time.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match &self.classes {
            None => self.only.list.is_empty(),
            Some(classes) => classes.is_empty(),
        }
    }

    /// No slot is listed in other classes than those at `except`.
    #[inline]
    pub(crate) fn is_empty_except(&self, except: Places) -> bool {
        match &self.classes {
            None => except & 1 != 0 || self.only.list.is_empty(),
            Some(classes) => {
                let others = classes.classes.iter().enumerate().filter(|(place, _)| except & 1 << place == 0);
                others.map(|(_, class)| &class.turns.list).all(FairList::is_empty)
            }
        }
    }

    /// Place of the class of a slot; without classes 0.
    #[inline]
    pub(crate) fn place(&self, slot: u32) -> u8 {
        self.classes.as_ref().map_or(0, |classes| classes.class_of[slot as usize])
    }

    /// Time at which a class is to be looked at again that waits for its rate or is paused;
    /// [`Nanos::NEVER`] if none is.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.classes.as_ref().map_or(Nanos::NEVER, |classes| classes.deadline())
    }

    /// Places of classes that wait for their rate or are paused.
    #[inline]
    pub(crate) fn closed(&self) -> Places {
        self.classes.as_ref().map_or(0, |classes| classes.closed())
    }

    /// Priorities are paused until these times, or not where that has passed.
    pub(crate) fn set_pauses(&mut self, until: &[Nanos; CLASSES]) {
        if let Some(classes) = &mut self.classes {
            classes.set_pauses(until);
        }
    }

    /// [`Self::take_storm`] has one, as of the last call with a time.
    #[inline]
    pub(crate) fn has_storm_report(&self) -> bool {
        self.classes.as_ref().is_some_and(|classes| classes.has_storm_report)
    }

    /// A pause, or the rates of its class and of the device, hold up the rest of a slot at `now`.
    pub(crate) fn holds_rest(&mut self, now: Nanos, slot: u32) -> bool {
        self.classes.as_mut().is_some_and(|classes| classes.holds_rest(now, slot))
    }

    /// A visit to the rest of a slot begins: its frames, at most `most`.
    pub(crate) fn begin_rest(&mut self, slot: u32, most: usize) -> usize {
        self.classes.as_mut().map_or(most, |classes| classes.begin_rest(slot, most))
    }

    /// The visit has ended.
    pub(crate) fn end_rest(&mut self) {
        if let Some(classes) = &mut self.classes {
            classes.end_rest();
        }
    }

    /// A storm of pauses that has begun or ended since it was last returned.
    pub(crate) fn take_storm(&mut self) -> Option<PauseStorm> {
        self.classes.as_mut()?.take_storm()
    }

    /// Time has passed, and no slot is taken out or held.
    #[inline]
    pub(crate) fn on_time(&mut self, now: Nanos) {
        if let Some(classes) = &mut self.classes {
            classes.on_time(now);
        }
    }

    /// As [`FairList::push_back`].
    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) {
        self.turns(slot).list.push_back(slot);
    }

    /// The slot that was taken out finds no room on the wire: it is not listed until
    /// [`Self::end_call`].
    pub(crate) fn hold(&mut self, slot: u32) {
        self.turns(slot).hold(slot);
    }

    /// A slot is held.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        match &self.classes {
            None => self.only.is_held(slot),
            Some(classes) => classes.classes[usize::from(classes.class_of[slot as usize])].turns.is_held(slot),
        }
    }

    /// Slots that are held.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        match &self.classes {
            None => self.only.held_count,
            Some(classes) => classes.classes.iter().map(|class| class.turns.held_count).sum(),
        }
    }

    /// A call that takes turns ends: those that are held are listed again.
    #[inline]
    pub(crate) fn end_call(&mut self) {
        match &mut self.classes {
            None => self.only.end_call(),
            Some(classes) => classes.end_call(),
        }
    }

    /// Takes out the slot that has its turn. Its cost is passed to [`Self::charge`].
    #[inline]
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u32> {
        self.pop_except(now, 0)
    }

    /// As [`Self::pop`], of another class than those at `except`.
    #[inline]
    pub(crate) fn pop_except(&mut self, now: Nanos, except: Places) -> Option<u32> {
        match &mut self.classes {
            None if except & 1 == 0 && self.only.has_turn() => self.only.list.pop(),
            None => None,
            Some(classes) => classes.pop(now, except),
        }
    }

    /// The class of a slot is strict, before all others, and is never paused.
    #[inline]
    pub(crate) fn is_first(&self, slot: u32) -> bool {
        self.classes.as_ref().is_none_or(|classes| classes.has_first && classes.place(slot) == 0)
    }

    /// Frames that the slot that was taken out may send in its turn.
    #[inline]
    pub(crate) fn frames(&self, slot: u32) -> usize {
        self.classes.as_ref().map_or(TURN_FRAMES, |classes| classes.frames(slot))
    }

    /// Charges the cost of a turn, and the bytes that it gave to the NIC at `now`.
    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos, slot: u32, cost: u32, nic_bytes: usize) {
        match &mut self.classes {
            None => {
                self.only.list.charge(slot, cost);
                self.only.has_sent |= cost > 0;
            }
            Some(classes) => classes.charge(now, slot, cost, nic_bytes),
        }
    }

    /// A slot gave these frames to the NIC; counted by class, if there are any.
    #[inline]
    pub(crate) fn count_sent(&mut self, slot: u32, frames: usize, bytes: usize) {
        if let Some(classes) = &mut self.classes {
            classes.count_sent(slot, frames, bytes);
        }
    }

    /// Counters of the classes, if there are any.
    pub(crate) fn counters(&self) -> Option<&ClassCounters> {
        self.classes.as_ref().map(|classes| &classes.counters)
    }

    /// Charges a turn without any effect to the client and account of the slot alone.
    pub(crate) fn charge_visit(&mut self, slot: u32, cost: u32) {
        self.turns(slot).list.charge(slot, cost);
    }

    #[inline]
    fn turns(&mut self, slot: u32) -> &mut TurnList {
        match &mut self.classes {
            None => &mut self.only,
            Some(classes) => &mut classes.of_slot(slot).turns,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeSet, vec::Vec};

    use proptest::{collection::vec, prelude::*};
    use roced_types::{AccountId, SessionId};

    use super::*;
    use crate::turns::classes::{ClassConfig, LOCAL, Selection};

    const TURN: u32 = 18_000;

    fn owner(client: u32) -> FairOwner {
        FairOwner { account: AccountId(client), client: SessionId(client), weight: 1 }
    }

    /// A slot of each class, all listed.
    fn listed(config: [ClassConfig; CLASSES]) -> Senders {
        let classes = TrafficClasses { config, ..TrafficClasses::default() };
        let mut senders = Senders::with_classes(CLASSES as u32, TURN, &classes);
        for slot in 0..CLASSES as u32 {
            senders.add(slot, owner(slot), slot as u8);
            senders.push_back(slot);
        }
        senders
    }

    /// Serves `turns` slots, each of which has more to do; returns the cost of each.
    fn serve(senders: &mut Senders, turns: usize, mut cost: impl FnMut(u32) -> u32) -> [u64; CLASSES] {
        let mut costs = [0; CLASSES];
        for _ in 0..turns {
            let slot = senders.pop(Nanos(1)).expect("all have more to do");
            let cost = cost(slot);
            senders.push_back(slot);
            senders.charge(Nanos(1), slot, cost, cost as usize);
            costs[slot as usize] += u64::from(cost);
        }
        costs
    }

    fn shares(percent: [u8; CLASSES]) -> [ClassConfig; CLASSES] {
        percent
            .map(|percent| ClassConfig::new(if percent == 0 { Selection::Strict } else { Selection::Ets { percent } }))
    }

    #[test]
    fn strict_classes_are_first_by_their_number() {
        let mut senders = listed(shares([50, 50, 0, 0, 0, 0, 0, 0]));
        let order: Vec<u32> = core::iter::from_fn(|| senders.pop(Nanos(1))).collect();
        assert_eq!(order[..6], [7, 6, 5, 4, 3, 2]);
        assert_eq!(order.len(), 8);
    }

    #[test]
    fn shares_are_those_of_bytes_for_turns_of_any_cost() {
        let percent = [1, 2, 5, 10, 12, 20, 20, 30];
        for cost in [600_u32, 30_000] {
            let mut senders = listed(shares(percent));
            let costs = serve(&mut senders, 60_000, |slot| cost + slot * cost / 3);
            let all: u64 = costs.iter().sum();
            for (class, percent) in percent.into_iter().enumerate() {
                let share = costs[class] as f64 * 100.0 / all as f64;
                assert!((share / f64::from(percent) - 1.0).abs() < 0.05, "{class}: {share} of {percent}, {cost}");
            }
        }
    }

    #[test]
    fn a_class_without_work_leaves_its_share_and_saves_none() {
        let mut senders = listed(shares([10, 90, 1, 1, 1, 1, 1, 1]));
        (1..8).for_each(|slot| senders.turns(slot).list.remove(slot));
        let alone = serve(&mut senders, 1000, |_| 4096);
        assert_eq!(alone[0], 4096 * 1000);
        senders.push_back(1);
        let costs = serve(&mut senders, 1000, |_| 4096);
        let share = costs[1] as f64 / 4_096_000.0;
        assert!((0.89..0.92).contains(&share), "{share}");
    }

    #[test]
    fn a_class_sends_at_its_highest_rate_and_its_deadline_says_when() {
        let mut config = shares([100, 0, 0, 0, 0, 0, 0, 0]);
        config[7].max_rate_kbit_per_s = 8000;
        let mut senders = listed(config);
        (1..7).for_each(|slot| senders.turns(slot).list.remove(slot));
        let begin = Nanos::from_millis(1000);
        let (mut now, mut costs) = (begin, [0_u64; CLASSES]);
        while now < begin + Nanos::from_millis(1000) {
            senders.on_time(now);
            let slot = senders.pop(now).expect("class 0 has more");
            senders.push_back(slot);
            senders.charge(now, slot, 1000, 1000);
            costs[slot as usize] += 1000;
            now = now + Nanos::from_micros(10);
        }
        // With the burst of the first moment.
        assert!((1_020_000..=1_040_000).contains(&costs[7]), "{costs:?}");
        senders.turns(0).list.remove(0);
        assert_eq!(senders.pop(now), None);
        assert!(senders.is_empty(), "the rate closes it");
        let deadline = senders.deadline();
        assert!(deadline > now && deadline < now + Nanos::from_millis(5));
        senders.on_time(deadline);
        assert!(!senders.is_empty());
        assert_eq!(senders.pop(deadline), Some(7));
        assert_eq!(senders.deadline(), Nanos::NEVER);
    }

    #[test]
    fn endpoints_of_a_device_share_its_rates() {
        let of_device = TrafficClasses { max_rate_kbit_per_s: 8000, ..TrafficClasses::default() };
        let mut of_class = TrafficClasses::default();
        of_class.config[7].max_rate_kbit_per_s = 8000;
        for (classes, others) in [(of_device, None), (of_class, Some(6))] {
            let [mut one, mut other] = [(); 2].map(|()| Senders::with_classes(2, TURN, &classes));
            for senders in [&mut one, &mut other] {
                senders.add(0, owner(0), 7);
                senders.push_back(0);
            }
            let now = Nanos::from_millis(500);
            assert_eq!(one.pop(now), Some(0));
            one.charge(now, 0, 1, 100_000);
            assert_eq!((other.pop(now), other.is_empty()), (None, true));
            assert!(other.deadline() > now + Nanos::from_millis(50) && other.deadline() < Nanos::NEVER);
            other.add(1, owner(1), 6);
            other.push_back(1);
            assert_eq!(other.pop(now).is_some(), others.is_some(), "another class");
        }
    }

    #[test]
    fn a_class_is_paused_by_each_of_its_priorities_and_others_are_not() {
        let mut classes = TrafficClasses { class_of_priority: [0, 1, 2, 3, 1, 1, 1, 1], ..TrafficClasses::default() };
        classes.config = shares([25, 25, 0, 0, 0, 0, 0, 0]);
        let mut senders = Senders::with_classes(8, TURN, &classes);
        for slot in 0..5 {
            senders.add(slot, owner(slot), if slot == 4 { LOCAL } else { slot as u8 });
            senders.push_back(slot);
        }
        let (now, later) = (Nanos::from_millis(5), Nanos::from_millis(6));
        let until = |paused: &[usize]| core::array::from_fn(|at| if paused.contains(&at) { later } else { now });
        senders.set_pauses(&until(&[0, 3, 7]));
        let mut order: Vec<u32> = core::iter::from_fn(|| senders.pop(now)).collect();
        order.sort_unstable();
        assert_eq!(order, [2, 4], "frames to no NIC have no class");
        assert!(senders.is_empty());
        assert!(senders.deadline() > now && senders.deadline() <= later);
        // The end of a pause, before its time.
        senders.set_pauses(&until(&[3]));
        assert!(!senders.is_empty());
        let mut order: Vec<u32> = core::iter::from_fn(|| senders.pop(now)).collect();
        order.sort_unstable();
        assert_eq!(order, [0, 1]);
        senders.on_time(later);
        assert_eq!(senders.pop(later), Some(3));
    }

    #[test]
    fn a_first_class_that_may_be_paused_has_a_limit_of_bytes_ahead() {
        let first = |paused_priorities| {
            let classes = TrafficClasses {
                config: shares([100, 0, 0, 0, 0, 0, 0, 0]),
                paused_priorities,
                ..TrafficClasses::default()
            };
            let mut senders = Senders::with_classes(2, TURN, &classes);
            senders.add(0, owner(0), 7);
            senders.add(1, owner(0), 6);
            [senders.is_first(0), senders.is_first(1)]
        };
        assert_eq!((first(0), first(1 << 6)), ([true, false], [true, false]));
        assert_eq!(first(1 << 7), [false, false]);
    }

    #[test]
    fn a_slot_changes_its_class_with_its_place_in_line() {
        let mut senders = listed(shares([50, 50, 0, 0, 0, 0, 0, 0]));
        senders.set_class(0, owner(0), 7);
        assert_eq!([(); 3].map(|()| senders.pop(Nanos(1))), [Some(7), Some(0), Some(6)]);
        senders.set_class(0, owner(0), 1);
        senders.push_back(0);
        assert_eq!(senders.pop(Nanos(1)), Some(5));
        senders.forget(0);
        senders.add(0, owner(0), 6);
        senders.push_back(0);
        assert_eq!(senders.pop(Nanos(1)), Some(0));
    }

    #[test]
    fn priorities_may_have_one_class() {
        let classes = TrafficClasses { class_of_priority: [5; CLASSES], ..TrafficClasses::default() };
        let mut senders = Senders::with_classes(2, TURN, &classes);
        senders.add(1, owner(1), 5);
        senders.push_back(1);
        assert_eq!((senders.pop(Nanos(1)), senders.pop(Nanos(1))), (Some(1), None));
    }

    const SLOTS: u32 = 24;

    /// Owner of a slot: three accounts with two clients each.
    fn owner_of(slot: u32) -> FairOwner {
        FairOwner { account: AccountId(slot % 3), client: SessionId(slot % 6), weight: 1 + (slot % 3) as u8 }
    }

    /// Outcome of the turn of a slot: it has nothing to send, finds no room, or sends these bytes.
    #[derive(Clone, Copy, Debug)]
    enum Turn {
        Idle,
        Full,
        Sent(u32),
    }

    fn turn() -> impl Strategy<Value = Turn> {
        prop_oneof![Just(Turn::Idle), Just(Turn::Full), (64..70_000_u32).prop_map(Turn::Sent)]
    }

    prop_compose! {
        fn any_classes()(
            config in vec((0..4_u8, 1..=100_u8, 0..4_u32, 10..24_u32), CLASSES),
            class_of_priority in vec(0..CLASSES as u8, CLASSES),
            (has_rate, rate) in (0..3_u32, 12..26_u32),
        ) -> TrafficClasses {
            let max_rate_kbit_per_s = if has_rate == 0 { 1 << rate } else { 0 };
            let mut classes = TrafficClasses { max_rate_kbit_per_s, ..TrafficClasses::default() };
            for (class, (kind, percent, has_rate, rate)) in classes.config.iter_mut().zip(config) {
                class.selection = if kind == 0 { Selection::Strict } else { Selection::Ets { percent } };
                class.max_rate_kbit_per_s = if has_rate == 0 { 1 << rate } else { 0 };
            }
            classes.class_of_priority.copy_from_slice(&class_of_priority);
            classes
        }
    }

    proptest! {
        /// Beside a set of the slots that wait: each has its turn in the end, no other has one, and
        /// nothing waits without a deadline.
        #[test]
        fn slots_that_wait_have_their_turns_and_no_others(
            classes in any_classes(),
            steps in vec((0..SLOTS, 0..8_u8, 0..CLASSES, 0..40_000_u64, vec(turn(), 0..12)), 1..150),
        ) {
            let mut senders = Senders::with_classes(SLOTS, TURN, &classes);
            (0..SLOTS).for_each(|slot| senders.add(slot, owner_of(slot), classes.class_of_priority[0]));
            let (mut waiting, mut now) = (BTreeSet::new(), Nanos::from_millis(1));
            for (slot, change, priority, time, turns) in steps {
                let class = classes.class_of_priority[priority];
                match change {
                    0 => {
                        senders.forget(slot);
                        senders.add(slot, owner_of(slot), class);
                        waiting.remove(&slot);
                    }
                    1 | 2 => senders.set_class(slot, owner_of(slot), class),
                    // Of all priorities up to this one.
                    3 => {
                        let until = core::array::from_fn(|at| if at <= priority { now + Nanos(90 * time) } else { Nanos(0) });
                        senders.set_pauses(&until);
                    }
                    _ => {
                        senders.push_back(slot);
                        waiting.insert(slot);
                    }
                }
                now = now + Nanos(time);
                senders.on_time(now);
                let mut held = Vec::new();
                for turn in turns {
                    let Some(slot) = senders.pop(now) else { break };
                    prop_assert!(waiting.remove(&slot), "{} did not wait", slot);
                    match turn {
                        Turn::Idle => senders.charge(now, slot, 0, 0),
                        Turn::Full => {
                            senders.charge(now, slot, 0, 0);
                            senders.hold(slot);
                            held.push(slot);
                        }
                        Turn::Sent(bytes) => {
                            senders.charge(now, slot, bytes, bytes as usize);
                            senders.push_back(slot);
                            waiting.insert(slot);
                        }
                    }
                }
                prop_assert_eq!(senders.held(), held.len());
                prop_assert!(held.iter().all(|slot| senders.is_held(*slot)));
                senders.end_call();
                waiting.extend(held);
                prop_assert_eq!(waiting.is_empty(), senders.is_empty() && senders.deadline() == Nanos::NEVER);
            }
            senders.set_pauses(&[Nanos(0); CLASSES]);
            // Ten seconds: visits of 70 KB at 1 Mbit/s are paid for half a second each.
            for _ in 0..20 * SLOTS {
                now = if senders.is_empty() { now.max(senders.deadline().min(now + Nanos::from_millis(20))) } else { now };
                senders.on_time(now);
                while let Some(slot) = senders.pop(now) {
                    prop_assert!(waiting.remove(&slot), "{} did not wait", slot);
                    senders.charge(now, slot, 1, 1);
                }
                senders.end_call();
            }
            prop_assert!(waiting.is_empty(), "{:?} have no turn", waiting);
        }
    }
}
