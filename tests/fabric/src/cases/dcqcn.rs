//! Senders that follow CNPs by a rate, as adapters do; and answers to READs of peers that ask for
//! any amount.

use roced_transport::{
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters},
};
use roced_types::SendOp;

use super::{
    Case, LOSSY, MARKING, OFF, TEN_GBIT, WINDOW,
    incast::{drops_after, queue, utilization},
    pauses::LOSSLESS,
    sharing, star,
};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::HostOptions,
    outcome::RunOutcome,
    run::RunSpec,
    topology::LinkSpec,
};

const PAPER: HostOptions = HostOptions { congestion: CongestionControl::Dcqcn, ..WINDOW };
const MLX: HostOptions = HostOptions { dcqcn: DcqcnParameters::mlx(1_250_000_000), ..PAPER };

/// A link on which 64 senders have less than two packets in a hundred increases.
const ONE_GBIT: LinkSpec = LinkSpec { mbit_per_s: 1000, ..TEN_GBIT };
const PAPER_AT_ONE_GBIT: HostOptions = HostOptions { dcqcn: DcqcnParameters::paper(125_000_000), ..PAPER };

/// Host 0 reads from 16 others, and its own windows follow nothing.
fn reads(responders: HostOptions) -> RunSpec {
    let mut spec = star(16, TEN_GBIT, responders, LOSSY);
    spec.hosts[0] = HostOptions { total_window_packets: 1 << 20, rx_ring: 1 << 14, ..OFF };
    spec.flows = (1..=16).map(|to| FlowSpec { op: SendOp::Read, depth: 4, ..FlowSpec::writes(0, to) }).collect();
    spec
}

pub(super) fn cases() -> Vec<Case> {
    let longest = 3.0 * MARKING.max_bytes as f64;
    vec![
        Case {
            name: "dcqcn incast 16",
            text: "16 senders with DCQCN, parameters of the paper",
            is_quick: true,
            runs: vec![("dcqcn", star(16, TEN_GBIT, PAPER, LOSSY))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.85), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.95), RunOutcome::jain),
                BarSpec::new("smallest to largest share", AtLeast(0.6), RunOutcome::min_to_max),
                BarSpec::new("queue p99, bytes", AtMost(longest), queue),
                BarSpec::new("drops after 5 ms", AtMost(0.0), drops_after(5)),
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "dcqcn incast 64",
            text: "64 senders with DCQCN",
            is_quick: false,
            runs: vec![("dcqcn", star(64, TEN_GBIT, PAPER, LOSSY))],
            bars: vec![BarSpec::new("utilization", AtLeast(0.85), utilization(10.0)), BarSpec::no_failures()],
        },
        Case {
            name: "dcqcn low rates",
            text: "64 senders with DCQCN on 1 Gbit/s: a packet of each in 2 ms, 40 increases of time",
            is_quick: false,
            runs: vec![
                ("dcqcn", star(64, ONE_GBIT, PAPER_AT_ONE_GBIT, LOSSY)),
                ("window", star(64, ONE_GBIT, WINDOW, LOSSY)),
            ],
            bars: vec![BarSpec::new("utilization", AtLeast(0.7), utilization(1.0)), BarSpec::no_failures()],
        },
        Case {
            name: "dcqcn 2-4-2",
            text: "two flows; two more between 100 and 200 ms; DCQCN",
            is_quick: false,
            runs: vec![("dcqcn", sharing::two_four_two(PAPER))],
            bars: vec![
                BarSpec::new("ms to equal shares", AtMost(75.0), sharing::join_ms),
                BarSpec::new("ms to 90 % of the link", AtMost(20.0), sharing::leave_ms),
            ],
        },
        Case {
            name: "dcqcn CNP loss 10 %",
            text: "16 senders with DCQCN, one CNP in ten is lost",
            is_quick: false,
            runs: vec![("dcqcn", RunSpec { cnp_loss: 0.1, ..star(16, TEN_GBIT, PAPER, LOSSY) })],
            bars: vec![BarSpec::new("utilization", AtLeast(0.85), utilization(10.0)), BarSpec::no_failures()],
        },
        Case {
            name: "dcqcn pauses",
            text: "16 senders with DCQCN to one receiver, without losses",
            is_quick: false,
            runs: vec![("dcqcn", star(16, TEN_GBIT, PAPER, LOSSLESS)), ("off", star(16, TEN_GBIT, OFF, LOSSLESS))],
            bars: vec![
                BarSpec {
                    name: "pauses, to those of off",
                    goal: AtMost(0.02),
                    value: Box::new(|outcomes| {
                        outcomes[0].total.pauses as f64 / outcomes[1].total.pauses.max(1) as f64
                    }),
                },
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "dcqcn mlx",
            text: "16 senders with DCQCN, defaults of adapters",
            is_quick: false,
            runs: vec![("dcqcn", star(16, TEN_GBIT, MLX, LOSSY))],
            bars: vec![BarSpec::new("utilization", AtLeast(0.85), utilization(10.0)), BarSpec::no_failures()],
        },
        Case {
            name: "dcqcn and window",
            text: "two senders with DCQCN beside two with a window",
            is_quick: false,
            runs: vec![("both", {
                let mut spec = star(4, TEN_GBIT, WINDOW, LOSSY);
                spec.hosts[3..].fill(PAPER);
                spec
            })],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.95), utilization(10.0)),
                BarSpec::new("share of the window", AtLeast(0.25), |outcome| {
                    (outcome.flow_gbit_per_s(0) + outcome.flow_gbit_per_s(1)) / outcome.gbit_per_s()
                }),
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "READs of a peer that follows nothing",
            text: "one requester without congestion control reads from 16 responders with it",
            is_quick: true,
            runs: vec![("window", reads(WINDOW)), ("off", reads(OFF))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.7), utilization(10.0)),
                BarSpec::new("drops after 20 ms", AtMost(0.0), drops_after(20)),
                BarSpec {
                    name: "drops after 20 ms, off",
                    goal: AtLeast(10_000.0),
                    value: Box::new(|outcomes| outcomes[1].drops_after(Nanos::from_millis(20)) as f64),
                },
                BarSpec::no_failures(),
            ],
        },
    ]
}
