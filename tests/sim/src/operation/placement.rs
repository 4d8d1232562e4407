//! Memory placement extensions (annex A19): FLUSH, and atomic WRITE, alone or as programs use them:
//! the written data is made visible, and then eight bytes say so.

use roced_types::flush;

use super::{Composer, Operation, refused};
use crate::message::{Kind, Message};

pub(super) const FLUSH: Operation = Operation { name: "FLUSH", weight: 10, compose: flush_write };
pub(super) const ATOMIC_WRITE: Operation = Operation { name: "atomic WRITE", weight: 10, compose: atomic_write };
pub(super) const PERSISTENT: Operation = Operation { name: "FLUSH persistent", weight: 10, compose: persistent };

/// A WRITE, and a FLUSH of it or of all that its key opens; now and then an atomic WRITE behind
/// them.
fn flush_write(composer: &mut Composer<'_>) {
    let length = composer.length(composer.longest());
    let written = composer.write(length);
    let message = composer.flush(&written);
    composer.post(written);
    composer.post(message);
    if composer.random.one_in(2) {
        atomic_write(composer);
    }
}

fn atomic_write(composer: &mut Composer<'_>) {
    let message = composer.atomic(Kind::AtomicWrite);
    composer.post(message);
}

/// No memory here outlives a power failure.
fn persistent(composer: &mut Composer<'_>) {
    let written = composer.write(100);
    let message = composer.flush(&written);
    let compare = message.compare | u64::from(flush::PERSISTENT);
    composer.post(refused(Message { compare, ..message }));
}
