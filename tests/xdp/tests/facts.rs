//! The facts that the C and the Rust side both state are equal.

use std::{collections::HashMap, fs, path::Path};

use libbpf_rs::{MapCore as _, MapType};
use roced_steering::{self, AddressKey, Verdict};
use roced_xdp_tests::{Program, is_root};

/// Names of the verdicts in `steer.h`.
const VERDICTS: [(&str, Verdict); Verdict::ALL.len()] = [
    ("REDIRECTED", Verdict::Redirected),
    ("PASS_NO_SOCKET", Verdict::PassNoSocket),
    ("PASS_NOT_IP", Verdict::PassNotIp),
    ("PASS_NOT_ROCE", Verdict::PassNotRoce),
    ("PASS_NOT_OURS", Verdict::PassNotOurs),
    ("PASS_FRAGMENT", Verdict::PassFragment),
    ("PASS_MALFORMED", Verdict::PassMalformed),
    ("DROP_PAUSE", Verdict::DropPause),
];

/// Every `#define NAME number` and `NAME = number,` of `steer.h`.
fn header_facts() -> HashMap<String, u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ebpf/src/steer.h");
    let header = fs::read_to_string(path).expect("ebpf/src/steer.h");
    let fact = |line: &str| {
        let line = line.trim();
        let (name, number) = match line.strip_prefix("#define ") {
            Some(define) => define.split_once(' ')?,
            None => line.strip_suffix(',')?.split_once(" = ")?,
        };
        Some((name.to_owned(), number.parse().ok()?))
    };
    header.lines().filter_map(fact).collect()
}

#[test]
fn the_header_agrees_with_the_steering_crate() {
    let mut facts = header_facts();
    assert_eq!(facts.remove("ROCE_UDP_PORT"), Some(roced_types::ROCE_UDP_PORT.into()));
    assert_eq!(facts.remove("ADDRESSES_MAX"), Some(roced_steering::ADDRESSES_MAX));
    assert_eq!(facts.remove("QUEUES_MAX"), Some(roced_steering::QUEUES_MAX));
    assert_eq!(facts.remove("ROCE_V2"), Some(roced_steering::ROCE_V2.into()));
    assert_eq!(facts.remove("ROCE_V1"), Some(roced_steering::ROCE_V1.into()));
    assert_eq!(facts.remove("PRIORITIES"), Some(roced_steering::PRIORITIES as u32));
    assert_eq!(facts.remove("HONOR_GLOBAL_PAUSE"), Some(roced_steering::HONOR_GLOBAL_PAUSE as u32));
    assert_eq!(facts.remove("VERDICTS"), Some(Verdict::ALL.len() as u32));
    for (index, (name, verdict)) in VERDICTS.into_iter().enumerate() {
        assert_eq!(facts.remove(name), Some(verdict as u32), "{name}");
        assert_eq!(Verdict::ALL[index], verdict, "Verdict::ALL is in the order of the counters");
    }
    assert!(facts.is_empty(), "facts that only the header has: {facts:?}");
}

/// The verifier of Linux before 6.9 refuses, without CAP_PERFMON, a store of fewer than 8 bytes to a
/// stack slot that another store has filled; newer ones, such as that of this machine, take it.
#[test]
fn stores_to_the_stack_fill_whole_slots() {
    /// `BPF_STX | BPF_MEM` of 4, 2 and 1 bytes, and of 8.
    const SHORT: [u8; 3] = [0x63, 0x6b, 0x73];
    const FULL: u8 = 0x7b;
    /// `BPF_ST | BPF_MEM`, likewise.
    const SHORT_CONSTANT: [u8; 3] = [0x62, 0x6a, 0x72];
    const FULL_CONSTANT: u8 = 0x7a;
    /// The frame pointer.
    const FP: u8 = 10;
    let stores = roced_xdp_tests::instructions();
    let of_stack = stores.iter().filter(|instruction| instruction.dst_reg() == FP);
    let short: Vec<_> = of_stack
        .clone()
        .filter(|instruction| SHORT.contains(&instruction.code) || SHORT_CONSTANT.contains(&instruction.code))
        .map(|instruction| instruction.off)
        .collect();
    assert!(short.is_empty(), "short stores at {short:?}: kernel 6.1 refuses the program under the shipped unit");
    assert!(of_stack.into_iter().any(|instruction| [FULL, FULL_CONSTANT].contains(&instruction.code)));
}

#[test]
fn the_maps_have_the_shape_that_the_daemon_expects() {
    if !is_root("the_maps_have_the_shape_that_the_daemon_expects") {
        return;
    }
    let program = Program::load();
    let shape = |name| {
        let map = program.map(name);
        (map.map_type(), map.key_size(), map.value_size(), map.max_entries())
    };
    assert_eq!(shape(roced_steering::MAP_SOCKETS), (MapType::Xskmap, 4, 4, roced_steering::QUEUES_MAX));
    assert_eq!(
        shape(roced_steering::MAP_ADDRESSES),
        (MapType::Hash, size_of::<AddressKey>() as u32, 1, roced_steering::ADDRESSES_MAX)
    );
    assert_eq!(shape(roced_steering::MAP_VERDICTS), (MapType::PercpuArray, 4, 8, Verdict::ALL.len() as u32));
    assert_eq!(shape(roced_steering::MAP_PAUSES), (MapType::Array, 4, 8 * roced_steering::PAUSE_WORDS as u32, 1));
}
