//! Command line: `roced run` and `roced check-config`, and the target of messages.
//!
//! Errors are printed as one chain, from the attempt down to a next step; the exit code is then 1.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env,
    io::{self, IsTerminal},
    os::fd::{AsFd, BorrowedFd},
    panic::{self, PanicHookInfo},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use nix::{sys::stat::fstat, unistd::Group};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::{
    filter::LevelFilter,
    fmt::{
        self, FmtContext, FormatFields,
        format::{FormatEvent, Writer},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt,
};

use crate::{
    config::{
        Config, ConfigError, ConfigSource, CongestionChoice, DEFAULT_PATH, DeviceConfig, EcnChoice, LogConfig,
        LogLevel, LogTarget, shown,
    },
    dcb, log_thread,
    sandbox::Confinement,
};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "roced",
    version,
    about = "RDMA over Converged Ethernet for hosts without RDMA",
    after_help = "Exit code: 0 when it was told to stop, 1 when it cannot serve, 2 for a wrong command line, 78 for a wrong config.\n\
                  /etc/roced/roced.toml describes each key of the config. Documents of the package: /usr/share/doc/roced."
)]
struct DaemonArgs {
    #[command(subcommand)]
    command: Command,
}

/// The command line, for manual pages and completions.
pub fn command() -> clap::Command {
    DaemonArgs::command()
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the devices of the config until told to stop
    Run {
        /// The config file
        #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
        config: PathBuf,
        /// Do not confine the daemon: for debuggers and tracers
        #[arg(long)]
        no_sandbox: bool,
    },
    /// Say everything that is wrong with a config file
    CheckConfig {
        /// The config file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Exit code for a wrong config (`EX_CONFIG` of sysexits.h): starting again does not help, and
/// the unit does not.
const WRONG_CONFIG: u8 = 78;

/// Executes the command line; `run` serves with a config until it is told to stop.
pub fn main(run: impl FnOnce(Config, ConfigSource, Confinement) -> anyhow::Result<()>) -> ExitCode {
    match dispatch(DaemonArgs::parse().command, run) {
        Ok(()) => {
            log_thread::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let text = format!("roced: {error:#}\n");
            log_thread::write_last(&if stderr_is_the_journal() { with_priority(3, &text) } else { text });
            if error.is::<ConfigError>() { WRONG_CONFIG.into() } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(
    command: Command,
    run: impl FnOnce(Config, ConfigSource, Confinement) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match command {
        Command::CheckConfig { file } => check_config(&file),
        Command::Run { config: file, no_sandbox } => {
            let config = Config::load(&file)?;
            let set_log_level = start_log(&config.log)?;
            for remark in half_congestion_control(&config) {
                warn!("{}", roced_output::escaped(&remark));
            }
            let confinement = if no_sandbox { Confinement::Off } else { Confinement::On };
            run(config, ConfigSource { file, set_log_level }, confinement)
        }
    }
}

fn check_config(file: &Path) -> anyhow::Result<()> {
    let config = Config::load(file)?;
    let (devices, workers) = (config.devices.len(), config.workers.len());
    let mut text = format!("{}: good: {devices} device(s), {workers} worker(s)\n", shown(file));
    for remark in absences(&config).into_iter().chain(half_congestion_control(&config)).chain(dcb::remarks(&config)) {
        text += &format!("{}: but {}\n", shown(file), roced_output::escaped(&remark));
    }
    Ok(roced_output::print(text)?)
}

/// Objects that the config names and this host does not have at present. They may come before the
/// daemon starts, so they are no mistake.
fn absences(config: &Config) -> Vec<String> {
    let groups = [("control.group", &config.control.group), ("admin.group", &config.admin.group)];
    let groups = groups.into_iter().filter_map(|(key, name)| Some((key, name.as_deref()?)));
    let groups = groups.filter(|(_, name)| matches!(Group::from_name(name), Ok(None)));
    let interfaces =
        config.devices.iter().filter(|device| !Path::new("/sys/class/net").join(device.interface.as_str()).exists());
    let groups = groups.map(|(key, name)| format!("{key}: there is no group {name}: roced does not start without it"));
    let interfaces = interfaces.map(|device| {
        format!(
            "device {}: there is no network interface {}: roced does not start without it, and waits for it as a service",
            device.name, device.interface
        )
    });
    groups.chain(interfaces).collect()
}

/// Devices with one of the two keys that congestion control takes, or a delay guard without it.
/// `ecn` and `congestion_control` have a use by themselves, to compare or beside peers that have both.
fn half_congestion_control(config: &Config) -> Vec<String> {
    let remark = |device: &DeviceConfig| {
        let problem = match (device.ecn, device.congestion_control) {
            (EcnChoice::On, CongestionChoice::Off) => {
                "ecn = \"on\" without congestion_control: packets are marked instead of dropped, and no connection slows \
                 down by a mark"
            }
            (EcnChoice::Off, CongestionChoice::Dcqcn) => {
                "congestion_control = \"dcqcn\" without ecn = \"on\": switches mark none of its packets, so that no peer \
                 sends CNPs that its rates could follow; its windows follow losses, and marks on READ responses of \
                 peers that have ecn"
            }
            // Delay takes the place of marks.
            (EcnChoice::Off, CongestionChoice::Window) if device.delay_guard_us > 0 => return None,
            (EcnChoice::Off, CongestionChoice::Window) => {
                "congestion_control = \"window\" without ecn = \"on\": switches mark none of its packets, and its \
                 windows follow losses, and marks on READ responses of peers that have ecn; with delay_guard_us they \
                 follow delays"
            }
            (EcnChoice::Off, CongestionChoice::Off) if device.delay_guard_us > 0 => {
                "delay_guard_us without congestion_control: there is no window that could follow delays"
            }
            (EcnChoice::On, CongestionChoice::Window | CongestionChoice::Dcqcn)
            | (EcnChoice::Off, CongestionChoice::Off) => return None,
        };
        Some(format!("device {}: {problem}", device.name))
    };
    config.devices.iter().filter_map(remark).collect()
}

/// Sends everything that is traced from now on to where the config says. Returns the function that
/// changes the level.
///
/// # Errors
/// When there is no journal, or when messages already go somewhere.
fn start_log(log: &LogConfig) -> anyhow::Result<Box<dyn Fn(LogLevel)>> {
    let (filter, handle) = reload::Layer::new(level_filter(log.level));
    let registry = tracing_subscriber::registry().with(filter);
    match log.target {
        LogTarget::Stderr => {
            let writer = log_thread::start().context("no thread for the log")?;
            let is_journal = stderr_is_the_journal();
            panic::set_hook(Box::new(move |panic| log_panic(panic, is_journal)));
            let layer = fmt::layer().with_writer(writer);
            if is_journal {
                registry.with(layer.with_ansi(false).event_format(JournalLines)).try_init()?;
            } else {
                registry.with(layer.with_ansi(io::stderr().is_terminal())).try_init()?;
            }
        }
        LogTarget::Journald => {
            let layer = tracing_journald::layer().context(
                "log.target is \"journald\", but the journal does not answer: use \"stderr\" where there is none",
            )?;
            registry.with(layer).try_init()?;
        }
    }
    Ok(Box::new(move |level| {
        // It fails only without a subscriber, and then nothing is written in any case.
        let _ = handle.reload(level_filter(level));
    }))
}

/// Writes the message of a panic as the standard library does, but by the log's thread: a thread
/// that panics ends the daemon, also when the reader of stderr stands still.
fn log_panic(panic: &PanicHookInfo<'_>, is_journal: bool) {
    let current = thread::current();
    let (name, trace) = (current.name().unwrap_or("<unnamed>"), Backtrace::capture());
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("{trace}"),
        _ => String::new(),
    };
    let text = format!("thread '{name}' {panic}\n{trace}");
    log_thread::write_last(&if is_journal { with_priority(2, &text) } else { text });
}

/// Events as lines of a unit's stderr, fields included: plain `journalctl` shows no fields of the
/// journal's own protocol. Time and process are the journal's.
struct JournalLines;

impl<S, N> FormatEvent<S, N> for JournalLines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let mut text = String::new();
        let format = fmt::format().without_time().with_level(false).with_target(false);
        format.format_event(context, Writer::new(&mut text), event)?;
        to.write_str(&with_priority(priority, &text))
    }
}

/// The text with the priority before each line, as the journal takes it from a unit's stderr
/// (sd-daemon(3)).
fn with_priority(priority: u8, text: &str) -> String {
    text.lines().fold(String::new(), |lines, line| lines + &format!("<{priority}>{line}\n"))
}

fn stderr_is_the_journal() -> bool {
    is_journal_stream(io::stderr().as_fd(), env::var("JOURNAL_STREAM").ok().as_deref())
}

const fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// True if the descriptor is the stream to the journal that systemd has set up: its device and
/// inode are `named` in the variable `JOURNAL_STREAM` (systemd.exec(5)).
fn is_journal_stream(descriptor: BorrowedFd<'_>, named: Option<&str>) -> bool {
    let Ok(file) = fstat(descriptor) else { return false };
    named.is_some_and(|named| named == format!("{}:{}", file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Seek},
        sync::Arc,
    };

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        DaemonArgs::command().debug_assert();
    }

    #[test]
    fn run_reads_the_installed_config_unless_told_another() {
        let parse =
            |arguments: &[&str]| match DaemonArgs::try_parse_from(arguments).expect("a good command line").command {
                Command::Run { config, .. } => config,
                Command::CheckConfig { file } => file,
            };
        assert_eq!(parse(&["roced", "run"]), Path::new("/etc/roced/roced.toml"));
        assert_eq!(parse(&["roced", "run", "--config", "x.toml"]), Path::new("x.toml"));
        assert_eq!(parse(&["roced", "check-config", "y.toml"]), Path::new("y.toml"));
    }

    #[test]
    fn a_stream_to_the_journal_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().expect("a scratch file");
        let status = fstat(&file).expect("it is open");
        let (device, inode) = (status.st_dev, status.st_ino);
        assert!(is_journal_stream(file.as_fd(), Some(&format!("{device}:{inode}"))));
        for named in [None, Some(""), Some("0:0"), Some("x")] {
            assert!(!is_journal_stream(file.as_fd(), named), "{named:?}");
        }
    }

    #[test]
    fn lines_for_the_journal_have_a_priority_each_and_all_fields() {
        let mut file = tempfile::tempfile().expect("a scratch file");
        let writer = Arc::new(file.try_clone().expect("a second descriptor"));
        let layer = fmt::layer().with_writer(writer).with_ansi(false).event_format(JournalLines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(program = "bw", peer = %"10.0.0.2", "queue pair failed");
            tracing::debug!("two\nlines");
        });
        let mut lines = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut lines)).expect("text");
        assert_eq!(lines, "<4>queue pair failed program=\"bw\" peer=10.0.0.2\n<7>two\n<7>lines\n");
    }

    #[test]
    fn a_group_and_an_interface_that_are_not_there_are_named() {
        let check = |text: &str| absences(&Config::parse(text, &[]).expect("a good config"));
        assert!(check("[[device]]\nname = \"a\"\ninterface = \"lo\"").is_empty());
        let found =
            check("[control]\ngroup = \"no-such-group\"\n[[device]]\nname = \"a\"\ninterface = \"no-such-nic\"");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no group no-such-group") && found[1].contains("interface no-such-nic"), "{found:?}");
    }

    #[test]
    fn one_key_of_congestion_control_without_the_other_is_named() {
        let check = |keys: &str| {
            let text = format!("[[device]]\nname = \"a\"\ninterface = \"lo\"\n{keys}");
            half_congestion_control(&Config::parse(&text, &[]).expect("a good config")).join("\n")
        };
        assert_eq!(check(""), "");
        assert_eq!(check("ecn = \"on\"\ncongestion_control = \"window\""), "");
        let marked = check("ecn = \"on\"");
        assert!(marked.starts_with("device a: ecn = \"on\" without congestion_control"), "{marked}");
        let unmarked = check("congestion_control = \"window\"");
        assert!(unmarked.starts_with("device a: congestion_control = \"window\" without ecn"), "{unmarked}");
        assert_eq!(check("congestion_control = \"window\"\ndelay_guard_us = 250"), "");
        let guard = check("delay_guard_us = 250");
        assert!(guard.starts_with("device a: delay_guard_us without congestion_control"), "{guard}");
    }

    #[test]
    fn a_wrong_config_keeps_the_daemon_from_starting() {
        let file = tempfile::NamedTempFile::new().expect("a scratch file");
        std::fs::write(file.path(), "[[device]]\nname = 1\n").expect("the scratch file can be written");
        let command = Command::Run { config: file.path().into(), no_sandbox: false };
        let error = dispatch(command, |_, _, _| panic!("it must not start")).expect_err("the config is wrong");
        let text = format!("{error:#}");
        assert!(text.contains("2 mistake(s)") && text.contains(":2:8: device[0].name"), "{text}");
    }
}
