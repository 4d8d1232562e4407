//! One seed: two hosts, the network between them, and the clock that all of them are told.
//!
//! A step of time: frames that have arrived go in, timers that have run out fire, applications
//! post, frames leave. Then time jumps to the next thing that can happen.

use std::collections::VecDeque;

use roced_transport::{clock::Nanos, counters::QpCount, endpoint::Endpoint, qp::KeyChange, recovery::RecoveryConfig};
use roced_types::{Qpn, event};

use crate::{
    FRAMES, Outcome,
    check::Tally,
    connection::Phase,
    earlier::Earlier,
    fault::Weather,
    forger::Forger,
    host,
    layout::sink_bytes,
    leaving::Leaving,
    model::{AppView, HostModel, Model},
    network::Network,
    notified::NotifiedPeers,
    random::Random,
    reuse::Reuse,
    say::say,
    shared::Shared,
    table::Table,
    violation::{Checked, Violation},
};

/// A connection that is to end gets so much time for it, in nanoseconds, and a request for each
/// step forward. The slowest there are: eight time-outs of 4.2 ms, a link that is down for 50 ms,
/// receives that are late.
const ENDING_TIME_MAX_NS: u64 = 1_500_000_000;

/// No packet is held longer than this, in nanoseconds: longer than any way through a network that
/// is whole.
const HELD_MOST: u64 = 5_000_000;

/// More frames than any seed needs.
const FRAMES_MAX: u64 = 100 * FRAMES;

/// Everything of a seed.
pub(crate) struct World {
    pub(crate) endpoints: [Endpoint; 2],
    pub(crate) model: Model,
    pub(crate) network: Network,
    pub(crate) weather: Weather,
    pub(crate) recovery: [RecoveryConfig; 2],
    pub(crate) random: Random,
    pub(crate) now: u64,
    /// Frames that left, and with how many no more work is posted.
    pub(crate) sent: u64,
    pub(crate) enough: u64,
    pub(crate) next_index: u32,
    /// Once in so many work requests one ends its connection; 0 is never.
    pub(crate) fatal_every: u64,
    /// A host goes away at this moment.
    pub(crate) restart_at: u64,
    pub(crate) earlier: Earlier,
    pub(crate) leaving: Leaving,
    pub(crate) forger: Forger,
    pub(crate) notifications: NotifiedPeers,
    /// Connections may be of any service.
    pub(crate) mixed: bool,
    /// NICs that have room for few frames at a time.
    pub(crate) small_nic: bool,
    pub(crate) look_again: [u64; 2],
    /// Frames that were given to each host and when, of the last while.
    given: [VecDeque<(u64, u64)>; 2],
    /// Changes of keys that queue pairs wait for: when they are made, on which host, and whether it
    /// is still wanted.
    pub(crate) changing: Vec<(u64, usize, KeyChange, bool)>,
    pub(crate) out: Vec<Vec<u8>>,
    pub(crate) spare: Vec<Vec<u8>>,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather::forecast(&mut random);
        let slots = random.within(1, 4) as usize;
        let mut host = || HostModel {
            shared: random.one_in(3).then(|| Shared::draw(&mut random)),
            sink: vec![0; sink_bytes(slots)],
            generations: vec![0; slots],
            own_generations: vec![0; slots],
            reuse: vec![Reuse::default(); slots],
            by_index: vec![None; host::QPS_MAX as usize],
            tally: Tally::default(),
        };
        let model = Model {
            now: 0,
            calls: 0,
            hosts: [host(), host()],
            connections: Vec::new(),
            returned: Vec::new(),
            served: None,
            arriving: None,
            left: Vec::new(),
            violation: None,
            activity: false,
            trace,
            cells: Table::default().cells,
        };
        let network = Network::new(weather, Random::new(random.next()));
        let bears = network.disorder().is_some() && !random.one_in(4);
        let recovery = [(); 2].map(|()| if bears { host::BEARING } else { host::draw_recovery(&mut random) });
        let mut world = Self {
            endpoints: [0, 1].map(|at| host::endpoint(at, slots, &model.hosts[at], recovery[at])),
            recovery,
            model,
            network,
            weather,
            now: 1_000_000,
            sent: 0,
            enough: FRAMES + random.below(200),
            next_index: 2,
            fatal_every: random.pick(&[0, 10, 25, 70]),
            restart_at: u64::MAX,
            earlier: Earlier::draw(&mut random, weather.earlier_life),
            leaving: Leaving::draw(Random::new(!seed)),
            forger: Forger::draw(Random::new(seed.rotate_left(17) ^ 0x464f_5247)),
            notifications: NotifiedPeers::default(),
            mixed: random.one_in(2),
            small_nic: random.one_in(6),
            look_again: [u64::MAX; 2],
            given: Default::default(),
            changing: Vec::new(),
            out: Vec::new(),
            spare: Vec::new(),
            random,
        };
        for slot in 0..slots {
            let connection = world.connect(slot, false);
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
            (0..2).for_each(|at| self.post_shared(at));
            for at in 0..2 {
                self.transmit(at);
                self.take_events(at);
                self.take_limit_events(at);
            }
            self.change_keys();
            if !self.model.activity || self.model.violation.is_some() {
                break;
            }
        }
        (0..2).for_each(|at| self.check_held(at));
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

    /// Packets that an endpoint holds are taken or dropped before long, regardless of the fate of
    /// their senders.
    fn check_held(&mut self, at: usize) {
        let tally = &self.model.hosts[at].tally;
        let given = &mut self.given[at];
        if given.back().is_none_or(|(_, count)| *count != tally.given) {
            given.push_back((self.now, tally.given));
        }
        while given.get(1).is_some_and(|(since, _)| since + HELD_MOST <= self.now) {
            given.pop_front();
        }
        let checked = match given.front() {
            Some((since, count)) if since + HELD_MOST <= self.now => {
                let late = tally.given - count;
                tally.check_held(&self.endpoints[at].counters(), self.endpoints[at].drops(), late)
            }
            _ => Ok(()),
        };
        self.model.note(checked);
    }

    /// A host's endpoint is another.
    pub(crate) fn forget_given(&mut self, at: usize) {
        self.given[at].clear();
    }

    fn next_moment(&self) -> u64 {
        let timers = self.endpoints.iter().map(|endpoint| endpoint.poll_timeout().0);
        let waits = self.model.connections.iter().map(|connection| match connection.phase {
            Phase::Closed { .. } if self.has_enough() => u64::MAX,
            Phase::Closed { until } => until,
            _ => {
                let moments = connection.ends.iter().flat_map(|end| [end.receive_at, end.send_at, end.rts_at]);
                moments.filter(|at| *at > self.now).min().unwrap_or(u64::MAX)
            }
        });
        let others = [self.network.next(), self.restart_at, self.look_again[0], self.look_again[1]];
        let shared = self.model.hosts.iter().filter_map(|host| host.shared.as_ref());
        let posts = shared.map(|shared| shared.post_at).filter(|at| *at > self.now);
        let changes = self.changing.iter().map(|(due, ..)| *due);
        let drained = self.next_after_drain();
        timers.chain(waits).chain(drained).chain(others).chain(changes).chain(posts).min().unwrap_or(u64::MAX)
    }

    /// Unfinished work, as text for a person.
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

    fn fire_timers(&mut self, at: usize) {
        let mut app = AppView { model: &mut self.model, host: at };
        while self.endpoints[at].on_timeout(Nanos(self.now), 64, &mut app) == 64 {}
        for connection in &mut self.model.connections {
            let end = &mut connection.ends[at];
            let Some(qp) = self.endpoints[at].qp(Qpn::from_wire(end.qpn)) else { continue };
            if let Err(violation) = end.stream.check_implied(qp.counters().get(QpCount::ImpliedNak)) {
                self.model.violation.get_or_insert(violation);
            }
            let count = qp.counters().get(QpCount::AckTimeout);
            if count > end.stream.timeouts {
                end.stream.timeouts = count;
                if self.model.trace {
                    say(format_args!("{:>12} host {at}   ACK timer of {:#x}", self.now, end.qpn));
                }
                if let Err(violation) = end.stream.on_timeout(self.now) {
                    self.model.violation.get_or_insert(violation);
                }
            }
        }
    }

    fn take_events(&mut self, at: usize) {
        while let Some(event) = self.endpoints[at].poll_event() {
            self.model.activity = true;
            let Some(connection) = self.model.connection_of(at, event.qpn.get()) else { continue };
            if event.kind == event::SQ_DRAINED {
                let checked = self.on_drained(connection, at);
                self.model.note(checked);
                continue;
            }
            let connection = &mut self.model.connections[connection];
            let has_arrived = connection.ends[1 - at].stream.covered > connection.ends[1 - at].stream.start;
            let end = &mut connection.ends[at];
            if event.kind == event::COMMUNICATION_ESTABLISHED && end.rts_at > 0 && has_arrived {
                continue;
            }
            if event.kind == event::QP_LAST_WQE {
                let checked = end.check_last_wqe();
                self.model.note(checked);
                continue;
            }
            end.failed = true;
            if !end.may_fail {
                let text =
                    format!("queue pair {} of host {at} has event {} and no reason for it", event.qpn, event.kind);
                self.model.note(Err(Violation { checker: "event", text }));
            }
        }
    }

    pub(crate) fn check_counters(&mut self, at: usize, holds: bool) {
        let checked =
            self.model.hosts[at].tally.check(&self.endpoints[at].counters(), self.endpoints[at].drops(), holds);
        let checked = checked.and_then(|()| self.check_notification_counters(at));
        self.model.note(
            checked.map_err(|violation| Violation { text: format!("host {at}: {}", violation.text), ..violation }),
        );
    }

    /// Something takes longer than anything can.
    pub(crate) fn check_patience(&mut self, since: u64, what: &str) -> Checked {
        if self.now - since <= ENDING_TIME_MAX_NS {
            return Ok(());
        }
        let text = format!("{what} for {} ms: {}", (self.now - since) / 1_000_000, self.waiting());
        Err(Violation { checker: "hang", text })
    }
}
