//! Cases: networks and flows, with the bars that their results must reach.

mod classes;
mod dcqcn;
mod incast;
mod pauses;
mod scale;
mod sharing;

use roced_transport::{
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters},
};

use crate::{
    bar::BarSpec,
    flow::FlowSpec,
    host::{Honoring, HostOptions},
    queues::ClassOrder,
    run::RunSpec,
    switch::{MarkingCurve, SwitchConfig},
    topology::{LinkSpec, Topology},
};

/// A case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The network and its flows, in a sentence.
    pub(crate) text: &'static str,
    /// It belongs to the short form as well.
    pub(crate) is_quick: bool,
    /// Runs with their names; pictures are drawn of the first.
    pub(crate) runs: Vec<(&'static str, RunSpec)>,
    pub(crate) bars: Vec<BarSpec>,
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    [incast::cases(), dcqcn::cases(), sharing::cases(), pauses::cases(), classes::cases(), scale::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// Payload of a link with full frames of path MTU 4096, as a share of its rate: 102 bytes of each
/// are headers, checksums and the gap.
const PAYLOAD_SHARE: f64 = 4096.0 / 4198.0;

/// A link of a rack.
const TEN_GBIT: LinkSpec = LinkSpec { mbit_per_s: 10_000, one_way: Nanos(1000) };

/// The marks of most cases: those of HPCC's simulations (100 to 400 KB at 25 Gbit/s) for 10 Gbit/s.
const MARKING: MarkingCurve = MarkingCurve { min_bytes: 40_000, max_bytes: 160_000, max_share: 0.2 };

/// A switch that marks and drops.
const LOSSY: SwitchConfig = SwitchConfig {
    buffer_bytes: 1_000_000,
    marking: Some(MARKING),
    pauses: None,
    order: ClassOrder { weights: [1, 1, 1, 1, 1, 1, 0, 0] },
};

const WINDOW: HostOptions = HostOptions {
    congestion: CongestionControl::Window,
    delay_guard: Nanos(0),
    dcqcn: DcqcnParameters::paper(1_250_000_000),
    is_capable: true,
    window_packets: 128,
    total_window_packets: 192,
    jitter: Nanos::from_micros(10),
    rx_ring: 256,
    tx_ring: 64,
    notification_interval: Nanos::from_micros(50),
    classes: None,
    pauses: Honoring::Mac,
};

/// Nothing reacts.
const OFF: HostOptions = HostOptions { congestion: CongestionControl::Off, ..WINDOW };

const MEASURED_FROM: Nanos = Nanos::from_millis(50);
const END: Nanos = Nanos::from_millis(200);

/// Hosts behind one switch, which send to host 0; measured after 50 ms.
fn star(senders: usize, link: LinkSpec, hosts: HostOptions, switch: SwitchConfig) -> RunSpec {
    let topology = Topology::star(senders + 1, link);
    RunSpec {
        watched: topology.port_to_host(0),
        topology,
        switch,
        hosts: vec![hosts; senders + 1],
        flows: (1..=senders).map(|from| FlowSpec::writes(from, 0)).collect(),
        measured_from: MEASURED_FROM,
        end: END,
        sample: Nanos::from_micros(10),
        cnp_loss: 0.0,
        storms: Vec::new(),
    }
}
