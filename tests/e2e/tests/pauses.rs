//! Pauses (PFC) by a switch, and a switch that pauses without an end.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    OWN_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{Report, Server, run},
    program::{Program, within},
    senders::{Load, PortShares, Senders, TWO},
};

/// A switch without marks.
const SWITCH: [&str; 5] = ["--switch", "--hosts", "3", "--rate", "200M"];

/// Its queue is paused from here on.
const XOFF: u64 = 100_000;

/// Traffic class of IP of priority 3.
const PRIORITY_3: &str = "96";

/// Two senders in the lossless class. Their acknowledgments wait during a pause as well: retries of
/// their peers last for 3.8 s.
const LOSSLESS: Load = Load { traffic_classes: &[PRIORITY_3], timeout: "17", ..TWO };

/// Two senders in the lossless class lose nothing, and both use the port. Returns the longest
/// queue.
fn longest_lossless_queue(lab: &Lab, seconds: u64) -> Result<u64> {
    let with = PortShares::of(lab, LOSSLESS, seconds)?;
    ensure!((with.number("dropped")?, with.qdisc_drops) == (0, 0), "{}, qdisc {}", with.queue, with.qdisc_drops);
    ensure!(with.utilization()? >= 0.95, "the port was used by {:.3}", with.utilization()?);
    ensure!(with.fairness() >= 0.9, "Jain's index {:.3} of {:?}", with.fairness(), with.sent);
    with.number("peak_bytes")
}

/// Nothing is dropped where the port would drop all the time. Workers that do not sleep also keep
/// the queue below a bar; with those that sleep it is longer at times.
pub(crate) fn pauses_of_a_switch_prevent_losses(settings: &Settings) -> Result<()> {
    let seconds = if settings.full { 10 } else { 3 };
    let lab = Lab::up(&[&SWITCH[..], &["--classes", "0=50,3=50"]].concat())?;
    let without = PortShares::of(&lab, LOSSLESS, seconds)?;
    drop(lab);
    ensure!(without.number("dropped")? > 100 * seconds, "{}", without.queue);

    let pfc = ["--pfc", &format!("3:{XOFF}")];
    longest_lossless_queue(&Lab::up(&[&SWITCH[..], &pfc].concat())?, seconds).context("with workers that sleep")?;
    // A strict class has as few bytes in the NIC's queue.
    let awake = [&SWITCH[..], &pfc, &["--idle", "yield"]].concat();
    let lab = Lab::up(&[&awake[..], &["--classes", "0=100,3=strict"]].concat())?;
    let strict = longest_lossless_queue(&lab, seconds).context("of a strict class")?;
    drop(lab);
    ensure!(strict <= XOFF + 64_000, "{strict} bytes of a strict class in the queue");
    let lab = Lab::up(&awake)?;
    let longest = longest_lossless_queue(&lab, seconds)?;
    ensure!(longest <= XOFF + 64_000, "{longest} bytes in the queue");
    for host in LOSSLESS.from {
        let count = |name| lab.counter(*host, "device/roce0", name);
        let (pauses, storms) = (count("rx_prio3_pause")?, count("pfcwd_storms")?);
        println!("    host {host}: {pauses} pauses, {} us of them", count("rx_prio3_pause_duration")?);
        ensure!(pauses > 100 && storms == 0, "{pauses} pauses, {storms} storms");
    }
    Ok(())
}

/// Frames that a host has sent.
fn sent(lab: &Lab, host: Host) -> Result<u64> {
    lab.counter(host, "device/roce0/queue/*", "nic_tx_frames")
}

/// Starts to pause priority 3 of host b.
fn storm(lab: &Lab, seconds: &str) -> Result<Program> {
    let mut pause = lab.command("pause");
    pause.args(["b", "3", seconds]);
    Program::start(pause)
}

/// Frames that host b sends in 0.3 s.
fn sent_in_a_while(lab: &Lab) -> Result<u64> {
    let before = sent(lab, Host::B)?;
    thread::sleep(Duration::from_millis(300));
    Ok(sent(lab, Host::B)? - before)
}

/// The class stops, others do not; the watchdog lets it go on; no queue pair fails, and pauses are
/// honored again afterward.
pub(crate) fn a_storm_of_pauses_ends_in_the_watchdog(_: &Settings) -> Result<()> {
    // The window of the sender stays below the queue that pauses it.
    let lab = Lab::up(&["--switch", "--rate", "200M", "--buffer", "1000000", "--pfc", "3:900000"])?;
    lab.change_config(Host::B, |config| config + "pfc.watchdog_detection_ms = 2500\n")?;
    let senders = Senders::start(&lab, Load { from: &[Host::B], ..LOSSLESS }, 14)?;
    let count = |name| lab.counter(Host::B, "device/roce0", name);
    ensure!(sent_in_a_while(&lab)? > 500, "nothing is sent");
    let first = storm(&lab, "5")?;
    ensure!(within(SOON, || Ok(count("rx_prio3_pause")? > 1))?, "no pause");
    let stopped = sent_in_a_while(&lab)?;
    let ping = run(&lab, Host::B, &["ping", OWN_IPV4, "--count", "20", "--traffic-class", "0"], SOON)?;
    ensure!(count("pfcwd_storms")? == 0, "the machine is too slow: all this took 2.5 s");
    println!("\n    {stopped} frames of the class; another one meanwhile, round trips in us: {}", ping.0["rtt_us"]);
    ensure!(stopped < 5, "{stopped} frames leave during a pause");
    let is_storm = within(SOON, || Ok(count("pfcwd_storms")? == 1))?;
    ensure!(is_storm, "{} storms, {} pauses", count("pfcwd_storms")?, count("rx_prio3_pause")?);
    let before = sent(&lab, Host::B)?;
    ensure!(within(SOON, || Ok(sent(&lab, Host::B)? > before + 1000))?, "the class stays paused");
    ensure!(count("pfcwd_restored")? == 0 && lab.log(Host::B)?.contains("pauses without an end"), "no log line");
    first.end(SOON)?.success()?;
    ensure!(within(SOON, || Ok(count("pfcwd_restored")? == 1))?, "pauses are not honored again");
    ensure!(lab.log(Host::B)?.contains("the storm of pauses is over"), "no log line");
    let before = count("rx_prio3_pause")?;
    let second = storm(&lab, "1")?;
    ensure!(within(SOON, || Ok(count("rx_prio3_pause")? > before))?, "no second pause");
    let stopped = sent_in_a_while(&lab)?;
    ensure!(stopped < 5, "{stopped} frames leave during the second pause");
    second.end(SOON)?.success()?;
    senders.end()?;
    let timeouts = count("local_ack_timeout_err")?;
    let pauses = count("rx_prio3_pause")?;
    println!("    {pauses} pauses, {timeouts} ACK timeouts");
    let view = lab.ctl(Host::B, "fabric")?;
    let shown = &view["devices"][0]["pauses_received"][0];
    let is_shown = shown["priority"] == 3 && shown["frames"] == pauses && shown["duration_us"].as_u64() > Some(1000);
    ensure!(is_shown, "{pauses} pauses of priority 3, and in rocectl fabric {view}");
    Ok(())
}

/// A watchdog that reports a storm leaves the class paused; a connection with retries for that
/// time outlives it.
pub(crate) fn a_reported_storm_pauses_to_its_end(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--rate", "200M", "--pfc", "3:400000"])?;
    lab.change_config(Host::B, |config| config + "pfc.watchdog = \"report\"\n")?;
    let server = Server::start(&lab, Host::A, &[])?;
    // Its acknowledgments wait as well: retries of the peer have to last for longer.
    let bw = ["bw", OWN_IPV4, "--op", "write", "--size", "64K", "--seconds", "6", "--timeout", "17", "--json"];
    let load = lab.start(Host::B, "roce-perf", &[&bw[..], &["--traffic-class", PRIORITY_3]].concat())?;
    let count = |name| lab.counter(Host::B, "device/roce0", name);
    ensure!(within(SOON, || Ok(sent(&lab, Host::B)? > 1000))?, "nothing is sent");
    let storm = storm(&lab, "2")?;
    ensure!(within(SOON, || Ok(count("pfcwd_storms")? == 1))?, "no storm was detected");
    let before = sent(&lab, Host::B)?;
    thread::sleep(Duration::from_millis(500));
    let during = sent(&lab, Host::B)? - before;
    storm.end(SOON)?.success()?;
    let report = Report::read(&load.end(Duration::from_secs(30))?.success()?)?;
    drop(server);
    ensure!(during < 5, "{during} frames left in half a second of the storm");
    ensure!(lab.log(Host::B)?.contains("frames of the class wait"), "no log line");
    let rate = report.0["gbit_per_s"].as_f64().context("gbit_per_s")?;
    println!("\n    {rate:.3} Gbit/s with a pause of 2 of 6 s");
    ensure!(rate > 0.08, "{rate} Gbit/s: it goes on after the storm");
    Ok(())
}

/// Windows of more packets than the receiver's ring has room for: it pauses the sender, which is at
/// the other end of its link, and the sender honors each of these pauses. That a receiver loses
/// nothing so is a test of roced-xdp: here most frames are lost while its worker has no core.
pub(crate) fn a_receiver_without_room_pauses_its_neighbor(settings: &Settings) -> Result<()> {
    let seconds = if settings.full { "10" } else { "4" };
    let lab = Lab::up(&["--classes", "0=50,3=50"])?;
    let windows = "window_packets = 4096\ntotal_window_packets = 16384\n";
    lab.change_config(Host::B, |config| config + windows + "pfc.honor = [3]\n")?;
    lab.change_config(Host::A, |config| config + "pfc.generate = [3]\n")?;
    let _server = Server::start(&lab, Host::A, &[])?;
    let bw = ["bw", OWN_IPV4, "--op", "write", "--size", "64K", "--qps", "16", "--seconds", seconds];
    let report = run(&lab, Host::B, &[&bw[..], &["--traffic-class", PRIORITY_3]].concat(), Duration::from_secs(60))?;
    let of_queues = |name| lab.counter(Host::A, "device/roce0/queue/*", name);
    // Of one that is dropped, the kernel finds no room in the RX ring, or no chunk before that.
    let lost = of_queues("nic_rx_ring_full")? + of_queues("nic_rx_dropped")?;
    let (frames, sent) = (of_queues("nic_rx_frames")?, of_queues("nic_tx_pauses")?);
    let honored = lab.counter(Host::B, "device/roce0", "rx_prio3_pause")?;
    println!("\n    {frames} frames, {lost} lost, {sent} pauses, {} Gbit/s", report.0["gbit_per_s"]);
    ensure!(sent > 0 && honored == sent, "{sent} pauses, of which {honored} are honored");
    Ok(())
}
