//! One seed: two hosts, the network between them, and the clock that all of them are told.
//!
//! A step of time: frames that have arrived go in, timers that have run out fire, applications post, frames leave. Then time
//! jumps to the next thing that can happen.

use roced_shared::ids::Qpn;
use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    endpoint::Endpoint,
    mr::{MrKey, Scope},
    qp::{KeyChange, KeyWish, State},
    recovery::{Recovery, RecoveryConfig},
};

use crate::{
    FRAMES, Outcome,
    check::Tally,
    connection::{Connection, End, Phase, Settings},
    fault::{Fate, Fault, Weather},
    frame::{self, Kind},
    host::{self, Nic},
    layout::{SLOT_BYTES, slot_key},
    model::{AppView, HostModel, Model},
    network::{Arrival, Network},
    random::Random,
    stream::Stream,
    table::Table,
    violation::{Checked, Violation},
};

/// Frames of a host that leave in one call, and how late it looks again when its NIC had no room.
const BURST: usize = 32;

/// A connection that is to end gets so much time for it, in nanoseconds, and a request for each step forward. The slowest there
/// are: eight time-outs of 4.2 ms, a link that is down for 50 ms, receives that are late.
const PATIENCE: u64 = 1_500_000_000;

/// More frames than any seed needs.
const FRAMES_MAX: u64 = 100 * FRAMES;

/// Everything of a seed.
pub(crate) struct World {
    pub(crate) endpoints: [Endpoint; 2],
    pub(crate) model: Model,
    pub(crate) network: Network,
    pub(crate) weather: Weather,
    recovery: [RecoveryConfig; 2],
    pub(crate) random: Random,
    pub(crate) now: u64,
    /// Frames that left, and with how many no more work is posted.
    pub(crate) sent: u64,
    pub(crate) enough: u64,
    next_index: u32,
    /// Once in so many work requests one ends its connection; 0 is never.
    pub(crate) fatal_every: u64,
    /// A host goes away at this moment.
    pub(crate) restart_at: u64,
    /// NICs that have room for few frames at a time.
    small_nic: bool,
    look_again: [u64; 2],
    /// Changes of keys that queue pairs wait for: when they are made, and on which host.
    changing: Vec<(u64, usize, KeyChange)>,
    out: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

/// What a frame belongs to.
struct Known {
    /// Rows of the table.
    rows: u64,
    connection: usize,
    /// Whose request it is, or is an answer to.
    requester: usize,
    /// Its last.
    psn: u64,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather::forecast(&mut random);
        let slots = random.within(1, 4) as usize;
        let host = || HostModel {
            sink: vec![0; slots * SLOT_BYTES as usize],
            generations: vec![0; slots],
            by_index: vec![None; host::QPS_MAX as usize],
            tally: Tally::default(),
        };
        let model = Model {
            now: 0,
            hosts: [host(), host()],
            connections: Vec::new(),
            violation: None,
            activity: false,
            trace,
            cells: Table::default().cells,
        };
        let recovery = [(); 2].map(|()| host::draw_recovery(&mut random));
        let network = Network::new(weather, Random::new(random.next()));
        let mut world = Self {
            endpoints: [0, 1].map(|at| host::endpoint(at, slots, &model.hosts[at].generations, recovery[at])),
            recovery,
            model,
            network,
            weather,
            now: 1_000_000,
            sent: 0,
            enough: FRAMES + random.below(200),
            next_index: 2,
            fatal_every: random.pick(&[0, 15, 40, 100]),
            restart_at: u64::MAX,
            small_nic: random.one_in(6),
            look_again: [u64::MAX; 2],
            changing: Vec::new(),
            out: Vec::new(),
            spare: Vec::new(),
            random,
        };
        for slot in 0..slots {
            let connection = world.connect(slot, None);
            world.model.connections.push(connection);
        }
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        let qps = 2 * self.model.connections.len();
        while self.model.violation.is_none() && !self.is_over() {
            self.step();
        }
        for at in 0..2 {
            if self.model.violation.is_none() {
                self.check_counters(at, false);
            }
        }
        let Model { cells, violation, .. } = self.model;
        Outcome { frames: self.sent, qps, table: Table { cells }, violation }
    }

    /// All that was to be sent was, and every connection has come to its end.
    fn is_over(&self) -> bool {
        self.has_enough() && self.model.connections.iter().all(|c| matches!(c.phase, Phase::Closed { .. }))
    }

    pub(crate) fn has_enough(&self) -> bool {
        self.sent >= self.enough
    }

    fn step(&mut self) {
        self.model.now = self.now;
        while let Some(arrival) = self.network.arrived(self.now) {
            self.deliver(arrival);
        }
        for at in 0..2 {
            if self.endpoints[at].poll_timeout().0 <= self.now {
                self.fire_timers(at);
            }
        }
        if self.restart_at <= self.now {
            self.restart();
        }
        // Completions call for more work, and that for more frames.
        loop {
            self.model.activity = false;
            for at in 0..self.model.connections.len() {
                self.visit(at);
            }
            self.change_keys();
            for at in 0..2 {
                self.transmit(at);
                self.take_events(at);
            }
            if !self.model.activity || self.model.violation.is_some() {
                break;
            }
        }
        if self.sent > FRAMES_MAX {
            let text = format!("{} frames and no end: {}", self.sent, self.waiting());
            self.model.note(Err(Violation { checker: "hang", text }));
        }
        let next = self.next_moment();
        if next == u64::MAX && !self.is_over() {
            let text = format!("nothing will happen any more: {}", self.waiting());
            self.model.note(Err(Violation { checker: "hang", text }));
        }
        self.now = next.max(self.now + 1);
    }

    fn next_moment(&self) -> u64 {
        let timers = self.endpoints.iter().map(|endpoint| endpoint.poll_timeout().0);
        let waits = self.model.connections.iter().map(|connection| match connection.phase {
            Phase::Closed { .. } if self.has_enough() => u64::MAX,
            Phase::Closed { until } => until,
            _ => connection.ends.iter().map(|end| end.receive_at).filter(|at| *at > self.now).min().unwrap_or(u64::MAX),
        });
        let others = [self.network.next(), self.restart_at, self.look_again[0], self.look_again[1]];
        let changes = self.changing.iter().map(|(due, ..)| *due);
        timers.chain(waits).chain(others).chain(changes).min().unwrap_or(u64::MAX)
    }

    /// What is not at its end, for a person.
    pub(crate) fn waiting(&self) -> String {
        let ends = self.model.connections.iter().flat_map(|connection| {
            connection.ends.iter().enumerate().map(move |(at, end)| {
                let stream = &end.stream;
                format!(
                    "slot {} host {at} {:?}: una {} frontier {} end {}, complete {} of {}, receives {} of {}; ",
                    connection.slot,
                    connection.phase,
                    stream.una & 0xff_ffff,
                    stream.frontier & 0xff_ffff,
                    stream.end & 0xff_ffff,
                    stream.complete,
                    stream.posted(),
                    end.receives.completed,
                    end.receives.posted
                )
            })
        });
        ends.collect()
    }

    fn deliver(&mut self, arrival: Arrival) {
        let Arrival { to, bytes, corrupt } = arrival;
        let seen = frame::parse(&bytes).expect("it was taken apart when it was sent");
        let state = self.endpoints[to].qp(Qpn::from_wire(seen.dest_qpn)).map(|qp| qp.state());
        let hears = matches!(state, Some(State::ReadyToReceive | State::ReadyToSend));
        let tally = &mut self.model.hosts[to].tally;
        tally.given += 1;
        tally.given_corrupt += u64::from(corrupt && hears);
        if hears && !corrupt {
            self.believe(to, &seen);
        }
        let (first, rest) = bytes.split_at(bytes.len().min(3840));
        let (one, two) = ([first], [first, rest]);
        let pieces: &[&[u8]] = if rest.is_empty() { &one } else { &two };
        let mut app = AppView { model: &mut self.model, host: to };
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), pieces, &mut app);
        if self.model.trace {
            println!("{:>12} host {to} <- {} {disposition:?}", self.now, describe(&seen));
        }
        self.network.give_back(bytes);
    }

    /// A whole frame reaches a queue pair that listens: what is known of it from now on.
    fn believe(&mut self, to: usize, seen: &frame::Seen<'_>) {
        let Some(at) = self.model.connection_of(to, seen.dest_qpn) else { return };
        let ends = &mut self.model.connections[at].ends;
        let tally = &mut self.model.hosts[to].tally;
        if seen.is_request() {
            let stream = &mut ends[1 - to].stream;
            tally.behind += u64::from(stream.unwrap_psn(seen.psn) < stream.unexecuted().min(stream.covered));
            stream.on_request(seen);
            ends[to].may_fail |= ends[1 - to].stream.refusal_arrived;
        } else {
            let Some((syndrome, fresh)) = ends[to].stream.on_answer(seen, self.now) else { return };
            let taken = match syndrome {
                0x60 => &mut tally.sequence_naks_taken,
                0x20..0x40 => &mut tally.rnr_naks_taken,
                _ => &mut [0; 2],
            };
            taken[0] += u64::from(fresh);
            taken[1] += 1;
            ends[to].may_fail |= syndrome > 0x60;
        }
    }

    fn fire_timers(&mut self, at: usize) {
        let mut app = AppView { model: &mut self.model, host: at };
        while self.endpoints[at].on_timeout(Nanos(self.now), 64, &mut app) == 64 {}
        for connection in &mut self.model.connections {
            let end = &mut connection.ends[at];
            let Some(qp) = self.endpoints[at].qp(Qpn::from_wire(end.qpn)) else { continue };
            let count = qp.counters().get(QpCount::AckTimeout);
            if count > end.stream.timeouts {
                end.stream.timeouts = count;
                if self.model.trace {
                    println!("{:>12} host {at}   ACK timer of {:#x}", self.now, end.qpn);
                }
                if let Err(violation) = end.stream.on_timeout(self.now) {
                    self.model.violation.get_or_insert(violation);
                }
            }
        }
    }

    fn transmit(&mut self, at: usize) {
        self.look_again[at] = u64::MAX;
        let mut room = if self.small_nic { self.random.within(1, 8) as usize } else { usize::MAX };
        while self.endpoints[at].wants_transmit() {
            if room == 0 {
                self.look_again[at] = self.now + self.random.pick(&[1_000, 20_000]);
                return;
            }
            let mut nic = Nic { room, spare: &mut self.spare, frames: &mut self.out };
            let mut app = AppView { model: &mut self.model, host: at };
            let visits = self.endpoints[at].poll_transmit(Nanos(self.now), BURST, &mut app, &mut nic);
            let mut frames = std::mem::take(&mut self.out);
            room -= frames.len();
            for bytes in frames.drain(..) {
                self.send(at, bytes);
            }
            self.out = frames;
            if self.model.violation.is_some() || (visits == 0 && room > 0) {
                return;
            }
        }
    }

    /// A frame leaves a host: it is checked, counted, and given to the network.
    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        self.sent += 1;
        let known = match self.check_frame(from, &bytes) {
            Ok(known) => known,
            Err(violation) => {
                if self.model.trace {
                    println!("{:>12} host {from} -> {}", self.now, line(&bytes));
                }
                self.model.violation.get_or_insert(violation);
                return;
            }
        };
        let line = if self.model.trace { line(&bytes) } else { String::new() };
        let mut fate = self.network.send(self.now, from, bytes);
        let connection = &mut self.model.connections[known.connection];
        if connection.mtu_changed {
            fate.hit(Fault::MtuChange);
        }
        if fate.disturbs(connection.settings.ack_timeout()) {
            connection.ends[known.requester].stream.on_disturbed(known.psn);
        }
        self.trace_sent(from, &line, &fate);
        self.model.count_hits(known.rows, fate.hits);
        if self.random.chance(self.weather.peer_restart) && self.restart_at == u64::MAX && !self.has_enough() {
            self.restart_at = self.now + self.random.below(200_000);
        }
        if let Some(buffer) = self.network.spare_buffer() {
            self.spare.push(buffer);
        }
    }

    fn trace_sent(&self, from: usize, line: &str, fate: &Fate) {
        if self.model.trace {
            println!("{:>12} host {from} -> {line} {}", self.now, fate.names().join(", "));
        }
    }

    fn check_frame(&mut self, from: usize, bytes: &[u8]) -> Result<Known, Violation> {
        let unknown = || Violation { checker: "frame", text: format!("host {from} sends {bytes:02x?}") };
        let seen = frame::parse(bytes).ok_or_else(unknown)?;
        let at = self.model.connection_of(1 - from, seen.dest_qpn).or_else(|| {
            // The peer has gone away; its connection is still this one.
            self.model.connections.iter().position(|c| c.ends[1 - from].qpn == seen.dest_qpn)
        });
        let at = at.ok_or_else(unknown)?;
        let (tally, connection) = (&mut self.model.hosts[from].tally, &mut self.model.connections[at]);
        tally.payload_bytes += seen.payload.len() as u64;
        let requester = if seen.is_request() { from } else { 1 - from };
        let (rows, psn) = if seen.is_request() {
            let sent = connection.ends[from].stream.check_request(&seen, self.now)?;
            tally.requests += 1;
            tally.retransmitted += u64::from(sent.again);
            (sent.rows, sent.end - 1)
        } else {
            let stream = &mut connection.ends[1 - from].stream;
            let (psn, rows) = (stream.unwrap_psn(seen.psn), stream.check_answer(&seen)?);
            tally.answers += 1;
            if seen.kind == Kind::Ack {
                let syndrome = seen.aeth.map_or(0, |aeth| aeth.syndrome);
                tally.sequence_naks_sent += u64::from(syndrome == 0x60);
                tally.rnr_naks_sent += u64::from((0x20..0x40).contains(&syndrome));
            }
            (rows, psn)
        };
        connection.frames_left = connection.frames_left.saturating_sub(1);
        Ok(Known { rows, connection: at, requester, psn })
    }

    fn take_events(&mut self, at: usize) {
        while let Some(event) = self.endpoints[at].poll_event() {
            self.model.activity = true;
            let Some(connection) = self.model.connection_of(at, event.qpn.get()) else { continue };
            let end = &mut self.model.connections[connection].ends[at];
            end.failed = true;
            if !end.may_fail {
                let text =
                    format!("queue pair {} of host {at} has event {} and no reason for it", event.qpn, event.kind);
                self.model.note(Err(Violation { checker: "event", text }));
            }
        }
    }

    /// What queue pairs want of keys is done as a control side does it: some time later, for all.
    fn change_keys(&mut self) {
        for at in 0..2 {
            while let Some(change) = self.endpoints[at].poll_key_change() {
                let due = self.now + self.random.pick(&[0, 0, 3_000, 100_000]);
                self.changing.push((due, at, change));
            }
        }
        while let Some(place) = self.changing.iter().position(|(due, ..)| *due <= self.now) {
            let (_, at, change) = self.changing.swap_remove(place);
            self.change_key(at, change);
            self.model.activity = true;
        }
    }

    fn change_key(&mut self, at: usize, change: KeyChange) {
        let KeyWish::InvalidateRemotely(MrKey(key)) = change.wish else {
            let text = format!("host {at} wants {change:?}, which nobody asked for");
            return self.model.note(Err(Violation { checker: "frame", text }));
        };
        let connection = self.model.connection_of(at, change.qpn.get());
        let slot = connection.map(|connection| self.model.connections[connection].slot);
        let done = slot.filter(|slot| slot_key(*slot, self.model.hosts[at].generations[*slot]) == key);
        if let (Some(slot), Some(connection)) = (done, connection) {
            self.renew_key(at, slot, change.qpn);
            self.model.connections[connection].ends[1 - at].stream.on_invalidated(key);
        }
        if let (None, Some(connection)) = (done, connection) {
            // The key was taken back meanwhile: what names it is refused.
            let [first, second] = &mut self.model.connections[connection].ends;
            let (own, peer) = if at == 0 { (first, second) } else { (second, first) };
            own.may_fail |= peer.stream.refusal_arrived;
        }
        let mut app = AppView { model: &mut self.model, host: at };
        self.endpoints[at].finish_key_change(Nanos(self.now), change.qpn, change.ticket, done.is_some(), &mut app);
    }

    /// A host goes away with all that its endpoint knew, and comes back empty.
    fn restart(&mut self) {
        self.restart_at = u64::MAX;
        let at = self.random.below(2) as usize;
        if self.model.trace {
            println!("{:>12} host {at}   restarts", self.now);
        }
        self.check_counters(at, true);
        self.changing.retain(|(_, host, _)| *host != at);
        let slots = self.model.connections.len();
        self.endpoints[at] = host::endpoint(at, slots, &self.model.hosts[at].generations, self.recovery[at]);
        self.model.hosts[at].tally = Tally::default();
        self.model.hosts[at].by_index.fill(None);
        for slot in 0..slots {
            let connection = &mut self.model.connections[slot];
            if matches!(connection.phase, Phase::Closed { .. }) {
                continue;
            }
            connection.ends[at].gone = true;
            let under_way = connection.ends.iter().flat_map(|end| end.stream.outstanding().map(|message| message.rows));
            for rows in under_way.collect::<Vec<_>>() {
                self.model.count_hits(rows, 1 << Fault::PeerRestart as usize);
            }
        }
    }

    pub(crate) fn check_counters(&mut self, at: usize, holds: bool) {
        let checked =
            self.model.hosts[at].tally.check(&self.endpoints[at].counters(), self.endpoints[at].drops(), holds);
        self.model.note(
            checked.map_err(|violation| Violation { text: format!("host {at}: {}", violation.text), ..violation }),
        );
    }

    /// Makes the connection of a slot, after the one that was there.
    pub(crate) fn connect(&mut self, slot: usize, before: Option<&Settings>) -> Connection {
        let mut settings = Settings::draw(&mut self.random);
        if let Some(before) = before
            && !self.random.chance(self.weather.mtu_change)
        {
            settings.mtu = before.mtu;
        }
        let index = self.next_index;
        self.next_index += 1;
        // Half of the connections come to the wrap.
        let psns = [(); 2].map(|()| {
            let below = if self.random.one_in(2) { 300 } else { 1 << 24 };
            0x00ff_ffff - self.random.below(below) as u32
        });
        let qpns = [0, 1].map(|at| host::qpn(at, index));
        for at in 0..2 {
            host::connect(&mut self.endpoints[at], at, qpns[at], qpns[1 - at], &settings, psns);
            self.model.hosts[at].by_index[index as usize] = Some(slot);
            self.renew_key(at, slot, qpns[at]);
        }
        if self.model.trace {
            println!(
                "{:>12} slot {slot}   connection {index}, PSNs {psns:?}, {settings:?}, {:?}",
                self.now, self.recovery
            );
        }
        let keeps = self.recovery.map(|recovery| recovery.kind == Recovery::Selective);
        let stream = |at: usize| Stream::new(&settings, keeps[at], self.network.round_trip(), psns[at], self.now);
        let ends = [0, 1].map(|at| End::new(qpns[at].get(), stream(at)));
        Connection {
            slot,
            settings,
            ends,
            phase: Phase::Open,
            mtu_changed: before.is_some_and(|before| before.mtu != settings.mtu),
            frames_left: self.random.within(200, 2_000),
        }
    }

    /// The slot's key of a host is taken back, and another is made.
    pub(crate) fn take_key_back(&mut self, at: usize, slot: usize) {
        let owner = Qpn::from_wire(self.model.connections[slot].ends[at].qpn);
        let generation = self.renew_key(at, slot, owner);
        let stream = &mut self.model.connections[slot].ends[1 - at].stream;
        let complete = stream.complete;
        for id in complete.min(stream.executed.id)..stream.posted() {
            if let Some(message) = stream.message_mut(id)
                && (message.generation == Some(generation) && message.length > 0
                    || message.invalidates && message.rkey == slot_key(slot, generation))
            {
                message.may_fail = true;
            }
        }
        // What of them arrived before is refused now, or will be.
        let arrived = |first: u64, end: u64| {
            first < stream.covered || stream.beyond.iter().any(|(from, to)| *from < end && first < *to)
        };
        stream.refusal_arrived |=
            stream.messages.iter().any(|message| message.may_fail && arrived(message.first, message.end()));
    }

    /// Another key opens a slot's sink, to that queue pair's peer; gives the generation of the one that does no more.
    fn renew_key(&mut self, at: usize, slot: usize, owner: Qpn) -> u32 {
        let slots = self.model.hosts[at].generations.len();
        let generation = self.model.hosts[at].generations[slot];
        self.endpoints[at].remove_mr(MrKey(slot_key(slot, generation))).expect("it is good");
        host::insert_slot_key(&mut self.endpoints[at], slots, slot, generation + 1, Scope::WindowOf(owner));
        self.model.hosts[at].generations[slot] = generation + 1;
        if self.model.trace {
            println!("{:>12} host {at}   takes back key {generation} of slot {slot}", self.now);
        }
        generation
    }

    /// Something takes longer than anything can.
    pub(crate) fn check_patience(&mut self, since: u64, what: &str) -> Checked {
        if self.now - since <= PATIENCE {
            return Ok(());
        }
        let text = format!("{what} for {} ms: {}", (self.now - since) / 1_000_000, self.waiting());
        Err(Violation { checker: "hang", text })
    }
}

fn describe(seen: &frame::Seen<'_>) -> String {
    let aeth = seen.aeth.map(|aeth| format!(" syndrome {:#04x} msn {}", aeth.syndrome, aeth.msn)).unwrap_or_default();
    let reth = seen.reth.map(|reth| format!(" va {:#x} key {:#x} of {}", reth.va, reth.rkey, reth.length));
    format!(
        "{:#08x} {:?}{}{} psn {}{}{} {} bytes",
        seen.dest_qpn,
        seen.kind,
        if seen.begins { " first" } else { "" },
        if seen.ends { " last" } else { "" },
        seen.psn,
        if seen.ack_request { " A" } else { "" },
        aeth + &reth.unwrap_or_default(),
        seen.payload.len()
    )
}

fn line(bytes: &[u8]) -> String {
    frame::parse(bytes).map(|seen| describe(&seen)).unwrap_or_default()
}
