//! Report of a checker about a broken rule.

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The checker's name: see docs/simulator.md.
    pub checker: &'static str,
    /// The event, with its numbers.
    pub text: String,
}

/// Result of a check.
pub(crate) type Checked = Result<(), Violation>;

/// Fails the check of that name unless the condition holds.
macro_rules! demand {
    ($condition:expr, $checker:literal, $($text:tt)+) => {
        if !$condition {
            return Err($crate::violation::Violation { checker: $checker, text: format!($($text)+) });
        }
    };
}

pub(crate) use demand;
