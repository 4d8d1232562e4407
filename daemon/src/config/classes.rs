//! `[device.classes]`: traffic classes of packets that a device sends, under the names of `dcb ets`
//! and `dcb maxrate`.

use std::{collections::BTreeMap, fmt};

use roced_transport::turns::classes::{CLASSES, ClassConfig, Selection, TrafficClasses, Trust};
use roced_xdp::dcb::PrioritySet;

use super::{choices::TrustChoice, read::priorities, reader::ConfigSection};

const LAST: u8 = CLASSES as u8 - 1;

/// `device.classes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassesConfig {
    /// Shares of classes in percent.
    pub tc_bw: BTreeMap<u8, u8>,
    /// Strict classes. Without these and shares there are no classes.
    pub tc_strict: PrioritySet,
    /// Class of a priority, if it has not the number of the priority.
    pub prio_tc: BTreeMap<u8, u8>,
    /// Highest rate of a class, Mbit/s.
    pub tc_maxrate_mbit: BTreeMap<u8, u32>,
    /// Priorities of DSCPs, those of `device.dscp_prio` if there are classes. They are here so that a
    /// change of them is one of the classes.
    pub dscp_prio: BTreeMap<u8, u8>,
    /// Field that tells the priority.
    pub trust: TrustChoice,
    /// Bytes in a NIC queue with which all classes but the first strict one wait; by default those
    /// of 52 us of the link, 65,536 at least.
    pub tx_ahead_bytes: Option<u32>,
}

/// Priorities of the packets of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketPriorities {
    /// Priorities of DSCPs, where it is not the class selector.
    pub dscp_prio: BTreeMap<u8, u8>,
    /// Field that tells the priority.
    pub trust: TrustChoice,
}

impl Default for PacketPriorities {
    fn default() -> Self {
        Self { dscp_prio: BTreeMap::new(), trust: TrustChoice::Dscp }
    }
}

impl PacketPriorities {
    /// Priority of packets with this traffic class and, in a VLAN, this priority of their tag.
    pub fn of(&self, traffic_class: u8, tag: Option<u8>) -> u8 {
        let dscp = traffic_class >> 2;
        match self.trust {
            TrustChoice::Dscp => self.dscp_prio.get(&dscp).copied().unwrap_or(dscp >> 3),
            TrustChoice::Pcp => tag.unwrap_or(0),
        }
    }
}

impl Default for ClassesConfig {
    fn default() -> Self {
        Self {
            tc_bw: BTreeMap::new(),
            tc_strict: PrioritySet::default(),
            prio_tc: BTreeMap::new(),
            tc_maxrate_mbit: BTreeMap::new(),
            dscp_prio: BTreeMap::new(),
            trust: TrustChoice::Dscp,
            tx_ahead_bytes: None,
        }
    }
}

impl fmt::Display for ClassesConfig {
    /// Shares, strict classes and rates, such as "0=20% 3=80%:8000M 6=strict"; "off" without classes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for class in (0..=LAST).filter(|class| self.has(*class)) {
            match self.tc_bw.get(&class) {
                Some(percent) => write!(f, "{gap}{class}={percent}%")?,
                None => write!(f, "{gap}{class}=strict")?,
            }
            if let Some(mbit_per_s) = self.tc_maxrate_mbit.get(&class) {
                write!(f, ":{mbit_per_s}M")?;
            }
            gap = " ";
        }
        if gap.is_empty() { f.write_str("off") } else { Ok(()) }
    }
}

impl ClassesConfig {
    fn has(&self, class: u8) -> bool {
        self.tc_bw.contains_key(&class) || self.tc_strict.contains(class)
    }

    /// The class of a priority: the one that is given, or that of its own number, or that of
    /// priority 0.
    fn class_of(&self, priority: u8) -> u8 {
        let named = |priority: u8| self.prio_tc.get(&priority).copied();
        let own = Some(priority).filter(|class| self.has(*class));
        named(priority).or(own).or_else(|| named(0)).unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tc_bw.is_empty() && self.tc_strict.is_empty()
    }

    /// Takes the priorities of DSCPs that differ from the class selector.
    pub(super) fn take_priorities(&mut self, dscp_prio: &BTreeMap<u8, u8>) {
        if !self.is_empty() {
            self.dscp_prio.clone_from(dscp_prio);
        }
    }

    /// The classes, if there are any, of a link with this speed and a device with this highest rate.
    /// Without others a highest rate is that of one class.
    pub fn classes(&self, speed_mbit_per_s: u32, max_rate_mbit: Option<u32>) -> Option<TrafficClasses> {
        if self.is_empty() && max_rate_mbit.is_none() {
            return None;
        }
        let mut classes = TrafficClasses {
            trust: match self.trust {
                TrustChoice::Dscp => Trust::Dscp,
                TrustChoice::Pcp => Trust::Pcp,
            },
            ahead_bytes_max: match self.tx_ahead_bytes {
                // Nothing to give way to.
                None if self.is_empty() => usize::MAX,
                bytes => bytes.unwrap_or_else(|| ahead_of(speed_mbit_per_s)) as usize,
            },
            class_of_priority: core::array::from_fn(|priority| self.class_of(priority as u8)),
            max_rate_kbit_per_s: max_rate_mbit.unwrap_or(0) * 1000,
            ..TrafficClasses::default()
        };
        for (class, config) in (0..).zip(&mut classes.config) {
            *config = ClassConfig {
                selection: self
                    .tc_bw
                    .get(&class)
                    .map_or(Selection::Strict, |percent| Selection::Ets { percent: *percent }),
                max_rate_kbit_per_s: *self.tc_maxrate_mbit.get(&class).unwrap_or(&0) * 1000,
            };
        }
        for (dscp, priority) in &self.dscp_prio {
            classes.priority_of_dscp[usize::from(*dscp)] = *priority;
        }
        Some(classes)
    }
}

pub(super) fn read(section: &ConfigSection<'_, '_>) -> ClassesConfig {
    let default = ClassesConfig::default();
    let config = ClassesConfig {
        tc_bw: section.number_table(
            "tc_bw",
            "a table of classes, 0 to 7, with their shares, 1 to 100 percent, 100 together",
            0..=LAST,
            1..=100,
        ),
        tc_strict: priorities(section, "tc_strict", "class"),
        prio_tc: section.number_table(
            "prio_tc",
            "a table of priorities, 0 to 7, with their classes, 0 to 7",
            0..=LAST,
            0..=LAST,
        ),
        dscp_prio: BTreeMap::new(),
        tc_maxrate_mbit: section.number_table(
            "tc_maxrate_mbit",
            "a table of classes, 0 to 7, with their highest rates, 1 to 800000 Mbit/s",
            0..=LAST,
            1..=800_000,
        ),
        trust: section.choice("trust", default.trust),
        tx_ahead_bytes: section.optional_number(
            "tx_ahead_bytes",
            "bytes",
            "those of 52 us of the link, 65536 at least",
            4096..=16_777_216,
        ),
    };
    check(section, &config);
    config
}

/// Bytes of 52 us, which are 65,536 at 10 Gbit/s, and no less.
fn ahead_of(speed_mbit_per_s: u32) -> u32 {
    (u64::from(speed_mbit_per_s) * 65_536 / 10_000).clamp(65_536, 16_777_216) as u32
}

/// Refuses classes that some priority or key needs and that are not there, and those without a
/// priority.
fn check(section: &ConfigSection<'_, '_>, config: &ClassesConfig) {
    const MISSING: &str = "has neither a share (tc_bw) nor is it in tc_strict";
    let sum: u32 = config.tc_bw.values().map(|share| u32::from(*share)).sum();
    if !config.tc_bw.is_empty() && sum != 100 {
        section.refuse("tc_bw", format!("shares of {sum} percent together: they must be 100"));
    }
    for class in config.tc_bw.keys().filter(|class| config.tc_strict.contains(**class)) {
        section.refuse("tc_strict", format!("class {class} has a share as well (tc_bw): it can have one of the two"));
    }
    for (priority, class) in config.prio_tc.iter().filter(|(_, class)| !config.has(**class)) {
        section.refuse("prio_tc", format!("class {class} of priority {priority} {MISSING}"));
    }
    for class in config.tc_maxrate_mbit.keys().filter(|class| !config.has(**class)) {
        section.refuse("tc_maxrate_mbit", format!("class {class} {MISSING}"));
    }
    let key_of = |class| if config.tc_strict.contains(class) { "tc_strict" } else { "tc_bw" };
    let of_zero = config.class_of(0);
    let defaults = ClassesConfig { tx_ahead_bytes: config.tx_ahead_bytes, ..ClassesConfig::default() };
    if !(config == &defaults || config.prio_tc.contains_key(&0) || config.has(of_zero)) {
        let key = if config.tc_bw.is_empty() { "tc_strict" } else { "tc_bw" };
        let need = "packets of priority 0 need it, and of others without one";
        section.refuse(key, format!("class {of_zero} {MISSING}: {need}"));
    }
    for class in (0..=LAST).filter(|class| config.has(*class)) {
        if !(0..=LAST).any(|priority| config.class_of(priority) == class) {
            section.refuse(key_of(class), format!("class {class} has no priority (prio_tc): no packet is of it"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn without_shares_and_strict_classes_there_are_none() {
        assert!(ClassesConfig::default().classes(10_000, None).is_none());
        let classes = ClassesConfig::default().classes(10_000, Some(800_000)).expect("a rate");
        assert_eq!((classes.max_rate_kbit_per_s, classes.class_of_priority), (800_000_000, [0; 8]));
        assert_eq!(classes.ahead_bytes_max, usize::MAX, "nothing to give way to");
    }

    #[test]
    fn priorities_without_a_class_have_that_of_priority_0() {
        let mut config = ClassesConfig {
            tc_bw: [(1, 10), (3, 90)].into(),
            tc_strict: [6].into_iter().collect(),
            prio_tc: [(0, 1), (5, 3)].into(),
            tc_maxrate_mbit: [(6, 8)].into(),
            trust: TrustChoice::Pcp,
            tx_ahead_bytes: Some(9000),
            ..ClassesConfig::default()
        };
        config.take_priorities(&[(26, 3)].into());
        assert_eq!(config.to_string(), "1=10% 3=90% 6=strict:8M");
        assert_eq!(ClassesConfig::default().to_string(), "off");
        let classes = config.classes(10_000, None).expect("shares");
        assert_eq!(classes.max_rate_kbit_per_s, 0);
        assert_eq!(classes.config[3], ClassConfig::new(Selection::Ets { percent: 90 }));
        assert_eq!(classes.config[6], ClassConfig { selection: Selection::Strict, max_rate_kbit_per_s: 8000 });
        assert_eq!(classes.class_of_priority, [1, 1, 1, 3, 1, 3, 6, 1]);
        assert_eq!((classes.priority_of_dscp[26], classes.priority_of_dscp[48]), (3, 6));
        assert_eq!((classes.trust, classes.ahead_bytes_max), (Trust::Pcp, 9000));
        assert_eq!([0, 10_000, 100_000, 800_000].map(ahead_of), [65_536, 65_536, 655_360, 5_242_880]);
    }

    #[test]
    fn packets_have_the_priority_of_the_trusted_field() {
        let mut priorities = PacketPriorities { dscp_prio: [(26, 5)].into(), ..PacketPriorities::default() };
        let dscps = [0_u8, 7, 8, 26, 27, 48, 63];
        // The lower two bits are of ECN.
        assert_eq!(dscps.map(|dscp| priorities.of(dscp << 2 | 3, Some(1))), [0, 0, 1, 5, 3, 6, 7]);
        priorities.trust = TrustChoice::Pcp;
        assert_eq!((priorities.of(26 << 2, Some(4)), priorities.of(26 << 2, None)), (4, 0));
    }

    /// Problems of a device with these keys of its classes.
    fn problems(keys: &str) -> String {
        let text = format!("[[worker]]\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\n[device.classes]\n{keys}");
        Config::parse(&text, &[]).map_or_else(|problems| format!("{problems:?}"), |_| String::new())
    }

    #[test]
    fn each_mistake_is_named() {
        for good in ["", "tc_bw = { 0 = 100 }", "tc_strict = [0, 6]", "tc_bw = { 1 = 100 }\nprio_tc = { 0 = 1 }"] {
            assert_eq!(problems(good), "");
        }
        for (keys, expected) in [
            ("tc_bw = { 0 = 50, 1 = 40 }", &["90 percent"][..]),
            ("tc_bw = { 0 = 100 }\ntc_strict = [0]", &["class 0 has a share as well"]),
            ("tc_strict = [9]", &["no class"]),
            ("trust = \"pcp\"", &["class 0 has neither"]),
            ("tc_bw = { 1 = 100 }", &["class 0 has neither", "priority 0"]),
            (
                "tc_bw = { 0 = 100 }\nprio_tc = { 1 = 5, 2 = 6 }\ntc_maxrate_mbit = { 4 = 100 }",
                &["class 5 of priority 1", "class 6 of priority 2", "class 4 has neither"],
            ),
            ("tc_bw = { 0 = 50, 1 = 50 }\nprio_tc = { 0 = 1 }", &["class 0 has no priority"]),
        ] {
            let problems = problems(keys);
            assert!(expected.iter().all(|text| problems.contains(text)), "{keys}: {problems}");
        }
    }
}
