//! Operations of an unreliable connection: SEND and WRITE. The sender completes them when they have
//! left, also those that the receiver must drop.

use super::{Composer, Operation, keys, local, refused, send, write};
use crate::{
    layout::{NO_KEY, OTHER_PD_KEY, READ_KEY},
    message::Message,
};

pub(super) const SEND: Operation = Operation { name: "UC SEND", ..send::SEND };
pub(super) const SEND_IMM: Operation = Operation { name: "UC SEND imm", ..send::SEND_IMM };
pub(super) const WRITE: Operation = Operation { name: "UC WRITE", ..write::WRITE };
pub(super) const WRITE_IMM: Operation = Operation { name: "UC WRITE imm", ..write::WRITE_IMM };
pub(super) const NEW_KEY: Operation = Operation { name: "UC new rkey", ..keys::NEW_KEY };
pub(super) const REFUSED: Operation = Operation { name: "UC wrong rkey", weight: 5, compose: wrong_rkey };
pub(super) const STALE_KEY: Operation = Operation { name: "UC stale rkey", weight: 5, compose: stale_key };
pub(super) const TOO_LONG: Operation = Operation { name: "UC too long", weight: 5, compose: too_long };
pub(super) const WRONG_LKEY: Operation = Operation { name: "UC wrong lkey", ..local::WRONG_LKEY };

/// No key, one without the right, one of another protection domain.
fn wrong_rkey(composer: &mut Composer<'_>) {
    let length = composer.some_length(composer.longest());
    let message = composer.write(length);
    let rkey = composer.random.pick(&[NO_KEY, READ_KEY, OTHER_PD_KEY]);
    composer.post(refused(Message { rkey, ..message }));
}

/// Often behind a WRITE by the same key that is under way when it is taken back.
fn stale_key(composer: &mut Composer<'_>) {
    let length = composer.some_length(composer.longest());
    let message = composer.write(length);
    let message = composer.by_slot_key(message);
    composer.take_back = true;
    composer.post(refused(Message { stale: true, ..message }));
}

/// Longer than any receive: its first packets may be there, and it is lost.
fn too_long(composer: &mut Composer<'_>) {
    let length = crate::layout::RECV_BYTES + composer.random.within(1, 2000) as u32;
    let message = composer.send(length);
    composer.post(message);
}
