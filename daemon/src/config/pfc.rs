//! `[device.pfc]`: pauses by the other end of the link that a device honors, because its MAC does
//! not take them.

use std::fmt;

use roced_transport::{
    clock::Nanos,
    turns::class_pause::{PauseWatchdog, StormAction},
};
use roced_xdp::{GeneratedPauses, HonoredPauses, dcb::PrioritySet};

use super::{
    choices::{GlobalPauseChoice, WatchdogChoice},
    dcqcn::link_rate_mbit,
    read::priorities,
    reader::ConfigSection,
};

/// Time of the longest pause that a frame can say, in bits of the link.
const LONGEST_PAUSE_BITS: u64 = 65_535 * 512;

/// `device.pfc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// Priorities that PFC frames pause.
    pub honor: PrioritySet,
    /// Whether PAUSE frames pause all priorities.
    pub global_pause: GlobalPauseChoice,
    /// Priorities of the other end of the link that a receiver without room pauses.
    pub generate: PrioritySet,
    /// Rate of the link in Mbit/s, if not that of the interface.
    pub link_rate_mbit: Option<u32>,
    /// Action on pauses without an end.
    pub watchdog: WatchdogChoice,
    /// Time of a pause after which it is one without an end.
    pub watchdog_detection_ms: u32,
    /// Time without a pause after which that is over.
    pub watchdog_restoration_ms: u32,
}

impl Default for PfcConfig {
    fn default() -> Self {
        Self {
            honor: PrioritySet::default(),
            global_pause: GlobalPauseChoice::Ignore,
            generate: PrioritySet::default(),
            link_rate_mbit: None,
            watchdog: WatchdogChoice::Ignore,
            watchdog_detection_ms: 200,
            watchdog_restoration_ms: 200,
        }
    }
}

impl fmt::Display for PfcConfig {
    /// Honored priorities, such as "3 4", or "global"; "off" if nothing is honored.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.global_pause == GlobalPauseChoice::Honor {
            return f.write_str("global");
        } else if self.honor.is_empty() {
            return f.write_str("off");
        }
        let priorities: Vec<_> = self.honor.iter().map(|priority| priority.to_string()).collect();
        f.write_str(&priorities.join(" "))
    }
}

impl PfcConfig {
    /// Pauses to be honored on an interface of this speed in Mbit/s, 0 if it does not say.
    pub fn honored(&self, interface_mbit: u32) -> HonoredPauses {
        HonoredPauses {
            priorities: self.honor,
            global: self.global_pause == GlobalPauseChoice::Honor,
            link_mbit_per_s: self.link_mbit_per_s(interface_mbit),
        }
    }

    /// Pauses that an interface of this address asks its neighbor for, if it does.
    pub fn generated(&self, mac: [u8; 6]) -> Option<GeneratedPauses> {
        let pauses = GeneratedPauses {
            priorities: self.generate,
            mac,
            most: Nanos::from_millis(self.watchdog_detection_ms.into()),
        };
        (!self.generate.is_empty()).then_some(pauses)
    }

    /// Rate by which pauses have their time, on an interface of this speed.
    pub fn link_mbit_per_s(&self, interface_mbit: u32) -> u32 {
        link_rate_mbit(self.link_rate_mbit, interface_mbit).clamp(100, 800_000)
    }

    /// Rules for pauses without an end, on an interface of this speed: one frame alone is no storm.
    pub fn watchdog(&self, interface_mbit: u32) -> PauseWatchdog {
        let millis = |millis: u32| Nanos::from_millis(millis.into());
        let least = Nanos(2 * LONGEST_PAUSE_BITS * 1000 / u64::from(self.link_mbit_per_s(interface_mbit)));
        PauseWatchdog {
            detection: match self.watchdog {
                WatchdogChoice::Off => Nanos::NEVER,
                WatchdogChoice::Ignore | WatchdogChoice::Report => millis(self.watchdog_detection_ms).max(least),
            },
            restoration: millis(self.watchdog_restoration_ms),
            action: match self.watchdog {
                WatchdogChoice::Report => StormAction::Report,
                WatchdogChoice::Ignore | WatchdogChoice::Off => StormAction::Ignore,
            },
        }
    }
}

pub(super) fn read(section: &ConfigSection<'_, '_>) -> PfcConfig {
    let default = PfcConfig::default();
    let config = PfcConfig {
        honor: priorities(section, "honor", "priority"),
        global_pause: section.choice("global_pause", default.global_pause),
        generate: priorities(section, "generate", "priority"),
        link_rate_mbit: section.optional_number(
            "link_rate_mbit",
            "Mbit/s",
            "that of the interface, or 10000",
            100..=800_000,
        ),
        watchdog: section.choice("watchdog", default.watchdog),
        watchdog_detection_ms: section.number("watchdog_detection_ms", "ms", default.watchdog_detection_ms, 10..=5000),
        watchdog_restoration_ms: section.number(
            "watchdog_restoration_ms",
            "ms",
            default.watchdog_restoration_ms,
            10..=60_000,
        ),
    };
    if config.global_pause == GlobalPauseChoice::Honor && !config.honor.is_empty() {
        let message = "a link has PFC or global pause, not both: `honor` must be [], or `global_pause` \"ignore\"";
        section.refuse("global_pause", message.to_owned());
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// The pauses of a device with these lines, and `[device.classes]` with others.
    fn parsed(keys: &str, classes: &str) -> Result<PfcConfig, String> {
        let device = "[[worker]]\n[[device]]\nname = \"roce0\"\ninterface = \"eth0\"\n";
        let text = format!("{device}[device.pfc]\n{keys}\n[device.classes]\n{classes}\n");
        let parsed = Config::parse(&text, &[]);
        parsed.map(|config| config.devices[0].pfc.clone()).map_err(|problems| format!("{problems:?}"))
    }

    #[test]
    fn pauses_and_their_watchdog_are_those_of_the_config() {
        let all = "tc_bw = { 0 = 100 }";
        let config = parsed("honor = [4, 3]\nlink_rate_mbit = 25000", all).expect("good keys");
        assert_eq!(config.to_string(), "3 4");
        assert_eq!((config.honored(100).priorities.bits(), config.honored(100).link_mbit_per_s), (0b1_1000, 25_000));
        assert_eq!(config.watchdog(0), PauseWatchdog::default());
        let config = parsed("global_pause = \"honor\"\nwatchdog = \"report\"\nwatchdog_detection_ms = 100", all);
        let config = config.expect("good keys");
        assert_eq!(config.to_string(), "global");
        assert!(config.honored(0).global && config.honored(0).link_mbit_per_s == 10_000);
        assert_eq!(config.honored(1000).link_mbit_per_s, 1000);
        assert_eq!(config.generated([1; 6]), None);
        let generated = parsed("generate = [3]\nwatchdog_detection_ms = 50", "").expect("it holds up no class");
        let generated = generated.generated([1; 6]).expect("priority 3");
        assert_eq!(generated.priorities.bits(), 8);
        assert_eq!((generated.mac, generated.most), ([1; 6], Nanos::from_millis(50)));
        assert_eq!(
            config.watchdog(10_000),
            PauseWatchdog {
                detection: Nanos::from_millis(100),
                action: StormAction::Report,
                ..PauseWatchdog::default()
            }
        );
        assert_eq!(config.watchdog(1000).detection, Nanos(2 * 65_535 * 512).max(Nanos::from_millis(100)));
        assert_eq!(config.watchdog(100).detection, Nanos(2 * 65_535 * 5120), "a frame is a pause of 336 ms");
        let config = parsed("watchdog = \"off\"", "").expect("nothing is honored");
        assert_eq!((config.to_string().as_str(), config.watchdog(0).detection), ("off", Nanos::NEVER));
    }

    #[test]
    fn each_mistake_is_named() {
        let all = "tc_bw = { 0 = 100 }";
        for (keys, classes, expected) in [
            ("honor = [3]", "", "[device.classes] has none"),
            ("global_pause = \"honor\"", "", "[device.classes] has none"),
            ("honor = [3]\nglobal_pause = \"honor\"", all, "PFC or global pause, not both"),
            ("honor = [8]", all, "no priority"),
            ("watchdog = \"drop\"", all, "report"),
        ] {
            let problems = parsed(keys, classes).expect_err(keys);
            assert!(problems.contains(expected), "{keys}: {problems}");
        }
    }
}
