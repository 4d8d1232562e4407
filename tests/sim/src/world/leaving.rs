//! Ends of connections that leave, the answers of their removed queue pairs, and frames that reach
//! these.

use roced_transport::{
    clock::Nanos,
    qp::State,
    reject::{Disposition, DropReason},
};
use roced_types::Qpn;

use super::World;
use crate::{
    connection::{Connection, Drain, Phase},
    frame::{self, Seen},
    host,
    leaver::{Leaver, Left},
    model::AppView,
    reference::icrc,
    say::say,
    violation::demand,
};

impl World {
    /// The end of a connection that leaves does so, when it is time.
    pub(super) fn leave(&mut self, at: usize) {
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
    pub(super) fn end_at(&mut self, at: usize, host: usize) {
        let [first, second] = &mut self.model.connections[at].ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        if own.gone {
            return;
        }
        let qpn = Qpn::from_wire(own.qpn);
        let has_failed = self.endpoints[host].qp(qpn).is_none_or(|qp| qp.state() == State::Error);
        own.ending = (own.stream.settings.service.is_reliable() && !has_failed)
            .then(|| peer.stream.left(own.receives.completed).with_reads());
        (own.may_fail, own.ended) = (true, true);
        host::end(&mut self.endpoints[host], qpn);
    }

    /// The network loses an answer of an end that left: more often than others, where it loses any.
    pub(super) fn loses_farewell(&mut self, at: usize, from: usize) -> bool {
        let has_left = self.model.connections[at].ends[from].left.is_some();
        has_left && self.weather.loss > 0 && !self.leaving.random.one_in(3)
    }

    /// The end that left at a host, with a queue pair of that number.
    fn left_mut(&mut self, host: usize, qpn: u32) -> Option<&mut Left> {
        let connections = &mut self.model.connections;
        let of_number = connections.iter_mut().map(|connection| &mut connection.ends[host]).find(|end| end.qpn == qpn);
        match of_number {
            Some(end) => end.left.as_mut(),
            None => self.leaving.past_of(host, qpn),
        }
    }

    /// There is such an end.
    pub(super) fn has_left(&mut self, host: usize, qpn: u32) -> bool {
        self.left_mut(host, qpn).is_some()
    }

    /// A frame was given to the host of an end that left, if it was one.
    pub(super) fn on_given_to_left(&mut self, to: usize, seen: &Seen<'_>, corrupt: bool, disposition: Disposition) {
        let Some(left) = self.left_mut(to, seen.dest_qpn) else { return };
        let checked = left.check_taken(seen, corrupt, disposition);
        let tally = &mut self.model.hosts[to].tally;
        tally.behind += u64::from(disposition == Disposition::Dropped(DropReason::Duplicate));
        tally.given_corrupt += u64::from(corrupt && disposition == Disposition::Dropped(DropReason::BadIcrc));
        self.model.note(checked);
    }

    /// A frame to an end that left comes from an unknown address as well, now and then, or is of
    /// another partition: it has no answer.
    pub(super) fn pretend(&mut self, to: usize, seen: &Seen<'_>, bytes: &[u8]) {
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
        self.model.hosts[to].tally.give(&frame);
        let mut app = AppView { model: &mut self.model, host: to };
        let (first, rest) = frame.split_at(frame.len().min(3840));
        let pieces = [first, rest];
        let pieces = if rest.is_empty() { &pieces[..1] } else { &pieces[..] };
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), pieces, &mut app);
        let is_refused = disposition == Disposition::Dropped(DropReason::NoSuchQp);
        let check = || {
            demand!(
                is_refused,
                "left-after-all",
                "a frame of an unknown peer to a queue pair that was removed is {disposition:?}"
            );
            Ok(())
        };
        self.model.note(check());
    }

    /// A frame leaves that is an answer of an end that left, of a connection that is no more. Says
    /// whether it is one.
    pub(super) fn is_of_past(&mut self, from: usize, bytes: &[u8]) -> bool {
        let Some(seen) = frame::parse(bytes).filter(|seen| seen.service.is_reliable() && !seen.is_request()) else {
            return false;
        };
        if self.model.connections.iter().any(|connection| connection.ends[1 - from].qpn == seen.dest_qpn) {
            return false;
        }
        let Some(left) = self.leaving.past_of_peer(from, seen.dest_qpn) else { return false };
        let checked = left.check_answer(&seen);
        self.model.hosts[from].tally.answers += 1;
        self.model.note(checked);
        true
    }

    /// All answers that a host owed have left: those of removed queue pairs as well.
    pub(super) fn on_nothing_owed(&mut self, host: usize) {
        let is_closed = |connection: &&mut Connection| matches!(connection.phase, Phase::Closed { .. });
        for connection in self.model.connections.iter_mut().filter(is_closed) {
            let end = &mut connection.ends[host];
            end.is_silent = end.left.is_none();
        }
    }

    /// The network brings frames of before to the numbers of a connection that is no more.
    pub(super) fn bring_late(&mut self, at: usize) {
        if !self.earlier.is_on() {
            return;
        }
        let slot = self.model.connections[at].slot;
        for _ in 0..3 {
            let random = &mut self.leaving.random;
            let Some(arrival) = self.earlier.any_kept(random, slot) else { return };
            let late = random.pick(&[0, 500, 50_000]);
            self.network.bring(self.now + 1 + late, arrival);
        }
    }
}
