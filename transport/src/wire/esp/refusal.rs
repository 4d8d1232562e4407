//! Refusals of frames by ESP, each with a count.

use thiserror::Error;

use super::BadIcv;
use crate::reject::DropReason;

/// Why a frame was not sealed, or not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum EspRefusal {
    /// Neither IP with ESP nor ESP in UDP to port 4500; a fragment; or behind that port IKE or a
    /// keepalive.
    #[error("it is not ESP")]
    NotEsp,
    /// Shorter than its headers, not aligned, or its lengths do not agree with one another.
    #[error("its lengths do not agree")]
    BadLength,
    /// Wrong IPv4 header checksum.
    #[error("the IPv4 header checksum is wrong")]
    BadIpChecksum,
    /// The SPI is reserved.
    #[error("the SPI is reserved")]
    ReservedSpi,
    /// The security association is between other addresses, or encapsulates in another way.
    #[error("the security association is another")]
    OtherAssociation,
    /// The number was received before.
    #[error("its number was received before")]
    Replayed,
    /// The number is behind the replay window.
    #[error("its number is behind the replay window")]
    BehindWindow,
    /// Changed, forged, or sealed with another key.
    #[error("the ICV does not hold")]
    BadIcv,
    /// Authentic, with a pad that is not 1, 2, 3 and so on, or that is longer than the packet.
    #[error("the pad is wrong")]
    BadPad,
    /// Authentic, to be dropped: a sender hides by them when it has nothing to send.
    #[error("it is a dummy packet")]
    Dummy,
    /// Authentic, and not UDP inside.
    #[error("the next header is not UDP")]
    NotUdp,
    /// The plain packet is not RoCEv2: UDP to port 4791, of the length that IP has.
    #[error("the packet inside is not RoCEv2")]
    NotRoce,
}

impl EspRefusal {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::NotEsp,
        Self::BadLength,
        Self::BadIpChecksum,
        Self::ReservedSpi,
        Self::OtherAssociation,
        Self::Replayed,
        Self::BehindWindow,
        Self::BadIcv,
        Self::BadPad,
        Self::Dummy,
        Self::NotUdp,
        Self::NotRoce,
    ];

    /// The refusal of headers that claim to be those of ESP.
    pub(super) const fn of_headers(reason: DropReason) -> Self {
        match reason {
            DropReason::BadLength => Self::BadLength,
            DropReason::BadIpChecksum => Self::BadIpChecksum,
            _ => Self::NotEsp,
        }
    }
}

impl From<BadIcv> for EspRefusal {
    fn from(BadIcv: BadIcv) -> Self {
        Self::BadIcv
    }
}

/// How often each [`EspRefusal`] happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EspRefusals([u64; EspRefusal::ALL.len()]);

impl EspRefusals {
    /// Adds one.
    pub const fn count(&mut self, refusal: EspRefusal) {
        self.0[refusal as usize] += 1;
    }

    /// How many so far.
    pub const fn get(&self, refusal: EspRefusal) -> u64 {
        self.0[refusal as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_a_count_of_its_own() {
        let mut refusals = EspRefusals::default();
        for (place, refusal) in EspRefusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place);
            refusals.count(refusal);
        }
        assert_eq!(refusals.0, [1; EspRefusal::ALL.len()]);
        assert_eq!(refusals.get(EspRefusal::BadIcv), 1);
    }
}
