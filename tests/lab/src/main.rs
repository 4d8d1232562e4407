//! `roced-lab`: run by `scripts/lab` inside the network namespace of the box between the hosts.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};
use roced_lab::{
    classes::PortClasses,
    layout::{self, Config, RULES_MAX, RuleBytes},
    pause,
    port::Port,
    queue::{self, Pfc, QueueSettings, Queues, Wred},
    replay::{Host, Pace, Replay},
    rule::{Rule, parse_opcode, parse_rate},
    switch::{self, Faults},
    watch,
};
use roced_transport::wire::opcode::Opcode;
use zerocopy::FromZeros as _;

/// Faults and queues on the way between the hosts of the lab.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put the program on these ports, with no fault set.
    Attach {
        /// Interfaces of this network namespace.
        #[arg(required = true)]
        ports: Vec<String>,
    },
    /// Give these ports a queue that drops and marks as that of a switch; the delay is the qdisc's.
    Limit {
        /// Bits each second of a port.
        #[arg(long, value_name = "BITS")]
        rate: u64,
        /// A frame that does not fit is dropped.
        #[arg(long, value_name = "BYTES")]
        buffer: u64,
        /// Mark from a depth of KMIN on, at KMAX with a probability of PMAX, above it always.
        #[arg(long, value_name = "KMIN:KMAX:PMAX")]
        mark: Option<Wred>,
        /// Pause the senders of frames of that priority when the queue is longer than XOFF bytes.
        #[arg(long, value_name = "PRIORITY:XOFF")]
        pfc: Option<Pfc>,
        /// Traffic classes of each port.
        #[arg(long, value_name = "CLASS,...")]
        classes: Option<PortClasses>,
        /// Interfaces of this network namespace.
        #[arg(required = true)]
        ports: Vec<String>,
    },
    /// Show the queues each second, until SIGINT or SIGTERM.
    Queue {
        /// A port with a queue.
        #[arg(long, hide = true)]
        port: String,
        /// One JSON document: at once, with rates since the last reset.
        #[arg(long)]
        json: bool,
        /// End after that time; with --json, rates of that time.
        #[arg(long, value_name = "S")]
        seconds: Option<u64>,
        /// Show nothing and let the counters begin at zero.
        #[arg(long, conflicts_with_all = ["json", "seconds"])]
        reset: bool,
    },
    /// Pause the host behind a port by PFC frames, one each millisecond, until the time is over.
    Pause {
        /// Interface of this network namespace.
        #[arg(long, hide = true)]
        port: String,
        /// The priority.
        #[arg(value_parser = clap::value_parser!(u8).range(0..=7))]
        priority: u8,
        /// Duration.
        seconds: f64,
    },
    /// Set, show or end the faults.
    Fault {
        /// A port that the program is on.
        #[arg(long, hide = true)]
        port: String,
        #[command(flatten)]
        faults: FaultArguments,
        #[command(subcommand)]
        what: Option<FaultCommand>,
    },
    /// Send recorded RoCE frames once more, to the host that each was for, until SIGINT or SIGTERM.
    Replay {
        /// A pcap of this lab.
        file: PathBuf,
        /// The two hosts: a port and the MAC address behind it.
        #[arg(long, value_name = "PORT=MAC", hide = true, required = true, num_args = 1)]
        host: Vec<Host>,
        /// Recorded frames follow on every N-th live frame to the same host. An answer is a live
        /// frame as well: with N below about four times the burst the answers alone would keep it
        /// going.
        #[arg(long, value_name = "N", default_value = "8")]
        every: NonZeroU32,
        /// So many recorded frames follow at a time, in the order in which they were recorded.
        #[arg(long, value_name = "FRAMES", default_value = "1")]
        burst: NonZeroU32,
        /// They follow so much later than the live frame.
        #[arg(long, value_name = "US", default_value = "0")]
        delay: u64,
        /// End after that time.
        #[arg(long)]
        seconds: Option<u64>,
    },
}

/// Replace the faults for RoCE frames, in both directions.
#[derive(Args)]
struct FaultArguments {
    /// Share of frames that get lost: 0.01 or 1%.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "0")]
    drop: f64,
    /// Share of frames that arrive twice.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "0")]
    duplicate: f64,
    /// Share of frames that arrive with a byte under the ICRC changed.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "0")]
    corrupt: f64,
    /// Share of frames that a congested switch marks (CE), of those that may be marked (ECT).
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "0")]
    mark: f64,
    /// The rates are for frames of this opcode alone: ud_send_only, 0x64.
    #[arg(long, value_name = "OPCODE", value_parser = parse_opcode)]
    only: Option<Opcode>,
    /// Act once, on the N-th frame of an opcode from now on: rc_write_last:1:drop,
    /// 0x11:3:duplicate. May be repeated.
    #[arg(long, value_name = "OPCODE:N:ACTION")]
    nth: Vec<Rule>,
    /// Let every frame arrive on this RX queue of the host, as a NIC does that hashes it there.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<u16>,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// No more faults; the counters stay.
    Off,
    /// Counters since the faults were set.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Attach { ports } => switch::attach(&ports),
        Command::Limit { rate, buffer, mark, pfc, classes, ports } => {
            queue::attach(&ports, &QueueSettings::new(rate, buffer, mark)?.with_pfc(pfc), classes)
        }
        Command::Pause { port, priority, seconds } => {
            pause::pause(&Port::open(&port)?, priority, Duration::try_from_secs_f64(seconds)?)
        }
        Command::Queue { port, reset: true, .. } => Queues::of_port(&port)?.reset(),
        Command::Queue { port, json, seconds, .. } => {
            let (queues, seconds) = (Queues::of_port(&port)?, seconds.map(Duration::from_secs));
            if !json {
                return watch::watch(&queues, seconds);
            }
            Ok(roced_output::print(format_args!("{}\n", watch::document(&queues, seconds)?))?)
        }
        Command::Fault { port, what: None, faults } => Faults::of_port(&port)?.set(&faults.config()?),
        Command::Fault { port, what: Some(FaultCommand::Off), .. } => Faults::of_port(&port)?.clear(),
        Command::Fault { port, what: Some(FaultCommand::Show { json }), .. } => show(&Faults::of_port(&port)?, json),
        Command::Replay { file, host, every, burst, delay, seconds } => {
            let hosts = host.try_into().ok().context("two hosts, each with --host")?;
            let pace =
                Pace { every, burst, delay: Duration::from_micros(delay), limit: seconds.map(Duration::from_secs) };
            let replay = Replay::open(&file, hosts, pace)?;
            roced_output::print(format_args!("replaying {} frames of {}\n", replay.frames(), file.display()))?;
            Ok(roced_output::print(format_args!("{}\n", replay.run()?))?)
        }
    }
}

impl FaultArguments {
    fn config(&self) -> Result<Config> {
        ensure!(self.nth.len() <= RULES_MAX, "at most {RULES_MAX} times --nth");
        let mut config = Config {
            drop_chance: layout::chance(self.drop),
            duplicate_chance: layout::chance(self.duplicate),
            corrupt_chance: layout::chance(self.corrupt),
            mark_chance: layout::chance(self.mark),
            queue_plus_one: self.queue.map_or(0, |queue| u32::from(queue) + 1),
            rules: self.nth.len() as u32,
            only_plus_one: self.only.map_or(0, |opcode| u32::from(opcode.0) + 1),
            ..Config::new_zeroed()
        };
        for (bytes, rule) in config.rule.iter_mut().zip(&self.nth) {
            *bytes = RuleBytes { opcode: rule.opcode.0.into(), action: rule.action as u32, nth: rule.nth };
        }
        Ok(config)
    }
}

fn show(faults: &Faults, json: bool) -> Result<()> {
    let counters = faults.counters()?;
    let text = if json {
        serde_json::to_string(&counters)? + "\n"
    } else {
        counters.iter().map(|(name, count)| format!("{name:<12}{count}\n")).collect()
    };
    Ok(roced_output::print(text)?)
}
