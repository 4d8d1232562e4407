//! Atomic operations: building the request, executing it, and the conditions on each side (IBTA v1
//! 9.4.5).
//!
//! A responder executes each request exactly once: the original value stays in the
//! [`super::replay::Replay`] ring, which answers duplicates. The processor performs the operation
//! itself ([`App::atomic`]), so that it is atomic with respect to every other queue pair and the
//! client's own program.

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

/// Operand size of an atomic operation in bytes; its address is a multiple of it.
pub(crate) const ATOMIC_BYTES: usize = 8;

/// Headers of the request for `entry`.
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

/// Executes an atomic request of the peer and returns the original value.
pub(crate) fn execute<A: App>(
    atomic: &AtomicEth,
    operation: Operation,
    cx: &mut Context<'_, A>,
) -> Result<u64, RequestRefused> {
    if cx.base.attributes.access & access::REMOTE_ATOMIC == 0 {
        return Err(ACCESS);
    }
    // IBTA v1 9.7.4: an address that is not a multiple of eight is an invalid request.
    if !atomic.va.is_multiple_of(ATOMIC_BYTES as u64) {
        return Err(INVALID);
    }
    let span = cx.base.check_peer(cx.mrs, atomic.rkey, Right::RemoteAtomic, atomic.va, ATOMIC_BYTES);
    let span = span.map_err(|_| ACCESS)?;
    // Virtual addresses of the region are not aligned like its memory: the processor could not
    // access the operand in one piece.
    if !span.offset().is_multiple_of(ATOMIC_BYTES as u64) {
        return Err(INVALID);
    }
    let operation = match operation {
        Operation::CompareSwap => AtomicOperation::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add },
        _ => AtomicOperation::FetchAdd { add: atomic.swap_or_add },
    };
    cx.app.atomic(span, operation).map_err(|_| ACCESS)
}
