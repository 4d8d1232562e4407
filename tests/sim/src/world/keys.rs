//! Keys that come and go: changed as a control side does it, or taken back by the application.

use roced_transport::{
    clock::Nanos,
    mr::{MrKey, Scope},
    qp::{KeyChange, KeyRequest},
};
use roced_types::Qpn;

use super::World;
use crate::{
    host,
    layout::{own_key, slot_key},
    model::AppView,
    say::say,
    violation::Violation,
};

impl World {
    /// Key changes that queue pairs want are made as a control side makes them: some time later,
    /// for all.
    pub(super) fn change_keys(&mut self) {
        for at in 0..2 {
            while let Some(change) = self.endpoints[at].poll_key_change() {
                let due = self.now + self.random.pick(&[0, 0, 3_000, 100_000]);
                self.changing.push((due, at, change, true));
            }
        }
        while let Some(place) = self.changing.iter().position(|(due, ..)| *due <= self.now) {
            let (_, at, change, is_wanted) = self.changing.swap_remove(place);
            if is_wanted {
                self.change_key(at, change);
            } else {
                let mut app = AppView { model: &mut self.model, host: at };
                self.endpoints[at].finish_key_change(Nanos(self.now), change.qpn, change.ticket, true, &mut app);
            }
            self.model.activity = true;
        }
    }

    /// A queue pair's life is over: the key changes that it wanted are not made any more. If it
    /// went through RESET it hears late that it was.
    pub(super) fn forget_changes(&mut self, at: usize, qpn: Qpn, was_reset: bool) {
        let is_of = |(_, host, change, _): &(u64, usize, KeyChange, bool)| *host == at && change.qpn == qpn;
        self.changing.retain(|change| was_reset || !is_of(change));
        self.changing.iter_mut().filter(|change| is_of(change)).for_each(|change| change.3 = false);
    }

    fn change_key(&mut self, at: usize, change: KeyChange) {
        let key = match change.wish {
            KeyRequest::InvalidateRemotely(MrKey(key)) => key,
            KeyRequest::InvalidateLocally(MrKey(key)) => return self.invalidate_own_key(at, change, key),
            KeyRequest::Bind { .. } => {
                let text = format!("host {at} wants {change:?}, which no application asked for");
                return self.model.note(Err(Violation { checker: "frame", text }));
            }
        };
        let connection = self.model.connection_of(at, change.qpn.get());
        let slot = connection.map(|connection| self.model.connections[connection].slot);
        let done = slot.filter(|slot| slot_key(*slot, self.model.hosts[at].generations[*slot]) == key);
        if let (Some(slot), Some(connection)) = (done, connection) {
            self.renew_key(at, slot, change.qpn);
            self.model.connections[connection].ends[1 - at].stream.on_invalidated(key);
        }
        if let (None, Some(connection)) = (done, connection) {
            // The key was taken back meanwhile: requests that name it are refused.
            let [first, second] = &mut self.model.connections[connection].ends;
            let (own, peer) = if at == 0 { (first, second) } else { (second, first) };
            own.on_refusable(&peer.stream);
        }
        if let Some(connection) = connection {
            let quiet_from = &mut self.model.connections[connection].quiet_from;
            *quiet_from = self.now.max(*quiet_from);
        }
        self.model.served = connection;
        let mut app = AppView { model: &mut self.model, host: at };
        self.endpoints[at].finish_key_change(Nanos(self.now), change.qpn, change.ticket, done.is_some(), &mut app);
    }

    /// A host's own key opens nothing any more, and another is made.
    fn invalidate_own_key(&mut self, at: usize, change: KeyChange, key: u32) {
        let connection = self.model.connection_of(at, change.qpn.get());
        let slots = self.model.hosts[at].generations.len();
        let good = |slot: &usize| own_key(*slot, self.model.hosts[at].own_generations[*slot]) == key;
        let slot = connection.filter(good);
        if let Some(slot) = slot {
            let generation = self.model.hosts[at].own_generations[slot];
            self.endpoints[at].remove_mr(MrKey(key)).expect("it is good");
            host::insert_own_key(&mut self.endpoints[at], slots, slot, generation + 1);
            self.model.hosts[at].own_generations[slot] = generation + 1;
            self.model.connections[slot].ends[at].stream.on_invalidated(key);
            if self.model.trace {
                say(format_args!("{:>12} host {at}   makes its own key {generation} of slot {slot} invalid", self.now));
            }
        }
        self.model.served = connection;
        let mut app = AppView { model: &mut self.model, host: at };
        self.endpoints[at].finish_key_change(Nanos(self.now), change.qpn, change.ticket, slot.is_some(), &mut app);
    }

    /// The slot's key of a host is taken back, and another is made.
    pub(super) fn take_key_back(&mut self, at: usize, slot: usize) {
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
        // Messages with the old key that arrived before are refused now, or will be.
        let arrived = |first: u64, end: u64| {
            first < stream.covered || stream.beyond.iter().any(|(from, to)| *from < end && first < *to)
        };
        stream.refusal_arrived |=
            stream.messages.iter().any(|message| message.may_fail && arrived(message.first, message.end()));
    }

    /// Another key opens a slot's sink, to that queue pair's peer; gives the generation of the one
    /// that does no more.
    pub(super) fn renew_key(&mut self, at: usize, slot: usize, owner: Qpn) -> u32 {
        let slots = self.model.hosts[at].generations.len();
        let generation = self.model.hosts[at].generations[slot];
        self.endpoints[at].remove_mr(MrKey(slot_key(slot, generation))).expect("it is good");
        host::insert_slot_key(&mut self.endpoints[at], slots, slot, generation + 1, Scope::WindowOf(owner));
        self.model.hosts[at].generations[slot] = generation + 1;
        if self.model.trace {
            say(format_args!("{:>12} host {at}   takes back key {generation} of slot {slot}", self.now));
        }
        generation
    }
}
