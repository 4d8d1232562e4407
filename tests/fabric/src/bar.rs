//! Bars: values of a case that must be reached.

use serde::Serialize;

use crate::outcome::RunOutcome;

/// Name of the bars about connections that fail.
const FAILURES: &str = "connections that failed";

/// Bound of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// A value, of the results of the runs of a case.
pub(crate) type BarValue = Box<dyn Fn(&[RunOutcome]) -> f64 + Sync>;

/// A bar of a case.
pub(crate) struct BarSpec {
    pub(crate) name: &'static str,
    pub(crate) goal: Goal,
    pub(crate) value: BarValue,
}

impl BarSpec {
    /// A value of the only run, or of the first.
    pub(crate) fn new(name: &'static str, goal: Goal, value: impl Fn(&RunOutcome) -> f64 + Sync + 'static) -> Self {
        Self { name, goal, value: Box::new(move |outcomes| value(&outcomes[0])) }
    }

    /// No connection of the only run, or of the first, fails.
    pub(crate) fn no_failures() -> Self {
        Self::new(FAILURES, Goal::AtMost(0.0), |outcome| outcome.failures() as f64)
    }

    /// No connection of any run fails.
    pub(crate) fn no_failures_in_any_run() -> Self {
        let failures = |outcomes: &[RunOutcome]| outcomes.iter().map(|outcome| outcome.failures() as f64).sum();
        Self { name: FAILURES, goal: Goal::AtMost(0.0), value: Box::new(failures) }
    }
}

/// A bar with its value: the worst of all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// Case and value, such as `incast 16: utilization`.
    pub name: String,
    /// The worst value of all seeds.
    pub value: f64,
    /// The least or the most that the value may be, such as `>= 0.97`.
    pub goal: String,
    /// The value is within the goal.
    pub met: bool,
}

impl Goal {
    /// The worse of two values.
    pub(crate) fn worse(self, a: f64, b: f64) -> f64 {
        match self {
            Self::AtLeast(_) => a.min(b),
            Self::AtMost(_) => a.max(b),
        }
    }

    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}
