//! Whose frames belong together. A frame does not say which queue pair sent it, the numbers of those that have gone are given again, and one
//! that was reset may be connected once more. So it is found out once, from what each side sent by its own port, where nothing
//! of it is lost yet, and then holds for both ports.
//!
//! ```text
//!   frames that were sent ─► by addresses and UDP source port ─► by the two QPNs that make that port: a connection
//!                                                                   └─ by who asks ─► lives, by when each began   course
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{MTU_MAX, course, distance};
use crate::{
    compare::source_port,
    scenario::{MTUS, Side},
    trace::{Seen, Service},
};

/// The requests of one side of a connection, and what answers them, from one first PSN on.
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
    /// Datagrams, and what was damaged.
    Nowhere,
}

/// What all frames of a side to one queue pair have in common, whichever sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    from: Side,
    port: Port,
    dest_qpn: u32,
}

/// A UDP source port between two addresses, by [`Side`]: both sides of a connection use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    service: Service,
    addresses: [IpAddr; 2],
    number: u16,
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
        let port = Port { service: seen.service, addresses, number: seen.source_port };
        Some(Self { from: seen.from, port, dest_qpn: seen.dest_qpn })
    }
}

/// All connections, and their lives.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    connections: BTreeMap<Flow, usize>,
    /// By connection and who asks, in the order in which they began.
    lives: BTreeMap<(usize, Side), Vec<Life>>,
}

impl Lives {
    /// Of what passed both ports, by [`Side`]. Where connections of several path MTUs are, `mtu` is none.
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

    /// Where a frame belongs that passed either port: both captures have the same clock, and nothing arrives before it was sent.
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

/// What the longest packet has of those sent in that time; where none is as long as the path MTU, what makes a READ as many packets as
/// lie before the request behind it.
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

/// The connections, by number. What may belong to several is left out.
fn connections(sent: &[Vec<&Seen>; 2]) -> BTreeMap<Flow, usize> {
    // The queue pairs of each side at a port: those that the other one sends to.
    let mut ports: BTreeMap<Port, [BTreeSet<u32>; 2]> = BTreeMap::new();
    for flow in sent.iter().flatten().filter_map(|seen| Flow::of(seen)) {
        ports.entry(flow.port).or_default()[flow.from.other() as usize].insert(flow.dest_qpn);
    }
    let mut connections = BTreeMap::new();
    let pairs = ports.iter().flat_map(|(port, qpns)| pairs(port.number, qpns).into_iter().map(|pair| (*port, pair)));
    for (number, (port, pair)) in pairs.enumerate() {
        for side in Side::BOTH {
            if let Some(dest_qpn) = pair[side as usize] {
                connections.insert(Flow { from: side.other(), port, dest_qpn }, number);
            }
        }
    }
    connections
}

/// Which queue pairs of the two sides talk to each other by a port. One may be alone: nobody answers it, or none asks.
fn pairs(port: u16, qpns: &[BTreeSet<u32>; 2]) -> Vec<[Option<u32>; 2]> {
    let [ours, theirs] = qpns;
    if ours.len() <= 1 && theirs.len() <= 1 {
        // Even where a flow label has made the port another one.
        return vec![[ours.first().copied(), theirs.first().copied()]];
    }
    let partners = |qpn: u32, of: &BTreeSet<u32>| -> Vec<u32> {
        of.iter().copied().filter(|other| source_port(qpn, *other) == port).collect()
    };
    let mut pairs = Vec::new();
    for &our in ours {
        if let [their] = partners(our, theirs)[..]
            && partners(their, ours).len() == 1
        {
            pairs.push([Some(our), Some(their)]);
        }
    }
    let alone = [0, 1].map(|side: usize| {
        let strangers = qpns[side].iter().copied().filter(|qpn| partners(*qpn, &qpns[1 - side]).is_empty());
        strangers.collect::<Vec<_>>()
    });
    match &alone {
        [ours, theirs] if theirs.is_empty() => pairs.extend(ours.iter().map(|our| [Some(*our), None])),
        [ours, theirs] if ours.is_empty() => pairs.extend(theirs.iter().map(|their| [None, Some(*their)])),
        // They may be each other's.
        _ => (),
    }
    pairs
}
