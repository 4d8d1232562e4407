//! One run: hosts, switches, links and flows in virtual time, from a seed.

use fastrand::Rng;
use roced_transport::clock::Nanos;
use roced_types::Status;

use crate::{
    event::{Agenda, Event},
    flow::{Flow, FlowSpec},
    frames::{FrameId, Frames},
    host::{HostOptions, SimulatedHost},
    outcome::{FlowOutcome, RunOutcome, Samples},
    queues::CLASSES,
    switch::{PauseOrder, SwitchConfig, SwitchCounters, SwitchModel},
    topology::{PortId, Topology},
};

/// Bytes of a pause frame on a link.
const PAUSE_WIRE_BYTES: u64 = 84;

/// Bytes of the longest frame on a link.
const FRAME_WIRE_BYTES_MAX: u64 = 4220;

/// Time from the arrival of a pause until nothing more is sent: 60 quanta at 10 Gbit/s, the bound
/// of IEEE 802.3 annex 31B for PAUSE. Taken for PFC (annex 31D), and for faster links as well.
const REACTION: Nanos = Nanos(3072);

/// Quanta of a pause, the most that a frame of PFC can say (annex 31D). A quantum is the time of
/// 512 bits on the link. A pause is refreshed at half of it.
const PAUSE_QUANTA: u64 = 65_535;

/// Opcode of a CNP, and its place in a frame: behind Ethernet, IPv6 and UDP.
const CNP: u8 = 0x81;
const OPCODE_AT: usize = 14 + 40 + 8;

/// Everything that a run is made of.
#[derive(Clone, Debug)]
pub(crate) struct RunSpec {
    pub(crate) topology: Topology,
    pub(crate) switch: SwitchConfig,
    /// For each host.
    pub(crate) hosts: Vec<HostOptions>,
    pub(crate) flows: Vec<FlowSpec>,
    /// The port of a switch with the queue that is looked at.
    pub(crate) watched: PortId,
    pub(crate) measured_from: Nanos,
    pub(crate) end: Nanos,
    /// Time between samples of the queue.
    pub(crate) sample: Nanos,
    /// Share of CNPs that are lost.
    pub(crate) cnp_loss: f64,
    /// Pauses that no queue asks for.
    pub(crate) storms: Vec<Storm>,
}

/// A pause of class 0 of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) host: usize,
    pub(crate) begin: Nanos,
    pub(crate) end: Nanos,
}

/// A run under way.
#[derive(Debug)]
struct Run<'s> {
    spec: &'s RunSpec,
    now: Nanos,
    agenda: Agenda,
    frames: Frames,
    hosts: Vec<SimulatedHost>,
    switches: Vec<SwitchModel>,
    flows: Vec<Flow>,
    /// For each host, the flow of each of its regions that posts there.
    posting: Vec<Vec<Option<usize>>>,
    on_links: usize,
    random: Rng,
    samples: Samples,
    frames_sent: u64,
    violation: Option<String>,
}

/// Executes a run.
pub(crate) fn run(spec: &RunSpec, seed: u64) -> RunOutcome {
    let mut run = Run::new(spec, seed);
    while run.violation.is_none()
        && let Some((now, event)) = run.agenda.next(spec.end)
    {
        run.now = now;
        run.handle(event);
    }
    run.finish()
}

impl<'s> Run<'s> {
    fn new(spec: &'s RunSpec, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut regions = vec![0; spec.hosts.len()];
        for flow in &spec.flows {
            regions[flow.from] += 1;
            regions[flow.to] += 1;
        }
        let hosts = spec.hosts.iter().zip(&regions);
        let mut hosts: Vec<_> =
            hosts.map(|(options, flows)| SimulatedHost::new(*options, (*flows).max(1), random.u64(..))).collect();
        let routes = spec.topology.routes();
        let switches = routes.into_iter().enumerate().map(|(switch, routes)| {
            let ports = spec.topology.ports(spec.hosts.len() + switch);
            SwitchModel::new(spec.switch, ports, routes, random.u64(..))
        });
        let switches = switches.collect();
        let (mut agenda, mut flows) = (Agenda::default(), Vec::new());
        let mut posting: Vec<_> = regions.iter().map(|regions| vec![None; *regions as usize]).collect();
        for (number, flow) in spec.flows.iter().enumerate() {
            let connected = Flow::connect(number, *flow, &mut hosts);
            posting[flow.from][connected.qpn().index() as usize] = Some(number);
            flows.push(connected);
            // Programs of different hosts do not begin in the same microsecond.
            agenda.add(flow.begin + Nanos(random.u64(0..20_000)), Event::Begin(number));
            if flow.end != Nanos::NEVER {
                agenda.add(flow.end, Event::End(number));
            }
        }
        agenda.add(Nanos(0), Event::Sample);
        for storm in &spec.storms {
            agenda.add(storm.begin, Event::Pause(PortId { node: storm.host, port: 0 }, 0, storm.end));
        }
        Self {
            spec,
            now: Nanos(0),
            agenda,
            frames: Frames::default(),
            hosts,
            switches,
            posting,
            on_links: 0,
            random,
            samples: Samples::new(flows.len()),
            flows,
            frames_sent: 0,
            violation: None,
        }
    }

    const fn switch_of(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.spec.topology.hosts())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Turn(host) => self.turn(host),
            Event::Sent(port) => {
                self.set_sending(port, false);
                self.send(port);
            }
            Event::Arrival(port, frame) => {
                self.on_links -= 1;
                self.arrive(port, frame);
            }
            Event::Pause(port, class, until) => self.pause(port, class, until),
            Event::Resume(port) => self.send(port),
            Event::Refresh(port, class) => self.refresh(port, class),
            Event::Begin(flow) => {
                self.flows[flow].set_open(true);
                self.post(flow);
            }
            Event::End(flow) => self.flows[flow].set_open(false),
            Event::Sample => self.sample(),
        }
    }

    /// Adds messages to a flow.
    fn post(&mut self, flow: usize) {
        let host = self.flows[flow].spec.from;
        if self.flows[flow].post(self.now, &mut self.hosts[host].endpoint) {
            self.wake(host, self.now);
        }
    }

    /// The host's worker has something to do at `time`.
    fn wake(&mut self, host: usize, time: Nanos) {
        if let Some(at) = self.hosts[host].wakes_at(time) {
            self.take_turn_at(host, at);
        }
    }

    fn take_turn_at(&mut self, host: usize, at: Nanos) {
        if at < self.hosts[host].turn_at {
            self.hosts[host].turn_at = at;
            self.agenda.add(at, Event::Turn(host));
        }
    }

    fn turn(&mut self, host: usize) {
        if self.hosts[host].turn_at != self.now {
            // Another turn came first.
            return;
        }
        self.hosts[host].turn_at = Nanos::NEVER;
        let end = self.hosts[host].turn(self.now, &mut self.frames);
        for (qpn, status) in std::mem::take(&mut self.hosts[host].memory.completions) {
            let Some(flow) = self.posting[host][qpn.index() as usize] else { continue };
            if status == Status::Success {
                self.flows[flow].on_completed(self.now, self.now >= self.spec.measured_from);
                let (whole, (least, _)) = (self.flows[flow].whole(&self.hosts), self.flows[flow].bounds());
                if whole < least {
                    let text = format!("flow {flow}: {least} bytes reported, {whole} placed without a hole");
                    self.violation.get_or_insert(text);
                }
            } else {
                self.flows[flow].failure.get_or_insert_with(|| format!("{status:?}"));
            }
            self.post(flow);
        }
        if end.next != Nanos::NEVER {
            self.take_turn_at(host, end.next.max(end.busy_until));
        }
        if let Some(wrong) = self.hosts[host].memory.wrong.take() {
            self.violation.get_or_insert(wrong);
        }
        self.send(PortId { node: host, port: 0 });
    }

    fn set_sending(&mut self, port: PortId, is_sending: bool) {
        match self.switch_of(port.node) {
            Some(switch) => self.switches[switch].ports[port.port].is_sending = is_sending,
            None => self.hosts[port.node].is_sending = is_sending,
        }
    }

    fn is_sending(&self, port: PortId) -> bool {
        match self.switch_of(port.node) {
            Some(switch) => self.switches[switch].ports[port.port].is_sending,
            None => self.hosts[port.node].is_sending,
        }
    }

    /// Sends the next frame of a port, if it is free and has one.
    fn send(&mut self, port: PortId) {
        if self.is_sending(port) {
            return;
        }
        let frame = match self.switch_of(port.node) {
            Some(switch) => {
                let Some((waiting, order)) = self.switches[switch].pop(port.port, self.now) else { return };
                if let Some(order) = order {
                    let ingress = PortId { port: waiting.ingress, ..port };
                    self.order(ingress, waiting.class, order);
                }
                waiting.frame
            }
            None => {
                let Some(frame) = self.hosts[port.node].pop(self.now, &self.frames) else { return };
                self.frames_sent += 1;
                if self.hosts[port.node].takes_room() {
                    self.wake(port.node, self.now);
                }
                frame
            }
        };
        self.set_sending(port, true);
        let (far, link) = self.spec.topology.neighbor(port);
        let sent = self.now + link.duration(self.frames.wire_bytes(frame));
        self.agenda.add(sent, Event::Sent(port));
        self.agenda.add(sent + link.one_way, Event::Arrival(far, frame));
        self.on_links += 1;
    }

    /// Tells the neighbor of a port to pause, or to go on, ahead of all frames that wait, but after
    /// the one that is being sent: the longest, as if it had just begun.
    fn order(&mut self, port: PortId, class: u8, order: PauseOrder) {
        let (far, link) = self.spec.topology.neighbor(port);
        let arrival = self.now + link.duration(FRAME_WIRE_BYTES_MAX + PAUSE_WIRE_BYTES) + link.one_way + REACTION;
        let pause = link.duration(PAUSE_QUANTA * 512 / 8);
        let until = match order {
            PauseOrder::Pause => arrival + pause,
            PauseOrder::Resume => Nanos(0),
        };
        self.agenda.add(arrival, Event::Pause(far, class, until));
        let switch = self.switch_of(port.node).expect("hosts pause no neighbor");
        if order == PauseOrder::Pause && self.switches[switch].begin_refresh(port.port, class) {
            self.agenda.add(self.now + Nanos(pause.0 / 2), Event::Refresh(port, class));
        }
    }

    fn refresh(&mut self, port: PortId, class: u8) {
        let switch = self.switch_of(port.node).expect("hosts pause no neighbor");
        if self.switches[switch].end_refresh(port.port, class) {
            self.order(port, class, PauseOrder::Pause);
        }
    }

    fn pause(&mut self, port: PortId, class: u8, until: Nanos) {
        match self.switch_of(port.node) {
            Some(switch) => self.switches[switch].ports[port.port].pause(class, until),
            None => self.hosts[port.node].pause(class, until),
        }
        if until > self.now {
            self.agenda.add(until, Event::Resume(port));
        } else {
            self.send(port);
        }
    }

    /// A frame has arrived at a port.
    fn arrive(&mut self, port: PortId, frame: FrameId) {
        let Some(switch) = self.switch_of(port.node) else {
            self.hosts[port.node].on_frame(frame, &mut self.frames);
            return self.wake(port.node, self.now);
        };
        if self.spec.cnp_loss > 0.0
            && self.frames.byte(frame, OPCODE_AT) == Some(CNP)
            && self.random.f64() < self.spec.cnp_loss
        {
            self.frames.remove(frame);
            return;
        }
        let (egress, order) = self.switches[switch].on_frame(frame, port.port, &mut self.frames);
        if let Some(order) = order {
            let class = self.frames.class(frame);
            self.order(port, class, order);
        }
        match egress {
            Some(egress) => self.send(PortId { port: egress, ..port }),
            None => self.frames.remove(frame),
        }
    }

    /// Writes queues and rates down, and looks at the rules that hold at any time.
    fn sample(&mut self) {
        let switch = self.switch_of(self.spec.watched.node).expect("a port of a switch");
        let bytes = self.switches[switch].ports[self.spec.watched.port].all_bytes();
        let is_measured = self.now >= self.spec.measured_from;
        self.samples.add_queue(self.now, bytes, is_measured);
        if self.samples.is_rate_due(self.now) {
            let placed = self.flows.iter().map(|flow| flow.placed(&self.hosts)).collect();
            let total = self.total();
            self.samples.add_rates(self.now, placed, total);
        }
        self.check_queues();
        if self.now + self.spec.sample <= self.spec.end {
            self.agenda.add(self.now + self.spec.sample, Event::Sample);
        }
    }

    fn total(&self) -> SwitchCounters {
        self.switches.iter().fold(SwitchCounters::default(), |sum, switch| sum + switch.counters)
    }

    /// No link is idle while frames wait for it that may be sent.
    fn check_queues(&mut self) {
        for (number, switch) in self.switches.iter().enumerate() {
            for (port, queues) in switch.ports.iter().enumerate() {
                if !queues.is_sending && queues.has_ready(self.now - Nanos(1)) {
                    let text = format!("switch {number}, port {port}: idle while frames wait");
                    self.violation.get_or_insert(text);
                }
            }
        }
    }

    /// Each frame is somewhere; each byte has arrived that was reported, and no other.
    fn check_end(&mut self) -> Option<String> {
        let in_switches: usize = self.switches.iter().map(SwitchModel::waiting_frames).sum();
        let in_rings: usize = self.hosts.iter().map(SimulatedHost::ring_frames).sum();
        let (known, there) = (in_switches + in_rings + self.on_links, self.frames.count());
        if known != there {
            return Some(format!("{there} frames under way, {known} of them in a known place"));
        }
        for (number, flow) in self.flows.iter().enumerate() {
            let (placed, (least, most)) = (flow.placed(&self.hosts), flow.bounds());
            if placed < least || placed > most {
                return Some(format!("flow {number}: {placed} bytes placed, expected {least} to {most}"));
            }
        }
        let total = self.total();
        let rest = total.received - total.sent - total.dropped;
        (rest != in_switches as u64)
            .then(|| format!("{rest} frames in switches by their counters, {in_switches} there"))
    }

    fn finish(mut self) -> RunOutcome {
        let violation = self.violation.take().or_else(|| self.check_end());
        let flows = self.flows.iter().enumerate().map(|(number, flow)| FlowOutcome {
            bytes: flow.placed(&self.hosts) - self.samples.placed_at(self.spec.measured_from, number),
            failure: flow.failure.clone(),
            latencies: flow.latencies.clone(),
        });
        RunOutcome {
            flows: flows.collect(),
            measured: self.spec.end - self.spec.measured_from,
            total: self.total(),
            overruns: self.hosts.iter().map(|host| host.overruns).sum(),
            frames: self.frames_sent,
            waiting_frames: self.switches.iter().map(SwitchModel::waiting_frames).sum(),
            events: self.agenda.added(),
            samples: self.samples,
            violation,
        }
    }
}

const _: () = assert!(CLASSES == 8, "classes are three bits of the DSCP");
