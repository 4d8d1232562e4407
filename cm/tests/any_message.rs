//! Any bytes: a message that was read is written with the same fields, each in its place.

use proptest::prelude::*;
use roced_cm::wire::{AdditionalInfo, Attribute, CmMessage, CmaHeader, MAD_BYTES, Mad, receiver_number};

/// Bits that IBTA reserves, by attribute, byte of the message and mask; all others are fields.
const RESERVED: [(u8, &[(usize, u8)]); 9] = [
    (
        0x10,
        &[
            (4, 0xff),
            (24, 0xff),
            (25, 0xff),
            (26, 0xff),
            (27, 0xff),
            (90, 0x0f),
            (91, 0xc0),
            (94, 0x07),
            (95, 0x07),
            (134, 0x0f),
            (135, 0xc0),
            (138, 0x07),
            (139, 0x07),
        ],
    ),
    (0x11, &[(8, 0x3f), (9, 0x07)]),
    (0x12, &[(8, 0x3f), (9, 0x01)]),
    (0x13, &[(27, 0x0f)]),
    (0x14, &[]),
    (0x15, &[(11, 0xff)]),
    (0x16, &[]),
    (0x17, &[(6, 0xff), (7, 0xff)]),
    (0x18, &[]),
];

const HEADER_BYTES: usize = 24;

fn message(attribute: u8, body: impl Fn(usize) -> u8) -> [u8; MAD_BYTES] {
    let mut bytes = std::array::from_fn(|at| at.checked_sub(HEADER_BYTES).map_or(0, &body));
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[17] = attribute;
    bytes
}

#[test]
fn all_but_reserved_bits_are_kept() {
    for (attribute, reserved) in RESERVED {
        let mask = |at| reserved.iter().find(|(byte, _)| *byte == at).map_or(0, |(_, mask)| *mask);
        let written = Mad::from_bytes(&message(attribute, |_| 0xff)).expect("a message").to_bytes();
        assert_eq!(written, message(attribute, |at| !mask(at)), "attribute {attribute:#x}");
    }
}

/// Fields that no recording has.
#[test]
fn fields_stand_at_the_offsets_of_ibta() {
    let byte = |at: usize| (at as u8).wrapping_mul(7).wrapping_add(3);
    let number = |at: usize, bytes: usize| (at..at + bytes).fold(0, |value, at| value << 8 | u64::from(byte(at)));
    let read = |attribute| Mad::from_bytes(&message(attribute, byte)).expect("a message").message;
    let CmMessage::Req(req) = read(0x10) else { panic!("a REQ") };
    assert_eq!((u64::from(req.ece_vendor), u64::from(req.qkey)), (number(5, 3), number(28, 4)));
    assert_eq!((u64::from(req.local_eecn), u64::from(req.remote_eecn)), (number(36, 3), number(40, 3)));
    assert_eq!(
        (u64::from(req.alternate.local_lid), u64::from(req.alternate.remote_lid)),
        (number(96, 2), number(98, 2))
    );
    assert_eq!((req.alternate.local_gid[0], req.alternate.remote_gid[0]), (byte(100), byte(116)));
    assert_eq!(u64::from(req.alternate.flow_label), number(132, 4) >> 12);
    assert_eq!((req.alternate.rate, req.alternate.traffic_class), (byte(135) & 0x3f, byte(136)));
    assert_eq!((req.alternate.hop_limit, req.alternate.service_level), (byte(137), byte(138) >> 4));
    assert_eq!(req.alternate.ack_timeout, byte(139) >> 3);
    let CmMessage::Mra(mra) = read(0x11) else { panic!("an MRA") };
    assert_eq!((mra.service_timeout, mra.private_data[0]), (byte(9) >> 3, byte(10)));
    let CmMessage::Rej(rej) = read(0x12) else { panic!("a REJ") };
    assert_eq!((u64::from(rej.reason), rej.private_data[0]), (number(10, 2), byte(84)));
    assert_eq!(rej.info.as_bytes().len(), usize::from(byte(9) >> 1));
    assert_eq!(rej.info.as_bytes()[0], byte(12));
    let CmMessage::Rep(rep) = read(0x13) else { panic!("a REP") };
    assert_eq!((u64::from(rep.qkey), u64::from(rep.eecn)), (number(8, 4), number(16, 3)));
    assert_eq!(rep.ece_vendor.to_be_bytes(), [0, byte(15), byte(19), byte(23)]);
    assert_eq!((rep.failover_accepted, rep.flow_control), (byte(26) >> 1 & 3, byte(26) & 1 != 0));
    let CmMessage::SidrRep(sidr) = read(0x18) else { panic!("a SIDR_REP") };
    assert_eq!(sidr.ece_vendor.to_be_bytes(), [0, byte(6), byte(7), byte(11)]);
    assert_eq!((sidr.info.as_bytes()[0], sidr.private_data[0]), (byte(24), byte(96)));
}

#[test]
fn a_length_beyond_the_additional_information_is_none() {
    for (attribute, length) in [(0x12, 0xfe), (0x18, 0xff)] {
        let at = if attribute == 0x12 { 9 } else { 5 };
        let read = Mad::from_bytes(&message(attribute, |byte| if byte == at { length } else { 7 }));
        let info = match read.expect("a message").message {
            CmMessage::Rej(rej) => rej.info,
            CmMessage::SidrRep(sidr) => sidr.info,
            other => panic!("{other:?}"),
        };
        assert_eq!(info.as_bytes(), [7; AdditionalInfo::BYTES_MAX]);
    }
}

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
        // Nothing is added.
        for (at, (before, after)) in bytes.iter().zip(&written).enumerate() {
            prop_assert_eq!(before & after, *after, "byte {} of {:?}", at, mad.message.attribute());
        }
    }

    /// The look at a datagram before it is read agrees with the message.
    #[test]
    fn an_answer_tells_the_number_of_its_receiver(body in any::<[u8; 32]>(), attribute in 0x10u8..=0x1a) {
        let bytes = message(attribute, |at| body.get(at).copied().unwrap_or(0));
        let number = match Mad::from_bytes(&bytes).map(|mad| mad.message) {
            Ok(CmMessage::Mra(mra)) => Some(mra.remote),
            Ok(CmMessage::Rej(rej)) => Some(rej.remote),
            Ok(CmMessage::Rep(rep)) => Some(rep.remote),
            Ok(CmMessage::Rtu(rtu)) => Some(rtu.remote),
            Ok(CmMessage::Dreq(dreq)) => Some(dreq.remote),
            Ok(CmMessage::Drep(drep)) => Some(drep.remote),
            Ok(CmMessage::SidrRep(rep)) => Some(rep.request),
            Ok(CmMessage::Req(_) | CmMessage::SidrReq(_)) | Err(_) => None,
        };
        prop_assert_eq!(receiver_number(&bytes), number);
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
