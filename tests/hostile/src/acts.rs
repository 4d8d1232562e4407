//! Hostile programs. Each prints a line when it is ready, and acts until it is killed.

mod descriptors;
mod load;
mod memory;
mod misbehavior;
mod objects;
mod traffic;

pub(crate) use self::objects::with_queues;

use std::io::{self, Read as _, Write as _};

use anyhow::Result;
use clap::ValueEnum;

use crate::{actor::ActArguments, process::become_user};

/// Acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Pass sockets that linger, more than a message may have.
    LingerTruncated,
    /// Leave sockets that linger in the queue of a session that ends.
    LingerQueued,
    /// Leave sockets that linger in a completion channel.
    LingerChannel,
    /// Have a long wait queue at the session's socket.
    WaitQueueSession,
    /// Have a long wait queue at a completion channel.
    WaitQueueChannel,
    /// Take as much memory of the daemon as queue pairs of the largest size have.
    LargeQueuePairs,
    /// Have peers write to memory that was never touched.
    UntouchedMemory,
    /// Send from many queue pairs.
    ManyQueuePairs,
    /// Send messages of 64 bytes.
    SmallMessages,
    /// Send messages of many bytes.
    HugeMessages,
    /// Have the peer read.
    PeerReads,
    /// Have the peer write from many queue pairs.
    PeerWrites,
    /// Have the peer write to memory that the kernel copies.
    ProxiedMemory,
    /// Have the peer use atomic operations.
    Atomics,
    /// Send, and reap no completion.
    NeverReaps,
    /// Post requests that fail.
    PostsErrors,
    /// Register and deregister memory.
    Registers,
    /// Post whole rings of shared receives.
    SharedRing,
    /// Ring all doorbells of many sessions.
    Doorbells,
    /// Ask the admin socket.
    Admin,
    /// Take all queue pairs.
    TakeQueuePairs,
    /// Take all places for sessions.
    TakeSessions,
    /// Leave replies with descriptors unread.
    UnreadReplies,
    /// Leave the last close of a large file to the daemon.
    LargeFile,
    /// Have calls wait in many sessions.
    Calls,
    /// Connect many queue pairs to one peer.
    IdleQueuePairs,
    /// Have address handles to many hosts that are not there.
    AbsentHosts,
    /// Open the device by the client library.
    Hello,
    /// Commit faults.
    Faults,
    /// Punch holes in memory that is written to.
    Holes,
    /// Punch small holes in the same way, in one session after the other.
    ShortStalls,
    /// Make each call in each wrong way.
    Scripted,
    /// Send random messages while others scribble on shared memory.
    Misbehave,
    /// Create, use and destroy objects at random.
    RandomLife,
}

/// Acts in this process.
pub(crate) fn act(arguments: &ActArguments) -> Result<()> {
    if arguments.role != Role::Hello {
        become_user(arguments.uid, arguments.gid)?;
    }
    match arguments.role {
        Role::LingerTruncated => descriptors::linger_truncated(arguments),
        Role::LingerQueued => descriptors::linger_queued(arguments),
        Role::LingerChannel => descriptors::linger_channel(arguments),
        Role::WaitQueueSession => descriptors::wait_queue_session(arguments),
        Role::WaitQueueChannel => descriptors::wait_queue_channel(arguments),
        Role::UnreadReplies => descriptors::unread_replies(arguments),
        Role::LargeFile => descriptors::large_file(arguments),
        Role::LargeQueuePairs => objects::large_queue_pairs(arguments),
        Role::TakeQueuePairs => objects::take_queue_pairs(arguments),
        Role::TakeSessions => objects::take_sessions(arguments),
        Role::IdleQueuePairs => objects::idle_queue_pairs(arguments),
        Role::AbsentHosts => objects::absent_hosts(arguments),
        Role::Hello => objects::hello(),
        Role::Faults => objects::faults(arguments),
        Role::Admin => objects::ask_admin(arguments),
        Role::UntouchedMemory => memory::untouched(arguments),
        Role::Holes => memory::holes(arguments),
        Role::ShortStalls => memory::short_stalls(arguments),
        Role::ManyQueuePairs => traffic::many_queue_pairs(arguments),
        Role::SmallMessages => traffic::small_messages(arguments),
        Role::HugeMessages => traffic::huge_messages(arguments),
        Role::PeerReads => traffic::peer_reads(arguments),
        Role::PeerWrites => traffic::peer_writes(arguments),
        Role::ProxiedMemory => traffic::proxied_memory(arguments),
        Role::Atomics => traffic::atomics(arguments),
        Role::NeverReaps => traffic::never_reaps(arguments),
        Role::PostsErrors => traffic::posts_errors(arguments),
        Role::Registers => traffic::registers(arguments),
        Role::SharedRing => load::shared_ring(arguments),
        Role::Doorbells => load::doorbells(arguments),
        Role::Calls => load::calls(arguments),
        Role::Scripted => misbehavior::scripted(arguments),
        Role::Misbehave => misbehavior::misbehave(arguments),
        Role::RandomLife => misbehavior::random_life(arguments),
    }
}

/// Prints a line for the runner.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits until the runner closes the pipe.
pub(crate) fn wait() -> Result<()> {
    let mut rest = Vec::new();
    io::stdin().lock().read_to_end(&mut rest)?;
    Ok(())
}
