//! Changed next hops and links, for the paths of queue pairs and address handles.
//!
//! A neighbor may be that of every queue pair of a device, and each new path is a round trip to a
//! worker, of an address handle one to every worker. So the changes wait in line here, and each
//! turn of the control thread carries out some: in between it serves clients and tells its watchdog
//! that it lives.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use roced_abi::control::Event;
use roced_types::{DeviceId, Qpn, SessionId, event};
use tracing::{debug, warn};

use super::Clients;
use crate::{
    calls::{
        CallHandler,
        path::Follower,
        session::{Session, SessionStage},
    },
    environment::Environment,
    net::{FollowId, NextHop},
};
/// How long one turn carries out changes, but for the wait for one worker that does not answer.
const TIME_AT_ONCE: Duration = Duration::from_millis(2);

/// What a path has to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathChange {
    /// The next hop of this destination, if it still follows that.
    NextHop(FollowId),
    /// The state of the device's port.
    Port,
}

/// Changes that wait, each follower once and in order.
#[derive(Debug, Default)]
pub(super) struct PathChanges {
    line: VecDeque<(SessionId, Follower)>,
    /// The last one of each follower in line.
    changes: BTreeMap<(SessionId, Follower), PathChange>,
    /// Next hops of destinations while there is a line.
    hops: BTreeMap<FollowId, NextHop>,
}

impl PathChanges {
    fn add(&mut self, session: SessionId, follower: Follower, change: PathChange) {
        let known = self.changes.get(&(session, follower));
        if known.is_none() {
            self.line.push_back((session, follower));
        }
        // A new next hop takes over the port's state as well.
        if known.is_none() || change != PathChange::Port {
            self.changes.insert((session, follower), change);
        }
    }

    fn take(&mut self) -> Option<(SessionId, Follower, PathChange)> {
        let Some((session, follower)) = self.line.pop_front() else {
            self.hops.clear();
            return None;
        };
        let change = self.changes.remove(&(session, follower)).expect("each in line has one");
        Some((session, follower, change))
    }

    /// The next hop of a destination as it is now, for a path that follows `followed`.
    fn hop(&self, follow: FollowId, followed: Option<FollowId>) -> Option<NextHop> {
        self.hops.get(&follow).copied().filter(|_| followed == Some(follow))
    }

    /// None waits.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

impl Clients {
    /// The link of a device is another, or its address.
    pub(super) fn on_link(&mut self, device: DeviceId, environment: &Environment<'_>) {
        let port = environment.network.port(device);
        if self.registry.links.insert(device, port.link_up) != Some(port.link_up) {
            let kind = if port.link_up { event::PORT_ACTIVE } else { event::PORT_DOWN };
            self.tell_all(device, Event { kind, handle: 0 });
        }
        for session in self.sessions.values() {
            let SessionStage::Open(objects) = &session.stage else { continue };
            if objects.device != device {
                continue;
            }
            // Paths of hand-over carry the device's MAC address; those by the NIC get theirs with
            // their next hop.
            let local =
                objects.qps.values().filter(|qp| qp.path.is_some_and(|path| matches!(path.next, NextHop::Local(_))));
            // The maximum payload of an address handle depends on the link as well.
            let followers = local.map(|qp| Follower::Qp(qp.qpn)).chain(objects.ahs.keys().map(|ah| Follower::Ah(*ah)));
            followers.for_each(|follower| self.path_changes.add(session.id, follower, PathChange::Port));
        }
    }

    /// A destination is reached by another next hop.
    pub(super) fn on_next_hop(&mut self, follow: FollowId, next: NextHop) {
        // Also for those in line that do not follow it now, and may again.
        self.path_changes.hops.insert(follow, next);
        for (session, follower) in self.registry.followers.get(&follow).into_iter().flatten() {
            self.path_changes.add(*session, *follower, PathChange::NextHop(follow));
        }
    }

    /// Carries out some of the changes that wait.
    pub(super) fn change_some_paths(&mut self, environment: &mut Environment<'_>) {
        let begin = Instant::now();
        while let Some((session, follower, change)) = self.path_changes.take() {
            match follower {
                Follower::Qp(qpn) => self.change_qp_path(session, qpn, change, environment),
                Follower::Ah(number) => self.change_ah_path(session, number, change, environment),
            }
            if begin.elapsed() >= TIME_AT_ONCE {
                return;
            }
        }
    }

    fn change_ah_path(
        &mut self,
        session: SessionId,
        number: u32,
        change: PathChange,
        environment: &mut Environment<'_>,
    ) {
        let Some(Session { stage: SessionStage::Open(objects), .. }) = self.sessions.get_mut(&session.0) else {
            return;
        };
        let Some(ah) = objects.ahs.get(&number) else { return };
        let next = match change {
            PathChange::NextHop(follow) => match self.path_changes.hop(follow, ah.way.follow) {
                Some(next) => Some(next),
                None => return,
            },
            PathChange::Port => None,
        };
        debug!(ah = number, ?change, "path changes");
        let mut handler = CallHandler { registry: &mut self.registry, session, objects, environment };
        if handler.set_ah_next(number, next).is_err() {
            warn!(ah = number, "a worker does not take an address handle's new path");
        }
    }

    fn change_qp_path(&mut self, session: SessionId, qpn: Qpn, change: PathChange, environment: &mut Environment<'_>) {
        let Some(Session { stage: SessionStage::Open(objects), .. }) = self.sessions.get_mut(&session.0) else {
            return;
        };
        let port = environment.network.port(objects.device);
        let Some(path) = objects.qps.get_mut(&qpn.get()).and_then(|qp| qp.path.as_mut()) else { return };
        match change {
            PathChange::NextHop(follow) => match self.path_changes.hop(follow, path.follow) {
                Some(next) => path.next = next,
                None => return,
            },
            PathChange::Port => {}
        }
        let state = path.state(&port);
        debug!(%qpn, path = state.name(), "path changes");
        let mut handler = CallHandler { registry: &mut self.registry, session, objects, environment };
        if handler.set_path(qpn, state).is_err() {
            warn!(%qpn, "a worker does not take a queue pair's new path");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_waits_once_with_its_last_change() {
        let mut changes = PathChanges::default();
        let change = PathChange::NextHop(FollowId::new(3));
        let (one, other) = (Follower::Ah(1), Follower::Ah(2));
        changes.add(SessionId(1), one, change);
        changes.add(SessionId(1), other, PathChange::Port);
        changes.add(SessionId(1), one, PathChange::Port);
        changes.add(SessionId(1), other, change);
        assert_eq!(changes.take(), Some((SessionId(1), one, change)));
        assert_eq!(changes.take(), Some((SessionId(1), other, change)));
        assert!(changes.take().is_none() && changes.is_empty() && changes.changes.is_empty());
    }

    /// A path that has left the destination and follows it again gets the latest hop.
    #[test]
    fn a_path_in_line_gets_the_next_hop_of_its_turn() {
        let mut changes = PathChanges::default();
        let (follow, other) = (FollowId::new(3), FollowId::new(4));
        let hop = |device| NextHop::Local(DeviceId(device));
        changes.add(SessionId(1), Follower::Ah(1), PathChange::NextHop(follow));
        changes.hops.insert(follow, hop(1));
        changes.hops.insert(follow, hop(2));
        changes.take().expect("it is in line");
        assert_eq!(changes.hop(follow, Some(follow)), Some(hop(2)));
        assert_eq!((changes.hop(follow, Some(other)), changes.hop(follow, None)), (None, None));
        assert!(changes.take().is_none() && changes.hops.is_empty(), "with the line");
    }
}
