//! CMP_SWAP and FETCH_ADD, and one with an address that the responder must refuse.

use super::{Composer, Operation};
use crate::message::{Kind, Message, Outcome};

pub(super) const COMPARE_SWAP: Operation = Operation { name: "CMP_SWAP", weight: 10, compose: compare_swap };
pub(super) const FETCH_ADD: Operation = Operation { name: "FETCH_ADD", weight: 10, compose: fetch_add };
pub(super) const MISALIGNED: Operation = Operation { name: "odd address", weight: 10, compose: misaligned };

fn compare_swap(composer: &mut Composer<'_>) {
    let message = composer.atomic(Kind::CompareSwap);
    composer.post(message);
}

fn fetch_add(composer: &mut Composer<'_>) {
    let message = composer.atomic(Kind::FetchAdd);
    composer.post(message);
}

/// IBTA v1 9.7.4: an address that is not a multiple of eight is an invalid request.
fn misaligned(composer: &mut Composer<'_>) {
    let kind = composer.random.pick(&[Kind::FetchAdd, Kind::AtomicWrite]);
    let message = composer.atomic(kind);
    let remote_va = message.remote_va + composer.random.within(1, 7);
    composer.post(Message { remote_va, outcome: Outcome::RemoteInvalid, writable: 0, ..message });
}
