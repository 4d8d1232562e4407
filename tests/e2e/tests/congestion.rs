//! Two senders to one receiver, behind a switch with a port of 200 Mbit/s that marks and drops.

use std::{process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    OWN_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{Report, Server},
    program::{Program, within},
    wire::{icrc_check, tshark},
};

/// Host a receives from the others.
const SENDERS: [Host; 2] = [Host::B, Host::C];

/// Marks of the switch, of a queue of 0.8 to 3.2 ms.
const SWITCH: [&str; 7] = ["--switch", "--hosts", "3", "--rate", "200M", "--mark", "20000:80000:0.2"];

/// Twice the depth above which all is marked.
const PEAK_MAX: u64 = 2 * 80_000;

/// From the begin of the senders: slow start, and the first notifications.
const WARM_UP: Duration = Duration::from_millis(500);

/// Both hosts send to host a.
struct Senders<'a> {
    lab: &'a Lab,
    loads: [Program; 2],
    _server: Server,
}

impl<'a> Senders<'a> {
    /// Starts them for so many seconds; both have a connection afterward.
    fn start(lab: &'a Lab, seconds: u64) -> Result<Self> {
        let server = Server::start(lab, Host::A, &[])?;
        let seconds = seconds.to_string();
        let load = ["bw", OWN_IPV4, "--op", "write", "--size", "64K", "--seconds", &seconds, "--json"];
        let [first, second] = SENDERS.map(|host| lab.start(host, "roce-perf", &load));
        let loads = [first?, second?];
        let connected = |host| Ok(lab.ctl(host, "qps")?["qps"].as_array().is_some_and(|qps| !qps.is_empty()));
        for host in SENDERS {
            ensure!(within(SOON, || connected(host))?, "host {host} has no connection");
        }
        Ok(Self { lab, loads, _server: server })
    }

    /// Bytes that each has sent so far, headers included.
    fn sent(&self) -> Result<[u64; 2]> {
        let [first, second] = SENDERS.map(|host| self.lab.counter(host, "device/roce0/queue/*", "nic_tx_bytes"));
        Ok([first?, second?])
    }

    /// Waits for their end; every byte was verified.
    fn end(self) -> Result<[Report; 2]> {
        let [first, second] = self.loads.map(|load| Report::read(&load.end(SOON)?.success()?));
        Ok([first?, second?])
    }
}

/// The port toward the receiver, and bytes of the senders, in a time without begin and end.
struct Share {
    queue: Value,
    sent: [u64; 2],
    tbf_drops: u64,
}

impl Share {
    /// Takes `seconds` of two senders that send for longer.
    fn of(lab: &Lab, seconds: u64) -> Result<Self> {
        let senders = Senders::start(lab, seconds + 4)?;
        thread::sleep(WARM_UP);
        lab.reset_queues()?;
        let before = senders.sent()?;
        let queue = lab.queue(Host::A, seconds)?;
        let after = senders.sent()?;
        let tbf_drops = tbf_drops(lab)?;
        senders.end()?;
        let sent = [after[0] - before[0], after[1] - before[1]];
        println!("\n    {queue}, sent {sent:?}");
        Ok(Self { queue, sent, tbf_drops })
    }

    fn number(&self, name: &str) -> Result<u64> {
        self.queue[name].as_u64().with_context(|| format!("no {name} in {}", self.queue))
    }

    fn utilization(&self) -> Result<f64> {
        self.queue["utilization"].as_f64().context("utilization")
    }

    /// Jain's index: 1 for equal shares, 0.5 when one sender has all.
    fn fairness(&self) -> f64 {
        let [first, second] = self.sent.map(|bytes| bytes as f64);
        (first + second).powi(2) / (2.0 * (first * first + second * second))
    }
}

/// Frames that the qdisc of the receiver's port dropped. It has more room than the queue before it.
fn tbf_drops(lab: &Lab) -> Result<u64> {
    let mut tc = Command::new("tc");
    tc.args(["-n", &format!("{}-middle", lab.name()), "-s", "-j", "qdisc", "show", "dev", "a0"]);
    let qdiscs: Vec<Value> = serde_json::from_str(&Program::run(tc, SOON)?.success()?)?;
    let tbf = qdiscs.iter().find(|qdisc| qdisc["kind"] == "tbf").context("no TBF on port a0")?;
    tbf["drops"].as_u64().context("drops")
}

fn seconds(settings: &Settings) -> u64 {
    if settings.full { 10 } else { 3 }
}

/// With a congestion window: the port is full, its queue short, nothing is dropped, shares are
/// equal, and the senders handle the notifications that the receiver sends.
pub(crate) fn two_senders_share_a_port_that_marks(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let share = Share::of(&lab, seconds(settings))?;
    ensure!(share.utilization()? >= 0.95, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.95, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!((share.number("dropped")?, share.tbf_drops) == (0, 0), "{}, TBF {}", share.queue, share.tbf_drops);
    ensure!(share.number("peak_bytes")? <= PEAK_MAX && share.number("marked")? > 0, "{}", share.queue);

    let count = |host, name| lab.counter(host, "device/roce0", name);
    let (sent, marked) = (count(Host::A, "np_cnp_sent")?, count(Host::A, "np_ecn_marked_roce_packets")?);
    let [mut handled, mut ignored] = [0; 2];
    for host in SENDERS {
        handled += count(host, "rp_cnp_handled")?;
        ignored += count(host, "rp_cnp_ignored")?;
    }
    println!("    {marked} packets marked, {sent} notifications, {handled} handled, {ignored} ignored");
    ensure!(handled > 10 && handled + ignored == sent && ignored <= 2, "{handled} and {ignored} of {sent}");
    Ok(())
}

/// As above with DCQCN, by the bars of its paper's parameters.
pub(crate) fn senders_with_dcqcn_share_a_port(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "dcqcn"]].concat())?;
    let share = Share::of(&lab, seconds(settings))?;
    ensure!(share.utilization()? >= 0.8, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.9, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!(share.number("dropped")? <= 30 * seconds(settings), "{}", share.queue);
    Ok(())
}

/// The first test without a congestion window: senders that do not react fill the buffer.
pub(crate) fn without_a_congestion_window_the_port_drops(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on"]].concat())?;
    let seconds = seconds(settings);
    let share = Share::of(&lab, seconds)?;
    ensure!(share.number("dropped")? > 100 * seconds, "{}", share.queue);
    ensure!(share.number("peak_bytes")? > 3 * PEAK_MAX && share.tbf_drops == 0, "{}", share.queue);
    Ok(())
}

/// Senders say that their frames may be marked, the switch marks some of them, and the ICRC holds
/// in all.
pub(crate) fn marked_frames_have_a_right_icrc(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("congestion.pcap");
    let capture = lab.capture(&file)?;
    Senders::start(&lab, 2)?.end()?;
    capture.stop()?;
    for source in ["10.10.0.2", "10.10.0.3"] {
        let filter = format!("ip.src == {source} && infiniband.bth.opcode < 0x20");
        let bits = tshark(&file, &filter, &["ip.dsfield.ecn"])?;
        let count = |wanted: &str| bits.iter().filter(|ecn| *ecn == wanted).count();
        let (may, marked) = (count("2"), count("3"));
        println!("    {source}: {may} frames that may be marked, {marked} that are");
        ensure!(may > 100 && marked > 10 && may + marked == bits.len(), "{may} and {marked} of {}", bits.len());
    }
    let dropped = lab.counter(Host::A, "device/roce0", "drop_bad_icrc")?;
    ensure!(dropped == 0, "the receiver dropped {dropped} frames for their ICRC");
    let verdict = icrc_check(&[&file])?.end(SOON)?.success()?;
    println!("    {}", verdict.trim());
    Ok(())
}
