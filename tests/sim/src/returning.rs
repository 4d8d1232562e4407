//! Programs that come back at once, and take the number of a removed queue pair for that of their
//! next peer.
//!
//! Their new queue pair has the number of the one before, so that each answer to that reaches them.
//! Its first PSN is below or above those of the life that ended; where a host uses another UDP
//! source port in each life, any. The removed queue pair has executed nothing of it: none of its
//! packets is answered, and none of its requests succeeds (checker `never-executed`).

use roced_transport::{
    io::WorkCompletion,
    reject::{Disposition, DropReason},
};
use roced_types::Status;

use crate::{
    connection::Connection,
    frame::{Kind, Seen},
    leaver::Past,
    random::Random,
    settings::Settings,
    violation::{Checked, demand},
};

/// Distances of PSNs from those of the life that ended.
const GAPS: [u32; 5] = [0, 1, 100, 70_000, 4_000_000];

/// A queue pair of a program that came back.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    /// The removed queue pair.
    pub(crate) to: u32,
    pub(crate) life: u32,
    /// The life that ended.
    pub(crate) before: u32,
    pub(crate) first: u32,
    /// Packets sent for the first time.
    pub(crate) sent: u32,
    /// Its PSNs may be those of the life that ended.
    pub(crate) overlaps: bool,
    /// An ACK has reached it; a late frame of the life before may have asked for it.
    pub(crate) heard: bool,
}

/// Queue pairs of programs that came back.
#[derive(Debug, Default)]
pub(crate) struct ReturnedPrograms {
    list: Vec<Returned>,
}

/// A connection that a program will have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    pub(crate) to: u32,
    pub(crate) slot: usize,
    pub(crate) settings: Settings,
    /// The life that ended.
    pub(crate) before: u32,
    /// First PSN of the life that ended, and the one behind its last.
    life: [u32; 2],
}

impl Plan {
    /// Of the peer of an end that left.
    pub(crate) fn of(past: &Past, before: &Connection) -> Self {
        let start = before.ends[1 - past.host].stream.start;
        Self {
            host: 1 - past.host,
            qpn: past.peer,
            to: past.qpn,
            slot: before.slot,
            settings: Settings { timeout: 8, retry_cnt: 1, ..before.settings },
            before: before.life,
            life: [start as u32, past.left.possible as u32],
        }
    }

    /// First PSN of so many packets, and whether it may be one of the life that ended.
    pub(crate) fn first(&self, random: &mut Random, packets: u32, may_overlap: bool) -> (u32, bool) {
        let [start, end] = self.life;
        let gap = random.pick(&GAPS);
        let overlaps = may_overlap && random.one_in(2);
        let first = match overlaps {
            true => start.wrapping_sub(packets).wrapping_add(random.below(u64::from(packets + 20)) as u32),
            false if random.one_in(2) => start.wrapping_sub(packets + gap),
            false => end.wrapping_add(gap),
        };
        (first & 0xff_ffff, overlaps)
    }
}

impl Returned {
    fn is(&self, host: usize, qpn: u32) -> bool {
        (self.host, self.qpn) == (host, qpn)
    }

    fn check_send(&self, cqe: &WorkCompletion) -> Checked {
        let is_executed = self.overlaps && self.heard;
        let is_plausible = match cqe.status {
            Status::TransportRetryExceeded | Status::WorkRequestFlushed => true,
            Status::Success => is_executed,
            _ => false,
        };
        demand!(
            is_plausible,
            "never-executed",
            "request {} to a queue pair that is gone ends with {:?}: {self:x?}",
            cqe.wr_id,
            cqe.status
        );
        Ok(())
    }
}

impl ReturnedPrograms {
    /// Another one came back.
    pub(crate) fn push(&mut self, returned: Returned) {
        self.list.push(returned);
    }

    /// There is a queue pair of that number at a host.
    pub(crate) fn has(&self, host: usize, qpn: u32) -> bool {
        self.list.iter().any(|returned| returned.is(host, qpn))
    }

    fn get_mut(&mut self, host: usize, qpn: u32) -> Option<&mut Returned> {
        self.list.iter_mut().find(|returned| returned.is(host, qpn))
    }

    /// A host went away with all that it had.
    pub(crate) fn forget(&mut self, host: usize) {
        self.list.retain(|returned| returned.host != host);
    }

    /// A send completes that is not of a connection. `None` if no program that came back has posted
    /// it.
    pub(crate) fn check_send(&self, host: usize, cqe: &WorkCompletion) -> Option<Checked> {
        let returned = self.list.iter().find(|returned| returned.is(host, cqe.qpn.get()));
        returned.map(|returned| returned.check_send(cqe))
    }

    /// A frame of a life arrives; without one, of a removed queue pair. The network loses all but
    /// ACKs of the life before to a queue pair of a program that came back. PSNs of still earlier
    /// lives of these numbers may be its own: it would believe those ACKs, as go-back-N does.
    pub(crate) fn loses_before(&mut self, to: usize, seen: &Seen<'_>, life: Option<u32>) -> bool {
        let Some(returned) = self.get_mut(to, seen.dest_qpn) else { return false };
        let is_of_before = life.is_none_or(|life| life == returned.before);
        let is_ack = is_of_before && seen.kind == Kind::Ack && seen.aeth.is_some_and(|aeth| aeth.syndrome < 0x20);
        returned.heard |= is_ack;
        !is_ack
    }

    /// A frame of this life was given to a host without such a queue pair.
    pub(crate) fn check_unexecuted(&self, seen: &Seen<'_>, life: Option<u32>, disposition: Disposition) -> Checked {
        let is_executed = disposition == Disposition::Dropped(DropReason::Duplicate);
        let returned = self.list.iter().find(|returned| Some(returned.life) == life);
        demand!(
            !is_executed || returned.is_none(),
            "never-executed",
            "a queue pair that was removed answers PSN {} of a later connection: {returned:x?}",
            seen.psn
        );
        Ok(())
    }

    /// A request leaves for a queue pair that was removed. If a program that came back sends it,
    /// returns that one's life, and whether the request is sent for the first time.
    pub(crate) fn on_request(&mut self, from: usize, seen: &Seen<'_>) -> Option<(u32, bool)> {
        let returned = self.list.iter_mut().find(|returned| (returned.host, returned.to) == (from, seen.dest_qpn))?;
        let is_first = seen.psn.wrapping_sub(returned.first) & 0xff_ffff == returned.sent;
        returned.sent += u32::from(is_first);
        Some((returned.life, is_first))
    }
}
