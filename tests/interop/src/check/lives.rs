//! Frames that belong together. A frame does not say which queue pair sent it, the numbers of those
//! that have gone are given again, and one that was reset may be connected once more. So it is
//! found out once, from the frames that each side sent by its own port, where none of them is lost
//! yet, and then holds for both ports.
//!
//! ```text
//!   frames that were sent ─► by addresses ─► by the two QPNs that make the UDP source port of rxe's: a connection
//!                                                  └─ by requester ─► lives, by when each began   course
//! ```
//!
//! The port of roced's frames is another in each life of a queue pair and says nothing of its peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{course, psn::distance};
use crate::{
    compare::source_port,
    scenario::{MTU_MAX, MTUS, Side},
    trace::{Seen, Service},
};

/// The requests of one side of a connection, and their answers, from one first PSN on.
#[derive(Debug)]
pub(super) struct Life {
    /// When its first request was sent.
    pub(super) from_ns: u64,
    pub(super) first: u32,
    pub(super) mtu: u32,
}

/// Names a [`Life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LifeId {
    connection: usize,
    pub(super) asks: Side,
    nth: usize,
}

/// Where a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    In(LifeId),
    /// It answers, and nothing was asked.
    Unasked,
    /// It may be of several connections.
    Unknown,
    /// Datagrams, and damaged frames.
    Nowhere,
}

/// The common fields of all frames of a side to one queue pair, whichever sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    from: Side,
    way: Way,
    /// UDP source port of rxe's frames, which both QPNs make.
    port: Option<u16>,
    dest_qpn: u32,
}

/// A service between two addresses, by [`Side`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    service: Service,
    addresses: [IpAddr; 2],
}

impl Flow {
    /// None where nothing is a connection.
    fn of(seen: &Seen) -> Option<Self> {
        if !seen.intact || seen.service == Service::Ud {
            return None;
        }
        let mut addresses = [seen.ip.source, seen.ip.destination];
        if seen.from == Side::Rxe {
            addresses.reverse();
        }
        let port = (seen.from == Side::Rxe).then_some(seen.source_port);
        Some(Self { from: seen.from, way: Way { service: seen.service, addresses }, port, dest_qpn: seen.dest_qpn })
    }
}

/// All connections, and their lives.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    connections: BTreeMap<Flow, usize>,
    /// By connection and requester, in the order in which they began.
    lives: BTreeMap<(usize, Side), Vec<Life>>,
}

impl Lives {
    /// Of the frames that passed both ports, by [`Side`]. Where connections of several path MTUs
    /// are, `mtu` is none.
    pub(crate) fn of(ports: &[Vec<Seen>; 2], mtu: Option<u32>) -> Self {
        let sent = Side::BOTH.map(|side| ports[side as usize].iter().filter(|seen| seen.from == side).collect());
        let mut found = Self { connections: connections(&sent), lives: BTreeMap::new() };
        let sent = sent.map(|frames| found.by_connection(frames));
        for asks in Side::BOTH {
            let at_port = found.by_connection(ports[asks as usize].iter().collect());
            for (connection, frames) in at_port {
                // Every packet of both directions, none of them lost.
                let both: Vec<_> =
                    sent.iter().filter_map(|frames| frames.get(&connection)).flatten().copied().collect();
                let begun = course::begun(&frames, asks, mtu.unwrap_or_else(|| path_mtu(&both, 0..u64::MAX)));
                let until = begun.iter().skip(1).map(|(from_ns, _)| *from_ns).chain([u64::MAX]);
                let life = |(&(from_ns, first), until)| Life {
                    from_ns,
                    first,
                    mtu: mtu.unwrap_or_else(|| path_mtu(&both, from_ns..until)),
                };
                found.lives.insert((connection, asks), begun.iter().zip(until).map(life).collect());
            }
        }
        found
    }

    fn by_connection<'f>(&self, frames: Vec<&'f Seen>) -> BTreeMap<usize, Vec<&'f Seen>> {
        let mut connections = BTreeMap::<_, Vec<_>>::new();
        for seen in frames {
            if let Some(connection) = Flow::of(seen).and_then(|flow| self.connections.get(&flow)) {
                connections.entry(*connection).or_default().push(seen);
            }
        }
        connections
    }

    /// Where a frame belongs that passed either port: both captures have the same clock, and
    /// nothing arrives before it was sent.
    pub(super) fn place(&self, seen: &Seen) -> Place {
        let Some(flow) = Flow::of(seen) else { return Place::Nowhere };
        let Some(&connection) = self.connections.get(&flow) else { return Place::Unknown };
        let asks = if seen.kind.is_response() { seen.from.other() } else { seen.from };
        let begun = self.lives.get(&(connection, asks)).map_or(&[][..], Vec::as_slice);
        match begun.partition_point(|life| life.from_ns <= seen.at_ns).checked_sub(1) {
            Some(nth) => Place::In(LifeId { connection, asks, nth }),
            None => Place::Unasked,
        }
    }

    #[cfg(test)]
    pub(super) fn longest(&self) -> usize {
        self.lives.values().map(Vec::len).max().unwrap_or(0)
    }

    pub(super) fn get(&self, id: LifeId) -> &Life {
        &self.lives[&(id.connection, id.asks)][id.nth]
    }
}

/// The frames of a guest, and those of the next one: no connection outlives the first.
pub(crate) fn by_guest(ports: &[Vec<Seen>; 2], power_failed_ns: u64) -> [[Vec<Seen>; 2]; 2] {
    [false, true].map(|is_next| {
        let of_guest = |seen: &&Seen| (seen.at_ns >= power_failed_ns) == is_next;
        ports.each_ref().map(|frames| frames.iter().filter(of_guest).cloned().collect())
    })
}

/// The payload of the longest packet sent in that time; where none is as long as the path MTU, the
/// size that makes a READ as many packets as lie before the request behind it.
fn path_mtu(frames: &[&Seen], during: std::ops::Range<u64>) -> u32 {
    let sent = || frames.iter().filter(|seen| during.contains(&seen.at_ns));
    if let Some(bytes) = sent().filter(|seen| !seen.ends).map(|seen| seen.payload_bytes).max() {
        return bytes;
    }
    let requests: Vec<_> = sent().filter(|seen| !seen.kind.is_response()).collect();
    let told = requests.windows(2).find_map(|pair| {
        let packets = u32::try_from(distance(pair[1].psn, pair[0].psn)).ok()?;
        let fits = |mtu: &u32| pair[0].packets(*mtu) == packets;
        (packets > 1 && pair[0].from == pair[1].from).then(|| MTUS.into_iter().rev().find(fits))?
    });
    told.unwrap_or(MTU_MAX)
}

/// The connections, by number. A flow that may belong to several is left out.
fn connections(sent: &[Vec<&Seen>; 2]) -> BTreeMap<Flow, usize> {
    // By the side that sends.
    let mut ways: BTreeMap<Way, [BTreeSet<Flow>; 2]> = BTreeMap::new();
    for flow in sent.iter().flatten().filter_map(|seen| Flow::of(seen)) {
        ways.entry(flow.way).or_default()[flow.from as usize].insert(flow);
    }
    let mut connections = BTreeMap::new();
    for (number, pair) in ways.values().flat_map(pairs).enumerate() {
        connections.extend(pair.into_iter().flatten().map(|flow| (flow, number)));
    }
    connections
}

/// Which flows of the two sides are each other's answers. One may be alone: it has no answers, or
/// no requests.
fn pairs(flows: &[BTreeSet<Flow>; 2]) -> Vec<[Option<Flow>; 2]> {
    let [of_roced, of_rxe] = flows;
    if of_roced.len() <= 1 && of_rxe.len() <= 1 {
        // Even where a flow label has made the port another one.
        return vec![[of_roced.first().copied(), of_rxe.first().copied()]];
    }
    if let Some(all) = only_way(flows) {
        return all.into_iter().map(|pair| pair.map(Some)).collect();
    }
    let partners = |flow: &Flow| -> Vec<Flow> {
        let others = &flows[flow.from.other() as usize];
        others.iter().filter(|other| are_one(flow, other)).copied().collect()
    };
    let mut pairs = Vec::new();
    for ours in of_roced {
        if let [theirs] = partners(ours)[..]
            && partners(&theirs).len() == 1
        {
            pairs.push([Some(*ours), Some(theirs)]);
        }
    }
    let alone = [of_roced, of_rxe].map(|flows| flows.iter().copied().filter(|flow| partners(flow).is_empty()));
    match alone.map(Iterator::collect::<Vec<_>>) {
        [ours, theirs] if theirs.is_empty() => pairs.extend(ours.into_iter().map(|ours| [Some(ours), None])),
        [ours, theirs] if ours.is_empty() => pairs.extend(theirs.into_iter().map(|theirs| [None, Some(theirs)])),
        // They may be each other's.
        _ => (),
    }
    pairs
}

/// All flows in pairs, when there is one way only: a flow with one partner takes it from the
/// others, as long as some flow has but one.
fn only_way(flows: &[BTreeSet<Flow>; 2]) -> Option<Vec<[Flow; 2]>> {
    let mut left = flows.clone();
    let mut pairs = Vec::new();
    while !left[0].is_empty() {
        let partner = |flow: &Flow| {
            let mut partners = left[flow.from.other() as usize].iter().filter(|other| are_one(flow, other));
            partners.next().filter(|_| partners.next().is_none()).copied()
        };
        let (one, other) = left.iter().flatten().find_map(|flow| Some((*flow, partner(flow)?)))?;
        let pair = if one.from == Side::Roced { [one, other] } else { [other, one] };
        left[0].remove(&pair[0]);
        left[1].remove(&pair[1]);
        pairs.push(pair);
    }
    left[1].is_empty().then_some(pairs)
}

/// The port of rxe's frames is made of both QPNs.
fn are_one(one: &Flow, other: &Flow) -> bool {
    one.port.or(other.port) == Some(source_port(one.dest_qpn, other.dest_qpn))
}
