//! Numbers given to clients: of objects, of queue pairs, and unpredictable keys.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use roced_transport::mr::MrKey;
use roced_types::{EndpointId, EndpointIds, Qpn};

/// Numbers of one kind of object, each in use once in the daemon. They come in order, so that a
/// number that a client kept too long names nothing for a long time.
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

/// Numbers from 1 up to a limit, handed out in order, so that one that a client kept too long names
/// nothing for as long as possible.
#[derive(Debug)]
pub(crate) struct NumberPool {
    limit: u32,
    last: u32,
    used: BTreeSet<u32>,
}

impl NumberPool {
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
    /// A random key with a free index; `random` returns random bits. `None` if many tries gave
    /// none: no random bits, or nearly all indices in use.
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

/// The queue pair numbers of one endpoint: random ones of the whole index space, each with one of
/// the endpoint's own numbers at random. One that is given back rests before it is handed out
/// again, so that packets of the queue pair that had it are gone from the network; a program that
/// connects again at once has another number.
#[derive(Debug)]
pub(crate) struct Qpns {
    ids: EndpointIds,
    /// Indices are below this.
    indices: u32,
    capacity: u32,
    used: u32,
    /// A bit for each index: in use, resting or reserved.
    taken: Box<[u64]>,
    /// Indices that were given back, and when, the oldest first.
    resting: VecDeque<(Instant, u32)>,
}

impl Qpns {
    /// How long a number rests. More than packets live in a network (IBTA v1 12.9.8.4.1 has a
    /// connection wait twice a packet's lifetime and the ACK delay in TimeWait; within a data
    /// center these are milliseconds).
    const REST: Duration = Duration::from_secs(2);

    /// `capacity` numbers at a time, with indices below `indices`.
    pub(crate) fn new(ids: impl Into<EndpointIds>, indices: u32, capacity: u32) -> Self {
        let ids = ids.into();
        let indices = indices.min(Qpn::INDEX_COUNT);
        let mut taken = vec![0; indices.div_ceil(u64::BITS) as usize].into_boxed_slice();
        let beyond = indices..taken.len() as u32 * u64::BITS;
        // Reserved numbers are the first ones and the last.
        let ends = (0..indices.min(2)).chain(indices.saturating_sub(1)..indices);
        let is_reserved = |index: &u32| {
            let of_endpoint = (0..EndpointId::COUNT).filter_map(EndpointId::new).filter(|id| ids.contains(*id));
            of_endpoint.map(|id| Qpn::new(id, *index)).any(Qpn::is_reserved)
        };
        for index in beyond.chain(ends.filter(is_reserved)) {
            set(&mut taken, index);
        }
        Self { ids, indices, capacity, used: 0, taken, resting: VecDeque::new() }
    }

    /// Queue pairs in use.
    pub(crate) fn len(&self) -> u32 {
        self.used
    }

    /// A free number that does not rest, the first from a random place on, or else the one that has
    /// rested longest; `None` when as many are in use as may be.
    pub(crate) fn take(&mut self, random: u32, now: Instant) -> Option<Qpn> {
        if self.used == self.capacity {
            return None;
        }
        self.end_rests(now);
        let index = match self.first_free(random.checked_rem(self.indices)?) {
            Some(free) => free,
            None => self.resting.pop_front()?.1,
        };
        set(&mut self.taken, index);
        self.used += 1;
        Some(Qpn::new(self.ids.pick(random >> Qpn::INDEX_BITS), index))
    }

    /// Gives a number back.
    pub(crate) fn give_back(&mut self, qpn: Qpn, now: Instant) {
        self.end_rests(now);
        self.used -= 1;
        self.resting.push_back((now, qpn.index()));
    }

    fn end_rests(&mut self, now: Instant) {
        let is_over = |(since, _): &mut (Instant, u32)| now.saturating_duration_since(*since) >= Self::REST;
        while let Some((_, index)) = self.resting.pop_front_if(is_over) {
            self.taken[(index / u64::BITS) as usize] &= !(1 << (index % u64::BITS));
        }
        // As many may go at once as there can be, and then none for long.
        if self.resting.capacity() > 64 && self.resting.len() < self.resting.capacity() / 4 {
            self.resting.shrink_to(2 * self.resting.len());
        }
    }

    /// The first index from `start` on that is not taken, around the end.
    fn first_free(&self, start: u32) -> Option<u32> {
        let (word, bit) = ((start / u64::BITS) as usize, start % u64::BITS);
        let before = (1 << bit) - 1;
        let here = |at: usize, ignored: u64| {
            let free = (self.taken[at] | ignored).trailing_ones();
            (free < u64::BITS).then(|| at as u32 * u64::BITS + free)
        };
        here(word, before)
            .or_else(|| (word + 1..self.taken.len()).chain(0..word).find_map(|at| here(at, 0)))
            .or_else(|| here(word, !before))
    }
}

fn set(bits: &mut [u64], index: u32) {
    bits[(index / u64::BITS) as usize] |= 1 << (index % u64::BITS);
}

/// A session's doorbells on one worker.
#[derive(Debug)]
pub(crate) struct DoorbellBoard {
    used: [u64; 64],
}

impl Default for DoorbellBoard {
    fn default() -> Self {
        Self { used: [0; 64] }
    }
}

impl DoorbellBoard {
    /// The first free doorbell.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        let bit = self.used[word].trailing_ones();
        self.used[word] |= 1 << bit;
        Some(word as u32 * 64 + bit)
    }

    pub(crate) fn give_back(&mut self, doorbell: u32) {
        self.used[doorbell as usize / 64] &= !(1 << (doorbell % 64));
    }
}

/// Random bits of the kernel.
pub(crate) fn random() -> Option<u32> {
    getrandom::u32().ok()
}

/// Random bytes of the kernel, for a seed.
///
/// # Errors
/// The kernel's.
pub(crate) fn random_bytes<const BYTES: usize>() -> Result<[u8; BYTES], Errno> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use roced_abi::doorbell::DOORBELLS;

    use super::*;

    #[test]
    fn a_place_is_taken_again_as_late_as_can_be() {
        let mut places = NumberPool::new(3);
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
        let now = Instant::now();
        let mut first = Qpns::new(EndpointId::new(0).expect("the first"), 4, 4);
        let given: BTreeSet<_> = (0..).map_while(|_| first.take(0, now)).map(Qpn::get).collect();
        assert_eq!(given, [2, 3].into());
        let mut last = Qpns::new(EndpointId::new(63).expect("the last"), Qpn::INDEX_COUNT, 1);
        assert_eq!(last.take(Qpn::INDEX_COUNT - 1, now).map(Qpn::index), Some(0), "the multicast number is skipped");
    }

    #[test]
    fn full_endpoint_has_room_again_when_a_queue_pair_goes() {
        let now = Instant::now();
        let endpoint = EndpointId::new(5).expect("below 64");
        let mut qpns = Qpns::new(endpoint, Qpn::INDEX_COUNT, 2);
        let (a, b) = (qpns.take(7, now).expect("room"), qpns.take(7, now).expect("room"));
        assert_eq!((a.index(), b.index(), qpns.take(7, now), qpns.len()), (7, 8, None, 2));
        qpns.give_back(a, now);
        assert_eq!(qpns.take(7, now).map(Qpn::index), Some(9), "the limit is one of their count");
        assert_eq!(Qpns::new(endpoint, Qpn::INDEX_COUNT, 0).take(7, now), None);
        assert_eq!(Qpns::new(endpoint, 0, 7).take(7, now), None);
    }

    #[test]
    fn queue_pair_numbers_use_all_bits() {
        let now = Instant::now();
        let mut qpns = Qpns::new(EndpointId::new(3).expect("an endpoint"), Qpn::INDEX_COUNT, 100);
        let (mut random, mut ones, mut zeros) = (1u32, 0, 0);
        for _ in 0..100 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let index = qpns.take(random >> 3, now).expect("a free number").index();
            (ones, zeros) = (ones | index, zeros | !index);
        }
        assert_eq!((ones & zeros & (Qpn::INDEX_COUNT - 1), qpns.len()), (Qpn::INDEX_COUNT - 1, 100));
    }

    #[test]
    fn number_that_was_given_back_rests_for_two_seconds() {
        let begin = Instant::now();
        let mut qpns = Qpns::new(EndpointId::new(3).expect("an endpoint"), Qpn::INDEX_COUNT, 2);
        let a = qpns.take(1000, begin).expect("free");
        qpns.give_back(a, begin);
        let early = begin + Duration::from_millis(1999);
        let other = qpns.take(1000, early).expect("free");
        assert_eq!((a.index(), other.index()), (1000, 1001));
        assert_eq!(qpns.take(1000, begin + Duration::from_secs(2)), Some(a));
    }

    #[test]
    fn the_longest_resting_number_is_taken_when_no_other_is_left() {
        let begin = Instant::now();
        let mut qpns = Qpns::new(EndpointId::new(3).expect("an endpoint"), 3, 3);
        let all = [0, 1, 2].map(|at| qpns.take(at, begin).expect("free"));
        for (at, number) in [2, 0, 1].into_iter().enumerate() {
            qpns.give_back(all[number], begin + Duration::from_millis(at as u64));
        }
        let soon = begin + Duration::from_millis(10);
        assert_eq!([(); 4].map(|()| qpns.take(0, soon)), [Some(all[2]), Some(all[0]), Some(all[1]), None]);
    }

    /// Against a set of numbers, an array of ages and a plain search.
    #[test]
    fn numbers_match_a_plain_model() {
        let begin = Instant::now();
        let (indices, capacity) = (130, 120);
        let mut qpns = Qpns::new(EndpointId::new(0).expect("the first"), indices, capacity);
        // Of each index: free since that millisecond, or in use.
        let mut free_since = vec![Some(-10_000i64); indices as usize];
        let (mut random, mut millis) = (7u32, 0i64);
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            millis += i64::from(random >> 27);
            let now = begin + Duration::from_millis(millis as u64);
            let place = (random >> 8) % indices;
            let in_use = free_since.iter().filter(|since| since.is_none()).count() as u32;
            if random & 1 == 0 {
                let candidates: Vec<_> = (place..indices)
                    .chain(0..place)
                    .filter(|index| *index > 1)
                    .filter(|index| free_since[*index as usize].is_some())
                    .collect();
                let rested = candidates
                    .iter()
                    .find(|index| free_since[**index as usize].is_some_and(|since| millis - since >= 2000));
                let expected = rested.or_else(|| candidates.iter().min_by_key(|index| free_since[**index as usize]));
                let expected = expected.copied().filter(|_| in_use < capacity);
                let taken = qpns.take(place, now).map(Qpn::index);
                assert_eq!(taken.is_some(), expected.is_some());
                if let (Some(taken), Some(expected)) = (taken, expected) {
                    // Of those given back in the same millisecond any.
                    assert!(
                        taken == expected
                            || (rested.is_none() && free_since[taken as usize] == free_since[expected as usize])
                    );
                    free_since[taken as usize] = None;
                }
            } else if free_since[place as usize].is_none() {
                qpns.give_back(Qpn::new(EndpointId::new(0).expect("the first"), place), now);
                free_since[place as usize] = Some(millis);
            }
        }
    }

    #[test]
    fn doorbells_run_out_and_come_back() {
        let mut board = DoorbellBoard::default();
        assert!((0..DOORBELLS).all(|doorbell| board.take() == Some(doorbell)));
        assert_eq!(board.take(), None);
        board.give_back(1234);
        assert_eq!(board.take(), Some(1234));
    }

    #[test]
    fn numbers_wrap_past_those_in_use() {
        let mut numbers = Numbers { last: u32::MAX - 1, used: [1].into() };
        assert_eq!((numbers.take(), numbers.take()), (u32::MAX, 2));
        numbers.give_back(2);
    }
}
