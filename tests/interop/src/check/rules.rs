//! Shared by all checks of rules: a broken rule, how it is noted, and how much time a side has.

use std::fmt;

use crate::trace::Seen;

/// How long a side may take to look at frames that have arrived, by `Side`. A machine that has
/// other work to do lets us run half a second late; an action of a guest after this long is due to
/// its timer, and that is worth a line.
pub(super) const SLACK_NS: [u64; 2] = [2_000_000_000, 400_000_000];

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The rule, as `docs/interop.md` names it.
    pub(crate) rule: &'static str,
    /// The frame's number in the capture.
    pub(crate) frame: usize,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (frame {}): {}", self.rule, self.frame, self.what)
    }
}

/// Results of a check, and the amount checked.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// Frames that the side sent.
    pub(crate) sent: usize,
    /// Of these, on connections that cannot be told apart, so that only each frame by itself was
    /// looked at.
    pub(crate) unrelated: usize,
}

impl Findings {
    pub(super) fn add(&mut self, rule: &'static str, frame: &Seen, what: impl Into<String>) {
        self.violations.push(Violation { rule, frame: frame.number, what: what.into() });
    }
}
