//! A million frames of an attacker on the path: changed, cut, spliced, repeated, from older
//! numbers. The receiver accepts none, and goes on accepting those of the sender.

mod association;

use association::Association;
use roced_esp::{InboundSa, OutboundSender};
use roced_transport::wire::esp::{Encapsulation, EspFrame, EspRefusal, Numbering};

const FORGERIES: u64 = 1_000_000;

/// Forgeries for each frame of the sender.
const ROUND: u64 = 1_000;

/// Numbers that look random (splitmix64): the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Where the IPv4 header begins, and where ESP does.
const IP: usize = 14;
const ESP: usize = 34;

/// Length and checksum of the IPv4 header are right for the frame.
fn fix_ip(frame: &mut [u8]) {
    let length = (frame.len() - IP) as u16;
    frame[IP + 2..IP + 4].copy_from_slice(&length.to_be_bytes());
    frame[IP + 10..IP + 12].fill(0);
    let words = frame[IP..ESP].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum = words.sum::<u32>();
    frame[IP + 10..IP + 12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

/// A frame that the sender did not send like this, made of those that it sent.
fn forge(random: &mut Random, sent: &[Vec<u8>]) -> Vec<u8> {
    let genuine = &sent[random.below(sent.len())];
    let other = &sent[random.below(sent.len())];
    let mut frame = genuine.clone();
    match random.below(8) {
        // A repetition.
        0 => {}
        1 => {
            let at = ESP + random.below(frame.len() - ESP);
            frame[at] ^= 1 << random.below(8);
        }
        2 => {
            let at = random.below(frame.len());
            frame[at] ^= 1 + random.below(255) as u8;
        }
        3 => {
            for _ in 0..random.below(20) {
                let at = ESP + random.below(frame.len() - ESP);
                frame[at] = random.next() as u8;
            }
        }
        4 => frame.truncate(random.below(frame.len())),
        5 => {
            frame.truncate(ESP + random.below(frame.len() - ESP) / 4 * 4);
            fix_ip(&mut frame);
        }
        // The number of a packet to come, in front of an old one.
        6 => {
            let most = 1 << random.below(32);
            let number = 1 + random.below(most) as u32;
            frame[ESP + 4..ESP + 8].copy_from_slice(&number.to_be_bytes());
        }
        // Parts of two.
        _ => {
            let at = ESP + random.below(frame.len().min(other.len()) - ESP);
            frame.truncate(at);
            frame.extend(&other[at..]);
            fix_ip(&mut frame);
        }
    }
    frame
}

fn accept(inbound: &mut InboundSa, frame: &[u8], scratch: &mut [u8]) -> Result<Vec<u8>, EspRefusal> {
    let pieces = [frame];
    inbound.open(&EspFrame::read(&pieces)?, scratch).map(<[u8]>::to_vec)
}

/// The next frame of the sender arrives.
fn send(sender: &mut OutboundSender, inbound: &mut InboundSa, plain: &[u8]) -> Vec<u8> {
    let mut scratch = vec![0; 4096];
    let sealed = sender.seal_pieces(&[plain], &mut scratch).expect("many numbers are left").to_vec();
    assert_eq!(accept(inbound, &sealed, &mut scratch).as_deref(), Ok(plain));
    sealed
}

#[test]
fn of_a_million_forgeries_none_is_accepted() {
    let mut random = Random(21);
    let mut reached = [0_u64; EspRefusal::ALL.len()];
    for (numbering, encapsulation) in [
        (Numbering::Short, Encapsulation::Esp),
        (Numbering::Extended, Encapsulation::Esp),
        (Numbering::Extended, Encapsulation::EspInUdp),
    ] {
        let association = Association { numbering, encapsulation, ..Association::usual() };
        let (mut sender, mut inbound) = (association.outbound().sender().expect("the first"), association.inbound());
        let (mut sent, mut scratch) = (Vec::new(), vec![0; 4096]);
        for round in 0..FORGERIES / ROUND / 3 + 1 {
            let plain = association.plain(random.below(300), round as u32);
            sent.push(send(&mut sender, &mut inbound, &plain));
            let (packets, top) = (inbound.packets(), inbound.highest_sequence());
            for _ in 0..ROUND {
                let frame = forge(&mut random, &sent);
                match accept(&mut inbound, &frame, &mut scratch) {
                    Ok(plain) => panic!("accepted {frame:02x?} as {plain:02x?}"),
                    Err(refusal) => reached[refusal as usize] += 1,
                }
            }
            assert_eq!((inbound.packets(), inbound.highest_sequence()), (packets, top), "a forgery left a trace");
        }
    }
    assert!(reached.iter().sum::<u64>() >= FORGERIES);
    // All steps were in the way of some, none of the refusals that only authentic packets reach.
    let of = |refusal: EspRefusal| reached[refusal as usize];
    for refusal in [EspRefusal::BadIcv, EspRefusal::Replayed, EspRefusal::BadLength] {
        assert!(of(refusal) > FORGERIES / 20, "{refusal:?}: {}", of(refusal));
    }
    for refusal in [EspRefusal::NotEsp, EspRefusal::BadIpChecksum, EspRefusal::OtherAssociation] {
        assert!(of(refusal) > 100, "{refusal:?}: {}", of(refusal));
    }
    for refusal in [EspRefusal::BadPad, EspRefusal::Dummy, EspRefusal::NotUdp, EspRefusal::NotRoce] {
        assert_eq!(of(refusal), 0, "{refusal:?}");
    }
}

/// Every frame once more, in any order, as long as the sender goes on.
#[test]
fn repetitions_stay_repetitions_while_the_window_moves() {
    let association = Association { numbering: Numbering::Short, ..Association::usual() };
    let (mut sender, mut inbound) = (association.outbound().sender().expect("the first"), association.inbound());
    let (mut random, mut scratch) = (Random(22), vec![0; 4096]);
    let mut sent = Vec::new();
    for number in 1..=10_000_u64 {
        sent.push(send(&mut sender, &mut inbound, &association.plain(8, number as u32)));
        for _ in 0..4 {
            let at = random.below(sent.len());
            let age = number - 1 - at as u64;
            let expected = if age < 4096 { EspRefusal::Replayed } else { EspRefusal::BehindWindow };
            assert_eq!(accept(&mut inbound, &sent[at], &mut scratch), Err(expected), "{age}");
        }
    }
    let refusals = inbound.refusals();
    assert_eq!(refusals.get(EspRefusal::Replayed) + refusals.get(EspRefusal::BehindWindow), 40_000);
}
