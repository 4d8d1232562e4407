//! Things to come, by their time.

use std::{collections::BTreeMap, time::Duration};

/// Something that a program does about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    ResolveAddress,
    ResolveRoute,
    Connect,
    Accept,
    Confirm,
    Reject,
    /// The first packet of the peer is here.
    Data,
    Disconnect,
    /// The queue pair has failed: its peer does not answer any more.
    Fail,
    Destroy,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A program begins on a host, with the ports of listeners.
    Begin(usize),
    /// A program asks for a connection.
    Ask(usize),
    /// A program takes its events.
    Take(usize),
    /// A program listens no more on its first port.
    Unlisten(usize),
    Step(usize, Step),
    Kill(usize),
    Crash(usize),
    Stop(usize),
    Start(usize),
    /// The device of a host goes, and comes back.
    Remove(usize),
    Return(usize),
    /// A neighbor of a host answers.
    Neighbor(usize, usize, bool),
    /// Identifiers of ended programs of a host are destroyed.
    EndSome(usize),
    Audit,
}

/// Things to come.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    acts: BTreeMap<(Duration, u64), Act>,
    last: u64,
}

impl Agenda {
    pub(crate) fn put(&mut self, at: Duration, act: Act) {
        self.last += 1;
        self.acts.insert((at, self.last), act);
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.acts.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn take(&mut self, now: Duration) -> Option<Act> {
        let entry = self.acts.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}
