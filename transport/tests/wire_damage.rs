//! Frames corrupted on the way: nothing panics, and the ICRC guards all bytes that it covers.

mod model;

use std::{collections::HashSet, ops::Range};

use model::{bth_at, cut, fix_icrc, fix_ipv4_checksum, frames::recipe, ip_at, udp_at};
use proptest::{prelude::*, sample::Index};
use roced_captures::frames;
use roced_transport::{
    reject::DropReason,
    wire::{dest_qpn, parse},
};

/// Reads a frame wholly, as the transport does.
fn take(pieces: &[&[u8]]) -> Result<(), DropReason> {
    let qpn = dest_qpn(pieces);
    let packet = parse(pieces)?;
    assert_eq!(qpn, Some(packet.bth.dest_qpn), "the peek says the same");
    assert!(packet.payload().map(<[u8]>::len).sum::<usize>() == packet.payload_len());
    packet.check_integrity()
}

/// One captured frame of each kind: address family, opcode, pad.
fn one_of_each() -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let frames: Vec<_> = frames().into_iter().map(|frame| frame.bytes).collect();
    let kind = |frame: &[u8]| (frame[ip_at(frame)] >> 4, frame[bth_at(frame)], frame[bth_at(frame) + 1] >> 4 & 3);
    frames.into_iter().filter(|frame| take(&[frame]).is_ok() && seen.insert(kind(frame))).collect()
}

const KINDS: usize = 59;
const IPV6_KINDS: usize = 19;

#[test]
fn a_frame_cut_short_anywhere_is_refused() {
    let frames = one_of_each();
    assert_eq!(frames.len(), KINDS);
    for frame in frames {
        for length in 0..frame.len() {
            let short = &frame[..length];
            assert_eq!(take(&[short]), Err(DropReason::BadLength), "{length} of {}", frame.len());
            // A piece that ends early, with the rest of the headers behind it or not.
            let _ = take(&[short, &frame[length..]]);
        }
    }
}

/// Bytes that a router, a switch or a congested queue may change: MAC addresses, and the bytes that
/// the ICRC takes as ones. (IPv4's type of service and time to live are guarded by the header
/// checksum, which the router that changes them recomputes.)
fn free(frame: &[u8], at: usize) -> bool {
    let (ip, bth) = (ip_at(frame), bth_at(frame));
    let in_ip = |places: &[usize]| places.iter().any(|place| ip + place == at);
    at < 12 || at == bth + 4 || (frame[ip] >> 4 == 6 && in_ip(&[1, 2, 3, 7]))
}

/// Each header byte (and the first and last of the rest) to each other value: the frame is taken
/// just if the byte is one that may change.
#[test]
fn a_changed_header_byte_is_noticed() {
    let mut taken = 0;
    for frame in one_of_each() {
        let header_end = bth_at(&frame) + 32;
        let places = (0..frame.len()).filter(|at| *at < header_end || *at + 8 > frame.len());
        for at in places {
            for flip in 1..=255 {
                let mut changed = frame.clone();
                changed[at] ^= flip;
                // The low half of IPv6's first byte is the high half of the traffic class.
                let first_of_ipv6 = at == ip_at(&frame) && frame[at] >> 4 == 6 && flip < 16;
                let expected = free(&frame, at) || first_of_ipv6;
                assert_eq!(take(&[&changed]).is_ok(), expected, "byte {at} ^ 0x{flip:02x} of {frame:02x?}");
                taken += usize::from(expected);
            }
        }
    }
    // Twelve bytes of MAC addresses and one of the BTH; four and a half of IPv6.
    assert_eq!(taken, KINDS * 13 * 255 + IPV6_KINDS * (4 * 255 + 15));
}

/// Actions of routers: decrement, mark congestion, recompute the IPv4 checksum. The ICRC is end to
/// end.
#[test]
fn fields_that_routers_change_do_not_break_the_icrc() {
    for frame in one_of_each() {
        let (ip, bth) = (ip_at(&frame), bth_at(&frame));
        let masked: &[usize] = if frame[ip] >> 4 == 4 { &[ip + 1, ip + 8] } else { &[ip + 1, ip + 2, ip + 3, ip + 7] };
        for at in masked.iter().chain([&(bth + 4)]) {
            for flip in 1..=255 {
                let mut changed = frame.clone();
                changed[*at] ^= flip;
                if frame[ip] >> 4 == 4 {
                    fix_ipv4_checksum(&mut changed);
                }
                assert_eq!(take(&[&changed]), Ok(()));
            }
        }
    }
}

proptest! {
    /// Every bit of a random frame from the IP header to the ICRC, the IPv4 checksum made new:
    /// refused, or masked.
    #[test]
    fn a_flipped_bit_under_the_icrc_is_refused(recipe in recipe(), places in proptest::collection::vec(any::<Index>(), 64)) {
        let frame = recipe.build(&[]);
        let (ip, udp, bth) = (ip_at(&frame), udp_at(&frame), bth_at(&frame));
        let v4 = frame[ip] >> 4 == 4;
        for place in places {
            let bit = ip * 8 + place.index((frame.len() - ip) * 8);
            let (at, mask) = (bit / 8, 0x80 >> (bit % 8));
            // The version and header length decide where everything else is.
            if at == ip && (v4 || mask > 8) {
                continue;
            }
            let mut changed = frame.clone();
            changed[at] ^= mask;
            if v4 && at < udp {
                fix_ipv4_checksum(&mut changed);
            }
            let masked = if v4 { [ip + 1, ip + 8, ip + 10, ip + 11].contains(&at) } else { at < ip + 4 || at == ip + 7 };
            let expected = masked || at == bth + 4;
            prop_assert_eq!(take(&[&changed]).is_ok(), expected, "bit {} of {:02x?}", bit, frame);
        }
    }

    #[test]
    fn nothing_panics_on_random_bytes(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 0..6)) {
        let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
        prop_assert!(take(&pieces).is_err());
    }

    /// Random bytes behind a true beginning, so that they get further than random bytes do; sums
    /// made right again, so that they get further still.
    #[test]
    fn nothing_panics_on_mutated_frames(
        which: Index,
        keep in 12usize..90,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        cuts in proptest::collection::vec(any::<Index>(), 0..=4),
        mend: bool,
    ) {
        let mut frame = which.get(one_of_each_once()).clone();
        if !noise.is_empty() {
            frame.truncate(keep);
            frame.extend(noise);
        }
        for (place, value) in changes {
            let at = place.index(frame.len().min(90));
            frame[at] = value;
        }
        if mend {
            mend_sums(&mut frame);
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(frame.len() + 1)).collect();
        cuts.sort_unstable();
        let _ = take(&cut(&frame, &cuts));
    }
}

fn one_of_each_once() -> &'static [Vec<u8>] {
    static FRAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FRAMES.get_or_init(one_of_each)
}

/// Makes lengths, IPv4 checksum and ICRC right, where the frame is still one that has them in their
/// places.
fn mend_sums(frame: &mut [u8]) {
    let ip: Range<usize> = 14..34;
    if frame.len() < 66 || frame[12..14] != [8, 0] || frame[14] != 0x45 || frame.len() > 1500 {
        return;
    }
    let total = (frame.len() - ip.start) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    fix_ipv4_checksum(frame);
    fix_icrc(frame);
}
