//! Management datagrams between two hosts, beside the traffic of queue pairs.

use std::collections::BTreeSet;

use roced_transport::{clock::Nanos, management::MAD_BYTES, wire::opcode};
use roced_types::SendOp;

use crate::{
    faults::Random,
    host::{Fate, Pair, Settings, no_fault, sge, work},
};

/// A datagram of this number.
fn numbered(number: u32) -> [u8; MAD_BYTES] {
    let mut bytes = [0; MAD_BYTES];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn send(pair: &mut Pair, from: usize, number: u32) {
    let path = pair.path(from);
    pair.hosts[from].endpoint.send_management(path, &numbered(number)).expect("room");
}

/// Numbers of the datagrams that arrived at host `at`.
fn taken(pair: &mut Pair, at: usize) -> Vec<u32> {
    let remote = pair.hosts[1 - at].gid;
    let next = || pair.hosts[at].endpoint.poll_management();
    std::iter::from_fn(next)
        .map(|datagram| {
            assert_eq!(datagram.remote, remote);
            let number = u32::from_be_bytes(datagram.bytes[..4].try_into().expect("four bytes"));
            assert_eq!(datagram.bytes, numbered(number), "no byte is another");
            number
        })
        .collect()
}

#[test]
fn each_datagram_that_the_network_delivers_arrives_whole_and_no_other() {
    for seed in 1..40 {
        let mut random = Random(seed);
        let settings = Settings { ipv6: seed % 2 == 0, rocev1: [seed % 3 == 0; 2], ..Settings::default() };
        let mut pair = Pair::new(settings);
        let (mut sent, mut delivered) = (0, [BTreeSet::new(), BTreeSet::new()]);
        let mut arrived = [BTreeSet::new(), BTreeSet::new()];
        for _ in 0..20 {
            for _ in 0..4 {
                let from = random.below(2) as usize;
                send(&mut pair, from, sent);
                let fate = [Fate::Deliver, Fate::Drop, Fate::Duplicate, Fate::Corrupt, Fate::Late(3)];
                let fate = fate[random.below(5) as usize];
                if !matches!(fate, Fate::Drop | Fate::Corrupt) {
                    delivered[1 - from].insert(sent);
                }
                sent += 1;
                pair.turn(&mut |_, _, _| fate);
            }
            pair.settle();
            for (at, arrived) in arrived.iter_mut().enumerate() {
                arrived.extend(taken(&mut pair, at));
            }
        }
        assert_eq!(arrived, delivered, "seed {seed}");
    }
}

/// One frame finds room per call: both get about half of them.
#[test]
fn neither_datagrams_nor_queue_pairs_take_all_of_a_narrow_wire() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].nic.room = 1;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100_000)], 0));
    let (mut number, mut arrived) = (0, 0);
    for _ in 0..200 {
        while pair.hosts[0].endpoint.send_management(pair.path(0), &numbered(number)).is_ok() {
            number += 1;
        }
        pair.turn(&mut no_fault);
        pair.now = pair.now + Nanos::from_micros(5);
        arrived += taken(&mut pair, 1).len();
    }
    let writes = pair.trace.iter().filter(|(from, opcode, _)| *from == 0 && *opcode != opcode::UD_SEND_ONLY).count();
    assert!((90..=110).contains(&arrived), "{arrived} datagrams of 200 frames");
    assert!(writes >= 90, "{writes} packets of a queue pair");
}

/// A wire with room is not left to datagrams either, however many there are.
#[test]
fn datagrams_have_a_small_part_of_each_call() {
    let mut pair = Pair::new(Settings { window: 4096, ..Settings::default() });
    for number in 0..64 {
        send(&mut pair, 0, number);
    }
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100_000)], 0));
    let host = &mut pair.hosts[0];
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    let mads = host.nic.frames.iter().filter(|frame| frame.len() == 322).count();
    assert_eq!((mads, host.nic.frames.len()), (4, 32));
}
