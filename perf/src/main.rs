//! `roce-perf`: measures latency and throughput of RDMA over roced, and verifies the data. It uses
//! only the public client library.
//!
//! ```text
//!   roce-perf ping|bw ◄──── control: JSON lines ─────────► roce-perf serve
//!        │ client.rs         control.rs  stream.rs              │ serve.rs
//!        └── session.rs ◄──── data: RDMA, by roced ────► session.rs ──┘
//!                         ping.rs  bw/  flow.rs  pattern.rs
//! ```
//!
//! The report goes to stdout, everything else to stderr.

mod bw;
mod cli;
mod client;
mod control;
mod flow;
mod gid;
mod pattern;
mod peer;
mod ping;
mod progress;
mod report;
mod serve;
mod session;
mod size;
mod statistics;
mod stream;

use std::process::ExitCode;

use clap::Parser;
use roced_output::print_error;

use crate::{
    cli::{PerfArgs, PerfCommand},
    pattern::Mismatch,
    report::RunReport,
};

/// Exit code when something kept the run from its end.
const FAILED: u8 = 1;

/// Exit code when data arrived wrong.
const DATA_WRONG: u8 = 3;

fn main() -> ExitCode {
    let done = match PerfArgs::parse().command {
        PerfCommand::Serve(args) => serve::serve(&args),
        PerfCommand::Ping(args) => client::ping(&args).and_then(|report| print(&report, args.common.json)),
        PerfCommand::Bw(args) => client::bw(&args).and_then(|report| print(&report, args.common.json)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("roce-perf: {error:#}"));
            ExitCode::from(if error.downcast_ref::<Mismatch>().is_some() { DATA_WRONG } else { FAILED })
        }
    }
}

fn print(report: &RunReport, json: bool) -> anyhow::Result<()> {
    Ok(roced_output::print(if json { report.json() } else { report.table() })?)
}
