//! Order of visits: queue pairs with possible work in their rings, taken fairly between sessions
//! and, within one, between queue pairs.
//!
//! ```text
//!   sessions   B ─► A ─► C        the first one gives one queue pair, then goes to the end
//!              │    └─► q7
//!              └─► q1 ─► q9 ─► q4
//! ```
//!
//! The lists run through tables; each queue pair stands in at most one place.

use roced_transport::table::Table;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Member {
    next: u32,
    previous: u32,
    group: u32,
    listed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    first: u32,
    last: u32,
    next: u32,
    listed: bool,
}

/// Members (queue pairs) of groups (sessions) that wait for a visit, each by its number.
#[derive(Debug)]
pub struct ReadyList {
    members: Table<Member>,
    groups: Box<[Group]>,
    first: u32,
    last: u32,
}

impl ReadyList {
    /// Room for members and groups below these numbers; none is waiting.
    pub fn new(members: u32, groups: u32) -> Self {
        Self {
            members: Table::new(members),
            groups: vec![Group { first: NONE, last: NONE, next: NONE, listed: false }; groups as usize]
                .into_boxed_slice(),
            first: NONE,
            last: NONE,
        }
    }

    /// Adds `member`, with a number below the one given to [`Self::new`].
    pub fn add(&mut self, member: u32) {
        let _ = self.members.insert(member, Member { next: NONE, previous: NONE, group: NONE, listed: false });
    }

    fn member(&mut self, member: u32) -> &mut Member {
        self.members.get_mut(member).expect("a member that was added")
    }

    /// Puts `member` of `group` at the end of its group, unless it waits already.
    ///
    /// # Panics
    /// When the member was never added, or the group's number is not below the one given to
    /// [`Self::new`].
    pub fn push(&mut self, member: u32, group: u32) {
        if self.member(member).listed {
            return;
        }
        let list = &mut self.groups[group as usize];
        let previous = list.last;
        if list.first == NONE {
            list.first = member;
        } else {
            self.members.get_mut(list.last).expect("it waits").next = member;
        }
        list.last = member;
        *self.member(member) = Member { next: NONE, previous, group, listed: true };
        self.list_group(group);
    }

    /// The next member to visit; it does not wait any more.
    pub fn pop(&mut self) -> Option<u32> {
        while self.first != NONE {
            let group = self.first;
            let list = &mut self.groups[group as usize];
            self.first = list.next;
            if self.first == NONE {
                self.last = NONE;
            }
            list.listed = false;
            let member = list.first;
            // A group with all members removed.
            if member == NONE {
                continue;
            }
            let place = self.members.get_mut(member).expect("it waits");
            place.listed = false;
            list.first = place.next;
            if list.first == NONE {
                list.last = NONE;
            } else {
                self.members.get_mut(list.first).expect("it waits").previous = NONE;
                self.list_group(group);
            }
            return Some(member);
        }
        None
    }

    /// Forgets `member`, wherever it waits.
    pub fn remove(&mut self, member: u32) {
        let Some(Member { next, previous, group, listed: true }) = self.members.remove(member) else { return };
        match previous {
            NONE => self.groups[group as usize].first = next,
            previous => self.member(previous).next = next,
        }
        match next {
            NONE => self.groups[group as usize].last = previous,
            next => self.member(next).previous = previous,
        }
    }

    /// True if no member waits. May be false if only groups without members wait.
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    fn list_group(&mut self, group: u32) {
        let list = &mut self.groups[group as usize];
        if list.listed {
            return;
        }
        list.listed = true;
        list.next = NONE;
        if self.first == NONE {
            self.first = group;
        } else {
            self.groups[self.last as usize].next = group;
        }
        self.last = group;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_session_with_many_queue_pairs_gets_no_more_turns_than_one_with_few() {
        let mut ready = ReadyList::new(8, 2);
        (0..8).for_each(|member| ready.add(member));
        for member in 0..5 {
            ready.push(member, 0);
        }
        ready.push(7, 1);
        assert_eq!(ready.pop(), Some(0));
        assert_eq!(ready.pop(), Some(7));
        ready.push(7, 1);
        assert_eq!((ready.pop(), ready.pop(), ready.pop()), (Some(1), Some(7), Some(2)));
        ready.push(3, 0);
        assert_eq!((ready.pop(), ready.pop(), ready.pop()), (Some(3), Some(4), None));
    }

    proptest! {
        /// Against queues of queues: members 0..12 in groups member % 3.
        #[test]
        fn the_list_is_a_queue_of_queues(steps in proptest::collection::vec((0u8..4, 0u32..12), 1..200)) {
            let mut ready = ReadyList::new(12, 3);
            (0..12).for_each(|member| ready.add(member));
            let mut order: VecDeque<u32> = VecDeque::new();
            let mut groups = [const { VecDeque::<u32>::new() }; 3];
            for (step, member) in steps {
                let group = (member % 3) as usize;
                match step {
                    0 | 1 => {
                        ready.push(member, member % 3);
                        if !groups[group].contains(&member) {
                            groups[group].push_back(member);
                            if !order.contains(&(group as u32)) {
                                order.push_back(group as u32);
                            }
                        }
                    }
                    2 => {
                        let expected = loop {
                            let Some(group) = order.pop_front() else { break None };
                            let queue = &mut groups[group as usize];
                            let Some(member) = queue.pop_front() else { continue };
                            if !queue.is_empty() {
                                order.push_back(group);
                            }
                            break Some(member);
                        };
                        prop_assert_eq!(ready.pop(), expected);
                    }
                    _ => {
                        ready.remove(member);
                        ready.add(member);
                        groups[group].retain(|other| *other != member);
                    }
                }
            }
            prop_assert_eq!(ready.is_empty(), order.is_empty());
        }
    }
}
