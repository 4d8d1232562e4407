//! A wire that is often full, and checks its frames.

use std::collections::BTreeMap;

use roced_transport::{
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    psn::Psn,
    wire::{Operation, Syndrome, parse},
};

use crate::OVERHEAD_MAX;

/// A wire that checks its frames, and remembers the PSNs.
#[derive(Default)]
pub(crate) struct Tap {
    pub(crate) room: usize,
    pub(crate) mtus: BTreeMap<u32, usize>,
    /// By peer's queue pair: the PSN behind the last request, the PSN behind the last answer.
    pub(crate) requested: BTreeMap<u32, Psn>,
    pub(crate) answered: BTreeMap<u32, Psn>,
}

impl Wire for Tap {
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        self.room = self.room.checked_sub(1).ok_or(EmitError::Full)?;
        let mut bytes = [0; 4096 + 2 * OVERHEAD_MAX];
        let mut frame = FrameMut::single(&mut bytes[..frame_bytes]);
        fill(&mut frame).map_err(|Abort| EmitError::Aborted)?;
        assert_eq!(frame.remaining(), 0);
        let pieces = [&bytes[..frame_bytes]];
        let packet = parse(&pieces).expect("our frame parses");
        packet.check_integrity().expect("our frame is whole");
        let peer = packet.bth.dest_qpn.get();
        assert!(packet.payload_len() <= self.mtus[&peer] && frame_bytes <= self.mtus[&peer] + OVERHEAD_MAX);
        let next = packet.bth.psn.plus(1);
        match packet.info.operation {
            Operation::Ack if !matches!(packet.aeth.expect("has one").syndrome, Syndrome::Ack { .. }) => {
                self.answered.insert(peer, packet.bth.psn);
            }
            Operation::Ack | Operation::ReadResponse | Operation::AtomicAck => _ = self.answered.insert(peer, next),
            Operation::ReadRequest => {
                let packets = packet.reth.expect("has one").length.div_ceil(self.mtus[&peer] as u32).max(1);
                self.requested.insert(peer, packet.bth.psn.plus(packets));
            }
            Operation::Cnp => {
                assert!(packet.bth.becn && packet.traffic_class == 48 << 2, "the notification of annex A17")
            }
            _ => _ = self.requested.insert(peer, next),
        }
        Ok(())
    }
}
