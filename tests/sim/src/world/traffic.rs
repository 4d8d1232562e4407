//! Frames: one that leaves a host is checked and given to the network, one that arrives is given to
//! an endpoint.

use roced_transport::{
    clock::Nanos,
    recovery::Recovery,
    reject::{Disposition, DropReason},
};
use roced_types::Qpn;

use super::World;
use crate::{
    arriving::Arriving,
    connection::{Connection, End},
    earlier::Admission,
    fault::{Fate, Fault},
    frame::{self, Kind},
    host::{Nic, hears},
    model::AppView,
    network::Arrival,
    notified::is_notification,
    say::say,
    service::Service,
    violation::{Checked, Violation, demand},
};

/// Frames of a host that leave in one call, and how late it looks again when its NIC had no room.
const BURST: usize = 32;

/// Connection and message of a frame.
struct Known {
    /// Rows of the table.
    rows: u64,
    connection: usize,
    /// The host that sent the request, or the request that it answers.
    requester: usize,
    /// Its last.
    psn: u64,
    /// It is the answer to a READ or an atomic operation.
    brings: bool,
}

/// Any frame from the port of a past life is refused.
fn check_refused(seen: &frame::Seen<'_>, disposition: Disposition) -> Checked {
    let is_refused = disposition == Disposition::Dropped(DropReason::OtherSourcePort);
    demand!(is_refused, "earlier-life", "{seen} from the port of a past life is {disposition:?}");
    Ok(())
}

impl World {
    pub(super) fn deliver(&mut self, arrival: Arrival) {
        if is_notification(&arrival.bytes) {
            return self.deliver_notification(arrival);
        }
        let Arrival { to, bytes, corrupt, life, rows, sequence } = arrival;
        let seen = frame::parse(&bytes).expect("it was taken apart when it was sent");
        if self.model.returned.loses_before(to, &seen, life) {
            return self.network.give_back(bytes);
        }
        let at = self.model.connection_of(to, seen.dest_qpn);
        let earlier = at.filter(|at| Some(self.model.connections[*at].life) != life);
        let mut admission = Admission::Taken;
        if let Some(at) = earlier {
            admission = if corrupt { Admission::Not } else { self.admits_earlier(to, at, &seen, life) };
            if admission == Admission::Not {
                return self.network.give_back(bytes);
            }
            self.model.count_hits(rows, 1 << Fault::EarlierLife as usize);
        }
        let qp = self.endpoints[to].qp(Qpn::from_wire(seen.dest_qpn));
        let state = qp.filter(|qp| qp.config().service == seen.service.kind()).map(|qp| qp.state());
        let is_heard = state.is_some_and(hears);
        if let (Some(at), None, Service::Reliable, true) = (at, earlier, seen.service, is_heard && !corrupt)
            && self.earlier.doubts_live(&mut self.model.connections[at], to, &seen, self.now)
        {
            admission = Admission::Doubted;
        }
        let must_refuse = matches!(admission, Admission::Refused | Admission::Doubted);
        let is_genuine = earlier.is_none() && !must_refuse && is_heard && !corrupt;
        if let Some(at) = at.filter(|_| is_genuine) {
            self.forge(at, to, &seen, &bytes);
        }
        let has_left = at.is_none() && self.has_left(to, seen.dest_qpn);
        let tally = &mut self.model.hosts[to].tally;
        tally.give(&bytes);
        tally.given_corrupt += u64::from(corrupt && is_heard);
        match (seen.service, is_heard && !corrupt) {
            (Service::Reliable, true) if earlier.is_some() || must_refuse => {}
            (Service::Unreliable, true) if earlier.is_some() => {
                self.model.arriving = Some(Arriving::nothing("unreliable", seen.psn));
            }
            (Service::Reliable, true) => self.believe(to, &seen, sequence),
            (Service::Unreliable, true) => self.model.arriving = Some(self.model.expect_unreliable(to, &seen)),
            (Service::Unreliable, false) => self.model.arriving = Some(Arriving::nothing("unreliable", seen.psn)),
            (Service::Datagram, true) => self.model.arriving = Some(self.model.expect_datagram(to, &seen, &bytes)),
            (Service::Datagram, false) => self.model.arriving = Some(Arriving::nothing("datagram", seen.psn)),
            (Service::Reliable, false) if !corrupt && !has_left => self.on_unheard(to, &seen),
            (Service::Reliable, false) => {}
        }
        let (first, rest) = bytes.split_at(bytes.len().min(3840));
        let (one, two) = ([first], [first, rest]);
        let pieces: &[&[u8]] = if rest.is_empty() { &one } else { &two };
        self.model.served = self.model.connection_of(to, seen.dest_qpn);
        self.model.calls += 1;
        let mut app = AppView { model: &mut self.model, host: to };
        let held_in_vain = self.endpoints[to].drops().get(DropReason::OutOfOrderDiscarded);
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), pieces, &mut app);
        if let Some(arriving) = self.model.arriving.take() {
            self.model.note(arriving.check_done());
        }
        self.on_given_frame(to, &seen, &bytes, disposition);
        if let (Some(at), true, Service::Unreliable, Disposition::Accepted) =
            (at, is_genuine, seen.service, disposition)
        {
            self.forger.hear(self.model.connections[at].life, to);
        }
        if has_left {
            self.model.note(self.model.returned.check_unexecuted(&seen, life, disposition));
            self.on_given_to_left(to, &seen, corrupt, disposition);
            self.pretend(to, &seen, &bytes);
        }
        if must_refuse {
            self.model.note(check_refused(&seen, disposition));
        }
        if let (Some(at), Some(_), Disposition::Dropped(DropReason::Duplicate)) = (at, earlier, disposition) {
            self.model.connections[at].ends[1 - to].stream.on_other_part(&seen);
        }
        if let (Some(at), None, Disposition::Dropped(reason)) = (at, earlier, disposition) {
            self.on_not_held(to, at, &seen, reason);
        }
        if let (Some(at), Disposition::Accepted, false) = (at, disposition, seen.is_request())
            && self.endpoints[to].drops().get(DropReason::OutOfOrderDiscarded) > held_in_vain
        {
            self.on_answers_given_up(to, at, &seen);
        }
        if self.model.trace {
            let of = if earlier.is_some() { "of an earlier life " } else { "" };
            say(format_args!("{:>12} host {to} <- {seen} {of}{disposition:?}", self.now));
        }
        if let Some(at) = self.model.served {
            self.reuse_memory(at, to);
        }
        self.network.give_back(bytes);
    }

    /// A frame that came before its turn is not held, for want of room or because it may be of
    /// another life: it is as good as lost.
    fn on_not_held(&mut self, to: usize, at: usize, seen: &frame::Seen<'_>, reason: DropReason) {
        let holds = self.recovery[to].kind == Recovery::Selective;
        let ends = &mut self.model.connections[at].ends;
        match (seen.is_request(), reason) {
            (true, DropReason::OutOfOrderNoBuffer) => ends[1 - to].stream.on_not_held(seen),
            (true, DropReason::Duplicate) => {
                let stream = &mut ends[1 - to].stream;
                stream.repeated.insert(stream.unwrap_psn(seen.psn));
            }
            // Before the first packet of a life, and for a while in a later one, nothing is held.
            (true, DropReason::OutOfSequence) if holds => ends[1 - to].stream.on_not_held(seen),
            (false, DropReason::OutOfOrderNoBuffer | DropReason::ResponseGap) => {
                let stream = &mut ends[to].stream;
                stream.may_imply |= stream.una_at_least == stream.start;
                stream.on_not_held(seen);
                let psn = stream.unwrap_psn(seen.psn);
                stream.on_answer_hit(psn, None);
            }
            // A READ executed again brings the data of that time.
            (false, DropReason::OutOfOrderConflict) => ends[to].stream.may_imply = true,
            _ => {}
        }
    }

    /// Two answers came late, one directly after the other, and those held behind them were given
    /// up. Where no reorder delay says that the network takes several paths this is as it should be:
    /// they are asked for again.
    fn on_answers_given_up(&mut self, to: usize, at: usize, seen: &frame::Seen<'_>) {
        if self.recovery[to].reorder_delay == Nanos(0) {
            self.model.connections[at].ends[to].stream.on_answers_given_up(seen);
        }
    }

    /// A whole frame reaches a queue pair that does not listen.
    fn on_unheard(&mut self, to: usize, seen: &frame::Seen<'_>) {
        let Some(connection) = self.model.connections.iter_mut().find(|it| it.ends[to].qpn == seen.dest_qpn) else {
            return;
        };
        if seen.is_request() {
            // No answer comes, as if it had been lost.
            let stream = &mut connection.ends[1 - to].stream;
            stream.on_disturbed(stream.unwrap_psn(seen.psn));
        }
    }

    /// Updates the model for a whole frame that reaches a listening queue pair.
    fn believe(&mut self, to: usize, seen: &frame::Seen<'_>, sequence: u64) {
        let Some(at) = self.model.connection_of(to, seen.dest_qpn) else { return };
        let ends = &mut self.model.connections[at].ends;
        let tally = &mut self.model.hosts[to].tally;
        if seen.is_request() {
            let stream = &mut ends[1 - to].stream;
            tally.behind += u64::from(stream.unwrap_psn(seen.psn) < stream.unexecuted().min(stream.covered));
            stream.on_request(seen);
            let [first, second] = ends;
            let (own, peer) = if to == 0 { (first, second) } else { (second, first) };
            own.on_refusable(&peer.stream);
        } else if ends[to].ready {
            // In RTR no answer is taken.
            if seen.kind == Kind::ReadResponse {
                ends[to].stream.on_response_order(seen.psn, sequence);
            }
            let Some((syndrome, fresh)) = ends[to].stream.on_answer(seen, self.now) else { return };
            let taken = match syndrome {
                0x60 => &mut tally.sequence_naks_taken,
                0x20..0x40 => &mut tally.rnr_naks_taken,
                _ => &mut [0; 2],
            };
            taken[0] += u64::from(fresh);
            taken[1] += 1;
            if syndrome > 0x60 {
                ends[to].may_fail = true;
                ends[to].stream.on_refused(seen.psn, self.now);
            }
        }
    }

    pub(super) fn transmit(&mut self, at: usize) {
        self.look_again[at] = u64::MAX;
        let mut room = if self.small_nic { self.random.within(1, 8) as usize } else { usize::MAX };
        while self.endpoints[at].wants_transmit() {
            if room == 0 {
                self.look_again[at] = self.now + self.random.pick(&[1_000, 20_000]);
                return;
            }
            self.model.calls += 1;
            let mut nic = Nic { room, ahead_max: usize::MAX, spare: &mut self.spare, frames: &mut self.out };
            let mut app = AppView { model: &mut self.model, host: at };
            let sent = self.endpoints[at].poll_transmit(Nanos(self.now), BURST, &mut app, &mut nic);
            let mut frames = std::mem::take(&mut self.out);
            room -= frames.len();
            for bytes in frames.drain(..) {
                self.send(at, bytes);
            }
            self.out = frames;
            self.model.judge_left(at);
            if self.model.violation.is_some() || (sent.visits == 0 && room > 0) {
                return;
            }
        }
        self.on_nothing_owed(at);
        self.on_all_sent(at);
    }

    /// A frame leaves a host: it is checked, counted, and given to the network.
    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        self.sent += 1;
        if is_notification(&bytes) {
            return self.send_notification(from, bytes);
        }
        if self.is_of_past(from, &bytes) {
            self.network.send(self.now, from, bytes, (None, 0));
            return;
        }
        if let Some(life) = self.life_of_returned(from, &bytes) {
            self.network.send(self.now, from, bytes, (Some(life), 0));
            return;
        }
        let known = match self.check_frame(from, &bytes) {
            Ok(known) => known,
            Err(violation) => {
                if self.model.trace {
                    say(format_args!("{:>12} host {from} -> {}", self.now, frame::line(&bytes)));
                }
                self.model.violation.get_or_insert(violation);
                return;
            }
        };
        self.on_rated(from, known.connection, bytes.len());
        let line = if self.model.trace { frame::line(&bytes) } else { String::new() };
        let life = self.keep(from, &known, &bytes);
        let mut fate = if self.loses_farewell(known.connection, from) {
            self.network.give_back(bytes);
            Fate::lost()
        } else {
            self.network.send(self.now, from, bytes, (life, known.rows))
        };
        let connection = &mut self.model.connections[known.connection];
        connection.quiet_from = connection.quiet_from.max(self.now + fate.under_way + self.network.grid());
        if connection.mtu_changed {
            fate.hit(Fault::MtuChange);
        }
        if connection.settings.service.is_reliable() && fate.disturbs() {
            let stream = &mut connection.ends[known.requester].stream;
            stream.on_disturbed(known.psn);
        }
        if known.brings {
            connection.ends[known.requester].stream.repeated.remove(&known.psn);
        }
        if known.brings && (fate.lost || fate.corrupt || fate.late + fate.detour > 0) {
            let arrives_at = self.now + fate.under_way + self.network.grid();
            let arrives_at = (!fate.lost && !fate.corrupt).then_some(arrives_at);
            connection.ends[known.requester].stream.on_answer_hit(known.psn, arrives_at);
        }
        self.trace_sent(from, &line, &fate);
        self.model.count_hits(known.rows, fate.hits);
        if self.random.chance(self.weather.peer_restart) && self.restart_at == u64::MAX && !self.has_enough() {
            self.restart_at = self.now + self.random.below(200_000);
        }
        if let Some(buffer) = self.network.spare_buffer() {
            self.spare.push(buffer);
        }
        self.stir(known.connection);
    }

    /// The network may keep a frame; gives the life of the connection that it goes to.
    fn keep(&mut self, from: usize, known: &Known, bytes: &[u8]) -> Option<u32> {
        let seen = frame::parse(bytes).expect("it was looked at");
        let to = self.model.connection_of(1 - from, seen.dest_qpn)?;
        let Connection { slot, life, .. } = self.model.connections[to];
        self.earlier.keep(&mut self.random, (slot, life), 1 - from, &seen, known.rows, bytes);
        Some(life)
    }

    fn trace_sent(&self, from: usize, line: &str, fate: &Fate) {
        if self.model.trace {
            say(format_args!("{:>12} host {from} -> {line} {}", self.now, fate.names().join(", ")));
        }
    }

    fn check_frame(&mut self, from: usize, bytes: &[u8]) -> Result<Known, Violation> {
        let unknown = || Violation { checker: "frame", text: format!("host {from} sends {bytes:02x?}") };
        let seen = frame::parse(bytes).ok_or_else(unknown)?;
        let at = if let Some(deth) = seen.deth {
            self.model.connection_of(from, deth.source_qpn)
        } else {
            self.model.connection_of(1 - from, seen.dest_qpn)
        };
        let at = at.or_else(|| {
            // The peer has gone away; its connection is still this one.
            self.model.connections.iter().position(|c| c.ends[1 - from].qpn == seen.dest_qpn)
        });
        let at = at.ok_or_else(unknown)?;
        let waits_for_rate = self.may_wait_for_rate(at);
        let (tally, connection) = (&mut self.model.hosts[from].tally, &mut self.model.connections[at]);
        tally.payload_bytes += seen.payload.len() as u64;
        let requester = if seen.is_request() { from } else { 1 - from };
        // An end that has failed or gone away does not answer, nor one that waits for a change of
        // keys.
        let changes = |end: &End| self.changing.iter().any(|(_, _, change, _)| change.qpn.get() == end.qpn);
        if seen.is_request() {
            let is_slow = changes(&connection.ends[1 - from]);
            connection.ends[from].stream.peer_was_slow |= is_slow;
        }
        let answers = connection.ends.iter().all(|end| !(end.gone || end.failed || end.may_fail || changes(end)));
        if seen.is_request() && answers && !self.small_nic && !self.pauses.is_on && !waits_for_rate {
            let end = &connection.ends[from];
            // Packets of a notified queue pair wait for their rate, and the limit may end before they
            // leave: requests with DCQCN, and READ responses.
            let is_paced = [from, 1 - from].map(|at| self.notified[at].contains(&connection.ends[at].qpn));
            if !is_paced.contains(&true) {
                end.stream.check_silence(connection.quiet_from, end.drain, self.now)?;
            }
        }
        let (rows, psn) = if !seen.service.is_reliable() {
            let sent = connection.ends[from].stream.check_unanswered(&seen, self.now)?;
            // A silent one is done with that: nothing else says so.
            self.model.activity = true;
            tally.requests += 1;
            (sent.rows, sent.end - 1)
        } else if seen.is_request() {
            let peer = &connection.ends[1 - from];
            if peer.may_fail || peer.gone {
                let stream = &mut connection.ends[from].stream;
                (stream.is_disturbed, stream.is_unheard, stream.borne_from) = (true, true, None);
            }
            let sent = connection.ends[from].stream.check_request(&seen, self.now)?;
            tally.requests += 1;
            tally.on_sent(sent.what);
            (sent.rows, sent.end - 1)
        } else {
            connection.ends[from].check_farewell(&seen)?;
            let stream = &mut connection.ends[1 - from].stream;
            let (psn, rows) = (stream.unwrap_psn(seen.psn), stream.check_answer(&seen)?);
            tally.answers += 1;
            if seen.kind == Kind::Ack {
                let syndrome = seen.aeth.map_or(0, |aeth| aeth.syndrome);
                tally.sequence_naks_sent += u64::from(syndrome == 0x60);
                tally.rnr_naks_sent += u64::from((0x20..0x40).contains(&syndrome));
            }
            (rows, psn)
        };
        connection.frames_left = connection.frames_left.saturating_sub(1);
        let brings = matches!(seen.kind, Kind::ReadResponse | Kind::AtomicAck);
        Ok(Known { rows, connection: at, requester, psn, brings })
    }
}
