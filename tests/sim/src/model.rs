//! Model of the applications of both hosts: their memory, and everything that is known of their
//! connections. The transport reaches it through [`AppView`]; each thing that it does there is
//! checked at once.

use roced_transport::{
    io::{App, AtomicOperation, BorrowedPayload, CqOverrun, MemoryFault, PlaceFault, WorkCompletion},
    mr::MemSpan,
};
use roced_types::{Cqn, Qpn};

use crate::{
    arriving::Arriving,
    check::{Tally, completion},
    connection::{Connection, Phase},
    counting,
    fault::Fault,
    frame::Seen,
    layout::{COUNTING, READ_AT, SINK, SLOT_BYTES, SOURCE, region_slot, reuse_slot},
    pattern::{SOURCE_BYTES, sea},
    returning::ReturnedPrograms,
    reuse::Reuse,
    say::say,
    shared::Shared,
    violation::{Checked, Violation, demand},
};

pub(crate) const SEND_CQ: Cqn = Cqn(1);
pub(crate) const RECV_CQ: Cqn = Cqn(2);

/// The wr_id of receive 0: no send work request has it.
pub(crate) const RECEIVE_ID: u64 = 1 << 40;

/// One host's side of it.
#[derive(Debug)]
pub(crate) struct HostModel {
    pub(crate) sink: Vec<u8>,
    /// Generation of each slot's key that is good now.
    pub(crate) generations: Vec<u32>,
    /// As `generations`, of the keys that the host makes invalid itself.
    pub(crate) own_generations: Vec<u32>,
    /// Source memory of each slot that is used again.
    pub(crate) reuse: Vec<Reuse>,
    /// Which connection has the queue pair of that index.
    pub(crate) by_index: Vec<Option<usize>>,
    pub(crate) shared: Option<Shared>,
    pub(crate) tally: Tally,
}

/// Both.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    /// Calls of either endpoint: the present value of words that count up.
    pub(crate) calls: u64,
    pub(crate) hosts: [HostModel; 2],
    /// One in each slot.
    pub(crate) connections: Vec<Connection>,
    /// Queue pairs of programs that came back.
    pub(crate) returned: ReturnedPrograms,
    /// The connection of the queue pair that an endpoint is working on.
    pub(crate) served: Option<usize>,
    /// A frame without an answer that an endpoint is being given.
    pub(crate) arriving: Option<Arriving>,
    /// Sends that were completed in the call in which their last frame left: they are looked at
    /// when the frame was.
    pub(crate) left: Vec<WorkCompletion>,
    pub(crate) violation: Option<Violation>,
    /// Something completed since this was last taken.
    pub(crate) activity: bool,
    pub(crate) trace: bool,
    /// Hits of each fault on each row.
    pub(crate) cells: Vec<[u64; Fault::ALL.len()]>,
}

impl Model {
    /// Keeps the first violation.
    pub(crate) fn note(&mut self, checked: Checked) {
        if let Err(violation) = checked {
            self.violation.get_or_insert(violation);
        }
    }

    pub(crate) fn count_hits(&mut self, rows: u64, hits: u32) {
        for row in (0..self.cells.len()).filter(|row| rows >> row & 1 != 0) {
            for fault in (0..Fault::ALL.len()).filter(|fault| hits >> fault & 1 != 0) {
                self.cells[row][fault] += 1;
            }
        }
    }

    /// The frames of a call are looked at; now the sends that completed in it.
    pub(crate) fn judge_left(&mut self, host: usize) {
        for cqe in std::mem::take(&mut self.left) {
            let Some(at) = self.connection_of(host, cqe.qpn.get()) else { continue };
            let [first, second] = &mut self.connections[at].ends;
            let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
            let checked = completion::check_send(own, peer, &cqe, self.now);
            self.note(checked);
        }
    }

    /// The connection with the queue pair of this number at `host`.
    pub(crate) fn connection_of(&self, host: usize, qpn: u32) -> Option<usize> {
        self.hosts[host].by_index.get(Qpn::from_wire(qpn).index() as usize).copied().flatten()
    }

    /// Required effect of a frame of an unreliable connection at `host`, which has a listening
    /// queue pair.
    pub(crate) fn expect_unreliable(&mut self, host: usize, seen: &Seen<'_>) -> Arriving {
        let Some(at) = self.connection_of(host, seen.dest_qpn) else {
            return Arriving::nothing("unreliable", seen.psn);
        };
        let connection = &mut self.connections[at];
        let good = self.hosts[host].generations[connection.slot];
        let [first, second] = &mut connection.ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        Arriving::unreliable(own, peer, self.hosts[host].shared.as_ref(), good, seen)
    }

    /// Required effect of a datagram at `host`, at the queue pair of that number, which takes some.
    pub(crate) fn expect_datagram(&self, host: usize, seen: &Seen<'_>, frame: &[u8]) -> Arriving {
        let Some(at) = self.connection_of(host, seen.dest_qpn) else {
            return Arriving::nothing("datagram", seen.psn);
        };
        let connection = &self.connections[at];
        let receive = connection.ends[host].next_receive(self.hosts[host].shared.as_ref());
        Arriving::datagram(receive, connection.settings.qkey, seen, frame)
    }

    fn on_write(&mut self, host: usize, span: MemSpan<'_>, bytes: &[u8]) -> Checked {
        let offset = span.offset() as u32;
        self.check_region(host, span)?;
        demand!(
            ![SOURCE, COUNTING].contains(&span.object()),
            "memory",
            "{} bytes into source memory at {offset}",
            bytes.len()
        );
        let slots = self.connections.len();
        let slot = (offset / SLOT_BYTES) as usize;
        // Buffers of the shared queue belong to the slot that has taken them.
        let slot = if slot >= slots { self.served.unwrap_or(slots) } else { slot };
        demand!(slot < self.connections.len(), "memory", "{} bytes outside of all memory at {offset}", bytes.len());
        let connection = &mut self.connections[slot];
        demand!(
            !matches!(connection.phase, Phase::Closed { .. }),
            "memory",
            "{} bytes at {offset} of a connection that is no more",
            bytes.len()
        );
        let [first, second] = &mut connection.ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        if let Some(arriving) = &mut self.arriving {
            arriving.check_write(own, self.hosts[host].shared.as_mut(), offset, bytes)?;
        } else if offset % SLOT_BYTES >= READ_AT && offset < slots as u32 * SLOT_BYTES {
            own.stream.check_placed(offset, bytes)?;
        } else {
            peer.stream.check_write(own, self.hosts[host].shared.as_mut(), offset, bytes)?;
        }
        self.hosts[host].sink[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        if self.trace {
            say(format_args!("{:>12} host {host}   {} bytes at {offset}", self.now, bytes.len()));
        }
        Ok(())
    }

    /// The region's key is good.
    fn check_region(&self, host: usize, span: MemSpan<'_>) -> Checked {
        if let Some((slot, generation, own)) = region_slot(span.object()) {
            let HostModel { generations, own_generations, .. } = &self.hosts[host];
            let good = if own { own_generations[slot] } else { generations[slot] };
            demand!(
                generation == good,
                "stale-key",
                "memory of key {generation} of slot {slot} is used, {good} is good"
            );
        } else if let Some((slot, generation)) = reuse_slot(span.object()) {
            let good = self.hosts[host].reuse[slot].generation;
            demand!(
                generation == good,
                "stale-key",
                "memory of key {generation} of slot {slot} is used, which was deregistered; {good} is good"
            );
        } else {
            let region = span.object();
            demand!([SOURCE, SINK, COUNTING].contains(&region), "access", "memory that no key opens is used");
        }
        Ok(())
    }

    fn on_read(&mut self, host: usize, span: MemSpan<'_>, into: &mut [u8]) -> Checked {
        self.check_region(host, span)?;
        if let Some((slot, _)) = reuse_slot(span.object()) {
            let reuse = self.hosts[host].reuse[slot];
            into.copy_from_slice(reuse.bytes(host, span.offset() as usize, into.len()));
            return Ok(());
        }
        if span.object() == COUNTING {
            counting::fill(span.offset() as u32, self.calls, into);
            return Ok(());
        }
        let from = if span.object() == SOURCE { &sea()[host * SOURCE_BYTES..] } else { &self.hosts[host].sink };
        into.copy_from_slice(&from[span.offset() as usize..][..into.len()]);
        Ok(())
    }

    /// Returns the value before.
    fn on_atomic(&mut self, host: usize, span: MemSpan<'_>, operation: AtomicOperation) -> (u64, Checked) {
        let checked = self.check_region(host, span);
        let offset = span.offset() as u32;
        let slot = (offset / SLOT_BYTES) as usize;
        let Some(connection) = self.connections.get_mut(slot) else { return (0, checked) };
        let word = &mut self.hosts[host].sink[offset as usize..][..8];
        let before = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        let stream = &mut connection.ends[1 - host].stream;
        let checked = checked.and_then(|()| stream.check_atomic(offset, operation, before)).map(|after| {
            word.copy_from_slice(&after.to_ne_bytes());
        });
        let tally = &mut self.hosts[host].tally;
        match operation {
            AtomicOperation::Write { .. } => tally.atomic_writes += 1,
            _ => tally.atomics += 1,
        }
        if self.trace {
            say(format_args!("{:>12} host {host}   {operation:?} at {offset} found {before}", self.now));
        }
        (before, checked)
    }

    fn on_complete(&mut self, host: usize, cqn: Cqn, cqe: &WorkCompletion) -> Checked {
        self.activity = true;
        if self.trace {
            say(format_args!(
                "{:>12} host {host}   completion of {:#x} on {}: status {:?}, qp {}",
                self.now, cqe.wr_id, cqn, cqe.status, cqe.qpn
            ));
        }
        let Some(at) = self.connection_of(host, cqe.qpn.get()) else {
            if let Some(checked) = self.returned.check_send(host, cqe) {
                return checked;
            }
            demand!(false, "completion-once", "{:#x} completes on a queue pair that is gone", cqe.wr_id);
            return Ok(());
        };
        if cqn == SEND_CQ && !self.connections[at].settings.service.is_reliable() {
            self.left.push(*cqe);
            return Ok(());
        }
        let [first, second] = &mut self.connections[at].ends;
        let (own, peer) = if host == 0 { (first, second) } else { (second, first) };
        let shared = self.hosts[host].shared.as_mut();
        match cqn {
            SEND_CQ => completion::check_send(own, peer, cqe, self.now),
            _ if let Some(arriving) = &mut self.arriving => arriving.check_recv(own, shared, cqe),
            _ => completion::check_recv(own, peer, shared, cqe),
        }
    }
}

/// One host's memory and completion queues, as its endpoint sees them.
pub(crate) struct AppView<'m> {
    pub(crate) model: &'m mut Model,
    pub(crate) host: usize,
}

impl App for AppView<'_> {
    fn write(&mut self, to: MemSpan<'_>, bytes: &[u8]) -> Result<(), MemoryFault> {
        let checked = self.model.on_write(self.host, to, bytes);
        self.model.note(checked);
        Ok(())
    }

    /// No queue pair here has its peer on the same endpoint.
    fn copy(&mut self, _to: MemSpan<'_>, _from: BorrowedPayload) -> Result<(), PlaceFault> {
        Err(PlaceFault::Source)
    }

    fn read(&mut self, from: MemSpan<'_>, into: &mut [u8]) -> Result<(), MemoryFault> {
        let checked = self.model.on_read(self.host, from, into);
        self.model.note(checked);
        Ok(())
    }

    fn atomic(&mut self, at: MemSpan<'_>, operation: AtomicOperation) -> Result<u64, MemoryFault> {
        let (before, checked) = self.model.on_atomic(self.host, at, operation);
        self.model.note(checked);
        Ok(before)
    }

    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) -> Result<(), CqOverrun> {
        let checked = self.model.on_complete(self.host, cqn, completion);
        self.model.note(checked);
        Ok(())
    }
}
