//! Programs that leave when they are done: their queue pair is removed in RTS, or directly after
//! its program moved it to the error state, while the peer still waits for its last
//! acknowledgments.
//!
//! Some leave when all requests of the connection are executed, others at any moment. In either
//! case the peer's executed SENDs and WRITEs complete with success (checker `left-after-all`), and
//! nothing else does. The removed queue pair sends the answers that it owed, and from then on one
//! ACK, the same each time, for each frame of its peer that repeats an executed request.

use crate::{
    connection::{Connection, End, Rebirth},
    frame::Seen,
    leaver::{Leaver, Left, Past},
    random::Random,
    returning::Plan,
    service::Service,
    violation::{Checked, demand},
};

/// Programs of a seed that leave.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Draws of its own: a connection of which no end leaves is as it would be without.
    pub(crate) random: Random,
    /// One in so many connections has an end that leaves; 0 is none.
    one_in: u64,
    /// Ends that left, of connections that are no more.
    past: Vec<Past>,
}

impl Leaving {
    pub(crate) fn draw(mut random: Random) -> Self {
        let one_in = random.pick(&[0, 1, 2]);
        Self { random, one_in, past: Vec::new() }
    }

    /// Draws the end of a connection that leaves, if one does.
    pub(crate) fn leaver(&mut self, service: Service) -> Option<Leaver> {
        if self.one_in == 0 || !service.is_reliable() || !self.random.one_in(self.one_in) {
            return None;
        }
        Some(Leaver {
            host: self.random.below(2) as usize,
            is_hasty: self.random.one_in(3),
            early: self.random.one_in(4).then(|| self.random.below(200)),
            ends: self.random.one_in(4),
        })
    }

    /// Another connection takes the place of this one. Returns the connections that the programs of
    /// its ends may have after it.
    pub(crate) fn on_replaced(&mut self, before: &Connection) -> [Option<Plan>; 2] {
        if before.rebirth != Rebirth::NewNumbers {
            return [None; 2];
        }
        let [first, second] = &before.ends;
        [(0, first, second), (1, second, first)].map(|(host, own, peer)| {
            let left = own.left.clone()?;
            let past = Past { host, qpn: own.qpn, peer: peer.qpn, left, is_replaced: false };
            let plan = Plan::of(&past, before);
            self.past.push(past);
            Some(plan)
        })
    }

    /// Another queue pair has this number.
    pub(crate) fn on_number_in_use(&mut self, host: usize, qpn: u32) {
        self.past.iter_mut().filter(|past| past.is(host, qpn)).for_each(|past| past.is_replaced = true);
    }

    /// A host went away with all that it knew.
    pub(crate) fn forget(&mut self, host: usize) {
        self.past.retain(|past| past.host != host);
    }

    /// The end that left at a host, with a queue pair of that number, of a connection that is no
    /// more.
    pub(crate) fn past_of(&mut self, host: usize, qpn: u32) -> Option<&mut Left> {
        self.past.iter_mut().find(|past| past.is(host, qpn) && !past.is_replaced).map(|past| &mut past.left)
    }

    /// The end that left at a host, with a peer of that number, of a connection that is no more.
    pub(crate) fn past_of_peer(&mut self, host: usize, peer: u32) -> Option<&mut Left> {
        self.past.iter_mut().find(|past| (past.host, past.peer) == (host, peer)).map(|past| &mut past.left)
    }
}

impl End {
    /// An answer leaves its host.
    pub(crate) fn check_farewell(&mut self, seen: &Seen<'_>) -> Checked {
        demand!(
            !self.is_silent,
            "left-after-all",
            "a queue pair that was removed after it had failed, or went through RESET, answers PSN {}",
            seen.psn
        );
        match &mut self.left {
            Some(left) => left.check_answer(seen),
            None => self.check_offer(seen),
        }
    }
}
