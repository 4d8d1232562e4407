//! Large blocks go back to the system. A process of its own: the allocator's options are for all.

use std::fs;

/// Memory of this process that no other shares, bytes.
fn private_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = lines.map(|line| line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB"));
    kib.sum::<u64>() << 10
}

/// As many blocks as the queues of some large queue pairs, with small ones in between that stay.
fn use_and_free() -> Vec<Box<[u8]>> {
    let mut stays = Vec::new();
    let large: Vec<Vec<u8>> = (0..32)
        .map(|_| {
            stays.push(vec![1; 100].into_boxed_slice());
            vec![1; 3 << 20]
        })
        .collect();
    assert!(private_bytes() > 96 << 20, "all of it is there");
    drop(large);
    stays
}

#[test]
fn freed_large_blocks_are_not_kept() {
    roced_memory::heap::return_large_blocks();
    // Without the options the first blocks that are freed have later ones come from the heap.
    let _first = use_and_free();
    let before = private_bytes();
    let _second = use_and_free();
    let after = private_bytes();
    assert!(after < before + (1 << 20), "{before} bytes before, {after} after");
    assert!(after < 32 << 20, "{after} bytes are kept");
}
