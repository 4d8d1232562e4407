//! Inbound security associations, each of one worker.

use roced_transport::wire::esp::{Encapsulation, EspFrame, EspRefusal, EspRefusals, Numbering, ReplayWindow, Spi};

use crate::{aes_gcm::AesGcm, key::KeyMaterial};

/// An inbound association but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundParameters {
    /// Our name for it.
    pub spi: Spi,
    /// GID of the sender.
    pub source: [u8; 16],
    /// Our GID.
    pub destination: [u8; 16],
    /// Headers in front of the ciphertext.
    pub encapsulation: Encapsulation,
    /// Its sequence numbers.
    pub numbering: Numbering,
}

/// An inbound association: key, replay window and counts. The worker that owns it opens all its
/// frames.
#[derive(Debug)]
pub struct InboundSa {
    parameters: InboundParameters,
    key: AesGcm,
    window: ReplayWindow,
    packets: u64,
    bytes: u64,
    refusals: EspRefusals,
}

impl InboundSa {
    /// An association that has received nothing.
    pub fn new(parameters: InboundParameters, key: &KeyMaterial) -> Self {
        let (key, window) = (AesGcm::new(key), ReplayWindow::new(parameters.numbering));
        Self { parameters, key, window, packets: 0, bytes: 0, refusals: EspRefusals::default() }
    }

    /// Its parameters.
    pub const fn parameters(&self) -> &InboundParameters {
        &self.parameters
    }

    /// Authentic packets, dummies among them.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Encrypted bytes of authentic packets.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The highest sequence number of an authentic packet; 0 before the first.
    pub const fn highest_sequence(&self) -> u64 {
        self.window.top()
    }

    /// Frames that were refused, by reason.
    pub const fn refusals(&self) -> &EspRefusals {
        &self.refusals
    }

    /// Opens a frame to `scratch`, which is as long as the frame at least, and returns the plain
    /// frame: UDP to port 4791 between the addresses of the association.
    ///
    /// # Errors
    /// [`EspRefusal`], which is counted.
    pub fn open<'s>(&mut self, frame: &EspFrame<'_>, scratch: &'s mut [u8]) -> Result<&'s [u8], EspRefusal> {
        let opened = self.try_open(frame, scratch);
        if let Err(refusal) = opened {
            self.refusals.count(refusal);
        }
        opened
    }

    fn try_open<'s>(&mut self, frame: &EspFrame<'_>, scratch: &'s mut [u8]) -> Result<&'s [u8], EspRefusal> {
        let InboundParameters { spi, source, destination, encapsulation, numbering } = self.parameters;
        // Transport mode has one IP header: these are the addresses of the packet inside as well.
        let is_ours = (frame.spi(), frame.encapsulation()) == (spi, encapsulation)
            && (frame.source(), frame.destination()) == (&source, &destination);
        if !is_ours {
            return Err(EspRefusal::OtherAssociation);
        }
        let sequence = self.window.check(frame.sequence_low())?;
        let opened = frame.open(sequence, numbering, &self.key, scratch)?;
        // Authentic: it was received, even if the packet inside is refused.
        self.window.mark(sequence)?;
        self.packets += 1;
        self.bytes += frame.ciphertext_bytes() as u64;
        opened.plain()
    }
}
