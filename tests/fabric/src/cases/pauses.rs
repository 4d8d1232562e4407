//! Switches that pause their neighbors (PFC), and the harm of it that congestion control prevents.

use roced_transport::clock::Nanos;

use super::{Case, LOSSY, OFF, PAYLOAD_SHARE, TEN_GBIT, WINDOW, incast::utilization, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::HostOptions,
    outcome::RunOutcome,
    run::RunSpec,
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
