//! Writes the settings that differ, unless a DCBX agent owns them.

use roced_xdp::{
    GlobalPause,
    dcb::{DcbError, DcbSettings, DcbxAgent, DscpPriority, NicControl, NicDcb, PfcSettings},
};
use tracing::info;

use super::{
    DcbWanted,
    findings::{NicFinding, dscp_first},
    refusal,
};

/// Why a setting was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// An agent owns all settings.
    Agent(DcbxAgent),
    /// The kernel or the driver refuses a change, for this reason.
    Refused { change: &'static str, reason: String },
}

impl Unwritten {
    /// In a line, with a next step.
    pub(super) fn text(&self, interface: &str) -> String {
        match self {
            Self::Agent(DcbxAgent::Firmware) => format!(
                "nothing was written: the firmware's DCBX agent owns the settings; configure the switch, or turn the agent \
                 off (`dcb dcbx set dev {interface} host ieee`, or the vendor's tool)"
            ),
            Self::Agent(DcbxAgent::Host) => format!(
                "nothing was written: {interface} is willing, so an LLDP agent (lldpad, lldpd) owns the settings; \
                 configure them there, or stop the agent"
            ),
            Self::Refused { change, reason } => format!("{change} was not written: {reason}"),
        }
    }
}

/// Mends findings, one change for each that can be mended. Returns the reasons of settings that were
/// not written.
pub(super) fn apply<C: NicControl>(
    nic: &mut NicDcb<C>,
    settings: &DcbSettings,
    wanted: &DcbWanted,
    findings: &[NicFinding],
) -> Vec<Unwritten> {
    if let Some(agent) = settings.agent() {
        return vec![Unwritten::Agent(agent)];
    }
    let mut unwritten = Vec::new();
    for finding in findings {
        let (change, result) = match finding {
            NicFinding::GlobalPauseOn(_) => ("global pause", nic.set_global_pause(GlobalPause::default())),
            NicFinding::PfcOff(_) => ("PFC", enable_pfc(nic, settings, wanted)),
            NicFinding::OtherPriorities(entries) => ("the priority of DSCPs", replace(nic, settings, entries)),
            NicFinding::DscpNotTrusted(fields) => ("trust of the DSCP", nic.set_trust(&dscp_first(fields))),
            // Classes have shares of the bandwidth and the MTU concerns all traffic: the operator's.
            NicFinding::SharedClass { .. }
            | NicFinding::MtuWithoutHeaders { .. }
            | NicFinding::NoPfc(_)
            | NicFinding::TooManyLossless { .. } => continue,
        };
        match result {
            Ok(()) => {
                info!(interface = nic.interface(), change, "DCB of the NIC: written, because \"{finding}\"");
            }
            Err(error) => unwritten.push(Unwritten::Refused { change, reason: refusal(&error, nic.interface()) }),
        }
    }
    unwritten
}

/// Other priorities keep their flow control, and the rest of the structure is as it was read.
fn enable_pfc<C: NicControl>(nic: &mut NicDcb<C>, settings: &DcbSettings, wanted: &DcbWanted) -> Result<(), DcbError> {
    let now = settings.pfc.unwrap_or_default();
    nic.set_pfc(&PfcSettings { enabled: now.enabled.union(wanted.lossless), ..now })
}

/// Adds missing entries, and removes further ones of the same DSCPs that are still there: drivers
/// with one priority for each DSCP have removed them by themselves.
fn replace<C: NicControl>(
    nic: &mut NicDcb<C>,
    settings: &DcbSettings,
    entries: &[DscpPriority],
) -> Result<(), DcbError> {
    let missing: Vec<_> = entries.iter().copied().filter(|entry| !settings.dscp_priorities.contains(entry)).collect();
    if !missing.is_empty() {
        nic.add_dscp_priorities(&missing)?;
    }
    let now = nic.settings()?.unwrap_or_default();
    let is_further =
        |of: &DscpPriority| entries.iter().any(|entry| entry.dscp == of.dscp && entry.priority != of.priority);
    let further: Vec<_> = now.dscp_priorities.into_iter().filter(is_further).collect();
    if further.is_empty() { Ok(()) } else { nic.remove_dscp_priorities(&further) }
}
