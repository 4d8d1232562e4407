//! Switches that pause their neighbors (PFC), and the harm of it that congestion control prevents.

use roced_transport::{
    clock::Nanos,
    turns::{class_pause::PauseWatchdog, classes::TrafficClasses},
};

use super::{Case, LOSSY, OFF, PAYLOAD_SHARE, TEN_GBIT, WINDOW, incast::utilization, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::{Honoring, HostOptions},
    outcome::RunOutcome,
    run::{RunSpec, Storm},
    switch::{PauseRules, SwitchConfig},
    topology::{LinkSpec, Topology},
};

/// Class 0 is without losses. A neighbor is paused when more waits than the length from which on
/// all frames are marked, so that marks come first. The headroom takes the frames of a round trip, of
/// the one that is being sent, and of the delay of a pause, of a link of 40 Gbit/s.
const PAUSES: PauseRules =
    PauseRules { classes: 1, pause_bytes: 200_000, resume_bytes: 180_000, headroom_bytes: 40_000 };

pub(super) const LOSSLESS: SwitchConfig = SwitchConfig { pauses: Some(PAUSES), ..LOSSY };

/// Four senders to one receiver, and one to another, over a link between switches that is fast
/// enough for all.
fn victim(hosts: HostOptions) -> RunSpec {
    let mut topology = Topology::new(7, 2);
    for (host, switch) in [1, 1, 0, 0, 0, 0, 0].into_iter().enumerate() {
        topology.link_host(host, switch, TEN_GBIT);
    }
    topology.link_switches(0, 1, LinkSpec { mbit_per_s: 40_000, ..TEN_GBIT });
    let template = star(1, TEN_GBIT, hosts, LOSSLESS);
    let mut flows: Vec<_> = (2..6).map(|from| FlowSpec::writes(from, 0)).collect();
    flows.push(FlowSpec::writes(6, 1));
    RunSpec { watched: topology.port_to_host(0), topology, hosts: vec![hosts; 7], flows, ..template }
}

/// Five switches in a ring; a flow goes from each to the one after the next, so that each link
/// waits for the next one.
fn ring(hosts: HostOptions) -> RunSpec {
    const SWITCHES: usize = 5;
    // Two senders and one receiver at each switch.
    let mut topology = Topology::new(3 * SWITCHES, SWITCHES);
    (0..3 * SWITCHES).for_each(|host| topology.link_host(host, host % SWITCHES, TEN_GBIT));
    (0..SWITCHES).for_each(|switch| topology.link_switches(switch, (switch + 1) % SWITCHES, TEN_GBIT));
    let to = |from: usize| 2 * SWITCHES + (from + 2) % SWITCHES;
    let template = star(1, TEN_GBIT, hosts, LOSSLESS);
    RunSpec {
        watched: topology.port_between(0, 1),
        topology,
        hosts: vec![hosts; 3 * SWITCHES],
        flows: (0..2 * SWITCHES).map(|from| FlowSpec::writes(from, to(from))).collect(),
        ..template
    }
}

/// Hosts with a MAC that does not honor pauses: workers do, or nothing.
const HONORING: HostOptions = HostOptions { classes: Some(with_watchdog), pauses: Honoring::Worker, ..OFF };
const IGNORING: HostOptions = HostOptions { pauses: Honoring::Nothing, ..HONORING };
const WITHOUT_WATCHDOG: HostOptions = HostOptions { classes: Some(without_watchdog), ..HONORING };

/// The headroom takes the bytes that a NIC has when its worker sees a pause as well.
const OF_WORKERS: SwitchConfig = SwitchConfig {
    pauses: Some(PauseRules { pause_bytes: 100_000, resume_bytes: 80_000, headroom_bytes: 130_000, ..PAUSES }),
    ..LOSSY
};

fn with_watchdog() -> TrafficClasses {
    let times = Nanos::from_millis(10);
    let watchdog = PauseWatchdog { detection: times, restoration: times, ..PauseWatchdog::default() };
    TrafficClasses { watchdog, ..TrafficClasses::default() }
}

fn without_watchdog() -> TrafficClasses {
    let watchdog = PauseWatchdog { detection: Nanos::NEVER, ..PauseWatchdog::default() };
    TrafficClasses { watchdog, ..TrafficClasses::default() }
}

/// A sender that is paused for 60 ms for nothing, and later for 5 ms.
fn storm(hosts: HostOptions) -> RunSpec {
    let pause = |begin, end| Storm { host: 1, begin: Nanos::from_millis(begin), end: Nanos::from_millis(end) };
    RunSpec { storms: vec![pause(60, 120), pause(170, 175)], ..star(1, TEN_GBIT, hosts, LOSSY) }
}

/// Rate of all flows between two times in ms, Gbit/s.
fn gbit_between(outcome: &RunOutcome, from: u64, to: u64) -> f64 {
    let rates = outcome.rates().filter(|(time, _)| *time > Nanos::from_millis(from) && *time <= Nanos::from_millis(to));
    let rates: Vec<f64> = rates.map(|(_, rates)| rates.iter().sum()).collect();
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// Rate of all flows in the last 20 ms, Gbit/s.
fn last_gbit_per_s(outcome: &RunOutcome) -> f64 {
    let begin = outcome.samples.rates.last().map_or(Nanos(0), |last| last.time - Nanos::from_millis(20));
    let rates: Vec<_> = outcome.rates().filter(|(time, _)| *time > begin).collect();
    rates.iter().map(|(_, rates)| rates.iter().sum::<f64>()).sum::<f64>() / rates.len().max(1) as f64
}

fn lossless_drops(outcomes: &[RunOutcome]) -> f64 {
    outcomes.iter().map(|outcome| outcome.total.dropped_lossless as f64).sum()
}

fn no_drops() -> BarSpec {
    BarSpec { name: "drops of the lossless class", goal: AtMost(0.0), value: Box::new(lossless_drops) }
}

pub(super) fn cases() -> Vec<Case> {
    let pauses = |outcomes: &[RunOutcome]| outcomes[0].total.pauses as f64 / outcomes[1].total.pauses.max(1) as f64;
    let share = |at: usize| move |outcomes: &[RunOutcome]| outcomes[at].flow_gbit_per_s(4) / (10.0 * PAYLOAD_SHARE);
    vec![
        Case {
            name: "pauses",
            text: "16 senders to one receiver, without losses",
            is_quick: true,
            runs: vec![("window", star(16, TEN_GBIT, WINDOW, LOSSLESS)), ("off", star(16, TEN_GBIT, OFF, LOSSLESS))],
            bars: vec![
                BarSpec { name: "pauses, to those of off", goal: AtMost(0.01), value: Box::new(pauses) },
                BarSpec {
                    name: "pauses, off",
                    goal: AtLeast(1000.0),
                    value: Box::new(|outcomes| outcomes[1].total.pauses as f64),
                },
                BarSpec::new("utilization", AtLeast(0.97), utilization(10.0)),
                // Those that wait for others are not given up yet.
                BarSpec::no_failures_in_any_run(),
                no_drops(),
            ],
        },
        Case {
            name: "pauses of workers",
            text: "four senders to one receiver, without losses: their MACs do not honor pauses, their workers do",
            is_quick: true,
            runs: vec![
                ("honored", star(4, TEN_GBIT, HONORING, OF_WORKERS)),
                ("ignored", star(4, TEN_GBIT, IGNORING, OF_WORKERS)),
            ],
            bars: vec![
                BarSpec::new("drops of the lossless class", AtMost(0.0), |outcome| {
                    outcome.total.dropped_lossless as f64
                }),
                BarSpec::new("pauses", AtLeast(1000.0), |outcome| outcome.total.pauses as f64),
                BarSpec::new("utilization", AtLeast(0.97), utilization(10.0)),
                BarSpec {
                    name: "drops of the lossless class, ignored",
                    goal: AtLeast(1000.0),
                    value: Box::new(|outcomes| outcomes[1].total.dropped_lossless as f64),
                },
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "storm",
            text: "a sender that is paused from 60 to 120 ms for nothing, and from 170 to 175 ms",
            is_quick: true,
            runs: vec![("watchdog", storm(HONORING)), ("no watchdog", storm(WITHOUT_WATCHDOG))],
            bars: vec![
                BarSpec::new("Gbit/s before its detection", AtMost(0.1), |outcome| gbit_between(outcome, 61, 70)),
                BarSpec::new("Gbit/s after it", AtLeast(9.5), |outcome| gbit_between(outcome, 72, 169)),
                BarSpec::new("Gbit/s in the next pause", AtMost(0.1), |outcome| gbit_between(outcome, 171, 175)),
                BarSpec {
                    name: "Gbit/s in it, no watchdog",
                    goal: AtMost(0.01),
                    value: Box::new(|outcomes| gbit_between(&outcomes[1], 61, 120)),
                },
                BarSpec {
                    name: "Gbit/s after it, no watchdog",
                    goal: AtLeast(9.5),
                    value: Box::new(|outcomes| gbit_between(&outcomes[1], 122, 169)),
                },
                BarSpec::no_failures_in_any_run(),
            ],
        },
        Case {
            name: "victim",
            text: "four senders to one receiver; a fifth, to another one, shares only the fast link between switches",
            is_quick: false,
            runs: vec![("window", victim(WINDOW)), ("off", victim(OFF))],
            bars: vec![
                BarSpec { name: "share of the victim", goal: AtLeast(0.9), value: Box::new(share(0)) },
                BarSpec { name: "share of the victim, off", goal: AtMost(0.6), value: Box::new(share(1)) },
                no_drops(),
            ],
        },
        Case {
            name: "ring",
            text: "five switches in a ring, each link waits for the next one",
            is_quick: true,
            runs: vec![("window", ring(WINDOW)), ("off", ring(OFF))],
            bars: vec![
                // Each flow takes two of five links: 24.4 Gbit/s at most.
                BarSpec::new("Gbit/s at the end", AtLeast(23.0), last_gbit_per_s),
                BarSpec {
                    name: "Gbit/s at the end, off: a deadlock",
                    goal: AtMost(0.5),
                    value: Box::new(|outcomes| last_gbit_per_s(&outcomes[1])),
                },
                BarSpec {
                    name: "frames that wait at the end, off",
                    goal: AtLeast(100.0),
                    value: Box::new(|outcomes| outcomes[1].waiting_frames as f64),
                },
                // Those that wait for others are not given up yet.
                BarSpec::no_failures_in_any_run(),
                no_drops(),
            ],
        },
    ]
}
