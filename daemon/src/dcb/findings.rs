//! Differences between the settings of a NIC and those that the config wants.

use std::fmt;

use roced_transport::wire::largest_path_mtu;
use roced_xdp::{
    GlobalPause,
    dcb::{DcbSettings, DscpPriority, PfcSettings, PrioritySet, TrustedField},
};

use super::DcbWanted;

/// A NIC as it is.
#[derive(Debug)]
pub(super) struct NicFound<'a> {
    pub(super) settings: &'a DcbSettings,
    /// `None` if the driver does not say.
    pub(super) pause: Option<GlobalPause>,
    pub(super) link_mtu_bytes: u32,
}

/// Something that is wrong with a NIC. Its display is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NicFinding {
    /// Global pause is on: it stops all priorities, and excludes PFC.
    GlobalPauseOn(GlobalPause),
    /// The driver tells nothing of PFC.
    NoPfc(PrioritySet),
    /// Priorities without PFC.
    PfcOff(PrioritySet),
    /// More priorities are wanted than the NIC can pause on their own.
    TooManyLossless { wanted: PrioritySet, most: u8 },
    /// Lossless and other priorities in one traffic class: a pause of one stops the others.
    SharedClass { lossless: PrioritySet, others: PrioritySet, class: u8 },
    /// DSCPs without the wanted priority, or with further ones.
    OtherPriorities(Vec<DscpPriority>),
    /// The NIC takes priorities from these fields, and not first from the DSCP.
    DscpNotTrusted(Vec<TrustedField>),
    /// The MTU has room for the payload of a path MTU, and not for its headers.
    MtuWithoutHeaders { link_mtu_bytes: u32, path_mtu_bytes: u32, needed_bytes: u32 },
}

/// Everything that is wrong, in the order in which it is mended: global pause excludes PFC, and a
/// DSCP has to have its priority before it is trusted.
pub(super) fn findings(wanted: &DcbWanted, found: &NicFound<'_>) -> Vec<NicFinding> {
    let mut all = Vec::new();
    if !wanted.lossless.is_empty() {
        all.extend(found.pause.filter(|pause| pause.rx || pause.tx).map(NicFinding::GlobalPauseOn));
        all.extend(pfc_findings(wanted.lossless, found.settings.pfc));
        all.extend(shared_classes(wanted.lossless, found.settings));
    }
    if !wanted.dscp_prio.is_empty() {
        let others = other_priorities(wanted, found.settings);
        all.extend((!others.is_empty()).then_some(NicFinding::OtherPriorities(others)));
        let untrusted = found.settings.trust.clone().filter(|fields| fields.first() != Some(&TrustedField::Dscp));
        all.extend(untrusted.map(NicFinding::DscpNotTrusted));
    }
    if !wanted.is_nothing() {
        all.extend(mtu_finding(found.link_mtu_bytes));
    }
    all
}

fn pfc_findings(lossless: PrioritySet, pfc: Option<PfcSettings>) -> Vec<NicFinding> {
    let Some(pfc) = pfc else { return vec![NicFinding::NoPfc(lossless)] };
    let (off, wanted) = (lossless.without(pfc.enabled), lossless.union(pfc.enabled));
    let mut found = Vec::new();
    if !off.is_empty() {
        found.push(NicFinding::PfcOff(off));
        if pfc.capability > 0 && wanted.len() > u32::from(pfc.capability) {
            found.push(NicFinding::TooManyLossless { wanted, most: pfc.capability });
        }
    }
    found
}

fn shared_classes(lossless: PrioritySet, settings: &DcbSettings) -> Vec<NicFinding> {
    let Some(ets) = &settings.ets else { return Vec::new() };
    let mut found = Vec::new();
    let mut seen = PrioritySet::default();
    for priority in lossless.iter().filter(|priority| usize::from(*priority) < ets.class_of.len()) {
        let sharing = ets.sharing(priority);
        let others = sharing.without(lossless);
        if !others.is_empty() && !seen.contains(priority) {
            let (own, class) = (sharing.without(others), ets.class_of[usize::from(priority)]);
            found.push(NicFinding::SharedClass { lossless: own, others, class });
        }
        seen = seen.union(sharing);
    }
    found
}

/// Wanted entries of DSCPs that have another priority as well, or none.
fn other_priorities(wanted: &DcbWanted, settings: &DcbSettings) -> Vec<DscpPriority> {
    let entries = wanted.dscp_prio.iter().filter_map(|(dscp, priority)| DscpPriority::new(*dscp, *priority));
    entries.filter(|entry| settings.priorities_of(entry.dscp) != [entry.priority].into_iter().collect()).collect()
}

/// An MTU between a path MTU and the link MTU that it needs, from 2048 on: smaller ones are those
/// of ordinary networks.
fn mtu_finding(link_mtu_bytes: u32) -> Option<NicFinding> {
    let path_mtu_bytes = [4096, 2048].into_iter().find(|path_mtu| *path_mtu <= link_mtu_bytes)?;
    let carries = |link_mtu: &u32| largest_path_mtu(*link_mtu, false) >= Some(path_mtu_bytes);
    let needed_bytes = (path_mtu_bytes..path_mtu_bytes + 256).find(carries)?;
    let finding = NicFinding::MtuWithoutHeaders { link_mtu_bytes, path_mtu_bytes, needed_bytes };
    (link_mtu_bytes < needed_bytes).then_some(finding)
}

impl NicFinding {
    /// The command that mends it, if there is one.
    pub(super) fn command(&self, interface: &str) -> Option<String> {
        let on = |priorities: &PrioritySet| {
            priorities.iter().map(|priority| format!("{priority}:on")).collect::<Vec<_>>().join(" ")
        };
        Some(match self {
            Self::GlobalPauseOn(pause) => {
                format!("ethtool -A {interface} {}rx off tx off", if pause.autoneg { "autoneg off " } else { "" })
            }
            Self::PfcOff(off) => format!("dcb pfc set dev {interface} prio-pfc {}", on(off)),
            Self::SharedClass { lossless, .. } => {
                // A class of the same number as the priority, which is the usual assignment.
                let classes = lossless.iter().map(|priority| format!("{priority}:{priority}"));
                format!("dcb ets set dev {interface} prio-tc {}", classes.collect::<Vec<_>>().join(" "))
            }
            Self::OtherPriorities(entries) => {
                let entries = entries.iter().map(|entry| format!("{}:{}", entry.dscp, entry.priority));
                format!("dcb app replace dev {interface} dscp-prio {}", entries.collect::<Vec<_>>().join(" "))
            }
            Self::DscpNotTrusted(fields) => {
                format!("dcb apptrust set dev {interface} order {}", names(&dscp_first(fields)))
            }
            Self::MtuWithoutHeaders { needed_bytes, .. } => format!("ip link set dev {interface} mtu {needed_bytes}"),
            Self::NoPfc(_) | Self::TooManyLossless { .. } => return None,
        })
    }
}

/// The DSCP, then the other fields in their order.
pub(super) fn dscp_first(fields: &[TrustedField]) -> Vec<TrustedField> {
    let others = fields.iter().copied().filter(|field| *field != TrustedField::Dscp);
    [TrustedField::Dscp].into_iter().chain(others).collect()
}

fn names(fields: &[TrustedField]) -> String {
    fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for NicFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GlobalPauseOn(pause) => {
                let directions = match (pause.rx, pause.tx) {
                    (true, true) => "received and sent",
                    (true, false) => "received",
                    (false, _) => "sent",
                };
                write!(f, "global pause ({directions}) stops all priorities and excludes PFC")
            }
            Self::NoPfc(wanted) => write!(f, "the driver has no PFC, wanted for priority {wanted}"),
            Self::PfcOff(off) => write!(f, "PFC is off for priority {off}"),
            Self::TooManyLossless { wanted, most } => {
                write!(f, "the NIC has PFC for {most} priorities at most, not for all of {wanted}")
            }
            Self::SharedClass { lossless, others, class } => {
                write!(
                    f,
                    "traffic class {class} has lossless priority {lossless} and also {others}, which its pause stops"
                )
            }
            Self::OtherPriorities(entries) => {
                let entries = entries.iter().map(|entry| format!("{} not priority {}", entry.dscp, entry.priority));
                write!(f, "DSCP {}", entries.collect::<Vec<_>>().join(", "))
            }
            Self::DscpNotTrusted(fields) if fields.is_empty() => write!(f, "the NIC ignores the DSCP"),
            Self::DscpNotTrusted(fields) => {
                write!(f, "the NIC takes the priority from {} and not first from the DSCP", names(fields))
            }
            Self::MtuWithoutHeaders { link_mtu_bytes, path_mtu_bytes, needed_bytes } => write!(
                f,
                "MTU {link_mtu_bytes} has no room for the headers of path MTU {path_mtu_bytes}, which needs {needed_bytes}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use roced_xdp::dcb::{DcbxFlags, EtsSettings};

    use super::*;

    /// Priority 3 lossless, DSCPs 26 and 48.
    fn wanted() -> DcbWanted {
        DcbWanted { lossless: PrioritySet::from_bits(0x08), dscp_prio: [(26, 3), (48, 6)].into() }
    }

    fn entries(pairs: &[(u8, u8)]) -> Vec<DscpPriority> {
        pairs.iter().map(|(dscp, priority)| DscpPriority::new(*dscp, *priority).expect("in range")).collect()
    }

    /// As wanted.
    fn good() -> DcbSettings {
        DcbSettings {
            dcbx: Some(DcbxFlags(0x09)),
            ets: Some(EtsSettings { willing: false, class_of: [0, 1, 2, 3, 4, 5, 6, 7] }),
            pfc: Some(PfcSettings { capability: 8, enabled: PrioritySet::from_bits(0x08), ..PfcSettings::default() }),
            dscp_priorities: entries(&[(26, 3), (48, 6)]),
            trust: Some(vec![TrustedField::Dscp]),
        }
    }

    /// Lines and commands.
    fn told(wanted: &DcbWanted, found: &NicFound<'_>) -> Vec<(String, String)> {
        let line = |finding: &NicFinding| (finding.to_string(), finding.command("eth0").unwrap_or_default());
        findings(wanted, found).iter().map(line).collect()
    }

    fn told_of(settings: &DcbSettings) -> Vec<(String, String)> {
        told(&wanted(), &NicFound { settings, pause: Some(GlobalPause::default()), link_mtu_bytes: 1500 })
    }

    fn one(settings: &DcbSettings) -> (String, String) {
        let mut all = told_of(settings);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn pair(line: &str, command: &str) -> (String, String) {
        (line.to_owned(), command.to_owned())
    }

    #[test]
    fn a_nic_as_wanted_has_no_findings_and_nothing_wanted_finds_nothing() {
        assert!(told_of(&good()).is_empty());
        let silent = DcbSettings { trust: None, ets: None, ..good() };
        assert!(told_of(&silent).is_empty(), "fields that a driver does not tell");
        let pause = Some(GlobalPause { autoneg: true, rx: true, tx: true });
        let worst = NicFound { settings: &DcbSettings::default(), pause, link_mtu_bytes: 4096 };
        assert!(findings(&DcbWanted::default(), &worst).is_empty());
    }

    #[test]
    fn priorities_without_pfc_are_named_and_others_stay() {
        let pfc = |enabled, capability| {
            Some(PfcSettings { capability, enabled: PrioritySet::from_bits(enabled), ..PfcSettings::default() })
        };
        let off = pair("PFC is off for priority 3", "dcb pfc set dev eth0 prio-pfc 3:on");
        assert_eq!(one(&DcbSettings { pfc: pfc(0, 8), ..good() }), off);
        assert_eq!(one(&DcbSettings { pfc: pfc(0x10, 0), ..good() }), off, "priority 4 is another's");
        assert!(told_of(&DcbSettings { pfc: pfc(0x18, 1), ..good() }).is_empty(), "on already");
        let full = told_of(&DcbSettings { pfc: pfc(0x10, 1), ..good() });
        let too_many = pair("the NIC has PFC for 1 priorities at most, not for all of 3, 4", "");
        assert_eq!(full, [off, too_many]);
        let none = one(&DcbSettings { pfc: None, ..good() });
        assert_eq!(none, pair("the driver has no PFC, wanted for priority 3", ""));
    }

    #[test]
    fn each_dscp_has_the_wanted_priority_alone() {
        let with = |pairs: &[(u8, u8)]| one(&DcbSettings { dscp_priorities: entries(pairs), ..good() });
        let both = pair("DSCP 26 not priority 3, 48 not priority 6", "dcb app replace dev eth0 dscp-prio 26:3 48:6");
        assert_eq!(with(&[]), both);
        assert_eq!(with(&[(26, 2), (48, 0)]), both);
        let first = pair("DSCP 26 not priority 3", "dcb app replace dev eth0 dscp-prio 26:3");
        assert_eq!(with(&[(26, 2), (26, 3), (48, 6)]), first, "two priorities");
        let more = DcbSettings { dscp_priorities: entries(&[(10, 1), (26, 3), (48, 6)]), ..good() };
        assert!(told_of(&more).is_empty(), "DSCPs of others");
    }

    #[test]
    fn the_dscp_comes_first_among_trusted_fields() {
        let with = |fields: &[TrustedField]| one(&DcbSettings { trust: Some(fields.to_vec()), ..good() });
        assert_eq!(with(&[]), pair("the NIC ignores the DSCP", "dcb apptrust set dev eth0 order dscp"));
        let later = pair(
            "the NIC takes the priority from pcp dscp and not first from the DSCP",
            "dcb apptrust set dev eth0 order dscp pcp",
        );
        assert_eq!(with(&[TrustedField::Pcp, TrustedField::Dscp]), later);
        let before = DcbSettings { trust: Some(vec![TrustedField::Dscp, TrustedField::Pcp]), ..good() };
        assert!(told_of(&before).is_empty());
    }

    #[test]
    fn global_pause_is_off_where_priorities_are_lossless() {
        let with = |wanted: &DcbWanted, pause| {
            told(wanted, &NicFound { settings: &good(), pause: Some(pause), link_mtu_bytes: 1500 })
        };
        let pause = |autoneg, rx, tx| GlobalPause { autoneg, rx, tx };
        let line = |directions| format!("global pause ({directions}) stops all priorities and excludes PFC");
        let both = vec![(line("received and sent"), "ethtool -A eth0 autoneg off rx off tx off".to_owned())];
        assert_eq!(with(&wanted(), pause(true, true, true)), both);
        let sent = vec![(line("sent"), "ethtool -A eth0 rx off tx off".to_owned())];
        assert_eq!(with(&wanted(), pause(false, false, true)), sent);
        assert!(with(&wanted(), pause(true, false, false)).is_empty());
        let lossy = DcbWanted { lossless: PrioritySet::default(), ..wanted() };
        assert!(with(&lossy, pause(false, true, true)).is_empty());
    }

    #[test]
    fn a_lossless_priority_shares_its_class_with_no_other() {
        let with = |class_of| one(&DcbSettings { ets: Some(EtsSettings { willing: false, class_of }), ..good() });
        assert_eq!(
            with([0; 8]),
            pair(
                "traffic class 0 has lossless priority 3 and also 0, 1, 2, 4, 5, 6, 7, which its pause stops",
                "dcb ets set dev eth0 prio-tc 3:3"
            )
        );
        let two = DcbWanted { lossless: PrioritySet::from_bits(0x18), ..DcbWanted::default() };
        let settings = DcbSettings {
            ets: Some(EtsSettings { willing: false, class_of: [0, 1, 2, 3, 3, 3, 6, 7] }),
            pfc: Some(PfcSettings { enabled: PrioritySet::from_bits(0x18), ..PfcSettings::default() }),
            ..good()
        };
        let found = told(&two, &NicFound { settings: &settings, pause: None, link_mtu_bytes: 1500 });
        let line = "traffic class 3 has lossless priority 3, 4 and also 5, which its pause stops";
        assert_eq!(found, [pair(line, "dcb ets set dev eth0 prio-tc 3:3 4:4")]);
    }

    #[test]
    fn an_mtu_has_room_for_the_headers_of_its_path_mtu() {
        let with = |link_mtu_bytes| told(&wanted(), &NicFound { settings: &good(), pause: None, link_mtu_bytes });
        let needed = (4096..).find(|mtu| largest_path_mtu(*mtu, false) == Some(4096)).expect("with headers");
        for mtu in [1024, 1280, 1500, 2000, needed, 4200, 9000, u32::MAX] {
            assert!(with(mtu).is_empty(), "{mtu}");
        }
        for mtu in [4096, needed - 1] {
            let line = format!("MTU {mtu} has no room for the headers of path MTU 4096, which needs {needed}");
            assert_eq!(with(mtu), [(line, format!("ip link set dev eth0 mtu {needed}"))]);
        }
        assert_eq!(with(2048).len(), 1);
    }
}
