//! Why a call is refused, as the client is told.

use nix::errno::Errno;
use roced_abi::control::{Refusal, limit};
use roced_memory::quota::QuotaExceeded;
use roced_transport::reject::Reject;

use crate::{
    accounts::ledger::LimitReached,
    worker::{command, mailbox::CallError},
};

/// A refusal with its two numbers of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    pub(crate) detail: [u64; 2],
}

impl Refused {
    pub(crate) const fn plain(why: Refusal) -> Self {
        Self { why, detail: [0; 2] }
    }

    pub(crate) fn with(why: Refusal, first: impl Into<u64>, second: impl Into<u64>) -> Self {
        Self { why, detail: [first.into(), second.into()] }
    }

    /// A limit of the config is reached.
    pub(crate) fn limit(limit: impl Into<u64>) -> Self {
        Self::with(Refusal::Limit, limit, limit::CONFIG)
    }

    /// A limit is reached that is not of the config: `which` is one of [`limit`].
    pub(crate) fn limit_of(which: u64, limit: u32) -> Self {
        Self::with(Refusal::Limit, limit, which)
    }

    /// Field number `place` of the call's request, from 0, cannot be `value`.
    pub(crate) fn argument(place: u64, value: impl Into<u64>) -> Self {
        Self::with(Refusal::InvalidArgument, place, value)
    }

    pub(crate) fn no_object(number: u32) -> Self {
        Self::with(Refusal::NoSuchObject, number, 0u64)
    }

    /// Error of the client for a worker's refusal; the client reached `limit` if the worker has no
    /// room.
    pub(crate) fn by_worker(why: command::CommandRefused, limit: u64) -> Self {
        use command::CommandRefused as Worker;
        match why {
            Worker::Rejected(Reject::InvalidState { from, to }) => Self::with(Refusal::InvalidState, from, to),
            Worker::Rejected(Reject::InvalidMask { missing, excess }) => {
                Self::with(Refusal::InvalidMask, missing, excess)
            }
            Worker::Rejected(Reject::InvalidAttribute { attribute, value }) => {
                Self::with(Refusal::InvalidArgument, attribute, value)
            }
            Worker::Rejected(Reject::NoSuchQp(qpn)) => Self::no_object(qpn.get()),
            Worker::Rejected(Reject::NoSuchSrq(srqn)) => Self::no_object(srqn.get()),
            Worker::Rejected(Reject::NoRoom) | Worker::NoRoom => Self::limit(limit),
            Worker::NoSuchObject => Self::plain(Refusal::NoSuchObject),
            Worker::InUse => Self::plain(Refusal::InUse),
            Worker::Kernel(errno) => errno.into(),
        }
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::with(Refusal::Memory, errno as u32, 0u64)
    }
}

impl From<QuotaExceeded> for Refused {
    fn from(exceeded: QuotaExceeded) -> Self {
        match exceeded {
            QuotaExceeded::OfAccount(most) => Self::limit_of(limit::MAPPINGS_OF_ACCOUNT, most),
            QuotaExceeded::OfAll(most) => Self::limit_of(limit::MAPPINGS, most),
            QuotaExceeded::Stalled(millis) => Self::limit_of(limit::STALLS, millis),
        }
    }
}

impl From<LimitReached> for Refused {
    fn from(reached: LimitReached) -> Self {
        Self { why: Refusal::Limit, detail: reached.detail() }
    }
}

impl From<CallError> for Refused {
    fn from(_no_answer: CallError) -> Self {
        Self::plain(Refusal::WorkerTimeout)
    }
}
