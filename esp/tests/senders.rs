//! Senders of one association: nonces, sequence numbers, limits.

mod association;

use std::{collections::HashSet, sync::Barrier, thread};

use association::Association;
use roced_esp::{Lifetime, OutboundSender, SealRefusal};
use roced_transport::wire::esp::{Encapsulation, EspFrame, EspRefusal, Numbering};

/// Seals a copy of `plain`.
fn seal(sender: &mut OutboundSender, plain: &[u8]) -> Result<Vec<u8>, SealRefusal> {
    let mut scratch = vec![0; sender.buffer_bytes(plain.len())];
    sender.seal_pieces(&[plain], &mut scratch).map(|frame| frame.to_vec())
}

/// Sequence number, low half, and IV.
fn number_and_iv(frame: &[u8]) -> (u32, [u8; 8]) {
    let esp: &[u8; 16] = frame[34..].first_chunk().expect("the header of ESP");
    let [_, _, _, _, n0, n1, n2, n3, iv @ ..] = *esp;
    (u32::from_be_bytes([n0, n1, n2, n3]), iv)
}

/// Four workers seal at once, as fast as they can, and over 20 restarts with the same key: no IV
/// comes twice, and within one association no sequence number.
#[test]
fn no_nonce_comes_twice() {
    const WORKERS: usize = 4;
    const FRAMES: usize = 3_000;
    let association = Association::usual();
    let plain = association.plain(32, 1);
    let mut ivs = HashSet::new();
    for _ in 0..20 {
        let outbound = association.outbound();
        let start = Barrier::new(WORKERS);
        let work = |worker: usize| {
            let mut sender = outbound.sender().expect("few workers");
            start.wait();
            let sealed = (1..=FRAMES).map(|frame| {
                let sealed = seal(&mut sender, &plain).expect("many numbers are left");
                // Turns of different lengths.
                if frame % (worker + 3) == 0 {
                    sender.end_turn();
                }
                number_and_iv(&sealed)
            });
            sealed.collect::<Vec<_>>()
        };
        let sealed: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let numbers: HashSet<u32> = sealed.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), WORKERS * FRAMES, "a sequence number came twice");
        assert!(!numbers.contains(&0));
        ivs.extend(sealed.iter().map(|(_, iv)| *iv));
        assert_eq!(outbound.packets(), (WORKERS * FRAMES) as u64);
        assert_eq!(outbound.bytes(), outbound.packets() * (plain.len() as u64 - 34 + 4));
    }
    assert_eq!(ivs.len(), 20 * WORKERS * FRAMES, "an IV came twice");
}

#[test]
fn an_association_has_256_senders_and_no_more() {
    let association = Association::usual();
    let (outbound, plain) = (association.outbound(), association.plain(0, 1));
    let mut ivs = HashSet::new();
    for _ in 0..256 {
        let mut sender = outbound.sender().expect("one of 256");
        assert!(ivs.insert(number_and_iv(&seal(&mut sender, &plain).expect("many are left")).1));
    }
    assert!(outbound.sender().is_none());
}

/// One worker leaves no gaps, so that it spends no numbers for nothing.
#[test]
fn numbers_of_one_sender_have_no_gaps() {
    let association = Association::usual();
    let mut sender = association.outbound().sender().expect("the first");
    let plain = association.plain(8, 1);
    for number in 1..200 {
        assert_eq!(number_and_iv(&seal(&mut sender, &plain).expect("many are left")).0, number);
        if number % 5 == 0 {
            sender.end_turn();
        }
    }
}

#[test]
fn packets_end_at_their_limit_and_another_association_is_wanted_before() {
    let lifetime = Lifetime { soft_packets: Some(20), hard_packets: Some(40), ..Lifetime::default() };
    for numbering in [Numbering::Short, Numbering::Extended] {
        let association = Association { lifetime, numbering, ..Association::usual() };
        let outbound = association.outbound();
        let (mut sender, plain) = (outbound.sender().expect("the first"), association.plain(8, 1));
        for packet in 1..=40 {
            seal(&mut sender, &plain).expect("up to 40");
            sender.end_turn();
            assert_eq!(outbound.is_soft_spent(), packet >= 20);
        }
        for _ in 0..3 {
            assert_eq!(seal(&mut sender, &plain), Err(SealRefusal::Spent));
        }
        let mut other = outbound.sender().expect("the second");
        assert_eq!(seal(&mut other, &plain), Err(SealRefusal::Spent));
        sender.end_turn();
        assert_eq!(outbound.packets(), 40);
    }
}

#[test]
fn bytes_end_at_their_limit() {
    // 28 bytes of headers, payload and ICRC, 4 of trailer.
    let lifetime = Lifetime { soft_bytes: Some(10 * 128), hard_bytes: Some(20 * 128), ..Lifetime::default() };
    let association = Association { lifetime, ..Association::usual() };
    let outbound = association.outbound();
    let (mut sender, plain) = (outbound.sender().expect("the first"), association.plain(100, 1));
    for packet in 1..=20 {
        seal(&mut sender, &plain).expect("up to 20");
        sender.end_turn();
        assert_eq!(outbound.is_soft_spent(), packet >= 10);
    }
    assert_eq!(seal(&mut sender, &plain), Err(SealRefusal::Spent));
    assert_eq!(outbound.bytes(), 20 * 128);
    // Also within one turn.
    let (outbound, count) = (association.outbound(), 30);
    let mut sender = outbound.sender().expect("the first");
    assert_eq!((0..count).filter(|_| seal(&mut sender, &plain).is_ok()).count(), 20);
}

/// Each sender learns of the others' bytes when it reserves numbers: at most 15 frames late.
#[test]
fn bytes_of_several_senders_end_near_their_limit() {
    let lifetime = Lifetime { hard_bytes: Some(100 * 128), ..Lifetime::default() };
    let association = Association { lifetime, ..Association::usual() };
    let (outbound, plain) = (association.outbound(), association.plain(100, 1));
    let mut senders = [(); 3].map(|()| outbound.sender().expect("few"));
    let sealed = (0..1000).filter(|at| seal(&mut senders[at % 3], &plain).is_ok()).count();
    assert!((100..=100 + 3 * 15).contains(&sealed), "{sealed}");
    assert_eq!(senders.map(|mut sender| seal(&mut sender, &plain)), [const { Err(SealRefusal::Spent) }; 3]);
}

/// A frame that ESP does not carry takes no number, and stays as it is.
#[test]
fn a_frame_that_is_not_roce_takes_no_number() {
    let association = Association::usual();
    let outbound = association.outbound();
    let mut sender = outbound.sender().expect("the first");
    let mut plain = association.plain(8, 1);
    plain[37] ^= 1;
    let room = Encapsulation::Esp.header_bytes();
    let mut buffer = vec![0; sender.buffer_bytes(plain.len())];
    buffer[room..room + plain.len()].copy_from_slice(&plain);
    assert_eq!(sender.seal(&mut buffer, plain.len()), Err(SealRefusal::Frame(EspRefusal::NotRoce)));
    assert_eq!(buffer[room..room + plain.len()], plain);
    plain[37] ^= 1;
    assert_eq!(number_and_iv(&seal(&mut sender, &plain).expect("the first")).0, 1);
}

/// Each kind of association carries frames of each size, whole and in two pieces, as one receiver
/// opens them.
#[test]
fn frames_come_through_every_kind_of_association() {
    for (key_bytes, ipv4) in [(16, true), (16, false), (32, true), (32, false)] {
        for encapsulation in [Encapsulation::Esp, Encapsulation::EspInUdp] {
            for numbering in [Numbering::Short, Numbering::Extended] {
                let association =
                    Association { key_bytes, ipv4, encapsulation, numbering, lifetime: Lifetime::default() };
                let (mut sender, mut inbound) =
                    (association.outbound().sender().expect("the first"), association.inbound());
                for payload_bytes in (0..=4096).step_by(61) {
                    let plain = association.plain(payload_bytes, payload_bytes as u32);
                    let (first, second) = plain.split_at(plain.len() * 3 / 4);
                    let mut scratch = vec![0; sender.buffer_bytes(plain.len())];
                    let sealed = sender.seal_pieces(&[first, second], &mut scratch).expect("many are left");
                    assert_eq!(sealed.len(), plain.len() + encapsulation.overhead_bytes());
                    let (first, second) = sealed.split_at(sealed.len() - payload_bytes / 2);
                    let pieces = [first, second];
                    let frame = EspFrame::read(&pieces).expect("a frame of ESP");
                    let mut opened = vec![0; sealed.len()];
                    assert_eq!(inbound.open(&frame, &mut opened), Ok(&plain[..]));
                }
            }
        }
    }
}

/// Neither the types nor their parts print a key or a salt.
#[test]
fn debug_shows_no_key() {
    let association = Association::usual();
    let outbound = association.outbound();
    let texts = [
        format!("{:?}", outbound.sender()),
        format!("{outbound:#?}"),
        format!("{:?}", association.inbound()),
        format!("{:#?}", association.inbound()),
    ];
    for text in texts {
        assert!(text.contains("AesGcm(…)"), "{text}");
        // The key begins with 0x5a 0x5b 0x58 0x59, the salt with 0x4a.
        for secret in ["90, 91, 88, 89", "5a5b5859", "74, 75, 72, 73", "4a4b4849"] {
            assert!(!text.to_lowercase().replace("\n", " ").contains(secret), "{text}");
        }
    }
}
