//! Many senders, one receiver.

use roced_transport::clock::Nanos;
use roced_types::SendOp;

use super::{Case, LOSSY, MARKING, OFF, PAYLOAD_SHARE, TEN_GBIT, WINDOW, star};
use crate::{
    bar::{
        BarSpec,
        Goal::{AtLeast, AtMost},
    },
    flow::FlowSpec,
    host::HostOptions,
    outcome::RunOutcome,
    run::RunSpec,
    switch::{MarkingCurve, SwitchConfig},
    topology::LinkSpec,
};

/// Longest queue that is exceeded in one percent of the time: one and a half of the length from
/// which on all frames are marked.
const QUEUE_BYTES: f64 = 1.5 * MARKING.max_bytes as f64;

pub(super) fn utilization(gbit_per_s: f64) -> impl Fn(&RunOutcome) -> f64 + Sync {
    move |outcome| outcome.gbit_per_s() / (gbit_per_s * PAYLOAD_SHARE)
}

pub(super) fn drops_after(millis: u64) -> impl Fn(&RunOutcome) -> f64 + Sync {
    move |outcome| outcome.drops_after(Nanos::from_millis(millis)) as f64
}

pub(super) fn queue(outcome: &RunOutcome) -> f64 {
    outcome.queue_p99() as f64
}

/// Bars of a case in which nothing may be lost.
fn bars(gbit_per_s: f64, used: f64, jain: f64) -> Vec<BarSpec> {
    vec![
        BarSpec::new("utilization", AtLeast(used), utilization(gbit_per_s)),
        BarSpec::new("Jain", AtLeast(jain), RunOutcome::jain),
        BarSpec::new("queue p99, bytes", AtMost(QUEUE_BYTES), queue),
        BarSpec::no_failures(),
    ]
}

fn reads(requester: HostOptions, responders: HostOptions) -> RunSpec {
    let mut spec = star(16, TEN_GBIT, responders, LOSSY);
    spec.hosts[0] = requester;
    spec.flows = (1..=16).map(|to| FlowSpec { op: SendOp::Read, depth: 4, ..FlowSpec::writes(0, to) }).collect();
    spec
}

fn lost_notifications(share: f64) -> RunSpec {
    RunSpec { cnp_loss: share, ..star(16, TEN_GBIT, WINDOW, LOSSY) }
}

fn at_rate(mbit_per_s: u64) -> RunSpec {
    star(16, LinkSpec { mbit_per_s, ..TEN_GBIT }, WINDOW, LOSSY)
}

/// Workers wake up late.
fn with_jitter(senders: usize) -> RunSpec {
    star(senders, TEN_GBIT, HostOptions { jitter: Nanos::from_micros(200), ..WINDOW }, LOSSY)
}

pub(super) fn cases() -> Vec<Case> {
    [numbers_of_senders(), reads_of_one(), without_notifications(), guarded(), rates(), late_workers()]
        .into_iter()
        .flatten()
        .collect()
}

/// From 16 to 256 senders, with and without congestion control.
fn numbers_of_senders() -> Vec<Case> {
    let mut sixteen = bars(10.0, 0.97, 0.98);
    // A sender may have the smallest window for some of the 150 ms.
    sixteen.push(BarSpec::new("smallest to largest share", AtLeast(0.6), RunOutcome::min_to_max));
    sixteen.push(BarSpec::new("drops after 1 ms", AtMost(0.0), drops_after(1)));
    let second = RunSpec { end: Nanos::from_millis(1050), ..star(64, TEN_GBIT, WINDOW, LOSSY) };
    vec![
        Case {
            name: "incast 16",
            text: "16 senders to one receiver, 10 Gbit/s",
            is_quick: true,
            runs: vec![("window", star(16, TEN_GBIT, WINDOW, LOSSY))],
            bars: sixteen,
        },
        Case {
            name: "incast 16 off",
            text: "the same without congestion control, for comparison: it must be bad",
            is_quick: true,
            runs: vec![("off", star(16, TEN_GBIT, OFF, LOSSY))],
            bars: vec![
                BarSpec::new("Jain", AtMost(0.8), RunOutcome::jain),
                BarSpec::new("drops after 1 ms", AtLeast(10_000.0), drops_after(1)),
                BarSpec::new("queue p99, bytes", AtLeast(900_000.0), queue),
            ],
        },
        Case {
            name: "incast 64",
            text: "64 senders to one receiver, 10 Gbit/s",
            is_quick: true,
            runs: vec![("window", star(64, TEN_GBIT, WINDOW, LOSSY))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.95), utilization(10.0)),
                BarSpec::new("Jain in 150 ms", AtLeast(0.75), RunOutcome::jain),
                BarSpec::new("queue p99, bytes", AtMost(300_000.0), queue),
                BarSpec::new("drops after 20 ms", AtMost(0.0), drops_after(20)),
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "incast 64 1 s",
            text: "the same for a second",
            is_quick: false,
            runs: vec![("window", second)],
            bars: vec![BarSpec::new("Jain in 1 s", AtLeast(0.92), RunOutcome::jain)],
        },
        Case {
            name: "incast 64 off",
            text: "64 senders without congestion control, for comparison: it must be bad",
            is_quick: false,
            runs: vec![("off", star(64, TEN_GBIT, OFF, LOSSY))],
            bars: vec![BarSpec::new("drops after 1 ms", AtLeast(50_000.0), drops_after(1))],
        },
        Case {
            name: "incast 256",
            text: "256 senders to one receiver: a packet each is as much as the buffer holds",
            is_quick: false,
            runs: vec![("window", star(256, TEN_GBIT, WINDOW, LOSSY))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.9), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.5), RunOutcome::jain),
                BarSpec::no_failures(),
            ],
        },
    ]
}

/// Responses of READs arrive at their only requester.
fn reads_of_one() -> Vec<Case> {
    vec![Case {
        name: "READ incast",
        text: "one requester reads from 16 responders that react to nothing",
        is_quick: true,
        runs: vec![("window", reads(WINDOW, OFF))],
        // A READ request asks for a chunk of eight packets at least, so that 16 of them are
        // 537 KB: the queue cannot be as short as that of WRITEs, and gaps cost throughput.
        bars: vec![
            BarSpec::new("utilization", AtLeast(0.65), utilization(10.0)),
            BarSpec::new("Jain", AtLeast(0.9), RunOutcome::jain),
            BarSpec::new("queue p99, bytes", AtMost(850_000.0), queue),
            BarSpec::new("drops after 20 ms", AtMost(0.0), drops_after(20)),
            BarSpec::no_failures(),
        ],
    }]
}

/// Notifications are lost, or the switch marks nothing.
fn without_notifications() -> Vec<Case> {
    let unmarked = SwitchConfig { marking: None, ..LOSSY };
    vec![
        Case {
            name: "CNP loss 10 %",
            text: "16 senders, one CNP in ten is lost",
            is_quick: false,
            runs: vec![("window", lost_notifications(0.1))],
            bars: bars(10.0, 0.97, 0.98),
        },
        Case {
            name: "CNP loss 100 %",
            text: "16 senders, no CNP arrives: losses alone make windows smaller",
            is_quick: false,
            runs: vec![("window", lost_notifications(1.0))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.9), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.5), RunOutcome::jain),
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "no marks",
            text: "16 senders behind a switch that only drops",
            is_quick: false,
            runs: vec![("window", star(16, TEN_GBIT, WINDOW, unmarked))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.9), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.5), RunOutcome::jain),
                BarSpec::no_failures(),
            ],
        },
        Case {
            name: "not ECT",
            text: "16 senders whose packets may not be marked: the switch drops some in place of marks",
            is_quick: false,
            runs: vec![
                ("window", star(16, TEN_GBIT, HostOptions { is_capable: false, ..WINDOW }, LOSSY)),
                ("off, the default", star(16, TEN_GBIT, HostOptions { is_capable: false, ..OFF }, LOSSY)),
            ],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.9), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.9), RunOutcome::jain),
                BarSpec {
                    name: "utilization, to that of off",
                    goal: AtLeast(1.2),
                    value: Box::new(|outcomes| outcomes[0].gbit_per_s() / outcomes[1].gbit_per_s()),
                },
                BarSpec::no_failures(),
            ],
        },
    ]
}

/// Nothing is marked, and round trips are guarded.
fn guarded() -> Vec<Case> {
    let hosts = HostOptions { delay_guard: Nanos::from_micros(250), is_capable: false, ..WINDOW };
    let late = HostOptions { jitter: Nanos::from_micros(100), ..hosts };
    let unmarked = SwitchConfig { marking: None, ..LOSSY };
    let runs = |senders| {
        let run = |hosts| star(senders, TEN_GBIT, hosts, unmarked);
        vec![("window, guard", run(hosts)), ("late workers", run(late))]
    };
    let of_late = |name, goal, value: fn(&RunOutcome) -> f64| BarSpec {
        name,
        goal,
        value: Box::new(move |outcomes| value(&outcomes[1])),
    };
    let bars = |queue_bytes, drops| {
        vec![
            BarSpec::new("utilization", AtLeast(0.97), utilization(10.0)),
            BarSpec::new("Jain", AtLeast(0.97), RunOutcome::jain),
            BarSpec::new("queue p99, bytes", AtMost(queue_bytes), queue),
            BarSpec::new("drops after 50 ms", AtMost(drops), drops_after(50)),
            of_late("utilization, late workers", AtLeast(0.97), |outcome| utilization(10.0)(outcome)),
            of_late("Jain, late workers", AtLeast(0.95), RunOutcome::jain),
            of_late("drops after 50 ms, late workers", AtMost(drops), |outcome| drops_after(50)(outcome)),
            BarSpec::no_failures(),
        ]
    };
    let reads = RunSpec { switch: unmarked, ..reads(hosts, OFF) };
    vec![
        Case {
            name: "delay guard 2",
            text: "2 senders, no marks, a delay guard of 250 us",
            is_quick: false,
            runs: runs(2),
            bars: bars(400_000.0, 0.0),
        },
        Case {
            name: "delay guard 16",
            text: "16 senders, no marks, a delay guard of 250 us",
            is_quick: true,
            runs: runs(16),
            bars: bars(600_000.0, 0.0),
        },
        // A run of four round trips is long where each is 700 us: the buffer is full now and then.
        Case {
            name: "delay guard 64",
            text: "64 senders, no marks, a delay guard of 250 us",
            is_quick: false,
            runs: runs(64),
            bars: bars(1_000_000.0, 100.0),
        },
        Case {
            name: "delay guard READ",
            text: "one requester reads from 16 responders, no marks, a delay guard of 250 us",
            is_quick: false,
            runs: vec![("window, guard", reads)],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.65), utilization(10.0)),
                BarSpec::new("Jain", AtLeast(0.9), RunOutcome::jain),
                BarSpec::new("drops after 50 ms", AtMost(0.0), drops_after(50)),
                BarSpec::no_failures(),
            ],
        },
    ]
}

/// Links slower and faster than 10 Gbit/s.
fn rates() -> Vec<Case> {
    let at_25 =
        SwitchConfig { marking: Some(MarkingCurve { min_bytes: 100_000, max_bytes: 400_000, ..MARKING }), ..LOSSY };
    vec![
        Case {
            name: "incast 16 1 Gbit/s",
            text: "16 senders to one receiver, 1 Gbit/s",
            is_quick: false,
            runs: vec![("window", at_rate(1000))],
            bars: bars(1.0, 0.97, 0.95),
        },
        Case {
            name: "incast 16 25 Gbit/s",
            text: "16 senders to one receiver, 25 Gbit/s, marks from 100 to 400 KB",
            is_quick: false,
            runs: vec![("window", star(16, LinkSpec { mbit_per_s: 25_000, ..TEN_GBIT }, WINDOW, at_25))],
            bars: vec![
                BarSpec::new("utilization", AtLeast(0.97), utilization(25.0)),
                BarSpec::new("Jain", AtLeast(0.97), RunOutcome::jain),
                BarSpec::new("queue p99, bytes", AtMost(600_000.0), queue),
            ],
        },
    ]
}

/// Workers wake up late.
fn late_workers() -> Vec<Case> {
    // A round trip is 300 us on average, 375 KB. DCTCP needs marks to begin at a seventh of it or
    // more: with marks from 40 KB two senders leave some of the link.
    let late = RunSpec {
        switch: SwitchConfig {
            marking: Some(MarkingCurve { min_bytes: 80_000, max_bytes: 320_000, ..MARKING }),
            ..LOSSY
        },
        ..with_jitter(2)
    };
    let mut two_late = bars(10.0, 0.8, 0.98);
    two_late.push(BarSpec {
        name: "utilization, marks from 80 KB",
        goal: AtLeast(0.85),
        value: Box::new(|outcomes| utilization(10.0)(&outcomes[1])),
    });
    vec![
        Case {
            name: "jitter 2 senders",
            text: "workers wake up as much as 200 us late",
            is_quick: false,
            runs: vec![("window", with_jitter(2)), ("window, marks from 80 KB", late)],
            bars: two_late,
        },
        Case {
            name: "jitter 16 senders",
            text: "workers wake up as much as 200 us late",
            is_quick: false,
            runs: vec![("window", with_jitter(16))],
            bars: bars(10.0, 0.85, 0.98),
        },
    ]
}
