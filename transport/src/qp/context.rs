//! The surroundings of a queue pair in one call, and the result of its transmission.

use crate::{ah::AhTable, clock::Nanos, mr::MrTable, reject::DropReason, srq::Srqs};

/// What one call may touch besides the queue pair.
pub(crate) struct Context<'t, A> {
    pub(crate) now: Nanos,
    pub(crate) mrs: &'t MrTable,
    pub(crate) ahs: &'t AhTable,
    pub(crate) srqs: &'t mut Srqs,
    pub(crate) app: &'t mut A,
}

/// How a visit of [`Qp::transmit`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmission {
    /// Something was done; there may be more.
    Progress,
    /// As above: an acknowledgement was sent, and nothing else.
    Acknowledged,
    /// As [`Self::Progress`]: an answer that cannot be given any more was dropped, for this reason.
    Dropped(DropReason),
    /// Nothing to do until something happens.
    Idle,
    /// The wire has no room.
    Full,
}

impl Transmission {
    /// Something was done, whatever it was.
    pub(crate) const fn is_progress(self) -> bool {
        matches!(self, Self::Progress | Self::Acknowledged | Self::Dropped(_))
    }
}
