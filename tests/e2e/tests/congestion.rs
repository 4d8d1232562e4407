//! Several senders to one receiver, behind a switch with a port of 200 Mbit/s that marks and drops.

use anyhow::{Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab, SOON},
    senders::{By, Load, PortShares, Senders, TWO},
    wire::{icrc_check, tshark},
};

/// Marks of the switch, of a queue of 0.8 to 3.2 ms.
const SWITCH: [&str; 7] = ["--switch", "--hosts", "3", "--rate", "200M", "--mark", "20000:80000:0.2"];

/// Twice the depth above which all is marked.
const PEAK_MAX: u64 = 2 * 80_000;

fn seconds(settings: &Settings) -> u64 {
    if settings.full { 10 } else { 3 }
}

/// With a congestion window: the port is full, its queue short, nothing is dropped, shares are
/// equal, and the senders handle the notifications that the receiver sends.
pub(crate) fn two_senders_share_a_port_that_marks(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let share = PortShares::of(&lab, TWO, seconds(settings))?;
    ensure!(share.utilization()? >= 0.95, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.95, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!((share.number("dropped")?, share.qdisc_drops) == (0, 0), "{}, qdisc {}", share.queue, share.qdisc_drops);
    ensure!(share.number("peak_bytes")? <= PEAK_MAX && share.number("marked")? > 0, "{}", share.queue);

    let count = |host, name| lab.counter(host, "device/roce0", name);
    let (sent, marked) = (count(Host::A, "np_cnp_sent")?, count(Host::A, "np_ecn_marked_roce_packets")?);
    let [mut handled, mut ignored] = [0; 2];
    for host in TWO.from {
        handled += count(*host, "rp_cnp_handled")?;
        ignored += count(*host, "rp_cnp_ignored")?;
    }
    println!("    {marked} packets marked, {sent} notifications, {handled} handled, {ignored} ignored");
    ensure!(handled > 10 && handled + ignored == sent && ignored <= 2, "{handled} and {ignored} of {sent}");
    let view = lab.ctl(Host::A, "fabric")?;
    let shown = &view["devices"][0]["counters"]["np_cnp_sent"];
    ensure!(*shown == sent, "{sent} in rocectl counters, and in rocectl fabric {view}");
    Ok(())
}

/// As above with four senders.
pub(crate) fn four_senders_share_a_port_that_marks(settings: &Settings) -> Result<()> {
    const FOUR: Load = Load { from: &[Host::B, Host::C, Host::D, Host::E], ..TWO };
    let switch = ["--switch", "--hosts", "5", "--rate", "200M", "--mark", "20000:80000:0.2"];
    let lab = Lab::up(&[&switch[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let share = PortShares::of(&lab, FOUR, seconds(settings))?;
    ensure!(share.utilization()? >= 0.95, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.9, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!((share.number("dropped")?, share.qdisc_drops) == (0, 0), "{}, qdisc {}", share.queue, share.qdisc_drops);
    ensure!(share.number("peak_bytes")? <= PEAK_MAX, "{}", share.queue);
    Ok(())
}

/// Two responders send to one requester: its window of responses follows the marks. A request is
/// for a chunk of 16 packets: a smaller window is a gap between chunks, in which the port is idle.
pub(crate) fn responses_to_reads_share_a_port_that_marks(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let share = PortShares::of(&lab, Load { by: By::Read, ..TWO }, seconds(settings))?;
    ensure!(share.utilization()? >= 0.75, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.9, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!((share.number("dropped")?, share.qdisc_drops) == (0, 0), "{}, qdisc {}", share.queue, share.qdisc_drops);
    Ok(())
}

/// As the first with DCQCN, by the bars of its paper's parameters.
pub(crate) fn senders_with_dcqcn_share_a_port(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "dcqcn"]].concat())?;
    let share = PortShares::of(&lab, TWO, seconds(settings))?;
    ensure!(share.utilization()? >= 0.8, "the port was used by {:.3}", share.utilization()?);
    ensure!(share.fairness() >= 0.9, "Jain's index {:.3} of {:?}", share.fairness(), share.sent);
    ensure!(share.number("dropped")? <= 30 * seconds(settings), "{}", share.queue);
    Ok(())
}

/// The first test without a congestion window: senders that do not react fill the buffer.
pub(crate) fn without_a_congestion_window_the_port_drops(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on"]].concat())?;
    let seconds = seconds(settings);
    let share = PortShares::of(&lab, TWO, seconds)?;
    ensure!(share.number("dropped")? > 100 * seconds, "{}", share.queue);
    ensure!(share.number("peak_bytes")? > 3 * PEAK_MAX && share.qdisc_drops == 0, "{}", share.queue);
    Ok(())
}

/// Senders say that their frames may be marked, the switch marks some of them, and the ICRC holds
/// in all.
pub(crate) fn marked_frames_have_a_right_icrc(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[&SWITCH[..], &["--ecn", "on", "--congestion", "window"]].concat())?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("congestion.pcap");
    let capture = lab.capture(&file)?;
    Senders::start(&lab, TWO, 2)?.end()?;
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
