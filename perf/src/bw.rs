//! Throughput: many messages under way on every queue pair.
//!
//! ```text
//!   SEND, WRITE   client: tape ──────► server: slots, compared there, given back by credits
//!   READ          client: slots, compared there ◄────── server: tape
//! ```
//!
//! Message `n` of a queue pair goes to its slot `n` modulo the depth. See [`crate::pattern`] for
//! the tape and [`crate::flow`] for the credits.

pub(crate) mod client;
pub(crate) mod server;

use roced_client::Access;

use crate::{
    cli::Op,
    control::Run,
    flow::{CREDITS_MAX, NOTICES_MAX},
    pattern,
    session::Needs,
};

/// A queue is made this much deeper than needed: a completion may be here a moment before the
/// daemon gives its place back.
const SPARE: u32 = 8;

/// Receives that a sender has posted for credits: twice those that can be under way.
const CREDIT_RECEIVES: u32 = 2 * CREDITS_MAX;

/// Receives that a receiver of WRITEs has posted for notices: as for credits.
const NOTICE_RECEIVES: u32 = 2 * NOTICES_MAX;

/// Bytes from slot to slot: slots begin on cache lines.
const fn slot_bytes(run: &Run) -> u64 {
    run.size.next_multiple_of(64)
}

/// Bytes of all slots of a queue pair.
const fn slots_bytes(run: &Run) -> u64 {
    slot_bytes(run) * run.depth as u64
}

/// Where message `sequence` lies in the slots of its queue pair.
const fn slot(run: &Run, sequence: u64) -> u64 {
    sequence % run.depth as u64 * slot_bytes(run)
}

/// The receiver returns the messages that it has compared.
fn gives_credit(run: &Run) -> bool {
    run.op == Op::Send || run.op == Op::Write && run.verify
}

/// The receiver's memory and the bytes of it that belong to each queue pair.
fn slots(run: &Run, qps: u32, access: Access) -> Needs {
    Needs { qps, sends: 0, receives: 0, memory_bytes: slots_bytes(run) * u64::from(qps), access }
}

/// The sender's.
fn tape(run: &Run, qps: u32, access: Access) -> Needs {
    Needs { qps, sends: 0, receives: 0, memory_bytes: pattern::tape_bytes(run.size), access }
}

/// Resources of the client.
pub(crate) fn client_needs(run: &Run, qps: u32) -> Needs {
    let (sends, receives) = (run.depth + SPARE, if gives_credit(run) { CREDIT_RECEIVES + SPARE } else { 1 });
    match run.op {
        Op::Send | Op::Write => Needs { sends, receives, ..tape(run, qps, Access::NONE) },
        Op::Read => Needs { sends, receives, ..slots(run, qps, Access::LOCAL_WRITE) },
    }
}

/// Resources of the server.
pub(crate) fn server_needs(run: &Run, qps: u32) -> Needs {
    let sends = if gives_credit(run) { CREDITS_MAX + SPARE } else { 1 };
    match run.op {
        Op::Send => Needs { sends, receives: run.depth + SPARE, ..slots(run, qps, Access::LOCAL_WRITE) },
        Op::Write => Needs { sends, receives: NOTICE_RECEIVES + SPARE, ..slots(run, qps, Access::REMOTE_WRITE) },
        Op::Read => Needs { sends, receives: 1, ..tape(run, qps, Access::REMOTE_READ) },
    }
}

/// The part of the server's memory that the peer of queue pair `qp` may reach: where it begins, and
/// bytes.
pub(crate) fn server_offer(run: &Run, qp: usize) -> Option<(u64, u64)> {
    match run.op {
        Op::Send => None,
        Op::Write => Some((slots_bytes(run) * qp as u64, slots_bytes(run))),
        Op::Read => Some((0, pattern::tape_bytes(run.size))),
    }
}
