//! Data center bridging of a device's NIC, compared with the config, and with `dcb = "apply"`
//! brought in line with it.
//!
//! ```text
//! DeviceConfig ─► DcbWanted ─┐
//! NIC ─► NicFound ───────────┴► findings() ─► NicFinding: a line, and the command that mends it
//!                                                └─ apply: one change each, then a second look
//! ```
//!
//! It happens when a device is attached, in the thread that attaches, which has CAP_NET_ADMIN. By
//! default nothing is wanted: then the NIC is asked once, and nothing is said. No packet path
//! depends on the result.

mod apply;
mod findings;

use std::{collections::BTreeMap, fs};

use roced_report::{DcbFindingReport, DcbReport};
use roced_xdp::dcb::{DcbError, DcbSettings, KernelControl, NicControl, NicDcb, PrioritySet};
use tracing::{info, warn};

use self::{
    apply::{Unwritten, apply},
    findings::{NicFinding, NicFound, findings},
};
use crate::config::{Config, DcbChoice, DeviceConfig};

/// Settings that the config wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DcbWanted {
    /// Priorities with priority flow control.
    lossless: PrioritySet,
    /// Priority by DSCP.
    dscp_prio: BTreeMap<u8, u8>,
}

impl DcbWanted {
    fn of(device: &DeviceConfig) -> Self {
        Self { lossless: device.lossless_priorities, dscp_prio: device.dscp_prio.clone() }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The result for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DcbState {
    choice: Option<DcbChoice>,
    wants_nothing: bool,
    found: DcbFound,
    findings: Vec<NicFinding>,
    unwritten: Vec<Unwritten>,
}

/// The NIC's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum DcbFound {
    /// It was not asked.
    #[default]
    NotAsked,
    /// Its driver has no DCB.
    Unsupported,
    /// It could not be asked.
    Unreadable(String),
    /// Its settings.
    Read(DcbSettings),
}

/// Compares the NIC of a device with its config; with `dcb = "apply"` writes the
/// differences.
pub(crate) fn settle(device: &DeviceConfig, link_mtu_bytes: u32) -> DcbState {
    let unasked = DcbState { choice: Some(device.dcb), ..DcbState::default() };
    if device.dcb == DcbChoice::Ignore {
        return unasked;
    }
    match KernelControl::open() {
        Ok(control) => settle_by(&mut NicDcb::new(&device.interface, control), device, link_mtu_bytes),
        Err(error) => DcbState { found: DcbFound::Unreadable(error.to_string()), ..unasked },
    }
}

fn settle_by<C: NicControl>(nic: &mut NicDcb<C>, device: &DeviceConfig, link_mtu_bytes: u32) -> DcbState {
    let wanted = DcbWanted::of(device);
    let mut state = look(nic, device, &wanted, link_mtu_bytes);
    if device.dcb == DcbChoice::Apply
        && let DcbFound::Read(settings) = &state.found
        && !state.findings.is_empty()
    {
        let unwritten = apply(nic, settings, &wanted, &state.findings);
        state = DcbState { unwritten, ..look(nic, device, &wanted, link_mtu_bytes) };
    }
    state
}

/// Reads and compares.
fn look<C: NicControl>(
    nic: &mut NicDcb<C>,
    device: &DeviceConfig,
    wanted: &DcbWanted,
    link_mtu_bytes: u32,
) -> DcbState {
    let wants_nothing = wanted.is_nothing();
    let found = match nic.settings() {
        Ok(None) => DcbFound::Unsupported,
        Ok(Some(settings)) => DcbFound::Read(settings),
        Err(error) => DcbFound::Unreadable(error.to_string()),
    };
    let mut state =
        DcbState { choice: Some(device.dcb), wants_nothing, found, findings: Vec::new(), unwritten: Vec::new() };
    let DcbFound::Read(settings) = &state.found else { return state };
    if wants_nothing {
        return state;
    }
    match nic.global_pause() {
        Ok(pause) => state.findings = findings(wanted, &NicFound { settings, pause, link_mtu_bytes }),
        Err(error) => state.found = DcbFound::Unreadable(error.to_string()),
    }
    state
}

impl DcbState {
    /// Writes the result to the log: nothing, if the config wants nothing.
    pub(crate) fn log(&self, device: &DeviceConfig) {
        let (name, interface) = (&device.name, &device.interface);
        if self.wants_nothing {
            return;
        }
        match &self.found {
            DcbFound::NotAsked => {}
            DcbFound::Unsupported => info!(
                device = name,
                interface, "the driver has no DCB (dcbnl), so lossless_priorities and dscp_prio change nothing here"
            ),
            DcbFound::Unreadable(problem) => {
                warn!(device = name, interface, problem, "the NIC's settings of DCB cannot be read");
            }
            DcbFound::Read(_) if self.findings.is_empty() => {
                info!(device = name, interface, "DCB of the NIC is as configured");
            }
            DcbFound::Read(_) => {}
        }
        for unwritten in &self.unwritten {
            warn!(device = name, interface, "DCB of the NIC: {}", unwritten.text(interface));
        }
        for finding in &self.findings {
            let fix = finding.command(interface).unwrap_or_default();
            warn!(device = name, interface, fix, "DCB of the NIC: {finding}");
        }
    }

    /// For operators.
    pub(crate) fn report(&self, interface: &str) -> DcbReport {
        let unwritten = self.unwritten.iter().map(|unwritten| unwritten.text(interface));
        let (state, problem) = match &self.found {
            DcbFound::NotAsked => ("ignored", String::new()),
            DcbFound::Unsupported => ("unsupported", String::new()),
            DcbFound::Unreadable(problem) => ("unreadable", problem.clone()),
            DcbFound::Read(_) if self.wants_nothing => ("nothing wanted", String::new()),
            DcbFound::Read(_) if self.findings.is_empty() => ("as configured", String::new()),
            DcbFound::Read(_) => ("differs", unwritten.collect::<Vec<_>>().join("; ")),
        };
        let settings = match &self.found {
            DcbFound::Read(settings) => settings.clone(),
            _ => DcbSettings::default(),
        };
        let mut dscp_prio: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for entry in &settings.dscp_priorities {
            dscp_prio.entry(entry.dscp).or_default().push(entry.priority);
        }
        DcbReport {
            mode: self.choice.map_or_else(String::new, |choice| choice.to_string()),
            state: if self.choice.is_some() { state.to_owned() } else { String::new() },
            problem,
            lossless_priorities: settings.pfc.map_or_else(Vec::new, |pfc| pfc.enabled.iter().collect()),
            dscp_prio,
            findings: self.findings.iter().map(|finding| finding_report(finding, interface)).collect(),
        }
    }
}

fn finding_report(finding: &NicFinding, interface: &str) -> DcbFindingReport {
    DcbFindingReport { problem: finding.to_string(), command: finding.command(interface).unwrap_or_default() }
}

/// Differences of the NICs of this host to a config, in lines for `check-config`; changes nothing.
pub(crate) fn remarks(config: &Config) -> Vec<String> {
    let wanting = config.devices.iter().filter(|device| !DcbWanted::of(device).is_nothing());
    let mut lines = Vec::new();
    for device in wanting {
        let path = format!("/sys/class/net/{}/mtu", device.interface);
        let mtu_bytes = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        // Without an interface there is another remark.
        let Some(link_mtu_bytes) = mtu_bytes else { continue };
        let mut read_only = device.clone();
        read_only.dcb = if device.dcb == DcbChoice::Apply { DcbChoice::Check } else { device.dcb };
        let state = settle(&read_only, link_mtu_bytes);
        let mut say = |text: String| lines.push(format!("device {}: {text}", device.name));
        match &state.found {
            DcbFound::Unsupported => say(format!(
                "the driver of {} has no DCB, so lossless_priorities and dscp_prio change nothing",
                device.interface
            )),
            DcbFound::Unreadable(problem) => say(format!("DCB of {} cannot be read: {problem}", device.interface)),
            DcbFound::NotAsked | DcbFound::Read(_) => {}
        }
        for finding in &state.findings {
            let fix = finding.command(&device.interface).map_or_else(String::new, |command| format!(": `{command}`"));
            say(format!("{finding}{fix}"));
        }
    }
    lines
}

/// An error of a change of the NIC of `interface`, with a next step.
fn refusal(error: &DcbError, interface: &str) -> String {
    let code = match error {
        DcbError::Refused(error) => error.raw_os_error(),
        DcbError::Reply(_) => None,
    };
    let hint = match code {
        Some(libc::EPERM) => " (it takes CAP_NET_ADMIN in the first user namespace)".to_owned(),
        Some(libc::EINVAL) => format!(" (`dcb dcbx show dev {interface}` tells whether IEEE DCBX of the host is on)"),
        _ => String::new(),
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests;
