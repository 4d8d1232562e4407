//! Traffic classes of the switch's ports, of 200 Mbit/s each.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    OWN_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::run,
    senders::{Load, PortShares, Senders, TWO, WARM_UP},
};

/// Marks of the switch, of each queue.
const SWITCH: [&str; 11] = [
    "--switch",
    "--hosts",
    "3",
    "--rate",
    "200M",
    "--mark",
    "20000:80000:0.2",
    "--ecn",
    "on",
    "--congestion",
    "window",
];

/// Traffic class of IP of priority 6: DSCP 48.
const PRIORITY_6: &str = "192";

/// Round trips of 64 bytes from host b to host a: the least p50 and p99 of `rounds` runs, in us. A
/// machine with other work adds to both and takes nothing away.
fn ping(lab: &Lab, rounds: u32, count: &str) -> Result<(f64, f64)> {
    let mut least = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        let arguments = ["ping", OWN_IPV4, "--size", "64", "--count", count, "--traffic-class", PRIORITY_6];
        let report = run(lab, Host::B, &arguments, Duration::from_secs(60))?;
        let time = |name: &str| report.0["rtt_us"][name].as_f64().with_context(|| name.to_owned());
        least = (least.0.min(time("p50")?), least.1.min(time("p99")?));
    }
    Ok(least)
}

/// Class `class` of a port.
fn class<'a>(port: &'a Value, class: &str) -> Result<&'a Value> {
    let all = port["classes"].as_array().context("classes")?;
    all.iter().find(|queue| queue["class"] == class).with_context(|| format!("no class {class} in {port}"))
}

/// Round trips alone and beside bulk of both hosts, and the port toward host a during these.
struct Latency {
    alone: (f64, f64),
    beside: (f64, f64),
    port: Value,
}

impl Latency {
    fn of(settings: &Settings, classes: &[&str]) -> Result<Self> {
        let (rounds, count, seconds) = if settings.full { (10, "4000", 80) } else { (4, "500", 7) };
        // A worker that sleeps has to wait for a core first.
        let lab = Lab::up(&[&SWITCH[..], &["--idle", "yield"], classes].concat())?;
        let senders = Senders::start(&lab, TWO, seconds)?;
        thread::sleep(WARM_UP);
        lab.reset_queues()?;
        let queues = lab.start_queues(2)?;
        let beside = ping(&lab, rounds, count)?;
        let port = Lab::port(Host::A, &queues.end(SOON)?.success()?)?;
        let is_busy = lab.queue(Host::A, 1)?["utilization"].as_f64() > Some(0.5);
        ensure!(is_busy, "the machine is too slow: bulk ended before the round trips");
        let alone = senders.end_and(|| ping(&lab, rounds, count))?;
        println!("\n    round trips, p50 and p99 in us: {alone:?} alone, {beside:?} beside bulk\n    {port}");
        Ok(Self { alone, beside, port })
    }

    /// Times by which bulk makes a round trip longer.
    fn factors(&self) -> (f64, f64) {
        (self.beside.0 / self.alone.0, self.beside.1 / self.alone.1)
    }
}

/// Beside bulk of another host and of the own one, toward the same receiver. Without classes the
/// same round trips wait in the queue of the port. The rest of the time with classes is
/// that of two cores: bulk to another host adds as much (docs/fabric.md).
pub(crate) fn a_ping_of_a_strict_class_passes_bulk_in_the_switch(settings: &Settings) -> Result<()> {
    let with = Latency::of(settings, &["--classes", "0=100,6=strict"])?;
    let (bulk, strict) = (class(&with.port, "0")?, class(&with.port, "6")?);
    let used = bulk["utilization"].as_f64().context("utilization")?;
    ensure!(used >= 0.95, "bulk has {used:.3} of the port: {}", with.port);
    ensure!(with.port["dropped"] == 0, "{}", with.port);
    ensure!(bulk["marked"].as_u64() > Some(100) && strict["marked"] == 0, "{}", with.port);
    let (p50, p99) = with.factors();
    ensure!(p99 <= 3.0, "p99 is {p99:.2} times that of alone: {:?} and {:?} us", with.beside, with.alone);
    ensure!(p50 <= 4.0, "p50 is {p50:.2} times that of alone: {:?} and {:?} us", with.beside, with.alone);

    let without = Latency::of(settings, &[])?;
    let (p50, p99) = without.factors();
    ensure!(p50 >= 5.0, "p50 is {p50:.2} times that of alone: {:?} and {:?} us", without.beside, without.alone);
    println!("    without classes: {p50:.1} and {p99:.1} times as long");
    Ok(())
}

/// Bulk of two hosts in two classes, with a queue each that marks.
pub(crate) fn two_classes_of_a_port_have_their_shares(settings: &Settings) -> Result<()> {
    const BOTH: Load = Load { traffic_classes: &["0", "96"], ..TWO };
    let lab = Lab::up(&[&SWITCH[..], &["--classes", "0=20,3=80"]].concat())?;
    let shares = PortShares::of(&lab, BOTH, if settings.full { 10 } else { 3 })?;
    ensure!(shares.utilization()? >= 0.95, "the port was used by {:.3}", shares.utilization()?);
    ensure!((shares.number("dropped")?, shares.qdisc_drops) == (0, 0), "{}, {}", shares.queue, shares.qdisc_drops);
    let rate = |name| class(&shares.queue, name)?["bits_per_s"].as_f64().context("bits_per_s");
    let (first, second) = (rate("0")?, rate("3")?);
    let share = second * 100.0 / (first + second);
    println!("    {share:.1} % of the bytes are of the second class");
    ensure!((share - 80.0).abs() <= 5.0, "{share:.1} % of the bytes are of the second class");
    Ok(())
}

/// Two hosts without congestion control: the class without pauses fills its buffer and drops, and
/// the pauses of the other one follow its own queue.
pub(crate) fn a_lossless_class_loses_nothing_beside_one_that_drops(settings: &Settings) -> Result<()> {
    const BOTH: Load = Load { traffic_classes: &["0", "96"], timeout: "17", ..TWO };
    let switch = ["--switch", "--hosts", "3", "--rate", "200M", "--pfc", "3:100000", "--classes", "0=50,3=50"];
    let lab = Lab::up(&switch)?;
    let shares = PortShares::of(&lab, BOTH, if settings.full { 10 } else { 3 })?;
    let (lossy, lossless) = (class(&shares.queue, "0")?, class(&shares.queue, "3")?);
    ensure!(lossy["dropped"].as_u64() > Some(100) && shares.qdisc_drops == 0, "{}", shares.queue);
    ensure!(lossless["dropped"] == 0, "{}", shares.queue);
    let pauses = |host| lab.counter(host, "device/roce0", "rx_prio3_pause");
    let (of_lossy, of_lossless) = (pauses(Host::B)?, pauses(Host::C)?);
    println!("    {of_lossless} pauses of the lossless sender");
    ensure!(of_lossless > 100 && of_lossy == 0, "{of_lossless} pauses, and {of_lossy} of the other sender");
    Ok(())
}
