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
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{Qpn, SendOp, Sge, Status, send_flags};

use crate::{
    check::What,
    connection::{Connection, Settings},
    frame::{self, Kind, Seen},
    host,
    layout::{SOURCE_KEY, SOURCE_VA},
    leaving::Past,
    model::Model,
    random::Random,
    say::say,
    violation::{Checked, demand},
    world::World,
};

/// Distances of PSNs from those of the life that ended.
const GAPS: [u32; 5] = [0, 1, 100, 70_000, 4_000_000];

/// A queue pair of a program that came back.
#[derive(Debug)]
pub(crate) struct Returned {
    host: usize,
    qpn: u32,
    /// The removed queue pair.
    to: u32,
    life: u32,
    first: u32,
    /// Packets sent for the first time.
    sent: u32,
    /// Its PSNs may be those of the life that ended.
    overlaps: bool,
    /// An ACK has reached it; a late frame of the life before may have asked for it.
    heard: bool,
}

/// A connection that a program will have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    host: usize,
    qpn: u32,
    to: u32,
    slot: usize,
    settings: Settings,
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
            life: [start as u32, past.left.possible as u32],
        }
    }

    /// First PSN of so many packets, and whether it may be one of the life that ended.
    fn first(&self, random: &mut Random, packets: u32, may_overlap: bool) -> (u32, bool) {
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

impl Model {
    fn returned_mut(&mut self, host: usize, qpn: u32) -> Option<&mut Returned> {
        self.returned.iter_mut().find(|returned| (returned.host, returned.qpn) == (host, qpn))
    }

    /// A host went away with all that it had.
    pub(crate) fn forget_returned(&mut self, host: usize) {
        self.returned.retain(|returned| returned.host != host);
    }

    /// A send completes that is not of a connection. `None` if no program that came back has posted
    /// it.
    pub(crate) fn check_send_of_returned(&mut self, host: usize, cqe: &WorkCompletion) -> Option<Checked> {
        self.returned_mut(host, cqe.qpn.get()).map(|returned| returned.check_send(cqe))
    }

    /// A frame arrives. The network loses all but ACKs to a queue pair of a program that came back:
    /// they are of the life before.
    pub(crate) fn loses_before_returned(&mut self, to: usize, seen: &Seen<'_>) -> bool {
        let is_ack = seen.kind == Kind::Ack && seen.aeth.is_some_and(|aeth| aeth.syndrome < 0x20);
        let Some(returned) = self.returned_mut(to, seen.dest_qpn) else { return false };
        returned.heard |= is_ack;
        !is_ack
    }

    /// A frame of this life was given to a host without such a queue pair.
    pub(crate) fn check_unexecuted(&self, seen: &Seen<'_>, life: Option<u32>, disposition: Disposition) -> Checked {
        let is_executed = disposition == Disposition::Dropped(DropReason::Duplicate);
        let returned = self.returned.iter().find(|returned| Some(returned.life) == life);
        demand!(
            !is_executed || returned.is_none(),
            "never-executed",
            "a queue pair that was removed answers PSN {} of a later connection: {returned:x?}",
            seen.psn
        );
        Ok(())
    }
}

impl World {
    /// A program comes back, not twice with the same number.
    pub(crate) fn come_back(&mut self, plan: Plan) {
        let Plan { host, qpn, to, slot, settings, .. } = plan;
        if self.model.returned_mut(host, qpn).is_some() {
            return;
        }
        let random = &mut self.leaving.random;
        let lengths = [(); 3].map(|()| random.within(1, 3 * u64::from(settings.mtu)) as u32);
        let lengths = &lengths[..random.within(1, 3) as usize];
        let packets = lengths.iter().map(|length| length.div_ceil(settings.mtu)).sum();
        let (first, overlaps) = plan.first(random, packets, self.earlier.changes_port(host));
        self.leaving.on_number_in_use(host, qpn);
        self.earlier.lives += 1;
        let life = self.earlier.lives;
        let (own, peer, endpoint) = (Qpn::from_wire(qpn), Qpn::from_wire(to), &mut self.endpoints[host]);
        let port = self.earlier.port(host, slot, life);
        host::insert(endpoint, own, &settings, None);
        host::connect(endpoint, (host, slot), own, peer, &settings, [first; 2], port);
        host::make_ready(endpoint, host, own, to, &settings, [first; 2]);
        for (wr_id, length) in lengths.iter().enumerate() {
            let sges = [Sge { va: SOURCE_VA, length: *length, lkey: SOURCE_KEY }];
            let work = SendWork {
                wr_id: wr_id as u64,
                op: SendOp::Send,
                flags: send_flags::SIGNALED,
                imm: [0; 4],
                remote_va: 0,
                rkey: 0,
                swap_or_add: 0,
                compare: 0,
                to: DatagramTo::NOWHERE,
                data: WorkData::Sges(&sges),
            };
            endpoint.post_send(own, &work).expect("just made");
        }
        let returned = Returned { host, qpn, to, life, first, sent: 0, overlaps, heard: false };
        if self.model.trace {
            say(format_args!("{:>12} host {host}   comes back after {plan:x?}: {returned:x?}", self.now));
        }
        self.model.returned.push(returned);
        self.model.activity = true;
    }

    /// A frame leaves that is a request of a program that came back. Returns its life.
    pub(crate) fn life_of_returned(&mut self, from: usize, bytes: &[u8]) -> Option<u32> {
        let seen = frame::parse(bytes).filter(|seen| seen.service.is_reliable() && seen.is_request())?;
        let of_it = |returned: &&mut Returned| (returned.host, returned.to) == (from, seen.dest_qpn);
        let returned = self.model.returned.iter_mut().find(of_it)?;
        let is_first = seen.psn.wrapping_sub(returned.first) & 0xff_ffff == returned.sent;
        returned.sent += u32::from(is_first);
        let life = returned.life;
        let tally = &mut self.model.hosts[from].tally;
        tally.requests += 1;
        tally.payload_bytes += seen.payload.len() as u64;
        tally.on_sent(if is_first { What::First } else { What::AgainOrQuestion });
        Some(life)
    }
}
