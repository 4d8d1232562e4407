//! Programs that leave when they are done: their queue pair is removed in RTS, or directly after
//! its program moved it to the error state, while the peer still waits for its last
//! acknowledgments.
//!
//! Some leave when all requests of the connection are executed, others at any moment. In either
//! case the peer's executed SENDs and WRITEs complete with success (checker `left-after-all`), and
//! nothing else does. The removed queue pair sends the answers that it owed, and from then on one
//! ACK, the same each time, for each frame of its peer that repeats an executed request.

use roced_transport::{
    qp::State,
    reject::{Disposition, DropReason},
};
use roced_types::Qpn;

use crate::{
    connection::{Connection, End, Phase},
    drain::Drain,
    earlier::Rebirth,
    frame::{self, Kind as FrameKind, Seen},
    host,
    message::{Kind, Message},
    model::AppView,
    network::Arrival,
    plain::icrc,
    random::Random,
    returning::Plan,
    say::say,
    service::Service,
    stream::Stream,
    violation::{Checked, demand},
    world::World,
};

/// The AETH syndrome of an ACK that says nothing of credits.
const PLAIN_ACK: u8 = 0x1f;

/// Programs of a seed that leave.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Draws of its own: a connection of which no end leaves is as it would be without.
    pub(crate) random: Random,
    /// One in so many connections has an end that leaves; 0 is none.
    one_in: u64,
    /// Ends that left, of connections that are no more.
    past: Vec<Past>,
}

/// The end of a connection that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaver {
    host: usize,
    /// It does not wait until its own requests are acknowledged.
    is_hasty: bool,
    /// It leaves when the connection has no more than so many frames left, done or not.
    early: Option<u64>,
    /// It moves its queue pair to the error state before it removes it.
    ends: bool,
}

/// An end that left.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    /// Its queue pair has executed all of the peer's packets before the first of these PSNs, and
    /// may have executed those up to the second.
    certain: u64,
    pub(crate) possible: u64,
    /// It may have owed the answer to a READ, and acknowledges nothing behind it.
    reads: bool,
    /// Answers that read no memory, which it may have owed.
    owed: u64,
    /// PSN and MSN of its ACK.
    ack: Option<(u32, u32)>,
    /// Frames that it may answer, those that it had before it left included, and its ACKs.
    asked: u64,
    acks: u64,
}

/// An end that left, of a connection that is no more.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    pub(crate) peer: u32,
    pub(crate) left: Left,
    /// Its number is in use again.
    is_replaced: bool,
}

impl Leaving {
    pub(crate) fn draw(mut random: Random) -> Self {
        let one_in = random.pick(&[0, 1, 2]);
        Self { random, one_in, past: Vec::new() }
    }

    /// Draws the end of a connection that leaves, if one does.
    pub(crate) fn leaver(&mut self, service: Service) -> Option<Leaver> {
        if self.one_in == 0 || !service.is_reliable() || !self.random.one_in(self.one_in) {
            return None;
        }
        Some(Leaver {
            host: self.random.below(2) as usize,
            is_hasty: self.random.one_in(3),
            early: self.random.one_in(4).then(|| self.random.below(200)),
            ends: self.random.one_in(4),
        })
    }

    /// Another connection takes the place of this one. Returns the connections that the programs of
    /// its ends may have after it.
    pub(crate) fn on_replaced(&mut self, before: &Connection) -> [Option<Plan>; 2] {
        if before.rebirth != Rebirth::NewNumbers {
            return [None; 2];
        }
        let [first, second] = &before.ends;
        [(0, first, second), (1, second, first)].map(|(host, own, peer)| {
            let left = own.left.clone()?;
            let past = Past { host, qpn: own.qpn, peer: peer.qpn, left, is_replaced: false };
            let plan = Plan::of(&past, before);
            self.past.push(past);
            Some(plan)
        })
    }

    /// Another queue pair has this number.
    pub(crate) fn on_number_in_use(&mut self, host: usize, qpn: u32) {
        self.past.iter_mut().filter(|past| past.is(host, qpn)).for_each(|past| past.is_replaced = true);
    }

    /// A host went away with all that it knew.
    pub(crate) fn forget(&mut self, host: usize) {
        self.past.retain(|past| past.host != host);
    }
}

impl Past {
    fn is(&self, host: usize, qpn: u32) -> bool {
        (self.host, self.qpn) == (host, qpn)
    }
}

impl Left {
    /// The peer's message was executed before it left.
    pub(crate) fn has_executed(&self, message: &Message) -> bool {
        message.end() <= self.certain
    }

    /// It may have been.
    pub(crate) fn may_have_executed(&self, message: &Message) -> bool {
        message.end() <= self.possible
    }

    /// An answer of the end leaves.
    fn check_answer(&mut self, seen: &Seen<'_>) -> Checked {
        if matches!(seen.kind, FrameKind::AtomicAck | FrameKind::ReadResponse) {
            demand!(
                self.owed > 0 && seen.payload.is_empty() && self.acks == 0,
                "left-after-all",
                "a queue pair that was removed sends {:?} of PSN {}",
                seen.kind,
                seen.psn
            );
            self.owed -= 1;
            return Ok(());
        }
        let aeth = seen.aeth.filter(|aeth| seen.kind == FrameKind::Ack && aeth.syndrome == PLAIN_ACK);
        demand!(
            aeth.is_some(),
            "left-after-all",
            "a queue pair that was removed sends {:?} of PSN {} with {:x?}",
            seen.kind,
            seen.psn,
            seen.aeth
        );
        let ack = (seen.psn, aeth.map_or(0, |aeth| aeth.msn));
        let behind = |psn: u64| ((psn as u32).wrapping_sub(seen.psn + 1) << 8) as i32 >> 8;
        let is_least = self.reads || behind(self.certain) <= 0;
        demand!(
            is_least && behind(self.possible) >= 0 && self.ack.is_none_or(|before| before == ack),
            "left-after-all",
            "a queue pair that was removed acknowledges {ack:?}: {self:x?}"
        );
        self.ack = Some(ack);
        self.acks += 1;
        demand!(
            self.acks <= self.asked,
            "left-after-all",
            "a queue pair that was removed acknowledges PSN {} and was not asked: {self:x?}",
            seen.psn
        );
        Ok(())
    }

    /// A frame was given to the end's host.
    fn check_taken(&mut self, seen: &Seen<'_>, corrupt: bool, disposition: Disposition) -> Checked {
        let is_answered = disposition == Disposition::Dropped(DropReason::Duplicate);
        let asks = seen.ack_request || seen.ends;
        let ahead = (seen.psn.wrapping_sub(self.possible as u32) << 8) as i32 >= 0;
        let may_be = matches!(seen.kind, FrameKind::Send | FrameKind::Write) && asks && !ahead && !corrupt;
        demand!(
            !is_answered || seen.service.is_reliable() && may_be,
            "left-after-all",
            "a queue pair that was removed answers {:?} of PSN {}: {self:x?}",
            seen.kind,
            seen.psn
        );
        self.asked += u64::from(is_answered);
        Ok(())
    }
}

impl Stream {
    /// The peer's end that executes these requests leaves, with so many receives completed.
    fn left(&mut self, completed: u64) -> Left {
        let possible = self.unexecuted().min(self.covered);
        let received = |message: &&Message| message.recv.is_some_and(|index| index < completed);
        let received = self.messages.iter().rfind(received).map_or(self.start, Message::end);
        let (executed, _) = self.expected();
        // The bytes of a message that waits for its key are there before it is executed.
        let certain = executed.min(possible).max(received);
        let from = self.una_at_least;
        let waits = |message: &&Message| message.end() > from && message.first < possible;
        let brings = |message: &&Message| message.kind == Kind::Read;
        let answered = self.messages.iter().filter(|message| message.kind.wants_answer());
        // A repetition is answered whether the peer has had the answer before or not.
        let is_owed = |message: &&Message| waits(message) || self.repeated.contains(&message.first);
        Left {
            certain,
            possible: possible.max(certain),
            reads: answered.clone().filter(waits).any(|message| brings(&message)),
            owed: answered.filter(|message| !brings(message)).filter(is_owed).count() as u64,
            ack: None,
            asked: 1,
            acks: 0,
        }
    }

    /// All that was posted is executed.
    fn is_executed(&mut self) -> bool {
        self.skip_executed();
        self.executed.id == self.posted() && self.covered >= self.end && self.takers.is_empty()
    }

    /// A READ or an atomic operation before the end of a message may have no answer.
    pub(crate) fn awaits_result_before(&self, message: &Message) -> bool {
        let may_wait = |other: &&Message| other.end() > self.una_at_least && other.first < message.end();
        self.messages.iter().filter(may_wait).any(|other| other.kind.wants_answer())
    }
}

impl End {
    /// An answer leaves its host.
    pub(crate) fn check_farewell(&mut self, seen: &Seen<'_>) -> Checked {
        demand!(
            !self.is_silent,
            "left-after-all",
            "a queue pair that was removed after it had failed, or went through RESET, answers PSN {}",
            seen.psn
        );
        match &mut self.left {
            Some(left) => left.check_answer(seen),
            None => self.check_offer(seen),
        }
    }
}

impl World {
    /// The end of a connection that leaves does so, when it is time.
    pub(crate) fn leave(&mut self, at: usize) {
        let connection = &mut self.model.connections[at];
        let Some(Leaver { host, is_hasty, early, ends }) = connection.leaver else { return };
        let phase = connection.phase;
        let [first, second] = &mut connection.ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        let qpn = Qpn::from_wire(own.qpn);
        let is_well = own.ready && !(own.gone || own.failed || own.may_fail) && own.drain == Drain::No;
        if !is_well || own.taken.is_some() || peer.gone {
            return;
        }
        let is_time = match early {
            Some(frames) => connection.frames_left <= frames,
            None => {
                let is_done = is_hasty || own.stream.is_drained();
                matches!(phase, Phase::Closing { .. }) && is_done && peer.stream.is_executed()
            }
        };
        if !is_time || self.endpoints[host].qp(qpn).is_none_or(|qp| qp.state() != State::ReadyToSend) {
            return;
        }
        let left = peer.stream.left(own.receives.completed);
        if self.model.trace {
            say(format_args!("{:>12} host {host}   removes {qpn}: {left:x?}", self.now));
        }
        (own.gone, own.left) = (true, Some(left));
        if ends {
            host::end(&mut self.endpoints[host], qpn);
        }
        self.endpoints[host].remove_qp(qpn).expect("there until now");
        self.forget_changes(host, qpn, false);
        self.model.hosts[host].by_index[qpn.index() as usize] = None;
        self.model.activity = true;
    }

    /// The program of an end moves its queue pair to the error state.
    pub(crate) fn end_at(&mut self, at: usize, host: usize) {
        let [first, second] = &mut self.model.connections[at].ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        if own.gone {
            return;
        }
        let qpn = Qpn::from_wire(own.qpn);
        let has_failed = self.endpoints[host].qp(qpn).is_none_or(|qp| qp.state() == State::Error);
        own.ending = (own.stream.settings.service.is_reliable() && !has_failed)
            .then(|| Left { reads: true, ..peer.stream.left(own.receives.completed) });
        (own.may_fail, own.ended) = (true, true);
        host::end(&mut self.endpoints[host], qpn);
    }

    /// The network loses an answer of an end that left: more often than others, where it loses any.
    pub(crate) fn loses_farewell(&mut self, at: usize, from: usize) -> bool {
        let has_left = self.model.connections[at].ends[from].left.is_some();
        has_left && self.weather.loss > 0 && !self.leaving.random.one_in(3)
    }

    /// The end that left at a host, with a queue pair of that number.
    fn left_mut(&mut self, host: usize, qpn: u32) -> Option<&mut Left> {
        let connections = &mut self.model.connections;
        let of_number = connections.iter_mut().map(|connection| &mut connection.ends[host]).find(|end| end.qpn == qpn);
        match of_number {
            Some(end) => end.left.as_mut(),
            None => {
                let past = &mut self.leaving.past;
                past.iter_mut().find(|past| past.is(host, qpn) && !past.is_replaced).map(|past| &mut past.left)
            }
        }
    }

    /// There is such an end.
    pub(crate) fn has_left(&mut self, host: usize, qpn: u32) -> bool {
        self.left_mut(host, qpn).is_some()
    }

    /// A frame was given to the host of an end that left, if it was one.
    pub(crate) fn on_given_to_left(&mut self, to: usize, seen: &Seen<'_>, corrupt: bool, disposition: Disposition) {
        let Some(left) = self.left_mut(to, seen.dest_qpn) else { return };
        let checked = left.check_taken(seen, corrupt, disposition);
        let tally = &mut self.model.hosts[to].tally;
        tally.behind += u64::from(disposition == Disposition::Dropped(DropReason::Duplicate));
        tally.given_corrupt += u64::from(corrupt && disposition == Disposition::Dropped(DropReason::BadIcrc));
        self.model.note(checked);
    }

    /// A frame to an end that left comes from a stranger as well, now and then, or is of another
    /// partition: it has no answer.
    pub(crate) fn pretend(&mut self, to: usize, seen: &Seen<'_>, bytes: &[u8]) {
        if !seen.service.is_reliable() || !seen.is_request() || !self.leaving.random.one_in(4) {
            return;
        }
        let mut frame = bytes[..bytes.len() - 4].to_vec();
        let bth = frame::bth_at(&frame);
        if self.leaving.random.one_in(2) {
            // The last byte of the source address; the checksum is that of the header.
            let (address, sum) = if frame::is_ipv4(&frame) { (29, Some(24)) } else { (37, None) };
            frame[address] ^= 0x40;
            if let Some(sum) = sum {
                frame[sum..sum + 2].fill(0);
                let words = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
                let total: u32 = words.sum();
                let total = (total & 0xffff) + (total >> 16);
                frame[sum..sum + 2].copy_from_slice(&(!((total & 0xffff) + (total >> 16)) as u16).to_be_bytes());
            }
        } else {
            frame[bth + 2..bth + 4].copy_from_slice(&[0x80, 0x01]);
        }
        let sum = icrc(&frame, bth);
        frame.extend(sum);
        self.model.hosts[to].tally.given += 1;
        let mut app = AppView { model: &mut self.model, host: to };
        let (first, rest) = frame.split_at(frame.len().min(3840));
        let pieces = [first, rest];
        let pieces = if rest.is_empty() { &pieces[..1] } else { &pieces[..] };
        let disposition = self.endpoints[to].on_frame(roced_transport::clock::Nanos(self.now), pieces, &mut app);
        let is_refused = disposition == Disposition::Dropped(DropReason::NoSuchQp);
        let check = || {
            demand!(
                is_refused,
                "left-after-all",
                "a frame of a stranger to a queue pair that was removed is {disposition:?}"
            );
            Ok(())
        };
        self.model.note(check());
    }

    /// A frame leaves that is an answer of an end that left, of a connection that is no more. Says
    /// whether it is one.
    pub(crate) fn is_of_past(&mut self, from: usize, bytes: &[u8]) -> bool {
        let Some(seen) = frame::parse(bytes).filter(|seen| seen.service.is_reliable() && !seen.is_request()) else {
            return false;
        };
        if self.model.connections.iter().any(|connection| connection.ends[1 - from].qpn == seen.dest_qpn) {
            return false;
        }
        let is_it = |past: &&mut Past| (past.host, past.peer) == (from, seen.dest_qpn);
        let Some(past) = self.leaving.past.iter_mut().find(is_it) else { return false };
        let checked = past.left.check_answer(&seen);
        self.model.hosts[from].tally.answers += 1;
        self.model.note(checked);
        true
    }

    /// All answers that a host owed have left: those of removed queue pairs as well.
    pub(crate) fn on_nothing_owed(&mut self, host: usize) {
        let is_closed = |connection: &&mut Connection| matches!(connection.phase, Phase::Closed { .. });
        for connection in self.model.connections.iter_mut().filter(is_closed) {
            let end = &mut connection.ends[host];
            end.is_silent = end.left.is_none();
        }
    }

    /// The network brings frames of before to the numbers of a connection that is no more.
    pub(crate) fn bring_late(&mut self, at: usize) {
        if !self.earlier.is_on() {
            return;
        }
        let slot = self.model.connections[at].slot;
        for _ in 0..3 {
            let random = &mut self.leaving.random;
            let Some((to, life, rows, bytes)) = self.earlier.any_kept(random, slot) else { return };
            let arrival = Arrival { to, bytes, corrupt: false, life: Some(life), rows, sequence: 0 };
            let late = random.pick(&[0, 500, 50_000]);
            self.network.bring(self.now + 1 + late, arrival);
        }
    }
}
