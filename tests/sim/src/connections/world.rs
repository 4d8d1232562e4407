//! The run of a seed: time passes, frames travel, programs act.

use std::{collections::BTreeMap, time::Duration};

use roced_cm::{
    PeerAddress,
    identifiers::{EventKind, IdEvent, IdKey},
};

use super::{
    ConnectionOutcome,
    agenda::{Act, Agenda},
    audit::INTERVAL,
    check::{conversation::Conversation, events::Listener, leftovers},
    ends::Ends,
    links::{Flight, Links},
    machine::Machine,
    mad::{self, MadKind, SeenMad},
    manners::Manners,
    numbers::REST,
    programs::Program,
    surroundings::host_of,
    tally::Count,
};
use crate::{
    random::Random,
    violation::{Checked, Violation, demand},
};

/// Long enough for everything that was begun.
const SETTLED: Duration = Duration::from_secs(400);

/// A run.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    trace: bool,
    pub(crate) manners: Manners,
    pub(crate) machines: Vec<Machine>,
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) links: Links,
    pub(crate) programs: Vec<Program>,
    pub(crate) listeners: BTreeMap<(usize, IdKey), Listener>,
    pub(crate) ends: Ends,
    pub(crate) agenda: Agenda,
    frames: u64,
}

/// Prints a line about the run, if that is asked for.
macro_rules! trace {
    ($world:expr, $($text:tt)+) => {
        if $world.is_traced() {
            $crate::say(format_args!("{:>12.6} {}", $world.now.as_secs_f64(), format!($($text)+)));
        }
    };
}

pub(crate) use trace;

impl World {
    /// A seed, drawn.
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed ^ 0xc0_44ec7);
        let manners = Manners::draw(&mut random);
        let links = Links::draw(&mut random, &manners);
        let mut world = Self::with(random, manners, links, trace);
        world.draw_programs();
        world.draw_misfortunes();
        world
    }

    pub(crate) fn with(mut random: Random, manners: Manners, links: Links, trace: bool) -> Self {
        let machines = (0..manners.hosts).map(|host| Machine::new(host, 0, &manners, &mut random)).collect();
        Self {
            now: Duration::from_secs(1),
            conversations: (0..manners.hosts).map(|_| Conversation::default()).collect(),
            random,
            trace,
            manners,
            machines,
            links,
            programs: Vec::new(),
            listeners: BTreeMap::new(),
            ends: Ends::default(),
            agenda: Agenda::default(),
            frames: 0,
        }
    }

    pub(crate) const fn is_traced(&self) -> bool {
        self.trace
    }

    pub(crate) fn run(mut self) -> ConnectionOutcome {
        let result = self.live();
        self.outcome(result)
    }

    pub(crate) fn outcome(self, result: Checked) -> ConnectionOutcome {
        ConnectionOutcome { frames: self.frames, tally: self.ends.tally, violation: result.err() }
    }

    fn live(&mut self) -> Checked {
        trace!(self, "{:?}\n{:?}", self.manners, self.links);
        self.agenda.put(self.now + INTERVAL, Act::Audit);
        self.until(self.now + self.manners.active)?;
        self.until(self.now + SETTLED)?;
        self.audit()?;
        self.finish()
    }

    /// All programs end; then nothing is left.
    pub(crate) fn finish(&mut self) -> Checked {
        for program in 0..self.programs.len() {
            self.kill(program);
        }
        self.until(self.now + SETTLED)?;
        for host in 0..self.machines.len() {
            let machine = &mut self.machines[host];
            self.conversations[host].check_counters(host, machine.ids.counters())?;
            leftovers::check(host, machine, &self.manners, self.now)?;
        }
        Ok(())
    }

    /// Runs until a time.
    pub(crate) fn until(&mut self, end: Duration) -> Checked {
        loop {
            let timers = self.machines.iter().filter(|machine| machine.is_up).filter_map(|it| it.ids.poll_timeout());
            let next = timers.chain(self.links.next()).chain(self.agenda.next()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(flight) = self.links.take(self.now) {
                self.arrive(&flight)?;
            }
            for host in 0..self.machines.len() {
                let machine = &mut self.machines[host];
                if machine.is_up && machine.ids.poll_timeout().is_some_and(|at| at <= self.now) {
                    machine.ids.on_timeout(&mut machine.surroundings, self.now);
                    self.flush(host)?;
                }
            }
            while let Some(act) = self.agenda.take(self.now) {
                self.act(act)?;
            }
        }
        self.now = end;
        Ok(())
    }

    fn arrive(&mut self, flight: &Flight) -> Checked {
        let machine = &mut self.machines[flight.to];
        if !machine.is_up || !machine.surroundings.has_device {
            return Ok(());
        }
        let taken = machine.datagram(&flight.frame, self.now);
        let seen = SeenMad::of_frame(&flight.frame);
        let (Some((from, bytes)), Some(seen)) = (taken, seen) else {
            demand!(false, "frame", "queue pair 1 of host {} takes no frame: {seen:?}", flight.to);
            return Ok(());
        };
        trace!(self, "host {} <- {}: {}", flight.to, flight.from, described(&seen));
        let is_old = self.now - flight.sent >= REST || flight.life != self.machines[flight.from].life;
        if matches!(seen.kind, MadKind::Req | MadKind::Rep) && is_old {
            let is_ipv6 = from.remote[0] != 0;
            self.ends.confuse((flight.to, flight.from, is_ipv6, seen.qpn));
        }
        self.receive(flight.to, flight.from, &seen, from, &bytes)
    }

    fn receive(
        &mut self,
        host: usize,
        peer: usize,
        seen: &SeenMad,
        from: PeerAddress,
        bytes: &[u8; mad::BYTES],
    ) -> Checked {
        self.conversations[host].on_received(seen, peer);
        self.machines[host].on_datagram(from, bytes, self.now);
        self.flush(host)
    }

    /// Sends the datagrams of a host, and gives events to its programs.
    pub(crate) fn flush(&mut self, host: usize) -> Checked {
        self.ask_neighbors(host);
        while let Some(transmit) = self.machines[host].ids.poll_transmit() {
            let bytes = transmit.mad.to_bytes();
            let Some(seen) = SeenMad::of_bytes(&bytes) else {
                demand!(false, "frame", "host {host} sends {bytes:?}");
                continue;
            };
            let peer = host_of(roced_types::address_of(transmit.to.remote));
            self.conversations[host].on_sent(&seen, peer, self.now, &mut self.ends.tally)?;
            if peer == host {
                trace!(self, "host {host} -> itself: {}", described(&seen));
                self.ends.tally.count(Count::ToItself);
                let from = PeerAddress { local: transmit.to.remote, remote: transmit.to.local, ..transmit.to };
                self.conversations[host].on_received(&seen, host);
                self.machines[host].on_datagram(from, &bytes, self.now);
                continue;
            }
            self.frames += 1;
            let frame = self.machines[host].frame(&transmit, self.now);
            let framed = SeenMad::of_frame(&frame).is_some_and(|framed| framed.digest == seen.digest);
            demand!(framed, "frame", "host {host} sends {seen:?} in {frame:?}");
            if !self.machines[host].surroundings.has_device {
                continue;
            }
            let flight = Flight { from: host, to: peer, sent: self.now, life: self.machines[host].life, frame };
            let fate = self.links.send(flight, seen.kind, self.now, &mut self.ends.tally);
            trace!(self, "host {host} -> {peer}: {} {fate}", described(&seen));
        }
        while let Some(event) = self.machines[host].ids.poll_event() {
            self.tell(host, event)?;
        }
        while self.machines[host].ids.poll_refused().is_some() {}
        Ok(())
    }

    /// An event for a program.
    fn tell(&mut self, host: usize, event: IdEvent) -> Checked {
        let listener = self.listeners.get(&(host, event.owner)).copied();
        let end = self.ends.on_event(host, &event, listener, self.now)?;
        trace!(self, "host {host} end {end:?}: {:?} {}", event.kind, event.status);
        let program = event.owner.owner.0 as usize;
        let Some(of) = self.programs.get_mut(program) else {
            return Err(Violation { checker: "events", text: format!("of no program: {event:?}") });
        };
        if !of.is_alive {
            return Ok(());
        }
        if event.kind == EventKind::ConnectRequest {
            *self.machines[host].surroundings.untaken.entry(event.owner).or_insert(0) += 1;
        }
        of.channel.push_back((event.owner, event.key, event.kind, end));
        self.plan_taking(program);
        Ok(())
    }
}

fn described(seen: &SeenMad) -> String {
    let SeenMad { kind, own, other, qpn, reason, .. } = seen;
    format!("{kind:?} {own:08x} {other:08x} qpn {qpn:#x} reason {reason}")
}
