//! Frames of the forger on their way to an endpoint, right before genuine ones.

use roced_transport::{
    clock::Nanos,
    reject::{Disposition, DropReason},
};

use super::World;
use crate::{
    arriving::Arriving,
    earlier::Port,
    frame::Seen,
    model::AppView,
    say::say,
    service::Service,
    violation::{Checked, demand},
};

impl World {
    /// A genuine frame of connection `at` is about to reach host `to`, which hears it.
    pub(super) fn forge(&mut self, at: usize, to: usize, seen: &Seen<'_>, bytes: &[u8]) {
        if !self.forger.begins() || !self.knows_port(at, to, seen) {
            return;
        }
        // Before it sends it takes no answer of any port, such as the ACK that advertises credits.
        if !seen.is_request() && !self.takes_answers(to, seen.dest_qpn) {
            return;
        }
        let is_behind = seen.is_request() && !self.is_not_behind(at, to, seen);
        for frame in self.forger.frames(seen, bytes, is_behind) {
            let checked = self.give_forged(to, seen, &frame);
            self.model.note(checked);
        }
    }

    fn give_forged(&mut self, to: usize, seen: &Seen<'_>, frame: &[u8]) -> Checked {
        self.forger.sent += 1;
        self.model.hosts[to].tally.give(frame);
        self.model.arriving = Some(Arriving::nothing("forged", seen.psn));
        self.model.calls += 1;
        let mut app = AppView { model: &mut self.model, host: to };
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), &[frame], &mut app);
        self.model.arriving = None;
        self.on_forged_frame(to, frame);
        if self.model.trace {
            say(format_args!("{:>12} host {to} <- forged, before PSN {}: {disposition:?}", self.now, seen.psn));
        }
        let is_refused = disposition == Disposition::Dropped(DropReason::OtherSourcePort);
        demand!(is_refused, "forged", "a forged frame before PSN {} is {disposition:?}", seen.psn);
        Ok(())
    }

    /// The genuine request is no repetition: one in its place is due, or early.
    fn is_not_behind(&mut self, at: usize, to: usize, seen: &Seen<'_>) -> bool {
        let stream = &mut self.model.connections[at].ends[1 - to].stream;
        let psn = stream.unwrap_psn(seen.psn);
        // Packets of an unreliable connection that come late are as many behind.
        psn >= if seen.service == Service::Unreliable { stream.inbox.expected } else { stream.expected().1 }
    }

    /// The receiver certainly knows the port of this life's packets, and that it is no past one's.
    fn knows_port(&mut self, at: usize, to: usize, seen: &Seen<'_>) -> bool {
        let connection = &mut self.model.connections[at];
        match seen.service {
            Service::Reliable => {
                let is_certain = !self.earlier.is_on() || self.earlier.changes_port(1 - to);
                // Requests and answers of a host come from one port: either shows it.
                is_certain && [true, false].map(|of| connection.knows_port(1 - to, of)).contains(&Port::Known)
            }
            Service::Unreliable => self.forger.has_heard(connection.life, to),
            Service::Datagram => false,
        }
    }
}
