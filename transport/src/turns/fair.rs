//! Fair order of turns: accounts, the clients of an account, and the slots of a client.
//!
//! ```text
//!   account 1000 ─► account 0 ─► account 1001          turns by cost, for any number of
//!        │              └─► client 7 ─► slot 3          clients and slots
//!        ├─► client 4 ─► slot 9 ─► slot 2 ─► slot 5
//!        └─► client 6 ─► slot 1
//! ```
//!
//! Deficit round robin (Shreedhar and Varghese, 1995) on two levels: accounts, each by its weight,
//! and clients have a credit, a served slot is charged to both, and one without credit goes to the
//! end of its list with a new quantum. The credit may become negative: a turn is charged at
//! its end, when its cost is known. Slots of a client have their turns one after the other, so that
//! with one client the order is that of a queue.
//!
//! Every operation takes constant time, that of [`FairList::pop`] on average: an account that has
//! used many quanta in a turn goes around as many times, `DEBT_QUANTA` at most. Accounts and
//! clients without listed slots keep their place until they are the first: most are soon listed
//! again. All memory is allocated by [`FairList::new`], and used when it is first written.

use alloc::{boxed::Box, vec, vec::Vec};

use roced_types::{AccountId, SessionId};

/// Owner of an object that takes turns: its client, the client's account, and the weight of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairOwner {
    /// Account of the client: shares are by account first.
    pub account: AccountId,
    /// Client: a session.
    pub client: SessionId,
    /// Turns of the account for each turn of one with weight 1, at least 1.
    pub weight: u8,
}

impl Default for FairOwner {
    fn default() -> Self {
        Self { account: AccountId::default(), client: SessionId::default(), weight: 1 }
    }
}

/// Neighbors of a node in its ring, by [`NEXT`] and [`PREVIOUS`]; 0 when it is in none.
type RingNode = [u32; 2];
const NEXT: usize = 0;
const PREVIOUS: usize = 1;

/// Quanta that a client or account may be charged in advance: as many times it goes around until
/// it has a turn again. A turn has a few.
const DEBT_QUANTA: i64 = 16;

/// The group of all accounts.
const ALL: u32 = 0;

/// An account, or a client of one.
#[derive(Clone, Copy, Debug)]
struct FairGroup {
    /// Number of the account or the client.
    number: u32,
    /// Number of the group that it belongs to: [`ALL`], or an account.
    parent: u32,
    /// Slots or groups that belong to it, listed or not. Without any its place is free.
    members: u32,
    /// Cost that it may have until its turn ends.
    credit: i64,
    /// Cost of a turn.
    quantum: i64,
}

/// Slots that wait for their turns, each at most once.
#[derive(Debug)]
pub struct FairList {
    /// By node: slots from 1 on, and behind them two for each group, its own and the ends of the
    /// ring of its members. Zeros that are never written cost no memory.
    ring: Box<[RingNode]>,
    groups: Vec<FairGroup>,
    /// Client of each slot, as a group; 0 for slots without owner.
    client_of: Box<[u32]>,
    listed: u32,
    quantum: i64,
}

impl FairList {
    /// An empty list for the slots below `slots`, none of which has an owner. An account that is
    /// charged `quantum` gives way to the next.
    pub fn new(slots: u32, quantum: u32) -> Self {
        // Each account and each client has a slot.
        let nodes = 1 + slots as usize + 2 * (1 + 2 * slots as usize);
        let mut list = Self {
            ring: vec![[0; 2]; nodes].into_boxed_slice(),
            groups: Vec::with_capacity(1 + 2 * slots as usize),
            client_of: vec![0; slots as usize].into_boxed_slice(),
            listed: 0,
            quantum: i64::from(quantum.max(1)),
        };
        list.make_group(0, ALL);
        list
    }

    /// Gives a slot to an owner.
    ///
    /// # Panics
    /// When the slot is not below the number given to [`Self::new`], or has one.
    pub fn add(&mut self, slot: u32, owner: FairOwner) {
        assert!(self.client_of[slot as usize] == 0, "a slot has one owner");
        let account = self.group(owner.account.0, ALL);
        self.groups[account as usize].quantum = self.quantum * i64::from(owner.weight.max(1));
        let client = self.group(owner.client.0, account);
        self.groups[client as usize].members += 1;
        self.client_of[slot as usize] = client;
    }

    /// Takes a slot out of the list, and its owner from it.
    pub fn forget(&mut self, slot: u32) {
        self.remove(slot);
        let mut group = core::mem::take(&mut self.client_of[slot as usize]);
        while group != ALL {
            let FairGroup { parent, members, .. } = &mut self.groups[group as usize];
            *members -= 1;
            if *members > 0 {
                return;
            }
            let parent = *parent;
            let own = self.own(group);
            if self.is_in_ring(own) {
                self.unlink(own);
            }
            group = parent;
        }
    }

    /// No slot is listed.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Lists a slot as the last of its client, unless it is listed.
    ///
    /// # Panics
    /// When it has no owner.
    #[inline]
    pub fn push_back(&mut self, slot: u32) {
        let client = self.client_of[slot as usize];
        if self.is_in_ring(slot + 1) {
            return;
        }
        assert!(client != ALL, "a listed slot has an owner");
        let ends = self.ends(client);
        self.link(slot + 1, self.ring[ends as usize][PREVIOUS]);
        self.listed += 1;
        if !self.is_in_ring(ends - 1) {
            self.list_group(client);
        }
    }

    /// Lists a slot that was taken out and had no turn: as the first of all.
    ///
    /// # Panics
    /// As [`Self::push_back`].
    pub fn push_front(&mut self, slot: u32) {
        let mut group = self.client_of[slot as usize];
        if self.is_in_ring(slot + 1) {
            return;
        }
        assert!(group != ALL, "a listed slot has an owner");
        self.link(slot + 1, self.ends(group));
        self.listed += 1;
        // Their credit is that of the turn that they had not.
        while group != ALL && !self.is_in_ring(self.own(group)) {
            let parent = self.groups[group as usize].parent;
            self.link(self.own(group), self.ends(parent));
            group = parent;
        }
    }

    /// The slot waits for its turn.
    pub fn is_listed(&self, slot: u32) -> bool {
        self.is_in_ring(slot + 1)
    }

    /// Takes a slot out, if it is listed.
    pub fn remove(&mut self, slot: u32) {
        if self.is_in_ring(slot + 1) {
            self.unlink(slot + 1);
            self.listed -= 1;
        }
    }

    /// Takes out the slot that has its turn. Its cost is passed to [`Self::charge`].
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.listed == 0 {
            return None;
        }
        loop {
            let Some(account) = self.turn_of(ALL) else { continue };
            let Some(client) = self.turn_of(account) else { continue };
            let slot = self.first(client);
            self.unlink(slot);
            self.listed -= 1;
            return Some(slot - 1);
        }
    }

    /// Charges `cost` to the client and the account of `slot`, after its turn. A debt is limited to
    /// `DEBT_QUANTA` quanta.
    #[inline]
    pub fn charge(&mut self, slot: u32, cost: u32) {
        let client = self.client_of[slot as usize];
        let least = -DEBT_QUANTA * self.quantum;
        let FairGroup { parent, credit, .. } = &mut self.groups[client as usize];
        *credit = (*credit - i64::from(cost)).max(least);
        let account = *parent as usize;
        let credit = &mut self.groups[account].credit;
        *credit = (*credit - i64::from(cost)).max(least);
    }

    /// Moves the account that has its turn, and its client that has its turn, behind the others. Both
    /// keep their credit.
    pub fn pass(&mut self) {
        let account = self.first(ALL);
        if account == self.ends(ALL) {
            return;
        }
        let client = self.first(self.group_of(account));
        self.go_last(account, ALL);
        if client != self.ends(self.group_of(account)) {
            self.go_last(client, self.group_of(account));
        }
    }

    /// The first of a group's groups, if it has members and credit; else it loses its place.
    #[inline]
    fn turn_of(&mut self, parent: u32) -> Option<u32> {
        let own = self.first(parent);
        let group = self.group_of(own);
        if self.first(group) == self.ends(group) {
            self.unlink(own);
            return None;
        }
        let FairGroup { credit, quantum, .. } = &mut self.groups[group as usize];
        if *credit <= 0 {
            *credit += *quantum;
            self.go_last(own, parent);
            return None;
        }
        Some(group)
    }

    /// Lists a client and its account, with a credit of one turn at most.
    fn list_group(&mut self, client: u32) {
        let mut group = client;
        while group != ALL && !self.is_in_ring(self.own(group)) {
            let FairGroup { parent, credit, quantum, .. } = &mut self.groups[group as usize];
            *credit = (*credit).min(0) + *quantum;
            let parent = *parent;
            self.link(self.own(group), self.ring[self.ends(parent) as usize][PREVIOUS]);
            group = parent;
        }
    }

    /// The group with this number in `parent`, made if there is none. Walks all groups.
    fn group(&mut self, number: u32, parent: u32) -> u32 {
        let is_it = |group: &FairGroup| group.members > 0 && group.parent == parent && group.number == number;
        let groups = &self.groups[1..];
        match groups.iter().position(is_it) {
            Some(at) => at as u32 + 1,
            None => {
                if parent != ALL {
                    self.groups[parent as usize].members += 1;
                }
                self.make_group(number, parent)
            }
        }
    }

    fn make_group(&mut self, number: u32, parent: u32) -> u32 {
        let new = FairGroup { number, parent, members: 0, credit: 0, quantum: self.quantum };
        let free = self.groups.iter().skip(1).position(|group| group.members == 0);
        let group = free.map_or(self.groups.len(), |at| at + 1);
        match self.groups.get_mut(group) {
            Some(place) => *place = new,
            None => self.groups.push(new),
        }
        let ends = self.ends(group as u32);
        self.ring[ends as usize] = [ends; 2];
        group as u32
    }

    /// Node of a group in the ring of its parent.
    #[inline]
    const fn own(&self, group: u32) -> u32 {
        self.client_of.len() as u32 + 1 + 2 * group
    }

    /// Node between the last member of a group and the first.
    #[inline]
    const fn ends(&self, group: u32) -> u32 {
        self.own(group) + 1
    }

    #[inline]
    const fn group_of(&self, own: u32) -> u32 {
        (own - 1 - self.client_of.len() as u32) / 2
    }

    /// Node of the first member of a group; its ends when there is none.
    #[inline]
    fn first(&self, group: u32) -> u32 {
        self.ring[self.ends(group) as usize][NEXT]
    }

    #[inline]
    fn is_in_ring(&self, node: u32) -> bool {
        self.ring[node as usize][NEXT] != 0
    }

    fn go_last(&mut self, node: u32, parent: u32) {
        self.unlink(node);
        self.link(node, self.ring[self.ends(parent) as usize][PREVIOUS]);
    }

    #[inline]
    fn link(&mut self, node: u32, previous: u32) {
        let next = self.ring[previous as usize][NEXT];
        self.ring[node as usize] = [next, previous];
        self.ring[previous as usize][NEXT] = node;
        self.ring[next as usize][PREVIOUS] = node;
    }

    #[inline]
    fn unlink(&mut self, node: u32) {
        let [next, previous] = core::mem::take(&mut self.ring[node as usize]);
        self.ring[previous as usize][NEXT] = next;
        self.ring[next as usize][PREVIOUS] = previous;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{collections::VecDeque, vec::Vec};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    const QUANTUM: u32 = 18_000;

    fn owner(account: u32, client: u32) -> FairOwner {
        FairOwner { account: AccountId(account), client: SessionId(client), weight: 1 }
    }

    /// Slots of these owners, all of them listed.
    fn listed(owners: &[(u32, u32)]) -> FairList {
        let mut list = FairList::new(owners.len() as u32, QUANTUM);
        for (slot, (account, client)) in (0..).zip(owners) {
            list.add(slot, owner(*account, *client));
            list.push_back(slot);
        }
        list
    }

    /// Serves `turns` slots, each of which has more to do; returns the cost of each slot.
    fn serve(list: &mut FairList, slots: usize, turns: usize, mut cost: impl FnMut(u32) -> u32) -> Vec<u64> {
        let mut costs = std::vec![0; slots];
        for _ in 0..turns {
            let slot = list.pop().expect("all have more to do");
            let cost = cost(slot);
            list.push_back(slot);
            list.charge(slot, cost);
            costs[slot as usize] += u64::from(cost);
        }
        costs
    }

    #[test]
    fn an_account_with_many_clients_and_slots_has_no_more_than_one_with_one() {
        let mut owners: Vec<_> = (0..256).map(|slot| (1, slot % 7)).collect();
        owners.push((2, 100));
        let mut list = listed(&owners);
        let costs = serve(&mut list, 257, 10_000, |_| 70_000);
        let all: u64 = costs.iter().sum();
        assert!(costs[256] * 100 / all >= 49, "{} of {all}", costs[256]);
    }

    #[test]
    fn an_account_has_turns_by_its_weight() {
        let mut list = FairList::new(3, QUANTUM);
        for (slot, weight) in [(0, 1), (1, 4), (2, 4)] {
            list.add(slot, FairOwner { weight, ..owner(slot.min(1), slot) });
            list.push_back(slot);
        }
        let costs = serve(&mut list, 3, 30_000, |slot| 5_000 + 20_000 * slot);
        let of_four = (costs[1] + costs[2]) as f64 / costs[0] as f64;
        assert!((3.8..4.2).contains(&of_four), "{costs:?}");
        assert!(costs[1].abs_diff(costs[2]) * 20 < costs[1], "clients of an account are equal: {costs:?}");
    }

    /// The previous order: with one client the list is a queue.
    #[test]
    fn slots_of_one_client_have_their_turns_in_order_of_arrival() {
        let mut list = listed(&[(1, 1); 5]);
        let costs = serve(&mut list, 5, 1000, |slot| 1 << (4 * slot));
        assert_eq!(costs, [200, 200 << 4, 200 << 8, 200 << 12, 200 << 16]);
    }

    #[test]
    fn a_slot_without_its_turn_is_first_again() {
        let mut list = listed(&[(1, 1), (2, 2), (1, 1), (3, 3)]);
        assert_eq!((list.pop(), list.pop()), (Some(0), Some(2)));
        [2, 0].into_iter().for_each(|slot| list.push_front(slot));
        assert_eq!([(); 3].map(|()| list.pop()), [Some(0), Some(2), Some(1)]);
        list.push_front(1);
        assert_eq!([(); 3].map(|()| list.pop()), [Some(1), Some(3), None]);
    }

    #[test]
    fn an_account_passes_its_turn() {
        let mut list = listed(&[(1, 1), (1, 2), (2, 3)]);
        list.pass();
        assert_eq!(list.pop(), Some(2));
        list.push_back(2);
        list.pass();
        assert_eq!(list.pop(), Some(1), "the other client of the account that passed");
    }

    /// A slot that goes idle after each turn comes back with the debt that it had.
    #[test]
    fn debts_are_not_forgotten_by_going_idle() {
        let mut list = listed(&[(1, 1), (2, 2)]);
        let mut costs = [0u64; 2];
        let mut waits = false;
        for _ in 0..10_000 {
            if waits {
                list.push_back(0);
            }
            let slot = list.pop().expect("the second always has work");
            let cost = if slot == 0 { 72_000 } else { 5_000 };
            waits = slot == 0;
            if !waits {
                list.push_back(slot);
            }
            list.charge(slot, cost);
            costs[slot as usize] += u64::from(cost);
        }
        assert!(costs[0] <= costs[1] * 21 / 20, "{costs:?}");
    }

    /// However much a slot was charged outside of its turns.
    #[test]
    fn debts_are_bounded() {
        for owners in [[(1, 1), (2, 2)], [(1, 1), (1, 2)]] {
            let mut list = listed(&owners);
            (0..100).for_each(|_| list.charge(0, 100 * QUANTUM));
            let costs = serve(&mut list, 2, 40, |_| QUANTUM);
            assert!(costs[0] > 0, "{costs:?} of {owners:?}");
            assert!(costs[1] >= 16 * u64::from(QUANTUM), "{costs:?} of {owners:?}");
        }
    }

    proptest! {
        /// Accounts with any numbers of clients and slots, which cost anything.
        #[test]
        fn shares_by_cost_are_equal(
            owners in vec((0u32..4, 0u32..3), 2..24),
            costs in vec(600u32..75_000, 24),
        ) {
            let mut list = listed(&owners);
            let served = serve(&mut list, owners.len(), 40_000, |slot| costs[slot as usize]);
            let sums = |of: &dyn Fn(u32, u32) -> Option<u32>| {
                let mut sums = std::collections::BTreeMap::<u32, u64>::new();
                for ((account, client), cost) in owners.iter().zip(&served) {
                    if let Some(key) = of(*account, *client) {
                        *sums.entry(key).or_default() += cost;
                    }
                }
                sums.into_values().collect::<Vec<_>>()
            };
            let mut levels = std::vec![sums(&|account, _| Some(account))];
            levels.extend((0..4).map(|of| sums(&move |account, client| (account == of).then_some(client))));
            for shares in levels {
                let (least, most) = (shares.iter().min(), shares.iter().max());
                if let (Some(least), Some(most)) = (least, most) {
                    prop_assert!((most - least) * 20 <= *most, "{shares:?}");
                }
            }
        }

        /// However many slots others have, a listed one of another account has its turn after a
        /// bounded cost of each of the others.
        #[test]
        fn none_starves(
            others in vec((1u32..5, 0u32..3), 1..40),
            costs in vec(1u32..75_000, 40),
            warm in 0usize..200,
        ) {
            let mut owners = others.clone();
            owners.push((9, 9));
            let mut list = listed(&owners);
            let last = others.len() as u32;
            list.remove(last);
            let cost = |slot: u32| costs.get(slot as usize).copied().unwrap_or(600);
            serve(&mut list, owners.len(), warm, cost);
            list.push_back(last);
            let mut waited = 0u64;
            loop {
                let slot = list.pop().expect("it is listed");
                if slot == last {
                    break;
                }
                list.push_back(slot);
                list.charge(slot, cost(slot));
                waited += u64::from(cost(slot));
                prop_assert!(waited <= 4 * u64::from(QUANTUM + 75_000), "{waited}");
            }
        }

        /// Against a plain queue for each client: each listed slot has its turn once, after those
        /// of its client that were listed before.
        #[test]
        fn slots_come_and_go(steps in vec((0u8..7, 0u32..8), 1..300)) {
            let client_of = |slot: u32, life: u32| (slot + life) % 3;
            let mut list = FairList::new(8, QUANTUM);
            let mut lives = [0u32; 8];
            let mut queues = [const { VecDeque::<u32>::new() }; 3];
            let at = |slot: u32, lives: &[u32; 8]| client_of(slot, lives[slot as usize]);
            let place = |client: u32| owner(client % 2, client);
            (0..8).for_each(|slot| list.add(slot, place(client_of(slot, 0))));
            for (step, slot) in steps {
                let client = at(slot, &lives) as usize;
                let is_listed = queues[client].contains(&slot);
                match step {
                    0 | 1 => {
                        list.push_back(slot);
                        if !is_listed {
                            queues[client].push_back(slot);
                        }
                    }
                    2 => {
                        list.push_front(slot);
                        if !is_listed {
                            queues[client].push_front(slot);
                        }
                    }
                    3 => {
                        list.remove(slot);
                        queues[client].retain(|other| *other != slot);
                    }
                    4 => {
                        list.forget(slot);
                        queues[client].retain(|other| *other != slot);
                        lives[slot as usize] += 1;
                        list.add(slot, place(at(slot, &lives)));
                    }
                    5 => list.pass(),
                    _ => match list.pop() {
                        Some(popped) => {
                            list.charge(popped, 10_000);
                            prop_assert_eq!(queues[at(popped, &lives) as usize].pop_front(), Some(popped));
                        }
                        None => prop_assert!(queues.iter().all(VecDeque::is_empty)),
                    },
                }
                prop_assert_eq!(list.is_empty(), queues.iter().all(VecDeque::is_empty));
            }
        }
    }
}
