//! Two queue pairs on one roced: the same messages as a plain copy in memory, and as TCP over the
//! loopback.
//!
//! All three move 1 MiB at a time from one area of 256 MiB to another, place after place, so that
//! nothing stays in a cache.
#![expect(unsafe_code, reason = "copies between registered memory as the program that owns it")]

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{
    cpu,
    host::Host,
    network::{NetworkSide, Pair},
    rdma::{BenchWork, Drive, Ends, Pairs, drive},
    sample::Sample,
};

/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: usize = 1 << 20;

/// Messages that an area holds.
pub(crate) const PLACES: usize = 256;

/// Messages under way.
const DEPTH: u32 = 16;

/// Two areas of memory and a connection between them.
#[derive(Debug)]
pub(crate) struct SameHost([Pairs; 1]);

impl SameHost {
    /// On the daemon of host a.
    pub(crate) fn new(host: &Host) -> anyhow::Result<Self> {
        let (socket, address) = (host.socket(), IpAddr::V4(Pair::Roce.address(NetworkSide::A)));
        let ends = Ends { sockets: [&socket; 2], addresses: [address; 2] };
        let pairs = Pairs::new(ends, 1, DEPTH, MESSAGE_BYTES * PLACES)?;
        // Every page is there before anything is measured.
        pairs.local().fill(0, MESSAGE_BYTES * PLACES, 1);
        pairs.remote().fill(0, MESSAGE_BYTES * PLACES, 2);
        Ok(Self([pairs]))
    }

    /// By RDMA WRITE; with the daemon's processor time.
    pub(crate) fn write(&self, host: &Host, time: Duration) -> anyhow::Result<Sample> {
        let before = host.cpu();
        let what = Drive { work: BenchWork::Write, message_bytes: MESSAGE_BYTES, depth: DEPTH, time };
        let mut sample = drive(&self.0, what)?;
        let gigabytes = sample.gbit_per_s.unwrap_or_default() / 8.0 * time.as_secs_f64();
        sample.cpu_s_per_gb = sample.cpu_s_per_gb.map(|own| own + (host.cpu() - before).as_secs_f64() / gigabytes);
        Ok(sample)
    }

    /// By a copy from one area to the other: the same memory, mapped by the same program.
    pub(crate) fn copy(&self, time: Duration) -> Sample {
        let [pairs] = &self.0;
        let (from, into) = (pairs.local().as_ptr(), pairs.remote().as_ptr());
        let (cpu, begin, mut copies) = (cpu::of_this_thread(), Instant::now(), 0);
        while begin.elapsed() < time {
            let at = copies as usize % PLACES * MESSAGE_BYTES;
            // SAFETY: both areas have MESSAGE_BYTES * PLACES bytes (`new`), are two mappings of
            // different memory, and live as long as `pairs`. Nothing is under way on them, so
            // no other code touches them meanwhile.
            unsafe { into.add(at).copy_from_nonoverlapping(from.add(at), MESSAGE_BYTES) };
            copies += 1;
        }
        Sample::stream(copies, MESSAGE_BYTES as u64, begin.elapsed(), cpu::of_this_thread() - cpu)
    }
}
