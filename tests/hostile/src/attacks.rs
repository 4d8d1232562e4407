//! All attacks, each by its name.

mod accounts;
mod control_thread;
mod endurance;
mod privileges;
mod wire;
mod workers;

use anyhow::Result;

use crate::{finding::Finding, stage::Stage};

/// An attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    /// Name, for `--only`.
    pub(crate) name: &'static str,
    /// Description.
    pub(crate) about: &'static str,
    /// Makes the attack and measures.
    pub(crate) run: fn(&Stage) -> Result<Vec<Finding>>,
}

/// Every attack, in the order in which they run.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "blind-injection-rc",
        about: "forged SENDs with the peer's addresses into a reliable connection",
        run: wire::blind_injection_rc,
    },
    Attack {
        name: "blind-injection-uc",
        about: "forged SENDs with the peer's addresses into an unreliable connection",
        run: wire::blind_injection_uc,
    },
    Attack {
        name: "blind-injection-ud",
        about: "forged datagrams with the peer's addresses",
        run: wire::blind_injection_ud,
    },
    Attack {
        name: "blind-answers",
        about: "forged ACKs, NAKs, WRITEs and parts of messages against a reliable connection",
        run: wire::blind_answers,
    },
    Attack {
        name: "guessed-numbers",
        about: "queue pair numbers of new sessions, as a hostile peer guesses them",
        run: wire::guessed_numbers,
    },
    Attack {
        name: "own-address-from-wire",
        about: "frames from the wire whose source is this host's own address",
        run: wire::own_address,
    },
    Attack {
        name: "lingering-descriptors",
        about: "descriptors with a slow close in cut messages, dead sockets and channels",
        run: control_thread::lingering_descriptors,
    },
    Attack {
        name: "long-wait-queues",
        about: "many epoll entries at a session's socket and at a completion channel",
        run: control_thread::long_wait_queues,
    },
    Attack {
        name: "large-file-close",
        about: "the last close of a large file in memory",
        run: control_thread::large_file_close,
    },
    Attack {
        name: "unread-replies",
        about: "replies with descriptors that are left in sockets",
        run: control_thread::unread_replies,
    },
    Attack { name: "pipelined-calls", about: "64 sessions with 16 calls each", run: control_thread::pipelined_calls },
    Attack {
        name: "neighbor-change",
        about: "another MAC address of the peer of thousands of queue pairs",
        run: control_thread::neighbor_change,
    },
    Attack {
        name: "restless-neighbor",
        about: "the peer of thousands of queue pairs changes its MAC address without end",
        run: control_thread::restless_neighbor,
    },
    Attack {
        name: "log-budget",
        about: "faults of one user beside a fault of another",
        run: control_thread::log_budget,
    },
    Attack {
        name: "many-queue-pairs",
        about: "256 queue pairs of one user beside one of another",
        run: workers::many_queue_pairs,
    },
    Attack {
        name: "aggressors",
        about: "a transfer beside one aggressor of each kind, of another user",
        run: workers::aggressors,
    },
    Attack { name: "shared-ring", about: "whole rings of shared receives", run: workers::shared_ring },
    Attack {
        name: "foreign-doorbells",
        about: "all doorbells of many sessions without queue pairs",
        run: workers::doorbells,
    },
    Attack { name: "punched-holes", about: "holes punched in memory that is written to", run: workers::holes },
    Attack {
        name: "short-stalls",
        about: "small holes punched in memory that is written to, in one session after the other",
        run: workers::short_stalls,
    },
    Attack {
        name: "private-memory",
        about: "queue pairs of the largest size, at the daemon's cost",
        run: accounts::private_memory,
    },
    Attack {
        name: "untouched-memory",
        about: "registered memory that the daemon touches first",
        run: accounts::untouched_memory,
    },
    Attack {
        name: "all-queue-pairs",
        about: "all queue pairs of a device by one user",
        run: accounts::all_queue_pairs,
    },
    Attack {
        name: "all-sessions",
        about: "all places for clients by two subordinate users of one owner",
        run: accounts::all_sessions,
    },
    Attack {
        name: "silent-neighbors",
        about: "address handles to many hosts that are not there",
        run: accounts::silent_neighbors,
    },
    Attack {
        name: "admin-socket",
        about: "questions of a member of the daemon's group to the admin socket",
        run: privileges::admin_socket,
    },
    Attack {
        name: "setuid-environment",
        about: "the socket in the environment of a setuid program",
        run: privileges::setuid_environment,
    },
    Attack { name: "sandbox", about: "privileges of the running daemon", run: privileges::sandbox },
    Attack {
        name: "misbehavior",
        about: "scripted and random misbehavior of clients, with scribbling",
        run: endurance::misbehavior,
    },
    Attack { name: "client-kills", about: "clients killed at random instants", run: endurance::client_kills },
    Attack { name: "daemon-kills", about: "the daemon killed beside its clients", run: endurance::daemon_kills },
];
