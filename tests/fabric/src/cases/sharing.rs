//! Flows that begin and end, have other distances, or cross several links.

use roced_transport::clock::Nanos;

use super::{Case, LOSSY, OFF, PAYLOAD_SHARE, TEN_GBIT, WINDOW, incast::utilization, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::HostOptions,
    outcome::{RunOutcome, jain},
    run::RunSpec,
    topology::{LinkSpec, Topology},
};

const JOIN: Nanos = Nanos::from_millis(100);
const LEAVE: Nanos = Nanos::from_millis(200);

/// Time without a value, in ms: longer than any bar.
const NEVER_MS: f64 = 1e6;

/// Two flows; two more between 100 and 200 ms.
pub(super) fn two_four_two(hosts: HostOptions) -> RunSpec {
    let mut spec = star(4, TEN_GBIT, hosts, LOSSY);
    for flow in &mut spec.flows[2..] {
        // At the end they have few messages left.
        (flow.begin, flow.end, flow.depth) = (JOIN, LEAVE, 4);
    }
    RunSpec { end: Nanos::from_millis(300), ..spec }
}

/// Jain's index of the four flows from one sample to another.
fn jain_of(samples: &[(Nanos, Vec<f64>)]) -> f64 {
    let shares: Vec<f64> = (0..4).map(|flow| samples.iter().map(|(_, rates)| rates[flow]).sum()).collect();
    jain(&shares)
}

/// Samples while there are four flows.
fn joined(outcome: &RunOutcome) -> Vec<(Nanos, Vec<f64>)> {
    outcome.rates().filter(|(time, _)| *time > JOIN && *time <= LEAVE).collect()
}

/// Time from the join to the end of 5 ms with equal shares.
pub(super) fn join_ms(outcome: &RunOutcome) -> f64 {
    let samples = joined(outcome);
    let equal = samples.windows(5).find(|run| jain_of(run) > 0.95);
    equal.map_or(NEVER_MS, |run| (run[4].0 - JOIN).0 as f64 / 1e6)
}

/// Jain's index from 10 ms after the join on.
fn jain_after_join(outcome: &RunOutcome) -> f64 {
    let samples = joined(outcome);
    jain_of(&samples[10.min(samples.len())..])
}

/// Time from the leave until the rest use, and keep, nine tenths of the link.
pub(super) fn leave_ms(outcome: &RunOutcome) -> f64 {
    let is_idle = |rates: &[f64]| rates[..2].iter().sum::<f64>() < 0.9 * 10.0 * PAYLOAD_SHARE;
    let after: Vec<_> = outcome.rates().filter(|(time, _)| *time > LEAVE).collect();
    let last = after.iter().rfind(|(_, rates)| is_idle(rates)).map_or(LEAVE, |(time, _)| *time);
    if after.last().is_none_or(|(end, _)| *end == last) { NEVER_MS } else { (last - LEAVE).0 as f64 / 1e6 }
}

/// Three switches in a row: one flow crosses both links between them, two cross one each.
fn parking_lot() -> RunSpec {
    let mut topology = Topology::new(6, 3);
    for (host, switch) in [0, 0, 1, 2, 1, 2].into_iter().enumerate() {
        topology.link_host(host, switch, TEN_GBIT);
    }
    topology.link_switches(0, 1, TEN_GBIT);
    topology.link_switches(1, 2, TEN_GBIT);
    let template = star(1, TEN_GBIT, WINDOW, LOSSY);
    RunSpec {
        watched: topology.port_between(0, 1),
        topology,
        hosts: vec![WINDOW; 6],
        flows: vec![FlowSpec::writes(0, 3), FlowSpec::writes(1, 4), FlowSpec::writes(2, 5)],
        ..template
    }
}

/// Two senders near the receiver, two far from it.
fn mixed_distances() -> RunSpec {
    let mut topology = Topology::new(5, 1);
    for host in 0..5 {
        let one_way = if host > 2 { Nanos::from_micros(50) } else { TEN_GBIT.one_way };
        topology.link_host(host, 0, LinkSpec { one_way, ..TEN_GBIT });
    }
    let template = star(4, TEN_GBIT, WINDOW, LOSSY);
    RunSpec { watched: topology.port_to_host(0), topology, ..template }
}

/// Two senders that react, two that do not.
fn mixed_control() -> RunSpec {
    let mut spec = star(4, TEN_GBIT, WINDOW, LOSSY);
    spec.hosts[3..].fill(OFF);
    spec
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "2-4-2",
            text: "two flows; two more between 100 and 200 ms",
            is_quick: true,
            runs: vec![("window", two_four_two(WINDOW))],
            bars: vec![
                BarSpec::new("ms to equal shares", AtMost(10.0), join_ms),
                BarSpec::new("Jain from 10 ms on", AtLeast(0.97), jain_after_join),
                BarSpec::new("ms to 90 % of the link", AtMost(5.0), leave_ms),
            ],
        },
        Case {
            name: "parking lot",
            text: "one flow over two links, beside one flow on each",
            is_quick: false,
            runs: vec![("window", parking_lot())],
            bars: vec![
                BarSpec::new("share of the long flow", AtLeast(0.2), |outcome| {
                    outcome.flow_gbit_per_s(0) / (10.0 * PAYLOAD_SHARE)
                }),
                BarSpec::new("utilization of the first link", AtLeast(0.95), |outcome| {
                    (outcome.flow_gbit_per_s(0) + outcome.flow_gbit_per_s(1)) / (10.0 * PAYLOAD_SHARE)
                }),
            ],
        },
        Case {
            name: "mixed distances",
            text: "two senders with 4 us on links in a round trip, two with 102 us",
            is_quick: false,
            runs: vec![("window", mixed_distances())],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.97), utilization(10.0)),
                BarSpec::new("smallest to largest share", AtLeast(0.3), RunOutcome::min_to_max),
            ],
        },
        Case {
            name: "mixed control",
            text: "two senders that react beside two that do not: the latter take more",
            is_quick: false,
            runs: vec![("window and off", mixed_control())],
            bars: vec![
                // That of senders that lose packets all the time.
                BarSpec::new("utilization", AtLeast(0.9), utilization(10.0)),
                BarSpec::new("share of those that react", AtMost(0.2), |outcome| {
                    (outcome.flow_gbit_per_s(0) + outcome.flow_gbit_per_s(1)) / outcome.gbit_per_s()
                }),
                BarSpec::no_failures(),
            ],
        },
    ]
}
