//! The way between the two hosts: two directions, each with a delay, and the weather.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    fault::{Fate, Fault, Weather},
    frame,
    random::Random,
};

/// A frame that arrives.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) to: usize,
    pub(crate) bytes: Vec<u8>,
    /// Bits were flipped on its way.
    pub(crate) corrupt: bool,
    /// The life of the connection that it was sent to; `None` where there was none.
    pub(crate) life: Option<u32>,
    /// Rows of the table.
    pub(crate) rows: u64,
    /// It was the so many-th that left either host; a copy counts as its original.
    pub(crate) sequence: u64,
}

/// Most paths that a direction has.
const PATHS_MAX: usize = 4;

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// On each path no frame but one that is overtaken arrives before this.
    latest: [u64; PATHS_MAX],
    /// How much longer the paths take than the first, and how many there are. Until that moment
    /// frames are spread over all of them.
    detours: [u64; PATHS_MAX],
    paths: u64,
    spread_until: u64,
    /// Then frames without payload have the first path for themselves, and overtake all others.
    parts_by_size: bool,
    /// Frames that a burst still takes.
    burst: u32,
    slow_until: u64,
    slow_by: u64,
}

/// A frame with no more than headers and eight bytes is smaller.
const SMALL_BYTES: usize = 128;

/// A path with a round trip longer than a probe waits before anything was measured.
const FAR: u64 = 700_000;

/// A detour that a reorder delay of 100 us bears.
const DETOUR: u64 = 60_000;

/// Frames on their way.
#[derive(Debug)]
pub(crate) struct Network {
    weather: Weather,
    random: Random,
    delay: u64,
    jitter: u64,
    /// Effect of a link's rate: frames follow each other no closer than so many nanoseconds for
    /// each KiB. Without a rate frames that left in one turn arrive in one turn.
    spacing: u64,
    /// Frames arrive at multiples of this: frames that arrive at once are one turn of the receiver.
    grid: u64,
    /// The most that a path takes longer than another of its direction.
    detour: u64,
    directions: [Direction; 2],
    down_until: u64,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    flying: Vec<Option<Arrival>>,
    free: Vec<usize>,
    sent: u64,
    /// Frames that left.
    left: u64,
    spare: Vec<Vec<u8>>,
}

impl Direction {
    fn draw(random: &mut Random, weather: Weather, detour: u64) -> Self {
        let paths = random.within(2, PATHS_MAX as u64);
        let mut detours = [0; PATHS_MAX];
        detours[1] = detour;
        detours[2..].fill_with(|| random.below(detour));
        let spread_until = if weather.multipath == 1_000_000 { u64::MAX } else { 0 };
        Self { paths, detours, spread_until, parts_by_size: random.one_in(2), ..Self::default() }
    }
}

impl Network {
    pub(crate) fn new(weather: Weather, mut random: Random) -> Self {
        let detour = random.pick(&[2_000, 20_000, DETOUR, 400_000]);
        let directions = [(); 2].map(|()| Direction::draw(&mut random, weather, detour));
        // A draw from a copy: it does not change the results of the other draws.
        let is_far = random.clone().one_in(16);
        let delay = random.pick(&[1_000, 5_000, 20_000, 100_000]);
        Self {
            weather,
            delay: if is_far { FAR } else { delay },
            jitter: random.pick(&[0, 500, 5_000]),
            spacing: random.pick(&[0, 0, 80, 320]),
            grid: random.pick(&[1, 1, 2_000, 10_000]),
            random,
            detour,
            directions,
            down_until: 0,
            heap: BinaryHeap::new(),
            flying: Vec::new(),
            free: Vec::new(),
            sent: 0,
            left: 0,
            spare: Vec::new(),
        }
    }

    /// A buffer that is not needed any more, if there is one.
    pub(crate) fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    /// A frame was taken in; its memory can be used again.
    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// No answer comes sooner than this.
    pub(crate) const fn round_trip(&self) -> u64 {
        2 * self.delay
    }

    /// Of two frames that leave one behind the other, so much later the first may arrive; `None`
    /// when faults have a part in it as well.
    pub(crate) fn disorder(&self) -> Option<u64> {
        let Weather { loss, burst_loss, duplicate, reorder, delay, corrupt, link_down, .. } = self.weather;
        let calm = loss + burst_loss + duplicate + reorder + delay + corrupt + link_down == 0;
        let (slowest, frame_bytes) = (self.detour + self.jitter, 4_200);
        // A path that has much to carry is late by that.
        (calm && self.weather.multipath > 0 && self.spacing == 0).then_some(slowest + frame_bytes / 8 + self.grid)
    }

    /// The longest that a frame takes, where nothing but its path delays it.
    pub(crate) const fn longest_way(&self) -> u64 {
        self.delay + self.detour + self.jitter + self.grid + 4_200 / 8
    }

    /// A frame arrives so much later than it would, at the most.
    pub(crate) const fn grid(&self) -> u64 {
        self.grid
    }

    /// Frames on their way.
    pub(crate) fn flying(&self) -> impl Iterator<Item = &[u8]> {
        self.flying.iter().flatten().map(|arrival| &arrival.bytes[..])
    }

    /// When the next frame arrives.
    pub(crate) fn next(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |Reverse((at, ..))| *at)
    }

    /// The next frame that has arrived by `now`.
    pub(crate) fn arrived(&mut self, now: u64) -> Option<Arrival> {
        let Reverse((at, ..)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        let Reverse((_, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.flying[place].take()
    }

    /// A frame leaves from host `from`; reports its fate.
    pub(crate) fn send(&mut self, now: u64, from: usize, mut bytes: Vec<u8>, to: (Option<u32>, u64)) -> Fate {
        let (life, rows) = to;
        let mut fate = self.decide(now, from);
        self.left += 1;
        let sequence = self.left;
        if fate.marked {
            mark(&mut bytes);
        }
        if fate.lost {
            self.give_back(bytes);
            return fate;
        }
        let path = self.choose_path(now, from, bytes.len());
        let direction = &mut self.directions[from];
        fate.detour = direction.detours[path];
        if now < direction.spread_until {
            fate.hit(Fault::Multipath);
        }
        let slow = if now < direction.slow_until { direction.slow_by } else { 0 };
        let mut at =
            now + self.delay + fate.detour + slow + self.random.below(self.jitter + 1) + bytes.len() as u64 / 8;
        if fate.late > 0 {
            at += fate.late;
        } else {
            at = at.max(direction.latest[path] + bytes.len() as u64 * self.spacing / 1024);
            direction.latest[path] = at;
        }
        if fate.twice {
            let again = at + self.random.pick(&[0, 1_000, 50_000, 3_000_000]);
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(&bytes);
            self.put(again, Arrival { to: 1 - from, bytes: copy, corrupt: false, life, rows, sequence });
        }
        if fate.corrupt {
            self.corrupt(&mut bytes);
        }
        fate.under_way = at - now;
        self.put(at, Arrival { to: 1 - from, bytes, corrupt: fate.corrupt, life, rows, sequence });
        fate
    }

    /// The path that a frame takes.
    fn choose_path(&mut self, now: u64, from: usize, bytes: usize) -> usize {
        let direction = &mut self.directions[from];
        if now >= direction.spread_until && self.random.chance(self.weather.multipath) {
            direction.spread_until = now + self.random.within(50_000, 2_000_000);
        }
        let is_first = now >= direction.spread_until || direction.parts_by_size && bytes < SMALL_BYTES;
        match u64::from(direction.parts_by_size) {
            _ if is_first => 0,
            from => self.random.within(from, direction.paths - 1) as usize,
        }
    }

    /// A frame of before comes at `at`, regardless of the weather.
    pub(crate) fn bring(&mut self, at: u64, arrival: Arrival) {
        self.put(at, arrival);
    }

    fn put(&mut self, at: u64, arrival: Arrival) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.flying.push(None);
            self.flying.len() - 1
        });
        self.flying[place] = Some(arrival);
        self.sent += 1;
        self.heap.push(Reverse((at.next_multiple_of(self.grid), self.sent, place)));
    }

    fn decide(&mut self, now: u64, from: usize) -> Fate {
        let (weather, random) = (&self.weather, &mut self.random);
        let mut fate = Fate::default();
        if random.chance(weather.link_down) && now >= self.down_until {
            self.down_until = now + random.pick(&[20_000, 500_000, 5_000_000, 50_000_000]);
        }
        if now < self.down_until {
            fate.lost = true;
            fate.hit(Fault::LinkDown);
            return fate;
        }
        let direction = &mut self.directions[from];
        if random.chance(weather.burst_loss) {
            direction.burst = random.within(2, 24) as u32;
        }
        if direction.burst > 0 {
            direction.burst -= 1;
            fate.lost = true;
            fate.hit(Fault::BurstLoss);
            return fate;
        }
        if random.chance(weather.loss) {
            fate.lost = true;
            fate.hit(Fault::Loss);
            return fate;
        }
        if random.chance(weather.delay) {
            direction.slow_until = now + random.within(10_000, 300_000);
            direction.slow_by = random.pick(&[30_000, 300_000, 3_000_000]);
        }
        if now < direction.slow_until {
            fate.hit(Fault::Delay);
        }
        if random.chance(weather.ce_mark) {
            fate.marked = true;
            fate.hit(Fault::CeMark);
        }
        if random.chance(weather.duplicate) {
            fate.twice = true;
            fate.hit(Fault::Duplicate);
        }
        if random.chance(weather.reorder) {
            fate.late = random.pick(&[300, 3_000, 30_000, 300_000]);
            fate.hit(Fault::Reorder);
        }
        if random.chance(weather.corrupt) {
            fate.corrupt = true;
            fate.hit(Fault::Corrupt);
        }
        fate
    }

    /// Changes one or two bytes from the PSN on: all of it is covered by the ICRC, and the frame
    /// still finds its queue pair.
    fn corrupt(&mut self, bytes: &mut [u8]) {
        let from = frame::bth_at(bytes) + 9;
        let places = (bytes.len() - from) as u64;
        let first = self.random.below(places);
        bytes[from + first as usize] ^= self.random.within(1, 255) as u8;
        if self.random.one_in(2) {
            let second = (first + self.random.within(1, places - 1)) % places;
            bytes[from + second as usize] ^= 1 << self.random.below(8);
        }
    }
}

/// Sets ECN to "congestion experienced" (RFC 3168), and the IPv4 checksum with it.
fn mark(bytes: &mut [u8]) {
    let ip = 14;
    if bytes[12] != 0x08 {
        // The traffic class is bits 4 to 11 of the IPv6 header.
        bytes[ip + 1] |= 0x30;
        return;
    }
    bytes[ip + 1] |= 3;
    bytes[ip + 10..ip + 12].fill(0);
    let mut sum: u32 = bytes[ip..ip + 20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[ip + 10..ip + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
