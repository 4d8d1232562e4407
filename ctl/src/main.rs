//! `rocectl`: reports of a running roced for operators.
//!
//! It sends questions (`roced_report`) to the daemon's admin socket, waits at most a few seconds
//! for each answer, and prints the reports as tables or, with `--json`, as JSON. Only
//! `rocectl device` changes anything.

mod accounts;
mod cli;
mod cm;
mod counters;
mod daemon;
mod device;
mod exporter;
mod fabric;
mod metrics;
mod qps;
mod status;
mod table;
mod units;

use std::process::ExitCode;

use anyhow::ensure;
use roced_output::print_error;
use roced_report::{AccountsReport, CmReport, CountersReport, QpsReport, Question, StatusReport};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cli::{CtlArgs, CtlCommand},
    daemon::DaemonSocket,
    fabric::FabricView,
    metrics::MetricReports,
};

fn main() -> ExitCode {
    match run(&CtlArgs::of_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("rocectl: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &CtlArgs) -> anyhow::Result<()> {
    let daemon = DaemonSocket::at(&cli.socket);
    let text = match &cli.command {
        CtlCommand::Status => answer::<StatusReport>(&daemon, Question::Status, cli.json, status::render),
        CtlCommand::Qps { counters } => {
            answer::<QpsReport>(&daemon, Question::Qps, cli.json, |report| qps::render(report, *counters))
        }
        CtlCommand::Cm => answer::<CmReport>(&daemon, Question::Cm, cli.json, cm::render),
        CtlCommand::Accounts => answer::<AccountsReport>(&daemon, Question::Accounts, cli.json, accounts::render),
        CtlCommand::Counters { all, group } => {
            answer::<CountersReport>(&daemon, Question::Counters, cli.json, |report| {
                counters::render(report, *all, group.as_deref())
            })
        }
        CtlCommand::Fabric => shown(&fabric_view(&daemon)?, cli.json, FabricView::render),
        CtlCommand::Device(command) => device::change(&daemon, command, cli.json),
        CtlCommand::Metrics { listen: Some(address), node_prefix, .. } => {
            return exporter::serve(address, || {
                let reports = metric_reports(&daemon);
                if let Err(error) = &reports {
                    print_error(format_args!("rocectl: {error:#}"));
                }
                metrics::render(reports.as_ref().ok(), node_prefix)
            });
        }
        CtlCommand::Metrics { listen: None, node_prefix, .. } => {
            metric_reports(&daemon).map(|reports| metrics::render(Some(&reports), node_prefix))
        }
    }?;
    Ok(roced_output::print(text)?)
}

/// Reports that the metrics are made of.
fn metric_reports(daemon: &DaemonSocket<'_>) -> anyhow::Result<MetricReports> {
    Ok(MetricReports {
        status: daemon.ask(Question::Status)?,
        counters: daemon.ask(Question::Counters)?,
        accounts: daemon.ask(Question::Accounts)?,
    })
}

/// Reports of one daemon, joined.
fn fabric_view(daemon: &DaemonSocket<'_>) -> anyhow::Result<FabricView> {
    let first: StatusReport = daemon.ask(Question::Status)?;
    let (counters, qps) = (daemon.ask(Question::Counters)?, daemon.ask(Question::Qps)?);
    let last: StatusReport = daemon.ask(Question::Status)?;
    ensure!(
        first.pid == last.pid && first.uptime_s <= last.uptime_s,
        "roced has started again between two questions: try once more"
    );
    Ok(FabricView::new(&last, &counters, &qps))
}

/// Sends `question` and returns the text to print.
fn answer<R: Serialize + DeserializeOwned>(
    daemon: &DaemonSocket<'_>,
    question: Question,
    json: bool,
    render: impl FnOnce(&R) -> String,
) -> anyhow::Result<String> {
    shown(&daemon.ask::<R>(question)?, json, render)
}

/// A report as tables, or as JSON.
fn shown<R: Serialize>(report: &R, json: bool, render: impl FnOnce(&R) -> String) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string_pretty(report)? + "\n" } else { render(report) })
}
