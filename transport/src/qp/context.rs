//! The surroundings of a queue pair in one call, and the result of its transmission.

use crate::{ah::AhTable, clock::Nanos, mr::MrTable, reject::DropReason, srq::Srqs};

/// State outside the queue pair that one call may access.
pub(crate) struct Context<'t, A> {
    pub(crate) now: Nanos,
    pub(crate) mrs: &'t MrTable,
    pub(crate) ahs: &'t AhTable,
    pub(crate) srqs: &'t mut Srqs,
    pub(crate) app: &'t mut A,
}

/// Result of one call of [`Qp::transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmission {
    /// Work was done; more may be pending.
    Progress,
    /// As [`Self::Progress`]: only an acknowledgement was sent.
    Acknowledged,
    /// As [`Self::Progress`]: an answer that can no longer be given was dropped, for this reason.
    Dropped(DropReason),
    /// Nothing to do until the next event.
    Idle,
    /// The wire has no room.
    Full,
}

impl Transmission {
    /// The call did work of any kind.
    pub(crate) const fn is_progress(self) -> bool {
        matches!(self, Self::Progress | Self::Acknowledged | Self::Dropped(_))
    }
}
