//! Events in the order of Linux, each with a reason, and with the numbers and data of the other
//! end.

use std::time::Duration;

use roced_cm::identifiers::{EventKind, IdEvent, IdService};

use crate::{
    connections::{
        ends::{End, Ends, PeerQueuePair, Side, Stage},
        numbers::end_of,
        surroundings::host_of,
        tally::Count,
    },
    violation::{Checked, Violation, demand},
};

/// A listener of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) program: usize,
    pub(crate) port: u16,
    pub(crate) service: IdService,
}

/// An unanswered REQ is given up after 16 times 4.608 s, a REP or DREQ after 16 times 4.096 s; a
/// REP may have less time where many wait.
const REQ_TIMEOUT: Duration = Duration::from_millis(73_728);
const DREQ_TIMEOUT: Duration = Duration::from_millis(65_536);
const REP_TIMEOUT: Duration = Duration::from_secs(4);

/// The question for a datagram service is kept for longer, and so is its answer.
const ANSWER_KEPT: Duration = Duration::from_secs(60);

/// Shortest TIMEWAIT of paths without an ACK timeout of the program.
const TIMEWAIT: Duration = Duration::from_millis(512);

/// Reasons of a REJ.
const GIVEN_UP: i32 = 4;
const NO_LISTENER: i32 = 8;
const STALE: i32 = 10;

const TIMED_OUT: i32 = -110;

impl Ends {
    /// An event leaves the identifiers of a host. `listener` is that of a request. Returns its end;
    /// listeners have none.
    pub(crate) fn on_event(
        &mut self,
        host: usize,
        event: &IdEvent,
        listener: Option<Listener>,
        now: Duration,
    ) -> Result<Option<usize>, Violation> {
        if event.kind == EventKind::ConnectRequest {
            let Some(listener) = listener else {
                demand!(false, "events", "host {host}: a request for {:?}, which does not listen", event.owner);
                return Ok(None);
            };
            return self.on_request(host, event, listener, now).map(Some);
        }
        let Some(end) = self.at(host, event.key) else {
            let is_of_listener = listener.is_some() && event.kind == EventKind::DeviceRemoval;
            demand!(is_of_listener, "events", "host {host}: {:?} of {:?}, which is not there", event.kind, event.key);
            return Ok(None);
        };
        let of = &self.all[end];
        demand!(
            event.uid == end as u64 + 1 && event.owner == event.key,
            "events",
            "{:?} of end {end} has uid {} and owner {:?}",
            event.kind,
            event.uid,
            event.owner
        );
        let is_legal = is_legal(of, event.kind);
        demand!(is_legal, "events", "{:?} (status {}) of end {end}: {of:?}", event.kind, event.status);
        match event.kind {
            EventKind::AddressResolved => self.set_stage(end, Stage::Resolved, now),
            EventKind::RouteResolved => {
                self.check_port(end, event)?;
                self.set_stage(end, Stage::Routed, now);
            }
            EventKind::AddressError => {
                self.tally.count(Count::NoNeighbor);
                self.set_stage(end, Stage::Over, now);
            }
            EventKind::ConnectResponse => self.on_response(end, event, now)?,
            EventKind::Established => self.on_established(end, event, now)?,
            EventKind::Rejected => self.on_rejected(end, event.status, now)?,
            EventKind::Unreachable => self.on_unreachable(end, event.status, now)?,
            EventKind::Disconnected => self.on_disconnected(end, event.status, now)?,
            EventKind::TimeWaitExit => self.on_exit(end, now)?,
            EventKind::DeviceRemoval => self.set_stage(end, Stage::Over, now),
            kind => demand!(false, "events", "{kind:?} of end {end}"),
        }
        Ok(Some(end))
    }

    fn on_request(
        &mut self,
        host: usize,
        event: &IdEvent,
        listener: Listener,
        now: Duration,
    ) -> Result<usize, Violation> {
        let length = if listener.service == IdService::Datagram { 180 } else { 56 };
        demand!(event.private_data_bytes == length, "data", "{} bytes with a request", event.private_data_bytes);
        let asking = end_of(&event.private_data[..length.into()]);
        let Some(active) = asking.filter(|active| self.all.get(*active).is_some_and(|of| of.acted.is_some())) else {
            demand!(false, "data", "host {host}: a request with data of no end that asks");
            return Ok(0);
        };
        let of = &self.all[active];
        let from = event.route.destination.map(|from| host_of(from.ip()));
        demand!(
            of.side == Side::Active
                && (of.peer_host, of.port, of.service) == (host, listener.port, listener.service)
                && from == Some(of.host)
                && (of.qpn == event.parameters.qpn.get() || of.service == IdService::Datagram),
            "agree",
            "host {host}: a request for port {} from {from:?} with queue pair {}, of end {active}: {of:?}",
            listener.port,
            event.parameters.qpn.get(),
        );
        let (peer, qpn, service, is_ipv6) = (of.host, of.qpn, of.service, of.is_ipv6);
        let has_ack_timeout = of.has_ack_timeout;
        demand!(self.at(host, event.key).is_none(), "events", "host {host}: {:?} is in use", event.key);
        if let Some(before) = self.passive_of.get(&active).map(|passive| &self.all[*passive]) {
            demand!(!self.is_known(before, now), "twin", "end {active} asks twice at a time: {before:?}");
        }
        if service != IdService::Datagram {
            self.check_new_queue_pair((host, peer, is_ipv6, qpn))?;
        }
        let mut end = End::new(host, listener.program, event.key, Side::Passive, service);
        (end.peer_host, end.port, end.partner, end.peer_qpn) = (peer, listener.port, Some(active), qpn);
        (end.psns, end.is_ipv6) = ([event.starting_psn, event.remote_starting_psn], is_ipv6);
        (end.has_ack_timeout, end.began) = (has_ack_timeout, now);
        let passive = self.add(end);
        self.passive_of.insert(active, passive);
        self.tally.count(Count::KnownByData);
        Ok(passive)
    }

    /// A repetition of the request of an end is one: the connection is there, or the answer about a
    /// datagram service is kept.
    fn is_known(&self, of: &End, now: Duration) -> bool {
        if of.service != IdService::Datagram {
            return of.gone.is_none() && matches!(of.stage, Stage::Accepted | Stage::Open);
        }
        // It was given up before its program decided, or it was answered.
        let answered = of.finished().filter(|at| *at - of.began < ANSWER_KEPT);
        let since = answered.unwrap_or(of.began);
        !of.is_call_refused && now - since < ANSWER_KEPT && !self.was_disturbed(of.host, of.began, now)
    }

    /// No program takes the queue pair of a new connection for one of another connection.
    fn check_new_queue_pair(&self, of: PeerQueuePair) -> Checked {
        let believer = self.believer(of);
        demand!(
            believer.is_none(),
            "qpn-alive",
            "a connection with queue pair {of:?}, which end {believer:?} has: {:?}",
            believer.map(|end| &self.all[end])
        );
        Ok(())
    }

    /// No two connections have the same ports and addresses.
    fn check_port(&mut self, end: usize, event: &IdEvent) -> Checked {
        let (Some(source), Some(destination)) = (event.route.source, event.route.destination) else {
            demand!(false, "port", "end {end} has no addresses: {:?}", event.route);
            return Ok(());
        };
        let is_datagram = self.all[end].service == IdService::Datagram;
        let before = self.four_tuples.insert((is_datagram, source, destination), end);
        let other = before.filter(|before| self.here.contains(before));
        demand!(other.is_none(), "port", "end {end} has the addresses of end {other:?}: {source}, {destination}");
        Ok(())
    }

    fn on_response(&mut self, end: usize, event: &IdEvent, now: Duration) -> Checked {
        demand!(event.private_data_bytes == 196, "data", "{} bytes with a response", event.private_data_bytes);
        let passive = self.passive_end(end, event)?;
        let [of, other] = [&self.all[end], &self.all[passive]];
        let qpn = event.parameters.qpn.get();
        demand!(other.qpn == qpn, "agree", "end {end} is told queue pair {qpn}: {other:?}");
        let psns = [event.starting_psn, event.remote_starting_psn];
        demand!(
            [psns[1], psns[0]] == other.psns,
            "agree",
            "end {end} and end {passive} have PSNs {psns:?} and {:?}",
            other.psns
        );
        self.check_new_queue_pair((of.host, of.peer_host, of.is_ipv6, qpn))?;
        let of = &mut self.all[end];
        (of.partner, of.peer_qpn, of.psns) = (Some(passive), qpn, psns);
        self.set_stage(end, Stage::Answered, now);
        Ok(())
    }

    /// The accepting end in the private data of an answer to `end`.
    fn passive_end(&self, end: usize, event: &IdEvent) -> Result<usize, Violation> {
        let passive = end_of(&event.private_data[..event.private_data_bytes.into()]);
        let of = passive.and_then(|passive| self.all.get(passive));
        let fits = of.is_some_and(|of| of.partner == Some(end) && of.side == Side::Passive && of.acted.is_some());
        demand!(fits, "data", "{:?} of end {end} has data of end {passive:?}: {of:?}", event.kind);
        Ok(passive.unwrap_or_default())
    }

    fn on_established(&mut self, end: usize, event: &IdEvent, now: Duration) -> Checked {
        if self.all[end].service == IdService::Datagram {
            let other = &self.all[self.passive_end(end, event)?];
            let qpn = event.parameters.qpn.get();
            demand!(other.qpn == qpn, "agree", "end {end} is told queue pair {qpn}: {other:?}");
            self.tally.count(Count::Found);
            self.set_stage(end, Stage::Over, now);
            return Ok(());
        }
        let other = self.all[end].partner.map(|active| &self.all[active]);
        let is_confirmed = other.is_some_and(|other| other.opened.is_some() && other.partner == Some(end));
        demand!(is_confirmed, "agree", "end {end} is established with {other:?}");
        self.tally.count(Count::Established);
        self.set_stage(end, Stage::Open, now);
        Ok(())
    }

    /// The other end is not there as this one believes: it disconnects, is over, gone, or
    /// another's.
    fn has_reason(&self, end: usize) -> bool {
        let Some(partner) = self.all[end].partner else { return false };
        let other = &self.all[partner];
        let is_others = other.partner.is_some_and(|of| of != end);
        other.finished().is_some()
            || other.disconnected.is_some()
            || is_others
            || self.is_confused(&self.all[end])
            || self.is_confused(other)
    }

    fn on_rejected(&mut self, end: usize, status: i32, now: Duration) -> Checked {
        let of = &self.all[end];
        let refused = || {
            let mut asked = self.all.iter().filter(|other| other.side == Side::Passive && other.partner == Some(end));
            asked.any(|other| other.finished().is_some())
        };
        let is_reused = || {
            let mut others = self.all.iter().enumerate();
            others.any(|(at, other)| at != end && (other.host, other.qpn) == (of.host, of.qpn))
        };
        let fits = match (of.stage, status) {
            (_, STALE) => of.side == Side::Passive || is_reused(),
            (Stage::Asking, NO_LISTENER) => true,
            (Stage::Asking, GIVEN_UP) => self.passive_of.contains_key(&end),
            (Stage::Asking, _) => refused() || of.service == IdService::Unreliable,
            _ => self.has_reason(end),
        };
        demand!(fits, "reason", "end {end} is refused with {status}: {of:?}, {:?}", of.partner.map(|it| &self.all[it]));
        self.tally.count(match status {
            NO_LISTENER => Count::NoListener,
            STALE => Count::Stale,
            _ => Count::Refused,
        });
        self.set_stage(end, Stage::Over, now);
        Ok(())
    }

    fn on_unreachable(&mut self, end: usize, status: i32, now: Duration) -> Checked {
        let of = &self.all[end];
        let waited = now - of.acted.unwrap_or(now);
        let patience = match (of.side, of.service) {
            (_, IdService::Datagram) if status > 0 => Duration::ZERO,
            (_, IdService::Datagram) => DREQ_TIMEOUT,
            (Side::Active, _) if of.has_ack_timeout => DREQ_TIMEOUT,
            (Side::Active, _) => REQ_TIMEOUT,
            (Side::Passive, _) => REP_TIMEOUT,
        };
        demand!(
            waited >= patience && (status == TIMED_OUT || of.service == IdService::Datagram),
            "patience",
            "end {end} is unreachable ({status}) after {waited:?}"
        );
        self.tally.count(Count::Unreachable);
        self.set_stage(end, Stage::Over, now);
        Ok(())
    }

    fn on_disconnected(&mut self, end: usize, status: i32, now: Duration) -> Checked {
        let of = &self.all[end];
        if status == TIMED_OUT {
            // Its own DREQ, or one of the connection manager to a peer that has forgotten.
            let is_forgotten = self.is_confused(of) || of.partner.is_some_and(|it| self.all[it].gone.is_some());
            let own = of.disconnected.filter(|_| !is_forgotten);
            let since = own.or(of.acted).unwrap_or(now);
            demand!(now - since >= DREQ_TIMEOUT, "patience", "end {end} gives up after {:?}", now - since);
            self.tally.count(Count::DreqUnanswered);
        }
        let fits = of.disconnected.is_some() || self.has_reason(end);
        demand!(fits, "reason", "end {end} is disconnected: {of:?}, {:?}", of.partner.map(|it| &self.all[it]));
        self.tally.count(Count::Disconnected);
        self.all[end].told_end = Some(now);
        self.set_stage(end, Stage::Over, now);
        Ok(())
    }

    fn on_exit(&mut self, end: usize, now: Duration) -> Checked {
        let of = &mut self.all[end];
        let since = of.told_end.unwrap_or(now);
        demand!(
            of.has_ack_timeout || now - since >= TIMEWAIT,
            "timewait",
            "end {end} leaves TIMEWAIT after {:?}",
            now - since
        );
        of.told_exit = true;
        self.tally.count(Count::TimeWaitExits);
        Ok(())
    }
}

/// Whether an event may come now, by the order of Linux.
fn is_legal(of: &End, kind: EventKind) -> bool {
    use Stage::{Accepted, Answered, Asking, Open, Resolved, Resolving};
    let is_datagram = of.service == IdService::Datagram;
    match kind {
        EventKind::AddressResolved | EventKind::AddressError => of.stage == Resolving,
        EventKind::RouteResolved => of.stage == Resolved,
        EventKind::ConnectResponse => of.stage == Asking && !is_datagram,
        EventKind::Established => of.stage == if is_datagram { Asking } else { Accepted },
        EventKind::Rejected => !is_datagram && matches!(of.stage, Asking | Answered | Accepted | Open),
        EventKind::Unreachable => matches!(of.stage, Asking | Accepted),
        // The program's confirmation came late: it was refused, and the end is told all the same.
        EventKind::Disconnected if of.is_call_refused => of.told_end.is_none(),
        EventKind::Disconnected => !is_datagram && matches!(of.stage, Answered | Accepted | Open),
        EventKind::TimeWaitExit => of.told_end.is_some() && !of.told_exit,
        EventKind::DeviceRemoval => true,
        _ => false,
    }
}
