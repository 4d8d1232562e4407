//! IVs of outbound security associations: none twice with a key.

use roced_transport::wire::esp::IV_BYTES;

/// Bits of a sender's counter; those above it are the sender's number.
const COUNTER_BITS: u32 = 56;

/// The IVs of one sender: its number and a counter, XOR eight random bytes of the security
/// association.
///
/// Senders of one association differ in the number, packets of one sender in the counter. The
/// random bytes are no secret, as the first IV shows them. They are for keys that a static
/// configuration uses once more after a restart: without them its IVs would begin again.
#[derive(Debug)]
pub(crate) struct IvSource {
    mask: u64,
    sender: u8,
    counter: u64,
}

impl IvSource {
    /// IVs of the sender `sender` of an association with these random bytes.
    pub(crate) const fn new(mask: u64, sender: u8) -> Self {
        Self { mask, sender, counter: 0 }
    }
}

impl Iterator for IvSource {
    type Item = [u8; IV_BYTES];

    fn next(&mut self) -> Option<[u8; IV_BYTES]> {
        let counter = self.counter;
        (counter >> COUNTER_BITS == 0).then(|| {
            self.counter += 1;
            (self.mask ^ (u64::from(self.sender) << COUNTER_BITS | counter)).to_be_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iv_is_sender_and_counter_under_a_mask() {
        let ivs: Vec<_> = IvSource::new(0x0f00_0000_0000_00f0, 3).take(2).collect();
        assert_eq!(ivs, [[0x0c, 0, 0, 0, 0, 0, 0, 0xf0], [0x0c, 0, 0, 0, 0, 0, 0, 0xf1]]);
    }

    #[test]
    fn the_counter_never_reaches_the_next_sender() {
        let mut ivs = IvSource { counter: (1 << COUNTER_BITS) - 1, ..IvSource::new(0, 1) };
        assert_eq!(ivs.next(), Some([1, 255, 255, 255, 255, 255, 255, 255]));
        assert_eq!([ivs.next(), ivs.next()], [None; 2]);
    }
}
