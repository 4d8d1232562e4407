//! Ends of connections: the calls that their programs made about them, and the events that they
//! were told.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use roced_cm::identifiers::{IdKey, IdService};

use super::tally::ConnectionTally;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Active,
    Passive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Created,
    Resolving,
    Resolved,
    Routed,
    /// Active: the peer is asked.
    Asking,
    /// Active: the peer accepted, the program has not confirmed.
    Answered,
    /// Passive: the program has not decided.
    Requested,
    /// Passive: the program accepted.
    Accepted,
    /// Established, in the view of the program.
    Open,
    /// The program knows that it is over.
    Over,
}

/// An end of a connection, or of a question for a datagram service.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    pub(crate) program: usize,
    pub(crate) key: IdKey,
    pub(crate) side: Side,
    pub(crate) service: IdService,
    pub(crate) is_ipv6: bool,
    pub(crate) peer_host: usize,
    /// Port of the listener.
    pub(crate) port: u16,
    pub(crate) stage: Stage,
    /// The other end, once this one was told of it.
    pub(crate) partner: Option<usize>,
    /// Queue pairs, 0 before they are known.
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    /// Its queue pair is there.
    pub(crate) has_queue_pair: bool,
    /// PSN that this end's queue pair expects first, and the peer's.
    pub(crate) psns: [u32; 2],
    /// The program set an ACK timeout.
    pub(crate) has_ack_timeout: bool,
    /// Passive: the peer asked.
    pub(crate) began: Duration,
    /// It asked for the connection, or accepted it.
    pub(crate) acted: Option<Duration>,
    pub(crate) opened: Option<Duration>,
    /// The program disconnected.
    pub(crate) disconnected: Option<Duration>,
    /// It was told that the connection is over, or gave it up.
    pub(crate) over: Option<Duration>,
    /// It was told DISCONNECTED.
    pub(crate) told_end: Option<Duration>,
    pub(crate) told_exit: bool,
    /// The identifier is destroyed.
    pub(crate) gone: Option<Duration>,
    /// Its last call was refused.
    pub(crate) is_call_refused: bool,
    /// The queue pair is to fail, because the peer is not there.
    pub(crate) fails: bool,
}

impl End {
    pub(crate) fn new(host: usize, program: usize, key: IdKey, side: Side, service: IdService) -> Self {
        Self {
            host,
            program,
            key,
            side,
            service,
            is_ipv6: false,
            peer_host: host,
            port: 0,
            stage: if side == Side::Active { Stage::Created } else { Stage::Requested },
            partner: None,
            qpn: 0,
            peer_qpn: 0,
            has_queue_pair: false,
            psns: [0; 2],
            has_ack_timeout: false,
            began: Duration::ZERO,
            acted: None,
            opened: None,
            disconnected: None,
            over: None,
            told_end: None,
            told_exit: false,
            gone: None,
            is_call_refused: false,
            fails: false,
        }
    }

    fn peer_queue_pair(&self) -> PeerQueuePair {
        (self.host, self.peer_host, self.is_ipv6, self.peer_qpn)
    }

    /// When it ended, in any way.
    pub(crate) fn finished(&self) -> Option<Duration> {
        [self.over, self.gone].into_iter().flatten().min()
    }

    /// Its program takes the peer's queue pair for connected to its own. One that has accepted and
    /// waits for the confirmation does not: any host can have asked in the peer's name.
    fn believes(&self) -> bool {
        self.gone.is_none() && matches!(self.stage, Stage::Answered | Stage::Open)
    }
}

/// A queue pair of a peer, as a host knows it: by host, peer and its address, and number. The
/// same number at another address of the peer is another one to a connection manager: unknown peers
/// must not name those of others.
pub(crate) type PeerQueuePair = (usize, usize, bool, u32);

/// All ends of a seed.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) all: Vec<End>,
    by_key: BTreeMap<(usize, IdKey), usize>,
    /// Those that are not gone.
    pub(crate) here: BTreeSet<usize>,
    /// The last passive end of each active one.
    pub(crate) passive_of: BTreeMap<usize, usize>,
    /// Ends that believe a peer's queue pair connected.
    believing: BTreeMap<PeerQueuePair, usize>,
    /// Ends by their addresses, and whether they are of the port space of datagrams.
    pub(crate) four_tuples: BTreeMap<(bool, SocketAddr, SocketAddr), usize>,
    /// Queue pairs in the REQs and REPs that came long after they were sent.
    confused: BTreeSet<PeerQueuePair>,
    /// Times of crashes.
    crashes: Vec<(usize, Duration)>,
    /// Times without a device.
    outages: Vec<(usize, Duration, Duration)>,
    pub(crate) tally: ConnectionTally,
}

impl Ends {
    pub(crate) fn add(&mut self, end: End) -> usize {
        let number = self.all.len();
        self.by_key.insert((end.host, end.key), number);
        self.here.insert(number);
        self.all.push(end);
        number
    }

    pub(crate) fn at(&self, host: usize, key: IdKey) -> Option<usize> {
        self.by_key.get(&(host, key)).copied()
    }

    /// Another stage of an end, with the queue pairs that it believes connected.
    pub(crate) fn set_stage(&mut self, end: usize, stage: Stage, now: Duration) {
        self.doubt(end);
        let of = &mut self.all[end];
        of.stage = stage;
        match stage {
            Stage::Open => of.opened = of.opened.or(Some(now)),
            Stage::Over => of.over = of.over.or(Some(now)),
            _ => {}
        }
        let of = &self.all[end];
        if of.believes() && of.service != IdService::Datagram {
            self.believing.insert(of.peer_queue_pair(), end);
        }
    }

    fn doubt(&mut self, end: usize) {
        let key = self.all[end].peer_queue_pair();
        if self.believing.get(&key) == Some(&end) {
            self.believing.remove(&key);
        }
    }

    /// The end that believes a peer's queue pair connected.
    pub(crate) fn believer(&self, peer: PeerQueuePair) -> Option<usize> {
        self.believing.get(&peer).copied()
    }

    /// A REQ or REP came to `host` when its queue pair number may have been another connection's:
    /// that one looks as if its peer had forgotten it.
    pub(crate) fn confuse(&mut self, peer: PeerQueuePair) {
        self.confused.insert(peer);
    }

    pub(crate) fn is_confused(&self, end: &End) -> bool {
        self.confused.contains(&end.peer_queue_pair())
    }

    /// The identifier is destroyed, or its host has crashed.
    pub(crate) fn end(&mut self, end: usize, now: Duration) {
        self.doubt(end);
        let of = &mut self.all[end];
        of.gone = of.gone.or(Some(now));
        self.by_key.remove(&(of.host, of.key));
        self.here.remove(&end);
    }

    pub(crate) fn on_crash(&mut self, host: usize, now: Duration) {
        self.crashes.push((host, now));
        let of_host: Vec<_> = self.here.iter().copied().filter(|end| self.all[*end].host == host).collect();
        for end in of_host {
            self.end(end, now);
        }
    }

    pub(crate) fn on_outage(&mut self, host: usize, since: Duration, until: Duration) {
        self.outages.push((host, since, until));
    }

    /// A host crashed in an interval, or was without its device.
    pub(crate) fn was_disturbed(&self, host: usize, since: Duration, until: Duration) -> bool {
        self.crashes.iter().any(|(of, at)| *of == host && since <= *at && *at <= until)
            || self.outages.iter().any(|(of, from, to)| *of == host && *from < until && since < *to)
    }
}
