//! Writes to memory: each byte of each message, in order, once, where it belongs, and nothing else.

use roced_transport::io::AtomicOperation;

use crate::{
    connection::End,
    message::{Kind, Outcome},
    pattern::Pieces,
    shared::Shared,
    stream::{Place, Stream},
    violation::{Checked, demand},
};

impl Stream {
    /// Bytes of a WRITE or SEND reach the responder's sink at `at`.
    pub(crate) fn check_write(&mut self, own: &mut End, shared: Option<&mut Shared>, at: u32, bytes: &[u8]) -> Checked {
        self.skip_executed();
        let (mtu, place) = (self.mtu(), self.executed);
        let Some(message) = self.message(place.id) else {
            demand!(false, "memory", "{} bytes at {at}: all that was posted is there already", bytes.len());
            return Ok(());
        };
        let done = place.done + bytes.len() as u32;
        demand!(!message.stale, "stale-key", "{} bytes at {at} by a key that was taken back: {message:?}", bytes.len());
        demand!(
            done <= message.writable || message.outcome != Outcome::RemoteAccess,
            "access",
            "{} bytes at {at} for a request that must be refused: {message:?}",
            bytes.len()
        );
        demand!(
            done <= message.writable,
            "memory",
            "{} bytes at {at}, more than the message has: {message:?}",
            bytes.len()
        );
        let into = match message.kind {
            Kind::Write => Some((message.remote + place.done, message.length - place.done)),
            Kind::Send => {
                let index = message.recv.filter(|_| !own.is_shared);
                let receive = match index {
                    Some(index) => own.receives.get(index),
                    None => own.next_receive(shared.as_deref()),
                };
                receive.and_then(|receive| receive.into.at(place.done))
            }
            _ => None,
        };
        let right = into.is_some_and(|(offset, run)| offset == at && bytes.len() as u32 <= run);
        demand!(
            right || !own.is_shared || message.kind != Kind::Send || place.done > 0,
            "shared-receive",
            "{} bytes at {at}, the receive that is taken next is at {into:?}: message {}",
            bytes.len(),
            place.id
        );
        demand!(
            right,
            "memory",
            "{} bytes at {at}, the next belong to {into:?}: message {} at byte {}",
            bytes.len(),
            place.id,
            place.done
        );
        demand!(
            message.data.holds(place.done, bytes),
            "memory",
            "wrong bytes at {at}: message {} at byte {}",
            place.id,
            place.done
        );
        let written = message.first + u64::from(done.div_ceil(mtu));
        demand!(
            written <= self.covered,
            "memory",
            "message {} is executed up to byte {done}, before it arrived",
            place.id
        );
        if message.kind == Kind::Send {
            own.claim(shared);
        }
        self.executed.done = done;
        self.written = written;
        Ok(())
    }

    /// Bytes of a READ response, or the original value of an atomic operation, reach the
    /// requester's sink at `at`.
    pub(crate) fn check_placed(&mut self, at: u32, bytes: &[u8]) -> Checked {
        while let Some(message) = self.message(self.placed.id)
            && (!message.kind.brings() || self.placed.done == message.length)
        {
            self.placed = Place { id: self.placed.id + 1, done: 0 };
        }
        let place = self.placed;
        let Some(message) = self.message(place.id) else {
            demand!(false, "memory", "{} bytes at {at}: all READs that were posted are done", bytes.len());
            return Ok(());
        };
        let into: Option<(u32, u32)> = Pieces::at(&message.into, place.done);
        demand!(
            message.outcome == Outcome::Success,
            "access",
            "{} bytes at {at} of an answer that must go nowhere: {message:?}",
            bytes.len()
        );
        demand!(
            into.is_some_and(|(offset, run)| offset == at && bytes.len() as u32 <= run),
            "memory",
            "{} bytes at {at}, the next of a READ belong to {into:?}: message {} at byte {}",
            bytes.len(),
            place.id,
            place.done
        );
        let right = if message.kind.is_atomic() {
            message.found.is_some_and(|found| found.to_ne_bytes()[place.done as usize..][..bytes.len()] == *bytes)
        } else {
            self.may_bring(place.id, place.done, bytes)
        };
        demand!(
            right,
            "memory",
            "wrong bytes of a READ or atomic operation at {at}: message {} at byte {}",
            place.id,
            place.done
        );
        self.check_counts(place.id, place.done, bytes)?;
        self.placed.done += bytes.len() as u32;
        Ok(())
    }

    /// An atomic operation is executed on the word at `at`, which holds `before`. Returns the value
    /// afterward.
    pub(crate) fn check_atomic(
        &mut self,
        at: u32,
        operation: AtomicOperation,
        before: u64,
    ) -> Result<u64, crate::violation::Violation> {
        self.skip_executed();
        let id = self.executed.id;
        let Some(message) = self.message(id) else {
            demand!(false, "atomic", "{operation:?} at {at}: all that was posted is executed already");
            return Ok(before);
        };
        demand!(!message.stale, "stale-key", "{operation:?} at {at} by a key that was taken back: {message:?}");
        demand!(message.outcome == Outcome::Success, "access", "{operation:?} at {at} must be refused: {message:?}");
        let (meant, after) = match message.kind {
            Kind::CompareSwap => {
                let (compare, swap) = (message.compare, message.swap_or_add);
                (AtomicOperation::CompareSwap { compare, swap }, if before == compare { swap } else { before })
            }
            Kind::AtomicWrite => (AtomicOperation::Write { value: message.swap_or_add }, message.swap_or_add),
            _ => (AtomicOperation::FetchAdd { add: message.swap_or_add }, before.wrapping_add(message.swap_or_add)),
        };
        demand!(
            message.kind.is_of_a_word() && (message.remote, meant) == (at, operation),
            "atomic",
            "{operation:?} at {at} is executed, the next is {message:?}"
        );
        let end = message.end();
        demand!(end <= self.covered, "atomic", "message {id} is executed before it arrived");
        self.message_mut(id).expect("there").found = Some(before);
        self.executed.done = 8;
        self.written = end;
        Ok(after)
    }

    /// Every byte of a READ is in memory.
    pub(crate) fn is_placed(&self, id: u64) -> bool {
        let message = self.message(id).expect("a message that is not complete is kept");
        !message.kind.brings()
            || message.length == 0
            || self.placed.id > id
            || (self.placed.id == id && self.placed.done == message.length)
    }
}
