//! Time, as the transport is told it. It never reads a clock.

use core::ops::{Add, Sub};

/// A moment or a span in nanoseconds of one monotonic clock, with any zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }
}

impl Add for Nanos {
    type Output = Self;

    /// Saturates: a deadline beyond the end of time is [`Nanos::NEVER`].
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    /// Saturates at zero.
    fn sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}
