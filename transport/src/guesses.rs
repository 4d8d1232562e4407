//! Guesses of a blind forger: the numbers that it must hit, from the constants of the code.
//!
//! The forger is off the path: it sends frames with the addresses and MACs of the peer, and sees
//! none. `docs/threat-model.md` has the table; the test here makes it.

use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use roced_types::Qpn;

use crate::{
    out_of_order,
    qp::{AHEAD_FIRST, JUMP_MAX, JUMP_MIN, JUMP_TIME, OTHER_PORT_BAR_MEAN, OTHER_PORT_PSNS, RUN_MIN, RUN_REACH},
    wire::udp_source_port,
};

/// Frames a second of the forger: the rate of the table.
const RATE: f64 = 1e6;

/// Packets under way of a requester: the default of `window_packets`, and the most that the config
/// permits.
const IN_FLIGHT: u32 = 128;
const IN_FLIGHT_MAX: u32 = 8192;

/// PSNs of answers that are accepted from another port than the peer's, at most: the oldest that
/// waits, the last that was asked for, the last that was sent and the next.
const OTHER_ANSWERS: u32 = 4;

/// Guesses a second for packets from another port than the peer's, on average.
const GUESSES_A_SECOND: f64 = 1e9 / OTHER_PORT_BAR_MEAN.0 as f64;

/// Bits of a UDP source port: those that differ among the dynamic ports.
fn port_bits() -> f64 {
    let fixed = udp_source_port(0, Qpn::from_wire(0), Qpn::from_wire(0));
    f64::from(fixed.count_zeros())
}

fn log2(count: u32) -> f64 {
    assert!(count.is_power_of_two(), "bits are whole");
    f64::from(count.ilog2())
}

const QPN_BITS: f64 = 24.0;
const PSN_BITS: f64 = 24.0;
const KEY_BITS: f64 = 32.0;

/// A forged packet that has an effect.
struct Forged {
    name: &'static str,
    /// Bits beside those of the QPN.
    bits: f64,
    /// It comes from another port than the peer's: the guesses at each connection are limited.
    is_limited: bool,
    /// It can bring bytes into memory or messages.
    is_data: bool,
}

fn all() -> Vec<Forged> {
    let port = port_bits();
    let row = |name, bits, is_limited, is_data| Forged { name, bits, is_limited, is_data };
    Vec::from([
        row("RC SEND or WRITE in its turn, from the peer's port", port + PSN_BITS, false, true),
        row("RC SEND or WRITE in its turn, from another port", PSN_BITS, true, true),
        row("RC WRITE, READ or ATOMIC with its key, from another port", PSN_BITS + KEY_BITS, false, true),
        row(
            "RC SEND or WRITE ahead of its turn, usual window",
            port + PSN_BITS - log2(AHEAD_FIRST.into()),
            false,
            true,
        ),
        row("RC SEND or WRITE ahead, longest window", port + PSN_BITS - log2(out_of_order::WINDOW), false, true),
        row("READ response or ATOMIC ACK in its turn", port + PSN_BITS, false, true),
        row("READ response or ATOMIC ACK in its turn, from another port", PSN_BITS, true, true),
        row("READ response ahead of its turn, default window", port + PSN_BITS - log2(IN_FLIGHT), false, true),
        row("READ response ahead, longest window", port + PSN_BITS - log2(IN_FLIGHT_MAX), false, true),
        row("ACK, or NAK that ends the connection, default window", port + PSN_BITS - log2(IN_FLIGHT), false, false),
        row("ACK, or NAK that ends it, longest window", port + PSN_BITS - log2(IN_FLIGHT_MAX), false, false),
        row("ACK from another port", PSN_BITS - log2(OTHER_ANSWERS), true, false),
        row("UC SEND or WRITE, busy", port + PSN_BITS - log2(JUMP_MIN as u32), false, true),
        row("UC SEND or WRITE, after long silence", port + PSN_BITS - log2(JUMP_MAX as u32), false, true),
        row("UC SEND or WRITE from another port", PSN_BITS - log2(OTHER_PORT_PSNS as u32), true, true),
        row(
            "UC SEND or WRITE from another port, after a second of silence",
            PSN_BITS - log2(RUN_REACH as u32),
            false,
            true,
        ),
        row("datagram, if its Q_Key is random", 32.0, false, true),
    ])
}

/// Time that as many guesses take.
fn time(bits: f64, a_second: f64) -> String {
    let seconds = (0..bits as u32).fold(1.0, |count, _| count * 2.0) / a_second;
    let units = [("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("s", 1.0)];
    let (unit, length) = units.into_iter().find(|(_, length)| seconds >= *length).unwrap_or(("s", 1.0));
    let count = seconds / length;
    if count < 10.0 { format!("{count:.1} {unit}") } else { format!("{count:.0} {unit}") }
}

impl Forged {
    fn line(&self) -> String {
        let known = time(self.bits, if self.is_limited { GUESSES_A_SECOND } else { RATE });
        let bits = self.bits + QPN_BITS;
        let limit = if self.is_limited { format!(", {GUESSES_A_SECOND} a second") } else { String::new() };
        format!("| {} | {bits} | {} | {}{limit} | {known} |", self.name, time(bits, RATE), self.bits)
    }
}

#[test]
fn the_table_of_the_threat_model_follows_from_the_code() {
    let document = include_str!("../../docs/threat-model.md");
    let missing: Vec<_> = all().iter().map(Forged::line).filter(|line| !document.contains(line)).collect();
    assert!(missing.is_empty(), "docs/threat-model.md lacks:\n{}", missing.join("\n"));
}

#[test]
fn the_distances_of_an_unreliable_connection_are_those_of_the_code() {
    let document = include_str!("../../docs/threat-model.md");
    let word = |count: i32| ["none", "one", "two", "three", "four"][count as usize];
    let (thousands, rest) = (JUMP_MIN / 1000, JUMP_MIN % 1000);
    let most = log2(JUMP_MAX as u32);
    for text in [
        format!("{thousands},{rest:03} packets, and one for each {} ns, 2^{most} at the most", JUMP_TIME.0),
        format!("From another port it may be {} PSNs ahead", word(OTHER_PORT_PSNS - 1)),
        format!("for each {RUN_REACH} PSNs that it is ahead, {} at least", word(RUN_MIN)),
    ] {
        assert!(document.contains(&text), "docs/threat-model.md lacks: {text}");
    }
}

#[test]
fn data_costs_at_least_forty_bits() {
    assert_eq!(Qpn::MULTICAST.get().count_ones().to_string(), QPN_BITS.to_string(), "all bits of a QPN are random");
    for forged in all().iter().filter(|forged| forged.is_data) {
        assert!(forged.bits + QPN_BITS >= 40.0, "{}", forged.name);
    }
}
