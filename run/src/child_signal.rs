//! What happens when a child ends. Whoever started this program may have said that nobody wants to know, and then no child could be waited for.
#![expect(unsafe_code, reason = "dispositions of signals")]

use nix::{
    Result,
    sys::signal::{SigHandler, Signal, signal},
};

/// What was before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildSignal(SigHandler);

impl ChildSignal {
    /// From now on children can be waited for.
    pub(crate) fn take() -> Result<Self> {
        // SAFETY: no handler is set, nor was there one in a program that has just begun.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(Self)
    }

    /// As it was.
    pub(crate) fn give_back(self) -> Result<()> {
        // SAFETY: as above.
        unsafe { signal(Signal::SIGCHLD, self.0) }.map(drop)
    }
}
