//! Disposition of SIGCHLD. A parent may have started this program with SIGCHLD ignored; then no
//! child can be waited for.
#![expect(unsafe_code, reason = "dispositions of signals")]

use nix::{
    Result,
    sys::signal::{SigHandler, Signal, signal},
};

/// The disposition before [`ChildSignal::take`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildSignal(SigHandler);

impl ChildSignal {
    /// Sets the default disposition, so that children can be waited for.
    pub(crate) fn take() -> Result<Self> {
        // SAFETY: no handler is set, and a program that has just started has none.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(Self)
    }

    /// Restores the disposition.
    pub(crate) fn give_back(self) -> Result<()> {
        // SAFETY: as above.
        unsafe { signal(Signal::SIGCHLD, self.0) }.map(drop)
    }
}
