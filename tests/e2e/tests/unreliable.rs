//! The services that promise less: unreliable connections.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab, SOON},
    memory::introduce,
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

pub(crate) fn what_arrives_through_losses_is_whole(settings: &Settings) -> Result<()> {
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
