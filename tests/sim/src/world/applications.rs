//! Work of the applications: they post work and receives while a connection is open, and see to it
//! that it ends.

use roced_transport::work::{RecvWork, SendWork, WorkData};
use roced_types::{Qpn, SendOp, Sge, send_flags};

use super::World;
use crate::{
    connection::{Connection, End, Phase, Rebirth},
    host,
    layout::{
        MESSAGE_BYTES, RECV_AT, RECV_BYTES, RECV_SLOTS, REUSE_VA, SINK_KEY, SINK_VA, SLOT_BYTES, SOURCE_KEY, SOURCE_VA,
    },
    message::{Kind, Message, Outcome},
    model::RECEIVE_ID,
    operation::{self, Composer, Operation, Trait, trait_bit},
    pattern::{SOURCE_BYTES, sea, split},
    say::say,
    service::Service,
    stream::Receive,
};

/// Work requests that one operation posts at the most.
const WORK_REQUESTS_MAX: u32 = operation::WORK_REQUESTS_MAX;

/// Work requests of a queue pair that may wait, besides those of one more operation.
const ROOM: u64 = (host::WORK_REQUESTS - WORK_REQUESTS_MAX) as u64;

impl World {
    /// A connection's applications look at it.
    pub(super) fn visit(&mut self, at: usize) {
        self.leave(at);
        let connection = &self.model.connections[at];
        match connection.phase {
            Phase::Open => {
                let broken = connection.ends.iter().any(|end| end.failed || end.gone);
                if broken || connection.frames_left == 0 || self.has_enough() {
                    self.model.connections[at].phase = Phase::Closing { since: self.now };
                    return self.visit(at);
                }
                for end in 0..2 {
                    self.make_ready(at, end);
                    self.post_receives(at, end);
                    self.answer(at, end);
                    self.drain(at, end);
                    self.post_sends(at, end);
                    let since = self.model.connections[at].ends[end].stream.alive_at;
                    if !self.model.connections[at].ends[end].stream.is_drained() {
                        let checked = self.check_patience(since, "no request went forward");
                        self.model.note(checked);
                    }
                }
            }
            Phase::Closing { since } => {
                for end in 0..2 {
                    self.post_receives(at, end);
                    self.drain(at, end);
                }
                let done = |end: &End| end.gone || end.stream.is_drained();
                if self.model.connections[at].ends.iter().all(done) {
                    self.end(at);
                } else {
                    let checked = self.check_patience(since, "a connection does not end");
                    self.model.note(checked);
                }
            }
            Phase::Flushing { since } => {
                let connection = &self.model.connections[at];
                if connection.ends.iter().all(|end| end.gone || end.is_flushed()) {
                    self.close(at);
                } else {
                    let checked = self.check_patience(since, "receives are not flushed");
                    self.model.note(checked);
                }
            }
            Phase::Closed { until } if until <= self.now && !self.has_enough() => {
                // A removed queue pair may owe the answer to a repetition of this moment: that is
                // sent before its number is in use again.
                if let Some(until) = self.send_owed() {
                    self.model.connections[at].phase = Phase::Closed { until };
                    return;
                }
                self.model.connections[at] = self.connect(at, true);
                self.visit(at);
            }
            Phase::Closed { .. } => {}
        }
    }

    /// The hosts send the frames that they have, as far as their NICs have room. Returns the time
    /// at which one has room again, if it had none.
    fn send_owed(&mut self) -> Option<u64> {
        for host in 0..2 {
            if self.endpoints[host].wants_transmit() {
                self.transmit(host);
            }
        }
        self.look_again.into_iter().filter(|at| *at != u64::MAX).max()
    }

    /// Both ends go to the error state.
    fn end(&mut self, at: usize) {
        (0..2).for_each(|host| self.end_at(at, host));
        self.model.connections[at].phase = Phase::Flushing { since: self.now };
        self.model.activity = true;
    }

    /// Both queue pairs go away.
    fn close(&mut self, at: usize) {
        let mut rebirth = self.earlier.rebirth(&mut self.random);
        if rebirth == Rebirth::Reset && self.earlier.is_uncertain(&mut self.model.connections[at]) {
            rebirth = Rebirth::SameNumbers;
        }
        for host in 0..2 {
            let end = &self.model.connections[at].ends[host];
            if end.gone {
                continue;
            }
            let qpn = Qpn::from_wire(end.qpn);
            if rebirth == Rebirth::Reset {
                host::reset(&mut self.endpoints[host], qpn);
            } else {
                self.endpoints[host].remove_qp(qpn).expect("there until now");
                let end = &mut self.model.connections[at].ends[host];
                end.left = end.ending.take();
            }
            self.forget_changes(host, qpn, rebirth == Rebirth::Reset);
            self.model.hosts[host].by_index[qpn.index() as usize] = None;
        }
        let until = self.now + self.random.pick(&[1_000, 100_000, 2_000_000]);
        let connection = &mut self.model.connections[at];
        (connection.phase, connection.rebirth) = (Phase::Closed { until }, rebirth);
        self.earlier.end(connection, self.now);
        self.bring_late(at);
    }

    /// From RTR on to RTS, when it is time.
    fn make_ready(&mut self, at: usize, host: usize) {
        let Connection { ends, settings, psns, .. } = &mut self.model.connections[at];
        let peer = ends[1 - host].qpn;
        let end = &mut ends[host];
        if end.ready || end.gone || end.rts_at > self.now {
            return;
        }
        end.ready = true;
        host::make_ready(&mut self.endpoints[host], host, Qpn::from_wire(end.qpn), peer, settings, *psns);
    }

    fn post_receives(&mut self, at: usize, host: usize) {
        let connection = &mut self.model.connections[at];
        let (settings, slot) = (connection.settings, connection.slot);
        let end = &mut connection.ends[host];
        if end.gone || end.failed || end.is_shared {
            return;
        }
        let lacking = settings.receives - (end.receives.posted - end.receives.completed);
        if lacking == 0 {
            return;
        }
        // Those that are late come all at once.
        if settings.receive_late > 0 {
            if end.receive_at == 0 {
                end.receive_at = self.now + 1 + self.random.below(settings.receive_late);
            }
            if end.receive_at > self.now {
                return;
            }
            end.receive_at = 0;
        }
        let mut sges = [Sge::default(); 32];
        for _ in 0..lacking {
            let end = &mut self.model.connections[at].ends[host];
            let buffer = end.receives.posted as u32 % RECV_SLOTS;
            let base = slot as u32 * SLOT_BYTES + RECV_AT + buffer * RECV_BYTES;
            // Some have room for the shortest datagrams only.
            let short = settings.service == Service::Datagram && self.random.one_in(12);
            let bytes = if short { self.random.below(100) as u32 } else { RECV_BYTES };
            let into = split(&mut self.random, base, bytes, settings.sges);
            for (sge, (offset, bytes)) in sges.iter_mut().zip(into.iter()) {
                *sge = Sge { va: SINK_VA + u64::from(offset), length: bytes, lkey: SINK_KEY };
            }
            let wr_id = RECEIVE_ID + end.receives.posted;
            let work = RecvWork { wr_id, sges: &sges[..into.len()] };
            end.receives.posted += 1;
            end.receives.list.push_back(Receive { wr_id, into, buffer });
            self.endpoints[host].post_recv(Qpn::from_wire(end.qpn), &work).expect("a queue pair that is there");
        }
    }

    fn post_sends(&mut self, at: usize, host: usize) {
        let connection = &mut self.model.connections[at];
        if connection.ends[host].send_at > self.now {
            return;
        }
        if !connection.settings.service.is_reliable() {
            connection.ends[host].send_at = self.now + self.random.pick(&[2_000, 20_000, 100_000]);
        }
        let depth = connection.settings.depth;
        for _ in 0..depth {
            let connection = &self.model.connections[at];
            let end = &connection.ends[host];
            let waiting = end.stream.posted() - end.stream.complete;
            if !end.ready
                || end.gone
                || end.failed
                || end.stream.outstanding().count() as u64 >= depth
                || waiting >= ROOM
            {
                return;
            }
            if self.endpoints[host].send_room(Qpn::from_wire(end.qpn)) < WORK_REQUESTS_MAX {
                return;
            }
            self.post_operation(at, host);
        }
    }

    /// Draws an operation and posts its work.
    fn post_operation(&mut self, at: usize, host: usize) {
        let fatal = self.fatal_every > 0 && self.random.one_in(self.fatal_every);
        let service = self.model.connections[at].settings.service;
        let (operation, row) = operation::draw(&mut self.random, service, fatal);
        self.post_drawn(at, host, operation, row);
        if fatal && self.weather.peer_restart > 0 && self.restart_at == u64::MAX && self.random.one_in(4) {
            // Unanswered work is soon over.
            let soon = if service.is_reliable() { 200_000 } else { 5_000 };
            self.restart_at = self.now + self.random.below(soon);
        }
    }

    /// Posts the work of an operation.
    pub(super) fn post_drawn(&mut self, at: usize, host: usize, operation: &Operation, row: u64) {
        let shares = self.model.connections[at].ends[1 - host].is_shared;
        let settings = self.model.connections[at].settings;
        let (partners, refusing) =
            if settings.service == Service::Datagram { self.others(host) } else { Default::default() };
        let connection = &mut self.model.connections[at];
        let end = &mut connection.ends[host];
        let mut composer = Composer {
            random: &mut self.random,
            mtu: settings.mtu,
            longest: if settings.service.is_reliable() { MESSAGE_BYTES } else { MESSAGE_BYTES.min(12 * settings.mtu) },
            host,
            slot: connection.slot,
            inline_bytes: settings.inline_bytes,
            sges: settings.sges,
            shares,
            partners,
            refusing,
            qkey: settings.qkey,
            write_at: &mut end.write_at,
            read_at: &mut end.read_at,
            back_is_free: end.stream.complete >= end.back_until,
            key_is_free: end.stream.complete >= end.key_until,
            own_key_is_free: end.stream.complete >= end.own_key_until,
            own_generation: self.model.hosts[host].own_generations[connection.slot],
            generation: self.model.hosts[1 - host].generations[connection.slot],
            next_receive: (!shares).then_some(end.stream.takers_posted),
            reuse_is_free: end.told.until.is_none(),
            reuse: self.model.hosts[host].reuse[connection.slot],
            pause: 0,
            take_back: false,
            messages: Vec::new(),
        };
        (operation.compose)(&mut composer);
        let (take_back, pause, messages) = (composer.take_back, composer.pause, composer.messages);
        if pause > 0 {
            end.send_at = self.now + pause;
        }
        if messages.iter().any(|message| message.reuses) {
            end.told.until = Some(end.stream.posted() + messages.len() as u64 - 1);
        }
        if messages.len() > 1 {
            end.back_until = end.stream.posted() + messages.len() as u64;
        }
        if messages.iter().any(|message| message.invalidates) {
            end.key_until = end.stream.posted() + messages.len() as u64;
        }
        if messages.iter().any(|message| message.kind == Kind::LocalInvalidate) {
            end.own_key_until = end.stream.posted() + messages.len() as u64;
        }
        if take_back && !connection.ends[1 - host].gone {
            self.take_key_back(1 - host, at);
        }
        for message in messages {
            let shared = if shares && message.takes_receive() { trait_bit(Trait::SharedReceive) } else { 0 };
            let tells = self.model.connections[at].ends[host].told.heard;
            self.post(at, host, Message { rows: message.rows | row | shared, tells, ..message });
        }
    }

    /// Queue pairs of the other host that take datagrams, with their Q_Keys, and others that do
    /// not, one of them not there.
    fn others(&self, host: usize) -> (Vec<(u32, u32)>, Vec<u32>) {
        let (mut partners, mut refusing) = (Vec::new(), vec![host::qpn(1 - host, host::QPS_MAX - 1).get()]);
        for Connection { ends, settings, .. } in &self.model.connections {
            match settings.service {
                Service::Datagram => partners.push((ends[1 - host].qpn, settings.qkey)),
                _ => refusing.push(ends[1 - host].qpn),
            }
        }
        (partners, refusing)
    }

    fn post(&mut self, at: usize, host: usize, message: Message) {
        let trace = self.model.trace;
        let reuse_at = self.model.hosts[host].reuse[self.model.connections[at].slot].sea_at(host);
        let end = &mut self.model.connections[at].ends[host];
        let qpn = Qpn::from_wire(end.qpn);
        let message = end.stream.post(message, self.now);
        if trace {
            say(format_args!(
                "{:>12} host {host}   posts {:#x} on {qpn}: {:?} of {} bytes, PSN {}, {:?}",
                self.now,
                message.wr_id,
                message.kind,
                message.length,
                message.first & 0xff_ffff,
                message.outcome
            ));
        }
        let mut sges = [Sge::default(); 32];
        let data = if message.inline {
            let (offset, bytes) = message.data.iter().next().unwrap_or_default();
            WorkData::Inline(&sea()[offset as usize..][..bytes as usize])
        } else {
            WorkData::Sges(fill_sges(&mut sges, message, host, reuse_at))
        };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let work = SendWork {
            wr_id: message.wr_id,
            op: match (message.kind, message.imm) {
                (Kind::Send, None) if message.invalidates => SendOp::SendInvalidate,
                (Kind::Send, None) => SendOp::Send,
                (Kind::Send, Some(_)) => SendOp::SendImm,
                (Kind::Write, None) => SendOp::Write,
                (Kind::Write, Some(_)) => SendOp::WriteImm,
                (Kind::Read, _) => SendOp::Read,
                (Kind::CompareSwap, _) => SendOp::CompareSwap,
                (Kind::FetchAdd, _) => SendOp::FetchAdd,
                (Kind::Flush, _) => SendOp::Flush,
                (Kind::AtomicWrite, _) => SendOp::AtomicWrite,
                (Kind::LocalInvalidate, _) => SendOp::LocalInvalidate,
            },
            flags: flag(message.signaled, send_flags::SIGNALED)
                | flag(message.solicited, send_flags::SOLICITED)
                | flag(message.fenced, send_flags::FENCE)
                | flag(message.inline, send_flags::INLINE),
            imm: message.imm.unwrap_or_default(),
            remote_va: message.remote_va,
            rkey: message.rkey,
            swap_or_add: message.swap_or_add,
            compare: message.compare,
            to: message.to,
            data,
        };
        self.endpoints[host].post_send(qpn, &work).expect("a queue pair that is there");
    }
}

/// The local side of a message: source memory, or the sink for the data of a READ or atomic
/// operation.
fn fill_sges<'s>(sges: &'s mut [Sge; 32], message: &Message, host: usize, reuse_at: usize) -> &'s [Sge] {
    let (pieces, base) = match message.kind.brings() {
        true => (&message.into, SINK_VA),
        false if message.reuses => (&message.data, REUSE_VA.wrapping_sub(reuse_at as u64)),
        false => (&message.data, SOURCE_VA.wrapping_sub((host * SOURCE_BYTES) as u64)),
    };
    for (at, (offset, bytes)) in pieces.iter().enumerate() {
        let lkey = if message.kind.brings() || message.reuses { message.lkey } else { SOURCE_KEY };
        // Of work that fails here the first piece opens, so that its first packets leave.
        let wrong = message.outcome == Outcome::LocalProtection && at > 0;
        let lkey = if wrong { message.lkey } else { lkey };
        sges[at] = Sge { va: base.wrapping_add(offset.into()), length: bytes, lkey };
    }
    &sges[..pieces.len()]
}
