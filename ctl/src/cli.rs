//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use roced_report::{ADMIN_SOCKET_VARIABLE, DEFAULT_ADMIN_SOCKET};

/// Shows the state of a running roced.
#[derive(Debug, Parser)]
#[command(
    name = "rocectl",
    version,
    after_help = "Exit code: 0 when the daemon answered, 1 when it did not, 2 for a wrong command line."
)]
pub(crate) struct CtlArgs {
    /// The report to show.
    #[command(subcommand)]
    pub(crate) command: CtlCommand,

    /// Print the daemon's report as JSON, with every value in it.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The daemon's admin socket.
    #[arg(long, global = true, value_name = "PATH", default_value_os_t = default_socket(), hide_default_value = true,
          help = format!("The daemon's admin socket [default: ${ADMIN_SOCKET_VARIABLE}, else {DEFAULT_ADMIN_SOCKET}]"))]
    pub(crate) socket: PathBuf,
}

/// A report.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Devices with their XDP mode, queues and GIDs; workers; clients.
    Status,
    /// Every queue pair: its owner, its state, its peer.
    Qps {
        /// Also each queue pair's own counters that are not 0.
        #[arg(long)]
        counters: bool,
    },
    /// Counters that are not 0, in groups.
    Counters {
        /// Also those that are 0.
        #[arg(long)]
        all: bool,
        /// Only groups with this name prefix, e.g. `device/roce0`.
        #[arg(value_name = "GROUP")]
        group: Option<String>,
    },
}

fn default_socket() -> PathBuf {
    std::env::var_os(ADMIN_SOCKET_VARIABLE).map_or_else(|| DEFAULT_ADMIN_SOCKET.into(), PathBuf::from)
}
