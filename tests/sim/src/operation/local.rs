//! Keys of the sender's own side: LOCAL_INV, and failures there, in the middle of a message.

use super::{Composer, Operation};
use crate::{
    layout::NO_KEY,
    message::{Message, Outcome},
};

pub(super) const INVALIDATE: Operation = Operation { name: "READ, LOCAL_INV", weight: 8, compose: invalidate };
pub(super) const STALE_LKEY: Operation = Operation { name: "stale lkey", weight: 10, compose: stale_lkey };
pub(super) const WRONG_LKEY: Operation = Operation { name: "wrong lkey", weight: 10, compose: wrong_lkey };

/// The first packets leave; the piece behind them does not open.
fn wrong_lkey(composer: &mut Composer<'_>) {
    let sound = composer.mtu * composer.random.within(1, 2) as u32;
    let length = sound + composer.random.within(1, 100) as u32;
    let message = composer.write_in_two(sound, length);
    composer.post(Message { lkey: NO_KEY, outcome: Outcome::LocalProtection, writable: sound, ..message });
}

/// A READ to memory that a key of ours opens, which opens nothing any more when that is here;
/// silent WRITEs may stand between the two.
fn invalidate(composer: &mut Composer<'_>) {
    let length = composer.some_length(composer.longest());
    let message = composer.read(length);
    if !composer.own_key_is_free {
        return composer.post(message);
    }
    let lkey = composer.own_key();
    composer.post(Message { lkey, ..message });
    for _ in 0..composer.random.below(3) {
        let length = composer.random.within(1, composer.mtu.into()) as u32;
        let message = composer.write(length);
        composer.post(Message { signaled: false, ..message });
    }
    let message = composer.invalidate(lkey);
    composer.post(message);
}

/// The same, the other way round: the READ is answered, and its bytes go nowhere.
fn stale_lkey(composer: &mut Composer<'_>) {
    if !composer.own_key_is_free {
        return wrong_lkey(composer);
    }
    let length = composer.some_length(composer.longest());
    let lkey = composer.own_key();
    let message = composer.invalidate(lkey);
    composer.post(message);
    let message = composer.read(length);
    composer.post(Message { lkey, outcome: Outcome::LocalProtection, writable: 0, ..message });
}
