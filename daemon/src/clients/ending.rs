//! Ended sessions, while their objects are destroyed.
//!
//! A session may have thousands of objects, each with a round trip to every worker, and hundreds of
//! sessions may end at once. So they wait here, and each poll iteration of the control thread ends
//! some objects: in between it serves others and tells its watchdog that it lives.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use roced_types::SessionId;

use super::{
    control::{CallHandler, Registry},
    session::SessionObjects,
};
use crate::environment::Environment;

/// Objects that are ended in one go.
const OBJECTS_AT_ONCE: usize = 64;

/// How long that may take, but for the wait for one worker that does not answer.
const TIME_AT_ONCE: Duration = Duration::from_millis(5);

/// Sessions without a client, the first to be ended first.
#[derive(Debug, Default)]
pub(super) struct EndingSessions(VecDeque<Left>);

#[derive(Debug)]
struct Left {
    session: SessionId,
    objects: Box<SessionObjects>,
    since: Instant,
}

impl EndingSessions {
    pub(super) fn add(&mut self, session: SessionId, objects: Box<SessionObjects>) {
        self.0.push_back(Left { session, objects, since: Instant::now() });
    }

    /// Destroys some of their objects.
    pub(super) fn end_some(&mut self, registry: &mut Registry, environment: &mut Environment<'_>) {
        let begin = Instant::now();
        for _ in 0..OBJECTS_AT_ONCE {
            let Some(Left { session, objects, .. }) = self.0.front_mut() else { return };
            let mut handler =
                CallHandler { registry: &mut *registry, session: *session, objects, environment: &mut *environment };
            if !handler.end_next() {
                self.0.pop_front();
            }
            if begin.elapsed() >= TIME_AT_ONCE {
                return;
            }
        }
    }

    pub(super) fn contains(&self, session: SessionId) -> bool {
        self.0.iter().any(|left| left.session == session)
    }

    /// When something was to be done first.
    pub(super) fn since(&self) -> Option<Instant> {
        self.0.front().map(|left| left.since)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
