//! Work that was posted before a command that takes away a means of sending it: it is sent first,
//! within a bound, because an adapter would have sent it by then.
//!
//! One command sends one batch, and its answer says whether more is left: the control thread serves
//! others before it asks again, and decides how often it asks. Once its client is gone, the work
//! of a session is sent by such batches and in no other way. Otherwise a thousand queue pairs
//! with thousands of datagrams each would be sent for seconds after the death of their program.

use std::mem;

use roced_transport::{clock::Nanos, qp::ServiceType};
use roced_types::{Qpn, SessionId};

use super::{
    command::{Answer, CommandRefused},
    nic::Nic,
    poll_loop::{FRAMES_OUT, Worker, monotonic_now},
    qp_table::entry_of,
};

/// Frames that a queue pair of an ended session sends before the next has its turn. A guess.
const QUANTUM: usize = 16;
/// Queue pairs of an ended session that are visited by one command: most may have nothing to send,
/// and other sessions wait for the worker. A guess.
const VISITS: usize = 256;
/// Rounds for all queue pairs, as any of them may have work that names an address handle.
const ROUNDS: usize = 4;

impl<N: Nic> Worker<N> {
    /// Sends a batch of the work of a queue pair that is to end. [`Answer::Sent`].
    pub(super) fn send_posted_of(&mut self, qpn: Qpn) -> Answer {
        let Some(at) = self.slot_of_qpn(qpn) else { return Answer::Refused(CommandRefused::NoSuchObject, None) };
        let Some(entry) = entry_of(self.first_entries[at], &self.worker_endpoints[at].endpoint, qpn) else {
            return Answer::Refused(CommandRefused::NoSuchObject, None);
        };
        let now = monotonic_now();
        let (frames, is_left) = self.send_batch_of(now, at, entry, qpn, FRAMES_OUT);
        self.finish_sends(now);
        Answer::Sent { frames: frames as u32, is_left }
    }

    /// Takes no further work of a session, and sends a batch of that which its queue pairs have,
    /// in turn. [`Answer::Sent`].
    pub(super) fn end_session(&mut self, session: SessionId) -> Answer {
        let Some((slot, is_new)) = self.qp_table.end_session(session) else {
            return Answer::Refused(CommandRefused::NoSuchObject, None);
        };
        if is_new {
            let mut from = 0;
            while let Some((doorbell, _, qpn)) = self.qp_table.next_qp_of(slot, from) {
                from = doorbell + 1;
                if let Some(at) = self.slot_of_qpn(qpn) {
                    self.worker_endpoints[at].endpoint.silence(qpn);
                }
            }
        }
        let now = monotonic_now();
        let mut cursor = self.qp_table.end_cursor(slot);
        let (mut sent, mut visits, mut stuck) = (0, 0, None);
        let is_left = loop {
            if sent >= FRAMES_OUT || visits >= VISITS {
                break true;
            }
            let Some((doorbell, entry, qpn)) = self.qp_table.next_qp_of(slot, cursor.doorbell) else {
                // Around again, if one of them had more than its quantum.
                cursor.doorbell = 0;
                if !mem::take(&mut cursor.is_left) {
                    break false;
                }
                continue;
            };
            cursor.doorbell = doorbell + 1;
            visits += 1;
            // A program knows of the sends of a reliable connection which have arrived.
            let at = self.slot_of_qpn(qpn).filter(|at| self.sends_of(*at, qpn).is_some());
            let Some(at) = at else {
                self.qp_table.pass_over(slot, doorbell);
                continue;
            };
            let (frames, is_left) = self.send_batch_of(now, at, entry, qpn, QUANTUM.min(FRAMES_OUT - sent));
            sent += frames;
            cursor.is_left |= is_left;
            if !is_left && self.sends_of(at, qpn) == Some(0) {
                self.qp_table.pass_over(slot, doorbell);
            }
            if frames > 0 {
                stuck = None;
            } else if is_left && stuck == Some(doorbell) {
                // No queue pair has room for frames: the next batch begins here.
                cursor.doorbell = doorbell;
                break true;
            } else if is_left {
                // That may be its class alone, which is paused.
                stuck = stuck.or(Some(doorbell));
                cursor.is_left = true;
            }
        };
        self.qp_table.set_end_cursor(slot, cursor);
        self.finish_sends(now);
        Answer::Sent { frames: sent as u32, is_left }
    }

    /// Number of sends that a queue pair without acknowledgments has taken and not sent.
    fn sends_of(&self, at: usize, qpn: Qpn) -> Option<u32> {
        let qp = self.worker_endpoints[at].endpoint.qp(qpn)?;
        let config = qp.config();
        (config.service != ServiceType::Rc).then(|| config.sizes.send_wrs - qp.send_room())
    }

    /// Sends at most `budget` frames of a queue pair; returns their number, and whether there may
    /// be more to send at once. Work that waits for something is not: a neighbor, or its rate.
    fn send_batch_of(&mut self, now: Nanos, at: usize, entry: u32, qpn: Qpn, budget: usize) -> (usize, bool) {
        let mut frames = 0;
        loop {
            // A fault that the control thread was not told of yet: later.
            if self.has_fault() {
                return (frames, true);
            }
            let served = self.qp_table.serve_last(entry, &mut self.worker_endpoints[at].endpoint);
            if let Some((session, fault)) = served.fault {
                self.note_fault(session, fault);
            }
            if frames == budget {
                return (frames, self.sends_of(at, qpn).is_some_and(|sends| sends > 0));
            }
            let sent = self.transmit_of(now, at, qpn, budget - frames);
            frames += sent.visits;
            if sent.visits == 0 {
                return (frames, sent.is_left);
            }
        }
    }

    /// Sends the work of all queue pairs, as far as a few rounds go.
    pub(super) fn send_posted(&mut self) {
        for _ in 0..ROUNDS {
            let taken = self.take_doorbells() + self.take_work();
            if taken + self.send_more() == 0 {
                return;
            }
        }
    }
}
