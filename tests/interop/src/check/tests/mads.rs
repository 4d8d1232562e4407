//! Datagrams of two of Linux's connection managers, and the data packets that belong to them.

use super::*;
use crate::trace::Datagram;

const CONNECTED: [&str; 4] = ["cm_rping_ipv4.pcap", "cm_rping_ipv6.pcap", "cm_ucmatose.pcap", "cm_rstream.pcap"];

fn broken_by_datagrams(frames: &[Seen]) -> Vec<&'static str> {
    let found = Side::BOTH.into_iter().flat_map(|side| check_datagrams(frames, side));
    found.map(|violation| violation.rule).collect()
}

/// The first datagram with this attribute.
fn first(frames: &mut [Seen], attribute: u8) -> &mut Datagram {
    frames.iter_mut().filter_map(|seen| seen.mad.as_mut()).find(|mad| mad.bytes[17] == attribute).expect("recorded")
}

#[test]
fn recorded_connections_break_no_rule() {
    for file in CONNECTED.iter().chain(&["cm_udaddy_sidr.pcap", "cm_reject_noport.pcap"]) {
        let frames = recorded(file);
        assert!(frames.iter().any(|seen| seen.mad.is_some()), "{file}");
        assert_eq!(broken_by_datagrams(&frames), [""; 0], "{file}");
    }
}

#[test]
fn one_wrong_byte_of_a_datagram_is_found() {
    let mut frames = recorded("cm_rping_ipv4.pcap");
    // Version, status, reserved in the header; in the body of the REQ: reserved, P_Key, LID, GID,
    // bits below the flow label, alternate path, addresses.
    for at in [0, 5, 19, 24 + 25, 24 + 48, 24 + 53, 24 + 71, 24 + 90, 24 + 100, 24 + 140 + 19, 24 + 140 + 35] {
        first(&mut frames, 0x10).bytes[at] ^= 1;
        assert_eq!(broken_by_datagrams(&frames).first(), Some(&"mad"), "byte {at}");
        first(&mut frames, 0x10).bytes[at] ^= 1;
    }
    first(&mut frames, 0x13).qkey = 0;
    assert_eq!(broken_by_datagrams(&frames), ["mad"]);
}

#[test]
fn a_request_without_its_adapter_is_found() {
    let mut frames = recorded("cm_rping_ipv4.pcap");
    first(&mut frames, 0x10).bytes[24 + 16..24 + 24].fill(0);
    assert_eq!(broken_by_datagrams(&frames), ["mad"]);
}

#[test]
fn length_of_a_datagram_is_checked() {
    let mut frames = recorded("cm_rping_ipv4.pcap");
    first(&mut frames, 0x14).bytes.pop();
    assert_eq!(broken_by_datagrams(&frames), ["mad"]);
}

#[test]
fn data_packets_agree_with_the_datagrams() {
    for (at, rule) in [(24 + 46, "first-psn"), (24 + 89, "source-port")] {
        let mut frames = recorded("cm_rping_ipv4.pcap");
        first(&mut frames, 0x10).bytes[at] ^= 1;
        assert!(broken_by_datagrams(&frames).contains(&rule), "{rule}");
    }
}

#[test]
fn connections_with_a_flow_label_are_told_apart_by_their_queue_pairs() {
    for file in CONNECTED {
        let mut frames = recorded(file);
        crate::check::mads::forget_labels(&mut frames);
        let found = Side::BOTH.map(|side| {
            let lives = Lives::of(&[frames.clone(), frames.clone()], None);
            check(&frames, side, &lives).unrelated
        });
        assert_eq!(found, [0, 0], "{file}");
    }
}
