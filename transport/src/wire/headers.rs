//! Contents of a frame to be built, in front of its payload.

use super::{
    Aeth, AtomicAck, AtomicEth, Bth, Deth, Feth, Ieth, Imm, OpcodeInfo, Reth, imm::IMM_BYTES, opcode::Service,
};

/// The headers of a packet to be sent: BTH, and just those extension headers that its opcode has.
///
/// ```
/// # use roced_types::Qpn;
/// # use roced_transport::{psn::Psn, wire::{Aeth, Bth, Headers, Syndrome, opcode}};
/// let bth = Bth::new(opcode::RC_ACK, Qpn::from_wire(0x123), Psn::new(7));
/// let ack = Headers { aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 1 }), ..Headers::new(bth) };
/// # let _ = ack;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// First of all. Its `pad` is not looked at: it follows from the payload.
    pub bth: Bth,
    /// Of a datagram.
    pub deth: Option<Deth>,
    /// Of a FLUSH.
    pub feth: Option<Feth>,
    /// Of a READ request, a FLUSH, an atomic WRITE, and of the first packet of a WRITE.
    pub reth: Option<Reth>,
    /// Of an atomic request.
    pub atomic: Option<AtomicEth>,
    /// Of an ACK, of an atomic ACK, and of READ responses but the middle ones.
    pub aeth: Option<Aeth>,
    /// Of an atomic ACK.
    pub atomic_ack: Option<AtomicAck>,
    /// Of the last packet of a message that hands over 32 bits.
    pub imm: Option<Imm>,
    /// Of the last packet of a SEND that takes back a key.
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// A BTH and nothing more.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Entry of the table for the opcode.
    ///
    /// # Panics
    /// With an undefined opcode: the transport sends only opcodes of the table.
    #[inline]
    pub fn info(&self) -> &'static OpcodeInfo {
        self.bth.opcode.info().expect("the transport sends only opcodes of the table")
    }

    /// Writes the headers of a packet with `pad` bytes of padding and gives their length.
    ///
    /// # Panics
    /// When the extension headers are not those of the opcode, or `into` has less than
    /// `HEADER_BYTES_MAX`.
    #[inline]
    pub(super) fn write(&self, into: &mut [u8], pad: usize) -> usize {
        let info = self.info();
        assert!(self.fits(info), "opcode {} has other extension headers", self.bth.opcode);
        let bth = Bth { pad: pad as u8, ..self.bth };
        let mut rest = into;
        put(&mut rest, bth.to_bytes());
        if let Some(deth) = self.deth {
            put(&mut rest, deth.to_bytes());
        }
        if let Some(feth) = self.feth {
            put(&mut rest, feth.to_bytes());
        }
        if let Some(reth) = self.reth {
            put(&mut rest, reth.to_bytes());
        }
        if let Some(atomic) = self.atomic {
            put(&mut rest, atomic.to_bytes());
        }
        if let Some(aeth) = self.aeth {
            put(&mut rest, aeth.to_bytes());
        }
        if let Some(atomic_ack) = self.atomic_ack {
            put(&mut rest, atomic_ack.to_bytes());
        }
        if let Some(imm) = self.imm {
            put::<IMM_BYTES>(&mut rest, imm);
        }
        if let Some(ieth) = self.ieth {
            put(&mut rest, ieth.to_bytes());
        }
        if info.service == Service::Cnp {
            put(&mut rest, [0; 16]);
        }
        info.header_bytes
    }

    fn fits(&self, info: &OpcodeInfo) -> bool {
        // Not built before something sends them: RDETH, XRCETH.
        !(info.has_rdeth || info.has_xrceth)
            && self.deth.is_some() == info.has_deth
            && self.feth.is_some() == info.has_feth
            && self.reth.is_some() == info.has_reth
            && self.atomic.is_some() == info.has_atomic
            && self.aeth.is_some() == info.has_aeth
            && self.atomic_ack.is_some() == info.has_atomic_ack
            && self.imm.is_some() == info.has_imm
            && self.ieth.is_some() == info.has_ieth
    }
}

/// Writes `bytes` to the front of `rest` and steps over them. There is room: the table's longest
/// headers fit.
fn put<const N: usize>(rest: &mut &mut [u8], bytes: [u8; N]) {
    let (now, later) = core::mem::take(rest).split_first_chunk_mut().expect("no opcode has more than HEADER_BYTES_MAX");
    *now = bytes;
    *rest = later;
}
