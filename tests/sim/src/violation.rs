//! What a checker says when a rule was broken.

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The checker's name: see docs/simulator.md.
    pub checker: &'static str,
    /// What happened, with the numbers.
    pub text: String,
}

/// What a check gives.
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
