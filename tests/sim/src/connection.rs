//! A connection between the two hosts, and the state of either end, as known from outside.

use crate::{
    leaver::{Leaver, Left},
    reuse::Told,
    settings::Settings,
    stream::{Receive, Receives, Stream},
};

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qpn: u32,
    /// Its requests.
    pub(crate) stream: Stream,
    pub(crate) receives: Receives,
    /// It takes receives from its host's shared queue instead; the one that it has; it was told
    /// that it takes no more.
    pub(crate) is_shared: bool,
    pub(crate) taken: Option<Receive>,
    pub(crate) last_wqe: bool,
    /// Where its next WRITE and READ put their bytes.
    pub(crate) write_at: u32,
    pub(crate) read_at: u32,
    /// The id of the last message that reads back.
    pub(crate) back_until: u64,
    /// The id behind that of the last message that makes a key invalid.
    pub(crate) key_until: u64,
    /// The same, of the own key.
    pub(crate) own_key_until: u64,
    /// It has failed, or may have: flushed work is no surprise.
    pub(crate) may_fail: bool,
    /// Of memory that is used again.
    pub(crate) told: Told,
    /// It drains its send queue, and does so when this many were posted.
    pub(crate) drain: Drain,
    pub(crate) drain_after: u64,
    /// It was ended from outside.
    pub(crate) ended: bool,
    /// Something reached it that it must refuse, or may have: it fails as a responder.
    pub(crate) refuses: bool,
    /// A send of it did not succeed: none does any more.
    pub(crate) send_failed: bool,
    /// Its application knows that it has failed.
    pub(crate) failed: bool,
    /// Its endpoint went away.
    pub(crate) gone: bool,
    /// Its program moved its queue pair to the error state: as it is left behind when it is
    /// removed there.
    pub(crate) ending: Option<Left>,
    /// Its program left: its queue pair was removed in RTS, or in the error state of its program.
    pub(crate) left: Option<Left>,
    /// Its queue pair was removed otherwise, or reset, and all answers that it owed have left.
    pub(crate) is_silent: bool,
    /// Until this moment it is in RTR: it takes requests, and sends none.
    pub(crate) rts_at: u64,
    pub(crate) ready: bool,
    /// When it went through RESET to begin this life.
    pub(crate) reset_at: Option<u64>,
    /// Since when it doubts answers and requests from the port of a past life.
    pub(crate) doubts_since: [Option<u64>; 2],
    /// It posts sends again at this moment: its frames have no answer, or its application waits for
    /// something else.
    pub(crate) send_at: u64,
    /// When it posts receives again, if it lacks some.
    pub(crate) receive_at: u64,
}

/// Where an end is between SQD and RTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Drain {
    /// In RTS.
    #[default]
    No,
    /// Work that was begun goes on to its end, since this moment.
    Draining { since: u64 },
    /// All that was begun is done; on to RTS at this moment.
    Drained { until: u64 },
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Work is posted.
    Open,
    /// No new work; the present work comes to its end.
    Closing { since: u64 },
    /// Both ends flush.
    Flushing { since: u64 },
    /// Not there until this moment.
    Closed { until: u64 },
}

/// How a connection's next life begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebirth {
    /// Its queue pairs go through RESET.
    Reset,
    /// Others are made under the same numbers.
    SameNumbers,
    NewNumbers,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) slot: usize,
    /// Its number among all lives of all connections, and the first PSNs of its requests.
    pub(crate) life: u32,
    pub(crate) psns: [u32; 2],
    /// How the next one in its slot begins.
    pub(crate) rebirth: Rebirth,
    pub(crate) settings: Settings,
    pub(crate) ends: [End; 2],
    pub(crate) phase: Phase,
    /// It has another MTU than the one before it in its slot.
    pub(crate) mtu_changed: bool,
    /// When the last of its frames under way arrives, or something else of it happened.
    pub(crate) quiet_from: u64,
    /// Frames that it still has, if it is to end by itself.
    pub(crate) frames_left: u64,
    /// Its end that leaves.
    pub(crate) leaver: Option<Leaver>,
}

impl End {
    /// A request of the peer may have been refused.
    pub(crate) fn on_refusable(&mut self, peer: &Stream) {
        self.may_fail |= peer.refusal_arrived;
        self.refuses |= peer.refusal_arrived;
    }

    pub(crate) fn new(qpn: u32, is_shared: bool, stream: Stream) -> Self {
        Self {
            qpn,
            stream,
            receives: Receives::default(),
            is_shared,
            taken: None,
            last_wqe: false,
            write_at: 0,
            read_at: 0,
            back_until: 0,
            key_until: 0,
            own_key_until: 0,
            may_fail: false,
            told: Told::default(),
            drain: Drain::No,
            drain_after: u64::MAX,
            ended: false,
            refuses: false,
            send_failed: false,
            failed: false,
            gone: false,
            ending: None,
            left: None,
            is_silent: false,
            rts_at: 0,
            ready: true,
            reset_at: None,
            doubts_since: [None; 2],
            send_at: 0,
            receive_at: 0,
        }
    }
}
