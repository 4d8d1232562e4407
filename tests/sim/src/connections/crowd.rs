//! Thousands of connections at once: all are established, nothing is given up; then the program
//! that asked for them is killed, and each peer is told.

use std::time::Duration;

use super::{ConnectionOutcome, agenda::Act, audit::check_all_open, links::Links, manners::Manners, world::World};
use crate::{
    random::Random,
    violation::{Checked, demand},
};

/// Loss, parts per million.
const LOSS: u32 = 20_000;

/// Requests to a port without a listener, before the others: more than are under way at a time.
const REFUSED: u32 = 128;

/// Time until all are established.
const ESTABLISHED: Duration = Duration::from_secs(120);

impl Manners {
    /// Two hosts with a program each, that do nothing but connect and accept.
    fn of_crowd(connections: u32) -> Self {
        Self {
            hosts: 2,
            active: ESTABLISHED,
            programs: 0,
            connects: 1,
            within: Duration::ZERO,
            queue_pairs: (connections + REFUSED) as usize,
            connections_max: 131_072,
            of_account_max: connections + REFUSED + 8,
            ephemeral: 10_000..=65_000,
            backlogs: [0; 3],
            ipv6: 0,
            datagram: 0,
            unreliable: 0,
            to_itself: 0,
            nowhere: 0,
            slowest: Duration::from_millis(1),
            hesitates: 0,
            refuses: 0,
            ignores: 0,
            regrets: 0,
            abrupt: 0,
            passive: 1_000_000,
            data_first: 0,
            killed: 0,
            crashes: 0,
            stops: 0,
            removals: 0,
            silent: 0,
            ack_timeouts: 0,
        }
    }
}

pub(crate) fn run(seed: u64, connections: u32, trace: bool) -> ConnectionOutcome {
    let mut random = Random::new(seed);
    let manners = Manners::of_crowd(connections);
    let links = Links::lossy(&mut random, LOSS);
    let mut world = World::with(random, manners, links, trace);
    let result = world.crowd(connections);
    world.outcome(result)
}

impl World {
    fn crowd(&mut self, connections: u32) -> Checked {
        self.agenda.put(self.now, Act::Audit);
        let programs = [1, 0].map(|host| self.add_quiet_program(host, self.now));
        // Refused ones first: they take no places of others.
        self.manners.nowhere = 1_000_000;
        self.ask_at_once(programs[1], REFUSED);
        self.until(self.now + Duration::from_secs(1))?;
        self.manners.nowhere = 0;
        self.ask_at_once(programs[1], connections);
        self.until(self.now + ESTABLISHED)?;
        check_all_open(self, connections)?;
        self.kill(programs[1]);
        self.until(self.now + ESTABLISHED)?;
        self.audit()?;
        let told = self.ends.all.iter().filter(|of| of.told_end.is_some()).count();
        demand!(told == connections as usize, "crowd", "{told} of {connections} peers were told");
        self.finish()
    }

    fn ask_at_once(&mut self, program: usize, count: u32) {
        let begin = self.now + Duration::from_millis(1);
        for _ in 0..count {
            self.agenda.put(begin, Act::Ask(program));
        }
    }
}
