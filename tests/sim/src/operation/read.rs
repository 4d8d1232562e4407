//! RDMA READ: of memory that never changes, and of the data of a WRITE just before it.

use super::{Composer, Operation};

pub(super) const READ: Operation = Operation { name: "READ", weight: 20, compose: read };
pub(super) const READ_BACK: Operation = Operation { name: "WRITE, READ back", weight: 10, compose: read_back };

fn read(composer: &mut Composer<'_>) {
    let length = composer.length(composer.longest());
    let message = composer.read(length);
    composer.post(message);
}

/// A responder that executes the READ too early, or answers it again too late, gives other bytes.
fn read_back(composer: &mut Composer<'_>) {
    if !composer.back_is_free {
        return read(composer);
    }
    let length = composer.some_length(composer.longest());
    let write = composer.write_to(composer.back_at(), length);
    let read = composer.read_back(&write);
    composer.post(write);
    composer.post(read);
}
