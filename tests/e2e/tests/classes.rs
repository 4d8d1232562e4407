//! Traffic classes of packets that a host sends.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    OWN_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{Report, Server, run},
    program::{Program, within},
};

/// Traffic classes of IP of priorities 0, 3 and 6: the class selector is the priority.
const PRIORITY_0: &str = "0";
const PRIORITY_3: &str = "96";
const PRIORITY_6: &str = "192";

/// A load that waits for nothing but its turns.
fn bulk(lab: &Lab, traffic_class: &str, qps: usize, seconds: u64) -> Result<Program> {
    let (qps, seconds) = (qps.to_string(), seconds.to_string());
    let arguments = ["bw", OWN_IPV4, "--op", "write", "--size", "64K", "--qps", &qps, "--seconds", &seconds, "--json"];
    lab.start(Host::B, "roce-perf", &[&arguments[..], &["--traffic-class", traffic_class]].concat())
}

/// Connections of host b.
fn connections(lab: &Lab) -> Result<usize> {
    Ok(lab.ctl(Host::B, "qps")?["qps"].as_array().map_or(0, Vec::len))
}

/// Both classes have more to send than one worker can.
pub(crate) fn two_classes_have_their_shares(settings: &Settings) -> Result<()> {
    let seconds = if settings.full { 8 } else { 3 };
    for (shares, expected) in [("0=30,3=70", 70.0), ("0=90,3=10", 10.0)] {
        let lab = Lab::up(&["--classes", shares])?;
        let _server = Server::start(&lab, Host::A, &[])?;
        let loads = [bulk(&lab, PRIORITY_0, 4, seconds)?, bulk(&lab, PRIORITY_3, 4, seconds)?];
        ensure!(within(SOON, || Ok(connections(&lab)? == 8))?, "not all are connected");
        let mut bytes = [0.0; 2];
        for (bytes, load) in bytes.iter_mut().zip(loads) {
            let report = Report::read(&load.end(SOON)?.success()?)?;
            *bytes = report.0["gbit_per_s"].as_f64().context("gbit_per_s")?;
        }
        let share = bytes[1] * 100.0 / (bytes[0] + bytes[1]);
        println!("\n    {shares}: {:.2} and {:.2} Gbit/s, {share:.1} %", bytes[0], bytes[1]);
        ensure!((share - expected).abs() < 6.0, "{share:.1} % of the bytes are of the second class, not {expected}");
    }
    Ok(())
}

/// Beside bulk of another class with a highest rate, and of its own as the contrast. The rate
/// leaves the cores of the hosts time: without it, the threads that share them are most of a round
/// trip.
pub(crate) fn a_ping_of_a_strict_class_does_not_wait_for_bulk(settings: &Settings) -> Result<()> {
    let (count, seconds) = if settings.full { ("8000", 20) } else { ("2000", 8) };
    let lab = Lab::up(&["--classes", "0=100:100,6=strict"])?;
    let _server = Server::start(&lab, Host::A, &[])?;
    let ping = |traffic_class| {
        let arguments = ["ping", OWN_IPV4, "--count", count, "--traffic-class", traffic_class];
        let report = run(&lab, Host::B, &arguments, Duration::from_secs(60))?;
        let p50 = report.0["rtt_us"]["p50"].as_f64().context("p50")?;
        let p99 = report.0["rtt_us"]["p99"].as_f64().context("p99")?;
        Ok::<_, anyhow::Error>((p50, p99))
    };
    let alone = ping(PRIORITY_6)?;
    let load = bulk(&lab, PRIORITY_0, 4, seconds)?;
    ensure!(within(SOON, || Ok(connections(&lab)? == 4))?, "not all are connected");
    let [of_strict, of_bulk] = [ping(PRIORITY_6)?, ping(PRIORITY_0)?];
    let report = Report::read(&load.end(Duration::from_secs(60))?.success()?)?;
    let mbit_per_s = report.0["gbit_per_s"].as_f64().context("gbit_per_s")? * 1000.0;
    println!(
        "\n    round trips, p50 and p99 in us: {alone:?} alone, {of_strict:?} beside bulk, {of_bulk:?} in its class"
    );
    println!("    bulk: {mbit_per_s:.1} Mbit/s of payload");
    ensure!(of_strict.0 * 3.0 < of_bulk.0, "a strict class gains nothing: {of_strict:?} and {of_bulk:?} us");
    // A worker that is late by more than a burst loses that time.
    ensure!((60.0..100.0).contains(&mbit_per_s), "{mbit_per_s} Mbit/s, of 100 with headers");
    Ok(())
}

/// Frames that a link without carrier has kept do not count as bytes before those of today, and the
/// worker of a daemon without clients sleeps meanwhile.
pub(crate) fn bulk_goes_on_after_its_link_was_down(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--classes", "0=100,6=strict"])?;
    // A single frame is as many bytes as may be before others.
    lab.change_config(Host::B, |config| config + "classes.tx_ahead_bytes = 4096\n")?;
    let _server = Server::start(&lab, Host::A, &[])?;
    let load = bulk(&lab, PRIORITY_0, 32, 600)?;
    let sent = || lab.counter(Host::B, "device/*/queue/*", "nic_tx_bytes");
    ensure!(within(SOON, || Ok(sent()? > 50_000_000))?, "nothing is sent");
    let link = |state| lab.run(Host::B, "ip", &["link", "set", "eth0", state], SOON)?.success();
    link("down")?;
    thread::sleep(Duration::from_secs(1));
    drop(load);
    ensure!(within(SOON, || Ok(connections(&lab)? == 0))?, "the program has ended");
    let polls = || lab.counter(Host::B, "worker/*", "polls");
    thread::sleep(Duration::from_millis(500));
    let before = polls()?;
    thread::sleep(Duration::from_secs(1));
    let after = polls()?;
    ensure!(after - before < 10_000, "{} poll iterations in a second without clients", after - before);
    link("up")?;
    let gbit_per_s = || {
        let report = bulk(&lab, PRIORITY_0, 4, 1)?.end(Duration::from_secs(60))?;
        let Ok(output) = report.success() else { return Ok(false) };
        Ok(Report::read(&output)?.0["gbit_per_s"].as_f64().context("gbit_per_s")? > 0.1)
    };
    // The first connection may begin before the neighbor is known again.
    ensure!(within(SOON, gbit_per_s)?, "nothing is sent after the link came back");
    Ok(())
}
