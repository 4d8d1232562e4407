//! Which scenarios are run: every value of every dimension, and every two values of different
//! dimensions together at least once, where they can be (a covering array of strength two). Made by
//! taking, again and again, the combination that brings most pairs that are new: the same list each
//! time.

use std::collections::BTreeSet;

use crate::{
    cm_test::{CmTest, DATAGRAMS},
    scenario::{Harm, MARKED, MTUS, Network, QUESTIONS, RATES, Run, SIZES, Scenario, Side, Stock},
};

/// Most scenarios that a run has time for.
#[cfg(test)]
const SCENARIOS_MAX: usize = 174;

/// A value of each dimension, by its place: program, client, size, path MTU, network, rate, harm.
type Row = [u8; DIMENSIONS];
const DIMENSIONS: usize = 7;
const SPANS: Row = [
    Stock::ALL.len() as u8,
    Side::BOTH.len() as u8,
    SIZES.len() as u8,
    MTUS.len() as u8,
    Network::ALL.len() as u8,
    RATES.len() as u8,
    Harm::ALL.len() as u8,
];

/// Two values of two dimensions.
type Duo = ((u8, u8), (u8, u8));

/// Scenarios that are left out, and why. All but the last are rules of
/// [`is_possible`].
pub(crate) const LEFT_OUT: [&str; 7] = [
    "messages of UD that are longer than the path MTU: there are none",
    "ib_atomic_*: 8 bytes, no other size",
    "frames lost, corrupted or repeated under UC and UD where the program counts what arrives (ibv_uc_pingpong, ibv_ud_pingpong, ib_send_bw -c UC, \
     -c UD): it would wait for ever; ib_write_bw -c UC runs with all of them",
    "ibv_ud_pingpong at a path MTU of its own choice: it takes the port's, 4096",
    "ibv_*_pingpong with messages of 1 MiB: their ACK timer is 67 ms, and a guest without KVM takes longer to receive one; perftest runs them",
    "the sort of fault where its rate is 0",
    "rdma_cm: a lost DREQ of Linux, which is not repeated; perftest over IPv6; XRC",
];

/// Whether a combination can be run, and tells another from those that look alike to the program.
fn is_possible(row: &Row) -> bool {
    let scenario = scenario(row);
    let Run::Stock(stock) = scenario.run else { return false };
    let harmed = row[5] != 0;
    (harmed || row[6] == 0)
        && (!harmed || stock.bears_loss())
        && (!stock.is_atomic() || row[2] == 0)
        && (!stock.is_datagram() || scenario.size <= scenario.mtu)
        && (stock != Stock::UdPingpong || scenario.mtu == 4096)
        && (!stock.is_pingpong() || scenario.size < 1 << 20)
}

fn scenario(row: &Row) -> Scenario {
    let [program, client, size, mtu, network, rate, harm] = row.map(usize::from);
    Scenario {
        run: Run::Stock(Stock::ALL[program]),
        client: Side::BOTH[client],
        size: SIZES[size],
        mtu: MTUS[mtu],
        network: Network::ALL[network],
        harm: (rate > 0).then_some((Harm::ALL[harm], RATES[rate])),
    }
}

fn duos(row: &Row) -> impl Iterator<Item = Duo> {
    // Without faults, which they would be says nothing.
    let end = if row[5] == 0 { DIMENSIONS - 1 } else { DIMENSIONS };
    let row = *row;
    (0..end).flat_map(move |a| (a + 1..end).map(move |b| ((a as u8, row[a]), (b as u8, row[b]))))
}

fn possible_rows() -> Vec<Row> {
    let count: usize = SPANS.iter().map(|span| usize::from(*span)).product();
    let row = |mut number: usize| {
        SPANS.map(|span| {
            let value = number % usize::from(span);
            number /= usize::from(span);
            value as u8
        })
    };
    (0..count).map(row).filter(is_possible).collect()
}

/// The scenarios of stock programs.
pub(crate) fn covering() -> Vec<Scenario> {
    let rows = possible_rows();
    let mut wanted: BTreeSet<Duo> = rows.iter().flat_map(duos).collect();
    let mut chosen = Vec::new();
    while !wanted.is_empty() {
        let news = |row: &&Row| duos(row).filter(|duo| wanted.contains(duo)).count();
        // The last of those that are best: any will do, but always the same.
        let best = rows.iter().max_by_key(news).expect("each wanted value is in some row");
        for duo in duos(best) {
            wanted.remove(&duo);
        }
        chosen.push(scenario(best));
    }
    chosen.sort_by_key(|scenario| match scenario.run {
        Run::Stock(stock) => (scenario.harm.is_some(), stock, scenario.client),
        _ => unreachable!("stock programs alone"),
    });
    chosen
}

/// All of them, in the order in which they are run.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    for what in QUESTIONS {
        for client in Side::BOTH {
            // Every operation over every network: the differences between the two are found in
            // these.
            let networks = if what == "operations" { &Network::ALL[..] } else { &Network::ALL[..1] };
            all.extend(
                networks
                    .iter()
                    .map(|network| Scenario { network: *network, ..Scenario::plain(Run::Ends(what), client) }),
            );
        }
    }
    all.extend(marked());
    all.extend(covering());
    all.push(Scenario::plain(Run::Client, Side::Roced));
    all.push(Scenario { harm: Some((Harm::Drop, "2%")), ..Scenario::plain(Run::Client, Side::Roced) });
    all.extend(of_cm());
    // Last: state that a new guest does not bring back would show in the next scenario, so each is
    // followed by one more.
    for client in Side::BOTH {
        all.push(Scenario::plain(Run::Reboot, client));
        all.push(Scenario::plain(Run::Stock(Stock::RcPingpong), client));
    }
    all
}

/// Transfers through a switch that marks half of the packets that may be marked.
fn marked() -> Vec<Scenario> {
    let networks = [Network::Ipv4, Network::Ipv6];
    let marked = |client, network| Scenario {
        network,
        harm: Some((Harm::Mark, "50%")),
        ..Scenario::plain(Run::Ends(MARKED), client)
    };
    Side::BOTH.into_iter().flat_map(|client| networks.map(|network| marked(client, network))).collect()
}

/// A few of them, for every day.
pub(crate) fn short() -> Vec<Scenario> {
    let mut few: Vec<_> = Side::BOTH
        .iter()
        .flat_map(|client| {
            let plain = |run| Scenario::plain(run, *client);
            [
                plain(Run::Ends("operations")),
                plain(Run::Ends("wrong-key-write")),
                plain(Run::Stock(Stock::RcPingpong)),
                Scenario {
                    harm: Some((Harm::Drop, "2%")),
                    network: Network::Ipv6,
                    ..plain(Run::Stock(Stock::WriteBw))
                },
                Scenario { harm: Some((Harm::Corrupt, "2%")), mtu: 4096, ..plain(Run::Stock(Stock::ReadBw)) },
                Scenario { harm: Some((Harm::Duplicate, "2%")), mtu: 256, ..plain(Run::Stock(Stock::SendBw)) },
            ]
        })
        .collect();
    few.extend(marked().into_iter().filter(|scenario| scenario.network == Network::Ipv4));
    few.push(Scenario::plain(Run::Client, Side::Roced));
    few.extend(few_of_cm());
    few
}

/// A few scenarios of the connection managers, for every day.
fn few_of_cm() -> Vec<Scenario> {
    let mut few = Vec::new();
    for client in Side::BOTH {
        let plain = |test| Scenario::plain(Run::Cm(test), client);
        few.push(plain(CmTest::Rping));
        few.push(Scenario { network: Network::Ipv6, ..plain(CmTest::Ucmatose(10)) });
        few.push(plain(CmTest::Udaddy));
        few.push(plain(CmTest::NoListener));
    }
    few.push(Scenario::plain(Run::Cm(CmTest::Lost(2)), Side::Rxe));
    few.push(Scenario::plain(Run::Cm(CmTest::WriteBw), Side::Roced));
    few.push(Scenario::plain(Run::Cm(CmTest::ServerKilled), Side::Roced));
    few
}

/// All scenarios of the connection managers.
fn of_cm() -> Vec<Scenario> {
    const TESTS: [CmTest; 10] = [
        CmTest::Rping,
        CmTest::Ucmatose(10),
        CmTest::Ucmatose(100),
        CmTest::Udaddy,
        CmTest::Rstream,
        CmTest::WriteBw,
        CmTest::NoListener,
        CmTest::ServerKilled,
        CmTest::ClientKilled,
        CmTest::KilledBeforeRtu,
    ];
    let mut all = Vec::new();
    for client in Side::BOTH {
        for network in [Network::Ipv4, Network::Ipv6] {
            // A hundred connections show nothing else over IPv6, and perftest has no rdma_cm there.
            let is_for_ipv6 = |test: &CmTest| !matches!(test, CmTest::Ucmatose(100) | CmTest::WriteBw);
            let tests = TESTS.into_iter().filter(|test| network == Network::Ipv4 || is_for_ipv6(test));
            all.extend(tests.map(|test| Scenario { network, ..Scenario::plain(Run::Cm(test), client) }));
        }
        // A program of Linux that disconnects and ends sends its DREQ once, and no more.
        let is_repeated = |nth: &u8| client == Side::Roced || DATAGRAMS[usize::from(*nth) - 1] != "DREQ";
        let nths = (1..).take(DATAGRAMS.len()).filter(is_repeated);
        let lost = nths.map(|nth| Scenario::plain(Run::Cm(CmTest::Lost(nth)), client));
        all.extend(lost);
        all.extend(
            [CmTest::FifthLost, CmTest::Mckey, CmTest::MckeySendOnly, CmTest::DaemonKilled, CmTest::PowerFails]
                .map(|test| Scenario::plain(Run::Cm(test), client)),
        );
        for harm in [(Harm::Drop, "5%"), (Harm::Duplicate, "5%")] {
            all.push(Scenario { harm: Some(harm), ..Scenario::plain(Run::Cm(CmTest::Rping), client) });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By another way than they are chosen by: every two values for which some possible combination
    /// exists.
    #[test]
    fn every_pair_that_is_possible_is_run() {
        let run = covering();
        let covers = |run: &Scenario, wanted: &Scenario, keep: [usize; 2]| {
            keep.iter().all(|dimension| match dimension {
                0 => run.run == wanted.run,
                1 => run.client == wanted.client,
                2 => run.size == wanted.size,
                3 => run.mtu == wanted.mtu,
                4 => run.network == wanted.network,
                5 => run.harm.map(|it| it.1) == wanted.harm.map(|it| it.1),
                _ => run.harm.map(|it| it.0) == wanted.harm.map(|it| it.0),
            })
        };
        let mut pairs = BTreeSet::new();
        for row in possible_rows() {
            for a in 0..DIMENSIONS {
                for b in a + 1..DIMENSIONS {
                    if pairs.insert((a, row[a], b, row[b])) {
                        let wanted = scenario(&row);
                        assert!(run.iter().any(|run| covers(run, &wanted, [a, b])), "{wanted}: dimensions {a} and {b}");
                    }
                }
            }
        }
        assert!(pairs.len() > 400, "{} pairs", pairs.len());
    }

    #[test]
    fn there_is_time_for_all_of_them() {
        let all = all();
        assert!(all.len() <= SCENARIOS_MAX, "{} scenarios", all.len());
        assert_eq!(all, super::all(), "the same each time");
    }

    #[test]
    fn impossible_cases_are_not_planned() {
        for scenario in all() {
            let Run::Stock(stock) = scenario.run else { continue };
            assert!(!stock.is_datagram() || scenario.size <= scenario.mtu, "{scenario}");
            assert!(scenario.harm.is_none() || stock.bears_loss(), "{scenario}");
        }
    }
}
