//! Atomic operations: the request on its way out, its execution, and what must hold on each side
//! (IBTA v1 9.4.5).
//!
//! A responder executes a request once, ever: what it found stays in the [`super::replay::Replay`]
//! ring, and a duplicate is answered from there. The operation itself is the processor's
//! ([`App::atomic`]), so that it holds against every other queue pair and the client's own program.

use roced_types::{SendOp, access};

use super::{
    Context, QpBase,
    responder::{ACCESS, INVALID, RequestRefused},
    send_queue::SendEntry,
};
use crate::{
    io::{App, AtomicOperation},
    mr::{MrKey, Right},
    psn::Psn,
    wire::{
        atomic::AtomicEth,
        bth::Bth,
        headers::Headers,
        opcode::{self, Operation},
    },
};

/// Bytes that an atomic operation works on; its address is a multiple of as many.
pub(crate) const ATOMIC_BYTES: usize = 8;

/// The headers of the request that `entry` makes.
pub(crate) fn request(entry: &SendEntry, base: &QpBase, psn: Psn) -> Headers {
    let opcode = if entry.op == SendOp::CompareSwap { opcode::RC_COMPARE_SWAP } else { opcode::RC_FETCH_ADD };
    Headers {
        atomic: Some(AtomicEth {
            va: entry.remote_va,
            rkey: MrKey(entry.rkey),
            swap_or_add: entry.swap_or_add,
            compare: entry.compare,
        }),
        ..Headers::new(Bth { ack_request: true, ..base.bth(opcode, psn) })
    }
}

/// Carries out what a peer asks for, and gives what was there before.
pub(crate) fn execute<A: App>(
    atomic: &AtomicEth,
    operation: Operation,
    base: &QpBase,
    cx: &mut Context<'_, A>,
) -> Result<u64, RequestRefused> {
    if base.attributes.access & access::REMOTE_ATOMIC == 0 {
        return Err(ACCESS);
    }
    // IBTA v1 9.7.4: an address that is not a multiple of eight is an invalid request.
    if !atomic.va.is_multiple_of(ATOMIC_BYTES as u64) {
        return Err(INVALID);
    }
    let span = base.check_peer(cx.mrs, atomic.rkey, Right::RemoteAtomic, atomic.va, ATOMIC_BYTES);
    let span = span.map_err(|_| ACCESS)?;
    // A region whose addresses are not aligned as its memory is: the processor could not do it in
    // one piece.
    if !span.offset().is_multiple_of(ATOMIC_BYTES as u64) {
        return Err(INVALID);
    }
    let operation = match operation {
        Operation::CompareSwap => AtomicOperation::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add },
        _ => AtomicOperation::FetchAdd { add: atomic.swap_or_add },
    };
    cx.app.atomic(span, operation).map_err(|_| ACCESS)
}
