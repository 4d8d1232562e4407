//! Frames of earlier lives on their way, and whether the network may bring them.

use roced_types::Qpn;

use super::World;
use crate::{
    connection::Phase,
    earlier::{Admission, Port},
    frame::Seen,
    host::hears,
    service::Service,
};

/// How long after its life a frame may come to a queue pair that cannot know it by its port: half
/// of the time that a network may keep it.
const QUARANTINE: u64 = 1_000_000_000;

/// How long after its life a frame from the port of that life is certainly refused.
const PAST_REFUSED: u64 = 10_000_000_000;

/// Up to at least so many PSNs behind the expected one, the receiver of an unreliable connection
/// takes a packet for late.
const LATE_PSNS: u64 = 1 << 15;

impl World {
    /// A frame of a connection left: now and then one of an earlier life is also on its way.
    pub(super) fn stir(&mut self, at: usize) {
        if self.earlier.follows(&mut self.random) {
            self.bring_earlier(at);
        }
    }

    /// A frame of an earlier life is on its way, if there is one.
    fn bring_earlier(&mut self, at: usize) {
        let connection = &self.model.connections[at];
        let to = self.random.below(2) as usize;
        let Some(arrival) = self.earlier.any_earlier(&mut self.random, connection, to) else { return };
        self.network.bring(self.now + 1 + self.random.pick(&[0, 5_000, 50_000]), arrival);
    }

    /// Whether the network may bring that frame to where another life is now; the expected effect
    /// is noted if so.
    pub(super) fn admits_earlier(&mut self, to: usize, at: usize, seen: &Seen<'_>, life: Option<u32>) -> Admission {
        let Some(qp) = self.endpoints[to].qp(Qpn::from_wire(seen.dest_qpn)) else {
            return Admission::Taken;
        };
        let is_heard = hears(qp.state());
        if seen.service == Service::Datagram || qp.config().service != seen.service.kind() {
            return Admission::Taken;
        }
        let connection = &mut self.model.connections[at];
        // A frame that cannot be told by its port must be gone soon, and its receiver must know
        // that there was a life before.
        let ended = life.and_then(|life| self.earlier.ended(life));
        let is_fresh =
            connection.ends[to].reset_at.is_some_and(|reset| self.now < ended.unwrap_or(reset).min(reset) + QUARANTINE);
        if matches!(connection.phase, Phase::Closed { .. }) || !is_heard {
            return Admission::Taken;
        }
        if seen.service == Service::Unreliable {
            // The receiver of an unreliable connection judges by the PSN alone: a packet that is
            // not far behind is late.
            let stream = &connection.ends[1 - to].stream;
            let is_late =
                (stream.inbox.expected - LATE_PSNS..stream.inbox.expected).contains(&stream.unwrap_psn(seen.psn));
            return if is_late { Admission::Taken } else { Admission::Not };
        }
        if self.earlier.changes_port(1 - to) {
            let (is_request, slot) = (seen.is_request(), connection.slot);
            let past = life.map_or(Port::Unknown, |life| self.earlier.knows_past(slot, to, is_request, life));
            match (past, connection.knows_port(1 - to, is_request)) {
                (Port::Known, Port::Known)
                    if ended.is_none_or(|ended| self.now >= ended.saturating_add(PAST_REFUSED)) =>
                {
                    return Admission::Not;
                }
                (Port::Known, Port::Known) => return Admission::Refused,
                (Port::Known, Port::Unknown) if connection.doubts(to, seen, self.now) => return Admission::Doubted,
                (Port::Unknown, _) | (_, Port::Unknown) => {}
                _ => return Admission::Not,
            }
        } else if !is_fresh {
            return Admission::Not;
        } else if self.earlier.doubts_live(connection, to, seen, self.now) {
            return Admission::Doubted;
        }
        let is_harmless = if seen.is_request() {
            self.model.admits_request(to, at, seen)
        } else {
            self.model.admits_answer(to, at, seen)
        };
        if is_harmless { Admission::Taken } else { Admission::Not }
    }
}
