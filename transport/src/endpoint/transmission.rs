//! Results of a call that sends, and their measurement at the wire.

use core::ops::AddAssign;

use crate::io::{Abort, Egress, EmitError, FrameMut, Wire};

/// Result of [`Endpoint::poll_transmit`](super::Endpoint::poll_transmit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Frames emitted, and other steps of queue pairs that had something to do.
    pub visits: usize,
    /// Number of these frames that were acknowledgments only; they may be delayed.
    pub acks: usize,
}

impl Transmitted {
    /// Returns true if at least one frame was emitted and all are acknowledgments.
    pub const fn is_only_acks(self) -> bool {
        self.acks > 0 && self.acks == self.visits
    }
}

impl AddAssign for Transmitted {
    fn add_assign(&mut self, more: Self) {
        self.visits += more.visits;
        self.acks += more.acks;
    }
}

/// Result of [`Endpoint::transmit_of`](super::Endpoint::transmit_of).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmittedOf {
    /// Frames emitted, and other steps of the queue pair.
    pub visits: usize,
    /// More may be sent: the budget was used up, or the wire has no room.
    pub is_left: bool,
}

/// The wire, with the bytes that left by it.
pub(super) struct Metered<'a, W> {
    pub(super) wire: &'a mut W,
    pub(super) bytes: usize,
    /// Those of them that left by a NIC, and their frames.
    pub(super) nic_bytes: usize,
    pub(super) nic_frames: usize,
}

impl<'a, W> Metered<'a, W> {
    pub(super) const fn new(wire: &'a mut W) -> Self {
        Self { wire, bytes: 0, nic_bytes: 0, nic_frames: 0 }
    }
}

impl<W: Wire> Wire for Metered<'_, W> {
    #[inline]
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let emitted = self.wire.emit(via, frame_bytes, fill);
        let sent = if emitted.is_ok() { frame_bytes } else { 0 };
        self.bytes += sent;
        if !via.is_local() {
            self.nic_bytes += sent;
            self.nic_frames += usize::from(sent > 0);
        }
        emitted
    }
}
