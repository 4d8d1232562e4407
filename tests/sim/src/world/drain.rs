//! Applications that drain a send queue, change the attributes that may be changed then, and go on:
//! RTS, SQD, RTS.
//!
//! While one end is in SQD its peer goes on; a new depth for the peer's READs and atomic operations
//! must not forget those that were answered, because an answer may be lost on its way.

use roced_transport::qp::State;
use roced_types::{QpAttributes, Qpn, attribute, state};

use super::World;
use crate::{
    connection::{Drain, Phase},
    say::say,
    service::Service,
    violation::{Checked, Violation, demand},
};

impl World {
    /// An open connection's end may drain, or go on.
    pub(super) fn drain(&mut self, at: usize, host: usize) {
        let connection = &self.model.connections[at];
        let (settings, end) = (connection.settings, &connection.ends[host]);
        let qpn = Qpn::from_wire(end.qpn);
        let in_state = |state| self.endpoints[host].qp(qpn).is_some_and(|qp| qp.state() == state);
        match end.drain {
            Drain::No => {
                let begins = settings.service == Service::Reliable
                    && connection.phase == Phase::Open
                    && end.stream.posted() > end.drain_after
                    && in_state(State::ReadyToSend);
                if begins {
                    let after = end.stream.posted() + self.random.within(10, 300);
                    let attributes = QpAttributes { state: state::SQD, sq_drained_event: 1, ..QpAttributes::default() };
                    self.modify(at, host, attribute::STATE | attribute::SQ_DRAINED_EVENT, attributes);
                    let end = &mut self.model.connections[at].ends[host];
                    (end.drain, end.drain_after) = (Drain::Draining { since: self.now }, after);
                    self.model.activity = true;
                }
            }
            Drain::Drained { until } if until <= self.now && in_state(State::SendQueueDrain) => {
                // The peer has no more under way than it was told at first.
                let depth = (settings.rd_atomic + self.random.below(4) as u32).min(16);
                let attributes = QpAttributes { max_dest_rd_atomic: depth, ..QpAttributes::default() };
                self.modify(at, host, attribute::MAX_DEST_RD_ATOMIC, attributes);
                let attributes = QpAttributes { state: state::RTS, ..QpAttributes::default() };
                self.modify(at, host, attribute::STATE, attributes);
                let end = &mut self.model.connections[at].ends[host];
                (end.drain, end.stream.is_held_back) = (Drain::No, false);
                end.stream.alive_at = self.now;
                self.model.activity = true;
            }
            _ => {}
        }
    }

    fn modify(&mut self, at: usize, host: usize, mask: u32, attributes: QpAttributes) {
        let qpn = Qpn::from_wire(self.model.connections[at].ends[host].qpn);
        if let Err(refusal) = self.endpoints[host].modify_qp(qpn, mask, &attributes, None) {
            let text = format!("host {host}: queue pair {qpn} refuses {mask:#x}: {refusal:?}");
            self.model.note(Err(Violation { checker: "drain", text }));
        } else if self.model.trace {
            say(format_args!("{:>12} host {host}   modifies {qpn}: {mask:#x}, state {}", self.now, attributes.state));
        }
    }

    /// The transport says that an end is drained.
    pub(super) fn on_drained(&mut self, at: usize, host: usize) -> Checked {
        let until = self.now + self.random.pick(&[0, 0, 5_000, 100_000]);
        let end = &mut self.model.connections[at].ends[host];
        let stream = &mut end.stream;
        demand!(
            matches!(end.drain, Drain::Draining { .. }) && stream.una >= stream.frontier,
            "drain",
            "host {host} is told that {:#x} is drained, {:?}: acknowledged up to {}, sent up to {}",
            end.qpn,
            end.drain,
            stream.una & 0xff_ffff,
            stream.frontier & 0xff_ffff
        );
        stream.is_held_back = true;
        end.drain = Drain::Drained { until };
        Ok(())
    }

    /// When an end goes on.
    pub(super) fn next_after_drain(&self) -> impl Iterator<Item = u64> + '_ {
        let ends = self.model.connections.iter().flat_map(|connection| &connection.ends);
        ends.filter_map(|end| match end.drain {
            Drain::Drained { until } if until > self.now => Some(until),
            _ => None,
        })
    }
}
