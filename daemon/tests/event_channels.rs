//! Event channels of the connection manager, with the client of libibverbs and of Rust programs.

mod served;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use roced_client::cm::{CmChannel, CmSession, cm_event, cm_port_space, cm_service};
use served::Served;

fn id(channel: &CmChannel, uid: u64) -> u32 {
    channel.create_id(uid, cm_port_space::TCP, cm_service::RC).expect("an identifier")
}

fn write(channel: &CmChannel, id: u32, argument: u64) {
    channel.write_event(id, cm_event::USER, 0, argument).expect("below the limit");
}

/// The next event of a channel: its identifier and argument.
fn taken(channel: &CmChannel) -> Option<(u32, u64)> {
    let event = channel.take().expect("the daemon lives")?.event;
    let argument = event.private_data[..8].try_into().expect("eight bytes");
    Some((event.id, u64::from_ne_bytes(argument)))
}

/// Waits for the next event.
fn next(channel: &CmChannel) -> (u32, u64) {
    let begin = Instant::now();
    loop {
        if let Some(taken) = taken(channel) {
            return taken;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "no further event");
        std::thread::yield_now();
    }
}

/// The socket of the channel has copies of the events that moved.
#[test]
fn an_identifier_that_returns_to_a_channel_has_all_its_events_in_order() {
    let served = Served::start();
    let session = CmSession::open_at(&served.socket).expect("a session");
    let [first, second] = [(); 2].map(|()| session.channel().expect("a channel"));
    let (returns, stays) = (id(&first, 1), id(&first, 2));
    for (id, argument) in [(returns, 1), (stays, 2), (returns, 3)] {
        write(&first, id, argument);
    }
    second.migrate(&first, returns).expect("it moves");
    first.migrate(&second, returns).expect("it returns");
    assert_eq!([(); 3].map(|()| next(&first)), [(stays, 2), (returns, 1), (returns, 3)]);
    assert_eq!((taken(&first), taken(&second)), (None, None));
}

/// A sequence of numbers that looks random.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Events that were written to identifiers and not taken.
struct Expected {
    channels: Vec<CmChannel>,
    /// Channel of each identifier, and the arguments.
    ids: BTreeMap<u32, (usize, VecDeque<u64>)>,
}

impl Expected {
    fn new(session: &Arc<CmSession>) -> Self {
        let channels: Vec<CmChannel> = (0..3).map(|_| session.channel().expect("a channel")).collect();
        let ids = (0..4).map(|number| (id(&channels[number % 3], number as u64 + 1), (number % 3, VecDeque::new())));
        Self { ids: ids.collect(), channels }
    }

    /// Takes an event of a channel, if there is one.
    fn take(&mut self, channel: usize) {
        let Some((id, argument)) = taken(&self.channels[channel]) else { return };
        let (of, arguments) = self.ids.get_mut(&id).expect("there is no other identifier");
        assert_eq!((*of, arguments.pop_front()), (channel, Some(argument)), "identifier {id}, its channel and order");
    }

    fn step(&mut self, random: &mut Sequence, argument: u64) {
        let (number, channel) = (random.below(4), random.below(3));
        let (&id, (of, arguments)) = self.ids.iter_mut().nth(number).expect("four of them");
        match random.below(4) {
            0 => self.take(channel),
            1 if channel != *of => {
                self.channels[channel].migrate(&self.channels[*of], id).expect("it moves");
                *of = channel;
            }
            _ if arguments.len() < 6 => {
                write(&self.channels[*of], id, argument);
                arguments.push_back(argument);
            }
            _ => {}
        }
    }
}

#[test]
fn each_event_of_identifiers_that_move_comes_once_and_in_order() {
    let served = Served::start();
    for seed in 1..=20 {
        let session = CmSession::open_at(&served.socket).expect("a session");
        let (mut expected, mut random) = (Expected::new(&session), Sequence(seed));
        for argument in 1..=300 {
            expected.step(&mut random, argument);
        }
        let begin = Instant::now();
        while expected.ids.values().any(|(_, arguments)| !arguments.is_empty()) {
            (0..3).for_each(|channel| expected.take(channel));
            let left = || expected.ids.iter().map(|(id, (_, left))| (id, left)).collect::<Vec<_>>();
            assert!(begin.elapsed() < Duration::from_secs(10), "seed {seed}: lost {:?}", left());
        }
        assert!((0..3).all(|channel| taken(&expected.channels[channel]).is_none()), "seed {seed}");
    }
}
