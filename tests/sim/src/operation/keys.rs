//! Keys: one that comes and goes, and those that a responder must refuse.

use roced_types::flush;

use super::{Composer, Operation, refused};
use crate::{
    layout::{NO_KEY, OTHER_PD_KEY, READ_KEY, SINK_VA, SOURCE_KEY},
    message::{Kind, Message},
};

pub(super) const NEW_KEY: Operation = Operation { name: "new rkey", weight: 8, compose: new_key };
pub(super) const WRONG_RKEY: Operation = Operation { name: "wrong rkey", weight: 10, compose: wrong_rkey };
pub(super) const OUT_OF_RANGE: Operation = Operation { name: "out of range", weight: 10, compose: out_of_range };
pub(super) const NO_RIGHT: Operation = Operation { name: "no right", weight: 10, compose: no_right };
pub(super) const OTHER_DOMAIN: Operation = Operation { name: "other PD", weight: 10, compose: other_domain };
pub(super) const STALE_KEY: Operation = Operation { name: "stale rkey", weight: 20, compose: stale_key };

fn new_key(composer: &mut Composer<'_>) {
    let length = composer.length(composer.longest());
    let message = composer.write(length);
    let message = if composer.key_is_free { composer.by_slot_key(message) } else { message };
    composer.post(message);
}

fn wrong_rkey(composer: &mut Composer<'_>) {
    read_before(composer);
    let message = write_or_read(composer);
    composer.post(refused(Message { rkey: NO_KEY, ..message }));
}

fn out_of_range(composer: &mut Composer<'_>) {
    read_before(composer);
    let mut message = write_or_read(composer);
    if message.kind == Kind::Flush {
        // One of all that the key opens has no range.
        message.compare = flush::operand(flush::GLOBAL, flush::RANGE);
    }
    // It begins before the region, or at the end of all addresses (at multiples of eight, for
    // atomic operations).
    let remote_va = if composer.random.one_in(2) { SINK_VA - 8 } else { u64::MAX - 7 };
    composer.post(refused(Message { remote_va, ..message }));
}

fn no_right(composer: &mut Composer<'_>) {
    read_before(composer);
    let length = composer.some_length(composer.longest());
    let message = composer.write(length);
    let (rkey, remote_va) =
        if composer.random.one_in(2) { (READ_KEY, message.remote_va) } else { (SOURCE_KEY, crate::layout::SOURCE_VA) };
    composer.post(refused(Message { rkey, remote_va, ..message }));
}

fn other_domain(composer: &mut Composer<'_>) {
    let message = write_or_read(composer);
    composer.post(refused(Message { rkey: OTHER_PD_KEY, remote_va: SINK_VA, ..message }));
}

/// Now and then behind a WRITE by the same key that is under way when it is taken back.
fn stale_key(composer: &mut Composer<'_>) {
    let message = write_or_read(composer);
    let sound = composer.by_slot_key(message);
    composer.take_back = true;
    composer.post(refused(Message { stale: true, ..sound }));
}

/// READs with answers that the refusal of a later request may overtake, or none.
fn read_before(composer: &mut Composer<'_>) {
    for _ in 0..composer.random.below(3) {
        let length = composer.random.within(1, u64::from(composer.mtu) * 4) as u32;
        let message = composer.read(length);
        composer.post(message);
    }
}

/// A WRITE to the sink, a READ of as many bytes of it, an atomic operation, an atomic WRITE or a
/// FLUSH.
fn write_or_read(composer: &mut Composer<'_>) -> Message {
    let length = composer.some_length(composer.longest());
    let write = composer.write(length);
    match composer.random.below(7) {
        0 => composer.atomic(Kind::FetchAdd),
        1 | 2 => composer.read_back(&write),
        3 => composer.atomic(Kind::AtomicWrite),
        4 => composer.flush(&write),
        _ => write,
    }
}
