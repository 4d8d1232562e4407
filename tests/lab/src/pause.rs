//! Pauses of a host that no queue asks for: a storm.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::port::Port;

/// Between two frames: less than half of the longest pause on a link of 10 Gbit/s.
const INTERVAL: Duration = Duration::from_millis(1);

/// Bytes of the shortest frame, without FCS.
const FRAME_BYTES: usize = 60;

/// Pauses a priority of the host behind a port for that time, by frames of the longest pause (IEEE
/// 802.3 annex 31D), and ends the pause.
///
/// # Errors
/// The kernel's.
pub fn pause(port: &Port, priority: u8, time: Duration) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        port.send(&pfc_frame(priority, u16::MAX))?;
        thread::sleep(INTERVAL);
    }
    // A port without room for it has sent one that ends in 33 ms.
    port.send(&pfc_frame(priority, 0))?;
    Ok(())
}

/// A PFC frame with this time for a priority.
fn pfc_frame(priority: u8, quanta: u16) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..18].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0xff, 0x88, 0x08, 1, 1, 0, 1 << priority]);
    let at = 18 + 2 * usize::from(priority);
    frame[at..at + 2].copy_from_slice(&quanta.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pfc_frame_has_the_bytes_of_annex_31d() {
        let mut expected = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0xff, 0x88, 0x08, 1, 1, 0, 8];
        expected.extend([0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        expected.resize(60, 0);
        assert_eq!(pfc_frame(3, u16::MAX)[..], expected);
    }
}
