//! A thousand hosts.

use roced_transport::clock::Nanos;

use super::{Case, LOSSY, TEN_GBIT, WINDOW, star};
use crate::{
    bar::{BarSpec, Goal::AtLeast},
    flow::FlowSpec,
    outcome::RunOutcome,
    run::RunSpec,
    topology::{LinkSpec, Topology},
};

const LEAVES: usize = 32;
const HOSTS_PER_LEAF: usize = 32;
const SPINES: usize = 8;

/// Leaves and spines; each host sends to one of another leaf. Links to spines carry as much as
/// those to hosts, and are chosen by a hash, so that some are crowded.
fn leaves_and_spines() -> RunSpec {
    let hosts = LEAVES * HOSTS_PER_LEAF;
    let mut topology = Topology::new(hosts, LEAVES + SPINES);
    (0..hosts).for_each(|host| topology.link_host(host, host / HOSTS_PER_LEAF, TEN_GBIT));
    for leaf in 0..LEAVES {
        for spine in 0..SPINES {
            topology.link_switches(leaf, LEAVES + spine, LinkSpec { mbit_per_s: 40_000, ..TEN_GBIT });
        }
    }
    let to = |from: usize| (from + 5 * HOSTS_PER_LEAF + 7) % hosts;
    let template = star(1, TEN_GBIT, WINDOW, LOSSY);
    RunSpec {
        watched: topology.port_to_host(0),
        topology,
        hosts: vec![WINDOW; hosts],
        flows: (0..hosts).map(|from| FlowSpec::writes(from, to(from))).collect(),
        measured_from: Nanos::from_millis(2),
        end: Nanos::from_millis(10),
        ..template
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![Case {
        name: "1024 hosts",
        text: "32 leaves, 8 spines, each host sends to another leaf",
        is_quick: false,
        runs: vec![("window", leaves_and_spines())],
        bars: vec![
            // Hashes crowd some links to spines: 32 flows of a leaf take eight links for four each.
            BarSpec::new("Gbit/s of all", AtLeast(6000.0), RunOutcome::gbit_per_s),
            BarSpec::new("Jain", AtLeast(0.85), RunOutcome::jain),
            BarSpec::no_failures(),
        ],
    }]
}
