//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Compares roced with raw AF_XDP, the limit, and with TCP, in two network namespaces of this
/// machine. Started by scripts/bench.
#[derive(Clone, Debug, Parser)]
#[command(name = "roced-bench")]
pub(crate) struct BenchArgs {
    /// Only the contestants of a main ratio, three rounds, half a second each.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Write everything as JSON into this file; "-" is stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Draw into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Write a page for people into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) document: Option<PathBuf>,

    /// Only contestants with one of these in their name, comma-separated. Ratios need both of
    /// theirs.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Rounds [default: 7, quick 3].
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,

    /// Seconds of each measurement [default: 1, quick 0.5].
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,

    /// Leave out 10,000 queue pairs and 100 clients.
    #[arg(long)]
    pub(crate) no_scale: bool,

    /// Leave out connections by the connection manager.
    #[arg(long)]
    pub(crate) no_connections: bool,

    /// Leave out the shares beside hostile programs.
    #[arg(long)]
    pub(crate) no_fairness: bool,

    /// Leave out the counting of system calls.
    #[arg(long)]
    pub(crate) no_syscalls: bool,

    /// A line for `[[device]]` in the daemons' config, such as 'window_packets = 64'; may be
    /// repeated.
    #[arg(long, value_name = "LINE")]
    pub(crate) device: Vec<String>,

    /// A line for `[[device]]` that moves the receiver's NAPI, such as 'napi = "..."', or that goes
    /// with it; may be repeated. Host b of two more daemons has them, beside those without.
    #[arg(long, value_name = "LINE")]
    pub(crate) napi: Vec<String>,

    /// A line for `[[worker]]` of that daemon, which goes with it.
    #[arg(long, value_name = "LINE", requires = "napi")]
    pub(crate) napi_worker: Vec<String>,

    /// A line for `[[worker]]` of the daemon that sends to it.
    #[arg(long, value_name = "LINE", requires = "napi")]
    pub(crate) napi_sender_worker: Vec<String>,

    /// Touch so many GiB before the first round, and keep one page of each 128 KiB: then the host
    /// of a virtual machine cannot have the free memory.
    #[arg(long, value_name = "GIB")]
    pub(crate) keep_memory: Option<usize>,

    /// A line for `[[worker]]` of all daemons; may be repeated.
    #[arg(long, value_name = "LINE")]
    pub(crate) worker: Vec<String>,

    /// All contestants run in the class SCHED_FIFO, which keeps most of the other work of the
    /// machine out of the figures.
    #[arg(long)]
    pub(crate) fifo: bool,

    /// The machine also does something else: says so wherever the figures stand.
    #[arg(long)]
    pub(crate) shared: bool,

    /// MTU of every link.
    #[arg(long, value_name = "N", default_value_t = 4200)]
    pub(crate) mtu: u32,

    /// Name of the network namespaces, without their -a and -b.
    #[arg(long, value_name = "NAME", default_value = "roced-bench")]
    pub(crate) name: String,

    /// Where sockets, configs and logs come to lie.
    #[arg(long, value_name = "DIR", default_value = "/run/roced-bench")]
    pub(crate) folder: PathBuf,

    /// List the contestants and end.
    #[arg(long)]
    pub(crate) list: bool,
}

/// Options as they were given to scripts/bench. It adds `--name` and `--folder`, which are left
/// out, as are the paths of output files: no figure depends on them.
pub(crate) fn as_given(arguments: impl IntoIterator<Item = String>) -> String {
    let mut arguments = arguments.into_iter();
    let mut given = Vec::new();
    while let Some(argument) = arguments.next() {
        if ["--name", "--folder", "--json", "--plot", "--document"].contains(&argument.as_str()) {
            arguments.next();
        } else if argument.chars().all(|it| it.is_ascii_alphanumeric() || "-_./,=".contains(it)) {
            given.push(argument);
        } else {
            given.push(format!("'{}'", argument.replace('\'', r"'\''")));
        }
    }
    given.join(" ")
}

impl BenchArgs {
    /// How many rounds.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 }).max(1)
    }

    /// How long a measurement takes.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.5 } else { 1.0 }).clamp(0.05, 600.0)
    }

    /// Whether connections are measured: in a whole run, or if `--only` names them.
    pub(crate) fn wants_connections(&self) -> bool {
        !self.no_connections && self.wants("connections", false)
    }

    /// Whether shares beside hostile programs are measured: in a whole run, or if `--only` names
    /// them.
    pub(crate) fn wants_fairness(&self) -> bool {
        !self.no_fairness && self.wants("fairness", false)
    }

    /// Whether a contestant takes part.
    pub(crate) fn wants(&self, name: &str, in_ratios: bool) -> bool {
        if self.only.is_empty() { in_ratios || !self.quick } else { self.only.iter().any(|part| name.contains(part)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_shown_as_a_shell_takes_them() {
        let given = |words: &[&str]| as_given(words.iter().map(|word| (*word).to_owned()));
        let napi = [
            "--name",
            "bench-7",
            "--folder",
            "/tmp/x",
            "--json",
            "b.json",
            "--plot",
            "/home/me/docs",
            "--napi",
            "napi = \"threaded\"",
            "--seconds",
            "0.5",
        ];
        assert_eq!(given(&napi), "--napi 'napi = \"threaded\"' --seconds 0.5");
        assert_eq!(given(&["--device", "it's"]), r"--device 'it'\''s'");
    }
}
