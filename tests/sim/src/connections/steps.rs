//! Calls of programs about their ends.

use std::{net::SocketAddr, time::Duration};

use roced_cm::identifiers::{IdKey, IdOption, IdService, OwnerId, Parameters};
use roced_types::Qpn;

use super::{
    agenda::Step,
    ends::{Side, Stage},
    machine::account_of,
    numbers::{data_bytes, private_data},
    surroundings::address,
    tally::Count,
    world::{World, trace},
};
use crate::violation::Checked;

/// How long a neighbor is waited for.
const NEIGHBOR: Duration = Duration::from_secs(2);

impl World {
    /// A program does something about an end, if that is still there and in that state.
    pub(crate) fn step(&mut self, end: usize, step: Step) -> Checked {
        let of = &self.ends.all[end];
        if of.gone.is_some() || !self.programs[of.program].is_alive {
            return Ok(());
        }
        let (host, stage) = (of.host, of.stage);
        trace!(self, "host {host} end {end}: {step:?} in {stage:?}");
        self.machines[host].surroundings.account = account_of(of.key.owner);
        match step {
            Step::ResolveAddress if stage == Stage::Created => self.resolve_address(end),
            Step::ResolveRoute if stage == Stage::Resolved => {
                let resolved = self.machines[host].ids.resolve_route(self.ends.all[end].key);
                self.note(end, resolved.is_ok());
            }
            Step::Connect if stage == Stage::Routed => self.connect(end),
            Step::Accept if stage == Stage::Requested => self.accept(end),
            Step::Confirm if stage == Stage::Answered => self.confirm(end),
            Step::Reject => self.reject(end),
            Step::Data if stage == Stage::Accepted => self.receive_data(end),
            Step::Disconnect | Step::Fail if matches!(stage, Stage::Open | Stage::Over) => self.disconnect(end),
            Step::Destroy => self.destroy(host, self.ends.all[end].key),
            _ => {}
        }
        self.flush(host)
    }

    /// A call that is refused ends the attempt.
    fn note(&mut self, end: usize, is_accepted: bool) {
        if !is_accepted {
            self.ends.tally.count(Count::CallsRefused);
            self.ends.set_stage(end, Stage::Over, self.now);
            self.ends.all[end].is_call_refused = true;
            self.plan(end, Step::Destroy, Duration::from_secs(1));
        }
    }

    fn resolve_address(&mut self, end: usize) {
        let of = &mut self.ends.all[end];
        let machine = &mut self.machines[of.host];
        let to = SocketAddr::new(address(of.peer_host, of.is_ipv6), of.port);
        if of.service == IdService::Reliable && self.random.chance(self.manners.ack_timeouts) {
            let timeout = self.random.pick(&[0, 8, 14, 20, 31]);
            of.has_ack_timeout = machine.ids.set_option(of.key, IdOption::AckTimeout(timeout)).is_ok();
        }
        let source = self.random.one_in(4).then(|| SocketAddr::new(address(of.host, of.is_ipv6), 0));
        let key = of.key;
        self.ends.set_stage(end, Stage::Resolving, self.now);
        let resolved = machine.ids.resolve_address(key, source, to, NEIGHBOR, &mut machine.surroundings, self.now);
        self.note(end, resolved.is_ok());
    }

    /// A queue pair for an end.
    fn take_number(&mut self, end: usize) -> Option<u32> {
        let of = &mut self.ends.all[end];
        let number = self.machines[of.host].numbers.take(&mut self.random, self.now)?;
        of.qpn = number;
        of.has_queue_pair = true;
        Some(number)
    }

    fn connect(&mut self, end: usize) {
        let Some(number) = self.take_number(end) else { return self.note(end, false) };
        let of = &mut self.ends.all[end];
        of.acted = Some(self.now);
        let data = private_data(end, data_bytes(end));
        let asked = self.machines[of.host].ids.connect(of.key, &parameters(number), &data, self.now);
        self.ends.set_stage(end, Stage::Asking, self.now);
        self.ends.tally.count(Count::Connects);
        self.note(end, asked.is_ok());
        self.maybe_regret(end);
    }

    fn accept(&mut self, end: usize) {
        let Some(number) = self.take_number(end) else { return self.reject(end) };
        let of = &mut self.ends.all[end];
        of.acted = Some(self.now);
        let (key, is_datagram) = (of.key, of.service == IdService::Datagram);
        let data = private_data(end, data_bytes(end));
        let ids = &mut self.machines[of.host].ids;
        let accepted = ids.accept(key, end as u64 + 1, &parameters(number), &data, self.now);
        self.ends.set_stage(end, if is_datagram { Stage::Over } else { Stage::Accepted }, self.now);
        self.note(end, accepted.is_ok());
        if accepted.is_ok() {
            self.maybe_regret(end);
        }
    }

    fn confirm(&mut self, end: usize) {
        let of = &self.ends.all[end];
        let (host, key, partner) = (of.host, of.key, of.partner);
        let confirmed = self.machines[host].ids.confirm(key, self.now);
        if confirmed.is_ok() {
            self.ends.set_stage(end, Stage::Open, self.now);
            self.plan_life(end);
            if let Some(partner) = partner.filter(|_| self.random.chance(self.manners.data_first)) {
                self.plan(partner, Step::Data, Duration::from_millis(100));
            }
        }
        self.note(end, confirmed.is_ok());
    }

    fn reject(&mut self, end: usize) {
        let of = &self.ends.all[end];
        let is_attempt = matches!(of.stage, Stage::Asking | Stage::Answered | Stage::Requested | Stage::Accepted);
        if !is_attempt {
            return;
        }
        if matches!(of.stage, Stage::Asking | Stage::Accepted) {
            self.ends.tally.count(Count::GivenUp);
        }
        let rejected = self.machines[of.host].ids.reject(of.key, 0, &[], self.now);
        let is_question = of.service == IdService::Datagram && of.side == Side::Active;
        if rejected.is_ok() || !is_question {
            self.ends.set_stage(end, Stage::Over, self.now);
            self.ends.all[end].is_call_refused = rejected.is_err();
        }
        self.plan(end, Step::Destroy, Duration::from_secs(3));
    }

    /// Data of the peer comes to the queue pair, if the peer has confirmed.
    fn receive_data(&mut self, end: usize) {
        let of = &self.ends.all[end];
        let other = of.partner.map(|partner| &self.ends.all[partner]);
        if other.is_some_and(|other| other.stage == Stage::Open && other.partner == Some(end)) {
            let machine = &mut self.machines[of.host];
            // It may be refused: the peer's end is over.
            let _ = machine.ids.establish(of.key, &mut machine.surroundings, self.now);
        }
    }

    fn disconnect(&mut self, end: usize) {
        let of = &mut self.ends.all[end];
        let disconnected = self.machines[of.host].ids.disconnect(of.key, self.now);
        if of.stage == Stage::Open && disconnected.is_ok() {
            of.disconnected = of.disconnected.or(Some(self.now));
        }
    }

    /// Destroys an identifier, with the requests of a listener that were not taken.
    pub(crate) fn destroy(&mut self, host: usize, key: IdKey) {
        let machine = &mut self.machines[host];
        machine.ids.destroy(key, &mut machine.surroundings, self.now).expect("it is there");
        self.listeners.remove(&(host, key));
        machine.surroundings.untaken.remove(&key);
        if let Some(end) = self.ends.at(host, key) {
            self.give_number_back(end);
            self.ends.end(end, self.now);
        }
        let channel = &mut self.programs[key.owner.0 as usize].channel;
        let (gone, left) = std::mem::take(channel).into_iter().partition(|(owner, of, ..)| *owner == key || *of == key);
        *channel = left;
        for (_, request, ..) in gone {
            if request != key && self.ends.at(host, request).is_some() {
                self.destroy(host, request);
            }
        }
    }

    /// The queue pair of an end is destroyed.
    pub(crate) fn give_number_back(&mut self, end: usize) {
        let of = &mut self.ends.all[end];
        if std::mem::take(&mut of.has_queue_pair) {
            self.machines[of.host].numbers.give_back(of.qpn, self.now);
        }
    }

    /// A program listens no more on its first port.
    pub(crate) fn unlisten(&mut self, program: usize) -> Checked {
        let of = &mut self.programs[program];
        let host = of.host;
        if of.is_alive && !of.listening.is_empty() {
            let key = of.listening.remove(0);
            self.destroy(host, key);
        }
        self.flush(host)
    }

    /// Destroys some identifiers of programs that are gone.
    pub(crate) fn end_some(&mut self, host: usize, most: u64) -> Checked {
        for _ in 0..most {
            let Some(owner) = self.machines[host].ending.front().copied() else { break };
            if let Some(key) = self.machines[host].ids.first_of(owner) {
                self.destroy(host, key);
            } else {
                self.machines[host].ids.forget_owner(owner);
                self.machines[host].ending.pop_front();
            }
        }
        self.flush(host)
    }
}

fn parameters(number: u32) -> Parameters {
    Parameters {
        qpn: Qpn::from_wire(number),
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 7,
        rnr_retry_count: 7,
        ..Parameters::default()
    }
}

/// The owner of a program's identifiers.
pub(crate) const fn owner_of(program: usize) -> OwnerId {
    OwnerId(program as u32)
}
