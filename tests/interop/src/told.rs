//! Result of a scenario's programs, as both ends told it.

use crate::{expect::Quirk, parting::Parting};

/// Counters of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Notifications of congestion that roced sent.
    pub(crate) notifications: u64,
    /// Packets that rxe received.
    pub(crate) packets: u64,
}

/// Output of both ends.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) client: String,
    pub(crate) server: String,
    /// Frames that were dropped, duplicated, corrupted.
    pub(crate) harmed: [u64; 3],
    /// Packets that the switch marked.
    pub(crate) marked: u64,
    /// In scenarios of marks.
    pub(crate) counted: Option<Counted>,
    /// Known deviations.
    pub(crate) quirks: Vec<Quirk>,
    /// One end waited without success for an answer that the other, which ended well, no longer
    /// repeats: to be shown by the captures.
    pub(crate) parting: Option<Parting>,
    /// When the guest's power failed, since the epoch, where queue pair numbers return.
    pub(crate) power_failed_ns: Option<u64>,
}
