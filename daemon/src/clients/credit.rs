//! How long the clients of a user may have workers wait for their memory.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What may be used at once. A guess: some pages from a disk.
const MOST: Duration = Duration::from_millis(200);

/// One part in so many of the time that passes is given back: a twentieth of a worker. A guess, for a program whose threads map memory all the time
/// keeps its own address space locked now and then.
const SHARE: u32 = 20;

/// By user. Those with all their credit are forgotten.
static CREDITS: Mutex<BTreeMap<u32, Arc<Credit>>> = Mutex::new(BTreeMap::new());

/// Time that a user's clients may have others wait.
#[derive(Debug)]
pub(crate) struct Credit(Mutex<Account>);

#[derive(Debug)]
struct Account {
    left: Duration,
    since: Instant,
}

impl Account {
    fn at(&mut self, now: Instant) -> &mut Duration {
        self.left = MOST.min(self.left + now.saturating_duration_since(self.since) / SHARE);
        self.since = now;
        &mut self.left
    }
}

impl Credit {
    fn new(now: Instant) -> Self {
        Self(Mutex::new(Account { left: MOST, since: now }))
    }

    /// Uses up `time`. False when there was not as much.
    pub(crate) fn spend(&self, time: Duration) -> bool {
        // Most accesses do not block; then nothing is looked at.
        time.is_zero() || self.spend_at(time, Instant::now())
    }

    fn spend_at(&self, time: Duration, now: Instant) -> bool {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = account.at(now);
        let enough = *left >= time;
        *left = left.saturating_sub(time);
        enough
    }

    fn left_at(&self, now: Instant) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).at(now)
    }
}

/// The credit of user `uid`, if half of it is left at least.
pub(crate) fn credit_of(uid: u32) -> Option<Arc<Credit>> {
    let now = Instant::now();
    let mut credits = CREDITS.lock().unwrap_or_else(PoisonError::into_inner);
    credits.retain(|_, credit| Arc::strong_count(credit) > 1 || credit.left_at(now) < MOST);
    let credit = credits.entry(uid).or_insert_with(|| Arc::new(Credit::new(now)));
    (credit.left_at(now) >= MOST / 2).then(|| Arc::clone(credit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_others_wait_gets_less_and_less() {
        let begin = Instant::now();
        let credit = Credit::new(begin);
        assert!(credit.spend_at(MOST, begin) && !credit.spend_at(Duration::from_micros(1), begin));
        let later = begin + Duration::from_secs(1);
        assert!(credit.spend_at(Duration::from_secs(1) / SHARE, later), "its share of a second");
        assert!(!credit.spend_at(Duration::from_millis(1), later));
        assert_eq!(credit.left_at(later + Duration::from_secs(1000)), MOST);
    }

    #[test]
    fn a_new_session_does_not_bring_new_credit() {
        // A user of this test's own.
        let uid = 4_000_000_010;
        let credit = credit_of(uid).expect("all of it");
        assert!(credit.spend(MOST / 4 * 3));
        drop(credit);
        assert!(credit_of(uid).is_none());
        assert!(credit_of(uid + 1).is_some(), "another user's is another");
    }
}
