//! Lists of the traffic classes of an endpoint, and the order of their turns: strict ones, those
//! with shares by deficit round robin, and frames to no NIC.

use alloc::{boxed::Box, vec, vec::Vec};

use super::{
    FULL_FRAME_COST,
    class_counters::ClassCounters,
    class_list::ClassList,
    class_pause::PauseStorm,
    classes::{CLASSES, ClassConfig, LOCAL, Selection, TrafficClasses},
    fair::FairOwner,
    shared_rate::{FULL_FRAME, RateTurns},
};
use crate::clock::Nanos;

/// Turns by which a class can be in debt. More is of queue pairs that send their rest at once,
/// because their client is gone.
const DEBT_TURNS: i64 = 8;

/// Bytes that others have sent before those of a rest leave, a full frame, and the most that are
/// remembered: 16 of them.
const REST_CREDIT_MIN: usize = FULL_FRAME as usize;
const REST_CREDIT_MAX: usize = 16 * REST_CREDIT_MIN;

/// Places of classes, a bit for each.
pub(crate) type Places = u16;

/// Lists of the classes.
#[derive(Debug)]
pub(crate) struct ClassLists {
    /// Those that packets can have: the strict ones in their order, those with shares, and the one
    /// of frames to no NIC.
    pub(crate) classes: Box<[ClassList]>,
    pub(crate) strict: usize,
    /// Rate of the device: of all classes but the last.
    device: RateTurns,
    /// It was found to close them: until then.
    device_closed_until: Option<Nanos>,
    /// A rest was asked for lately: it has credit for the bytes of others, and its turns stay.
    has_rest: bool,
    /// The visit is one to a rest.
    in_rest: bool,
    /// Bytes that others have sent at the rate of the device meanwhile: as many may leave of the
    /// rest.
    rest_credit: usize,
    /// The first class has no limit of bytes ahead of it.
    pub(crate) has_first: bool,
    /// Place in `classes` of each number of a class.
    place_of: [u8; CLASSES],
    /// Number of the class at each place but the last.
    numbers: Box<[u8]>,
    class_of_priority: [u8; CLASSES],
    /// Class of each slot, as a place.
    pub(crate) class_of: Box<[u8]>,
    /// The class with a share that sent last, as a place.
    turn: usize,
    /// Cost of frames to no NIC beyond that of the others, of [`DEBT_TURNS`] turns at most to either
    /// side.
    local_ahead: i64,
    /// Cost of strict classes that the others have not answered by a seventh part of it, and the
    /// most of it, with which they go first.
    strict_ahead: i64,
    pub(crate) strict_most: i64,
    /// Classes with shares have sent since the last call ended; they did not in the one before.
    has_sent: bool,
    is_stuck: bool,
    /// A storm of pauses has begun or ended, as of the last call with a time.
    pub(crate) has_storm_report: bool,
    pub(crate) turn_cost: u32,
    pub(crate) counters: ClassCounters,
}

impl ClassLists {
    pub(crate) fn new(slots: u32, turn_cost: u32, classes: &TrafficClasses) -> Self {
        let is_used = |class: &u8| classes.class_of_priority.contains(class);
        let is_strict = |class: &u8| classes.config[usize::from(*class)].selection == Selection::Strict;
        let mut order: Vec<u8> = (0..CLASSES as u8).rev().filter(is_used).collect();
        order.sort_by_key(|class| !is_strict(class));
        let mut place_of = [0; CLASSES];
        for (place, class) in (0..).zip(&order) {
            place_of[usize::from(*class)] = place;
        }
        let strict = order.iter().filter(|class| is_strict(class)).count();
        let has_first = strict > 0 && !classes.may_be_paused(order[0]);
        let list = |class: u8, config: ClassConfig| {
            let rate = match classes.rates.classes.get(usize::from(class)) {
                Some(rate) => rate.clone(),
                None => Default::default(),
            };
            rate.set(config.max_rate_kbit_per_s);
            ClassList::new(config.selection, RateTurns::new(rate), classes.watchdog, slots, turn_cost)
        };
        let lists: Vec<_> = order.iter().map(|class| list(*class, classes.config[usize::from(*class)])).collect();
        let local = list(LOCAL, ClassConfig::new(Selection::Strict));
        classes.rates.device.set(classes.max_rate_kbit_per_s);
        Self {
            classes: lists.into_iter().chain([local]).collect(),
            strict,
            device: RateTurns::new(classes.rates.device.clone()),
            device_closed_until: None,
            has_rest: false,
            in_rest: false,
            rest_credit: 0,
            has_first,
            place_of,
            numbers: order.into_boxed_slice(),
            class_of_priority: classes.class_of_priority,
            class_of: vec![0; slots as usize].into_boxed_slice(),
            turn: strict,
            local_ahead: 0,
            strict_ahead: 0,
            strict_most: i64::MAX,
            has_sent: false,
            is_stuck: false,
            has_storm_report: false,
            turn_cost,
            counters: ClassCounters::default(),
        }
    }

    /// Place of the list of frames to no NIC.
    #[inline]
    fn local(&self) -> usize {
        self.classes.len() - 1
    }

    fn place_of(&self, class: u8) -> u8 {
        if class == LOCAL { self.local() as u8 } else { self.place_of[usize::from(class) % CLASSES] }
    }

    pub(crate) fn add(&mut self, slot: u32, owner: FairOwner, class: u8) {
        self.class_of[slot as usize] = self.place_of(class);
        self.of_slot(slot).turns.list.add(slot, owner);
    }

    pub(crate) fn set_class(&mut self, slot: u32, owner: FairOwner, class: u8) {
        if self.class_of[slot as usize] == self.place_of(class) {
            return;
        }
        let list = &mut self.of_slot(slot).turns.list;
        let is_listed = list.is_listed(slot);
        list.forget(slot);
        self.add(slot, owner, class);
        if is_listed {
            self.of_slot(slot).turns.list.push_back(slot);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let (local, nic) = self.classes.split_last().expect("frames to no NIC have a list");
        let is_closed = |class: &ClassList| self.device_closed_until.is_some() || class.closed_until().is_some();
        local.turns.list.is_empty() && nic.iter().all(|class| class.turns.list.is_empty() || is_closed(class))
    }

    pub(crate) fn deadline(&self) -> Nanos {
        let nic = &self.classes[..self.local()];
        let waiting = nic.iter().filter(|class| !class.turns.list.is_empty());
        let until = waiting.filter_map(|class| class.closed_until().max(self.device_closed_until)).min();
        until.unwrap_or(Nanos::NEVER)
    }

    pub(crate) fn closed(&self) -> Places {
        if self.device_closed_until.is_some() {
            return (1 << self.local()) - 1;
        }
        let closed = self.classes.iter().enumerate().filter(|(_, class)| class.closed_until().is_some());
        closed.fold(0, |places, (place, _)| places | 1 << place)
    }

    /// The rate of the device lets none of its frames leave at `now`.
    fn is_device_closed(&mut self, now: Nanos, except: Places) -> bool {
        if !self.device.is_limited() {
            return false;
        }
        let mut nic = self.classes[..self.local()].iter().enumerate();
        if nic.any(|(place, class)| except & 1 << place == 0 && class.turns.has_turn()) {
            self.device_closed_until = Some(self.device.turn_begin(now)).filter(|begin| *begin > now);
        }
        self.device_closed_until.is_some()
    }

    /// Priorities are paused until these times, or not where that has passed: a class until the
    /// last one of its priorities. Frames to no NIC have none.
    pub(crate) fn set_pauses(&mut self, until: &[Nanos; CLASSES]) {
        for (class, number) in self.classes.iter_mut().zip(&self.numbers) {
            let of_class = self.class_of_priority.iter().zip(until).filter(|(class, _)| *class == number);
            class.set_pause(of_class.map(|(_, until)| *until).max().unwrap_or_default());
        }
    }

    /// A storm of pauses that has begun or ended.
    pub(crate) fn take_storm(&mut self) -> Option<PauseStorm> {
        self.has_storm_report = false;
        let mut classes = self.classes.iter_mut().zip(&self.numbers);
        classes.find_map(|(class, number)| class.pause.take_storm().map(|begins| PauseStorm { class: *number, begins }))
    }

    pub(crate) fn on_time(&mut self, now: Nanos) {
        self.has_storm_report = false;
        self.device_closed_until = self.device_closed_until.filter(|until| *until > now);
        for class in &mut self.classes {
            class.on_time(now);
            self.has_storm_report |= class.pause.has_storm_report();
        }
    }

    /// A pause, or the rate of its class or of the device, hold up the rest of a slot. At a rate it
    /// has a turn when no others wait for one, or has as many bytes as others sent while it waited:
    /// whichever is asked first when a turn begins, half of the rate is left to either.
    pub(crate) fn holds_rest(&mut self, now: Nanos, slot: u32) -> bool {
        let (place, local) = (self.place(slot), self.local());
        if place == local {
            return false;
        }
        self.has_rest = true;
        if self.classes[place].pause.closed_until(now).is_some() {
            return true;
        }
        let mut is_held = false;
        if self.classes[place].rate.is_limited() {
            let others_wait = self.has_open(place..place + 1, now);
            let class = &mut self.classes[place];
            let has_turn = !others_wait && class.rate.turn_begin(now) <= now;
            is_held |= !has_turn && class.rest_credit < REST_CREDIT_MIN;
        }
        if self.device.is_limited() {
            let others_wait = self.has_open(0..local, now);
            let has_turn = !others_wait && self.device.turn_begin(now) <= now;
            is_held |= !has_turn && self.rest_credit < REST_CREDIT_MIN;
        }
        is_held
    }

    /// Slots of one of these classes wait, and it is neither paused nor found closed by its rate.
    fn has_open(&mut self, places: core::ops::Range<usize>, now: Nanos) -> bool {
        self.classes[places].iter_mut().any(|class| {
            class.turns.has_turn() && class.closed_until().is_none() && class.pause.closed_until(now).is_none()
        })
    }

    /// A visit to the rest of a slot begins: its frames, at most `most`.
    pub(crate) fn begin_rest(&mut self, slot: u32, most: usize) -> usize {
        self.in_rest = true;
        let place = self.place(slot);
        if place == self.local() { most } else { self.device.frames(self.classes[place].rate.frames(most)) }
    }

    pub(crate) fn end_rest(&mut self) {
        self.in_rest = false;
    }

    /// A slot is removed, which may be that of the rest.
    pub(crate) fn forget_rest(&mut self) {
        self.has_rest = false;
    }

    pub(crate) fn end_call(&mut self) {
        let local = self.local();
        let mut has_more = false;
        for class in &mut self.classes[..local] {
            class.turns.end_call();
            class.end_call(self.has_rest);
            has_more |= !class.turns.list.is_empty();
        }
        self.classes[local].turns.end_call();
        if !has_more && !self.has_rest {
            self.device.release();
        }
        self.is_stuck = !core::mem::take(&mut self.has_sent);
    }

    pub(crate) fn pop(&mut self, now: Nanos, except: Places) -> Option<u32> {
        let local = self.local();
        let has_local = except & 1 << local == 0 && self.classes[local].turns.has_turn();
        if has_local && self.local_ahead <= -i64::from(self.turn_cost) {
            return self.classes[local].turns.list.pop();
        }
        if self.is_device_closed(now, except) {
            return if has_local { self.classes[local].turns.list.pop() } else { None };
        }
        let first = if self.strict_ahead < self.strict_most { self.pop_strict(now, except) } else { None };
        if first.is_some() {
            return first;
        }
        let by_share = if has_local && self.local_ahead <= 0 { None } else { self.pop_by_share(now, except) };
        let next = if by_share.is_none() && has_local { self.classes[local].turns.list.pop() } else { by_share };
        next.or_else(|| self.pop_strict(now, except))
    }

    fn pop_strict(&mut self, now: Nanos, except: Places) -> Option<u32> {
        let strict = self.classes[..self.strict].iter_mut().enumerate();
        let mut ready = strict.filter(|(place, class)| except & 1 << place == 0 && !class.turns.list.is_empty());
        ready.find_map(|(_, class)| if class.is_ready(now) { class.turns.list.pop() } else { None })
    }

    pub(crate) fn charge(&mut self, now: Nanos, slot: u32, cost: u32, nic_bytes: usize) {
        let (place, turn_cost) = (self.place(slot), i64::from(self.turn_cost));
        let (is_local, is_strict) = (place == self.local(), place < self.strict);
        let class = &mut self.classes[place];
        class.turns.list.charge(slot, cost);
        class.on_sent(now, nic_bytes);
        if self.has_rest && !is_local {
            for credit in [&mut class.rest_credit, &mut self.rest_credit] {
                let after = if self.in_rest { credit.saturating_sub(nic_bytes) } else { *credit + nic_bytes };
                *credit = after.min(REST_CREDIT_MAX);
            }
        }
        if !is_local && self.device.is_limited() {
            self.device.on_sent(now, nic_bytes);
        }
        if cost == 0 {
            return;
        }
        class.turns.has_sent = true;
        let (cost, most) = (i64::from(cost), DEBT_TURNS * turn_cost);
        self.local_ahead = (self.local_ahead + if is_local { cost } else { -cost }).clamp(-most, most);
        self.strict_ahead =
            if is_strict { self.strict_ahead.saturating_add(cost) } else { self.strict_ahead - 7 * cost };
        self.strict_ahead = self.strict_ahead.clamp(0, self.strict_most);
        if class.quantum > 0 {
            class.credit = (class.credit - cost).max(-most);
            (self.turn, self.has_sent) = (place, true);
        }
    }

    /// A slot gave these frames to the NIC.
    #[inline]
    pub(crate) fn count_sent(&mut self, slot: u32, frames: usize, bytes: usize) {
        if let Some(class) = self.numbers.get(self.place(slot)) {
            self.counters.on_sent(*class, frames, bytes);
        }
    }

    pub(crate) fn frames(&self, slot: u32) -> usize {
        let place = self.place(slot);
        let class = &self.classes[place];
        let most = class.rate.frames(class.frames);
        let most = if place == self.local() { most } else { self.device.frames(most) };
        if class.quantum == 0 {
            return most;
        }
        most.min((class.credit.max(0) / i64::from(FULL_FRAME_COST)) as usize + 1)
    }

    /// Each class has its quantum in each round: also one with slots that are held, because the
    /// others must not send in its place as long as the wire takes frames at all.
    fn pop_by_share(&mut self, now: Nanos, except: Places) -> Option<u32> {
        let waits = !self.is_stuck || self.has_sent;
        let local = self.local();
        let sharing = &mut self.classes[self.strict..local];
        let (mut ready, mut active, mut turns) = (0_u8, 0_u8, i64::MAX);
        for (index, class) in sharing.iter_mut().enumerate() {
            if except & 1 << (self.strict + index) != 0 {
                continue;
            } else if class.is_ready(now) {
                ready |= 1 << index;
            } else if class.turns.held_count == 0 || !waits {
                continue;
            }
            active |= 1 << index;
            turns = turns.min(class.turns_to_credit());
        }
        if ready == 0 {
            return None;
        }
        for (index, class) in sharing.iter_mut().enumerate() {
            if turns > 0 && active & 1 << index != 0 {
                class.credit += turns * class.quantum;
            }
        }
        let first = self.turn - self.strict;
        let mut indices = (first..sharing.len()).chain(0..first);
        let index = indices.find(|index| ready & 1 << index != 0 && sharing[*index].credit > 0)?;
        sharing[index].turns.list.pop()
    }

    /// Place of the class of a slot.
    #[inline]
    pub(crate) fn place(&self, slot: u32) -> usize {
        usize::from(self.class_of[slot as usize])
    }

    #[inline]
    pub(crate) fn of_slot(&mut self, slot: u32) -> &mut ClassList {
        let place = self.place(slot);
        &mut self.classes[place]
    }
}
