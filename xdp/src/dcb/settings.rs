//! Settings of a NIC, as they are after the check of a reply.

use std::fmt;

use super::{DSCPS, PRIORITIES};

/// Everything that a driver tells of its DCB; `None` stands for settings that it does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcbSettings {
    /// The owner of these settings.
    pub dcbx: Option<DcbxFlags>,
    /// Traffic classes.
    pub ets: Option<EtsSettings>,
    /// Priority flow control.
    pub pfc: Option<PfcSettings>,
    /// Priorities of DSCPs in their order, each pair once. A DSCP may have several.
    pub dscp_priorities: Vec<DscpPriority>,
    /// Fields of a frame that its priority is taken from, the first one that it has; Linux 6.2.
    pub trust: Option<Vec<TrustedField>>,
}

impl DcbSettings {
    /// The agent that owns these settings, if there is one: it would undo a change, or the NIC
    /// would contradict the agent's words to the switch.
    pub fn agent(&self) -> Option<DcbxAgent> {
        let flags = self.dcbx.unwrap_or_default();
        let is_by_firmware = flags.is_lld_managed() || !(flags.is_empty() || flags.is_host() || flags.is_static());
        if is_by_firmware {
            return Some(DcbxAgent::Firmware);
        }
        self.ets.as_ref().is_some_and(|ets| ets.willing).then_some(DcbxAgent::Host)
    }

    /// Priorities of a DSCP.
    pub fn priorities_of(&self, dscp: u8) -> PrioritySet {
        let of_dscp = self.dscp_priorities.iter().filter(|entry| entry.dscp == dscp);
        of_dscp.map(|entry| entry.priority).collect()
    }
}

/// A speaker of DCBX, which takes settings from the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcbxAgent {
    /// Firmware or driver of the NIC.
    Firmware,
    /// A program of this host (lldpad, lldpd): it has set `willing`.
    Host,
}

/// `DCB_CAP_DCBX_*` of `linux/dcbnl.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcbxFlags(pub u8);

impl DcbxFlags {
    /// Neither agent nor protocol.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// An agent of the host negotiates, or none does.
    pub const fn is_host(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// An agent in firmware or driver negotiates.
    pub const fn is_lld_managed(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// Nothing is negotiated.
    pub const fn is_static(self) -> bool {
        self.0 & 0x10 != 0
    }
}

/// A set of priorities of IEEE 802.1Q.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrioritySet(u8);

impl PrioritySet {
    /// Bit `p` is priority `p`.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Bit `p` is priority `p`.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// No priority.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Their number.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether a priority is one of them.
    pub fn contains(self, priority: u8) -> bool {
        self.iter().any(|one| one == priority)
    }

    /// Those of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..PRIORITIES).filter(move |priority| self.0 & (1 << priority) != 0)
    }
}

impl FromIterator<u8> for PrioritySet {
    /// Numbers that are no priorities are left out.
    fn from_iter<I: IntoIterator<Item = u8>>(priorities: I) -> Self {
        let valid = priorities.into_iter().filter(|priority| *priority < PRIORITIES);
        Self(valid.fold(0, |bits, priority| bits | 1 << priority))
    }
}

impl fmt::Display for PrioritySet {
    /// `3, 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, priority) in self.iter().enumerate() {
            write!(f, "{}{priority}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Priority flow control, `struct ieee_pfc` but for its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfcSettings {
    /// Priorities that can be on at a time; 0 if the driver does not say.
    pub capability: u8,
    /// Priorities that are paused on their own.
    pub enabled: PrioritySet,
    /// The NIC can bypass MACsec delay (MBC).
    pub macsec_bypass: u8,
    /// Allowance for the round trip to the peer, in bit times or, by some drivers, meters of cable.
    pub delay: u16,
}

/// Traffic classes, the parts of `struct ieee_ets` that are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EtsSettings {
    /// An agent takes settings from the switch.
    pub willing: bool,
    /// The traffic class of each priority.
    pub class_of: [u8; PRIORITIES as usize],
}

impl EtsSettings {
    /// Priorities in the class of `priority`, itself among them.
    pub fn sharing(&self, priority: u8) -> PrioritySet {
        let class = self.class_of.get(usize::from(priority));
        (0..PRIORITIES).filter(|other| self.class_of.get(usize::from(*other)) == class).collect()
    }
}

/// A DSCP and its priority: an entry of the application table with selector 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DscpPriority {
    /// Below [`DSCPS`].
    pub dscp: u8,
    /// Below [`PRIORITIES`].
    pub priority: u8,
}

impl DscpPriority {
    /// An entry, if both numbers are in their ranges.
    pub fn new(dscp: u8, priority: u8) -> Option<Self> {
        (dscp < DSCPS && priority < PRIORITIES).then_some(Self { dscp, priority })
    }
}

/// A field of a frame that says its priority, by its selector in the application table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedField {
    /// DSCP of the IP header.
    Dscp,
    /// Priority of the VLAN tag.
    Pcp,
    /// Another one, by its number.
    Other(u8),
}

impl TrustedField {
    const DSCP: u8 = 5;
    const PCP: u8 = 255;

    /// By its number.
    pub const fn from_selector(selector: u8) -> Self {
        match selector {
            Self::DSCP => Self::Dscp,
            Self::PCP => Self::Pcp,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub const fn selector(self) -> u8 {
        match self {
            Self::Dscp => Self::DSCP,
            Self::Pcp => Self::PCP,
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for TrustedField {
    /// As the command `dcb` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dscp => f.write_str("dscp"),
            Self::Pcp => f.write_str("pcp"),
            Self::Other(1) => f.write_str("ethtype"),
            Self::Other(2) => f.write_str("stream-port"),
            Self::Other(3) => f.write_str("dgram-port"),
            Self::Other(4) => f.write_str("port"),
            Self::Other(other) => write!(f, "selector {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_owns_the_settings_where_the_driver_or_willing_says_so() {
        let with = |flags: Option<u8>, willing| {
            let ets = Some(EtsSettings { willing, ..EtsSettings::default() });
            DcbSettings { dcbx: flags.map(DcbxFlags), ets, ..DcbSettings::default() }.agent()
        };
        assert_eq!((with(None, false), with(Some(0), false)), (None, None), "no DCBX");
        assert_eq!(with(Some(0x0d), false), None, "a host that nothing negotiates for");
        assert_eq!(with(Some(0x18), false), None, "static");
        assert_eq!(with(Some(0x0e), false), Some(DcbxAgent::Firmware));
        assert_eq!(with(Some(0x0f), true), Some(DcbxAgent::Firmware), "managed, although the host is named as well");
        assert_eq!(with(Some(0x0c), false), Some(DcbxAgent::Firmware), "mlx5 with its agent: not the host's");
        assert_eq!((with(Some(0x09), true), with(None, true)), (Some(DcbxAgent::Host), Some(DcbxAgent::Host)));
    }

    #[test]
    fn a_set_of_priorities_has_no_other_numbers() {
        let set: PrioritySet = [4, 3, 8, 255, 3].into_iter().collect();
        assert_eq!((set.bits(), set.len(), set.to_string()), (0x18, 2, "3, 4".to_owned()));
        assert!(set.contains(3) && !set.contains(5) && !set.contains(11));
        assert_eq!(set.without(PrioritySet::from_bits(0x08)).bits(), 0x10);
        assert_eq!(set.union(PrioritySet::from_bits(0x80)).iter().collect::<Vec<_>>(), [3, 4, 7]);
    }

    #[test]
    fn classes_are_shared_by_priorities_with_the_same_number() {
        let ets = EtsSettings { willing: false, class_of: [0, 0, 0, 3, 3, 5, 6, 200] };
        assert_eq!([ets.sharing(3).bits(), ets.sharing(7).bits(), ets.sharing(0).bits()], [0x18, 0x80, 0x07]);
    }

    #[test]
    fn selectors_are_the_same_both_ways() {
        assert!((0..=255).all(|selector| TrustedField::from_selector(selector).selector() == selector));
        assert_eq!((DscpPriority::new(64, 0), DscpPriority::new(0, 8)), (None, None));
    }
}
