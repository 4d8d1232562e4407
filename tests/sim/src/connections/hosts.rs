//! Hosts: they crash, stop, start, and lose their device; programs are killed; neighbors answer.

use std::time::Duration;

use roced_cm::PeerAddress;
use roced_types::gid_of;

use super::{
    agenda::Act,
    audit::INTERVAL,
    check::conversation::Conversation,
    ends::Stage,
    machine::Machine,
    manners::up_to,
    steps::owner_of,
    surroundings::{DEVICE, address},
    tally::Count,
    world::{World, trace},
};
use crate::violation::Checked;

impl World {
    pub(crate) fn draw_misfortunes(&mut self) {
        let manners = self.manners.clone();
        let make = |host| [Act::Crash(host), Act::Stop(host), Act::Remove(host)];
        for (kind, count) in [manners.crashes, manners.stops, manners.removals].into_iter().enumerate() {
            for _ in 0..count {
                let host = self.random.below(manners.hosts as u64) as usize;
                let at = self.now + up_to(&mut self.random, manners.active);
                self.agenda.put(at, make(host)[kind]);
            }
        }
    }

    pub(crate) fn act(&mut self, act: Act) -> Checked {
        match act {
            Act::Begin(program) => return self.begin(program),
            Act::Ask(program) => return self.ask(program),
            Act::Take(program) => self.take(program),
            Act::Unlisten(program) => return self.unlisten(program),
            Act::Step(end, step) => return self.step(end, step),
            Act::Kill(program) => self.kill(program),
            Act::Crash(host) => return self.crash(host),
            Act::Stop(host) => self.stop(host),
            Act::Start(host) => self.start(host),
            Act::Remove(host) => return self.remove_device(host),
            Act::Return(host) => self.machines[host].surroundings.has_device = true,
            Act::Neighbor(host, peer, is_ipv6) => return self.answer_neighbor(host, peer, is_ipv6),
            Act::EndSome(host) => {
                let most = self.random.pick(&[1, 4, 256]);
                self.end_some(host, most)?;
                if !self.machines[host].ending.is_empty() {
                    self.agenda.put(self.now + Duration::from_millis(1), act);
                }
            }
            Act::Audit => {
                self.agenda.put(self.now + INTERVAL, act);
                return self.audit();
            }
        }
        Ok(())
    }

    /// A program is gone: its queue pairs and its channel at once, its identifiers by and by.
    pub(crate) fn kill(&mut self, program: usize) {
        let of = &mut self.programs[program];
        if !std::mem::take(&mut of.is_alive) {
            return;
        }
        trace!(self, "program {program} is killed");
        self.ends.tally.count(Count::Killed);
        let of = &mut self.programs[program];
        of.channel.clear();
        let host = of.host;
        let its: Vec<_> = self.ends.here.iter().copied().filter(|end| self.ends.all[*end].program == program).collect();
        its.into_iter().for_each(|end| self.give_number_back(end));
        let untaken = &mut self.machines[host].surroundings.untaken;
        untaken.retain(|listener, _| listener.owner != owner_of(program));
        self.machines[host].ending.push_back(owner_of(program));
        self.agenda.put(self.now, Act::EndSome(host));
    }

    fn crash(&mut self, host: usize) -> Checked {
        let machine = &mut self.machines[host];
        if !std::mem::take(&mut machine.is_up) {
            return Ok(());
        }
        trace!(self, "host {host} crashes");
        self.ends.tally.count(Count::Crashes);
        self.conversations[host].check_counters(host, self.machines[host].ids.counters())?;
        self.ends.on_crash(host, self.now);
        self.listeners.retain(|(of, _), _| *of != host);
        for program in self.programs.iter_mut().filter(|program| program.host == host) {
            program.is_alive = false;
            program.channel.clear();
        }
        let at = self.now + Duration::from_millis(self.random.pick(&[0, 200, 3_000, 100_000]));
        self.agenda.put(at, Act::Start(host));
        Ok(())
    }

    /// All programs of a host end, and it restarts when it has told their peers.
    fn stop(&mut self, host: usize) {
        if self.machines[host].is_up {
            self.ends.tally.count(Count::Stops);
            for program in 0..self.programs.len() {
                if self.programs[program].host == host {
                    self.kill(program);
                }
            }
            self.agenda.put(self.now + Duration::from_secs(3), Act::Crash(host));
        }
    }

    fn start(&mut self, host: usize) {
        trace!(self, "host {host} starts");
        let life = self.machines[host].life + 1;
        self.machines[host] = Machine::new(host, life, &self.manners, &mut self.random);
        self.conversations[host] = Conversation::default();
        self.add_program(host, self.now);
    }

    fn remove_device(&mut self, host: usize) -> Checked {
        let machine = &mut self.machines[host];
        if !machine.is_up || !machine.surroundings.has_device {
            return Ok(());
        }
        machine.surroundings.has_device = false;
        trace!(self, "host {host}: its device is gone");
        self.ends.tally.count(Count::DeviceGone);
        let until = self.now + Duration::from_millis(self.random.pick(&[100, 5_000, 30_000]));
        self.ends.on_outage(host, self.now, until);
        self.agenda.put(until, Act::Return(host));
        self.machines[host].ids.on_device_removal(DEVICE, self.now);
        // Programs are told nothing about requests that they have not accepted.
        let requested =
            |end: &&usize| (self.ends.all[**end].host, self.ends.all[**end].stage) == (host, Stage::Requested);
        for end in self.ends.here.iter().filter(requested).copied().collect::<Vec<_>>() {
            self.ends.set_stage(end, Stage::Over, self.now);
        }
        self.flush(host)
    }

    /// Neighbors that the identifiers of a host wait for answer, or not.
    pub(crate) fn ask_neighbors(&mut self, host: usize) {
        for gid in std::mem::take(&mut self.machines[host].surroundings.asked) {
            if !self.random.chance(self.manners.silent) {
                let at = self.now + Duration::from_micros(self.random.pick(&[0, 200, 1_500_000]));
                let is_ipv6 = gid[0] != 0;
                self.agenda.put(at, Act::Neighbor(host, usize::from(gid[15]) - 1, is_ipv6));
            }
        }
    }

    fn answer_neighbor(&mut self, host: usize, peer: usize, is_ipv6: bool) -> Checked {
        let machine = &mut self.machines[host];
        if !machine.is_up {
            return Ok(());
        }
        let [local, remote] = [host, peer].map(|of| gid_of(address(of, is_ipv6)));
        machine.surroundings.neighbors.insert(remote);
        machine.ids.on_neighbor(PeerAddress { device: DEVICE, vlan: None, local, remote });
        self.flush(host)
    }
}
