//! Any bytes: a message that was read is written with the same fields.

use proptest::prelude::*;
use roced_cm::wire::{Attribute, CmaHeader, MAD_BYTES, Mad};

proptest! {
    #[test]
    fn a_message_survives_being_written(
        mut bytes in proptest::collection::vec(any::<u8>(), MAD_BYTES),
        attribute in 0x10u8..=0x18,
    ) {
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        let mad = Mad::from_bytes(&bytes).expect("the header is right");
        prop_assert_eq!(Some(mad.message.attribute()), Attribute::from_number(attribute.into()));
        let written = mad.to_bytes();
        prop_assert_eq!(Mad::from_bytes(&written), Ok(mad));
        // Nothing but reserved bits is lost, and nothing is added.
        for (at, (before, after)) in bytes.iter().zip(&written).enumerate() {
            prop_assert_eq!(before & after, *after, "byte {} of {:?}", at, mad.message.attribute());
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_discarded(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::from_bytes(&bytes);
    }

    #[test]
    fn a_cma_header_survives_being_written(bytes in any::<[u8; CmaHeader::BYTES]>()) {
        if let Ok(header) = CmaHeader::from_bytes(&bytes) {
            prop_assert_eq!(CmaHeader::from_bytes(&header.to_bytes()), Ok(header));
        }
    }
}
