//! Frames of earlier lives of a connection: those that the network kept, and when it may bring
//! them.
//!
//! A slot's connection lives several times, and two of its lives may have the same queue pair
//! numbers: both queue pairs went through RESET, or others were made under the numbers. Frames that
//! the network kept of one life then find a queue pair in the next. None of them may be taken for a
//! frame of the later life, as far as any implementation could know that. There are two kinds of
//! hosts:
//!
//! - one with another UDP source port in each life: any frames, for ten seconds, once the receiver
//!   has taken a packet on that side in that life and in its own, and they are refused; before,
//!   nothing that go-back-N by itself would believe;
//! - one with the same port always, which costs the second life of a queue pair milliseconds of
//!   doubt: frames for less than a second after that life, to a queue pair that went through RESET,
//!   and nothing that go-back-N by itself would believe: no expected request, no answer for packets
//!   in flight.

use crate::{
    connection::{Connection, Rebirth},
    frame::{Kind, Seen},
    model::Model,
    network::Arrival,
    random::Random,
    stream::Stream,
};

/// Frames that are kept of one slot's lives.
const KEPT: usize = 64;

/// How long packets from a past life's port are dropped before a life has a port of its own.
const PAST_PORT_DROP_NS: u64 = 2_000_000;

/// Distance ahead of its turn up to which a request counts in a life that has taken none.
const AHEAD_FIRST: u64 = 128;

/// Lives of which a queue pair remembers the ports.
const PAST: usize = 4;

/// Retries that a connection must have left over for frames of earlier lives: each of them may cost
/// one.
const RETRIES: u32 = 4;

/// A frame that the network kept.
#[derive(Debug)]
struct Kept {
    slot: usize,
    to: usize,
    life: u32,
    /// When that life ended.
    ended: u64,
    is_request: bool,
    psn: u32,
    rows: u64,
    bytes: Vec<u8>,
}

impl Kept {
    /// The frame as it arrives.
    fn arrival(&self) -> Arrival {
        let Self { to, life, rows, ref bytes, .. } = *self;
        Arrival { to, bytes: bytes.clone(), corrupt: false, life: Some(life), rows, sequence: 0 }
    }
}

/// First PSNs of a connection's lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstPsns {
    /// Any, or close to those that were kept of an earlier life.
    Drawn,
    Zero,
    /// Those of the life before.
    Same,
}

/// Knowledge of a queue pair about the port of its peer's packets in a life, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Known,
    /// It may have taken a packet.
    Perhaps,
    Unknown,
}

/// Treatment of a frame of an earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The network does not bring it.
    Not,
    /// It is known by its port, and refused.
    Refused,
    /// Its port may also be this life's: it is dropped.
    Doubted,
    /// It is as go-back-N would take it: that does no harm.
    Taken,
}

/// The port of a life that was.
#[derive(Debug)]
struct PastPort {
    slot: usize,
    /// The host that sent packets from it.
    from: usize,
    is_request: bool,
    life: u32,
    port: Port,
}

/// Knowledge of all lives.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// Parts per million of frames upon which one of an earlier life follows; 0 is never.
    rate: u32,
    kept: Vec<Kept>,
    /// Lives that there were.
    pub(crate) lives: u32,
    /// The hosts that use another port in each life.
    changes_port: [bool; 2],
    first_psns: FirstPsns,
    /// Knowledge of the present queue pairs, the oldest life first.
    past: Vec<PastPort>,
}

impl Earlier {
    pub(crate) fn draw(random: &mut Random, rate: u32) -> Self {
        Self {
            rate,
            kept: Vec::new(),
            lives: 0,
            changes_port: [(); 2].map(|()| random.one_in(2)),
            first_psns: random.pick(&[FirstPsns::Drawn, FirstPsns::Drawn, FirstPsns::Zero, FirstPsns::Same]),
            past: Vec::new(),
        }
    }

    /// There are such frames.
    pub(crate) const fn is_on(&self) -> bool {
        self.rate > 0
    }

    /// The UDP source port of a host's frames in that life.
    pub(crate) const fn port(&self, host: usize, slot: usize, life: u32) -> u16 {
        let life = if self.changes_port[host] { life } else { 0 };
        0xc000 | (slot as u16) << 10 | (host as u16) << 9 | life as u16 & 0x1ff
    }

    /// A host uses another port in each life.
    pub(crate) const fn changes_port(&self, host: usize) -> bool {
        self.changes_port[host]
    }

    pub(crate) fn rebirth(&self, random: &mut Random) -> Rebirth {
        if !self.is_on() {
            return Rebirth::NewNumbers;
        }
        random.pick(&[Rebirth::Reset, Rebirth::Reset, Rebirth::SameNumbers, Rebirth::NewNumbers])
    }

    /// The first PSNs of a slot's next life, of the requests of either host. `before` are those of
    /// its last.
    pub(crate) fn psns(&self, random: &mut Random, slot: usize, before: Option<[u32; 2]>) -> [u32; 2] {
        match (self.first_psns, before) {
            (FirstPsns::Zero, _) if self.is_on() => return [0; 2],
            (FirstPsns::Same, Some(psns)) if self.is_on() => return psns,
            _ => {}
        }
        [0, 1].map(|from| {
            let of_stream =
                |kept: &&Kept| kept.slot == slot && kept.to == if kept.is_request { 1 - from } else { from };
            let count = self.kept.iter().filter(of_stream).count() as u64;
            if count > 0 && random.one_in(2) {
                let kept = self.kept.iter().filter(of_stream).nth(random.below(count) as usize).expect("counted");
                let ahead = match random.below(6) {
                    0 | 1 => random.below(64),
                    2 => random.below(1_024),
                    3 => random.within(2_500, 3_500),
                    4 => random.within(18_000, 32_000),
                    _ => random.within(40_000, 4_000_000),
                };
                return kept.psn.wrapping_sub(ahead as u32) & 0x00ff_ffff;
            }
            // Half of the connections come to the wrap.
            let below = if random.one_in(2) { 300 } else { 1 << 24 };
            0x00ff_ffff - random.below(below) as u32
        })
    }

    /// A frame leaves; the network may keep it.
    pub(crate) fn keep(
        &mut self,
        random: &mut Random,
        (slot, life): (usize, u32),
        to: usize,
        seen: &Seen<'_>,
        rows: u64,
        bytes: &[u8],
    ) {
        if !self.is_on() || !random.one_in(6) {
            return;
        }
        let (is_request, psn) = (seen.is_request(), seen.psn);
        let kept = Kept { slot, to, life, ended: u64::MAX, is_request, psn, rows, bytes: bytes.to_vec() };
        let of_slot = |kept: &Kept| kept.slot == slot;
        if self.kept.iter().filter(|kept| of_slot(kept)).count() < KEPT {
            return self.kept.push(kept);
        }
        let place = random.below(KEPT as u64) as usize;
        if let Some(old) = self.kept.iter_mut().filter(|kept| of_slot(kept)).nth(place) {
            *old = kept;
        }
    }

    /// A life is over.
    pub(crate) fn end(&mut self, connection: &mut Connection, now: u64) {
        let (slot, life) = (connection.slot, connection.life);
        self.kept.iter_mut().filter(|kept| kept.life == life).for_each(|kept| kept.ended = now);
        for from in 0..2 {
            for is_request in [true, false] {
                let port = connection.knows_port(from, is_request);
                if port != Port::Unknown {
                    self.past.push(PastPort { slot, from, is_request, life, port });
                }
            }
        }
    }

    /// Whether it is uncertain if the queue pairs of a connection that ends now know the ports that
    /// do not change.
    pub(crate) fn is_uncertain(&self, connection: &mut Connection) -> bool {
        [(0, true), (0, false), (1, true), (1, false)].into_iter().any(|(from, is_request)| {
            !self.changes_port[from] && connection.knows_port(from, is_request) == Port::Perhaps
        })
    }

    /// A packet of this life is dropped: its port is that of the life before, and may be that of
    /// this one.
    pub(crate) fn doubts_live(&self, connection: &mut Connection, to: usize, seen: &Seen<'_>, now: u64) -> bool {
        let is_request = seen.is_request();
        let of_side =
            |past: &&PastPort| (past.slot, past.from, past.is_request) == (connection.slot, 1 - to, is_request);
        let is_second = !self.changes_port[1 - to] && self.past.iter().filter(of_side).count() == 1;
        is_second && connection.doubts(to, seen, now)
    }

    /// A connection's next life is the second of a queue pair with a peer that keeps its port: its
    /// begin costs a retry.
    pub(crate) fn will_doubt(&self, slot: usize) -> bool {
        self.past.iter().any(|past| past.slot == slot && !self.changes_port[past.from])
    }

    /// The queue pair of a host is made anew: it knows nothing.
    pub(crate) fn forget(&mut self, slot: usize, to: usize) {
        self.past.retain(|past| (past.slot, past.from) != (slot, 1 - to));
    }

    /// Knowledge of the present queue pair of host `to` about its peer's port in that life.
    pub(crate) fn knows_past(&self, slot: usize, to: usize, is_request: bool, life: u32) -> Port {
        let of_side = |past: &&PastPort| (past.slot, past.from, past.is_request) == (slot, 1 - to, is_request);
        let newer = self.past.iter().filter(of_side).filter(|past| past.life > life);
        let (certain, all) =
            newer.fold((0, 0), |(certain, all), past| (certain + usize::from(past.port == Port::Known), all + 1));
        match self.past.iter().filter(of_side).find(|past| past.life == life) {
            None => Port::Unknown,
            Some(_) if certain >= PAST => Port::Unknown,
            Some(_) if all >= PAST => Port::Perhaps,
            Some(past) => past.port,
        }
    }

    /// When that life ended, if the network kept a frame of it.
    pub(crate) fn ended(&self, life: u32) -> Option<u64> {
        self.kept.iter().find(|kept| kept.life == life).map(|kept| kept.ended)
    }

    /// One of an earlier life is to follow upon a frame.
    pub(crate) fn follows(&self, random: &mut Random) -> bool {
        random.chance(self.rate)
    }

    /// Any frame that the network kept of a slot.
    pub(crate) fn any_kept(&self, random: &mut Random, slot: usize) -> Option<Arrival> {
        let of_slot = || self.kept.iter().filter(|kept| kept.slot == slot);
        of_slot().nth(random.below(of_slot().count() as u64) as usize).map(Kept::arrival)
    }

    /// Draws a frame of an earlier life for a queue pair of host `to` that a connection has now.
    pub(crate) fn any_earlier(&self, random: &mut Random, connection: &Connection, to: usize) -> Option<Arrival> {
        self.choose(random, connection, to).map(Kept::arrival)
    }

    /// Draws a frame of an earlier life for a queue pair of host `to` that expects requests and
    /// answers with these PSNs.
    fn choose(&self, random: &mut Random, connection: &Connection, to: usize) -> Option<&Kept> {
        let [requests, answers] = [connection.ends[1 - to].stream.covered, connection.ends[to].stream.una];
        let ahead = |kept: &Kept| {
            let expected = if kept.is_request { requests } else { answers };
            ((kept.psn.wrapping_sub(expected as u32) << 8) as i32) >> 8
        };
        let (from, end) = random.pick(&[
            (0, 1),
            (1, 65),
            (1, 65),
            (65, 1_025),
            (1_025, 10_000),
            (10_000, 32_769),
            (32_769, i32::MAX),
            (-64, 0),
            (i32::MIN, 0),
        ]);
        let earlier = |kept: &&Kept| kept.slot == connection.slot && kept.to == to && kept.life != connection.life;
        let near = |kept: &&Kept| earlier(kept) && (from..end).contains(&ahead(kept));
        let count = self.kept.iter().filter(near).count() as u64;
        if count > 0 {
            return self.kept.iter().filter(near).nth(random.below(count) as usize);
        }
        let count = self.kept.iter().filter(earlier).count() as u64;
        self.kept.iter().filter(earlier).nth(random.below(count) as usize)
    }
}

impl Connection {
    /// A packet from a past life's port is dropped at this moment, if nothing was taken in this
    /// life. The first begins the doubt, and is a reason for a NAK at its end.
    pub(crate) fn doubts(&mut self, to: usize, seen: &Seen<'_>, now: u64) -> bool {
        let is_request = seen.is_request();
        let requester = if is_request { 1 - to } else { to };
        let stream = &self.ends[requester].stream;
        let psn = stream.unwrap_psn(seen.psn);
        let is_nak = seen.kind == Kind::Ack && seen.aeth.is_some_and(|aeth| aeth.syndrome == 0x60);
        let end = if is_request { stream.start + AHEAD_FIRST + 1 } else { stream.frontier + u64::from(is_nak) };
        if !(stream.start..end).contains(&psn) || !is_request && !self.ends[to].ready {
            return false;
        }
        let since = &mut self.ends[to].doubts_since[usize::from(is_request)];
        let begins = since.is_none();
        if now >= *since.get_or_insert(now) + PAST_PORT_DROP_NS {
            return false;
        }
        let stream = &mut self.ends[requester].stream;
        stream.is_disturbed = true;
        stream.on_disturbed(psn);
        stream.on_asked_again();
        stream.excuse(self.settings.window.into());
        if !is_request {
            stream.on_answer_hit(psn, None);
        } else if begins {
            stream.provoked.push((stream.start, stream.start));
        }
        true
    }

    /// Whether the queue pair of the other host has taken a packet of host `from` in this life.
    pub(crate) fn knows_port(&mut self, from: usize, is_request: bool) -> Port {
        let requester = &mut self.ends[if is_request { from } else { 1 - from }];
        // An answer that ended it may be all that it took.
        let was_refused = !is_request && (requester.failed || requester.may_fail || requester.send_failed);
        let stream = &mut requester.stream;
        let (low, high) = if is_request { stream.expected() } else { (stream.una_at_least, stream.una) };
        if low > stream.start {
            Port::Known
        } else if high > stream.start || was_refused {
            Port::Perhaps
        } else {
            Port::Unknown
        }
    }
}

impl Model {
    pub(crate) fn admits_request(&mut self, to: usize, at: usize, seen: &Seen<'_>) -> bool {
        let stream = &mut self.connections[at].ends[1 - to].stream;
        let psn = stream.unwrap_psn(seen.psn);
        let (low, high) = stream.expected();
        if psn >= low {
            if stream.settings.retry_cnt < RETRIES || psn <= high {
                return false;
            }
            // Where a key is being made invalid it is complained of when all that was held
            // meanwhile is executed.
            let high = if stream.is_invalidating(psn) { psn } else { high };
            stream.provoked.push((low, high));
        }
        self.hosts[to].tally.behind += 1;
        true
    }

    pub(crate) fn admits_answer(&mut self, to: usize, at: usize, seen: &Seen<'_>) -> bool {
        let stream = &mut self.connections[at].ends[to].stream;
        let psn = stream.unwrap_psn(seen.psn);
        let syndrome = seen.aeth.filter(|_| seen.kind == Kind::Ack).map_or(0, |aeth| aeth.syndrome);
        // A NAK of the next PSN acknowledges all that was sent.
        let end = stream.frontier + u64::from(syndrome == 0x60);
        if (stream.una_at_least..end).contains(&psn) && !stream.admits_in_flight(psn, syndrome) {
            return false;
        }
        let tally = &mut self.hosts[to].tally;
        match syndrome {
            0x60 => tally.sequence_naks_taken[1] += 1,
            0x20..0x40 => tally.rnr_naks_taken[1] += 1,
            _ => {}
        }
        true
    }
}

impl Stream {
    /// An answer of an earlier life for packets in flight may come.
    fn admits_in_flight(&mut self, psn: u64, syndrome: u8) -> bool {
        let oldest = self.una_at_least;
        if self.disturbed_by_answer == Some(oldest) {
            return false;
        }
        // Go-back-N believes it, but for answers behind a READ or an atomic operation that has
        // none: that is asked for again.
        let waits =
            self.find(oldest).and_then(|(id, _)| self.message(id)).is_some_and(|message| message.kind.wants_answer());
        let believed = self.una != oldest || !waits || psn == oldest || syndrome > 0x60 || syndrome >> 5 == 1;
        if believed || self.settings.retry_cnt < RETRIES {
            return false;
        }
        self.on_disturbed(oldest);
        self.on_asked_again();
        self.disturbed_by_answer = Some(oldest);
        true
    }

    /// The PSN that the responder executes next is from the first of these to the second.
    pub(crate) fn expected(&mut self) -> (u64, u64) {
        let high = self.unexecuted().min(self.covered);
        // A responder that makes a key invalid goes on without a packet.
        let silent = self.find(high).and_then(|(id, _)| self.message(id)).is_some_and(|message| message.invalidates);
        let acknowledged = self.last_ack.map_or(0, |psn| psn + 1).max(self.last_nak.unwrap_or(0));
        (self.written.max(acknowledged).max(self.una_at_least), high + u64::from(silent))
    }
}
