//! Frames that the XDP program takes for RoCE, identified by their contents.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use roced_transport::io::{Egress, EmitError, Wire as _};
use roced_xdp::NicQueue;

/// Ethernet, IPv4 and UDP.
pub(crate) const HEADER_BYTES: usize = 42;

/// Longer than any test waits for a frame on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// A frame of `frame_bytes` to `destination` with bytes that depend on `seed`.
pub(crate) fn frame(destination: IpAddr, frame_bytes: usize, seed: u8) -> Vec<u8> {
    let IpAddr::V4(address) = destination else { panic!("these frames are IPv4") };
    let length = |bytes: usize| u16::try_from(bytes).expect("a frame of less than 64 KiB").to_be_bytes();
    let mut bytes = Vec::with_capacity(frame_bytes);
    bytes.extend([0x52; 12]);
    bytes.extend([0x08, 0x00, 0x45, 0]);
    bytes.extend(length(frame_bytes - 14));
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(address.octets());
    bytes.extend(address.octets());
    bytes.extend([0xc0, seed]);
    bytes.extend(4791u16.to_be_bytes());
    bytes.extend(length(frame_bytes - 34));
    bytes.extend([0, 0]);
    assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.extend((HEADER_BYTES..frame_bytes).map(|at| (at * 7 + (at >> 8) * 3 + usize::from(seed) * 29) as u8));
    bytes
}

/// Emits `bytes`. False when there is no room.
pub(crate) fn emit(queue: &mut NicQueue, bytes: &[u8]) -> bool {
    let emitted = queue.emit(Egress::Nic { flow: 0 }, bytes.len(), |frame| {
        frame.put(bytes);
        Ok(())
    });
    match emitted {
        Ok(()) => true,
        Err(EmitError::Full) => false,
        Err(EmitError::Aborted) => unreachable!("`put` does not give up"),
    }
}

/// Emits `bytes`, in as many turns as it takes.
pub(crate) fn send(queue: &mut NicQueue, bytes: &[u8]) {
    let begin = Instant::now();
    while !emit(queue, bytes) {
        queue.flush();
        assert!(begin.elapsed() < TIMEOUT, "chunks come back");
    }
    queue.flush();
}

/// Receives `count` frames, in as many turns as it takes.
pub(crate) fn receive(queue: &mut NicQueue, count: usize) -> Vec<Vec<u8>> {
    let begin = Instant::now();
    let mut frames = Vec::new();
    while frames.len() < count {
        queue.rx_burst(count - frames.len(), |segments| frames.push(segments.concat()));
        queue.flush();
        assert!(begin.elapsed() < TIMEOUT, "{} of {count} frames came, {:?}", frames.len(), counters(queue));
    }
    frames
}

/// Every counter of `queue`.
pub(crate) fn counters(queue: &NicQueue) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    queue.counters(&mut |name, value| assert!(all.insert(name, value).is_none(), "{name} is named once"));
    all
}
