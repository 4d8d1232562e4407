//! Classes of a switch: shares by weight, and strict order.

use super::{Case, LOSSY, PAYLOAD_SHARE, TEN_GBIT, WINDOW, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
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

pub(super) fn cases() -> Vec<Case> {
    vec![
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
