//! Cost of one queue pair of many in an endpoint, and of its counters:
//! `cargo bench -p roced-transport --bench queue_pairs`.
//!
//! Each figure is the median of its calls, in nanoseconds, and behind it the slowest of them: on a
//! busy machine that is an interruption. Every queue pair is in the list of senders when it is
//! removed. Bytes are the additional memory of the process with the queue pairs.

use std::{hint::black_box, time::Instant};

use roced_transport::{
    endpoint::{Endpoint, EndpointConfig},
    partition::Partitions,
    qp::{Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
};
use roced_types::{Cqn, EndpointId, Pdn, QpSizes, Qpn};

const COUNTS: [u32; 4] = [1_000, 10_000, 16_000, 64_000];

fn main() {
    // `cargo test` runs benches too, without this flag: then it only shows that it runs.
    let counts = if std::env::args().any(|argument| argument == "--bench") { &COUNTS[..] } else { &[100] };
    println!("{:>11} {:>20} {:>20} {:>20} {:>12}", "queue pairs", "insert_qp", "remove_qp", "counters", "bytes each");
    for count in counts {
        measure(*count);
    }
}

fn measure(count: u32) {
    let before = resident_bytes();
    let mut endpoint = endpoint(count);
    // Made first, so that the times are those of the endpoint alone; their memory counts.
    let qps: Vec<_> = (0..count).map(|at| Box::new(qp(number(at)))).collect();
    let inserted = times(qps.into_iter().map(|qp| {
        let start = Instant::now();
        endpoint.insert_qp(qp).map_err(|(_, reject)| reject).expect("a free number");
        start
    }));
    let bytes = resident_bytes().saturating_sub(before) / u64::from(count);
    let counted = times((0..1000).map(|_| {
        let start = Instant::now();
        black_box(endpoint.counters());
        start
    }));
    // Freed later: the control thread does that.
    let mut removed = Vec::with_capacity(count as usize);
    let order = (0..count).map(|at| number(at.wrapping_mul(7919) % count));
    let removals = times(order.filter_map(|qpn| {
        let start = Instant::now();
        removed.push(endpoint.remove_qp(qpn)?);
        Some(start)
    }));
    println!("{count:>11} {inserted:>20} {removals:>20} {counted:>20} {bytes:>12}");
}

/// Calls of which each gives when it began: median and slowest.
fn times(calls: impl Iterator<Item = Instant>) -> String {
    let mut times: Vec<_> = calls.map(|start| start.elapsed().as_nanos()).collect();
    times.sort_unstable();
    format!("{} ({})", times[times.len() / 2], times[times.len() - 1])
}

/// Numbers all over the index space, each once.
fn number(at: u32) -> Qpn {
    Qpn::new(EndpointId::new(1).expect("small"), at.wrapping_mul(0x9e37_79b1) % Qpn::INDEX_COUNT)
}

fn endpoint(qps: u32) -> Endpoint {
    Endpoint::new(EndpointConfig {
        id: EndpointId::new(1).expect("small"),
        max_mrs: 64,
        max_ahs: 0,
        max_srqs: 0,
        max_attachments: 1024,
        max_qps: qps.max(16_384),
        total_window_packets: 192,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    })
}

fn qp(qpn: Qpn) -> Qp {
    Qp::new(QpConfig {
        qpn,
        service: ServiceType::Rc,
        pd: Pdn(1),
        send_cq: Cqn(1),
        recv_cq: Cqn(1),
        sizes: QpSizes { send_wrs: 16, recv_wrs: 16, send_sges: 1, recv_sges: 1, inline_bytes: 0 },
        signal_all: true,
        credits: true,
        window_packets: 128,
    })
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}
