//! The command line.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use roced_report::{ADMIN_SOCKET_VARIABLE, DEFAULT_ADMIN_SOCKET};

/// Shows the state of a running roced, and changes its devices.
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

/// A report, or a change.
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
    /// Every identifier of programs that use rdma_cm: its state, addresses, ports and queue pairs.
    Cm,
    /// Every account (all programs of a user): its objects, limits and refusals.
    Accounts,
    /// Congestion and pauses: marks, notifications and pauses of each device; windows, rates and
    /// round trips of connections by peer.
    Fabric,
    /// Counters that are not 0, in groups.
    Counters {
        /// Also those that are 0.
        #[arg(long)]
        all: bool,
        /// Only groups with this name prefix, e.g. `device/roce0`.
        #[arg(value_name = "GROUP")]
        group: Option<String>,
    },
    /// Removes a device from service, or adds it again (root or roced's own user).
    #[command(subcommand)]
    Device(DeviceCommand),
    /// State and counters in the OpenMetrics text format.
    Metrics {
        /// Answer Prometheus at http://ADDRESS/metrics instead, until ended. `unix:/PATH` for a
        /// Unix socket; other addresses than loopback are refused.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<ListenAddress>,
        /// First part of the names that node_exporter has for counters of RDMA adapters; `node`
        /// where no node_exporter reports adapters.
        #[arg(long, value_name = "PREFIX", default_value = "roced", value_parser = metric_prefix)]
        node_prefix: String,
        /// In place of the option of all commands, which help and manual page would show here.
        #[arg(long, hide = true)]
        json: bool,
    },
}

/// A change of a device.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Takes the device off its interface: its queue pairs fail, and all traffic is the kernel's.
    /// Until it is added, or roced starts again.
    Remove {
        /// Name in the config.
        name: String,
    },
    /// Serves a removed device again, and waits until it is served.
    Add {
        /// Name in the config.
        name: String,
    },
}

impl CtlArgs {
    /// The command line of this process. Ends the process if it is wrong.
    pub(crate) fn of_process() -> Self {
        let args = Self::parse();
        if args.json && matches!(args.command, CtlCommand::Metrics { .. }) {
            let message = "metrics have one form, the text that Prometheus reads: --json is for status, qps, cm, \
                           accounts, fabric, counters and device";
            Self::command().error(ErrorKind::ArgumentConflict, message).exit()
        }
        args
    }
}

/// A first part of metric names.
fn metric_prefix(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(is_name) {
        Ok(text.to_owned())
    } else {
        Err("letters, digits and _, a letter first".to_owned())
    }
}

fn default_socket() -> PathBuf {
    let set = std::env::var_os(ADMIN_SOCKET_VARIABLE).filter(|path| !path.is_empty());
    set.map_or_else(|| DEFAULT_ADMIN_SOCKET.into(), PathBuf::from)
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// A loopback address with a port.
    Loopback(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err("the path of a Unix socket must begin with /".to_owned())
            };
        }
        let address: SocketAddr =
            text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:9791, or unix:/PATH".to_owned())?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is not a loopback address; there is no encryption and no password: put a reverse proxy before it",
                address.ip()
            ));
        }
        Ok(Self::Loopback(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_and_absolute_paths_are_accepted() {
        let parse = ListenAddress::from_str;
        assert_eq!(parse("127.0.0.1:9791"), Ok(ListenAddress::Loopback(([127, 0, 0, 1], 9791).into())));
        assert!(parse("[::1]:9791").is_ok());
        assert_eq!(parse("unix:/run/m.sock"), Ok(ListenAddress::Unix("/run/m.sock".into())));
        for (text, problem) in [
            ("0.0.0.0:9791", "not a loopback address"),
            ("10.0.0.1:9791", "not a loopback address"),
            ("unix:m.sock", "must begin with /"),
            ("9791", "such as 127.0.0.1:9791"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(problem), "{text}: {message}");
        }
    }
}
