//! `rocectl device`: removes a device from service, or adds it again.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use roced_report::{DeviceReport, Question, StatusReport};

use crate::{cli::DeviceCommand, daemon::DaemonSocket};

/// Longest wait for an added device to be served: binding a queue that is still busy takes up to
/// `queue_busy_ms`, 3 s by default.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Carries out `command` and returns the text to print.
pub(crate) fn change(daemon: &DaemonSocket<'_>, command: &DeviceCommand, json: bool) -> anyhow::Result<String> {
    let report = match command {
        DeviceCommand::Remove { name } => daemon.ask::<DeviceReport>(Question::DeviceRemove(name.clone()))?,
        DeviceCommand::Add { name } => {
            daemon.ask::<DeviceReport>(Question::DeviceAdd(name.clone()))?;
            attached(daemon, name)?
        }
    };
    if report.state == "failed" {
        bail!("{} cannot be served: {}", report.name, report.problem);
    }
    if json {
        return Ok(serde_json::to_string_pretty(&report)? + "\n");
    }
    Ok(format!("{} on {}: {}\n", report.name, report.interface, report.state))
}

/// Waits until the device `name` is no longer in transition.
fn attached(daemon: &DaemonSocket<'_>, name: &str) -> anyhow::Result<DeviceReport> {
    let deadline = Instant::now() + ATTACH_TIMEOUT;
    loop {
        let status: StatusReport = daemon.ask(Question::Status)?;
        let device = status.devices.into_iter().find(|device| device.name == name);
        let device = device.with_context(|| format!("{name} is gone from the report of roced"))?;
        if device.state != "attaching" {
            return Ok(device);
        }
        if Instant::now() >= deadline {
            bail!("{name} is still being attached after {} s: see roced's log", ATTACH_TIMEOUT.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
