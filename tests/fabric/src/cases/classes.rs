//! Classes of a switch: shares by weight, and strict order.

use roced_transport::turns::classes::{ClassConfig, Selection, TrafficClasses};

use super::{Case, LOSSY, PAYLOAD_SHARE, TEN_GBIT, WINDOW, incast::utilization, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::HostOptions,
    outcome::RunOutcome,
    queues::ClassOrder,
    run::RunSpec,
    switch::SwitchConfig,
};

/// Two senders in each of two classes.
fn two_classes(weights: [u64; 8]) -> RunSpec {
    let mut spec = star(4, TEN_GBIT, WINDOW, SwitchConfig { order: ClassOrder { weights }, ..LOSSY });
    spec.flows[2..].iter_mut().for_each(|flow| flow.class = 1);
    spec
}

/// Share of the flows of class 0 in all.
fn first_class(outcome: &RunOutcome) -> f64 {
    let both = outcome.flow_gbit_per_s(0) + outcome.flow_gbit_per_s(1);
    both / (10.0 * PAYLOAD_SHARE)
}

fn second_class(outcome: &RunOutcome) -> f64 {
    let both = outcome.flow_gbit_per_s(2) + outcome.flow_gbit_per_s(3);
    both / (10.0 * PAYLOAD_SHARE)
}

/// Class 6 before the others, which have equal shares.
fn strict_six() -> TrafficClasses {
    let mut classes = TrafficClasses::default();
    classes.config[6] = ClassConfig::new(Selection::Strict);
    classes
}

/// Classes 0 and 1 share by 7 and 3.
fn shares_of_seven_and_three() -> TrafficClasses {
    let mut config = [ClassConfig::new(Selection::Strict); 8];
    config[0] = ClassConfig::new(Selection::Ets { percent: 70 });
    config[1] = ClassConfig::new(Selection::Ets { percent: 30 });
    TrafficClasses { config, ..TrafficClasses::default() }
}

/// Flows of one host in both classes, one and nine.
fn two_classes_of_a_host() -> RunSpec {
    let mut spec = star(1, TEN_GBIT, HostOptions { classes: Some(shares_of_seven_and_three), ..WINDOW }, LOSSY);
    spec.flows = (0..10).map(|flow| FlowSpec { class: u8::from(flow > 0), ..FlowSpec::writes(1, 0) }).collect();
    spec
}

/// Share of the first flow in all.
fn first_flow(outcome: &RunOutcome) -> f64 {
    outcome.flow_gbit_per_s(0) / outcome.gbit_per_s()
}

/// Messages of one packet in class 6, and `bulk` flows of class 0 beside them, from host 1 to
/// host 0.
fn ping(bulk: u64, classes: Option<fn() -> TrafficClasses>) -> RunSpec {
    let mut spec = star(1, TEN_GBIT, HostOptions { classes, ..WINDOW }, LOSSY);
    spec.flows = (0..bulk).map(|_| FlowSpec { depth: 4, ..FlowSpec::writes(1, 0) }).collect();
    spec.flows.insert(0, FlowSpec { class: 6, message_bytes: 4096, depth: 1, ..FlowSpec::writes(1, 0) });
    spec
}

/// A bar for ping and bulk of [`ping`]: runs alone, with classes and without.
fn beside_bulk() -> Vec<BarSpec> {
    let bulk_gbit = |outcome: &RunOutcome| outcome.gbit_per_s() - outcome.flow_gbit_per_s(0);
    let ratio =
        |at: usize| move |outcomes: &[RunOutcome]| outcomes[at].latency_p99_us(0) / outcomes[0].latency_p99_us(0);
    vec![
        BarSpec { name: "p99 to that of alone", goal: AtMost(3.0), value: Box::new(ratio(1)) },
        BarSpec { name: "p99 to that of alone, without classes", goal: AtLeast(4.0), value: Box::new(ratio(2)) },
        BarSpec {
            name: "bulk to that of without classes",
            goal: AtLeast(0.95),
            value: Box::new(move |outcomes| bulk_gbit(&outcomes[1]) / bulk_gbit(&outcomes[2])),
        },
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let runs = |bulk| {
        vec![
            ("alone", ping(0, Some(strict_six))),
            ("classes", ping(bulk, Some(strict_six))),
            ("one class", ping(bulk, None)),
        ]
    };
    vec![
        Case {
            name: "ping beside bulk",
            text: "messages of one packet in a strict class beside one bulk flow of the same host",
            is_quick: true,
            runs: runs(1),
            bars: beside_bulk(),
        },
        Case {
            name: "ping beside 1000 bulk",
            text: "messages of one packet in a strict class beside 1,000 bulk flows of the same host",
            is_quick: false,
            runs: runs(1000),
            bars: beside_bulk(),
        },
        Case {
            name: "ETS of a host",
            text: "one flow of a class with 70 percent, nine of a class with 30, from one host",
            is_quick: true,
            runs: vec![("window", two_classes_of_a_host())],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.97), utilization(10.0)),
                BarSpec::new("share of the first class", AtLeast(0.68), first_flow),
                BarSpec::new("share of the first class, most", AtMost(0.72), first_flow),
            ],
        },
        Case {
            name: "ETS 70/30",
            text: "two classes with weights of 7 and 3",
            is_quick: true,
            runs: vec![("window", two_classes([7, 3, 1, 1, 1, 1, 0, 0]))],
            bars: vec![
                BarSpec::new("share of the first class", AtLeast(0.68), first_class),
                BarSpec::new("share of the first class, most", AtMost(0.72), first_class),
                BarSpec::new("share of the second class", AtLeast(0.28), second_class),
            ],
        },
        Case {
            name: "strict",
            text: "the second class goes first",
            is_quick: false,
            runs: vec![("window", two_classes([1, 0, 1, 1, 1, 1, 0, 0]))],
            bars: vec![BarSpec::new("share of the second class", AtLeast(0.95), second_class)],
        },
    ]
}
