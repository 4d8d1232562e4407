//! `rocectl status`: devices, their queues and GIDs, workers, clients.

use roced_report::{DeviceReport, SandboxReport, SessionReport, StatusReport, WorkerReport};

use crate::{
    table::{
        Column::{Number, Text},
        TableSection,
    },
    units,
};

/// The report as tables.
pub(crate) fn render(report: &StatusReport) -> String {
    let mut text = format!("roced {}, pid {}, up {}\n", report.version, report.pid, units::duration(report.uptime_s));
    devices(&report.devices).append(&mut text, "none");
    for device in report.devices.iter().filter(|device| !device.problem.is_empty()) {
        text.push_str(&format!("\n{}: {}\n", device.name, device.problem));
    }
    dcb(&report.devices, &mut text);
    queues(&report.devices).append(&mut text, "none");
    gids(&report.devices).append(&mut text, "none: the interfaces have no address");
    workers(&report.workers).append(&mut text, "none");
    clients(&report.sessions).append(&mut text, "none connected");
    sandbox(&report.sandbox).append(&mut text, "not in force: the daemon runs with --no-sandbox");
    text
}

fn devices(devices: &[DeviceReport]) -> TableSection {
    let columns = [
        Text("device"),
        Text("interface"),
        Text("state"),
        Text("link"),
        Number("link MTU"),
        Number("path MTU"),
        Text("XDP"),
        Text("NAPI"),
        Text("ECN"),
        Text("congestion control"),
        Text("classes"),
        Text("pauses"),
        Text("DCB"),
        Number("queues"),
        Number("GIDs"),
        Text("MAC"),
    ];
    let mut section = TableSection::new("Devices", &columns);
    for device in devices {
        section.row([
            device.name.clone(),
            device.interface.clone(),
            device.state.clone(),
            if device.link_up { "up" } else { "down" }.into(),
            format!("{} B", device.link_mtu_bytes),
            format!("{} B", device.path_mtu_bytes),
            device.xdp_mode.clone(),
            device.napi.clone(),
            device.ecn.clone(),
            device.congestion_control.clone(),
            device.classes.clone(),
            device.pauses.clone(),
            device.dcb.state.clone(),
            device.queues.len().to_string(),
            device.gids.len().to_string(),
            device.mac.clone(),
        ]);
    }
    section
}

/// Differences of NICs to the config, and why some were not written; nothing, if there are none.
fn dcb(devices: &[DeviceReport], text: &mut String) {
    let mut section = TableSection::new("DCB", &[Text("device"), Text("difference"), Text("command")]);
    let differing = devices.iter().filter(|device| !device.dcb.findings.is_empty());
    for (device, finding) in
        differing.clone().flat_map(|device| device.dcb.findings.iter().map(move |one| (device, one)))
    {
        section.row([device.name.clone(), finding.problem.clone(), finding.command.clone()]);
    }
    if differing.count() > 0 {
        section.append(text, "none");
    }
    for device in devices.iter().filter(|device| !device.dcb.problem.is_empty()) {
        text.push_str(&format!("\n{}: DCB: {}\n", device.name, device.dcb.problem));
    }
}

fn queues(devices: &[DeviceReport]) -> TableSection {
    let mut section =
        TableSection::new("Queues", &[Text("device"), Number("queue"), Number("worker"), Text("mode"), Text("reason")]);
    for device in devices {
        for queue in &device.queues {
            section.row([
                device.name.clone(),
                queue.queue.to_string(),
                queue.worker.to_string(),
                queue.mode.clone(),
                queue.reason.clone(),
            ]);
        }
    }
    section
}

fn gids(devices: &[DeviceReport]) -> TableSection {
    let mut section =
        TableSection::new("GIDs", &[Text("device"), Number("index"), Text("address"), Text("RoCE"), Text("VLAN")]);
    for device in devices {
        for gid in &device.gids {
            section.row([
                device.name.clone(),
                gid.index.to_string(),
                gid.address.clone(),
                format!("v{}", gid.roce),
                gid.vlan.map_or_else(String::new, |vlan| vlan.to_string()),
            ]);
        }
    }
    section
}

fn workers(workers: &[WorkerReport]) -> TableSection {
    let columns = [Number("worker"), Text("core"), Text("when idle"), Number("polls"), Number("sleeps")];
    let mut section = TableSection::new("Workers", &columns);
    for worker in workers {
        section.row([
            worker.worker.to_string(),
            worker.core.map_or_else(|| "any".to_owned(), |core| core.to_string()),
            worker.idle.clone(),
            units::count(worker.polls),
            units::count(worker.sleeps),
        ]);
    }
    section
}

fn clients(sessions: &[SessionReport]) -> TableSection {
    let columns = [
        Number("session"),
        Number("pid"),
        Text("program"),
        Number("uid"),
        Text("device"),
        Number("QPs"),
        Number("MRs"),
        Number("memory"),
        Number("allocated"),
        Number("migrated"),
        Number("file-backed"),
        Number("proxied"),
    ];
    let mut section = TableSection::new("Clients", &columns);
    for session in sessions {
        section.row([
            session.session.to_string(),
            session.pid.to_string(),
            session.program.clone(),
            session.uid.to_string(),
            session.device.clone(),
            session.qps.to_string(),
            session.mrs.to_string(),
            units::bytes(session.memory_bytes),
            units::bytes(session.memory.allocated_bytes),
            units::bytes(session.memory.migrated_bytes),
            units::bytes(session.memory.file_backed_bytes),
            units::bytes(session.memory.proxied_bytes),
        ]);
    }
    section
}

fn sandbox(sandbox: &SandboxReport) -> TableSection {
    let columns = [Text("thread"), Number("system calls"), Text("capabilities"), Text("files (Landlock)")];
    let mut section = TableSection::new("Sandbox", &columns);
    let or_none = |list: &[String]| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    for thread in &sandbox.threads {
        let files = match sandbox.landlock.starts_with("version") {
            true => or_none(&thread.files),
            false => format!("any: Landlock is {}", sandbox.landlock),
        };
        section.row([
            thread.thread.clone(),
            thread.system_calls.len().to_string(),
            or_none(&thread.capabilities),
            files,
        ]);
    }
    section
}
