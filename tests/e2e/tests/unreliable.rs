//! The services that promise less: unreliable connections and datagrams.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    Settings,
    lab::{Host, Lab, SOON},
    memory::introduce,
    program::within,
};

/// No run takes longer, with credit lost on the way.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn every_message_of_a_connection_arrives(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for mtu in ["256", "1024", "4096"] {
        let messages = settings.rounds();
        ensure!(messages_arrive(&lab, settings, messages, mtu)? == messages, "messages were lost at path MTU {mtu}");
    }
    ensure!(lab.counter(Host::B, "device/*", "retransmitted_packets")? == 0, "an unreliable service sends again");
    Ok(())
}

pub(crate) fn delivered_messages_are_complete_despite_losses(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    lab.fault(&["--drop", "1%"])?;
    let messages = settings.rounds();
    let arrived = messages_arrive(&lab, settings, messages, "1024")?;
    // Of about twelve packets each: 89 of 100 messages are whole.
    ensure!(arrived > messages / 2 && arrived < messages, "{arrived} of {messages} messages arrived");
    ensure!(lab.counter(Host::B, "device/*", "drop_out_of_sequence")? > 0, "the receiver saw no gap");
    Ok(())
}

/// Sends messages from host a to host b; how many arrived, each of which is right.
fn messages_arrive(lab: &Lab, settings: &Settings, messages: u32, mtu: &str) -> Result<u32> {
    let mut receiver = lab.start(Host::B, settings.client, &["uc-receive", mtu])?;
    let mut sender = lab.start(Host::A, settings.client, &["uc-send", &messages.to_string(), mtu])?;
    introduce(&mut sender, &mut receiver)?;
    sender.expect(&format!("sent {messages}"), LIMIT)?;
    receiver.say("all sent")?;
    let line = receiver.line(SOON)?;
    let arrived = line.strip_prefix("received ").with_context(|| line.clone())?;
    Ok(arrived.parse()?)
}

pub(crate) fn datagrams_are_answered_by_ipv4_ipv6_and_through_a_router(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    all_are_answered(&lab, settings, Host::A, ("10.10.0.1", "10.10.0.2"))?;
    all_are_answered(&lab, settings, Host::A, ("fd00:10::1", "fd00:10::2"))?;
    drop(lab);
    let lab = Lab::up(&["--routed"])?;
    all_are_answered(&lab, settings, Host::A, ("10.10.0.1", "10.20.0.2"))?;
    Ok(())
}

pub(crate) fn datagrams_between_two_workers_and_on_one_host(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "2", "--workers", "2"])?;
    all_are_answered(&lab, settings, Host::A, ("10.10.0.1", "10.10.0.2"))?;
    // Both on host b: by hand-over.
    let before = lab.counter(Host::B, "worker/*", "handed_over")?;
    all_are_answered(&lab, settings, Host::B, ("10.10.0.2", "10.10.0.2"))?;
    ensure!(lab.counter(Host::B, "worker/*", "handed_over")? > before, "nothing was handed over");
    Ok(())
}

pub(crate) fn lost_datagrams_cost_time_and_nothing_else(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    lab.fault(&["--drop", "5%"])?;
    let ends = ("10.10.0.1", "10.10.0.2");
    // One of ten questions is lost, or its answer: of all of --full that is 20 s.
    ensure!(unanswered(&lab, settings, Host::A, ends, Duration::from_millis(10))? > 0, "nothing was lost");
    Ok(())
}

/// Questions from `asker` to host b, which knows it by the first address and is known by the
/// second: none is asked twice.
fn all_are_answered(lab: &Lab, settings: &Settings, asker: Host, ends: (&str, &str)) -> Result<()> {
    let unanswered = unanswered(lab, settings, asker, ends, Duration::from_secs(10))?;
    ensure!(unanswered == 0, "{unanswered} datagrams were lost");
    Ok(())
}

/// As above, but a program that has waited so long asks again; how often that was.
fn unanswered(
    lab: &Lab,
    settings: &Settings,
    asker: Host,
    (from, to): (&str, &str),
    patience: Duration,
) -> Result<u32> {
    let rounds = settings.rounds();
    let mut answer = lab.start(Host::B, settings.client, &["answer", from])?;
    let how = [to, &rounds.to_string(), &patience.as_millis().to_string()];
    let mut ask = lab.start(asker, settings.client, &[&["ask"], &how[..]].concat())?;
    introduce(&mut ask, &mut answer)?;
    let line = ask.line(LIMIT)?;
    let unanswered = line.strip_prefix("unanswered ").with_context(|| line.clone())?.parse()?;
    answer.say("enough")?;
    let line = answer.line(SOON)?;
    let answered: u32 = line.strip_prefix("answered ").with_context(|| line.clone())?.parse()?;
    ensure!(answered >= rounds, "{line} of {rounds}");
    Ok(unanswered)
}

/// The absent neighbor costs the send that names it, and holds no other send up.
pub(crate) fn a_datagram_without_receiver_is_lost_and_others_continue(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut lost = lab.start(Host::A, settings.client, &["send-to-absent", "10.10.0.99"])?;
    lost.expect("waits", SOON)?;
    all_are_answered(&lab, settings, Host::A, ("10.10.0.1", "10.10.0.2"))?;
    lost.expect("complete", SOON)?;
    ensure!(lab.counter(Host::A, "device/*", "unreachable")? == 1, "that was no loss");
    Ok(())
}

/// On the other host and on the speaker's own, on both workers of each.
pub(crate) fn a_multicast_message_reaches_all_members(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "2", "--workers", "2"])?;
    for group in ["239.77.1.2", "ff0e::77:2"] {
        let mut there = lab.start(Host::B, settings.client, &["listen", group, "3"])?;
        let mut here = lab.start(Host::A, settings.client, &["listen", group, "2"])?;
        there.expect("attached", SOON)?;
        here.expect("attached", SOON)?;
        ensure!(
            is_member(&lab, Host::A, group)? && is_member(&lab, Host::B, group)?,
            "the kernel has not joined {group}"
        );
        let mut speaker = lab.start(Host::A, settings.client, &["speak", group])?;
        speaker.expect("spoken", SOON)?;
        there.expect("heard", SOON)?;
        here.expect("heard", SOON)?;
        there.say("leave")?;
        there.expect("detached", SOON)?;
        ensure!(!is_member(&lab, Host::B, group)?, "the kernel has not left {group}");
        here.say("leave")?;
        here.expect("detached", SOON)?;
        there.say("end")?;
        here.say("end")?;
    }
    ensure!(lab.counter(Host::B, "device/*", "drop_no_such_group")? == 0, "a member was forgotten");
    Ok(())
}

/// A member that dies leaves: the kernel is no member, and the group's frames are the kernel's. A
/// daemon that dies leaves all.
pub(crate) fn a_listener_that_dies_leaves_its_groups(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--queues", "2", "--workers", "2"])?;
    let groups = ["239.77.1.3", "ff0e::77:3"];
    for group in groups {
        let mut one = lab.start(Host::B, settings.client, &["listen", group, "2"])?;
        let mut other = lab.start(Host::B, settings.client, &["listen", group, "1"])?;
        one.expect("attached", SOON)?;
        other.expect("attached", SOON)?;
        one.signal(Signal::SIGKILL)?;
        let sessions = || anyhow::Ok(lab.ctl(Host::B, "status")?["sessions"].as_array().context("sessions")?.len());
        ensure!(within(SOON, || Ok(sessions()? == 1))?, "the dead one has a session");
        ensure!(is_member(&lab, Host::B, group)?, "one lives, and the kernel has left {group}");
        other.signal(Signal::SIGKILL)?;
        ensure!(
            within(SOON, || Ok(!is_member(&lab, Host::B, group)?))?,
            "the kernel is a member of {group} without a listener"
        );
        // Frames to the group do not come to the daemon now.
        let [passed, redirected] = ["xdp_pass_not_ours", "xdp_redirected"];
        let before = [lab.counter(Host::B, "device/*", passed)?, lab.counter(Host::B, "device/*", redirected)?];
        let mut speaker = lab.start(Host::A, settings.client, &["speak", group])?;
        speaker.expect("spoken", SOON)?;
        let now = || lab.counter(Host::B, "device/*", passed);
        ensure!(within(SOON, || Ok(now()? >= before[0] + 48))?, "{} of 48 frames passed", now()? - before[0]);
        ensure!(
            lab.counter(Host::B, "device/*", redirected)? == before[1],
            "roced takes frames of {group} without a listener"
        );
    }
    let mut listeners = Vec::new();
    for group in groups {
        let mut listener = lab.start(Host::B, settings.client, &["listen", group, "1"])?;
        listener.expect("attached", SOON)?;
        listeners.push(listener);
    }
    lab.stop_daemon(Host::B, Signal::SIGKILL)?;
    for group in groups {
        ensure!(
            within(SOON, || Ok(!is_member(&lab, Host::B, group)?))?,
            "the kernel is a member of {group} without a listener"
        );
    }
    Ok(())
}

fn is_member(lab: &Lab, host: Host, group: &str) -> Result<bool> {
    Ok(lab.run(host, "ip", &["maddr", "show", "dev", "eth0"], SOON)?.success()?.contains(group))
}
