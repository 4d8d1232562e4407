//! Both sides of an association, and plain frames for it.

use std::sync::Arc;

use roced_esp::{InboundParameters, InboundSa, KeyMaterial, Lifetime, OutboundParameters, OutboundSa};
use roced_transport::{
    io::{Egress, FrameMut},
    psn::Psn,
    wire::{
        Bth, Headers, Path, PathSpec, Roce,
        esp::{Encapsulation, Numbering, Spi},
        opcode,
    },
};
use roced_types::{Qpn, gid_of};
use zeroize::Zeroizing;

/// Addresses of sender and receiver.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd00::1", "fd00::2"]];

/// An association, of which both sides can be made more than once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Association {
    pub(crate) key_bytes: usize,
    pub(crate) ipv4: bool,
    pub(crate) encapsulation: Encapsulation,
    pub(crate) numbering: Numbering,
    pub(crate) lifetime: Lifetime,
}

impl Association {
    /// The usual one, without limits.
    pub(crate) fn usual() -> Self {
        Self {
            key_bytes: 16,
            ipv4: true,
            encapsulation: Encapsulation::Esp,
            numbering: Numbering::Extended,
            lifetime: Lifetime::default(),
        }
    }

    fn key(&self) -> KeyMaterial {
        let bytes = (0..self.key_bytes + 4).map(|at| at as u8 ^ 0x5a).collect();
        KeyMaterial::new(Zeroizing::new(bytes)).expect("16 or 32 bytes and a salt")
    }

    fn gids(&self) -> [[u8; 16]; 2] {
        ADDRESSES[usize::from(!self.ipv4)].map(|address| gid_of(address.parse().expect("an address")))
    }

    pub(crate) fn outbound(&self) -> Arc<OutboundSa> {
        let Self { encapsulation, numbering, lifetime, .. } = *self;
        let spi = Spi::new(0x1001).expect("it is not reserved");
        let parameters = OutboundParameters { spi, encapsulation, numbering, lifetime };
        OutboundSa::new(parameters, &self.key()).expect("the kernel has random bytes")
    }

    pub(crate) fn inbound(&self) -> InboundSa {
        let Self { encapsulation, numbering, .. } = *self;
        let (spi, [source, destination]) = (Spi::new(0x1001).expect("it is not reserved"), self.gids());
        InboundSa::new(InboundParameters { spi, source, destination, encapsulation, numbering }, &self.key())
    }

    /// A SEND of `payload_bytes`, told apart by `psn`.
    pub(crate) fn plain(&self, payload_bytes: usize, psn: u32) -> Vec<u8> {
        let [source, destination] = self.gids();
        let path = Path::new(&PathSpec {
            via: Egress::Nic { flow: 0 },
            source_mac: [2, 0, 0, 0, 0, 1],
            dest_mac: [2, 0, 0, 0, 0, 2],
            vlan: None,
            source,
            destination,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 7,
            roce: Roce::V2 { udp_source_port: 0xc000 },
        });
        let path = path.expect("both GIDs are of one family");
        let headers = Headers::new(Bth::new(opcode::RC_SEND_ONLY, Qpn::from_wire(0x123), Psn::new(psn)));
        let mut frame = vec![0; path.frame_bytes(&headers, payload_bytes)];
        let filled = path.fill(&mut FrameMut::single(&mut frame), &headers, payload_bytes, |piece| {
            piece.fill(psn as u8);
            Ok(())
        });
        filled.expect("the payload is there");
        frame
    }
}
