//! Identities of poll iterations.

use roced_types::WorkerId;

/// Identity of a poll iteration of a worker, unique among all workers, or of a look of the control
/// thread at memory of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollId(u64);

impl PollId {
    /// Bits of the number of the poll iteration; the number of the worker is above. The daemon ends
    /// before they do.
    const NUMBER_BITS: u32 = 48;

    /// The first poll iteration of `worker`.
    pub const fn first(worker: WorkerId) -> Self {
        Self((worker.0 as u64 + 1) << Self::NUMBER_BITS)
    }

    /// Look `number` of the control thread.
    pub(crate) const fn of_control(number: u64) -> Self {
        Self(number)
    }

    /// The next poll iteration of the same worker.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// A number of the worker, or of the control thread.
    pub(crate) const fn worker(self) -> u64 {
        self.0 >> Self::NUMBER_BITS
    }
}
