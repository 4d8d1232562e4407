//! Answers to operators, from every part that knows something.

use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use roced_cm::identifiers::IdReport;
use roced_report::{
    AccountsReport, CmIdReport, CmReport, DeviceReport, GidReport, Problem, QpsReport, Question, QueueReport,
    SessionReport, StatusReport, WorkerReport,
};
use roced_steering::Verdict;
use roced_transport::wire::largest_path_mtu;
use roced_types::{DeviceId, WorkerId};
use serde::Serialize;

use super::{
    Daemon,
    attachment::check_mtu,
    devices::DeviceOrder,
    network_view,
    reports::{self, DeviceCounts, SessionProcess},
    served_device::{AttachState, ServedDevice},
};
use crate::{
    config::Config,
    net::Net,
    sandbox::Sandbox,
    worker::{
        command::{Answer, Command},
        metrics::WorkerSnapshot,
        workers::Workers,
    },
};

impl Daemon {
    /// Answers operators as far as that goes without waiting for them.
    pub(super) fn answer_operators(&mut self) {
        // An order takes the whole daemon, so it is taken out of the answers.
        let mut orders = Vec::new();
        let Self { config, net, devices, workers, clients, admin, sandbox, since, .. } = self;
        admin.serve(Instant::now(), |question, uid| {
            let sessions = clients.reports().collect();
            let uptime = since.elapsed();
            let cm = clients.cm_counters();
            let mut asked = Asked { config, net, devices, workers, sandbox, sessions, cm, uptime };
            let mut order = |name: &str, order| {
                check_operator(uid)?;
                let (device, report) = asked.order(name, order)?;
                if orders.iter().any(|(ordered, _)| *ordered == device) {
                    return Err(problem("another order is being carried out: try again"));
                }
                orders.push((device, order));
                json(&report)
            };
            match question {
                Question::DeviceRemove(name) => order(&name, DeviceOrder::Remove),
                Question::DeviceAdd(name) => order(&name, DeviceOrder::Add),
                Question::Status => asked.status().and_then(|report| json(&report)),
                Question::Qps => asked.queue_pairs().and_then(|report| json(&report)),
                Question::Cm => json(&CmReport { ids: asked.identifiers(&clients.cm_reports()) }),
                Question::Accounts => {
                    json(&AccountsReport { accounts: clients.account_reports(asked.net.delayed_neighbors()) })
                }
                Question::Counters => asked.counters().and_then(|report| json(&report)),
            }
        });
        for (device, order) in orders {
            self.change_device(device, order);
        }
    }
}

/// The group of the admin socket may ask; only root and the daemon's own user may order.
fn check_operator(uid: u32) -> Result<(), Problem> {
    if uid == 0 || uid == geteuid().as_raw() {
        return Ok(());
    }
    Err(problem("only root, or the user that roced runs as, may change a device"))
}

fn json(report: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string(report).map_err(problem)
}

fn problem(error: impl ToString) -> Problem {
    Problem { problem: error.to_string() }
}

const fn state_name(state: &AttachState) -> &'static str {
    match state {
        AttachState::Attached(_) => "serving",
        AttachState::Attaching { .. } => "attaching",
        AttachState::Gone => "no interface",
        AttachState::Failed { .. } => "failed",
        AttachState::Removed => "removed",
    }
}

/// Sources of an answer.
struct Asked<'a> {
    config: &'a Config,
    net: &'a Net,
    devices: &'a [ServedDevice],
    workers: &'a mut Workers,
    sandbox: &'a Sandbox,
    sessions: Vec<SessionReport>,
    cm: Vec<(&'static str, u64)>,
    uptime: Duration,
}

impl Asked<'_> {
    /// The device of that name, if the order fits its state, and its report once the order is
    /// carried out.
    fn order(&self, name: &str, order: DeviceOrder) -> Result<(DeviceId, DeviceReport), Problem> {
        let device = self.devices.iter().find(|device| device.config.name == name);
        let device = device.ok_or_else(|| {
            let known: Vec<_> = self.devices.iter().map(|device| device.config.name.as_str()).collect();
            problem(format!(
                "there is no device {name}, only {}; for a new one add [[device]] to the config and restart roced",
                known.join(", ")
            ))
        })?;
        order.check(&device.state).map_err(|why| problem(format!("device {name}: {why}")))?;
        let state = match order {
            DeviceOrder::Remove => "removed",
            DeviceOrder::Add if self.net.device(device.id).present => "attaching",
            DeviceOrder::Add => "no interface",
        };
        Ok((device.id, DeviceReport { state: state.to_owned(), problem: String::new(), ..self.device(device) }))
    }

    fn status(&mut self) -> Result<StatusReport, Problem> {
        let snapshots = self.snapshots()?;
        let workers = (0..).zip(&self.config.workers).zip(&snapshots);
        Ok(StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.uptime.as_secs_f64(),
            sessions: std::mem::take(&mut self.sessions),
            devices: self.devices.iter().map(|device| self.device(device)).collect(),
            workers: workers
                .map(|((number, config), snapshot)| WorkerReport {
                    worker: number,
                    core: config.core,
                    idle: config.idle.to_string(),
                    polls: snapshot.worker.polls,
                    sleeps: snapshot.worker.sleeps,
                })
                .collect(),
            sandbox: self.sandbox.report(),
        })
    }

    fn device(&self, device: &ServedDevice) -> DeviceReport {
        let link = self.net.device(device.id);
        let versions = network_view::versions(device.config.roce);
        let gids = link.gids.entries().flat_map(|(at, gid)| {
            (at * versions.len() as u32..).zip(versions).map(|(index, roce)| GidReport {
                index,
                address: gid.address.to_string(),
                vlan: gid.vlan,
                roce: *roce as u8,
            })
        });
        let attachment = device.attachment();
        let queues = attachment.map_or(&[][..], |attachment| &attachment.queues).iter().map(|queue| QueueReport {
            queue: queue.owner.queue,
            worker: queue.owner.worker,
            mode: if queue.zerocopy { "zerocopy" } else { "copy" }.to_owned(),
            reason: queue.reason.to_owned(),
        });
        DeviceReport {
            name: device.config.name.clone(),
            interface: device.config.interface.clone(),
            state: state_name(&device.state).to_owned(),
            problem: match &device.state {
                AttachState::Failed { problem, .. } => problem.clone(),
                AttachState::Attached(_) => {
                    let fits = check_mtu(&device.config, link.link_mtu_bytes);
                    fits.err().map_or_else(String::new, |problem| problem.to_string())
                }
                _ => String::new(),
            },
            xdp_mode: attachment.map_or_else(String::new, |attachment| attachment.program.mode().to_string()),
            napi: device.config.napi.to_string(),
            ecn: device.config.ecn.to_string(),
            congestion_control: device.config.congestion_control.to_string(),
            classes: device.config.classes.to_string(),
            max_rate_mbit: device.config.max_rate_mbit.unwrap_or(0),
            pauses: device.config.pfc.to_string(),
            link_up: link.link_up,
            link_mtu_bytes: link.link_mtu_bytes,
            path_mtu_bytes: largest_path_mtu(link.usable_mtu_bytes(), false).unwrap_or(0),
            mac: reports::mac_text(link.mac),
            gids: gids.collect(),
            queues: queues.collect(),
            dcb: device.dcb.report(&device.config.interface),
        }
    }

    fn counters(&mut self) -> Result<roced_report::CountersReport, Problem> {
        let snapshots = self.snapshots()?;
        let mut devices = Vec::new();
        for device in self.devices {
            let verdicts = device.attachment().map(|attachment| attachment.program.verdicts().map_err(problem));
            let verdicts: [u64; Verdict::ALL.len()] = verdicts.transpose()?.unwrap_or_default();
            let pauses = device.attachment().and_then(|attachment| attachment.pauses.as_deref());
            devices.push(DeviceCounts { name: &device.config.name, verdicts, pauses });
        }
        Ok(reports::counters(&devices, &snapshots, &self.cm))
    }

    fn queue_pairs(&mut self) -> Result<QpsReport, Problem> {
        let mut qps = Vec::new();
        for number in 0..self.workers.len() as u32 {
            let worker = WorkerId(number);
            let mut from = Some(0);
            while from.is_some() {
                let snapshot = self.snapshot(worker, WorkerSnapshot::new(0, 0, from))?;
                qps.extend(snapshot.qps.iter().map(|qp| {
                    let place = self.workers.of_qpn(qp.qpn).expect("a queue pair that is there lives somewhere");
                    reports::queue_pair(qp, self.device_name(place.device), self.owner_of(qp.session.0), worker)
                }));
                from = snapshot.next_entry;
            }
        }
        qps.sort_by_key(|qp| qp.qpn);
        Ok(QpsReport { qps })
    }

    fn identifiers(&self, reports: &[IdReport]) -> Vec<CmIdReport> {
        let ids = reports.iter().map(|report| {
            let session = report.key.owner.0;
            let device = report.route.device.map_or("", |address| self.device_name(address.device));
            reports::identifier(report, device, self.owner_of(session))
        });
        ids.collect()
    }

    fn device_name(&self, id: DeviceId) -> &str {
        &self.devices[id.0 as usize].config.name
    }

    fn owner_of(&self, session: u32) -> SessionProcess<'_> {
        let known = self.sessions.iter().find(|known| known.session == session);
        known.map_or_else(SessionProcess::default, |known| SessionProcess { pid: known.pid, program: &known.program })
    }

    /// Counters of every worker, without queue pairs.
    fn snapshots(&mut self) -> Result<Vec<WorkerSnapshot>, Problem> {
        let queues =
            self.devices.iter().filter_map(ServedDevice::attachment).map(|attachment| attachment.queues.len()).sum();
        let endpoints = self.devices.len();
        (0..self.workers.len() as u32)
            .map(|number| self.snapshot(WorkerId(number), WorkerSnapshot::new(endpoints, queues, None)))
            .collect()
    }

    fn snapshot(&mut self, worker: WorkerId, empty: WorkerSnapshot) -> Result<WorkerSnapshot, Problem> {
        match self.workers.call(worker, Command::Snapshot(Box::new(empty))) {
            Ok(Answer::Snapshot(filled)) => Ok(*filled),
            Ok(_) => Err(problem(format!("worker {} gave another answer than it was asked for", worker.0))),
            Err(error) => Err(problem(format!("worker {}: {error}", worker.0))),
        }
    }
}
