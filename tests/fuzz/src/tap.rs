//! A wire that is often full, checks each frame that it is given, and keeps it until the target
//! looks.

use roced_transport::{
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    wire::{Operation, Packet, parse},
};

/// Ethernet, IPv4, UDP, BTH, AtomicETH, immediate, ICRC: more than the longest headers that we
/// send.
const OVERHEAD_MAX: usize = 14 + 20 + 8 + 12 + 28 + 4 + 4;

/// A wire.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    pub(crate) room: usize,
    pub(crate) mtu: usize,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Notifications of congestion, which the targets do not see.
    pub(crate) notifications: u64,
}

impl Tap {
    pub(crate) fn new(mtu: usize) -> Self {
        Self { mtu, ..Self::default() }
    }

    /// Looks at each frame that was sent since the last time.
    pub(crate) fn drain(&mut self, mut look: impl FnMut(&Packet<'_>)) {
        let mut begin = 0;
        for end in self.ends.drain(..) {
            let pieces = [&self.bytes[begin..end]];
            look(&parse(&pieces).expect("it parsed when it was sent"));
            begin = end;
        }
        self.bytes.clear();
    }
}

impl Wire for Tap {
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        self.room = self.room.checked_sub(1).ok_or(EmitError::Full)?;
        let begin = self.bytes.len();
        self.bytes.resize(begin + frame_bytes, 0xee);
        let mut frame = FrameMut::single(&mut self.bytes[begin..]);
        if fill(&mut frame).is_err() {
            self.bytes.truncate(begin);
            return Err(EmitError::Aborted);
        }
        assert_eq!(frame.remaining(), 0, "a frame is as long as was said");
        let pieces = [&self.bytes[begin..]];
        let packet = parse(&pieces).expect("a built frame parses");
        packet.check_integrity().expect("a built frame is whole");
        assert!(packet.payload_len() <= self.mtu && frame_bytes <= self.mtu + OVERHEAD_MAX, "no longer than the MTU");
        if packet.info.operation == Operation::Cnp {
            let is_right = packet.bth.becn && packet.bth.psn.get() == 0 && packet.traffic_class == 48 << 2;
            assert!(is_right, "the notification of the annex: {packet:?}");
            self.notifications += 1;
            self.bytes.truncate(begin);
            return Ok(());
        }
        self.ends.push(self.bytes.len());
        Ok(())
    }
}
