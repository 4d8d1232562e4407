//! `[device.dcqcn]`: parameters of rates that follow CNPs, under mlx5's names and units.

use std::{collections::BTreeMap, ops::RangeInclusive};

use roced_transport::{
    clock::Nanos,
    congestion::dcqcn::{DcqcnParameters, MEGABIT_BYTES},
};

use super::{choices::DcqcnPreset, reader::ConfigSection};

/// Rate of a link that does not say its own, Mbit/s.
const LINE_RATE_MBIT: u32 = 10_000;

/// Rate of a link in Mbit/s: the configured one, that of the interface, 0 if it does not say, or one
/// for these.
pub(super) fn link_rate_mbit(configured: Option<u32>, interface_mbit: u32) -> u32 {
    configured.or(Some(interface_mbit).filter(|speed| *speed > 0)).unwrap_or(LINE_RATE_MBIT)
}

/// `device.dcqcn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcqcnConfig {
    /// Where the parameters come from that are not named.
    pub preset: DcqcnPreset,
    /// Rate of the link in Mbit/s, if not that of the interface.
    pub line_rate_mbit: Option<u32>,
    /// Parameters that are named, with their values.
    pub named: BTreeMap<&'static str, u32>,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        Self { preset: DcqcnPreset::Paper, line_rate_mbit: None, named: BTreeMap::new() }
    }
}

impl DcqcnConfig {
    /// Parameters for an interface of this speed in Mbit/s, 0 if it does not say.
    pub fn parameters(&self, interface_mbit: u32) -> DcqcnParameters {
        let line_rate = u64::from(link_rate_mbit(self.line_rate_mbit, interface_mbit)) * MEGABIT_BYTES;
        let mut parameters = match self.preset {
            DcqcnPreset::Paper => DcqcnParameters::paper(line_rate),
            DcqcnPreset::Mlx => DcqcnParameters::mlx(line_rate),
        };
        for known in PARAMETERS {
            if let Some(value) = self.named.get(known.name) {
                (known.set)(&mut parameters, *value);
            }
        }
        parameters
    }
}

/// A parameter that a config may name.
struct Parameter {
    name: &'static str,
    unit: &'static str,
    allowed: RangeInclusive<u32>,
    set: fn(&mut DcqcnParameters, u32),
}

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "clamp_tgt_rate", unit: "", allowed: 0..=1, set: |it, value| it.clamp_tgt_rate = value == 1 },
    Parameter {
        name: "clamp_tgt_rate_after_time_inc",
        unit: "",
        allowed: 0..=1,
        set: |it, value| it.clamp_tgt_rate_after_time_inc = value == 1,
    },
    Parameter {
        name: "rpg_time_reset_us",
        unit: "us",
        allowed: 1..=131_071,
        set: |it, value| it.rpg_time_reset = Nanos::from_micros(value.into()),
    },
    Parameter {
        name: "rpg_byte_reset",
        unit: "bytes",
        allowed: 0..=100_000_000,
        set: |it, value| it.rpg_byte_reset = value.into(),
    },
    Parameter { name: "rpg_threshold", unit: "", allowed: 1..=31, set: |it, value| it.rpg_threshold = value as u8 },
    Parameter {
        name: "rpg_max_rate_mbit",
        unit: "Mbit/s",
        allowed: 0..=800_000,
        set: |it, value| it.rpg_max_rate = rate(value),
    },
    Parameter {
        name: "rpg_ai_rate_mbit",
        unit: "Mbit/s",
        allowed: 1..=800_000,
        set: |it, value| it.rpg_ai_rate = rate(value),
    },
    Parameter {
        name: "rpg_hai_rate_mbit",
        unit: "Mbit/s",
        allowed: 1..=800_000,
        set: |it, value| it.rpg_hai_rate = rate(value),
    },
    Parameter { name: "rpg_gd", unit: "", allowed: 10..=15, set: |it, value| it.rpg_gd = value as u8 },
    Parameter {
        name: "rpg_min_dec_fac",
        unit: "percent",
        allowed: 0..=100,
        set: |it, value| it.rpg_min_dec_fac = value as u8,
    },
    Parameter {
        name: "rpg_min_rate_mbit",
        unit: "Mbit/s",
        allowed: 1..=800_000,
        set: |it, value| it.rpg_min_rate = rate(value),
    },
    Parameter {
        name: "rate_to_set_on_first_cnp_mbit",
        unit: "Mbit/s",
        allowed: 0..=800_000,
        set: |it, value| it.rate_to_set_on_first_cnp = rate(value),
    },
    Parameter { name: "dce_tcp_g", unit: "", allowed: 1..=1023, set: |it, value| it.dce_tcp_g = value as u16 },
    Parameter {
        name: "dce_tcp_rtt_us",
        unit: "us",
        allowed: 1..=131_071,
        set: |it, value| it.dce_tcp_rtt = Nanos::from_micros(value.into()),
    },
    Parameter {
        name: "rate_reduce_monitor_period_us",
        unit: "us",
        allowed: 1..=131_071,
        set: |it, value| it.rate_reduce_monitor_period = Nanos::from_micros(value.into()),
    },
    Parameter {
        name: "initial_alpha_value",
        unit: "",
        allowed: 1..=1023,
        set: |it, value| it.initial_alpha_value = value as u16,
    },
];

fn rate(mbit: u32) -> u64 {
    u64::from(mbit) * MEGABIT_BYTES
}

pub(super) fn read(section: &ConfigSection<'_, '_>) -> DcqcnConfig {
    let preset = section.choice("preset", DcqcnConfig::default().preset);
    let line_rate_mbit =
        section.optional_number("line_rate_mbit", "Mbit/s", "the speed of the interface, or 10000", 1..=800_000);
    let value = |known: &Parameter| {
        let value = section.optional_number(known.name, known.unit, "that of the preset", known.allowed.clone())?;
        Some((known.name, value))
    };
    DcqcnConfig { preset, line_rate_mbit, named: PARAMETERS.iter().filter_map(value).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_the_link_is_the_configs_or_the_interfaces_or_ten_gigabit() {
        let rate = |line_rate_mbit, interface| {
            DcqcnConfig { line_rate_mbit, ..DcqcnConfig::default() }.parameters(interface).line_rate / MEGABIT_BYTES
        };
        assert_eq!([rate(Some(200), 25_000), rate(None, 25_000), rate(None, 0)], [200, 25_000, 10_000]);
    }

    #[test]
    fn named_parameters_replace_those_of_the_preset() {
        let named = [("rpg_ai_rate_mbit", 7), ("clamp_tgt_rate", 1), ("rpg_time_reset_us", 9)].into();
        let config = DcqcnConfig { preset: DcqcnPreset::Mlx, line_rate_mbit: Some(1000), named };
        let expected = DcqcnParameters {
            rpg_ai_rate: 7 * MEGABIT_BYTES,
            clamp_tgt_rate: true,
            rpg_time_reset: Nanos::from_micros(9),
            ..DcqcnParameters::mlx(1000 * MEGABIT_BYTES)
        };
        assert_eq!(config.parameters(0), expected);
    }
}
