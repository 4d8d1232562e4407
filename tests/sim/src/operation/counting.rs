//! READs of memory that counts up, several at once, and READs of the data of a message just before.

use super::{Composer, Operation};
use crate::{
    counting::COUNTING_BYTES,
    layout::RECV_BYTES,
    message::{Kind, Message},
};

pub(super) const COUNTING: Operation = Operation { name: "READs in order", weight: 12, compose: counting };
pub(super) const BEHIND: Operation = Operation { name: "SEND, READ back", weight: 8, compose: behind };

/// READs of one batch.
const READS_MAX: u64 = 16;

/// Messages between them.
const BETWEEN_MAX: usize = 8;

/// Work requests that one of these operations posts at the most.
pub(super) const WORK_REQUESTS_MAX: u32 = READS_MAX as u32 + BETWEEN_MAX as u32;

/// Small ones and ones of several packets, which overlap, with other messages between them.
fn counting(composer: &mut Composer<'_>) {
    let reads = composer.random.within(1, READS_MAX);
    let between = composer.random.pick(&[0, 0, 3, 6]);
    let few = composer.random.one_in(2);
    for _ in 0..reads {
        let most = if few { 64 } else { 4 * composer.mtu };
        let length = composer.some_length(most.min(composer.longest())).next_multiple_of(8);
        let offset = composer.random.below(u64::from(COUNTING_BYTES - length) / 8 + 1) as u32 * 8;
        // Half of them read the common place.
        let offset = if composer.random.one_in(2) { 0 } else { offset };
        let message = composer.read_counts(offset, length);
        composer.post(message);
        let others = composer.messages.iter().filter(|message| message.kind != Kind::Read).count();
        if between > 0 && others < BETWEEN_MAX && composer.random.one_in(between) {
            other(composer);
        }
    }
}

fn other(composer: &mut Composer<'_>) {
    let length = composer.length(composer.mtu);
    let message = match composer.random.below(4) {
        0 => composer.send(length),
        1 => composer.write(length),
        2 => composer.atomic(Kind::FetchAdd),
        _ => composer.atomic(Kind::CompareSwap),
    };
    composer.post(message);
}

/// A SEND, or an atomic operation, and a READ that must see its effect.
fn behind(composer: &mut Composer<'_>) {
    if !composer.back_is_free {
        return (super::send::SEND.compose)(composer);
    }
    if let Some(index) = composer.next_receive
        && composer.random.one_in(2)
    {
        let length = composer.some_length(RECV_BYTES);
        let sent = composer.send(length);
        let read = composer.read_received(&sent, index);
        composer.post(sent);
        return composer.post(read);
    }
    let kind = composer.random.pick(&[Kind::FetchAdd, Kind::CompareSwap, Kind::AtomicWrite]);
    let messages: [Message; 2] = composer.atomic_and_back(kind);
    messages.into_iter().for_each(|message| composer.post(message));
}
