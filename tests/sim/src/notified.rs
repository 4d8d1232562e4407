//! Congestion notification packets (CNPs) and marks in frames, and those that a queue pair was given.

use std::collections::BTreeMap;

use crate::{
    frame,
    reference::icrc,
    violation::{Violation, demand},
};

/// Traffic class: DSCP 48, not to be marked.
const CLASS: u8 = 48 << 2;

/// Opcode, flags, partition, BECN.
const FRONT: [u8; 5] = [0x81, 0, 0xff, 0xff, 0x40];

/// Marks and notifications of a host's queue pairs.
#[derive(Debug, Default)]
pub(crate) struct NotifiedPeers {
    pub(crate) qps: [BTreeMap<u32, Notified>; 2],
}

/// Of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notified {
    /// Life of its connection.
    pub(crate) life: u32,
    /// Marked data that it was given since it sent the last one.
    pub(crate) marks: u64,
    /// When it sent that.
    pub(crate) last: Option<u64>,
    /// It has to send one, unless it ends.
    pub(crate) is_due: bool,
}

/// The frame is a notification.
pub(crate) fn is_notification(bytes: &[u8]) -> bool {
    bytes.get(frame::bth_at(bytes)) == Some(&FRONT[0])
}

/// Traffic class of a frame.
fn class(bytes: &[u8]) -> u8 {
    if frame::is_ipv4(bytes) { bytes[15] } else { bytes[14] << 4 | bytes[15] >> 4 }
}

/// A frame has the mark of a congested switch.
pub(crate) fn is_marked(bytes: &[u8]) -> bool {
    class(bytes) & 3 == 3
}

/// Queue pair that a frame is for.
pub(crate) fn dest_qpn(bytes: &[u8]) -> u32 {
    bytes[frame::bth_at(bytes) + 5..][..3].iter().fold(0, |qpn, byte| qpn << 8 | u32::from(*byte))
}

/// A notification has these bytes and no others. Returns the queue pair that it is for.
pub(crate) fn check_bytes(bytes: &[u8]) -> Result<u32, Violation> {
    let bth = frame::bth_at(bytes);
    let is_right = bytes.len() == bth + 12 + 16 + 4
        && bytes[bth..][..5] == FRONT
        && bytes[bth + 8..bth + 28].iter().all(|byte| *byte == 0)
        && class(bytes) == CLASS
        && icrc(&bytes[..bth + 28], bth) == bytes[bth + 28..];
    demand!(is_right, "notification", "a notification of other bytes: {bytes:02x?}");
    Ok(dest_qpn(bytes))
}
