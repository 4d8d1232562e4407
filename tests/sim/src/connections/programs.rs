//! Programs: their listeners, their requests, and how they react to events.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use roced_cm::{
    identifiers::{EventKind, IdKey, IdService, OwnerId},
    wire::PortSpace,
};

use super::{
    agenda::{Act, Step},
    check::{events::Listener, leftovers::PORTS},
    ends::{End, Side, Stage},
    machine::OWNERS,
    manners::up_to,
    surroundings::address,
    tally::Count,
    world::{World, trace},
};
use crate::violation::Checked;

/// An event in the channel of a program: the identifier that it belongs to, the one that it is
/// about, and its end.
type Waiting = (IdKey, IdKey, EventKind, Option<usize>);

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) host: usize,
    pub(crate) is_alive: bool,
    pub(crate) channel: VecDeque<Waiting>,
    is_taking: bool,
    /// Its identifiers that listen.
    pub(crate) listening: Vec<IdKey>,
}

/// Where nothing listens.
const NOWHERE: u16 = 7999;

/// Longest hesitation.
const HESITATION: Duration = Duration::from_secs(150);

/// The only event channel of a program.
pub(crate) const CHANNEL: u32 = 1;

/// Uid of listeners.
const LISTENING: u64 = 1 << 40;

/// Service of a port, and its port space.
const fn service_of(port: u16) -> (IdService, PortSpace) {
    match port {
        7003 => (IdService::Datagram, PortSpace::Udp),
        7004 => (IdService::Unreliable, PortSpace::Tcp),
        _ => (IdService::Reliable, PortSpace::Tcp),
    }
}

impl World {
    /// Each host has a program that listens from the start; others come.
    pub(crate) fn draw_programs(&mut self) {
        for host in 0..self.manners.hosts {
            self.add_program(host, self.now);
        }
        for _ in 0..self.manners.programs {
            let host = self.random.below(self.manners.hosts as u64) as usize;
            let at = self.now + up_to(&mut self.random, self.manners.active / 2);
            self.add_program(host, at);
        }
    }

    /// A program that begins at a time and asks for nothing by itself.
    pub(crate) fn add_quiet_program(&mut self, host: usize, at: Duration) -> usize {
        let (channel, listening) = (VecDeque::new(), Vec::new());
        self.programs.push(Program { host, is_alive: false, channel, is_taking: false, listening });
        let number = self.programs.len() - 1;
        self.agenda.put(at, Act::Begin(number));
        number
    }

    /// A program that begins at a time, and asks for connections at once.
    pub(crate) fn add_program(&mut self, host: usize, at: Duration) {
        if self.programs.len() >= OWNERS as usize {
            return;
        }
        let number = self.add_quiet_program(host, at);
        for _ in 0..self.random.within(1, self.manners.connects) {
            let at = at + Duration::from_millis(1) + up_to(&mut self.random, self.manners.within);
            self.agenda.put(at, Act::Ask(number));
        }
        if self.random.chance(self.manners.killed) {
            let at = at + up_to(&mut self.random, self.manners.active);
            self.agenda.put(at, Act::Kill(number));
        }
        if self.random.one_in(8) {
            let at = at + up_to(&mut self.random, self.manners.active);
            self.agenda.put(at, Act::Unlisten(number));
        }
    }

    /// A program begins: it listens on the ports that are free.
    pub(crate) fn begin(&mut self, program: usize) -> Checked {
        let host = self.programs[program].host;
        if !self.machines[host].is_up {
            return Ok(());
        }
        self.programs[program].is_alive = true;
        trace!(self, "host {host}: program {program} begins");
        for port in PORTS {
            self.listen(program, port);
        }
        self.flush(host)
    }

    fn listen(&mut self, program: usize, port: u16) {
        let host = self.programs[program].host;
        let (service, space) = service_of(port);
        let uid = LISTENING + u64::from(port);
        let is_all = self.random.one_in(2);
        let is_ipv6 = is_all || self.manners.ipv6 == 1_000_000;
        let at =
            if is_all { SocketAddr::from(([0_u16; 8], port)) } else { SocketAddr::new(address(host, is_ipv6), port) };
        let backlog = self.random.pick(&self.manners.backlogs);
        let machine = &mut self.machines[host];
        machine.surroundings.account = super::machine::account_of(OwnerId(program as u32));
        let Ok(key) = machine.ids.create(OwnerId(program as u32), CHANNEL, uid, space, service) else {
            self.ends.tally.count(Count::CallsRefused);
            return;
        };
        let bound = machine.ids.bind(key, at, &mut machine.surroundings);
        let listens = bound.and_then(|()| machine.ids.listen(key, backlog, &mut machine.surroundings));
        if listens.is_err() {
            // Another program has the port.
            self.ends.tally.count(Count::CallsRefused);
            machine.ids.destroy(key, &mut machine.surroundings, self.now).expect("it was created");
            return;
        }
        self.listeners.insert((host, key), Listener { program, port, service });
        self.programs[program].listening.push(key);
    }

    /// A program asks for a connection, or for the queue pair of a datagram service.
    pub(crate) fn ask(&mut self, program: usize) -> Checked {
        let Program { host, is_alive: true, .. } = self.programs[program] else { return Ok(()) };
        let random = &mut self.random;
        let others = self.manners.hosts as u64 - 1;
        let peer_host = if random.chance(self.manners.to_itself) {
            host
        } else {
            (host + 1 + random.below(others) as usize) % self.manners.hosts
        };
        let port = match () {
            () if random.chance(self.manners.nowhere) => NOWHERE,
            () if random.chance(self.manners.datagram) => PORTS[2],
            () if random.chance(self.manners.unreliable) => PORTS[3],
            () => random.pick(&PORTS[..2]),
        };
        let is_ipv6 = random.chance(self.manners.ipv6);
        let (service, space) = service_of(port);
        let uid = self.ends.all.len() as u64 + 1;
        let created = self.machines[host].ids.create(OwnerId(program as u32), CHANNEL, uid, space, service);
        let Ok(key) = created else {
            self.ends.tally.count(Count::CallsRefused);
            return Ok(());
        };
        let end = End::new(host, program, key, Side::Active, service);
        let end = self.ends.add(End { peer_host, port, is_ipv6, ..end });
        self.step(end, Step::ResolveAddress)
    }

    /// A program takes the events of its channel before long.
    pub(crate) fn plan_taking(&mut self, program: usize) {
        if !std::mem::replace(&mut self.programs[program].is_taking, true) {
            let at = self.now + up_to(&mut self.random, self.manners.slowest);
            self.agenda.put(at, Act::Take(program));
        }
    }

    /// A program takes its events.
    pub(crate) fn take(&mut self, program: usize) {
        let of = &mut self.programs[program];
        of.is_taking = false;
        let host = of.host;
        for (owner, _, kind, end) in std::mem::take(&mut of.channel) {
            if kind == EventKind::ConnectRequest
                && let Some(untaken) = self.machines[host].surroundings.untaken.get_mut(&owner)
            {
                *untaken -= 1;
            }
            if let Some(end) = end.filter(|end| self.ends.here.contains(end)) {
                self.react(end, kind);
            }
        }
    }

    fn react(&mut self, end: usize, kind: EventKind) {
        let slow = self.manners.slowest;
        match kind {
            EventKind::AddressResolved => self.plan(end, Step::ResolveRoute, slow),
            EventKind::RouteResolved => self.plan(end, Step::Connect, slow),
            EventKind::ConnectRequest => self.decide(end, Step::Accept),
            EventKind::ConnectResponse => self.decide(end, Step::Confirm),
            EventKind::Established if self.ends.all[end].stage == Stage::Open => self.plan_life(end),
            EventKind::Disconnected => {
                if !self.random.chance(self.manners.ignores) {
                    self.plan(end, Step::Disconnect, slow);
                }
                self.plan_end(end);
            }
            EventKind::TimeWaitExit => {}
            _ => self.plan_end(end),
        }
    }

    /// Accepts or confirms, or does something else.
    fn decide(&mut self, end: usize, step: Step) {
        let (random, manners) = (&mut self.random, &self.manners);
        if random.chance(manners.ignores) {
            return;
        }
        let most = if random.chance(manners.hesitates) { HESITATION } else { manners.slowest };
        let decision = if random.chance(manners.refuses) { random.pick(&[Step::Reject, Step::Destroy]) } else { step };
        self.plan(end, decision, most);
    }

    /// The program may give up an attempt that is under way.
    pub(crate) fn maybe_regret(&mut self, end: usize) {
        if self.random.chance(self.manners.regrets) {
            let step = self.random.pick(&[Step::Reject, Step::Destroy]);
            let most = self.random.pick(&[5, 300, 10_000]);
            self.plan(end, step, Duration::from_millis(most));
        }
    }

    /// How long an established connection lasts, if this end decides.
    pub(crate) fn plan_life(&mut self, end: usize) {
        if self.random.chance(self.manners.passive) {
            return;
        }
        let step = if self.random.chance(self.manners.abrupt) { Step::Destroy } else { Step::Disconnect };
        let most = self.random.pick(&[100, 5_000, 100_000]);
        self.plan(end, step, Duration::from_millis(most));
    }

    /// An identifier that is of no use any more is destroyed, at once or much later.
    fn plan_end(&mut self, end: usize) {
        if !self.random.chance(self.manners.ignores) {
            let most = self.random.pick(&[10, 2_000, 90_000]);
            self.plan(end, Step::Destroy, Duration::from_millis(most));
        }
    }

    pub(crate) fn plan(&mut self, end: usize, step: Step, most: Duration) {
        let at = self.now + up_to(&mut self.random, most);
        self.agenda.put(at, Act::Step(end, step));
    }
}
