//! Shared receive queues, as two hosts have them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab, SOON},
    memory::introduce,
};

/// No run takes longer, with frames lost on the way.
const LIMIT: Duration = Duration::from_secs(120);

/// Four programs send over connections and one by datagrams, all to one program that has fewer
/// receives than that, while frames get lost and come twice. It posts more only when the limit is
/// told, so that nothing goes on without that. In the end its queue pairs fail, and each tells its
/// last work request.
pub(crate) fn many_queue_pairs_take_from_one_receive_queue(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--queues", "2", "--workers", "2"])?;
    lab.fault(&["--drop", "1%", "--duplicate", "1%"])?;
    let messages = settings.rounds().to_string();
    let mut gather = lab.start(Host::B, settings.client, &["gather", "4", &messages, &messages])?;
    let mut peers = Vec::new();
    for peer in ["0", "1", "2", "3"] {
        peers.push(lab.start(Host::A, settings.client, &["scatter", peer, &messages])?);
    }
    peers.push(lab.start(Host::A, settings.client, &["scatter-datagrams", &messages])?);
    for peer in &mut peers {
        introduce(peer, &mut gather)?;
    }
    for peer in &mut peers {
        peer.expect("scattered", LIMIT)?;
    }
    let faults = lab.faults()?;
    ensure!(faults["dropped"] > 0 && faults["duplicated"] > 0, "nothing went wrong: {faults:?}");
    gather.say("all sent")?;
    gather.expect("gathered", SOON)
}
