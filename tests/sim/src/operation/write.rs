//! RDMA WRITE, with and without immediate.

use super::{Composer, Operation};
use crate::{layout::NO_KEY, message::Message};

pub(super) const WRITE: Operation = Operation { name: "WRITE", weight: 25, compose: write };
pub(super) const WRITE_IMM: Operation = Operation { name: "WRITE imm", weight: 10, compose: write_imm };

fn write(composer: &mut Composer<'_>) {
    let length = composer.length(composer.longest());
    let message = composer.write(length);
    // IBTA v1 C9-88: no bytes, no check of the key.
    let rkey = if length == 0 { NO_KEY } else { message.rkey };
    composer.post(Message { rkey, ..message });
}

fn write_imm(composer: &mut Composer<'_>) {
    let length = composer.length(composer.longest());
    let message = composer.write(length);
    let message = composer.with_imm(message);
    composer.post(message);
}
