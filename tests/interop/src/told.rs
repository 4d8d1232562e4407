//! Result of a scenario's programs, as both ends told it.

use crate::{expect::Quirk, parting::Parting};

/// Output of both ends.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) client: String,
    pub(crate) server: String,
    /// Frames that were dropped, duplicated, corrupted.
    pub(crate) harmed: [u64; 3],
    /// Known deviations.
    pub(crate) quirks: Vec<Quirk>,
    /// One end waited without success for an answer that the other, which ended well, no longer
    /// repeats: to be shown by the captures.
    pub(crate) parting: Option<Parting>,
    /// When the guest's power failed, since the epoch, where queue pair numbers return.
    pub(crate) power_failed_ns: Option<u64>,
}
