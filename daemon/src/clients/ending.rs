//! Ended sessions, while their last work is sent and their objects are destroyed.
//!
//! ```text
//!   add ──► sending: batches, 4,096 frames in all ──► destroying: objects one by one
//! ```
//!
//! A session may have thousands of objects, each with a round trip to every worker, and hundreds of
//! sessions may end at once. So they wait here, and each turn of the control thread ends
//! some objects: in between it serves others and tells its watchdog that it lives.
//!
//! Work that finds no room is tried again after a while, and for a second in all: until then
//! objects of other sessions are destroyed. The first batch comes before anything else is
//! destroyed: until then workers send the work of the dead without a bound.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use roced_types::SessionId;

use crate::{
    calls::{CallHandler, Registry, session::SessionObjects},
    environment::Environment,
    last_work::LastWork,
};

/// Objects that are ended in one go.
const OBJECTS_AT_ONCE: usize = 64;

/// How long that may take, but for the wait for one worker that does not answer.
const TIME_AT_ONCE: Duration = Duration::from_millis(2);

/// Frames that an ended session sends yet, but for the last batch: as many as one queue pair can
/// have posted of datagrams, because a program may post and exit at once. One WRITE of a UC queue
/// pair may have more frames: it is cut.
const FRAMES: u32 = 4096;

/// Sessions without a client, the first to be ended first.
#[derive(Debug, Default)]
pub(super) struct EndingSessions {
    sending: VecDeque<Left>,
    destroying: VecDeque<Left>,
}

#[derive(Debug)]
struct Left {
    session: SessionId,
    objects: Box<SessionObjects>,
    last_work: LastWork,
}

impl EndingSessions {
    pub(super) fn add(&mut self, session: SessionId, objects: Box<SessionObjects>) {
        let left = Left { session, objects, last_work: LastWork::new(FRAMES) };
        self.sending.push_front(left);
    }

    /// Sends some of their work, or destroys some of their objects.
    pub(super) fn end_some(&mut self, registry: &mut Registry, environment: &mut Environment<'_>) {
        let begin = Instant::now();
        for _ in 0..OBJECTS_AT_ONCE {
            let due = self.sending.iter().position(|left| left.last_work.due() <= begin);
            if let Some(mut left) = due.and_then(|at| self.sending.remove(at)) {
                let batch = left.handler(registry, environment).send_last();
                let goes_on = left.last_work.goes_on(batch);
                if goes_on { &mut self.sending } else { &mut self.destroying }.push_back(left);
            } else {
                let Some(left) = self.destroying.front_mut() else { return };
                if !left.handler(registry, environment).end_next() {
                    self.destroying.pop_front();
                }
            }
            if begin.elapsed() >= TIME_AT_ONCE {
                return;
            }
        }
    }

    pub(super) fn contains(&self, session: SessionId) -> bool {
        self.iter().any(|left| left.session == session)
    }

    /// When something is to be done, or was.
    pub(super) fn due(&self) -> Option<Instant> {
        self.iter().map(|left| left.last_work.due()).min()
    }

    pub(super) fn len(&self) -> usize {
        self.sending.len() + self.destroying.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn iter(&self) -> impl Iterator<Item = &Left> {
        self.sending.iter().chain(&self.destroying)
    }
}

impl Left {
    fn handler<'a, 'o>(
        &'a mut self,
        registry: &'a mut Registry,
        environment: &'a mut Environment<'o>,
    ) -> CallHandler<'a, 'o> {
        CallHandler { registry, session: self.session, objects: &mut self.objects, environment }
    }
}
