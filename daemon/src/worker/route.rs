//! Steering of frames that a NIC queue received: to the endpoint of this worker, or to another
//! worker of the device.

use roced_transport::{io::Segments, wire::frame::dest_qpn};
use roced_types::{Qpn, WorkerId};

use super::endpoints::{EndpointLocation, Endpoints};

/// Destination of a received frame within the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRoute {
    /// The endpoint that received it. It also counts frames that have no owner.
    Local,
    /// The worker that owns the destination queue pair.
    Forward(WorkerId),
    /// The members of a multicast group, on any worker.
    Group,
}

/// Returns the route of a frame that a queue of the endpoint at `place` received. Only the
/// destination QPN counts: a queue pair of another device is not reachable by a frame.
pub(super) fn route(frame: &Segments<'_>, place: &EndpointLocation, endpoints: &Endpoints) -> FrameRoute {
    let Some(qpn) = dest_qpn(frame) else { return FrameRoute::Local };
    if qpn == Qpn::MULTICAST {
        return FrameRoute::Group;
    }
    match endpoints.of_qpn(qpn) {
        // Queue pair 1 is on every worker; its number stands for an endpoint as any other.
        Some(owner) if owner.device == place.device && owner.worker != place.worker && qpn != Qpn::GSI => {
            FrameRoute::Forward(owner.worker)
        }
        _ => FrameRoute::Local,
    }
}

#[cfg(test)]
mod tests {
    use roced_types::{DeviceId, EndpointId};

    use super::*;

    /// An Ethernet frame of RoCEv2 over IPv4 with nothing but the destination QPN filled in.
    fn frame_to(qpn: Qpn) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + 12 + 4];
        frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        (frame[14], frame[14 + 9]) = (0x45, 17);
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
        frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        frame[46..50].copy_from_slice(&qpn.get().to_be_bytes());
        frame
    }

    #[test]
    fn a_frame_goes_to_the_worker_that_owns_its_queue_pair() {
        let served = [(0, 0), (0, 1), (1, 1)].map(|(device, worker)| (DeviceId(device), WorkerId(worker)));
        let endpoints = Endpoints::new(served).expect("three endpoints");
        let qpn_of = |endpoint| Qpn::new(EndpointId::new(endpoint).expect("below 64"), 5);
        let place = endpoints.of_qpn(qpn_of(0)).expect("it exists");
        let route_of = |bytes: &[u8]| route(&[bytes], &place, &endpoints);
        let cases = [
            (qpn_of(0), FrameRoute::Local),
            (qpn_of(1), FrameRoute::Forward(WorkerId(1))),
            (qpn_of(2), FrameRoute::Local),
            (qpn_of(63), FrameRoute::Local),
            (Qpn::MULTICAST, FrameRoute::Group),
        ];
        for (qpn, expected) in cases {
            assert_eq!(route_of(&frame_to(qpn)), expected, "{qpn}");
        }
        assert_eq!(route_of(&[0; 14]), FrameRoute::Local, "a frame without a QPN");
        // Read as a place, the number is that of the first endpoint, which is another worker's.
        let second = endpoints.of_qpn(qpn_of(1)).expect("it exists");
        assert_eq!(route(&[&frame_to(Qpn::GSI)], &second, &endpoints), FrameRoute::Local);
        assert_eq!(route(&[&frame_to(Qpn::from_wire(2))], &second, &endpoints), FrameRoute::Forward(WorkerId(0)));
    }
}
