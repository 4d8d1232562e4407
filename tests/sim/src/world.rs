//! One seed: two hosts, the network between them, and the clock that all of them are told. Each
//! file here is a part of its course.

mod applications;
mod drain;
mod earlier;
mod forging;
mod keys;
mod leaving;
mod life;
mod notifications;
mod pauses;
mod rated;
mod returning;
mod reuse;
mod run;
mod shared;
mod traffic;

use std::collections::{BTreeSet, VecDeque};

use roced_transport::{
    congestion::control::CongestionControl, endpoint::Endpoint, qp::KeyChange, recovery::RecoveryConfig,
};

use self::{pauses::Pauses, rated::RatedTraffic};
use crate::{
    check::Tally,
    earlier::Earlier,
    fault::Weather,
    forger::Forger,
    host,
    layout::sink_bytes,
    leaving::Leaving,
    model::{HostModel, Model},
    network::Network,
    notified::NotifiedPeers,
    random::Random,
    returning::ReturnedPrograms,
    reuse::Reuse,
    shared::Shared,
    table::Table,
    violation::{Checked, Violation},
};

/// Result of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// Frames that left either host.
    pub frames: u64,
    /// Queue pairs that were there at a time.
    pub qps: usize,
    /// Which faults hit which operations, and how often.
    pub table: Table,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
}

/// Frames that a seed has at the least.
pub const FRAMES: u64 = 2_000;

/// A connection that is to end gets so much time for it, in nanoseconds, and a request for each
/// step forward. The slowest there are: eight time-outs of 4.2 ms, a link that is down for 50 ms,
/// receives that are late.
const ENDING_TIME_MAX_NS: u64 = 1_500_000_000;

/// Everything of a seed.
pub(crate) struct World {
    endpoints: [Endpoint; 2],
    model: Model,
    network: Network,
    weather: Weather,
    recovery: [RecoveryConfig; 2],
    congestion: [CongestionControl; 2],
    /// Of each host: its connections have classes.
    has_classes: [bool; 2],
    /// Of each host: frames in the class with a rate.
    rated: [RatedTraffic; 2],
    /// Queue pairs of each host that a CNP may limit, since they were made.
    notified: [BTreeSet<u32>; 2],
    random: Random,
    now: u64,
    /// Frames that left, and with how many no more work is posted.
    sent: u64,
    enough: u64,
    next_index: u32,
    /// Once in so many work requests one ends its connection; 0 is never.
    fatal_every: u64,
    /// A host goes away at this moment.
    restart_at: u64,
    earlier: Earlier,
    leaving: Leaving,
    forger: Forger,
    notifications: NotifiedPeers,
    /// Connections may be of any service.
    mixed: bool,
    /// NICs that have room for few frames at a time.
    small_nic: bool,
    look_again: [u64; 2],
    pauses: Pauses,
    /// Frames that were given to each host and when, of the last while.
    given: [VecDeque<(u64, u64)>; 2],
    /// Changes of keys that queue pairs wait for: when they are made, on which host, and whether it
    /// is still wanted.
    changing: Vec<(u64, usize, KeyChange, bool)>,
    out: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather::forecast(&mut random);
        let slots = random.within(1, 4) as usize;
        let mut host = || HostModel {
            shared: random.one_in(3).then(|| Shared::draw(&mut random)),
            sink: vec![0; sink_bytes(slots)],
            generations: vec![0; slots],
            own_generations: vec![0; slots],
            reuse: vec![Reuse::default(); slots],
            by_index: vec![None; host::QPS_MAX as usize],
            tally: Tally::default(),
        };
        let model = Model {
            now: 0,
            calls: 0,
            hosts: [host(), host()],
            connections: Vec::new(),
            returned: ReturnedPrograms::default(),
            served: None,
            arriving: None,
            left: Vec::new(),
            violation: None,
            activity: false,
            trace,
            cells: Table::default().cells,
        };
        let network = Network::new(weather, Random::new(random.next()));
        let bears = network.disorder().is_some() && !random.one_in(4);
        let recovery = [(); 2].map(|()| if bears { host::BEARING } else { host::draw_recovery(&mut random) });
        // By bits of the seed, so that no draw changes.
        let congestion = [0, 2].map(|bit| match seed >> bit & 3 {
            0 => CongestionControl::Off,
            1 => CongestionControl::Dcqcn,
            _ => CongestionControl::Window,
        });
        let has_classes = [5, 6].map(|bit| seed >> bit & 1 == 1);
        let endpoint = |at| host::endpoint(at, slots, &model.hosts[at], recovery[at], congestion[at], has_classes[at]);
        let mut world = Self {
            endpoints: [0, 1].map(endpoint),
            recovery,
            congestion,
            has_classes,
            rated: [RatedTraffic::default(); 2],
            notified: [const { BTreeSet::new() }; 2],
            model,
            network,
            weather,
            now: 1_000_000,
            sent: 0,
            enough: FRAMES + random.below(200),
            next_index: 2,
            fatal_every: random.pick(&[0, 10, 25, 70]),
            restart_at: u64::MAX,
            earlier: Earlier::draw(&mut random, weather.earlier_life),
            leaving: Leaving::draw(Random::new(!seed)),
            forger: Forger::draw(Random::new(seed.rotate_left(17) ^ 0x464f_5247)),
            notifications: NotifiedPeers::default(),
            mixed: random.one_in(2),
            small_nic: random.one_in(6),
            look_again: [u64::MAX; 2],
            pauses: Pauses::draw(seed, has_classes),
            given: Default::default(),
            changing: Vec::new(),
            out: Vec::new(),
            spare: Vec::new(),
            random,
        };
        for slot in 0..slots {
            let connection = world.connect(slot, false);
            world.model.connections.push(connection);
        }
        world
    }

    fn has_enough(&self) -> bool {
        self.sent >= self.enough
    }

    /// A host's endpoint is another.
    fn forget_given(&mut self, at: usize) {
        self.given[at].clear();
    }

    /// Unfinished work, as text for a person.
    fn waiting(&self) -> String {
        let ends = self.model.connections.iter().flat_map(|connection| {
            connection.ends.iter().enumerate().map(move |(at, end)| {
                let stream = &end.stream;
                format!(
                    "slot {} host {at} {:?}: una {} frontier {} end {}, complete {} of {}, receives {} of {}; ",
                    connection.slot,
                    connection.phase,
                    stream.una & 0xff_ffff,
                    stream.frontier & 0xff_ffff,
                    stream.end & 0xff_ffff,
                    stream.complete,
                    stream.posted(),
                    end.receives.completed,
                    end.receives.posted
                )
            })
        });
        ends.collect()
    }

    /// Something takes longer than anything can.
    fn check_patience(&mut self, since: u64, what: &str) -> Checked {
        if self.now - since <= ENDING_TIME_MAX_NS {
            return Ok(());
        }
        let text = format!("{what} for {} ms: {}", (self.now - since) / 1_000_000, self.waiting());
        Err(Violation { checker: "hang", text })
    }
}
