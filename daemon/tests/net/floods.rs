//! Neighbors by the hundred that do not answer, and neighbors that change without end.

use std::time::{Duration, Instant};

use roced::net::{ASKED_MAX, Asker, FollowId, NetworkChange, NextHop};
use roced_types::AccountId;

use super::{
    mac_of,
    namespace::{Namespace, Watched},
    open, two_hosts,
};

/// Addresses of hosts that are not there, a part of the kernel's table.
fn absent(count: u16) -> impl Iterator<Item = String> {
    (0..count).map(|at| format!("10.1.{}.{}", 100 + at / 200, 1 + at % 200))
}

/// Two hosts with room for such addresses on their link. The kernel gives up sooner than usual.
fn large_link() -> Option<(Namespace, Namespace)> {
    let (a, b) = two_hosts()?;
    a.ip("route add 10.1.0.0/16 dev eth0");
    a.sysctl("net.ipv4.neigh.eth0.mcast_solicit=2");
    a.sysctl("net.ipv4.neigh.eth0.retrans_time_ms=250");
    Some((a, b))
}

/// Lets the network turn until `done`; gives the most neighbors that were asked at a time.
fn most_asked(host: &Namespace, net: &mut Watched, done: impl Fn(&Watched) -> bool) -> usize {
    let begin = Instant::now();
    let mut most = 0;
    while !done(net) {
        assert!(begin.elapsed() < Duration::from_secs(20), "never done");
        net.pass(Duration::from_millis(20));
        most = most.max(host.asked_neighbors());
    }
    most
}

fn are_unreachable(net: &Watched, ids: &[FollowId]) -> bool {
    ids.iter().all(|id| net.hop(*id) == NextHop::Unreachable)
}

#[test]
fn few_neighbors_are_asked_at_a_time_and_each_has_its_turn() {
    let Some((a, b)) = large_link() else { return };
    let mut net = open(&a);
    let ids: Vec<FollowId> = absent(300).map(|address| net.follow("10.1.0.1", &address)).collect();
    // The last one in line is there.
    let there = net.follow("10.1.0.1", "10.1.0.2");
    let most = most_asked(&a, &mut net, |net| are_unreachable(net, &ids) && mac_of(net, there).is_some());
    assert!((ASKED_MAX / 2..=ASKED_MAX).contains(&most), "{most}");
    // They are asked again and again.
    let late = absent(300).last().expect("there are some");
    b.ip(&format!("address add {late}/16 dev eth0"));
    let most = most_asked(&a, &mut net, |net| mac_of(net, ids[299]).is_some());
    assert!(most <= ASKED_MAX, "{most}");
    // And all at once when the link comes back.
    a.ip("link set eth0 down");
    net.until("the link is down", |net| !net.device().link_up);
    a.ip("link set eth0 up");
    a.ip("route replace 10.1.0.0/16 dev eth0");
    let most = most_asked(&a, &mut net, |net| mac_of(net, there).is_some());
    assert!(most <= ASKED_MAX, "{most}");
}

/// A large job that starts: its hosts answer, so that the line is a short one.
#[test]
fn hundreds_of_hosts_that_answer_are_reached_in_a_moment() {
    let Some((a, b)) = large_link() else { return };
    let hosts: Vec<String> = absent(400).collect();
    b.ip_batch(&hosts.iter().map(|host| format!("address add {host}/16 dev eth0\n")).collect::<String>());
    let mut net = open(&a);
    let begin = Instant::now();
    let ids: Vec<FollowId> = hosts.iter().map(|host| net.follow("10.1.0.1", host)).collect();
    net.until("all are reachable", |net| ids.iter().all(|id| mac_of(net, *id).is_some()));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let gave_up = |change: &NetworkChange| matches!(change, NetworkChange::NextHop(_, NextHop::Unreachable));
    assert!(!net.heard.iter().any(gave_up), "each has its patience from its turn on");
}

/// The kernel looks for a neighbor to the end, although its followers have left.
#[test]
fn followers_that_leave_at_once_make_no_room() {
    let Some((a, _b)) = large_link() else { return };
    let mut net = open(&a);
    for address in absent(300) {
        let id = net.follow("10.1.0.1", &address);
        net.net.unfollow(id, Watched::ASKER);
    }
    let asked = a.asked_neighbors();
    assert!((1..=ASKED_MAX).contains(&asked), "{asked}");
    // As soon as it has given up there is room again.
    let there = net.follow("10.1.0.1", "10.1.0.2");
    let took = net.until("it is reachable", |net| mac_of(net, there).is_some());
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Also to a destination in the middle of the long line.
#[test]
fn the_long_line_of_one_asker_delays_no_other() {
    let Some((a, b)) = two_hosts() else { return };
    a.ip("route add 10.1.0.0/16 dev eth0");
    // The kernel gives up after 3 s: a destination that is reached before did not wait behind others.
    let mut net = open(&a);
    for address in absent(ASKED_MAX as u16) {
        net.follow("10.1.0.1", &address);
    }
    let late = absent(ASKED_MAX as u16 + 20).last().expect("there are some");
    b.ip(&format!("address add {late}/16 dev eth0"));
    let _in_line: Vec<FollowId> =
        absent(ASKED_MAX as u16 + 50).skip(ASKED_MAX).map(|address| net.follow("10.1.0.1", &address)).collect();
    assert_eq!(a.asked_neighbors(), ASKED_MAX);
    assert_eq!(*net.net.delayed_neighbors(), [(AccountId(1000), 50)].into());
    let other = Asker::Account(AccountId(1001));
    let gid = net.gid(0, "10.1.0.1");
    // Alone: a further destination has the kernel send an event, at which those in line are asked.
    for address in [late.as_str(), "10.1.0.2"] {
        let id = net.follow_for(other, gid, address);
        let took = net.until("it is reachable", |net| mac_of(net, id).is_some());
        assert!(took < Duration::from_millis(250), "{address}: {took:?}");
    }
}

/// Three users with hundreds of hosts that are not there, of which the kernel keeps those that did
/// not answer for 15 s: its table stays below the 512 entries with which it forgets those of others.
#[test]
fn hosts_that_do_not_answer_leave_the_table_to_others() {
    const TABLE_MAX: usize = 300;
    let Some((a, b)) = large_link() else { return };
    let hosts: Vec<String> = (0..8).map(|host| format!("10.1.1.{}", 1 + host)).collect();
    b.ip_batch(&hosts.iter().map(|host| format!("address add {host}/16 dev eth0\n")).collect::<String>());
    let mut net = open(&a);
    let gid = net.gid(0, "10.1.0.1");
    let silent: Vec<FollowId> = absent(1500)
        .zip(0..)
        .map(|(address, at)| net.follow_for(Asker::Account(AccountId(2000 + at % 3)), gid, &address))
        .collect();
    let other = Asker::Account(AccountId(1001));
    let (mut most, mut slowest) = (0, Duration::ZERO);
    for host in &hosts {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) {
            net.pass(Duration::from_millis(20));
            most = most.max(a.neighbors());
        }
        let id = net.follow_for(other, gid, host);
        slowest = slowest.max(net.until("it is reachable", |net| mac_of(net, id).is_some()));
    }
    let given_up = silent.iter().filter(|id| net.hop(**id) == NextHop::Unreachable).count();
    println!("{most} neighbors in the table, {given_up} given up, another user's reached within {slowest:?}");
    assert!(given_up > 2 * TABLE_MAX, "{given_up}: more than the table had room for");
    assert!(most < TABLE_MAX, "{most}");
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}

#[test]
fn a_neighbor_that_changes_without_end_is_told_of_now_and_then_and_in_the_end() {
    let Some((a, _b)) = two_hosts() else { return };
    let mut net = open(&a);
    let id = net.follow("10.1.0.1", "10.1.0.2");
    net.until("it is reachable", |net| mac_of(net, id).is_some());
    let becomes = |mac: &str| format!("neigh replace 10.1.0.2 lladdr {mac} dev eth0 nud reachable\n");
    // A failover is one change, and is told at once.
    a.ip(becomes("02:00:00:00:00:0c").trim());
    let took = net.until("the other one", |net| mac_of(net, id) == Some([2, 0, 0, 0, 0, 0xc]));
    assert!(took < Duration::from_millis(250), "{took:?}");
    let begin = Instant::now();
    let mut last = 0;
    while begin.elapsed() < Duration::from_secs(2) {
        let lines: String = (0..20)
            .map(|_| {
                last = last % 200 + 1;
                becomes(&format!("02:00:00:00:01:{last:02x}"))
            })
            .collect();
        a.ip_batch(&lines);
        net.pass(Duration::from_millis(10));
    }
    let told = net.heard.iter().filter(|change| matches!(change, NetworkChange::NextHop(..))).count();
    assert!(told <= 4, "{told}");
    net.until("the last one", |net| mac_of(net, id) == Some([2, 0, 0, 0, 1, last]));
}
