//! The way out of an endpoint: its device's NIC queues, or hand-over to another endpoint of this
//! daemon.

use roced_transport::{
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    wire::frame::dest_qpn,
};
use roced_types::DeviceId;

use super::{endpoints::Endpoints, handoff::Handoff};

/// One endpoint's way out during a poll iteration.
#[derive(Debug)]
pub struct TxDispatch<'a, N> {
    /// The endpoint's device.
    pub device: DeviceId,
    /// This worker's queues of it that send.
    pub queues: &'a mut [N],
    /// To workers of this daemon, this one included.
    pub handoff: &'a mut Handoff,
    /// Locations of all endpoints.
    pub endpoints: &'a Endpoints,
}

impl<N: Wire> Wire for TxDispatch<'_, N> {
    fn limit_ahead(&mut self, bytes: usize) {
        self.queues.iter_mut().for_each(|queue| queue.limit_ahead(bytes));
    }

    #[inline]
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        match via {
            Egress::Nic { flow } => {
                // There is none while the device is not attached: frames wait, and their queue pairs
                // fail when it stays so.
                let count = self.queues.len().max(1);
                let queue = self.queues.get_mut(flow as usize % count).ok_or(EmitError::Full)?;
                queue.emit(via, frame_bytes, fill)
            }
            Egress::HandOver { .. } | Egress::SameDevice => {
                let device = if let Egress::HandOver { to } = via { to } else { self.device };
                self.handoff.hand_over(frame_bytes, fill, |frame| {
                    let place = self.endpoints.of_qpn(dest_qpn(frame)?)?;
                    (place.device == device).then_some(place.worker.0 as usize)
                })
            }
            Egress::Group { flow } => {
                let count = self.queues.len().max(1);
                let queue = self.queues.get_mut(flow as usize % count);
                self.handoff.loop_back(self.device, frame_bytes, |copy| match queue {
                    Some(queue) => queue.emit(via, frame_bytes, |frame| {
                        fill(frame)?;
                        let mut copy = FrameMut::single(copy);
                        frame.filled().for_each(|piece| copy.put(piece));
                        Ok(())
                    }),
                    // Without a NIC this host is all there is.
                    None => fill(&mut FrameMut::single(copy)).map_err(|Abort| EmitError::Aborted),
                })
            }
        }
    }
}
