//! Messages from memory that is used again as soon as the peer's application says that they
//! arrived.

use super::{Composer, Operation};
use crate::{layout::RECV_BYTES, message::Kind};

pub(super) const REUSE: Operation = Operation { name: "memory used again", weight: 8, compose: reuse };

/// One SEND, or a WRITE and a SEND; most are silent, and most are the last for a while.
fn reuse(composer: &mut Composer<'_>) {
    if !composer.reuse_is_free {
        return (super::send::SEND.compose)(composer);
    }
    let kinds: &[Kind] = if composer.random.one_in(2) { &[Kind::Write, Kind::Send] } else { &[Kind::Send] };
    for kind in kinds {
        let length = composer.some_length(RECV_BYTES);
        let mut message = match kind {
            Kind::Write => composer.write(length),
            _ => composer.send(length),
        };
        composer.fill_from_reused(&mut message);
        message.signaled &= composer.random.one_in(3);
        composer.post(message);
    }
    composer.pause = composer.random.pick(&[0, 100_000, 500_000, 3_000_000]);
}
