//! The steps of a seed, from its first moment to its end.
//!
//! A step of time: frames that have arrived go in, timers that have run out fire, applications
//! post, frames leave. Then time jumps to the next thing that can happen.

use roced_transport::{clock::Nanos, counters::QpCount};
use roced_types::{Qpn, event};

use super::{FRAMES, Outcome, World};
use crate::{
    connection::Phase,
    model::{AppView, Model},
    say::say,
    table::Table,
    violation::Violation,
};

/// No packet is held longer than this, in nanoseconds: longer than any way through a network that
/// is whole.
const HELD_MOST: u64 = 5_000_000;

/// More frames than any seed needs.
const FRAMES_MAX: u64 = 100 * FRAMES;

impl World {
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
        (0..2).for_each(|at| self.change_pauses(at));
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
        let others = [self.network.next(), self.restart_at];
        let of_hosts = self.look_again.into_iter().chain(self.pauses.next);
        let shared = self.model.hosts.iter().filter_map(|host| host.shared.as_ref());
        let posts = shared.map(|shared| shared.post_at).filter(|at| *at > self.now);
        let changes = self.changing.iter().map(|(due, ..)| *due);
        let drained = self.next_after_drain();
        timers
            .chain(waits)
            .chain(drained)
            .chain(others)
            .chain(of_hosts)
            .chain(changes)
            .chain(posts)
            .min()
            .unwrap_or(u64::MAX)
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

    pub(super) fn check_counters(&mut self, at: usize, holds: bool) {
        let checked =
            self.model.hosts[at].tally.check(&self.endpoints[at].counters(), self.endpoints[at].drops(), holds);
        let checked = checked.and_then(|()| self.check_notification_counters(at));
        self.model.note(
            checked.map_err(|violation| Violation { text: format!("host {at}: {}", violation.text), ..violation }),
        );
    }
}
