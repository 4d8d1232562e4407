//! The rate of control calls of each account: a token bucket.
//!
//! A call counts as one, and one that takes long as more: as many as [`CALL_TIME`] fits into it. So
//! at the rate of the default an account can use all of the control thread's time that others
//! leave, and with a tenth of that rate a tenth of its time. Time counts that the control thread
//! computes: what it waits for a core, or for a worker, is not the account's doing ([`CallClock`]).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use roced_types::AccountId;

/// A call that takes longer counts as more than one. Most take a part of it; making a queue pair
/// takes some ten times as long.
const CALL_TIME: Duration = Duration::from_micros(20);

/// A call counts as so many at most: as an account has at rest, with any rate.
const CALLS_AT_REST: i64 = 64;

/// An account that has not called for a while has the calls of that time, but [`CALLS_AT_REST`] at
/// least.
const BURST: Duration = Duration::from_millis(100);

/// An account that is throttled has the calls of that time, but one at least, when it is served
/// again: the control thread turns to it no more often than that. A guess: others notice a few
/// calls in between, and the account no more than it does of its rate.
pub(crate) const PAUSE: Duration = Duration::from_millis(4);

/// Parts of a call in which it is counted: so many that a nanosecond is worth one at the rate of
/// one call a second.
const PARTS: i64 = 1_000_000_000;

/// Accounts beyond which those are forgotten that are at rest; a guess.
const REMEMBERED: usize = 1024;

/// The rates of all accounts.
#[derive(Debug, Default)]
pub(crate) struct CallRates(BTreeMap<AccountId, CallBucket>);

/// Measures how long calls compute that are carried out one after the other. The clock of the
/// thread is a system call, and is not read after short ones: these compute no longer than they
/// last.
#[derive(Debug)]
pub(crate) struct CallClock {
    now: Instant,
    computed: Duration,
    /// Time of the short calls since `computed` was read.
    short: Duration,
}

impl CallClock {
    pub(crate) fn start() -> Self {
        Self { now: Instant::now(), computed: computed(), short: Duration::ZERO }
    }

    /// When the last call ended.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// How long the call took that ends now.
    pub(crate) fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let passed = now - self.now;
        self.now = now;
        if passed < CALL_TIME {
            self.short += passed;
            return passed;
        }
        let computed = computed();
        let took = passed.min((computed - self.computed).saturating_sub(self.short));
        (self.computed, self.short) = (computed, Duration::ZERO);
        took
    }
}

fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of every Linux").into()
}

/// Calls that an account may make at once.
#[derive(Clone, Copy, Debug)]
struct CallBucket {
    per_second: u32,
    /// Of [`PARTS`]; a debt if the last call counted as more than there was.
    left: i64,
    at: Instant,
}

impl CallBucket {
    fn whole(per_second: u32, at: Instant) -> Self {
        Self { per_second, left: burst(per_second), at }
    }

    fn fill(&mut self, now: Instant) {
        let passed = nanos(now.saturating_duration_since(self.at));
        let more = passed.saturating_mul(self.per_second.into());
        self.left = self.left.saturating_add(more).min(burst(self.per_second));
        self.at = self.at.max(now);
    }
}

/// Parts of calls that an account at rest has.
fn burst(per_second: u32) -> i64 {
    within(BURST, per_second).max(CALLS_AT_REST * PARTS)
}

/// Parts of calls that come in `time`.
fn within(time: Duration, per_second: u32) -> i64 {
    nanos(time).saturating_mul(per_second.into())
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl CallRates {
    /// `account`, which has this rate, may call now.
    pub(crate) fn admits(&mut self, account: AccountId, per_second: u32, now: Instant) -> bool {
        self.filled(account, per_second, now).left > 0
    }

    /// The control thread was busy for `account` for that long, with a call or with a part of one.
    pub(crate) fn charge(&mut self, account: AccountId, took: Duration, is_call: bool) {
        let Some(bucket) = self.0.get_mut(&account) else { return };
        let parts = nanos(took).saturating_mul(PARTS / nanos(CALL_TIME));
        bucket.left -= parts.clamp(if is_call { PARTS } else { 0 }, CALLS_AT_REST * PARTS);
    }

    /// When `account` is to be served again that is throttled now.
    pub(crate) fn due(&mut self, account: AccountId, per_second: u32, now: Instant) -> Instant {
        let missing = within(PAUSE, per_second).max(PARTS) - self.filled(account, per_second, now).left;
        let wait = Duration::from_nanos((missing.max(0) as u64).div_ceil(per_second.max(1).into()));
        now + wait.max(PAUSE)
    }

    /// Calls that `account` may make now, one at least.
    pub(crate) fn calls(&mut self, account: AccountId, per_second: u32, now: Instant) -> usize {
        let left = self.filled(account, per_second, now).left;
        usize::try_from(left / PARTS).unwrap_or(0).max(1)
    }

    fn filled(&mut self, account: AccountId, per_second: u32, now: Instant) -> &mut CallBucket {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&account) {
            self.0.retain(|_, bucket| {
                bucket.fill(now);
                bucket.left < burst(bucket.per_second)
            });
        }
        let bucket = self.0.entry(account).or_insert_with(|| CallBucket::whole(per_second, now));
        bucket.fill(now);
        bucket.per_second = per_second;
        bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AccountId = AccountId(1000);
    const RATE: u32 = 5000;

    /// The calls of an account in `time`, each of which takes `took`, if it calls all the time.
    fn calls_in(rates: &mut CallRates, rate: u32, begin: Instant, time: Duration, took: Duration) -> u32 {
        let (mut now, mut calls) = (begin, 0);
        while now < begin + time {
            if rates.admits(ONE, rate, now) {
                now += took;
                rates.charge(ONE, took, true);
                calls += 1;
            } else {
                let due = rates.due(ONE, rate, now);
                assert!(due >= now + PAUSE, "the control thread does something else meanwhile");
                now = due;
                assert!(rates.admits(ONE, rate, now), "it is served when it is due");
                assert!(rates.calls(ONE, rate, now) >= 1);
            }
        }
        calls
    }

    #[test]
    fn an_account_has_its_burst_and_then_its_rate() {
        for (rate, burst) in [(1, 64), (100, 64), (RATE, 500), (1_000_000, 100_000)] {
            let (mut rates, begin) = (CallRates::default(), Instant::now());
            let seconds = if rate == 1 { 1000 } else { 2 };
            let calls = calls_in(&mut rates, rate, begin, Duration::from_secs(seconds), Duration::from_nanos(100));
            let most = burst + rate * seconds as u32;
            assert!((most * 99 / 100..=most + 1).contains(&calls), "{calls} of {most}");
        }
    }

    #[test]
    fn a_call_counts_as_more_by_its_time_and_as_a_bounded_number() {
        let count = |took: Duration| {
            let (mut rates, now) = (CallRates::default(), Instant::now());
            let before = rates.filled(ONE, RATE, now).left;
            rates.charge(ONE, took, true);
            (before - rates.filled(ONE, RATE, now).left) as f64 / PARTS as f64
        };
        for (micros, calls) in [(0, 1.0), (1, 1.0), (20, 1.0), (30, 1.5), (1000, 50.0), (1_000_000, 64.0)] {
            let counted = count(Duration::from_micros(micros));
            assert!((counted - calls).abs() < 1e-6, "{micros} us: {counted}");
        }
        let (mut rates, now) = (CallRates::default(), Instant::now());
        let before = rates.filled(ONE, RATE, now).left;
        rates.charge(ONE, Duration::from_micros(2), false);
        assert_eq!(before - rates.filled(ONE, RATE, now).left, PARTS / 10, "a part of a call");
    }

    /// Calls of a fifth of a millisecond, at the rate of the default and at a tenth of it.
    #[test]
    fn time_alone_holds_back_no_account_at_the_rate_of_the_default() {
        let (second, took) = (Duration::from_secs(1), Duration::from_micros(200));
        let calls = |rate| {
            let (mut rates, begin) = (CallRates::default(), Instant::now());
            // The burst is used up before.
            calls_in(&mut rates, rate, begin, second, took);
            calls_in(&mut rates, rate, begin + 2 * second, second, took)
        };
        assert_eq!(calls(50_000), 5000);
        let tenth = calls(5000);
        assert!((490..=560).contains(&tenth), "{tenth}");
    }

    #[test]
    fn a_call_takes_the_time_that_its_thread_computes() {
        let mut clock = CallClock::start();
        std::thread::sleep(Duration::from_millis(20));
        let slept = clock.lap();
        assert!(slept < Duration::from_millis(5), "{slept:?}");
        let begin = computed();
        while computed() < begin + Duration::from_millis(5) {}
        let worked = clock.lap();
        assert!(worked >= Duration::from_millis(5) && worked < Duration::from_millis(10), "{worked:?}");
    }

    #[test]
    fn accounts_have_rates_of_their_own_and_a_change_of_the_rate_counts() {
        let (mut rates, now) = (CallRates::default(), Instant::now());
        while rates.admits(ONE, RATE, now) {
            rates.charge(ONE, CALL_TIME, true);
        }
        assert!(rates.admits(AccountId(1), RATE, now));
        let due = rates.due(ONE, 10, now);
        assert!(due > now + Duration::from_millis(99), "a call at the new rate");
        assert!(rates.admits(ONE, 10, due));
    }

    #[test]
    fn accounts_at_rest_are_forgotten_and_others_are_not() {
        let (mut rates, now) = (CallRates::default(), Instant::now());
        rates.admits(ONE, RATE, now);
        rates.charge(ONE, 100 * CALL_TIME, true);
        for account in 0..2 * REMEMBERED as u32 {
            rates.admits(AccountId(10_000 + account), RATE, now);
        }
        assert!(rates.0.len() <= REMEMBERED + 1 && rates.0.contains_key(&ONE), "{}", rates.0.len());
    }
}
