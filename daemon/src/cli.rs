//! Command line: `roced run` and `roced check-config`, and the target of messages.
//!
//! Errors are printed as one chain, from the attempt down to a next step; the exit code is then 1.

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use nix::sys::stat::fstat;
use tracing_subscriber::{filter::LevelFilter, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::config::{Config, ConfigError, ConfigSource, DEFAULT_PATH, LogConfig, LogLevel, LogTarget};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "roced", version, about = "RDMA over Converged Ethernet for hosts without RDMA")]
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
    },
    /// Say everything that is wrong with a config file
    CheckConfig {
        /// The config file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Exit code for a wrong config (`EX_CONFIG` of sysexits.h): starting again is in vain, and the unit
/// does not.
const WRONG_CONFIG: u8 = 78;

/// Executes the command line; `run` serves with a config until it is told to stop.
pub fn main(run: impl FnOnce(Config, ConfigSource) -> anyhow::Result<()>) -> ExitCode {
    match dispatch(DaemonArgs::parse().command, run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roced: {error:#}");
            if error.is::<ConfigError>() { WRONG_CONFIG.into() } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: Command, run: impl FnOnce(Config, ConfigSource) -> anyhow::Result<()>) -> anyhow::Result<()> {
    match command {
        Command::CheckConfig { file } => check_config(&file),
        Command::Run { config: file } => {
            let config = Config::load(&file)?;
            let set_log_level = start_log(&config.log)?;
            run(config, ConfigSource { file, set_log_level })
        }
    }
}

fn check_config(file: &Path) -> anyhow::Result<()> {
    let config = Config::load(file)?;
    println!("{}: good: {} device(s), {} worker(s)", file.display(), config.devices.len(), config.workers.len());
    Ok(())
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
        // Lines of a unit's stderr would all have one priority.
        LogTarget::Stderr
            if is_journal_stream(io::stderr().as_fd(), env::var("JOURNAL_STREAM").ok().as_deref())
                && let Ok(layer) = tracing_journald::layer() =>
        {
            registry.with(layer).try_init()?;
        }
        LogTarget::Stderr => {
            let layer = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
            registry.with(layer).try_init()?;
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

const fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// True if the descriptor is the stream to the journal that systemd has set up: its device and inode
/// are `named` in the variable `JOURNAL_STREAM` (systemd.exec(5)).
fn is_journal_stream(descriptor: BorrowedFd<'_>, named: Option<&str>) -> bool {
    let Ok(file) = fstat(descriptor) else { return false };
    named.is_some_and(|named| named == format!("{}:{}", file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        DaemonArgs::command().debug_assert();
    }

    #[test]
    fn run_reads_the_installed_config_unless_told_another() {
        let parse =
            |arguments: &[&str]| match DaemonArgs::try_parse_from(arguments).expect("a good command line").command {
                Command::Run { config } => config,
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
    fn a_wrong_config_keeps_the_daemon_from_starting() {
        let file = tempfile::NamedTempFile::new().expect("a scratch file");
        std::fs::write(file.path(), "[[device]]\nname = 1\n").expect("the scratch file can be written");
        let command = Command::Run { config: file.path().into() };
        let error = dispatch(command, |_, _| panic!("it must not start")).expect_err("the config is wrong");
        let text = format!("{error:#}");
        assert!(text.contains("2 mistake(s)") && text.contains(":2:8: device[0].name"), "{text}");
    }
}
