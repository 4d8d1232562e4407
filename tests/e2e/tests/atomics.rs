//! Atomic operations, as two hosts have them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    Settings,
    lab::{Host, Lab},
    memory::introduce,
};

/// No run takes longer, with frames lost on the way.
const LIMIT: Duration = Duration::from_secs(120);

/// Two peers, with queue pairs of different workers, and the program itself change one number while
/// frames get lost and come twice. Nothing is done twice or not at all.
pub(crate) fn a_number_that_all_change_counts_every_change_once(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch", "--queues", "2", "--workers", "2"])?;
    lab.fault(&["--drop", "1%", "--duplicate", "1%", "--nth", "0x12:7:drop", "--nth", "0x14:9:duplicate"])?;
    let rounds: u64 = if settings.full { 100_000 } else { 4_000 };
    let text = rounds.to_string();
    let mut keeper = lab.start(Host::B, settings.client, &["keep-number", "2", &text])?;
    let mut peers = Vec::new();
    for _ in 0..2 {
        let mut peer = lab.start(Host::A, settings.client, &["count", &text])?;
        introduce(&mut peer, &mut keeper)?;
        peers.push(peer);
    }
    for peer in &mut peers {
        peer.expect("counted", LIMIT)?;
    }
    keeper.say("tell")?;
    keeper.expect(&format!("number {}", 2 * (rounds + rounds / 10) + rounds), LIMIT)?;
    let faults = lab.faults()?;
    ensure!(faults["dropped"] > 0 && faults["duplicated"] > 0, "nothing went wrong: {faults:?}");
    for worker in ["0", "1"] {
        let executed = lab.counter(Host::B, &format!("device/roce0/worker/{worker}"), "rx_atomic_requests")?;
        ensure!(executed >= rounds, "worker {worker} executed {executed}");
    }
    Ok(())
}
