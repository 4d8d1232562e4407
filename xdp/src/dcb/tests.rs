//! Bytes of requests and replies, both ways, and answers of the kernel.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable as _, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use nix::errno::Errno;
use proptest::prelude::{any, proptest};

use super::{
    message::{DcbDecodeError, DcbMessage},
    *,
};
use crate::{GlobalPause, netlink::messages};

/// A request as [`Requests`](crate::netlink::Requests) sends it.
fn sent(request: DcbMessage, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Bytes of hexadecimal digits; blanks and bars divide them.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The text of each request below is that of a little-endian host.
fn assert_sent(request: DcbMessage, text: &str) {
    if cfg!(target_endian = "little") {
        assert_eq!(sent(request, 1), hex(text));
    }
}

/// A reply with the attributes `attributes`.
fn reply(command: u8, attributes: &[u8]) -> DcbMessage {
    let payload = [&[0, command, 0, 0], attributes].concat();
    DcbMessage::deserialize(&NetlinkHeader::default(), &payload).expect("infallible")
}

/// An attribute with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A reply to a question for settings.
fn settings(ieee: &[u8], behind: &[u8]) -> Result<DcbSettings, DcbDecodeError> {
    let attributes = [attribute(1, b"eth0\0"), attribute(13 | 0x8000, ieee), behind.to_vec()].concat();
    reply(21, &attributes).settings()
}

#[test]
fn a_question_has_the_bytes_of_the_command_dcb() {
    // `dcb pfc show dev v0` of iproute2 6.1, but for its sequence number.
    assert_sent(DcbMessage::get("v0"), "1c000000 4e00 0500 01000000 00000000 | 00 15 0000 | 0700 0100 763000 00");
}

#[test]
fn priority_flow_control_is_set_by_176_bytes() {
    let pfc = PfcSettings { enabled: PrioritySet::from_bits(0x08), ..PfcSettings::default() };
    let begin = "b0000000 4f00 0500 01000000 00000000 | 00 14 0000 | 0900 0100 65746830 00 000000 | 9000 0d80 | \
                 8c00 0200 | 00 08 00 00 0000 0000";
    let zeros = "00".repeat(176 - 48);
    assert_sent(DcbMessage::set_pfc("eth0", &pfc), &format!("{begin} {zeros}"));
    // Values that were read go back: `mbc` at 2, `delay` at 4.
    let pfc = PfcSettings { capability: 8, macsec_bypass: 1, delay: 0x1234, ..pfc };
    let bytes = sent(DcbMessage::set_pfc("eth0", &pfc), 1);
    assert_eq!(bytes[40..46], [&[8, 8, 1, 0][..], &0x1234u16.to_ne_bytes()].concat());
}

#[test]
fn priorities_of_dscps_have_the_bytes_of_the_command_dcb() {
    let entry = DscpPriority::new(26, 3).expect("in range");
    // `dcb app add dev v0 dscp-prio 26:3` of iproute2 6.1, and `del`.
    let table = "0700 0100 763000 00 | 1000 0d80 | 0c00 0380 | 0800 0100 | 05 03 1a00";
    assert_sent(
        DcbMessage::add_dscp_priorities("v0", &[entry]),
        &format!("2c000000 4f00 0500 01000000 00000000 | 00 14 0000 | {table}"),
    );
    assert_sent(
        DcbMessage::remove_dscp_priorities("v0", &[entry]),
        &format!("2c000000 4f00 0500 01000000 00000000 | 00 1b 0000 | {table}"),
    );
}

#[test]
fn trusted_fields_are_sent_in_their_order() {
    // Each is a u8 with three bytes of padding; PCP is Linux's own selector and has its own kind.
    assert_sent(
        DcbMessage::set_trust("v0", &[TrustedField::Dscp, TrustedField::Pcp]),
        "34000000 4f00 0500 01000000 00000000 | 00 14 0000 | 0700 0100 763000 00 | 1800 0d80 | 1400 0b80 | \
         0500 0100 05 000000 | 0500 0200 ff 000000",
    );
}

/// As mlx5 answers: ETS, PFC and the application table, an attribute that is not known, DCBX.
#[test]
fn a_reply_is_read_field_by_field() {
    // struct ieee_ets: willing, ets_cap, cbs; tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc, tc_reco_bw,
    // tc_reco_tsa, reco_prio_tc. 59 bytes, and one of padding behind.
    let mut ets = [0; 59];
    ets[..3].copy_from_slice(&[1, 8, 0]);
    ets[3..27].fill(0xee);
    ets[27..35].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
    ets[35..].fill(0xdd);
    // struct ieee_pfc: pfc_cap, pfc_en, mbc, a byte that is not written (3), delay at 4, two more,
    // requests at 8, indications at 72.
    let mut pfc = [0xaa; 136];
    pfc[..3].copy_from_slice(&[8, 0x18, 1]);
    pfc[4..6].copy_from_slice(&700u16.to_ne_bytes());
    // struct dcb_app: selector, priority, protocol. DSCP 26 twice, a port, a DSCP and a priority out
    // of range, and PCP in its own kind.
    let app = |kind, selector: u8, priority: u8, protocol: u16| {
        let [low, high] = protocol.to_ne_bytes();
        attribute(kind, &[selector, priority, low, high])
    };
    let table = [
        app(1, 5, 6, 48),
        app(1, 5, 3, 26),
        app(1, 5, 0, 26),
        app(1, 5, 3, 26),
        app(1, 3, 3, 4791),
        app(1, 5, 3, 64),
        app(1, 5, 3, 26 + 256),
        app(1, 5, 8, 10),
        app(2, 255, 1, 1),
    ];
    let ieee = [
        attribute(1, &ets),
        attribute(10, &[0; 44]),
        attribute(2, &pfc),
        attribute(3 | 0x8000, &table.concat()),
        attribute(99, &[1, 2, 3]),
        attribute(11 | 0x8000, &[attribute(2, &[255]), attribute(1, &[5]), attribute(1, &[])].concat()),
    ];
    let read = settings(&ieee.concat(), &[attribute(14, &[0x09]), attribute(77, &[0; 9])].concat()).expect("well made");
    let entry = |dscp, priority| DscpPriority::new(dscp, priority).expect("in range");
    let expected = DcbSettings {
        dcbx: Some(DcbxFlags(0x09)),
        ets: Some(EtsSettings { willing: true, class_of: [0, 1, 2, 3, 4, 5, 6, 7] }),
        pfc: Some(PfcSettings { capability: 8, enabled: PrioritySet::from_bits(0x18), macsec_bypass: 1, delay: 700 }),
        dscp_priorities: vec![entry(26, 0), entry(26, 3), entry(48, 6)],
        trust: Some(vec![TrustedField::Pcp, TrustedField::Dscp]),
    };
    assert_eq!(read, expected);
    assert_eq!((read.priorities_of(26).bits(), read.priorities_of(0).bits()), (0x09, 0));
    assert_eq!(settings(&[], &[]), Ok(DcbSettings::default()), "a driver that tells nothing");
    let longer = attribute(1, &[&ets[..], &[1; 8]].concat());
    assert!(settings(&longer, &[]).is_ok_and(|read| read.ets == expected.ets), "of a later kernel");
}

#[test]
fn a_structure_that_is_too_short_is_refused() {
    let truncated = |structure, bytes, least| Err(DcbDecodeError::Truncated { structure, bytes, least });
    for bytes in 0..136 {
        assert_eq!(settings(&attribute(2, &vec![1; bytes]), &[]), truncated("ieee_pfc", bytes, 136));
    }
    assert_eq!(settings(&attribute(1, &[0; 58]), &[]), truncated("ieee_ets", 58, 59));
    let table = attribute(3, &attribute(1, &[5, 3, 26]));
    assert_eq!(settings(&table, &[]), truncated("dcb_app", 3, 4));
    assert_eq!(reply(21, &attribute(1, b"eth0\0")).settings(), Err(DcbDecodeError::NoSettings));
    assert_eq!(reply(20, &attribute(13, &[0])).settings(), Err(DcbDecodeError::NoSettings), "of another command");
}

#[test]
fn the_result_of_a_change_is_the_low_byte_of_its_negative_number() {
    let result = |code: i32| reply(20, &attribute(13, &[code as u8])).result();
    assert_eq!(result(0), Ok(()));
    assert_eq!(result(-(Errno::EOPNOTSUPP as i32)), Err(Errno::EOPNOTSUPP));
    assert_eq!(result(-(Errno::EINVAL as i32)), Err(Errno::EINVAL));
    assert_eq!(reply(27, &attribute(13, &[0xff])).result(), Err(Errno::EPERM));
    assert_eq!(reply(20, &[]).result(), Ok(()), "the acknowledgment is all there is");
}

/// Gives the datagram or the error to each question.
struct Recorded(Result<Vec<u8>, Errno>);

impl NicControl for Recorded {
    fn exchange(&mut self, _request: DcbMessage) -> io::Result<Vec<DcbMessage>> {
        let datagram = self.0.clone()?;
        let inner = |message: io::Result<NetlinkMessage<DcbMessage>>| match message?.payload {
            NetlinkPayload::InnerMessage(inner) => Ok(inner),
            other => panic!("not in this test: {other:?}"),
        };
        messages(&datagram).map(inner).collect()
    }

    fn global_pause(&mut self, _interface: &str) -> io::Result<Option<GlobalPause>> {
        Ok(None)
    }

    fn set_global_pause(&mut self, _interface: &str, _pause: GlobalPause) -> io::Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
}

#[test]
fn a_driver_without_dcb_has_no_settings_and_other_errors_are_told() {
    let read = |recorded| NicDcb::new("eth0", Recorded(recorded)).settings();
    assert!(matches!(read(Err(Errno::EOPNOTSUPP)), Ok(None)));
    let refused = read(Err(Errno::ENODEV)).expect_err("no such interface");
    assert!(matches!(refused, DcbError::Refused(error) if error.raw_os_error() == Some(Errno::ENODEV as i32)));
    assert!(matches!(read(Ok(Vec::new())), Err(DcbError::Reply(DcbDecodeError::NoReply))));
    let datagram = sent(reply(21, &[attribute(1, b"eth0\0"), attribute(13, &[])].concat()), 7);
    assert_eq!(read(Ok(datagram)).expect("a reply"), Some(DcbSettings::default()));
}

#[test]
fn a_change_fails_by_the_reply_or_by_the_error() {
    let set = |recorded| NicDcb::new("eth0", Recorded(recorded)).set_trust(&[TrustedField::Dscp]);
    let code = |error: DcbError| match error {
        DcbError::Refused(error) => error.raw_os_error(),
        DcbError::Reply(_) => None,
    };
    let replied = |code: i32| Ok(sent(reply(20, &attribute(13, &[code as u8])), 7));
    assert!(set(replied(0)).is_ok());
    let invalid = Some(Errno::EINVAL as i32);
    assert_eq!(set(replied(-(Errno::EINVAL as i32))).map_err(code), Err(invalid));
    assert_eq!(set(Err(Errno::EINVAL)).map_err(code), Err(invalid));
}

/// The kernel's own words, about the loopback, which has no driver.
#[test]
fn the_loopback_has_no_dcb() {
    let mut nic = NicDcb::new("lo", KernelControl::open().expect("a socket needs no right"));
    assert!(matches!(nic.settings(), Ok(None)));
    assert_eq!(nic.global_pause().expect("asked"), None);
    let mut none = NicDcb::new("none-such-if", KernelControl::open().expect("a socket needs no right"));
    assert!(none.settings().is_err());
}

proptest! {
    #[test]
    fn bytes_at_random_are_settings_or_an_error(bytes in any::<Vec<u8>>(), command in 0u8..30) {
        let message = reply(command, &bytes);
        let _settings_or_error = (message.settings(), message.result());
    }

    #[test]
    fn attributes_at_random_are_settings_or_an_error(kinds in any::<Vec<(u8, Vec<u8>)>>()) {
        let entries: Vec<u8> = kinds.iter().flat_map(|(kind, value)| attribute(u16::from(kind % 13), value)).collect();
        for table in [3, 11] {
            let nested = [entries.clone(), attribute(table, &entries)].concat();
            if let Ok(read) = settings(&nested, &entries) {
                assert!(read.dscp_priorities.iter().all(|entry| entry.dscp < DSCPS && entry.priority < PRIORITIES));
            }
        }
    }
}
