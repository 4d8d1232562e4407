//! The ledger: objects and memory of each account, and room for others.
//!
//! Two rules decide about each object. An account has at most its limit in the config. And of a
//! pool that all accounts share (places for clients, queue pairs of a device) it has at most a
//! multiple of the free places: with a share of 75 percent three times as much. So one account gets
//! three quarters of an empty pool, the next one three quarters of the rest, and so on: each finds
//! room.
//!
//! The control thread alone takes from it. A [`Charge`] lasts as long as the object that it is for;
//! that of memory until a thread of the user's has unmapped it, or the client has received it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::sys::{
    resource::{Resource, getrlimit},
    sysinfo::sysinfo,
};
use roced_abi::control::limit::AccountResource;
use roced_report::AccountReport;
use roced_transport::turns::shared_rate::SharedRate;
use roced_types::{AccountId, DeviceId};

use super::access::RuleId;
use crate::config::{AccountLimits, RuleLimits};

/// Accounts without any object that are remembered for their refusals.
const REMEMBERED: usize = 1024;

const RESOURCES: usize = AccountResource::ALL.len();

/// A pool that accounts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedPool {
    /// One of the daemon.
    Daemon(AccountResource),
    /// One of a device.
    Device(AccountResource, DeviceId),
}

impl SharedPool {
    const fn resource(self) -> AccountResource {
        match self {
            Self::Daemon(resource) | Self::Device(resource, _) => resource,
        }
    }
}

/// Why an account gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// Of this.
    pub resource: AccountResource,
    /// It has this much, or as much as would be beyond its share.
    pub limit: u64,
    /// By its share of the rest that others leave, not by its limit.
    pub is_share: bool,
}

impl LimitReached {
    /// The numbers of a [`Refusal::Limit`](roced_abi::control::Refusal::Limit).
    pub const fn detail(self) -> [u64; 2] {
        [self.limit, if self.is_share { self.resource.share() } else { self.resource.of_account() }]
    }
}

/// The limits of an account, by resource; those that the config leaves open are of this system.
fn by_resource(limits: &AccountLimits) -> [u64; RESOURCES] {
    let AccountLimits { share_percent: _, clients, qps, cqs, channels, mrs, ahs, srqs, attachments, .. } = limits;
    let own = |limit: &Option<u32>| limit.map_or(u64::MAX, u64::from);
    let mut all = [0; RESOURCES];
    for (resource, limit) in [
        (AccountResource::Clients, own(clients)),
        (AccountResource::Qps, own(qps)),
        (AccountResource::Cqs, u64::from(*cqs)),
        (AccountResource::Channels, channels.map_or_else(eighth_of_open_files, u64::from)),
        (AccountResource::Mrs, own(mrs)),
        (AccountResource::Ahs, own(ahs)),
        (AccountResource::Srqs, own(srqs)),
        (AccountResource::Attachments, own(attachments)),
        (AccountResource::MappedMemory, limits.memory_mib.map_or_else(most_of_the_memory, |mib| mib << 20)),
        (AccountResource::DaemonMemory, limits.daemon_memory_mib << 20),
    ] {
        all[resource as usize] = limit;
    }
    all
}

/// Returns an eighth of the number of files that this process may have open.
pub fn eighth_of_open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(128, |(soft, _)| soft / 8)
}

/// Half of this host's memory, bytes: the part for the daemon's own, of all accounts.
pub fn half_of_the_memory() -> u64 {
    sysinfo().map_or(u64::MAX, |host| host.ram_total() / 2)
}

/// Three quarters of this host's memory, bytes.
fn most_of_the_memory() -> u64 {
    // A failure (no /proc) leaves the limits of each client.
    sysinfo().map_or(u64::MAX, |host| host.ram_total() / 4 * 3)
}

/// Counts objects and memory of accounts. Clones are the same.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<LedgerState>>);

#[derive(Debug)]
struct LedgerState {
    /// Of accounts without a rule.
    limits: [u64; RESOURCES],
    /// Of accounts with one.
    limits_by_rule: Vec<[u64; RESOURCES]>,
    rules: Vec<RuleLimits>,
    /// Calls a second of accounts without a rule.
    calls: u32,
    /// Their highest rate, Mbit/s.
    max_rate_mbit: Option<u32>,
    share_percent: u32,
    accounts: BTreeMap<AccountId, AccountUse>,
    pools: BTreeMap<SharedPool, PoolUse>,
}

#[derive(Debug, Default)]
struct AccountUse {
    /// Rule of its program that connected last.
    rule: Option<RuleId>,
    taken: [u64; RESOURCES],
    refused: [u64; RESOURCES],
    delayed_calls: u64,
    /// Highest rate of its frames to NICs, which its queue pairs share.
    send_rate: Arc<SharedRate>,
}

impl AccountUse {
    fn is_empty(&self) -> bool {
        self.taken.iter().all(|taken| *taken == 0)
    }

    /// Nothing is to be remembered of it.
    fn is_blank(&self) -> bool {
        let has_debt = !self.send_rate.is_unused();
        self.is_empty() && !has_debt && self.delayed_calls == 0 && self.refused.iter().all(|refused| *refused == 0)
    }
}

#[derive(Debug, Default)]
struct PoolUse {
    most: u64,
    all: u64,
    accounts: BTreeMap<AccountId, u64>,
}

impl PoolUse {
    fn of(&self, account: AccountId) -> u64 {
        self.accounts.get(&account).copied().unwrap_or(0)
    }

    /// The share of `account`, while others keep theirs.
    fn share_of(&self, account: AccountId, percent: u32) -> u64 {
        // Of `left`, which no other has, it takes x with x / percent = (left - x) / (100 -
        // percent).
        let left = self.most.saturating_sub(self.all - self.of(account));
        // A pool of a few places has one for each account.
        (left * u64::from(percent)).div_ceil(100)
    }
}

impl Ledger {
    /// An empty ledger with the limits of each account, those of the rules that some match, and the
    /// pools that they share with their sizes.
    pub fn new(
        limits: &AccountLimits,
        rules: Vec<RuleLimits>,
        pools: impl IntoIterator<Item = (SharedPool, u64)>,
    ) -> Self {
        let pools = pools.into_iter().map(|(pool, most)| (pool, PoolUse { most, ..PoolUse::default() }));
        let state = LedgerState {
            limits: by_resource(limits),
            limits_by_rule: rules.iter().map(|rule| by_resource(&rule.over(limits))).collect(),
            rules,
            calls: limits.control_calls_per_second,
            max_rate_mbit: limits.max_rate_mbit,
            share_percent: limits.share_percent,
            accounts: BTreeMap::new(),
            pools: pools.collect(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Sets other limits. Accounts with more than they allow keep all of it.
    pub fn set_limits(&self, limits: &AccountLimits) {
        let mut state = self.state();
        (state.limits, state.share_percent) = (by_resource(limits), limits.share_percent);
        (state.calls, state.max_rate_mbit) = (limits.control_calls_per_second, limits.max_rate_mbit);
        state.limits_by_rule = state.rules.iter().map(|rule| by_resource(&rule.over(limits))).collect();
        for usage in state.accounts.values() {
            usage.send_rate.set(state.send_rate_of(usage.rule));
        }
    }

    /// A program of `account` connects, and matches `rule`: its limits are the account's from now
    /// on.
    pub fn set_rule(&self, account: AccountId, rule: Option<RuleId>) {
        let mut state = self.state();
        if rule.is_some() || state.accounts.contains_key(&account) {
            let send_rate = state.send_rate_of(rule);
            let usage = state.accounts.entry(account).or_default();
            usage.rule = rule;
            usage.send_rate.set(send_rate);
        }
    }

    /// Highest rate of the frames of `account` to NICs, for another of its queue pairs.
    pub(crate) fn send_rate(&self, account: AccountId) -> Arc<SharedRate> {
        let mut state = self.state();
        let rule = state.accounts.get(&account).and_then(|usage| usage.rule);
        let send_rate = state.send_rate_of(rule);
        let usage = state.accounts.entry(account).or_default();
        usage.send_rate.set(send_rate);
        let shared = usage.send_rate.clone();
        state.forget_some();
        shared
    }

    /// Turns of programs that match `rule`, for each of those without.
    pub fn weight(&self, rule: Option<RuleId>) -> u8 {
        rule.map_or(1, |rule| self.state().rules[rule.0].weight)
    }

    /// Calls a second of `account`.
    pub(crate) fn calls_per_second(&self, account: AccountId) -> u32 {
        let state = self.state();
        state.calls_of(state.accounts.get(&account).and_then(|usage| usage.rule))
    }

    /// A call of `account` is delayed.
    pub(crate) fn note_delayed_call(&self, account: AccountId) {
        let mut state = self.state();
        state.accounts.entry(account).or_default().delayed_calls += 1;
        state.forget_some();
    }

    /// Counts `amount` more for `account`.
    ///
    /// # Errors
    /// [`LimitReached`], which is counted as well.
    pub fn take(&self, account: AccountId, pool: SharedPool, amount: u64) -> Result<Charge, LimitReached> {
        let mut charge = Charge { ledger: self.clone(), account, pool, amount: 0 };
        charge.add(amount)?;
        Ok(charge)
    }

    /// Amount that `account` may take of a pool now.
    pub(crate) fn left(&self, account: AccountId, pool: SharedPool) -> u64 {
        let state = self.state();
        let usage = state.accounts.get(&account);
        let at = pool.resource() as usize;
        let limit = state.limits_of(usage.and_then(|usage| usage.rule))[at];
        let of_limit = limit.saturating_sub(usage.map_or(0, |usage| usage.taken[at]));
        let pool = state.pools.get(&pool).filter(|_| state.share_percent < 100);
        let of_share = |pool: &PoolUse| pool.share_of(account, state.share_percent).saturating_sub(pool.of(account));
        pool.map_or(of_limit, |pool| of_limit.min(of_share(pool)))
    }

    /// Every account with objects, refusals, delays or slow wakes, by its number.
    pub fn reports(
        &self,
        slow_wakes: &BTreeMap<AccountId, u64>,
        delayed_neighbors: &BTreeMap<AccountId, u64>,
    ) -> Vec<AccountReport> {
        let state = self.state();
        let none = AccountUse::default();
        let named = |amounts: &[u64; RESOURCES]| {
            AccountResource::ALL
                .iter()
                .map(|resource| (resource.key().to_owned(), amounts[*resource as usize]))
                .collect()
        };
        let all: BTreeSet<&AccountId> =
            state.accounts.keys().chain(slow_wakes.keys()).chain(delayed_neighbors.keys()).collect();
        let reports = all.into_iter().map(|account| {
            let usage = state.accounts.get(account).unwrap_or(&none);
            AccountReport {
                uid: account.0,
                taken: named(&usage.taken),
                limits: named(state.limits_of(usage.rule)),
                refused: named(&usage.refused),
                control_calls_per_second: state.calls_of(usage.rule),
                delayed_calls: usage.delayed_calls,
                max_rate_mbit: state.send_rate_of(usage.rule) / 1000,
                delayed_turns: usage.send_rate.delayed_turns(),
                slow_wakes: slow_wakes.get(account).copied().unwrap_or(0),
                delayed_neighbors: delayed_neighbors.get(account).copied().unwrap_or(0),
            }
        });
        reports.collect()
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerState {
    fn limits_of(&self, rule: Option<RuleId>) -> &[u64; RESOURCES] {
        rule.map_or(&self.limits, |rule| &self.limits_by_rule[rule.0])
    }

    fn calls_of(&self, rule: Option<RuleId>) -> u32 {
        rule.and_then(|rule| self.rules[rule.0].control_calls_per_second).unwrap_or(self.calls)
    }

    /// kbit/s; 0 is no limit.
    fn send_rate_of(&self, rule: Option<RuleId>) -> u32 {
        let of_rule = rule.and_then(|rule| self.rules[rule.0].max_rate_mbit);
        of_rule.or(self.max_rate_mbit).unwrap_or(0) * 1000
    }

    fn take(&mut self, account: AccountId, pool: SharedPool, amount: u64) -> Result<(), LimitReached> {
        let resource = pool.resource();
        let at = resource as usize;
        let rule = self.accounts.get(&account).and_then(|usage| usage.rule);
        let (limit, percent) = (self.limits_of(rule)[at], self.share_percent);
        // Without shares the pool's own limit decides, where its objects are made.
        let pool_use = self.pools.get(&pool).filter(|_| percent < 100);
        let share = pool_use.map(|pool| (pool.of(account), pool.share_of(account, percent)));
        let usage = self.accounts.entry(account).or_default();
        let reached = if usage.taken[at].checked_add(amount).is_none_or(|sum| sum > limit) {
            Some(LimitReached { resource, limit, is_share: false })
        } else {
            share
                .filter(|(has, share)| has.checked_add(amount).is_none_or(|sum| sum > *share))
                .map(|(_, limit)| LimitReached { resource, limit, is_share: true })
        };
        if let Some(reached) = reached {
            usage.refused[at] += 1;
            self.forget_some();
            return Err(reached);
        }
        usage.taken[at] += amount;
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.all += amount;
            *pool.accounts.entry(account).or_default() += amount;
        }
        Ok(())
    }

    fn give_back(&mut self, account: AccountId, pool: SharedPool, amount: u64) {
        let usage = self.accounts.get_mut(&account).expect("counted when it was taken");
        usage.taken[pool.resource() as usize] -= amount;
        if usage.is_blank() {
            self.accounts.remove(&account);
        } else if usage.is_empty() {
            self.forget_some();
        }
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.all -= amount;
            let of_account = pool.accounts.get_mut(&account).expect("counted when it was taken");
            *of_account -= amount;
            if *of_account == 0 {
                pool.accounts.remove(&account);
            }
        }
    }

    /// Bounds the accounts that have nothing and are remembered for their refusals.
    fn forget_some(&mut self) {
        if self.accounts.len() <= REMEMBERED {
            return;
        }
        let empty = self.accounts.iter().find(|(_, usage)| usage.is_empty()).map(|(account, _)| *account);
        if let Some(account) = empty {
            self.accounts.remove(&account);
        }
    }
}

/// Something that counts for an account, for as long as this lives.
#[derive(Debug)]
pub struct Charge {
    ledger: Ledger,
    account: AccountId,
    pool: SharedPool,
    amount: u64,
}

impl Charge {
    /// Counts `amount` more.
    ///
    /// # Errors
    /// [`LimitReached`]; everything counted before stays so.
    pub fn add(&mut self, amount: u64) -> Result<(), LimitReached> {
        self.ledger.state().take(self.account, self.pool, amount)?;
        self.amount += amount;
        Ok(())
    }

    /// Counts `amount` less.
    ///
    /// # Panics
    /// When there is less: the caller gives back its own additions.
    pub fn remove(&mut self, amount: u64) {
        assert!(amount <= self.amount, "no more than was added");
        // An account without anything may have been forgotten.
        if amount == 0 {
            return;
        }
        self.ledger.state().give_back(self.account, self.pool, amount);
        self.amount -= amount;
    }

    /// Amount that is counted now.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.remove(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPS: AccountResource = AccountResource::Qps;
    const POOL: SharedPool = SharedPool::Device(QPS, DeviceId(0));
    const ONE: AccountId = AccountId(1000);

    fn ledger(limit: Option<u32>, share_percent: u32, most: u64) -> Ledger {
        let limits = AccountLimits { qps: limit, share_percent, ..AccountLimits::default() };
        Ledger::new(&limits, Vec::new(), [(POOL, most)])
    }

    /// As many objects as `account` gets, one by one, and the refusal of the next.
    fn take_all(ledger: &Ledger, account: AccountId) -> (Vec<Charge>, LimitReached) {
        let mut charges = Vec::new();
        loop {
            match ledger.take(account, POOL, 1) {
                Ok(charge) => charges.push(charge),
                Err(reached) => return (charges, reached),
            }
        }
    }

    #[test]
    fn an_account_has_no_more_than_its_limit_on_all_devices_together() {
        let ledger = ledger(Some(10), 100, 100);
        let (charges, reached) = take_all(&ledger, ONE);
        assert_eq!((charges.len(), reached), (10, LimitReached { resource: QPS, limit: 10, is_share: false }));
        assert!(ledger.take(ONE, SharedPool::Device(QPS, DeviceId(1)), 1).is_err(), "another device");
        assert!(ledger.take(AccountId(1), POOL, 1).is_ok(), "another account");
        drop(charges);
        assert_eq!(ledger.take(ONE, POOL, 10).map(drop), Ok(()));
    }

    #[test]
    fn every_account_finds_room_however_many_come() {
        let ledger = ledger(None, 75, 16_384);
        let mut all = Vec::new();
        for account in 0..6 {
            let (charges, reached) = take_all(&ledger, AccountId(account));
            assert!(reached.is_share && reached.limit == charges.len() as u64);
            all.push(charges);
        }
        let sizes: Vec<_> = all.iter().map(Vec::len).collect();
        assert_eq!(sizes, [12_288, 3072, 768, 192, 48, 12]);
        // What one gives back is open to all, and the first one cannot take all of it.
        all[0].truncate(100);
        let (more, _) = take_all(&ledger, AccountId(1));
        assert_eq!(3072 + more.len(), (16_384 - 100 - 768 - 192 - 48 - 12) * 3 / 4);
    }

    #[test]
    fn a_small_pool_has_a_place_for_an_account_alone() {
        assert_eq!(take_all(&ledger(None, 75, 1), ONE).0.len(), 1);
        assert_eq!(take_all(&ledger(None, 75, 4), ONE).0.len(), 3);
        assert!(ledger(None, 100, 4).take(ONE, POOL, 5).is_ok(), "the pool's own limit is checked elsewhere");
    }

    #[test]
    fn reports_name_taken_and_refused_amounts_and_all_is_given_back() {
        let ledger = ledger(Some(2), 100, 100);
        let (mut charges, _) = take_all(&ledger, ONE);
        let memory = ledger.take(ONE, SharedPool::Daemon(AccountResource::MappedMemory), 4096).expect("little");
        let report = &ledger.reports(&BTreeMap::new(), &BTreeMap::new())[0];
        assert_eq!((report.uid, report.taken["qps"], report.taken["memory_mib"]), (1000, 2, 4096));
        assert_eq!((report.refused["qps"], report.limits["qps"]), (1, 2));
        charges.clear();
        drop(memory);
        let report = &ledger.reports(&BTreeMap::new(), &BTreeMap::new())[0];
        assert_eq!((report.taken["qps"], report.taken["memory_mib"], report.refused["qps"]), (0, 0, 1));
        let state = ledger.state();
        assert!(state.pools[&POOL].all == 0 && state.pools[&POOL].accounts.is_empty());
    }

    #[test]
    fn an_account_has_the_limits_of_its_rule() {
        let rule = |qps| RuleLimits { qps, ..RuleLimits::default() };
        let limits = AccountLimits { qps: Some(4), share_percent: 100, ..AccountLimits::default() };
        let ledger = Ledger::new(&limits, vec![rule(Some(9)), rule(None)], [(POOL, 100)]);
        ledger.set_rule(ONE, Some(RuleId(0)));
        let (charges, reached) = take_all(&ledger, ONE);
        assert_eq!(
            (charges.len(), reached.limit, ledger.reports(&BTreeMap::new(), &BTreeMap::new())[0].limits["qps"]),
            (9, 9, 9)
        );
        // Its rule has no limit of its own.
        ledger.set_rule(ONE, Some(RuleId(1)));
        drop(charges);
        assert_eq!(take_all(&ledger, ONE).0.len(), 4);
        ledger.set_limits(&AccountLimits { qps: Some(6), ..limits });
        assert_eq!((take_all(&ledger, ONE).0.len(), take_all(&ledger, AccountId(7)).0.len()), (6, 6));
        ledger.set_rule(ONE, None);
        assert_eq!(take_all(&ledger, ONE).0.len(), 6);
    }

    #[test]
    fn queue_pairs_of_an_account_share_the_rate_of_its_rule() {
        let rule = |max_rate_mbit| RuleLimits { max_rate_mbit, ..RuleLimits::default() };
        let limits = AccountLimits { max_rate_mbit: Some(3), ..AccountLimits::default() };
        let ledger = Ledger::new(&limits, vec![rule(Some(9)), rule(None)], [(POOL, 100)]);
        ledger.set_rule(ONE, Some(RuleId(0)));
        let of_one = ledger.send_rate(ONE);
        let of_other = ledger.send_rate(AccountId(7));
        assert!(Arc::ptr_eq(&of_one, &ledger.send_rate(ONE)) && !Arc::ptr_eq(&of_one, &of_other));
        assert_eq!([of_one.kbit_per_s(), of_other.kbit_per_s()], [9000, 3000]);
        ledger.set_limits(&AccountLimits { max_rate_mbit: None, ..limits.clone() });
        assert_eq!([of_one.kbit_per_s(), of_other.kbit_per_s()], [9000, 0]);
        ledger.set_rule(ONE, Some(RuleId(1)));
        assert_eq!(of_one.kbit_per_s(), 0, "its rule has no rate of its own");
        ledger.set_limits(&AccountLimits { max_rate_mbit: Some(800_000), ..limits });
        assert_eq!([of_one.kbit_per_s(), of_other.kbit_per_s()], [800_000_000; 2]);
        assert_eq!(ledger.reports(&BTreeMap::new(), &BTreeMap::new())[0].max_rate_mbit, 800_000);
        let free =
            Ledger::new(&AccountLimits { max_rate_mbit: Some(3), ..AccountLimits::default() }, vec![rule(Some(0))], []);
        free.set_rule(ONE, Some(RuleId(0)));
        assert_eq!([free.send_rate(ONE).kbit_per_s(), free.send_rate(AccountId(7)).kbit_per_s()], [0, 3000]);
    }

    #[test]
    fn refused_accounts_are_remembered_in_bounded_number() {
        let ledger = ledger(Some(0), 100, 100);
        for account in 0..2 * REMEMBERED as u32 {
            assert!(ledger.take(AccountId(account), POOL, 1).is_err());
        }
        assert_eq!(ledger.reports(&BTreeMap::new(), &BTreeMap::new()).len(), REMEMBERED);
    }

    #[test]
    fn a_charge_grows_and_shrinks_and_a_refusal_leaves_it_as_it_was() {
        let ledger = ledger(Some(10), 100, 100);
        let mut charge = ledger.take(ONE, POOL, 4).expect("room");
        assert_eq!(charge.add(6), Ok(()));
        assert!(charge.add(1).is_err() && charge.add(u64::MAX).is_err());
        charge.remove(3);
        assert_eq!((charge.amount(), charge.add(3)), (7, Ok(())));
    }
}
