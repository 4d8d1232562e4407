//! Rules of access: which devices the programs of a user may open, and which limits its account has.
//!
//! Users are told by the kernel when a program connects: its uid, that of its account, and its
//! groups. Names are looked up when the daemon starts.

use nix::unistd::{Group, User};
use roced_types::{AccountId, DeviceId};
use roced_xdp::dcb::PrioritySet;
use thiserror::Error;

use crate::config::{AccessRule, AccountName};

/// Some devices of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSet(u64);

impl DeviceSet {
    /// All devices; there are at most 64, as each has an endpoint.
    pub const ALL: Self = Self(u64::MAX);

    /// The device is in it.
    pub const fn has(self, device: DeviceId) -> bool {
        self.0 >> device.0 & 1 != 0
    }
}

impl FromIterator<DeviceId> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Self {
        Self(devices.into_iter().fold(0, |all, device| all | 1 << device.0))
    }
}

/// The place of a rule in the config, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(pub usize);

/// Rights of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAccess {
    /// The rule that it matches, if any: its account has the limits of that.
    pub rule: Option<RuleId>,
    /// Devices that it may open.
    pub devices: DeviceSet,
    /// Priorities that its packets may have.
    pub priorities: PrioritySet,
}

impl ClientAccess {
    /// Without rules.
    pub const ALL: Self = Self { rule: None, devices: DeviceSet::ALL, priorities: PrioritySet::from_bits(u8::MAX) };
}

/// A name in a rule that this host does not know.
#[derive(Debug, Error)]
#[error("access[{rule}].{key}: there is no {noun} {name} on this host: correct the name, or use its number")]
pub struct UnknownName {
    rule: usize,
    key: &'static str,
    noun: &'static str,
    name: AccountName,
}

/// The rules with numbers for names. The first that matches decides.
#[derive(Clone, Debug, Default)]
pub struct AccessRules(Vec<NumberedRule>);

#[derive(Clone, Debug)]
struct NumberedRule {
    uids: Vec<u32>,
    gids: Vec<u32>,
    devices: DeviceSet,
    priorities: PrioritySet,
}

impl AccessRules {
    /// Looks up the names of `rules`. `devices` are the names of all devices, by their numbers.
    ///
    /// # Errors
    /// [`UnknownName`].
    pub fn look_up<'n>(
        rules: &[AccessRule],
        devices: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<Self, UnknownName> {
        let numbered = rules.iter().enumerate().map(|(rule, of_rule)| {
            let AccessRule { users, groups, devices: listed, .. } = of_rule;
            let uid = |name: &str| Some(User::from_name(name).ok()??.uid.as_raw());
            let gid = |name: &str| Some(Group::from_name(name).ok()??.gid.as_raw());
            let unknown = |key, noun| move |name: AccountName| UnknownName { rule, key, noun, name };
            let of_names = |names: &Vec<String>| {
                let listed = (0..).zip(devices.clone()).filter(|(_, name)| names.iter().any(|listed| listed == name));
                listed.map(|(id, _)| DeviceId(id)).collect()
            };
            Ok(NumberedRule {
                uids: numbers(users, uid).map_err(unknown("users", "user"))?,
                gids: numbers(groups, gid).map_err(unknown("groups", "group"))?,
                devices: listed.as_ref().map_or(DeviceSet::ALL, of_names),
                priorities: of_rule.priorities.unwrap_or(ClientAccess::ALL.priorities),
            })
        });
        numbered.collect::<Result<_, _>>().map(Self)
    }

    /// Access of a program of user `uid`, whose account is `account`. `groups` are looked at only if
    /// a rule asks for them; `None` if they are not known then.
    pub fn of(&self, uid: u32, account: AccountId, groups: impl FnOnce() -> Option<Vec<u32>>) -> Option<ClientAccess> {
        let has_groups = self.0.iter().any(|rule| !rule.gids.is_empty());
        let groups = if has_groups { groups()? } else { Vec::new() };
        let matches = |rule: &NumberedRule| {
            let is_for_all = rule.uids.is_empty() && rule.gids.is_empty();
            let is_user = rule.uids.contains(&uid) || rule.uids.contains(&account.0);
            is_for_all || is_user || rule.gids.iter().any(|gid| groups.contains(gid))
        };
        let found = self.0.iter().position(matches);
        let access = |at: usize| {
            let NumberedRule { devices, priorities, .. } = self.0[at];
            ClientAccess { rule: Some(RuleId(at)), devices, priorities }
        };
        Some(found.map_or(ClientAccess::ALL, access))
    }
}

/// The numbers of names, or the first one without.
fn numbers(names: &[AccountName], number_of: impl Fn(&str) -> Option<u32>) -> Result<Vec<u32>, AccountName> {
    let number = |name: &AccountName| match name {
        AccountName::Numbered(number) => Ok(*number),
        AccountName::Named(named) => number_of(named).ok_or_else(|| name.clone()),
    };
    names.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: [&str; 2] = ["roce0", "roce1"];

    fn named(name: &str) -> AccountName {
        AccountName::Named(name.into())
    }

    fn rule(users: &[AccountName], groups: &[AccountName], devices: Option<&[&str]>) -> AccessRule {
        let devices = devices.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        AccessRule { users: users.into(), groups: groups.into(), devices, ..AccessRule::default() }
    }

    fn rules(rules: &[AccessRule]) -> AccessRules {
        AccessRules::look_up(rules, DEVICES.into_iter()).expect("known names")
    }

    /// The rule and the devices of a program.
    fn access(rules: &AccessRules, uid: u32, account: u32, groups: &[u32]) -> (Option<usize>, [bool; 2]) {
        let ClientAccess { rule, devices, .. } =
            rules.of(uid, AccountId(account), || Some(groups.to_vec())).expect("known groups");
        (rule.map(|rule| rule.0), [0, 1].map(|device| devices.has(DeviceId(device))))
    }

    #[test]
    fn without_rules_every_program_has_all_devices() {
        assert_eq!(access(&rules(&[]), 1000, 1000, &[]), (None, [true, true]));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let one = AccountName::Numbered(1000);
        let all = rules(&[
            rule(std::slice::from_ref(&one), &[], Some(&["roce1"])),
            rule(&[], &[AccountName::Numbered(50)], None),
            rule(&[], &[], Some(&[])),
        ]);
        assert_eq!(access(&all, 1000, 1000, &[50]), (Some(0), [false, true]));
        assert_eq!(access(&all, 1001, 1001, &[7, 50]), (Some(1), [true, true]));
        assert_eq!(access(&all, 1001, 1001, &[7]), (Some(2), [false, false]));
        assert_eq!(access(&all, 0, 0, &[]), (Some(2), [false, false]), "root is a user as others are");
        assert_eq!(access(&all, 100_005, 1000, &[]), (Some(0), [false, true]), "a subordinate uid");
    }

    #[test]
    fn groups_are_not_asked_for_when_no_rule_has_any() {
        let all = rules(&[rule(&[named("root")], &[], None)]);
        let access = all.of(0, AccountId(0), || panic!("no need")).expect("it needs none");
        assert_eq!(access.rule, Some(RuleId(0)));
    }

    #[test]
    fn a_program_with_unknown_groups_has_no_access_where_rules_ask_for_them() {
        let all = rules(&[rule(&[], &[AccountName::Numbered(50)], None)]);
        assert_eq!(all.of(1000, AccountId(1000), || None), None);
    }

    #[test]
    fn an_unknown_name_is_named() {
        let wrong = [rule(&[named("root")], &[], None), rule(&[], &[named("no-such-group-here")], None)];
        let error = AccessRules::look_up(&wrong, DEVICES.into_iter()).expect_err("there is none");
        let text = error.to_string();
        assert!(text.contains("access[1].groups") && text.contains("group no-such-group-here"), "{text}");
    }
}
