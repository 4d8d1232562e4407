//! `[[access]]`: rules for users, by the devices that they may open and the limits of their accounts.

use std::fmt;

use roced_xdp::dcb::PrioritySet;

use super::{
    AccountLimits,
    read::{QPS_MAX, RATE_MAX_MBIT, is_account_name, optional_priorities},
    reader::ConfigSection,
};

/// One rule. The first one that a program matches decides about it; a program that matches none has
/// all devices, and the limits of `[limits.account]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRule {
    /// Users that match. Without users and groups every program matches.
    pub users: Vec<AccountName>,
    /// Groups with members that match.
    pub groups: Vec<AccountName>,
    /// Names of the devices that they may open; `None` is all.
    pub devices: Option<Vec<String>>,
    /// Priorities that their packets may have; `None` is all.
    pub priorities: Option<PrioritySet>,
    /// Limits of their accounts.
    pub limits: RuleLimits,
}

/// A user or group, as the config names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountName {
    /// By its name.
    Named(String),
    /// By its uid or gid.
    Numbered(u32),
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Numbered(number) => number.fmt(f),
        }
    }
}

/// Limits of a rule: `None` is that of `[limits.account]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleLimits {
    /// Turns of the account for each turn of one with weight 1.
    pub weight: u8,
    /// Clients.
    pub clients: Option<u32>,
    /// Queue pairs.
    pub qps: Option<u32>,
    /// Completion queues.
    pub cqs: Option<u32>,
    /// Completion channels.
    pub channels: Option<u32>,
    /// Memory regions.
    pub mrs: Option<u32>,
    /// Address handles.
    pub ahs: Option<u32>,
    /// Shared receive queues.
    pub srqs: Option<u32>,
    /// Attachments to multicast groups.
    pub attachments: Option<u32>,
    /// Memory that the daemon maps and locks, MiB.
    pub memory_mib: Option<u64>,
    /// Memory that the daemon itself needs for objects, MiB.
    pub daemon_memory_mib: Option<u64>,
    /// Control calls a second.
    pub control_calls_per_second: Option<u32>,
    /// Highest rate of frames to NICs, Mbit/s.
    pub max_rate_mbit: Option<u32>,
}

impl RuleLimits {
    /// The limits of an account with this rule, where `others` are those of accounts without.
    pub fn over(&self, others: &AccountLimits) -> AccountLimits {
        AccountLimits {
            share_percent: others.share_percent,
            clients: self.clients.or(others.clients),
            qps: self.qps.or(others.qps),
            cqs: self.cqs.unwrap_or(others.cqs),
            channels: self.channels.or(others.channels),
            mrs: self.mrs.or(others.mrs),
            ahs: self.ahs.or(others.ahs),
            srqs: self.srqs.or(others.srqs),
            attachments: self.attachments.or(others.attachments),
            memory_mib: self.memory_mib.or(others.memory_mib),
            daemon_memory_mib: self.daemon_memory_mib.unwrap_or(others.daemon_memory_mib),
            control_calls_per_second: self.control_calls_per_second.unwrap_or(others.control_calls_per_second),
            max_rate_mbit: self.max_rate_mbit.or(others.max_rate_mbit).filter(|rate| *rate > 0),
        }
    }
}

const USERS_ALLOWED: &str = "an array of names or uids";
const GROUPS_ALLOWED: &str = "an array of names or gids";
const DEVICES_ALLOWED: &str = "an array of names of devices of this config";

/// The rules. `devices` are the names of all devices.
pub(super) fn rules(top: &ConfigSection<'_, '_>, devices: &[&str]) -> Vec<AccessRule> {
    let mut for_all = None;
    let mut index = 0;
    top.sections("access", |section| {
        let rule = AccessRule {
            users: names(section, "users", USERS_ALLOWED),
            groups: names(section, "groups", GROUPS_ALLOWED),
            devices: device_names(section, devices),
            priorities: optional_priorities(section, "priorities", "priority", "all priorities"),
            limits: limits(section),
        };
        if let Some(first) = for_all {
            section.refuse("", format!("access[{first}] is for every program, so this rule is for none: put it first"));
        }
        if rule.users.is_empty() && rule.groups.is_empty() {
            for_all = for_all.or(Some(index));
        }
        index += 1;
        rule
    })
}

fn names(section: &ConfigSection<'_, '_>, key: &str, allowed: &str) -> Vec<AccountName> {
    section.note(key, "none; without users and groups the rule is for every program", allowed);
    if section.take(key).is_none() {
        return Vec::new();
    }
    // An empty list would match every program, which is never meant.
    let Some(array) = section.array(key).filter(|array| !array.is_empty()) else {
        section.refuse(key, format!("not allowed: it must be {allowed}, at least one"));
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, element) in array.iter().enumerate() {
        let element = element.get_ref();
        let number = element.as_integer().and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
        let name = element.as_str().filter(|name| is_account_name(name)).map(|name| AccountName::Named(name.into()));
        match name.or(number.map(AccountName::Numbered)) {
            Some(name) => found.push(name),
            None => section.refuse_element(key, index, format!("not allowed: it must be {allowed}")),
        }
    }
    found
}

fn device_names(section: &ConfigSection<'_, '_>, devices: &[&str]) -> Option<Vec<String>> {
    section.note("devices", "all devices", DEVICES_ALLOWED);
    section.take("devices")?;
    let Some(array) = section.array("devices") else {
        section.refuse("devices", format!("not allowed: it must be {DEVICES_ALLOWED}"));
        return None;
    };
    let mut found = Vec::new();
    for (index, element) in array.iter().enumerate() {
        match element.get_ref().as_str() {
            Some(name) if devices.contains(&name) => found.push(name.to_owned()),
            _ => section.refuse_element("devices", index, format!("not allowed: it must be {DEVICES_ALLOWED}")),
        }
    }
    Some(found)
}

fn limits(section: &ConfigSection<'_, '_>) -> RuleLimits {
    const ABSENT: &str = "that of [limits.account]";
    let number = |key: &str, unit: &str, most: u32| section.optional_number(key, unit, ABSENT, 1..=most);
    let memory = |key: &str| section.optional_number(key, "MiB", ABSENT, 1..=16_777_216);
    RuleLimits {
        weight: section.number("weight", "", 1_u32, 1..=16) as u8,
        clients: number("clients", "clients", 65_536),
        qps: number("qps", "queue pairs", QPS_MAX),
        cqs: number("cqs", "completion queues", QPS_MAX),
        channels: number("channels", "channels", 1_048_576),
        mrs: number("mrs", "memory regions", 1_048_576),
        ahs: number("ahs", "address handles", 1_048_576),
        srqs: number("srqs", "shared receive queues", 65_536),
        attachments: number("attachments", "attachments", roced_steering::GROUPS_MAX),
        memory_mib: memory("memory_mib"),
        daemon_memory_mib: memory("daemon_memory_mib"),
        control_calls_per_second: number("control_calls_per_second", "calls a second", 1_000_000),
        max_rate_mbit: section.optional_number("max_rate_mbit", "Mbit/s", ABSENT, 0..=RATE_MAX_MBIT),
    }
}
