//! What fails on the sender's own side, in the middle of a message.

use super::{Composer, Operation};
use crate::{
    layout::NO_KEY,
    message::{Message, Outcome},
};

pub(super) const WRONG_LKEY: Operation = Operation { name: "wrong lkey", weight: 10, compose: wrong_lkey };

/// The first packets leave; the piece behind them does not open.
fn wrong_lkey(composer: &mut Composer<'_>) {
    let sound = composer.mtu * composer.random.within(1, 2) as u32;
    let length = sound + composer.random.within(1, 100) as u32;
    let message = composer.write_in_two(sound, length);
    composer.post(Message { lkey: NO_KEY, outcome: Outcome::LocalProtection, writable: sound, ..message });
}
