//! Recordings with and without evidence that the last ACK was lost with its sender. In the
//! recording A asks, three SENDs, so it is rxe that is left behind; both sides are judged alike.

use super::{
    lives::{FIRST, between},
    *,
};
use crate::{check::last_ack::lost_with_its_sender, parting::Parting};

const MS: u64 = 1_000_000;

/// Both ports, the last ACK lost between them, its SEND sent again each 67 ms.
struct Parted {
    ports: [Vec<Seen>; 2],
    parting: Parting,
}

const HERE: usize = Side::Rxe as usize;
const THERE: usize = Side::Roced as usize;

fn parted() -> Parted {
    let sent = recorded("rc_send_only_ipv4.pcap");
    let (request, ack) = (sent[at(&sent, 2, Kind::Send)].clone(), sent[at(&sent, 2, Kind::Ack)].clone());
    let again =
        (1..=7).map(|nth| Seen { number: 100 + nth, at_ns: request.at_ns + nth as u64 * 67 * MS, ..request.clone() });
    let mut arrived = sent.clone();
    arrived.remove(at(&sent, 2, Kind::Ack));
    let ports = [sent, arrived].map(|frames| frames.into_iter().chain(again.clone()).collect());
    Parted { ports, parting: Parting { left_behind: Side::Rxe, other_ended_ns: ack.at_ns + 20 * MS } }
}

impl Parted {
    fn judged(&self) -> Result<Vec<String>, String> {
        lost_with_its_sender(&self.ports, None, &self.parting)
    }

    fn after(change: impl FnOnce(&mut Self)) -> Result<Vec<String>, String> {
        let mut parted = parted();
        change(&mut parted);
        parted.judged()
    }

    fn remove(&mut self, port: usize, nth: usize, kind: Kind) {
        let at = at(&self.ports[port], nth, kind);
        self.ports[port].remove(at);
    }
}

fn refused(why: &str, change: impl FnOnce(&mut Parted)) {
    let judged = Parted::after(change);
    assert!(judged.as_ref().is_err_and(|said| said.contains(why)), "{judged:?}, not '{why}'");
}

#[test]
fn an_ack_that_was_sent_and_did_not_arrive_is_evidence() {
    let parted = parted();
    let told = parted.judged().expect("evidence");
    assert!(
        matches!(&told[..], [told] if told.contains("roced.pcap") && told.contains("frame 107 of rxe.pcap")),
        "{told:?}"
    );
    // No rule is broken by it.
    assert_eq!(judged_by_rules(&parted), [""; 0]);
}

fn judged_by_rules(parted: &Parted) -> Vec<&'static str> {
    let lives = Lives::of(&parted.ports, None);
    rules(Side::BOTH.iter().map(|side| check(&parted.ports[*side as usize], *side, &lives)))
}

#[test]
fn an_ack_that_arrived_damaged_is_evidence_too() {
    let judged = Parted::after(|it| {
        let ack = it.ports[THERE][at(&it.ports[THERE], 2, Kind::Ack)].clone();
        let last = at(&it.ports[HERE], 2, Kind::Send);
        it.ports[HERE].insert(last + 1, Seen { intact: false, ..ack });
    });
    assert!(judged.is_ok(), "{judged:?}");
}

#[test]
fn so_is_one_that_was_sent_again_and_lost_again() {
    let judged = Parted::after(|it| {
        let frames = &mut it.ports[THERE];
        let mut ack = frames[at(frames, 2, Kind::Ack)].clone();
        let again = at(frames, 3, Kind::Send);
        ack.at_ns = frames[again].at_ns + MS;
        it.parting.other_ended_ns = ack.at_ns + 210 * MS;
        frames.insert(again + 1, ack);
    });
    assert!(judged.is_ok(), "{judged:?}");
}

#[test]
fn an_ack_that_was_never_sent_is_none() {
    refused("never acknowledged", |it| it.remove(THERE, 2, Kind::Ack));
    // Nor is a refusal.
    refused("never acknowledged", |it| {
        let ack = at(&it.ports[THERE], 2, Kind::Ack);
        it.ports[THERE][ack].syndrome = Some(0x60);
    });
}

#[test]
fn nor_is_one_of_a_request_in_the_middle() {
    // Of the second the ACK is lost as well, of the third there is none.
    refused("never acknowledged", |it| {
        it.remove(HERE, 1, Kind::Ack);
        it.remove(THERE, 2, Kind::Ack);
    });
    // Or it was lost alone: the next one covers it.
    refused("all that rxe asked was answered", |it| {
        *it = Parted { ports: [0, 1].map(|_| recorded("rc_send_only_ipv4.pcap")), ..parted() };
        it.remove(HERE, 1, Kind::Ack);
    });
}

#[test]
fn nor_is_one_that_arrived() {
    refused("all that rxe asked was answered", |it| it.ports[HERE] = it.ports[THERE].clone());
}

#[test]
fn an_ack_of_a_packet_that_never_arrived_is_no_last_ack() {
    refused("had not arrived", |it| {
        let last = at(&it.ports[THERE], 2, Kind::Send);
        it.ports[THERE].remove(last);
    });
    refused("had not arrived", |it| {
        let last = at(&it.ports[THERE], 2, Kind::Send);
        it.ports[THERE][last].intact = false;
    });
}

#[test]
fn a_present_peer_answers_retransmissions() {
    refused("was not answered", |it| it.parting.other_ended_ns += 300 * MS);
    // Nothing that came again arrived.
    refused("before the other side had ended", |it| {
        it.ports[THERE].retain(|seen| seen.number < 100);
        it.parting.other_ended_ns += 1000 * MS;
    });
}

#[test]
fn giving_up_too_early_is_not_excused() {
    refused("was sent 7 times, not 8", |it| it.ports[HERE].retain(|seen| seen.number != 103));
}

#[test]
fn a_read_waits_for_more_than_an_ack() {
    refused("asks for more than an ACK", |it| {
        for frames in &mut it.ports {
            let from = at(frames, 2, Kind::Send);
            for seen in frames[from..].iter_mut().filter(|seen| seen.kind == Kind::Send) {
                (seen.kind, seen.opcode, seen.dma_bytes, seen.payload_bytes) = (Kind::ReadRequest, 0x0c, Some(64), 0);
            }
        }
    });
}
/// A message of another connection arrives so long before the last frame of the side that ended.
fn with_another(before_ns: i64) -> Result<Vec<String>, String> {
    Parted::after(|it| {
        let silent_ns = it.ports[THERE].iter().rfind(|seen| seen.from == Side::Roced).expect("an ACK").at_ns;
        let more = between([0x345, 0x22], "rc_send_only_ipv4.pcap", FIRST, silent_ns.wrapping_add_signed(-before_ns));
        for frames in &mut it.ports {
            frames.push(more[0].clone());
            frames.sort_by_key(|seen| seen.at_ns);
        }
    })
}

#[test]
fn other_connections_may_have_more_in_flight_to_an_absent_peer() {
    assert!(with_another(-1000).is_ok_and(|told| told.len() == 1));
    let judged = with_another(1000);
    assert!(judged.as_ref().is_err_and(|why| why.contains("never acknowledged")), "{judged:?}");
}
