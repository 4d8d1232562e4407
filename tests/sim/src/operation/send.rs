//! SEND, with and without immediate, and one that is longer than the receive buffer.

use super::{Composer, Operation};
use crate::{
    layout::RECV_BYTES,
    message::{Message, Outcome},
};

pub(super) const SEND: Operation = Operation { name: "SEND", weight: 20, compose: send };
pub(super) const SEND_IMM: Operation = Operation { name: "SEND imm", weight: 10, compose: send_imm };
pub(super) const SEND_INVALIDATE: Operation = Operation { name: "SEND inv", weight: 6, compose: send_invalidate };
pub(super) const TOO_LONG: Operation = Operation { name: "SEND too long", weight: 10, compose: too_long };

fn send(composer: &mut Composer<'_>) {
    let length = composer.length(RECV_BYTES);
    let message = composer.send(length);
    composer.post(message);
}

fn send_imm(composer: &mut Composer<'_>) {
    let length = composer.length(RECV_BYTES);
    let message = composer.send(length);
    let message = composer.with_imm(message);
    composer.post(message);
}

/// The key of the slot opens nothing any more when this is complete; until then nothing uses it.
fn send_invalidate(composer: &mut Composer<'_>) {
    if !composer.key_is_free {
        return send(composer);
    }
    // One without bytes that waits for its key would have a shared receive, and no checker could
    // see which.
    let length = composer.length(RECV_BYTES).max(u32::from(composer.shares));
    let message = composer.send(length);
    let Message { rkey, .. } = composer.by_slot_key(message.clone());
    composer.post(Message { rkey, invalidates: true, ..message });
}

/// IBTA v1 9.7.5.2.5: a packet that no longer fits the receive buffer is an invalid request. All
/// before it has arrived.
fn too_long(composer: &mut Composer<'_>) {
    let length = RECV_BYTES + composer.random.within(1, 2000) as u32;
    let message = composer.send(length);
    composer.post(Message { outcome: Outcome::RemoteInvalid, writable: RECV_BYTES, ..message });
}
