//! Numbers that clients get: of objects, of queue pairs, and keys that nobody can guess.

use std::collections::BTreeSet;

use roced_shared::ids::{EndpointId, Qpn};
use roced_transport::mr::MrKey;

/// Numbers of one kind of object, each in use once in the daemon. They come in order, so that a number that a client kept too
/// long names nothing for a long time.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    last: u32,
    used: BTreeSet<u32>,
}

impl Numbers {
    /// A number, never 0.
    pub(crate) fn take(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if self.used.insert(self.last) {
                return self.last;
            }
        }
    }

    /// Gives a number back.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.used.remove(&number);
    }
}

/// Numbers from 1 up to a limit, handed out in order, so that one that a client kept too long names nothing for as long as possible.
#[derive(Debug)]
pub(crate) struct Places {
    limit: u32,
    last: u32,
    used: BTreeSet<u32>,
}

impl Places {
    /// The numbers up to `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, last: 0, used: BTreeSet::new() }
    }

    /// A free number; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = (self.last + 1..=self.limit).chain(1..=self.last).find(|number| !self.used.contains(number))?;
        self.used.insert(number);
        self.last = number;
        Some(number)
    }

    /// Gives a number back.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.used.remove(&number);
    }
}

/// The keys of one device's memory regions.
#[derive(Debug, Default)]
pub(crate) struct MrKeys {
    /// Upper 24 bits of the keys in use.
    used: BTreeSet<u32>,
}

impl MrKeys {
    /// A random key whose index is free; `random` gives random bits. `None` when it gave none in many tries: no random bits, or
    /// nearly all indices in use.
    pub(crate) fn take(&mut self, mut random: impl FnMut() -> Option<u32>) -> Option<MrKey> {
        for _ in 0..256 {
            let key = random()?;
            // Index 0 stays free, so that 0 is no key.
            if key >> 8 != 0 && self.used.insert(key >> 8) {
                return Some(MrKey(key));
            }
        }
        None
    }

    pub(crate) fn give_back(&mut self, key: MrKey) {
        self.used.remove(&(key.0 >> 8));
    }
}

/// The queue pair numbers of one endpoint: random ones, but no more than twice as far apart as they must be, for the memory of an
/// endpoint's tables comes by segments.
#[derive(Debug)]
pub(crate) struct Qpns {
    endpoint: EndpointId,
    capacity: u32,
    /// They are below this.
    opened: u32,
    used: BTreeSet<u32>,
}

impl Qpns {
    /// Numbers to choose from when none is in use.
    const FIRST: u32 = 1024;

    /// Of an endpoint with room for `capacity` queue pairs.
    pub(crate) fn new(endpoint: EndpointId, capacity: u32) -> Self {
        let capacity = capacity.min(Qpn::INDEX_COUNT);
        Self { endpoint, capacity, opened: Self::FIRST.min(capacity), used: BTreeSet::new() }
    }

    /// Queue pairs in use.
    pub(crate) fn len(&self) -> usize {
        self.used.len()
    }

    /// A free number, the first from a random place on; `None` when all are in use.
    pub(crate) fn take(&mut self, random: u32) -> Option<Qpn> {
        if self.used.len() as u32 >= self.opened / 2 {
            self.opened = (self.opened * 2).min(self.capacity);
        }
        let start = random.checked_rem(self.opened)?;
        let index = (start..self.opened)
            .chain(0..start)
            .find(|index| !self.used.contains(index) && !Qpn::new(self.endpoint, *index).is_reserved())?;
        self.used.insert(index);
        Some(Qpn::new(self.endpoint, index))
    }

    pub(crate) fn give_back(&mut self, qpn: Qpn) {
        self.used.remove(&qpn.index());
    }
}

/// A session's bells on one worker.
#[derive(Debug)]
pub(crate) struct BellBoard {
    used: [u64; 64],
}

impl Default for BellBoard {
    fn default() -> Self {
        Self { used: [0; 64] }
    }
}

impl BellBoard {
    /// The first free bell.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        let bit = self.used[word].trailing_ones();
        self.used[word] |= 1 << bit;
        Some(word as u32 * 64 + bit)
    }

    pub(crate) fn give_back(&mut self, bell: u32) {
        self.used[bell as usize / 64] &= !(1 << (bell % 64));
    }
}

/// Random bits of the kernel.
pub(crate) fn random() -> Option<u32> {
    getrandom::u32().ok()
}

#[cfg(test)]
mod tests {
    use roced_shared::abi::doorbell::BELLS;

    use super::*;

    #[test]
    fn a_place_is_taken_again_as_late_as_can_be() {
        let mut places = Places::new(3);
        assert_eq!([(); 4].map(|()| places.take()), [Some(1), Some(2), Some(3), None]);
        places.give_back(3);
        places.give_back(1);
        assert_eq!((places.take(), places.take(), places.take()), (Some(1), Some(3), None));
    }

    #[test]
    fn a_key_has_an_index_of_its_own_that_is_not_0() {
        let mut keys = MrKeys::default();
        let mut bits = [0x0000_00ff, 0x1234_5601, 0x1234_5602, 0xabcd_ef00].into_iter();
        assert_eq!(keys.take(|| bits.next()), Some(MrKey(0x1234_5601)), "index 0 is skipped");
        assert_eq!(keys.take(|| bits.next()), Some(MrKey(0xabcd_ef00)), "an index in use is skipped");
        keys.give_back(MrKey(0x1234_5601));
        assert_eq!(keys.take(|| Some(0x1234_5677)), Some(MrKey(0x1234_5677)));
        assert_eq!(keys.take(|| Some(0x1234_5678)), None, "never another one, never for ever");
        assert_eq!(keys.take(|| None), None);
    }

    #[test]
    fn reserved_numbers_are_never_given() {
        let mut first = Qpns::new(EndpointId::new(0).expect("the first"), 4);
        let given: BTreeSet<_> = (0..).map_while(|_| first.take(0)).map(Qpn::get).collect();
        assert_eq!(given, [2, 3].into());
        let mut last = Qpns::new(EndpointId::new(63).expect("the last"), u32::MAX);
        last.opened = Qpn::INDEX_COUNT;
        assert_eq!(last.take(Qpn::INDEX_COUNT - 1).map(Qpn::index), Some(0), "the multicast number is skipped");
    }

    #[test]
    fn a_full_endpoint_has_room_again_when_a_queue_pair_goes() {
        let mut qpns = Qpns::new(EndpointId::new(5).expect("below 64"), 2);
        let (a, b) = (qpns.take(7).expect("room"), qpns.take(7).expect("room"));
        assert_eq!((a.index(), b.index(), qpns.take(7), qpns.len()), (1, 0, None, 2));
        qpns.give_back(a);
        assert_eq!(qpns.take(0), Some(a));
        assert_eq!(Qpns::new(EndpointId::new(5).expect("below 64"), 0).take(7), None);
    }

    #[test]
    fn bells_run_out_and_come_back() {
        let mut board = BellBoard::default();
        assert!((0..BELLS).all(|bell| board.take() == Some(bell)));
        assert_eq!(board.take(), None);
        board.give_back(1234);
        assert_eq!(board.take(), Some(1234));
    }

    /// In segments of 256 there are then never more than four times the places that are used, plus those of the first numbers.
    #[test]
    fn queue_pair_numbers_stay_close_together() {
        let mut qpns = Qpns::new(EndpointId::new(3).expect("an endpoint"), Qpn::INDEX_COUNT);
        let mut random = 1u32;
        for used in 0..20_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let qpn = qpns.take(random >> 3).expect("a free number");
            assert!(qpn.index() < (4 * used).max(1024), "{qpn} of {used}");
        }
        assert_eq!(qpns.len(), 20_000);
    }

    #[test]
    fn numbers_wrap_past_those_in_use() {
        let mut numbers = Numbers { last: u32::MAX - 1, used: [1].into() };
        assert_eq!((numbers.take(), numbers.take()), (u32::MAX, 2));
        numbers.give_back(2);
    }
}
