//! Congestion notification packets (CNPs): a host sends one for marked data alone, at most one an
//! interval for each queue pair, and an eighth of the bytes on average; it sends one where a mark asks
//! for it. They have the bytes of annex A17.

use roced_transport::{
    clock::Nanos,
    congestion::{control::CongestionControl, notification::NotificationCount},
    qp::{ServiceType, State},
    reject::Disposition,
};
use roced_types::Qpn;

use super::World;
use crate::{
    connection::Phase,
    frame::{Kind, Seen},
    host::hears,
    model::AppView,
    network::Arrival,
    notified::{Notified, check_bytes, dest_qpn, is_marked},
    say::say,
    service::Service,
    violation::{Checked, Violation, demand},
};

/// Least time between two of a queue pair, and how much longer it may be.
const INTERVAL: u64 = 50_000;
const CLOCK: u64 = 1_000;

/// As many at once, and one for so many bytes that a host was given.
const AT_ONCE: u64 = 64;
const BYTES_EACH: u64 = 8 * 74;

impl World {
    /// The endpoint of a host is another.
    pub(super) fn forget_notifications(&mut self, at: usize) {
        self.notifications.qps[at].clear();
    }

    /// A host was given a frame.
    pub(super) fn on_given_frame(&mut self, to: usize, seen: &Seen<'_>, bytes: &[u8], disposition: Disposition) {
        if !is_marked(bytes) {
            return;
        }
        let is_taken = matches!(disposition, Disposition::Accepted | Disposition::Buffered);
        let tally = &mut self.model.hosts[to].tally;
        tally.marked[0] += u64::from(is_taken);
        tally.marked[1] += 1;
        let carries = matches!(seen.kind, Kind::Send | Kind::Write | Kind::ReadResponse) && !seen.payload.is_empty();
        if !carries || seen.service == Service::Datagram {
            return;
        }
        let Some(at) = self.model.connection_of(to, seen.dest_qpn) else { return };
        let life = self.model.connections[at].life;
        let notified = self.notifications.qps[to].entry(seen.dest_qpn).or_default();
        if notified.life != life {
            *notified = Notified { life, ..Notified::default() };
        }
        notified.marks += 1;
        let is_time = notified.last.is_none_or(|last| last + INTERVAL + CLOCK <= self.now);
        // Beyond the budget of the endpoint none is sent.
        let has_budget = self.model.hosts[to].tally.notifications < AT_ONCE / 2;
        notified.is_due |= is_taken && is_time && has_budget;
    }

    /// A host was given a forged frame, which is counted if it is marked, and tells nothing of the
    /// peer.
    pub(super) fn on_forged_frame(&mut self, to: usize, frame: &[u8]) {
        self.model.hosts[to].tally.marked[1] += u64::from(is_marked(frame));
    }

    /// A notification leaves a host.
    pub(super) fn send_notification(&mut self, from: usize, bytes: Vec<u8>) {
        let checked = self.check_notification(from, &bytes);
        self.model.note(checked);
        if self.model.trace {
            say(format_args!("{:>12} host {from} -> notification", self.now));
        }
        self.network.send(self.now, from, bytes, (None, 0));
    }

    fn check_notification(&mut self, from: usize, bytes: &[u8]) -> Checked {
        let dest_qpn = check_bytes(bytes)?;
        let connection = self.model.connections.iter().find(|connection| {
            !matches!(connection.phase, Phase::Closed { .. }) && connection.ends[1 - from].qpn == dest_qpn
        });
        let qpn = connection.map(|connection| connection.ends[from].qpn);
        let qpn = qpn.ok_or_else(|| Violation {
            checker: "notification",
            text: format!("host {from} notifies queue pair {dest_qpn:#x}, which is not its peer"),
        })?;
        let notified = self.notifications.qps[from].entry(qpn).or_default();
        demand!(notified.marks > 0, "notification", "queue pair {qpn:#x} was given no marked data: {notified:?}");
        demand!(
            notified.last.is_none_or(|last| last + INTERVAL <= self.now),
            "notification",
            "queue pair {qpn:#x} sends another at {}: {notified:?}",
            self.now
        );
        *notified = Notified { marks: 0, last: Some(self.now), is_due: false, ..*notified };
        let tally = &mut self.model.hosts[from].tally;
        tally.notifications += 1;
        let most = AT_ONCE + tally.given_bytes / BYTES_EACH;
        demand!(tally.notifications <= most, "notification", "{} for {} bytes", tally.notifications, tally.given_bytes);
        Ok(())
    }

    /// Nothing waits to be sent by a host: no queue pair owes a notification.
    pub(super) fn on_all_sent(&mut self, from: usize) {
        let mut late = None;
        for (qpn, notified) in self.notifications.qps[from].iter_mut().filter(|(_, notified)| notified.is_due) {
            notified.is_due = false;
            let connection = self.model.connection_of(from, *qpn).map(|at| &self.model.connections[at]);
            let state = self.endpoints[from].qp(Qpn::from_wire(*qpn)).map(|qp| qp.state());
            let is_there = connection.is_some_and(|it| it.life == notified.life) && state.is_some_and(hears);
            late = late.or(is_there.then_some(*qpn));
        }
        let checked = match late {
            Some(qpn) => Err(Violation {
                checker: "notification",
                text: format!("queue pair {qpn:#x} of host {from} was given marked data and sends none"),
            }),
            None => Ok(()),
        };
        self.model.note(checked);
    }

    /// A notification arrives. It changes a window at the most, which no rule sees.
    pub(super) fn deliver_notification(&mut self, arrival: Arrival) {
        let Arrival { to, bytes, corrupt, .. } = arrival;
        let dest_qpn = dest_qpn(&bytes);
        // In RTR a reliable connection sends READ responses.
        let listens =
            self.endpoints[to].qp(Qpn::from_wire(dest_qpn)).is_some_and(|qp| match (qp.config().service, qp.state()) {
                (ServiceType::Ud, _) => false,
                (_, State::ReadyToSend | State::SendQueueDrain) | (ServiceType::Rc, State::ReadyToReceive) => true,
                _ => false,
            });
        let tally = &mut self.model.hosts[to].tally;
        tally.give(&bytes);
        tally.given_corrupt += u64::from(corrupt && listens);
        tally.notifications_given += u64::from(!corrupt);
        self.model.calls += 1;
        let mut app = AppView { model: &mut self.model, host: to };
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), &[&bytes], &mut app);
        if self.model.trace {
            say(format_args!("{:>12} host {to} <- notification {disposition:?}", self.now));
        }
        let is_taken = disposition == Disposition::Accepted;
        if is_taken && self.congestion[to] != CongestionControl::Off {
            self.notified[to].insert(dest_qpn);
        }
        if is_taken && (corrupt || !listens) {
            let text = format!("a notification for {dest_qpn:#x} is {disposition:?}");
            self.model.note(Err(Violation { checker: "notification", text }));
        }
        let tally = &mut self.model.hosts[to].tally;
        tally.marked[0] += u64::from(is_marked(&bytes) && is_taken);
        tally.marked[1] += u64::from(is_marked(&bytes));
        self.network.give_back(bytes);
    }

    /// That queue pair of the host is in a state that sends, and takes answers.
    pub(super) fn takes_answers(&self, to: usize, dest_qpn: u32) -> bool {
        let qp = self.endpoints[to].qp(Qpn::from_wire(dest_qpn));
        qp.is_some_and(|qp| matches!(qp.state(), State::ReadyToSend | State::SendQueueDrain))
    }

    /// Counters of a host's notification point.
    pub(super) fn check_notification_counters(&mut self, at: usize) -> Checked {
        let (tally, counters) = (&self.model.hosts[at].tally, self.endpoints[at].notification_counters());
        use NotificationCount::{Handled, Ignored, Marked, Sent};
        let [sent, handled, ignored, marked] = [Sent, Handled, Ignored, Marked].map(|it| counters.get(it));
        demand!(
            handled == 0 || self.congestion[at] != CongestionControl::Off,
            "counters",
            "rp_cnp_handled is {handled} where nothing reacts: {tally:?}"
        );
        demand!(
            (sent, handled + ignored) == (tally.notifications, tally.notifications_given),
            "counters",
            "np_cnp_sent, rp_cnp_handled and rp_cnp_ignored are {sent}, {handled} and {ignored}: {tally:?}"
        );
        let [least, most] = tally.marked;
        demand!(
            (least..=most).contains(&marked),
            "counters",
            "np_ecn_marked_roce_packets is {marked}, it was {least} to {most}"
        );
        Ok(())
    }
}
