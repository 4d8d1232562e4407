//! One seed: the endpoint, a peer of a make, the network between them.

use roced_transport::{
    clock::Nanos,
    endpoint::Endpoint,
    io::WorkCompletion,
    recovery::Recovery,
    wire::path::udp_source_port,
    work::{DatagramTo, RecvWork, SendWork, WorkData},
};
use roced_types::{Qpn, SendOp, Status as CqeStatus, completion_flags, send_flags};

use super::{
    applications::Application,
    host::{self, EngineHost, LANDING_AT, SINK_BYTES},
};
use crate::{
    fault::Weather,
    frame,
    host::{connect, draw_recovery, insert, make_ready, qpn},
    layout::{SINK_KEY, SOURCE_KEY},
    lockstep::{self, Did, Shadow},
    network::{Arrival, Network},
    notified::{check_bytes, is_notification},
    random::Random,
    reference::{Addresses, Arrived, Done, Make, Memory, Op, Packet, Peer, Status, Terms, Work},
    say::say,
    service::Service,
    settings::Settings,
    violation::{Checked, Violation, demand},
};

/// Nothing goes forward for longer than this, in nanoseconds: eight time-outs of either side,
/// receives that are late, a slow path.
const STANDSTILL_MAX_NS: u64 = 1_000_000_000;

/// More frames than any seed needs.
const FRAMES_MAX: u64 = 100_000;

/// Everything of a seed.
pub(crate) struct World {
    engine: Endpoint,
    host: EngineHost,
    peer: Peer,
    shadow: Shadow,
    make: Make,
    settings: Settings,
    addresses: Addresses,
    network: Network,
    random: Random,
    /// Work from either host to the other.
    applications: [Application; 2],
    /// Receives that each host posted and completed, and when it posts more.
    receives: [[u64; 2]; 2],
    receive_at: [u64; 2],
    /// Frames about either host's oldest work that the network did something to, and where that
    /// work was.
    disturbed: [u32; 2],
    una: [u64; 2],
    /// The same since work was posted that is refused.
    disturbed_at_end: u32,
    /// The direction with a refused last work request.
    ends_badly: Option<usize>,
    now: u64,
    alive_at: u64,
    sent: u64,
    small_nic: bool,
    look_again: u64,
    trace: bool,
    violation: Option<Violation>,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed ^ 0x6d61_6b65 << 32);
        let number = random.below(Make::NAMES.len() as u64) as usize;
        let make = Make::draw(number, &mut random);
        // Cases of a peer that is gone or a link that is down are left to the other world.
        let weather = Weather { link_down: 0, peer_restart: 0, mtu_change: 0, ..Weather::forecast(&mut random) };
        let settings = Settings {
            mtu: random.pick(&[256, 256, 512, 1024]),
            retry_cnt: 7,
            rnr_retry: 7,
            signal_all: false,
            inline_bytes: 0,
            sges: 1,
            ..Settings::draw(&mut random, Service::Reliable)
        };
        let recovery = draw_recovery(&mut random);
        let psns = [(); 2].map(|()| {
            let below = if random.one_in(2) { 300 } else { 1 << 24 };
            0x00ff_ffff - random.below(below) as u32
        });
        let counts = psns.map(|psn| (1 << 32) + u64::from(psn));
        let qpns = [0, 1].map(|at| qpn(at, 2));
        let mut engine = host::endpoint(recovery);
        insert(&mut engine, qpns[0], &settings, None);
        connect(&mut engine, (0, 0), qpns[0], qpns[1], &settings, psns, udp_source_port(0, qpns[0], qpns[1]));
        make_ready(&mut engine, 0, qpns[0], qpns[1].get(), &settings, psns);
        let terms = Terms {
            mtu: settings.mtu,
            timeout: 4096 << random.within(10, 12),
            retry_cnt: 7,
            rd_atomic: settings.rd_atomic as usize,
            dest_qpn: qpns[0].get(),
        };
        let keeps = recovery.kind == Recovery::Selective;
        let shadow = Shadow::new(lockstep::Settings {
            mtu: settings.mtu,
            rd_atomic: settings.rd_atomic,
            window: settings.window.into(),
            rnr_timer: settings.min_rnr_timer as u8,
            keeps: [keeps && make.mig_req, keeps],
            psns: counts,
            dest_qpn: qpns[1].get(),
            credits: settings.credits,
            landing: LANDING_AT,
            sink_bytes: SINK_BYTES,
        });
        let memory = Memory::new(1, SINK_BYTES);
        let rnr_timer = random.within(1, 14) as u8;
        let world = Self {
            engine,
            host: EngineHost::new(qpns[0]),
            peer: Peer::new(make, terms, rnr_timer, [counts[1], counts[0]], memory),
            shadow,
            make,
            settings,
            addresses: Addresses {
                from: 1,
                ipv6: settings.ipv6,
                udp_source_port: udp_source_port(0, qpns[1], qpns[0]),
            },
            network: Network::new(weather, Random::new(random.next())),
            applications: [0, 1].map(|host| Application::new(host, settings.mtu, &mut random)),
            receives: [[0; 2]; 2],
            receive_at: [0; 2],
            disturbed: [0; 2],
            una: counts,
            disturbed_at_end: 0,
            ends_badly: random.one_in(3).then(|| random.below(2) as usize),
            now: 1_000_000,
            alive_at: 1_000_000,
            sent: 0,
            small_nic: random.one_in(6),
            look_again: u64::MAX,
            trace,
            violation: None,
            random,
        };
        if trace {
            say(format_args!(
                "make \"{}\": {make:?}, {settings:?}, {recovery:?}, {terms:?}, PSNs {psns:?}",
                make.name()
            ));
        }
        world
    }

    pub(crate) fn run(mut self) -> (u64, usize, Option<Violation>) {
        while self.violation.is_none() && !self.is_over() {
            self.step();
        }
        (self.sent, self.make.number, self.violation)
    }

    /// All work is done, or one side has given up.
    fn is_over(&self) -> bool {
        self.ends_badly.is_none() && self.applications.iter().all(Application::is_drained)
            || self.applications.iter().any(|application| application.failed.is_some())
    }

    fn note(&mut self, checked: Checked) {
        if let Err(violation) = checked {
            let Violation { checker, text } = violation;
            let text = format!("{} (make \"{}\")", text, self.make.name());
            self.violation.get_or_insert(Violation { checker, text });
        }
    }

    fn step(&mut self) {
        while let Some(arrival) = self.network.arrived(self.now) {
            self.deliver(arrival);
        }
        if self.engine.poll_timeout().0 <= self.now {
            self.engine.on_timeout(Nanos(self.now), usize::MAX, &mut self.host);
            self.settle();
        }
        if self.peer.poll_timeout(self.now) <= self.now {
            self.peer.on_timeout(self.now);
            self.settle_peer();
        }
        self.end_badly();
        let mut active = true;
        while active && self.violation.is_none() {
            active = self.post_receives(0) | self.post_receives(1);
            active |= self.post_work(0) | self.post_work(1);
            self.transmit();
            active |= self.transmit_peer();
        }
        let checked = self.check_patience();
        self.note(checked);
        self.now = self.next_moment().max(self.now + 1);
    }

    fn check_patience(&self) -> Checked {
        let late =
            self.now - self.alive_at > STANDSTILL_MAX_NS || self.next_moment() == u64::MAX || self.sent > FRAMES_MAX;
        demand!(
            !late || self.is_over(),
            "peer-hang",
            "nothing goes forward after {} frames: {}; {}",
            self.sent,
            self.applications[0].waiting(),
            self.applications[1].waiting()
        );
        Ok(())
    }

    fn next_moment(&self) -> u64 {
        let thoughts = [0, 1].map(|host| self.applications[host].think_until);
        let waits = self.receive_at.into_iter().chain(thoughts).filter(|at| *at > self.now);
        let waits = waits.min().unwrap_or(u64::MAX);
        let moments = [
            self.network.next(),
            self.engine.poll_timeout().0,
            self.peer.poll_timeout(self.now),
            self.look_again,
            waits,
        ];
        moments.into_iter().min().unwrap_or(u64::MAX)
    }

    fn deliver(&mut self, arrival: Arrival) {
        let Arrival { to, bytes, corrupt, .. } = arrival;
        if self.trace {
            say(format_args!(
                "{:>12} host {to} <- {}{}",
                self.now,
                frame::line(&bytes),
                if corrupt { " corrupt" } else { "" }
            ));
        }
        if is_notification(&bytes) {
            // No make of peers reacts to one.
            return self.network.give_back(bytes);
        }
        if to == 0 {
            if let Some(packet) = Packet::parse_unchecked(&bytes).filter(|_| !corrupt) {
                self.shadow.on_packet(packet);
            }
            self.engine.on_frame(Nanos(self.now), &[&bytes], &mut self.host);
            self.settle();
        } else if let Some(packet) = Packet::parse(&bytes) {
            self.peer.on_packet(&packet, self.now);
            self.settle_peer();
        } else if !corrupt {
            let text = format!("an ICRC that does not hold: {}", frame::line(&bytes));
            self.note(Err(Violation { checker: "lockstep", text }));
        }
        self.network.give_back(bytes);
    }

    /// The transport has had a turn: its effects are checked.
    fn settle(&mut self) {
        let did = std::mem::take(&mut self.host.did);
        self.on_progress(0, self.shadow.requester.una());
        if did.is_empty() {
            let checked = self.shadow.on_done(std::iter::empty());
            self.note(checked);
            return;
        }
        self.alive_at = self.now;
        if self.trace {
            did.iter().for_each(|did| say(format_args!("{:>12} host 0   {did:?}", self.now)));
        }
        let checked = self.shadow.on_done(did.iter().cloned());
        self.note(checked);
        for did in did {
            let checked = match did {
                Did::Sent(cqe) => self.check_done(0, cqe.wr_id, status_of(&cqe)),
                Did::Received(cqe) if cqe.status == CqeStatus::Success => {
                    self.receives[0][1] += 1;
                    self.applications[1].check_arrived(&arrived(&cqe), &self.host.memory)
                }
                _ => Ok(()),
            };
            self.note(checked);
        }
    }

    /// The same of the peer.
    fn settle_peer(&mut self) {
        for arrived in std::mem::take(&mut self.peer.arrived) {
            self.alive_at = self.now;
            self.receives[1][1] += 1;
            let checked = self.applications[0].check_arrived(&arrived, &self.peer.memory);
            self.note(checked);
        }
        for Done { id, signaled, status } in std::mem::take(&mut self.peer.requester.done) {
            self.alive_at = self.now;
            if self.trace {
                say(format_args!("{:>12} host 1   work {id} ends: {status:?}", self.now));
            }
            if signaled || status != Status::Success {
                let checked = self.check_done(1, id, status);
                self.note(checked);
            }
        }
        self.on_progress(1, self.peer.requester.una);
    }

    /// A host's oldest unacknowledged work is at `una`.
    fn on_progress(&mut self, from: usize, una: u64) {
        if una > self.una[from] {
            (self.una[from], self.disturbed[from], self.alive_at) = (una, 0, self.now);
        }
    }

    fn check_done(&mut self, from: usize, id: u64, status: Status) -> Checked {
        if status == Status::RetryExceeded {
            self.check_retry(from, id)?;
        }
        self.check_end(from, id, status)?;
        self.applications[from].check_done(id, status, [&self.host.memory, &self.peer.memory])
    }

    /// A side gives up: each try was spoiled by the network. A side that has refused something is
    /// silent, so that one lost frame is enough.
    fn check_retry(&self, from: usize, id: u64) -> Checked {
        let silent = [self.shadow.is_over(), self.peer.refused][1 - from];
        let (disturbed, most) =
            if silent { (self.disturbed_at_end, 1) } else { (self.disturbed[from], self.settings.retry_cnt) };
        demand!(
            disturbed >= most,
            "peer-retry",
            "host {from}: work {id} gives up, and {disturbed} frames were disturbed since something went forward"
        );
        Ok(())
    }

    /// When all else is done, one direction's last work is refused.
    fn end_badly(&mut self) {
        let Some(from) = self.ends_badly.filter(|_| self.applications.iter().all(Application::is_drained)) else {
            return;
        };
        if self.applications[from].refusal.is_none() {
            self.disturbed_at_end = 0;
            for work in self.applications[from].refused(&mut self.random) {
                self.post(from, work);
            }
        }
    }

    /// Refused work ended as it must, unless frames were lost.
    fn check_end(&self, from: usize, id: u64, status: Status) -> Checked {
        let Some(wanted) = self.applications[from].refusal.filter(|_| status != Status::Success) else { return Ok(()) };
        demand!(
            (id, status) == wanted || self.applications[from].failed.is_some() || self.disturbed_at_end > 0,
            "peer-refusal",
            "host {from}: work {id} ends with {status:?}, and {wanted:?} was to be refused"
        );
        Ok(())
    }

    fn post_receives(&mut self, at: usize) -> bool {
        let lacking = self.settings.receives.min(16) - (self.receives[at][0] - self.receives[at][1]);
        if lacking == 0 || self.applications[1 - at].refusal.is_some() {
            return false;
        }
        // Those that are late come all at once.
        if self.settings.receive_late > 0 {
            if self.receive_at[at] == 0 {
                self.receive_at[at] = self.now + 1 + self.random.below(self.settings.receive_late);
            }
            if self.receive_at[at] > self.now {
                return false;
            }
            self.receive_at[at] = 0;
        }
        for _ in 0..lacking {
            let receive = Application::receive(self.receives[at][0]);
            self.receives[at][0] += 1;
            if at == 1 {
                self.peer.post_receive(receive);
            } else {
                self.shadow.post_receive(receive);
                let sges = [host::sge(SINK_KEY, receive.at, receive.bytes)];
                let work = RecvWork { wr_id: receive.wr_id, sges: &sges };
                self.engine.post_recv(self.host.qpn, &work).expect("a queue pair that is there");
            }
        }
        true
    }

    fn post_work(&mut self, from: usize) -> bool {
        let mut any = false;
        while let Some(work) = self.applications[from].next(self.now, &mut self.random) {
            self.post(from, work);
            any = true;
        }
        any
    }

    fn post(&mut self, from: usize, work: Work) {
        self.alive_at = self.now;
        if self.trace {
            say(format_args!("{:>12} host {from}   posts {work:?}", self.now));
        }
        if from == 1 {
            self.peer.post(work);
            return;
        }
        let key = if work.op.is_answered() { SINK_KEY } else { SOURCE_KEY };
        let sges = [host::sge(key, work.local, work.length)];
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let post = SendWork {
            wr_id: work.id,
            op: match (work.op, work.imm) {
                (Op::Send, None) => SendOp::Send,
                (Op::Send, Some(_)) => SendOp::SendImm,
                (Op::Write, None) => SendOp::Write,
                (Op::Write, Some(_)) => SendOp::WriteImm,
                (Op::Read, _) => SendOp::Read,
                (Op::CompareSwap, _) => SendOp::CompareSwap,
                (Op::FetchAdd, _) => SendOp::FetchAdd,
                (Op::Reserved(_), _) => unreachable!("only the peer's application asks for it"),
            },
            flags: flag(work.signaled, send_flags::SIGNALED)
                | flag(work.solicited, send_flags::SOLICITED)
                | flag(work.fenced, send_flags::FENCE),
            imm: work.imm.unwrap_or_default(),
            remote_va: work.remote_va,
            rkey: work.rkey,
            swap_or_add: work.swap_or_add,
            compare: work.compare,
            to: DatagramTo { ah: 0, qpn: Qpn::from_wire(0), qkey: 0 },
            data: WorkData::Sges(&sges),
        };
        self.engine.post_send(self.host.qpn, &post).expect("a queue pair that is there");
        self.shadow.post(work);
    }

    /// The transport's frames leave.
    fn transmit(&mut self) {
        self.look_again = u64::MAX;
        let mut room = if self.small_nic { self.random.within(1, 8) as usize } else { usize::MAX };
        while self.engine.wants_transmit() && self.violation.is_none() {
            if room == 0 {
                self.look_again = self.now + self.random.pick(&[1_000, 20_000]);
                return;
            }
            let (mut spare, mut frames) = (Vec::new(), Vec::new());
            let mut nic =
                crate::host::Nic { room: room.min(32), ahead_max: usize::MAX, spare: &mut spare, frames: &mut frames };
            let sent = self.engine.poll_transmit(Nanos(self.now), 32, &mut self.host, &mut nic);
            self.settle();
            room -= frames.len();
            let idle = frames.is_empty() && sent.visits == 0;
            for bytes in frames {
                if is_notification(&bytes) {
                    let checked = check_bytes(&bytes).map(drop);
                    self.network.send(self.now, 0, bytes, (None, 0));
                    self.note(checked);
                    continue;
                }
                let checked = match Packet::parse_unchecked(&bytes) {
                    Some(packet) => self.shadow.check_sent(&packet, &self.host.memory),
                    None => Err(Violation { checker: "lockstep", text: format!("a frame of no kind: {bytes:02x?}") }),
                };
                self.send(0, bytes);
                self.note(checked);
            }
            if idle {
                return;
            }
        }
    }

    fn transmit_peer(&mut self) -> bool {
        let packets = self.peer.transmit(self.now);
        let any = !packets.is_empty();
        for packet in packets {
            self.send(1, packet.build(&self.addresses));
        }
        any
    }

    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        self.sent += 1;
        let is_request = Packet::parse_unchecked(&bytes).is_some_and(|packet| packet.is_request());
        let text = if self.trace { frame::line(&bytes) } else { String::new() };
        let fate = self.network.send(self.now, from, bytes, (None, 0));
        if self.trace {
            say(format_args!("{:>12} host {from} -> {text} {}", self.now, fate.names().join(", ")));
        }
        if fate.disturbs() {
            self.disturbed_at_end += 1;
            self.disturbed[if is_request { from } else { 1 - from }] += 1;
        }
    }
}

/// The completion of a receive, as the model has it.
fn arrived(cqe: &WorkCompletion) -> Arrived {
    Arrived {
        wr_id: cqe.wr_id,
        by_write: cqe.op == roced_types::CompletionOp::RecvWriteImm,
        bytes: cqe.byte_len,
        imm: (cqe.flags & completion_flags::IMM != 0).then_some(cqe.imm),
        solicited: cqe.flags & completion_flags::SOLICITED != 0,
    }
}

fn status_of(cqe: &WorkCompletion) -> Status {
    match cqe.status {
        CqeStatus::Success => Status::Success,
        CqeStatus::WorkRequestFlushed => Status::Flushed,
        CqeStatus::RemoteAccess => Status::RemoteAccess,
        CqeStatus::RemoteInvalidRequest => Status::RemoteInvalid,
        CqeStatus::RemoteOperation => Status::RemoteOperation,
        CqeStatus::TransportRetryExceeded => Status::RetryExceeded,
        _ => Status::BadResponse,
    }
}
